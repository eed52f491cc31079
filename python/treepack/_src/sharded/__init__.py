"""Directories of sharded checkpoints: files, plan of shards, readers."""
