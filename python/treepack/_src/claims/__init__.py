"""Claims directories for saves, and commits to them."""
