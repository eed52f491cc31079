from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

import treepack._core as core
from treepack._src.arrays.memory import copy, has_rows, memory_of

# Wider dtypes that the core reads and writes; NumPy converts others.
_SOURCES = ("float16", "bfloat16", "float32", "float64")
_TARGETS = ("float16", "bfloat16", "float32")


def apply(
    source: np.ndarray,
    target: np.ndarray,
    *,
    scale: float | None = None,
    add: float | None = None,
    scales: np.ndarray | None = None,
    block: Sequence[int] = (),
    start: Sequence[int] | None = None,
    threads: int | None = None,
) -> None:
    """Writes `source * scales * scale + add` to an array, in one pass without the GIL.

    Each step is computed in float32 and rounded to the nearest, ties to even.
    Real numbers become floats of the same shape, in C order, or in a view of a part of such an
    array with its axes in any order, which do not overlap them. `scales` has a factor for each
    `block` of the last dimensions. Blocks begin at multiples of it; the last may be smaller. In
    these dimensions, `source` begins at `start` in the whole array.
    """
    if target.size == 0:
        return
    before = source.ndim - len(block)
    blocks = [(size, 0) for size in source.shape]
    factors = None
    if scales is not None:
        start = start or [0] * len(block)
        blocks[before:] = zip(block, map(int.__mod__, start, block), strict=True)
        box = zip(start, source.shape[before:], block, strict=True)
        inside = [slice(at // each, (at + size - 1) // each + 1) for at, size, each in box]
        factors = np.asarray(scales[tuple(inside)], np.float32)
        factors = factors.reshape([1] * before + [*factors.shape])
    if source.itemsize < target.itemsize and not has_rows(target):  # fewer bytes are rearranged
        order = _order_of(target)
        blocks = [blocks[axis] for axis in order]
        factors = None if factors is None else factors.transpose(order)
        source, target = source.transpose(order), target.transpose(order)
    if not (_is_among(source, _SOURCES) or source.itemsize == 1):
        source = source.astype(np.float32, order="C")
    elif not has_rows(source):
        source = _in_rows(source, threads)
    into = target
    if not _is_among(target, _TARGETS):
        into = np.empty(target.shape, np.float32)
    elif not has_rows(target):
        into = np.empty(target.shape, target.dtype)
    core.convert(
        memory_of(source),
        _table(source.dtype) if source.itemsize == 1 else source.dtype.name,
        memory_of(into),
        into.dtype.name,
        source.shape,
        blocks,
        None if factors is None else np.ascontiguousarray(factors).reshape(-1),
        scale=scale,
        add=add,
        threads=threads,
    )
    if into is target:
        return
    if into.dtype == target.dtype:
        copy(into, target, threads=threads)
        return
    with np.errstate(over="ignore", invalid="ignore"):
        np.copyto(target, into, casting="unsafe")


def _order_of(array: np.ndarray) -> list[int]:
    return sorted(range(array.ndim), key=lambda axis: -array.strides[axis])


def _in_rows(source: np.ndarray, threads: int | None) -> np.ndarray:
    order, rows = _order_of(source), np.empty(source.shape, source.dtype)
    copy(source.transpose(order), rows.transpose(order), threads=threads)
    return rows


def _is_among(array: np.ndarray, names: Sequence[str]) -> bool:
    return array.dtype.isnative and array.dtype.name in names


@functools.lru_cache(maxsize=16)
def _table(dtype: np.dtype[Any]) -> np.ndarray:
    return np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
