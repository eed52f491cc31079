"""From a template and a state dict to a tree."""
