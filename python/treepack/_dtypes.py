"""How dtypes are named in the encoding, and found again by name.

A dtype is written as its NumPy name (`float32`, `bfloat16`, `int4`). Those of
ml_dtypes are known to NumPy by name once jax is imported.
"""

from __future__ import annotations

import functools

import jax  # noqa: F401  (registers the dtypes of ml_dtypes with NumPy)
import numpy as np


@functools.lru_cache(maxsize=256)
def describe(dtype: np.dtype) -> tuple[str | None, bool]:
    """Tells how a dtype is written.

    Returns:
      Its name, or `None` if arrays of it cannot be stored; and whether its
      elements are in the byte order in which they are stored.
    """
    if dtype.kind in "OSUT":
        return None, False
    native = dtype.newbyteorder("=")
    if resolve(native.name.encode()) != native:
        return None, False
    return native.name, dtype.isnative


@functools.lru_cache(maxsize=256)
def resolve(name: bytes) -> np.dtype | None:
    """Returns the dtype with a name or alias (`float32`, `<f4`), or `None` if there is none.

    Dtypes that hold objects have no bytes that could be read, so they are none.
    """
    try:
        dtype = np.dtype(name.decode())
    except (TypeError, ValueError, SyntaxError):
        return None
    if dtype.hasobject or dtype.subdtype is not None or dtype.itemsize == 0:
        return None
    return dtype
