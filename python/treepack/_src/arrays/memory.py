from __future__ import annotations

import numpy as np

import treepack._core as core


def memory_of(array: np.ndarray) -> tuple[np.ndarray, int, tuple[int, ...]]:
    """Returns memory in C order as bytes, the offset of the first element, and the strides."""
    whole = _whole(array)
    at = _address(array) - _address(whole)
    return whole.reshape(-1).view(np.uint8), at, array.strides


def has_rows(array: np.ndarray) -> bool:
    strides = [stride for size, stride in zip(array.shape, array.strides, strict=True) if size > 1]
    is_ordered = strides == sorted(strides, reverse=True)
    is_dense = not strides or strides[-1] == array.itemsize
    return is_ordered and is_dense and _whole(array).flags.c_contiguous


def copy(source: np.ndarray, target: np.ndarray, *, threads: int | None = None) -> None:
    """`target` is in C order, or a view of such an array, with any order of axes."""
    if target.size == 0:
        return
    memory, at, strides = memory_of(target)
    data = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
    itemsize = source.dtype.itemsize
    core.copy_array(data, source.shape, itemsize, memory, at, strides, threads=threads)


def _whole(array: np.ndarray) -> np.ndarray:
    return array.base if isinstance(array.base, np.ndarray) else array


def _address(array: np.ndarray) -> int:
    return array.ctypes.data  # NumPy's `__array_interface__` crashes if memory is exhausted
