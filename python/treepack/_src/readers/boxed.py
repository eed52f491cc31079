"""Arrays that are read in boxes, and have no bytes of their own in a file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

import treepack._core as core
from treepack._src import dtypes as _dtypes
from treepack._src.arrays.deferred import Computed
from treepack._src.arrays.memory import copy
from treepack._src.readers.reader import Bounds, LazyArray
from treepack._src.storage.fetch import RemoteRange

ALIGN = 64
"""The alignment at which JAX on CPU uses memory in place."""

CAST_BYTES = 16 << 20
"""The approximate size of the blocks in which an array is cast."""


def aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    nbytes = math.prod(shape) * dtype.itemsize
    [pages] = core.fresh_memory([nbytes])
    if pages is not None:
        return pages.view(dtype).reshape(shape)
    memory = np.empty(nbytes + ALIGN, np.uint8)
    start = -memory.ctypes.data % ALIGN
    return memory[start : start + nbytes].view(dtype).reshape(shape)


def blocks(
    box: Sequence[range], target: np.ndarray, axis: int
) -> Iterator[tuple[Sequence[range], np.ndarray]]:
    if target.ndim == 0:
        yield box, target
        return
    count = max(1, CAST_BYTES * len(box[axis]) // max(1, target.nbytes))
    inside = np.moveaxis(target, axis, 0)
    for start in range(0, len(box[axis]), count):
        part = slice(start, start + count)
        block = [*box[:axis], box[axis][part], *box[axis + 1 :]]
        yield block, np.moveaxis(inside[part], 0, axis)


class BoxedArray(LazyArray):
    """An array whose elements `_read` returns, always as copies.

    Along the axis `outer`, parts of it are contiguous in files.
    """

    outer = 0

    def cast(self, dtype: Any, *, overflow: bool) -> BoxedArray:
        return _Cast(self, dtype, overflow)

    def _read(self, box: Sequence[range]) -> np.ndarray:
        raise NotImplementedError

    def _read_all(self, copy: bool | None) -> np.ndarray:
        if copy is False:
            raise ValueError(
                f"{self.path} is not contiguous in a file and must be copied: pass copy=None"
            )
        return self._read([range(size) for size in self.shape])

    def read_to(
        self, box: Sequence[range], target: np.ndarray, *, threads: int | None = None
    ) -> None:
        copy(self._read(box), target, threads=threads)

    def view(self) -> np.ndarray | None:
        return None

    def ranges(self, bounds: Bounds) -> Iterator[RemoteRange]:
        return iter(())

    def _ahead(self, *, lays: bool) -> Iterable[RemoteRange]:
        # `_deferred` compares all elements with checksums, if there are some.
        return () if lays and not self.reader.is_summed else super()._ahead(lays=False)

    def _deferred(self) -> tuple[core.Content, list[tuple[int, int]]]:
        self.compare()
        return Computed(self.shape, self.dtype, self.flat_range)._deferred()


class _Cast(BoxedArray):
    def __init__(self, array: BoxedArray, dtype: Any, overflow: bool):
        self.reader, self.number, self.parts = array.reader, array.number, array.parts
        self.dtype, self.shape = np.dtype(dtype), array.shape
        self._array, self._overflow = array, overflow

    def _read_all(self, copy: bool | None) -> np.ndarray:
        return super()._read_all(None)  # `copy=False` does not exclude casts

    def begin(self, box: Sequence[range]) -> None:
        self._array.begin(box)

    def ahead(self, box: Sequence[range]) -> Iterator[RemoteRange]:
        return self._array.ahead(box)

    def _read(self, box: Sequence[range]) -> np.ndarray:
        array = aligned(tuple(map(len, box)), self.dtype)
        for block, target in blocks(box, array, self._array.outer):
            elements = self._array._read(block)
            _dtypes.cast(elements, target, self.path, overflow=self._overflow)
        return array
