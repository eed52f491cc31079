"""Supports types of other libraries that the program has imported, without importing them."""
