"""Lets the processes of a job agree on saves, loads and their end."""
