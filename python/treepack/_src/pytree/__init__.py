"""Live Python trees: containers, state dicts, nodes in several places."""
