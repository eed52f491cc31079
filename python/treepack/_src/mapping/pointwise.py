"""Computes elements: scales of blocks, a factor, a sum."""

from __future__ import annotations

import numpy as np


def apply(
    source: np.ndarray,
    target: np.ndarray,
    *,
    scale: float | None = None,
    add: float | None = None,
    scales: np.ndarray | None = None,
    block: tuple[int, int] | None = None,
) -> None:
    """Writes `source * scales * scale + add` to an array, computed in float32 and rounded once.

    Args:
      source: Numbers of any dtype.
      target: Floats of the same shape; may be a view with its axes in any order.
      scale: A factor.
      add: A number that is added to the product.
      scales: A factor for each block of the last two dimensions: rows by columns, as many as there
        are blocks in `source`, of which the last ones may be smaller.
      block: The shape of a block.
    """
    values = source.astype(np.float32)
    if scales is not None:
        assert block is not None
        rows, columns = values.shape[-2:]
        factors = scales.astype(np.float32).repeat(block[0], 0)[:rows]
        values *= factors.repeat(block[1], 1)[:, :columns]
    if scale is not None:
        values *= np.float32(scale)
    if add is not None:
        values += np.float32(add)
    with np.errstate(over="ignore"):
        target[...] = values.astype(target.dtype)
