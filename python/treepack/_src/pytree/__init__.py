"""Live Python trees: containers, leaves, state dicts."""
