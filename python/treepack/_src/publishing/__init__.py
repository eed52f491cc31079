"""Sends the versions of a tree through a directory or store."""

from treepack._src.publishing.publisher import Publisher, Subscriber

__all__ = ["Publisher", "Subscriber"]
