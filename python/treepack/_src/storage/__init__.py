"""Reads and writes bytes in files, at URLs and in file objects."""
