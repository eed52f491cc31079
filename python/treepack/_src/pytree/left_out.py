"""Records what one save leaves out, and the nodes that it meets again."""

from __future__ import annotations

from typing import Any

from treepack._src.options import Static, check
from treepack._src.pytree.ties import Tie, is_shareable, ties_of


class LeftOut:
    """Which static data and code one save leaves out, and which nodes it meets again.

    The core passes it to the hooks that need it, and calls `ties` after its walk.

    Attributes:
      static: Which static data that cannot be stored are left out.
      has_code: Whether leaves that are code have been left out.
    """

    def __init__(self, static: Static = "error"):
        check("static", static)
        self.static = static
        self.has_code = False
        self._met: set[int] = set()
        self._has_ties = False

    def meet(self, node: Any) -> None:
        if is_shareable(node):
            self._has_ties |= id(node) in self._met
            self._met.add(id(node))

    def ties(self, tree: Any) -> list[Tie]:
        """Returns the ties of the tree, whose nodes were all met."""
        return ties_of(tree) if self._has_ties else []


NOTHING = LeftOut()
