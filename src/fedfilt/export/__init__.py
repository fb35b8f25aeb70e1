"""Runs and personal models in the formats people already use. A format is one file, which `fedfilt export` finds.

The first line of the file is its help. A format of numbers has `OUT`, the file or folder that it writes into a run
folder, `DEVICES`, whether it has numbers of every device unless told otherwise, and

    write(runs: Iterable[Records], target: Path, wanted: Wanted) -> str       where it has written

A format of models has `OUT`, `SUFFIX` and

    content(model: Personal) -> bytes

Packages that a format needs are in the extra with the format's name.
"""
