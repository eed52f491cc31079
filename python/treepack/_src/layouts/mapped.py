"""Saves trees in another layout: `mapping=` of `save`.

leaves of the tree ──inverse plan──▶ tensors of the file, each made when it is written
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

import treepack._core as core
from treepack._src import paths as _paths
from treepack._src.arrays.deferred import ComputedWhole, Deferred
from treepack._src.arrays.memory import copy
from treepack._src.checkpoint.select import ends_of
from treepack._src.formats import Leaves
from treepack._src.interop import jax as _jax
from treepack._src.leaves.leaves import Transfer
from treepack._src.mapping.assembly import overlap
from treepack._src.mapping.leaves import Leaf, check_equal
from treepack._src.mapping.moving import Made, Source
from treepack._src.mapping.plan import Fault
from treepack._src.mapping.ruleset import RuleSet
from treepack._src.printable import warn
from treepack._src.pytree.state_dict import leaves_of
from treepack._src.readers.reader import LazyArray


def mapped_leaves(tree: Any, whole: Any, mapping: Any, *, snapshot: bool) -> Leaves:
    """`whole` is the tree before a selection: rules of its other leaves are not mistakes."""
    leaves = {_paths.text(parts): leaf for parts, leaf in leaves_of(tree, ())}
    empty = (_paths.text(parts) for parts, is_leaf in ends_of(tree) if not is_leaf)
    leaves |= {path: {} for path in empty if path not in leaves}
    here = {path: Leaf.of(leaf) for path, leaf in leaves.items()}
    others = [_paths.text(parts) for parts, _ in leaves_of(whole, ()) if whole is not tree]
    plan = RuleSet.of(mapping).inverse().plan(here, None, others)
    if plan.faults:
        raise Fault.error(plan.faults)
    plan.check_apart(lambda path: not isinstance(leaves[path], dict), "file")
    if plan.unused:
        warn(plan.lacks("tree", here))
    held = _Sources(leaves, snapshot)
    ties: dict[str, list[Made | str]] = {}
    for new, tie in plan.ties:
        ties.setdefault(new, []).append(tie)
    mapped: list[tuple[tuple[str, ...], Any]] = []
    for new, old in plan.same.items():
        leaf = leaves[old]
        if new in ties and isinstance(leaf, Deferred) and leaf._now() is None:
            leaf = _Tensor(new, old, leaf.shape, leaf.dtype, ties[new], held)
        else:
            for tie in ties.get(new, ()):
                check_equal(new, Made.names(old, tie), leaf, held.read(tie, new))
        mapped.append((tuple(_paths.parts(new)), leaf))
    for new, made in plan.made.items():
        shape = made.assembly.result.shape
        tensor = _Tensor(new, made, shape, made.dtype, ties.get(new, ()), held)
        mapped.append((tuple(_paths.parts(new)), tensor))
    return mapped


class _Sources:
    def __init__(self, leaves: dict[str, Any], snapshot: bool):
        self._leaves, self._snapshot = leaves, snapshot
        self._held: dict[str, Any] = {}
        self._free: list[memoryview] = []

    def hold(self, paths: Iterable[str]) -> None:
        for path in paths:
            if path not in self._held:
                self._held[path] = _held(self._leaves[path], snapshot=self._snapshot)

    def read(self, made: Made | str, path: str) -> Any:
        if isinstance(made, str):
            leaf = self._leaves[made]
            return leaf._now() if isinstance(leaf, Deferred) else leaf
        self.hold(made.assembly.paths)
        paths = made.assembly.paths

        def source(at: int) -> Source:
            array = self._held[paths[at]]
            return Source(array._now() if isinstance(array, Deferred) else array)

        return made.assembled(source, path=path, empty=self._empty)

    def _empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """Returns an array in the memory of an earlier one: the system would clear other."""
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes > _MOST_REUSED:
            return np.empty(shape, dtype)
        try:
            memory = self._free.pop()
        except IndexError:
            memory = memoryview(b"")
        if memory.nbytes < nbytes:
            memory = np.empty(nbytes, np.uint8).data
        owner = np.frombuffer(memory, np.uint8, nbytes)  # the base of all views of it
        weakref.finalize(owner, self._free.append, memory)
        return owner.view(dtype).reshape(shape)


# Larger arrays are freed once they are written.
_MOST_REUSED = 64 << 20


class _Tensor(ComputedWhole):
    """A tensor of the file, which any process makes when it is written."""

    is_everywhere = True

    def __init__(
        self,
        path: str,
        made: Made | str,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        ties: Sequence[Made | str],
        held: _Sources,
    ):
        super().__init__(shape, dtype)
        self._path, self._tensor, self._ties, self._sources = path, made, ties, held
        for one in (made, *ties):
            held.hold([one] if isinstance(one, str) else one.assembly.paths)

    def __repr__(self) -> str:
        return repr(self._tensor if isinstance(self._tensor, str) else self._tensor.tie)

    def _make(self) -> np.ndarray:
        tensor = np.asarray(self._sources.read(self._tensor, self._path))
        for tie in self._ties:
            names = Made.names(self._tensor, tie)
            check_equal(self._path, names, tensor, self._sources.read(tie, self._path))
        return tensor.reshape(-1)


def _held(leaf: Any, *, snapshot: bool) -> Any:
    if isinstance(leaf, (np.ndarray, np.generic)):
        array = np.array(leaf) if snapshot else np.asarray(leaf)
        return _InMemory(array.astype(array.dtype.newbyteorder("="), copy=False))
    if isinstance(leaf, Deferred) and leaf._now() is None:
        return leaf
    if isinstance(leaf, LazyArray):
        leaf.compare()
        return leaf
    if not isinstance(leaf, Deferred):
        view = Transfer.view(leaf)
        if view is not None:
            return _InMemory(view)
        if not snapshot:
            return _OnDevices(leaf)
    data = core.lay_raw(b"", [leaf], snapshot=False).to_bytes(threads=None)
    return _InMemory(np.frombuffer(data, leaf.dtype).reshape(leaf.shape))


class _InMemory:
    def __init__(self, array: np.ndarray):
        self._array = array

    def view(self) -> np.ndarray:
        return self._array


class _OnDevices:
    def __init__(self, array: Any):
        self._shards = Transfer(array).shards

    def view(self) -> None:
        """The elements are not in host memory."""

    def ahead(self, box: Sequence[range]) -> Iterator[Any]:
        return iter(())

    def read_to(
        self, box: Sequence[range], target: np.ndarray, *, threads: int | None = None
    ) -> None:
        for starts, shard in self._shards:
            within: list[Any] = []
            places: list[Any] = []
            for part, start, size in zip(box, starts, shard.shape, strict=True):
                inside, place = overlap(part, range(start, start + size))
                within.append(slice(inside.start, inside.stop, inside.step))
                places.append(place)
            if all(place.start < place.stop for place in places):
                view = Transfer.view(shard)
                if view is None:
                    with _jax.explicit():
                        elements = np.asarray(shard[tuple(within)])
                else:
                    elements = view[(*within, ...)]
                copy(elements, target[(*places, ...)], threads=threads)
