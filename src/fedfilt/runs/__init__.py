"""An experiment from its file to its folder: config, run, checkpoint, records, comparison."""
