"""Directories of checkpoints by steps, and of published versions: names, metadata, removal."""
