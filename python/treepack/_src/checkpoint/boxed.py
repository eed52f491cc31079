"""Arrays that are read in boxes, and have no bytes of their own in a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import treepack._core as core
from treepack._src.checkpoint.reader import Bounds, LazyArray
from treepack._src.storage.deferred import Computed


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
        bits = np.dtype(f"V{self.dtype.itemsize}")  # NumPy copies bytes faster than values
        box = [range(at, at + count * step, step) for at, count, step in bounds]
        target.view(bits)[...] = self._read(box).view(bits)

    def flat_range(self, start: int, stop: int) -> np.ndarray:
        """Reads a range of its elements in C order."""
        boxes = core.boxes_of_range(self.shape, start, min(stop, self.size))
        parts = [self._read([range(*it) for it in box]).reshape(-1) for box in boxes]
        return np.concatenate([np.empty(0, self.dtype), *parts])

    def _deferred(self) -> tuple[core.Content, list[tuple[int, int]]]:
        return Computed(self.shape, self.dtype, self.flat_range)._deferred()
