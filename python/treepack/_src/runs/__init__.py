"""Directories of checkpoints by steps: their names, metadata and removal."""
