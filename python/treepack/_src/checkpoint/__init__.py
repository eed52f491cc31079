"""Checkpoints of any form, opened, loaded and verified."""
