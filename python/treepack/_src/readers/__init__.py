"""Open files: their leaves, and arrays that are read when they are used."""
