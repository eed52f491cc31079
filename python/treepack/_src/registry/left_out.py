from __future__ import annotations

from typing import Any

from treepack._src.interop import flax
from treepack._src.options import Static, check
from treepack._src.pytree.ties import ties_of


class LeftOut:
    """Which static data and code one save leaves out, and which nodes it meets again.

    `Recorder` (`nodes.py`) is the form for the core, which calls `ties` after its walk.
    """

    def __init__(self, static: Static = "error"):
        check("static", static)
        self.static = static
        self.has_code = False
        self._met: set[int] = set()
        self._has_ties = False

    def meet(self, node: Any) -> None:
        if flax.is_graph_node_type(type(node)):
            self._has_ties |= id(node) in self._met
            self._met.add(id(node))

    def ties(self, tree: Any) -> list[tuple[str, str]]:
        return ties_of(tree) if self._has_ties else []


KEEPS_ALL = LeftOut()
