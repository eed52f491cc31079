"""Series of checkpoints: files of one directory, numbered by steps."""
