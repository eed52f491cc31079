"""Prints statistics and elements of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from treepack import LazyArray
from treepack._cli.output import BARS


def rows(stats: Any) -> list[tuple[str, str]]:
    texts = [
        (f"{stats.symbol} from", f"{stats.minimum:.6g} to {stats.maximum:.6g}"),
        ("mean", f"{stats.mean:.6g} ± {stats.std:.6g}"),
        ("zeros", f"{stats.zeros} of {stats.size}"),
    ]
    if stats.nan or stats.infinite:
        texts.append(("not finite", not_finite(stats)))
    return texts


def bars(stats: Any) -> str:
    heights = [-(-count * (len(BARS) - 1) // max(stats.histogram)) for count in stats.histogram]
    return f"{stats.minimum:.3g} {''.join(BARS[it] for it in heights)} {stats.maximum:.3g}"


def not_finite(stats: Any) -> str:
    return f"{stats.nan} NaN, {stats.infinite} infinite"


def preview(array: LazyArray) -> str:
    if array.size == 0:
        return "[]"
    index = tuple(slice(0, 6) for _ in array.shape[-2:])
    elements: Any = array[(0,) * max(0, array.ndim - 2) + index] if array.ndim else array[()]
    return np.array2string(np.asarray(elements), max_line_width=78, precision=4)
