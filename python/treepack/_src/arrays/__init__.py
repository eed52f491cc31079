"""Arrays of NumPy as the core sees them, and arrays whose elements are not in memory."""
