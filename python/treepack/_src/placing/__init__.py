"""Casts loaded arrays, and places them in host memory or on devices."""
