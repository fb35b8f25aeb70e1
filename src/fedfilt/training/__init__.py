"""What a device does: train its row on its samples and test it, the same way on every engine."""
