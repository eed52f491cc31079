"""The implementation. CONTRIBUTING has a map of its rooms."""
