"""The public functions and their documentation."""
