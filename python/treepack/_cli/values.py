"""Computes statistics of arrays in blocks, so that files may be larger than memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from treepack._cli.output import BARS
from treepack._src.api.compare import blocks
from treepack._src.checkpoint.reader import LazyArray


class Statistics(NamedTuple):
    """Statistics of the finite elements of an array."""

    minimum: float
    maximum: float
    mean: float
    deviation: float
    zeros: int
    infinite: int
    nan: int
    counts: list[int]


def is_numeric(array: LazyArray) -> bool:
    """Returns whether an array has numbers."""
    return array.dtype.kind not in "mM"


def statistics(array: LazyArray, bins: int) -> Statistics | None:
    """Computes statistics in two passes; `None` without finite elements."""
    minimum, maximum, total, count = np.inf, -np.inf, 0.0, 0
    zeros = infinite = nan = 0
    for block in blocks(array):
        block = np.abs(block) if block.dtype.kind == "c" else block
        nan += int(np.isnan(block).sum())
        infinite += int(np.isinf(block).sum())
        finite = block[np.isfinite(block)]
        zeros += int((finite == 0).sum())
        if finite.size:
            minimum = min(minimum, float(finite.min()))
            maximum = max(maximum, float(finite.max()))
            total += float(finite.sum())
            count += finite.size
    if not count:
        return None
    mean, squares = total / count, 0.0
    counts = np.zeros(bins, np.int64)
    for block in blocks(array):
        block = np.abs(block) if block.dtype.kind == "c" else block
        finite = block[np.isfinite(block)]
        squares += float(np.square(finite - mean).sum())
        counts += np.histogram(finite, bins, (minimum, maximum))[0]
    deviation = float(np.sqrt(squares / count))
    return Statistics(
        minimum, maximum, mean, deviation, zeros, infinite, nan, [int(it) for it in counts]
    )


def histogram(counts: list[int]) -> str:
    """Draws counts as a row of bars."""
    most = max(counts)
    return "".join(BARS[-(-count * (len(BARS) - 1) // most)] for count in counts)


def preview(array: LazyArray) -> str:
    """Returns the first elements of an array, as NumPy prints them."""
    if array.size == 0:
        return "[]"
    index = tuple(slice(0, 6) for _ in array.shape[-2:])
    found: Any = array[(0,) * max(0, array.ndim - 2) + index] if array.ndim else array[()]
    return np.array2string(np.asarray(found), max_line_width=78, precision=4)
