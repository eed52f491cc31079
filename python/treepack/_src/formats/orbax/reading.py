"""Checkpoints of Orbax as checkpoints: their metadata become the encoding of a tree.

    _METADATA ──▶ tree of arrays in TensorStore ──▶ layout ──▶ content ──▶ catalog, as of any file

TensorStore reads the boxes of arrays; Orbax itself is not needed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

import treepack._core as core
from treepack._src import paths as _paths
from treepack._src.arrays.deferred import ComputedWhole
from treepack._src.calls import repeated
from treepack._src.formats.orbax import item as _orbax
from treepack._src.leaves.prng import Key
from treepack._src.leaves.references import reference_text
from treepack._src.options import Reading
from treepack._src.printable import printable
from treepack._src.pytree.kinds import kind_of
from treepack._src.readers.boxed import BoxedArray
from treepack._src.readers.reader import LazyArray, Place, Reader, StayLazy
from treepack._src.readers.unchecked import UncheckedReader, layout_of
from treepack._src.storage.address import Address
from treepack._src.storage.content import Opened
from treepack.errors import CorruptionError, DecodeError, TreepackError


class OrbaxReader(UncheckedReader):
    format = "Orbax"
    is_one_file = has_types = False

    def __init__(self, source: Address, *, max_size: int | None = None, **options: Any):
        """The default of `max_size` is a size that real files do not reach."""
        place = source.real()  # TensorStore takes no `..`
        sizes = _sizes_in(place)
        item = _orbax.read_item(place)
        values = _values(item)
        arrays = [value for value in values if isinstance(value, TensorStoreArray)]
        self._arrays = {array.leaf.parts: array for array in arrays}
        nbytes = sum(max(array.nbytes, array.chunk_nbytes) for array in arrays)
        if max_size is not None and nbytes > max_size:
            raise TreepackError(f"the arrays of {nbytes} bytes exceed max_size={max_size}")
        if max_size is None and not _may_have(sizes, nbytes):
            raise TreepackError(
                f"the arrays or their chunks have {nbytes} bytes, far more than the files: chunks "
                f"are missing, which are read as one value. If that is right, pass "
                f"max_size={nbytes}"
            )
        layout = layout_of(_orbax.tree_of(item.leaves, values), item.metadata)
        content = core.Content.laid(layout, [])
        super().__init__(source, Opened(content, nbytes=sum(sizes)), max_size=max_size, **options)

    def array(self, value: int, parts: list[str], kind: tuple[Any, ...]) -> LazyArray:
        stored = self._arrays.get(tuple(parts))
        if stored is None:  # among the metadata
            return super().array(value, parts, kind)
        return _Array(self, value, parts, kind, stored)

    def read(
        self, place: Place, reading: Reading, marks: core.Marks | None, stays: StayLazy | None
    ) -> Any:
        """TensorStore reads arrays at the same time, unless they stay lazy."""
        started: dict[int, Any] = {}

        def begin(value: int, parts: list[str]) -> None:
            saved = self.leaf(value, parts)
            is_needed = isinstance(saved, _Array) and reading.copy is not False
            if is_needed and not waits(parts[len(place.parts) :]):
                started[value] = saved.start([range(size) for size in saved.shape])

        def waits(parts: list[str]) -> bool:
            return reading.everywhere if stays is None else stays(parts)

        def leaf(value: int, parts: list[str]) -> Any:
            if value in started:
                return np.asarray(_orbax.result(started.pop(value), _paths.text(parts)))
            saved = self.leaf(value, parts)
            if isinstance(saved, LazyArray) and not waits(parts[len(place.parts) :]):
                return saved.__array__(copy=reading.copy)
            return saved

        place.state(begin, marks)
        return place.state(leaf, marks)

    def fitted(self, state: Any, target: Any) -> Any:
        """Restores empty containers, such as `optax.EmptyState`, for which Orbax wrote `None`."""
        kind = kind_of(target)
        if kind is None or not (state is None or isinstance(state, dict)):
            return state
        children = kind.children(target)
        if not isinstance(children, Mapping):
            return state
        if state is None:
            return state if children else {}
        return {
            name: self.fitted(child, children[name]) if name in children else child
            for name, child in state.items()
        }


def _sizes_in(folder: Address) -> list[int]:
    """A pipe, for which TensorStore waits forever, a socket or a device is a DecodeError."""
    sizes: list[int] = []
    folders, seen = [folder], set()
    while folders:
        current = folders.pop()
        status = repeated(os.stat, current)
        if (status.st_dev, status.st_ino) in seen:  # by links in a circle
            continue
        seen.add((status.st_dev, status.st_ino))
        for entry in current.entries(hidden=True):
            path = current / entry.name
            if entry.is_directory:
                folders.append(path)
            elif path.exists():  # not a link to nothing
                if path.is_special():
                    raise DecodeError(f"{path.shown!r} is not a regular file")
                sizes.append(path.nbytes())
    return sizes


# A block of equal bytes in zstd, which compresses chunks: 128 KiB in 4 bytes (RFC 8878, section
# 3.1.1.2).
_MAX_RATIO = 1 << 15
_FREE_BYTES = 1 << 20


def _may_have(sizes: Iterable[int], nbytes: int) -> bool:
    left = nbytes - _FREE_BYTES
    return left <= 0 or any((left := left - _MAX_RATIO * size) <= 0 for size in sizes)


def _values(item: _orbax.Item) -> list[Any]:
    types = *_orbax.ARRAYS, _orbax.SCALAR
    stored = [leaf for leaf in item.leaves if leaf.type in types and not leaf.is_aggregated]
    opened = zip(stored, _orbax.open_arrays(item, stored), strict=True)
    arrays = {leaf: TensorStoreArray(leaf, store) for leaf, store in opened}
    small = [leaf for leaf in stored if leaf.type == _orbax.SCALAR or leaf.name in item.keys]
    for leaf in small:
        if leaf.name not in item.keys and (shape := arrays[leaf].shape):
            raise DecodeError(f"expected a number, found an array of {shape}", path=leaf.path)
    reads = {leaf: _orbax.read(arrays[leaf].store) for leaf in small}
    aggregated = _aggregated(item) if any(leaf.is_aggregated for leaf in item.leaves) else None
    strings = None
    values: list[Any] = []
    for leaf in item.leaves:
        if leaf.type in _orbax.EMPTY:
            values.append(_orbax.EMPTY[leaf.type]())
        elif leaf.is_aggregated:
            values.append(_at(aggregated, leaf))
        elif leaf in reads:
            values.append(_small(item, leaf, np.asarray(_orbax.result(reads[leaf], leaf.path))))
        elif leaf in arrays:
            values.append(arrays[leaf])
        elif leaf.type == _orbax.STRING:
            strings = _orbax.strings_of(item) if strings is None else strings
            values.append(_orbax.string_at(strings, leaf))
        else:
            raise DecodeError(
                f"the value has the type {printable(leaf.type)}, which only its program reads: "
                "restore it with Orbax and that handler, and save the result",
                path=leaf.path,
            )
    return values


def _small(item: _orbax.Item, leaf: _orbax.Leaf, data: np.ndarray) -> Any:
    impl = item.keys.get(leaf.name)
    if impl is None:
        return data.item()
    key = Key(impl, data).wrapped()
    if key is None:
        raise DecodeError(
            f"the PRNG key has the implementation {printable(impl)}, which JAX lacks, or JAX is "
            "not installed",
            path=leaf.path,
        )
    return key


def _aggregated(item: _orbax.Item) -> Any:
    try:
        return core.restore((item.path / _orbax.AGGREGATE).read_bytes(), None, None)
    except FileNotFoundError:
        raise CorruptionError(f"{_orbax.AGGREGATE}, which has values, is missing") from None


def _at(state: Any, leaf: _orbax.Leaf) -> Any:
    try:
        for part, is_index in zip(leaf.parts, leaf.are_indices, strict=True):
            state = state[int(part) if is_index and not isinstance(state, dict) else part]
    except (LookupError, TypeError, ValueError) as error:
        raise DecodeError(f"{_orbax.AGGREGATE} lacks the value", path=leaf.path) from error
    if isinstance(state, str) and reference_text(state) is not None:
        raise DecodeError(
            f"{_orbax.AGGREGATE} has the reference {printable(state)} in place of the value",
            path=leaf.path,
        )
    return state


class TensorStoreArray(ComputedWhole):
    def __init__(self, leaf: _orbax.Leaf, store: Any):
        self.leaf, self.store = leaf, store
        super().__init__(tuple(store.shape), np.dtype(store.dtype.numpy_dtype))

    @property
    def chunk_nbytes(self) -> int:
        return math.prod(self.store.chunk_layout.read_chunk.shape or ()) * self.dtype.itemsize

    def _make(self) -> np.ndarray:
        return np.asarray(_orbax.result(_orbax.read(self.store), self.leaf.path)).reshape(-1)


class _Array(BoxedArray):
    def __init__(
        self,
        reader: Reader,
        value: int,
        parts: list[str],
        kind: tuple[Any, ...],
        stored: TensorStoreArray,
    ):
        super().__init__(reader, value, parts, kind)
        self._stored = stored
        self._started: dict[tuple[range, ...], Any] = {}
        self._whole = tuple(map(range, self.shape))

    def begin(self, box: Sequence[range]) -> None:
        """Begins to read a box; the whole array if it is one chunk, which TensorStore decodes."""
        is_one = self._stored.store.chunk_layout.read_chunk.shape == self.shape
        key = self._whole if is_one else tuple(box)
        if key not in self._started:
            self._started[key] = self.start(key)

    def start(self, box: Sequence[range]) -> Any:
        return _orbax.read(self._stored.store[_index(box)])

    def _read(self, box: Sequence[range]) -> np.ndarray:
        if 0 in map(len, box):
            return np.empty(tuple(map(len, box)), self.dtype)
        if self._whole in self._started:
            whole = _orbax.result(self._started[self._whole], self.path)
            part: np.ndarray = whole[(*_index(box), ...)]
            return part
        started = self._started.pop(tuple(box), None)
        return np.asarray(_orbax.result(self.start(box) if started is None else started, self.path))

    def _deferred(self) -> tuple[core.Content, list[tuple[int, int]]]:
        return self._stored._deferred()


def _index(box: Sequence[range]) -> tuple[slice, ...]:
    return tuple(slice(part.start, part.stop, part.step) for part in box)
