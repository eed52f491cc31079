from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

import treepack._core as core
from treepack._src.options import Buffer

# Computing up to this number of further bytes costs less than another call.
_NEAR_BYTES = 2 << 20


class Deferred:
    """An array of known shape and dtype, whose bytes are not in memory.

    Attributes:
      shape: The dimensions.
      dtype: The NumPy dtype.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def _now(self) -> Any:
        """Returns the array, or `None` while it cannot be read yet."""
        return self

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The size of the elements in bytes."""
        return self.size * self.dtype.itemsize

    def _deferred(self) -> tuple[core.Content, list[tuple[int, int]]]:
        raise NotImplementedError

    def _ahead(self, *, lays: bool) -> Iterable[Any]:
        """Returns the ranges of remote files that reading it or, with `lays`, `_deferred` reads."""
        return ()


class Computed(Deferred):
    ranges: Callable[[], Iterable[Any]] = tuple
    """Returns the ranges of remote files that computing it reads."""

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        flat_range: Callable[[int, int], np.ndarray],
        ranges: Callable[[], Iterable[Any]] = tuple,
    ):
        self.shape = shape
        self.dtype = dtype
        self._flat_range = flat_range
        self.ranges = ranges

    def _read(self, start: int, length: int) -> Buffer:
        itemsize = self.dtype.itemsize
        first, last = start // itemsize, -(-(start + length) // itemsize)
        data: Any = self._elements(first, last).view(np.uint8)
        skipped = start - first * itemsize
        part: Buffer = data[skipped : skipped + length]
        return part

    def _elements(self, start: int, stop: int) -> np.ndarray:
        return self._flat_range(start, stop)

    def _ahead(self, *, lays: bool) -> Iterable[Any]:
        return () if lays else self.ranges()

    def _deferred(self) -> tuple[core.Content, list[tuple[int, int]]]:
        return core.Content.elsewhere(self._read, self.nbytes, _NEAR_BYTES), [(0, self.nbytes)]


class ComputedWhole(Computed):
    """Computed whole when its first bytes are read, and dropped after its last."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]):
        self.shape, self.dtype = shape, dtype
        self._array: np.ndarray | None = None
        self._left = 0
        self._lock = threading.Lock()

    def _elements(self, start: int, stop: int) -> np.ndarray:
        with self._lock:
            if self._array is None:
                self._array, self._left = self._make(), self.size
            array = self._array
            self._left -= stop - start  # threads read in any order
            if self._left <= 0:
                self._array = None
        return array[start:stop]

    def _make(self) -> np.ndarray:
        raise NotImplementedError


def elements_of(array: Any) -> core.Content:
    return core.Content.laid(core.lay_raw(b"", [array], snapshot=False), [])


def boxes_of(shape: tuple[int, ...], start: int, stop: int) -> Iterator[tuple[range, ...]]:
    if start >= stop:
        return
    if not shape:
        yield ()
        return
    size = math.prod(shape[1:])
    first, last = -(-start // size), stop // size

    def part(row: int, start: int, stop: int) -> Iterator[tuple[range, ...]]:
        for box in boxes_of(shape[1:], start - row * size, stop - row * size):
            yield range(row, row + 1), *box

    if first > last:
        yield from part(last, start, stop)
        return
    yield from part(first - 1, start, first * size)
    if first < last:
        yield range(first, last), *map(range, shape[1:])
    yield from part(last, last * size, stop)


class InContent(Deferred):
    def __init__(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], content: core.Content, start: int
    ):
        self.shape = shape
        self.dtype = dtype
        self._content = content
        self._start = start

    def _deferred(self) -> tuple[core.Content, list[tuple[int, int]]]:
        return self._content, [(self._start, self._start + self.nbytes)]
