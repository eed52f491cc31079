"""Names in files: for node types, static data and functions."""
