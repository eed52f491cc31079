"""Leaves: their kinds, and their bytes."""
