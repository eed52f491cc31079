"""Shapes and dtypes of leaves."""

from __future__ import annotations

import functools
import re
from typing import Any, NamedTuple

import numpy as np

from treepack._src.interop import jax as _jax
from treepack._src.leaves.prng import key_text

_NUMBERS = (bool, int, float, complex)


class Signature(NamedTuple):
    shape: tuple[int, ...]
    dtype: Any

    def __str__(self) -> str:
        is_extended = _jax.is_extended(self.dtype)
        name = key_text(self.dtype) if is_extended else self.dtype.name
        return f"{name}[{','.join(map(str, self.shape))}]"

    @property
    def kind(self) -> str:
        return _kind(self.dtype)

    def is_like(self, number: Any) -> bool:
        return self.shape == () and type(number) in _NUMBERS and type(number).__name__ == self.kind

    def holding(self, number: Any) -> np.ndarray | None:
        try:
            with np.errstate(over="ignore"):
                array = np.asarray(number, self.dtype)
        except OverflowError:
            return None
        return array if np.isfinite(array) or not np.isfinite(number) else None


_KIND = re.compile(r"[bu]?(bool|int|float|complex)")


@functools.lru_cache(maxsize=64)
def _kind(dtype: Any) -> str:
    name = str(getattr(dtype, "name", dtype))
    match = _KIND.match(name)
    return name if match is None else match[1]


def signature(leaf: Any) -> Signature | None:
    shape = getattr(leaf, "shape", None)
    dtype = getattr(leaf, "dtype", None)
    if shape is None or dtype is None or isinstance(leaf, type):
        return None
    try:
        if isinstance(dtype, np.dtype) or not _jax.is_extended(dtype):
            dtype = np.dtype(dtype)
            # Files are read in native byte order.
            dtype = dtype if dtype.isnative else dtype.newbyteorder("=")
        return Signature(tuple(shape), dtype)
    except TypeError:
        return None


def like_scalar(target: Any, value: Any) -> Any:
    """Returns a 0-d array or number as the one of these that the template has.

    A Python number of another kind than the array's, or outside of its range, stays a number.
    """
    if type(value) in _NUMBERS:
        expected = None if type(target) in _NUMBERS else signature(target)
        if expected is None or not expected.is_like(value):
            return value
        array = expected.holding(value)
        if array is None:
            return value
        value = array
    elif isinstance(value, np.generic):
        value = value if isinstance(target, np.generic) else np.asarray(value)
    elif not isinstance(value, np.ndarray) or value.ndim > 0:
        return value
    if isinstance(target, np.generic):
        return value[()]
    return value.item() if type(target) in _NUMBERS else value
