"""Saves: in one file or directory, in the background, by several processes."""
