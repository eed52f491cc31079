from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from treepack._src import dtypes as _dtypes
from treepack._src.advice import Hinting
from treepack._src.options import check
from treepack._src.storage.fetch import fetching_arrays

# The number of elements that are read at a time, and in a block: computing takes eight times the
# memory of small elements.
_READ = 4 << 20
_BLOCK = 1 << 18


@dataclasses.dataclass
class Statistics(Hinting):
    """Statistics of the finite elements of an array; see `LazyArray.statistics`.

    Attributes:
      symbol: `x`, or `|x|` for magnitudes of complex numbers.
      minimum: NaN if there are none, and likewise the next ones.
      histogram: The numbers of elements in equal intervals between the extremes.
    """

    symbol: str
    minimum: float
    maximum: float
    mean: float
    std: float
    zeros: int
    nan: int
    infinite: int
    size: int
    histogram: list[int]


def statistics(array: Any, bins: int) -> Statistics:
    check("bins", bins)
    minimum, maximum = math.inf, -math.inf
    zeros = infinite = nan = count = 0
    mean = squares = 0.0  # of the differences from the mean
    for block in _magnitudes(array):
        nan += int(np.isnan(block).sum())
        infinite += int(np.isinf(block).sum())
        finite = block[np.isfinite(block)]
        zeros += int((finite == 0).sum())
        if finite.size:
            minimum = min(minimum, float(finite.min()))
            maximum = max(maximum, float(finite.max()))
            # https://en.wikipedia.org/wiki/Algorithms_for_calculating_variance#Parallel_algorithm
            mean_here = float(finite.mean())
            apart, count_before, count = mean_here - mean, count, count + finite.size
            with np.errstate(over="ignore"):
                squares += float(np.square(finite - mean_here).sum())
            squares += apart * (count_before / count * finite.size) * apart
            mean += apart * finite.size / count
    counts = np.zeros(bins, np.int64)
    for block in _magnitudes(array) if count and bins else ():
        counts += _histogram(block[np.isfinite(block)], bins, minimum, maximum)
    symbol = "|x|" if _dtypes.is_complex(array.dtype) else "x"
    if not count:
        minimum = maximum = mean = squares = math.nan
    std = math.sqrt(squares / max(count, 1))
    others = zeros, nan, infinite, array.size, counts.tolist()
    return Statistics(symbol, minimum, maximum, mean, std, *others)


def _histogram(finite: np.ndarray, bins: int, minimum: float, maximum: float) -> np.ndarray:
    with np.errstate(all="ignore"):
        try:
            return np.histogram(finite, bins, (minimum, maximum))[0]
        except ValueError:  # the numbers are too close for their magnitude, or too far apart
            places = (finite / 2 - minimum / 2) / (maximum / 2 - minimum / 2)
            return np.histogram(np.nan_to_num(places, nan=0.5), bins, (0, 1))[0]


def _magnitudes(array: Any) -> Iterator[np.ndarray]:
    for block in map(_as_floats, _native_blocks(array)):
        yield np.abs(block) if block.dtype.kind == "c" else block


def _native_blocks(array: Any) -> Iterator[np.ndarray]:
    with fetching_arrays([array]):
        for start in range(0, array.size, _READ):
            elements = array.flat_range(start, min(array.size, start + _READ))
            if _dtypes.is_packed(elements.dtype):
                elements = elements.view(np.uint8)
            for at in range(0, elements.size, _BLOCK):
                yield elements[at : at + _BLOCK]


def _as_floats(elements: np.ndarray) -> np.ndarray:
    return elements.astype(np.complex128 if _dtypes.is_complex(elements.dtype) else np.float64)


def pairs(
    one: Any, other: Any, *, all_blocks: bool = True
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yields blocks of two arrays as float64 or complex128, and their absolute differences.

    These are 0 only for equal elements and two NaNs, and infinite if one is NaN or infinite.
    Without `all_blocks`, leaves out those of equal bytes.
    """
    for left, right in zip(_native_blocks(one), _native_blocks(other), strict=True):
        if not all_blocks and left.dtype == right.dtype and _are_equal(left, right):
            continue
        kinds = left.dtype.kind + right.dtype.kind
        is_exact = not kinds.strip("iu") or (kinds in ("mm", "MM") and left.dtype == right.dtype)
        floats = _as_floats(left), _as_floats(right)
        with np.errstate(all="ignore"):
            yield *floats, _exact(left, right) if is_exact else _inexact(*floats)


def _are_equal(left: np.ndarray, right: np.ndarray) -> bool:
    return np.array_equal(left.view(np.uint8), right.view(np.uint8))


def _exact(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    low, high = np.minimum(left, right), np.maximum(left, right)
    distances: np.ndarray
    if low.dtype.kind == "f":  # int64 and uint64
        distances = np.maximum(high - low, 1.0)
        distances[left == right] = 0.0
        return distances
    unsigned = f"u{low.dtype.itemsize}"
    distances = (high.view(unsigned) - low.view(unsigned)).astype(np.float64)
    if low.dtype.kind in "mM":
        distances[np.isnat(left) != np.isnat(right)] = np.inf
    return distances


def _inexact(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    distances: np.ndarray = np.abs(left - right)
    if np.isfinite(distances).all():
        return distances
    distances = np.zeros(left.shape)
    differ = (left != right) & ~(np.isnan(left) & np.isnan(right))
    if differ.any():
        left, right = left[differ], right[differ]
        most = np.where(np.isfinite(left) & np.isfinite(right), np.finfo(np.float64).max, np.inf)
        distance = np.abs(left - right)
        distances[differ] = np.where(np.isnan(distance), np.inf, np.minimum(distance, most))
    return distances
