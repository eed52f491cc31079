"""Arrays that are read in boxes, and have no bytes of their own in a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import treepack._core as core
from treepack._src.checkpoint.reader import Bounds, LazyArray, memory_of
from treepack._src.storage.deferred import Computed


def copy(source: np.ndarray, target: np.ndarray, *, threads: int | None = None) -> None:
    """Copies an array to one of the same shape and dtype, such as a transposed view of memory.

    Args:
      source: The array to copy.
      target: An array in C order, or a view of a part of one with its axes in any order.
      threads: The maximum number of threads.
    """
    if target.size == 0:
        return
    memory, at, strides = memory_of(target)
    data = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
    itemsize = source.dtype.itemsize
    core.copy_array(data, source.shape, itemsize, memory, at, strides, threads=threads)


class BoxedArray(LazyArray):
    """An array whose elements `_read` returns, always as copies."""

    def _read(self, box: Sequence[range]) -> np.ndarray:
        """Returns the elements of a box."""
        raise NotImplementedError

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError(
                f"{self.path} is not contiguous in a file and must be copied: pass copy=None"
            )
        found = self._read([range(size) for size in self.shape])
        return found if dtype is None else found.astype(dtype, copy=False)

    def view(self) -> np.ndarray | None:
        """Returns `None`: the elements are not contiguous in memory."""
        return None

    def read_to(self, bounds: Bounds, target: np.ndarray, *, threads: int | None = None) -> None:
        """Reads the elements of a box to an array."""
        box = [range(at, at + count * step, step) for at, count, step in bounds]
        copy(self._read(box), target, threads=threads)

    def flat_range(self, start: int, stop: int) -> np.ndarray:
        """Reads a range of its elements in C order."""
        boxes = core.boxes_of_range(self.shape, start, min(stop, self.size))
        parts = [self._read([range(*it) for it in box]).reshape(-1) for box in boxes]
        return np.concatenate([np.empty(0, self.dtype), *parts])

    def _deferred(self) -> tuple[core.Content, list[tuple[int, int]]]:
        return Computed(self.shape, self.dtype, self.flat_range)._deferred()
