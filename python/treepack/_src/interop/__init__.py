"""Other libraries, looked at where the program has imported them, and never imported for it."""
