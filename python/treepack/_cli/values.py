"""Computes statistics of arrays in blocks, so that files may be larger than memory."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from treepack._cli.output import BARS
from treepack._src import paths as _paths
from treepack._src.api.compare import blocks, pairs
from treepack._src.checkpoint.file import Tree
from treepack._src.checkpoint.reader import LazyArray
from treepack._src.dtypes import is_complex, is_packed


def is_numeric(array: LazyArray) -> bool:
    """Returns whether an array has numbers."""
    return array.dtype.kind not in "mM" and not is_packed(array.dtype)


@dataclasses.dataclass
class Statistics:
    """Statistics of the finite elements of an array.

    Attributes:
      symbol: `x`, or `|x|` if they are of the magnitudes of complex numbers.
      minimum: The least one.
      maximum: The greatest one.
      mean: Their mean.
      std: Their standard deviation.
      zeros: The number of zeros.
      nan: The number of NaNs.
      infinite: The number of infinities.
      size: The number of all elements.
      histogram: The numbers of elements in intervals of one size between the extremes.
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

    def rows(self) -> list[tuple[str, str]]:
        """Returns them as text."""
        rows = [
            (f"{self.symbol} from", f"{self.minimum:.6g} to {self.maximum:.6g}"),
            ("mean", f"{self.mean:.6g} ± {self.std:.6g}"),
            ("zeros", f"{self.zeros} of {self.size}"),
        ]
        if self.nan or self.infinite:
            rows.append(("not finite", not_finite_text(self.nan, self.infinite)))
        return rows

    def bars(self) -> str:
        """Returns the histogram as text."""
        heights = [-(-count * (len(BARS) - 1) // max(self.histogram)) for count in self.histogram]
        bars = "".join(BARS[height] for height in heights)
        return f"{self.minimum:.3g} {bars} {self.maximum:.3g}"


def statistics(array: LazyArray, bins: int) -> Statistics | None:
    """Describes the finite elements of an array; `None` if it has none."""
    minimum, maximum, total, count = np.inf, -np.inf, 0.0, 0
    zeros = infinite = nan = 0
    for block in _magnitudes(array):
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
    for block in _magnitudes(array):
        finite = block[np.isfinite(block)]
        squares += float(np.square(finite - mean).sum())
        counts += np.histogram(finite, bins, (minimum, maximum))[0]
    symbol, std = "|x|" if is_complex(array.dtype) else "x", math.sqrt(squares / count)
    numbers = zeros, nan, infinite, array.size, counts.tolist()
    return Statistics(symbol, minimum, maximum, mean, std, *numbers)


def _magnitudes(array: LazyArray) -> Iterator[np.ndarray]:
    return (np.abs(block) if block.dtype.kind == "c" else block for block in blocks(array))


def not_finite(array: LazyArray) -> tuple[int, int]:
    """Counts the NaNs and infinities."""
    nan = infinite = 0
    for block in blocks(array) if array.dtype.kind not in "biumM" else ():
        nan += int(np.isnan(block).sum())
        infinite += int(np.isinf(block).sum())
    return nan, infinite


def not_finite_text(nan: int, infinite: int) -> str:
    """Formats the numbers of NaNs and infinities."""
    return f"{nan} NaN, {infinite} infinite"


@dataclasses.dataclass
class Change:
    """The change of a module between two files.

    Attributes:
      arrays: The number of arrays of the same shape in both.
      norm: The Euclidean norm of the first version.
      other_norm: The Euclidean norm of the second version.
      change: The Euclidean norm of their difference.
      largest: The largest absolute difference of two elements.
      nan: The number of NaNs in the first version.
      other_nan: The number of NaNs in the second version.
    """

    arrays: int = 0
    norm: float = 0.0
    other_norm: float = 0.0
    change: float = 0.0
    largest: float = 0.0
    nan: int = 0
    other_nan: int = 0

    def add(self, one: LazyArray, other: LazyArray) -> None:
        """Adds two arrays of the same shape; norms and differences leave out NaNs."""
        self.arrays += 1
        for left, right, apart in pairs(one, other):
            nans = np.isnan(left), np.isnan(right)
            self.nan += int(nans[0].sum())
            self.other_nan += int(nans[1].sum())
            left, right = np.where(nans[0], 0, left), np.where(nans[1], 0, right)
            apart[nans[0] | nans[1]] = 0
            self.norm = math.hypot(self.norm, float(np.linalg.norm(left)))
            self.other_norm = math.hypot(self.other_norm, float(np.linalg.norm(right)))
            self.change = math.hypot(self.change, float(np.linalg.norm(apart)))
            self.largest = max(self.largest, float(apart.max(initial=0.0)))


def changes(one: Tree, other: Tree) -> dict[str, Change]:
    """Compares the modules of two trees, the containers of arrays, by path."""
    theirs = dict(other.leaves())
    by_module: dict[str, Change] = {}
    for path, array in one.leaves():
        match = theirs.get(path)
        if not isinstance(array, LazyArray) or not isinstance(match, LazyArray):
            continue
        if array.shape == match.shape and is_numeric(array) and is_numeric(match):
            module = _paths.text(_paths.parts(path)[:-1])
            by_module.setdefault(module, Change()).add(array, match)
    return by_module


def preview(array: LazyArray) -> str:
    """Returns the first elements of an array, as NumPy prints them."""
    if array.size == 0:
        return "[]"
    index = tuple(slice(0, 6) for _ in array.shape[-2:])
    elements: Any = array[(0,) * max(0, array.ndim - 2) + index] if array.ndim else array[()]
    return np.array2string(np.asarray(elements), max_line_width=78, precision=4)
