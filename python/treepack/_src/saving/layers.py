"""Splits and transposes leaves while they are saved: `rename=` of `save`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import treepack._core as core
from treepack._src import paths as _paths
from treepack._src.checkpoint.reader import LazyArray
from treepack._src.checkpoint.select import Renaming, similar, values_in
from treepack._src.checkpoint.sources import Source, axes_of, split, spread
from treepack._src.formats import Leaves
from treepack._src.pytree.leaves import host_view
from treepack._src.storage.deferred import Deferred, Held
from treepack._src.storage.memory import copy
from treepack.errors import TreepackError


def renamed(leaves: Leaves, rename: Any, *, snapshot: bool) -> Leaves:
    """Returns the arrays of a tree with their paths in the file; see `save`.

    With `snapshot` they do not depend on the tree any more.

    Raises:
      TreepackError: If `rename` matches nothing, or a source does not fit its array.
    """
    if rename is None:
        return leaves
    names, sources = split(rename)
    paths = {_paths.text(parts): leaf for parts, leaf in leaves}
    ours: dict[str, Source] = {}
    for pattern, source in sources.items():
        matching = spread(pattern, source, paths)
        if not matching:
            path = _paths.text(_paths.parts(pattern))
            near = similar(path, paths)
            raise TreepackError(f"rename: the tree has no array at {path}, for {source}{near}")
        ours = matching | ours  # the first match counts
    renaming = Renaming(names, values=values_in(paths))
    arrays: list[tuple[tuple[str, ...], Any]] = []
    for path, leaf in paths.items():
        if path in ours:
            arrays += _arrays_of(path, leaf, ours[path], snapshot=snapshot)
        else:
            arrays.append((tuple(_paths.parts(renaming(path))), leaf))
    renaming.check(paths, "tree")
    return arrays


def _arrays_of(
    path: str, leaf: Any, source: Source, *, snapshot: bool
) -> Iterator[tuple[tuple[str, ...], Deferred]]:
    """Yields the arrays that become a leaf by `load(rename=)`."""
    ndim = len(leaf.shape) - (source.axis is not None)
    if ndim < 0:
        raise TreepackError(f"{source}: the array at {path} has no axis of layers")
    axis, order = axes_of(source, ndim)
    if axis is not None and leaf.shape[axis] > _MOST_EMPTY and 0 in leaf.shape:
        raise TreepackError(f"{source}: the array at {path} has {leaf.shape[axis]} empty layers")
    held = _held(leaf, snapshot=snapshot)
    back = tuple(map(int, np.argsort(order)))
    if axis is None:
        yield tuple(_paths.parts(source.pattern)), _Layer(held, (), back)
        return
    before, _, after = source.pattern.rpartition("*")
    for layer in range(leaf.shape[axis]):
        at = (*[slice(None)] * axis, layer)
        yield tuple(_paths.parts(f"{before}{layer}{after}")), _Layer(held, at, back)


# The most layers of an array without elements: the header of a file may have any number.
_MOST_EMPTY = 1 << 16


def _held(leaf: Any, *, snapshot: bool) -> Any:
    """Returns an array that can be indexed: of NumPy, in a file, or on devices.

    Raises:
      CorruptionError: If it is in a file, and damaged.
    """
    if isinstance(leaf, np.ndarray):
        return leaf.copy() if snapshot else leaf
    if isinstance(leaf, LazyArray):
        leaf.compare()
        return leaf
    is_jax = not isinstance(leaf, Deferred)
    view = host_view(leaf) if is_jax else None
    if view is not None or (is_jax and not snapshot):
        return leaf if view is None else view
    data = core.lay_raw(b"", [leaf], snapshot=False).to_bytes(threads=None)
    return np.frombuffer(data, leaf.dtype).reshape(leaf.shape)


class _Layer(Held):
    """A part of an array, transposed when it is written."""

    def __init__(self, held: Any, at: tuple[Any, ...], order: tuple[int, ...]):
        shape = [*held.shape]
        if at:
            shape.pop(len(at) - 1)
        dtype = np.dtype(held.dtype).newbyteorder("=")
        super().__init__(tuple(shape[axis] for axis in order), dtype)
        self._held, self._at, self._order = held, at, order

    def _make(self) -> np.ndarray:
        held, at = self._held, self._at
        part = _from_shards(held, at) if hasattr(held, "addressable_shards") else held[at]
        layer = np.empty(self.shape, self.dtype)
        turned = layer.transpose(np.argsort(self._order))
        copy(np.asarray(part).astype(self.dtype, copy=False), turned)
        return layer.reshape(-1)


def _from_shards(array: Any, at: tuple[Any, ...]) -> np.ndarray:
    """Returns a part of an array on devices, from its shards."""
    axis = len(at) - 1
    shape = [size for at_axis, size in enumerate(array.shape) if at_axis != axis]
    part = np.empty(shape, array.dtype)
    for shard in array.addressable_shards:
        index = [*shard.index]
        within = at
        if at:
            layers = range(*index.pop(axis).indices(array.shape[axis]))
            if at[axis] not in layers:
                continue
            within = (*at[:axis], at[axis] - layers.start)
        part[tuple(index)] = shard.data[within]
    return part
