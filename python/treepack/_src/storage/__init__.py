"""Bytes in files, at URLs and in file objects."""
