from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

import treepack._core as core
from treepack._src import dtypes as _dtypes
from treepack._src.leaves.signature import signature
from treepack._src.options import Reading
from treepack._src.paths import Trail
from treepack._src.readers.boxed import BoxedArray, aligned
from treepack._src.readers.shard_boxes import Box
from treepack._src.tasks import run

if TYPE_CHECKING:
    import jax

# The number of elements of the blocks in which arrays are cast.
_CAST_ELEMENTS = 1 << 20

# The total size in bytes of arrays that are cast at a time.
_CAST_BYTES = 1 << 26


Replicas = tuple[tuple["jax.Device", ...], ...]
"""The devices that hold each shard of an array, as many for each."""


@dataclasses.dataclass(slots=True)
class LeafToPlace:
    """A leaf that is cast and placed on devices.

    Attributes:
      leaf: Initially as found, finally as returned.
      weak: Without a template, whether its dtype was weak; `None` if it was not a JAX array.
      place: The device or sharding for it; initially the recorded sharding.
      replicas: The devices that hold each shard, if one process reads it for the others.
      sources: This process's devices for shards that it reads for others, with their indices.
      boxes: For an array in several files, the boxes that devices of this process need.
    """

    path: Trail
    target: Any
    leaf: Any
    weak: bool | None = False
    place: Any = None
    replicas: Replicas | None = None
    sources: dict[Any, tuple[slice, ...]] = dataclasses.field(default_factory=dict)
    boxes: dict[Any, Box] = dataclasses.field(default_factory=dict)


def index_key(index: tuple[slice, ...]) -> tuple[tuple[Any, Any], ...]:
    return tuple((at.start, at.stop) for at in index)


class _Casts:
    def __init__(self, threads: int | None, overflow: bool):
        self.overflow = overflow
        self._threads = threads
        self._elements = 0
        self._work: list[Callable[[], None]] = []
        self._lost: dict[tuple[np.dtype[Any], np.dtype[Any]], Counter[Trail]] = {}

    def add(self, source: np.ndarray, target: np.ndarray, path: Trail) -> None:
        self._elements += target.size
        self._work.append(lambda: self.now(source, target, path))

    def now(self, source: np.ndarray | np.generic, target: np.ndarray, path: Trail) -> None:
        _dtypes.cast(source, target, path, overflow=True)
        if not self.overflow and _dtypes.is_float(target.dtype):
            count = _dtypes.overflows(source, target)
            if count:
                self._lost.setdefault((source.dtype, target.dtype), Counter())[path] += count

    def run(self) -> None:
        is_large = self._elements > _CAST_ELEMENTS
        run(self._work, core.thread_count(self._threads) if is_large else 1)
        self._work.clear()
        self._elements = 0
        for dtypes, counts in self._lost.items():
            raise _dtypes.overflow_error(counts, *dtypes)


def cast_items(items: Iterable[LeafToPlace], threads: int | None, *, overflow: bool) -> None:
    work = _Casts(threads, overflow)
    tied: dict[Any, tuple[Any, Any]] = {}  # lazy arrays that several leaves share
    for item in items:
        expected, actual = signature(item.target), signature(item.leaf)
        if (
            expected is None
            or actual is None
            or expected.dtype == actual.dtype
            or expected.kind != actual.kind
            or expected.kind not in ("float", "int")
        ):
            continue
        key = id(item.leaf), expected.dtype
        if key not in tied:
            tied[key] = item.leaf, _cast(item.leaf, expected.dtype, work, item.path)
        item.leaf = tied[key][1]
    work.run()


def cast_floats(state: Any, reading: Reading, note: Callable[[Trail], None]) -> Any:
    """Works in place, and drops each source array once it is cast, so that few exist twice."""
    dtype = reading.dtype
    if dtype is None:
        return state
    root = [state]
    work = _Casts(reading.threads, reading.cast == "overflow")
    nbytes = 0

    def finish() -> None:
        nonlocal nbytes
        work.run()
        nbytes = 0

    def below(container: Any, key: Any, path: Trail) -> None:
        nonlocal nbytes
        value = container[key]
        if type(value) is dict:
            for name in value:
                below(value, name, Trail(path, str(name)))
        elif type(value) is list:
            for index in range(len(value)):
                below(value, index, Trail(path, str(index)))
        else:
            actual = signature(value)
            if actual is None or actual.kind != "float" or actual.dtype == dtype:
                return
            note(path)
            container[key] = _cast(value, dtype, work, path)
            nbytes += value.nbytes
            if nbytes >= _CAST_BYTES:
                finish()

    below(root, 0, Trail())
    finish()
    return root[0]


def _cast(source: Any, dtype: np.dtype[Any], work: _Casts, path: Trail) -> Any:
    """Adds the work that casts; arrays in boxes are cast when read, a part by each device."""
    if isinstance(source, BoxedArray):
        return source.cast(dtype, overflow=work.overflow)
    if isinstance(source, np.generic):
        scalar = np.empty((), dtype)
        work.now(source, scalar, path)
        return scalar[()]
    target = aligned(source.shape, dtype)
    flat = np.asarray(source).reshape(-1), target.reshape(-1)
    for start in range(0, target.size, _CAST_ELEMENTS):
        part = slice(start, start + _CAST_ELEMENTS)
        work.add(flat[0][part], flat[1][part], path)
    return target
