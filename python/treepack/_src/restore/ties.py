from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import treepack._core as core
from treepack._src import paths as _paths
from treepack._src.interop import flax
from treepack._src.interop import jax as _jax
from treepack._src.leaves.prng import Key
from treepack._src.leaves.signature import signature
from treepack._src.paths import Trail
from treepack._src.pytree.kinds import kind_of
from treepack._src.pytree.state_dict import leaves_of
from treepack._src.pytree.ties import shareable, tied, ties_of
from treepack._src.restore.compare import NODE_OF, VALUES_OF
from treepack._src.restore.session import Restore

# The path of a node, and another path of the same node.
_Tie = tuple[str, str]


def joined(
    target: Any, tree: Any, restore: Restore, record: bytes | None, above: Sequence[str]
) -> Any:
    """Returns a restored tree with the ties of its template and of the file.

    The template decides which nodes are one; other values in their places are a mismatch, unless
    one was not loaded. Ties that only the file has are restored where the template is abstract, as
    `jax.eval_shape` loses them; elsewhere they are a mismatch, too. `strict=False` leaves such
    nodes apart.
    """
    if restore.mismatches or not restore.has_shareable:
        return tree
    ours = ties_of(target)
    theirs = [] if record is None else _below(core.record_ties(record), above)
    if not ours and not theirs:
        return tree
    return _Joining(target, tree, restore, _Groups(theirs)).joined(ours, theirs)


def _below(ties: list[_Tie], above: Sequence[str]) -> list[_Tie]:
    count = len(above)
    parts = ([_paths.parts(path) for path in tie] for tie in ties)
    return [
        (_paths.text(first[count:]), _paths.text(again[count:]))
        for first, again in parts
        if first[:count] == again[:count] == [*above]
    ]


class _Groups:
    def __init__(self, ties: list[_Tie]):
        self._first: dict[str, str] = {}
        for first, again in ties:
            self.join(first, again)

    def first(self, path: str) -> str:
        passed = []
        while path in self._first:
            passed.append(path)
            path = self._first[path]
        self._first.update(dict.fromkeys(passed, path))  # a file may have long chains
        return path

    def join(self, first: str, again: str) -> None:
        first, again = self.first(first), self.first(again)
        if first != again:
            self._first[again] = first

    def ties(self) -> list[_Tie]:
        return [(self.first(path), path) for path in self._first]


class _Joining:
    def __init__(self, target: Any, tree: Any, restore: Restore, saved: _Groups):
        self.tree = tree
        self.restore = restore
        self.saved = saved
        self.old, self.new = (
            {str(trail): node for trail, node in shareable(root)} for root in (target, tree)
        )

    def joined(self, ours: list[_Tie], theirs: list[_Tie]) -> Any:
        members: dict[str, list[str]] = {}
        for first, again in ours:
            members.setdefault(first, [first]).append(again)
        pairs, differ = [], []
        for paths in members.values():
            there = [path for path in paths if path in self.new]
            first = next((path for path in there if self._is_loaded(path)), there[0])
            more = [path for path in there if path != first]
            pairs += [(first, path) for path in more]
            differ += [path for path in more if not self._agree(first, path)]
        differ.sort()
        groups = _Groups([pair for pair in pairs if not _paths.has(differ, pair[1])])
        our_groups = _Groups(ours)
        for first, again in theirs:
            if (
                our_groups.first(first) == our_groups.first(again)
                or not {first, again} <= self.new.keys()
            ):
                continue
            if self._is_abstract(again):
                groups.join(first, again)
            elif self.restore.strict and self._is_loaded(first) and self._is_loaded(again):
                expected = "a node of its own, as in the template"
                self._note(again, expected, f"{NODE_OF}{first}")
        return self.tree if self.restore.mismatches else tied(self.tree, groups.ties())

    def _is_abstract(self, path: str) -> bool:
        return any(_jax.is_struct(leaf) for _, leaf in leaves_of(self.old[path], ()))

    def _is_loaded(self, path: str) -> bool:
        old = dict(_own_leaves(self.old[path], Trail()))
        return any(leaf is not old.get(name) for name, leaf in _own_leaves(self.new[path], Trail()))

    def _agree(self, first: str, again: str) -> bool:
        if self.saved.first(first) == self.saved.first(again) or not self._is_loaded(again):
            return True
        ours, theirs = (dict(_own_leaves(self.new[path], Trail())) for path in (first, again))
        if ours.keys() == theirs.keys() and all(_same(ours[name], theirs[name]) for name in ours):
            return True
        if self.restore.strict:
            expected = f"{VALUES_OF}{first}, which is the same node in the template"
            self._note(again, expected, "other values")
        return False

    def _note(self, path: str, expected: str, found: str) -> None:
        trail = Trail()
        for part in _paths.parts(path):
            trail = Trail(trail, part)
        self.restore.note_at(trail, expected, found)


def _own_leaves(node: Any, trail: Trail) -> Iterator[tuple[Trail, Any]]:
    kind = kind_of(node)
    if kind is None or kind.final:
        yield trail, node
        return
    for name, child in kind.children(node).items():
        if not flax.is_graph_node_type(type(child)):
            yield from _own_leaves(child, Trail(trail, str(name)))


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    key, other_key = Key.of(one), Key.of(other)
    if key is not None and other_key is not None:
        if key.impl != other_key.impl:
            return False
        one, other = key.data, other_key.data
    if signature(one) is None or signature(one) != signature(other):
        return signature(one) == signature(other) and bool(one == other)
    pairs = zip(_on_host(one), _on_host(other), strict=True)
    return all(ours.tobytes() == theirs.tobytes() for ours, theirs in pairs)


def _on_host(array: Any) -> list[np.ndarray]:
    parts = array.addressable_shards if _jax.is_array(array) else ()
    return [_jax.on_host(part.data) for part in parts] or [np.asarray(array)]
