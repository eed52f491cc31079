"""Finds nodes that a tree has in several places, and joins them after a load.

Only nodes of nnx have an identity; JAX copies others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from treepack._src import paths as _paths
from treepack._src.interop import flax
from treepack._src.paths import Trail
from treepack._src.pytree.kinds import kind_of
from treepack.errors import DecodeError

_ROOT = Trail()


def ties_of(tree: Any) -> list[tuple[str, str]]:
    first: dict[int, tuple[Trail, Any]] = {}  # with the nodes, so that their ids stay theirs
    ties = []
    for trail, node in shareable(tree):
        before, _ = first.setdefault(id(node), (trail, node))
        if before is not trail:
            ties.append((str(before), str(trail)))
    return ties


def shareable(node: Any, trail: Trail = _ROOT) -> Iterator[tuple[Trail, Any]]:
    kind = kind_of(node)
    if kind is None or kind.final:
        return
    if flax.is_graph_node_type(type(node)):
        yield trail, node
    for name, child in kind.children(node).items():
        yield from shareable(child, Trail(trail, str(name)))


def tied(tree: Any, ties: Iterable[tuple[str, str]], above: Sequence[str] = ()) -> Any:
    """Returns a tree that has one node at both paths of each tie, without modifying nodes.

    `above` is the path of a part; ties beyond it have no effect. A tie that leads to itself, as in
    a hostile file, is a DecodeError.
    """
    root = _Branch()
    below = len(above)
    for pair in ties:
        first, again = map(_paths.parts, pair)
        if [*above] == first[:below] == again[:below]:
            root.at(again[below:]).first = root.at(first[below:])
    root.attach(tree)
    return root.tied_node()


class _Branch:
    __slots__ = ("_below", "_is_open", "_made", "_node", "first")

    def __init__(self) -> None:
        self.first: _Branch | None = None
        self._below: dict[str, _Branch] = {}
        self._node: list[Any] = []  # empty if the tree lacks it
        self._made: list[Any] = []
        self._is_open = False

    def at(self, parts: Iterable[str]) -> _Branch:
        branch = self
        for part in parts:
            branch = branch._below.setdefault(part, _Branch())
        return branch

    def attach(self, node: Any) -> None:
        self._node = [node]
        kind = kind_of(node) if self._below else None
        if kind is not None and not kind.final:
            children = kind.children(node)
            for name, branch in self._below.items():
                if name in children:
                    branch.attach(children[name])

    def tied_node(self) -> Any:
        if not self._made:
            if self._is_open:
                raise DecodeError("the ties in the record are damaged: a node contains itself")
            self._is_open = True
            self._made = [self._make()]
            self._is_open = False
        return self._made[0]

    def _make(self) -> Any:
        (node,) = self._node
        first = self.first
        if first is not None and first.first is None and first._is_like(node):
            return first.tied_node()
        new = {name: branch.tied_node() for name, branch in self._below.items() if branch._node}
        if not new:
            return node
        kind = kind_of(node)
        assert kind is not None, "a node with children has a kind"
        children, make = kind.opened(node)
        if all(children[name] is child for name, child in new.items()):
            return node
        return make({**children, **new})

    def _is_like(self, node: Any) -> bool:
        ty = type(node)
        return bool(self._node) and flax.is_graph_node_type(ty) and type(self._node[0]) is ty
