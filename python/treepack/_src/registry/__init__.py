"""Whatever has a name in files: types of nodes, static data, functions."""
