"""What a device does: train its row on its samples, and test it. The same on every engine."""
