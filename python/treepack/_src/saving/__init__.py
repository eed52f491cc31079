"""Writes trees: layouts, saves in the background, checkpoints of several processes."""
