"""Names dtypes in files, and finds dtypes by name.

A dtype has its NumPy name (`float32`, `bfloat16`, `int4`); ml_dtypes registers its own on import.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

import ml_dtypes  # noqa: F401  (registers its dtypes with NumPy)
import numpy as np

from treepack._src.printable import shortened
from treepack.errors import DecodeError, TreepackError

# Objects and strings.
_NOT_NUMBERS = "OSUT"

# A name (float8_e4m3fn) or a code (<f4), with or without a time unit (M8[25us]).
_NAME = re.compile(
    r"(?:[a-z]{3,}[a-z0-9_]*|[<>=|]?(?:[a-zA-Z]\d{0,2}|\?))(?:\[(?:[1-9]\d{0,8})?[a-zA-Z]{1,2}\])?"
)


def describe(dtype: np.dtype) -> tuple[str | None, bool]:
    if dtype.kind in _NOT_NUMBERS:
        return None, False
    if dtype.metadata is not None and _PACKED in dtype.metadata:
        return dtype.metadata[_PACKED], True
    native = dtype.newbyteorder("=")
    if resolve(native.name.encode()) != native:
        return None, False
    return native.name, dtype.isnative


def dtype_and_name(dtype: np.dtype | bytes) -> tuple[np.dtype, str, bool] | None:
    known = resolve(dtype) if isinstance(dtype, bytes) else dtype
    name, native = (None, False) if known is None else describe(known)
    return None if known is None or name is None else (known, name, native)


# The key of a name in the metadata of a dtype.
_PACKED = "treepack.packed"


# The names of `src/foreign/safetensors/header.rs` and `formats/npz/archive.py`.
_PACKED_NAME = re.compile(r"[A-Z]{1,10}\d{0,9}(?:_E\dM\d(?:FN)?(?:UZ)?)?_packed")


_has_packed = False


def has_packed() -> bool:
    """Whether this process has called `packed`; else no array has such a dtype."""
    return _has_packed


def packed(name: str) -> np.dtype:
    """Returns a dtype of bytes for arrays of safetensors and npz that no array of a tree can hold.

    Elements have 4 or 6 bits, or are structures, or there are more dimensions than NumPy's.
    """
    global _has_packed
    _has_packed = True
    return np.dtype((np.void, 1), metadata={_PACKED: name})


def elements_in(name: str, size: int) -> int:
    if not _PACKED_NAME.fullmatch(name):
        return size
    if (bits := _BITS.match(name)) is not None:
        return size * 8 // int(bits[1])
    return size if name == "BOOL_packed" else 0


# The bits of an element in a name of `packed`.
_BITS = re.compile(r"[A-Z]+([1-9]\d*)")


def is_packed(dtype: np.dtype) -> bool:
    return dtype.type is np.void


def shown(dtype: np.dtype) -> str:
    return str(dtype.metadata[_PACKED]) if is_packed(dtype) and dtype.metadata else dtype.name


@functools.lru_cache(maxsize=64)
def is_complex(dtype: np.dtype) -> bool:
    return dtype.name.startswith(("complex", "bcomplex"))


@functools.lru_cache(maxsize=64)
def is_float(dtype: np.dtype) -> bool:
    return dtype.name.startswith(("float", "bfloat"))


OVERFLOW_REMEDY = "or pass cast='overflow' to make them infinite"
"""The remedy for floats that overflow, where an option allows it."""


def cast(
    source: np.ndarray | np.generic,
    target: np.ndarray,
    path: object,
    *,
    overflow: bool = False,
    remedy: str = OVERFLOW_REMEDY,
    of_integers: str | None = None,
) -> None:
    """Casts floats or integers into an array of the same kind, or a part of one.

    A number that does not fit is a TreepackError; with `overflow`, floats become infinite or NaN.
    """
    are_floats = is_float(source.dtype)
    with np.errstate(over="ignore"):
        given = source
        if are_floats and not np.can_cast(source.dtype, target.dtype, "unsafe"):
            given = source.astype(np.float32)  # ml_dtypes has no casts between small floats
        np.copyto(target, given, casting="unsafe")
    if are_floats:
        if not overflow and (count := overflows(source, target)):
            counts = {path: f"at least {count}"}
            raise overflow_error(counts, source.dtype, target.dtype, remedy)
        return
    again = target.astype(source.dtype)
    if np.any(again != source) or np.any(np.less(target, 0) != np.less(source, 0)):
        raise TreepackError(
            f"at {path}: integers of {source.dtype.name} do not fit into {target.dtype.name}: "
            f"{of_integers or f'use a template of {source.dtype.name}'}"
        )


def overflows(source: np.ndarray | np.generic, target: np.ndarray) -> int:
    if not is_complex(target.dtype) and (
        largest(source.dtype) <= largest(target.dtype) or all_finite(target)
    ):
        return 0
    return int(np.count_nonzero(np.isfinite(source) & ~np.isfinite(target)))


def all_finite(array: np.ndarray) -> bool:
    """Returns whether all floats are finite, twenty times as fast as `isfinite` of ml_dtypes."""
    if array.size == 0:
        return True
    bits, size = _largest(array.dtype)[1], array.itemsize
    if array.dtype.name.endswith("fnuz"):  # NaN is in the place of -0
        return bool(np.all(np.isfinite(array)))
    positive, negative = array.view(f"i{size}").max(), array.view(f"u{size}").max()
    return bool(positive <= bits and negative <= bits | 1 << (8 * size - 1))


def largest(dtype: np.dtype) -> float:
    return float(np.iinfo(dtype).max) if dtype.kind in "iu" else _largest(dtype)[0]


@functools.cache
def _largest(dtype: np.dtype) -> tuple[float, int]:
    size = dtype.itemsize
    if size > 2:
        most = np.asarray(np.finfo(dtype).max, dtype)
        return float(most), int(most.view(f"u{size}")) if size <= 8 else 0
    values = np.arange(1 << 8 * size, dtype=f"u{size}").view(dtype).astype(np.float32)
    at = int(np.argmax(np.where(np.isfinite(values), values, 0)))
    return float(values[at]), at


def overflow_error(
    counts: Mapping[Any, object],
    source: np.dtype,
    dtype: np.dtype,
    remedy: str = OVERFLOW_REMEDY,
) -> TreepackError:
    paths = [f"{path} ({count})" for path, count in counts.items()]
    return TreepackError(
        f"floats of {source.name} overflow {dtype.name} at {shortened(paths, len(paths))}: keep "
        f"them as {source.name}, {remedy}"
    )


class UnreadableError(DecodeError):
    """A leaf that may be undamaged is of a kind that treepack does not support."""

    means_damage = False


def unsupported(name: str) -> str:
    return f"unsupported array dtype {name!r}: select= and exclude= load the other leaves"


@functools.lru_cache(maxsize=256)
def resolve(name: bytes) -> np.dtype | None:
    """Returns the dtype with a name or alias (`float32`, `<f4`), or `None`.

    Objects, strings and structures cannot be stored. The syntax is checked first: NumPy accepts a
    language in which parts are slow, and `M8[s/0]` crashes the program.
    """
    text = name.decode("ascii", errors="replace")
    if _PACKED_NAME.fullmatch(text):
        return packed(text)
    if not _NAME.fullmatch(text):
        return None
    try:
        dtype = np.dtype(text)
    except (TypeError, ValueError, Warning):
        return None
    return None if dtype.kind in _NOT_NUMBERS or dtype.type is np.void else dtype


def has_numbers(dtype: np.dtype) -> bool:
    return dtype.kind not in "mM" and not is_packed(dtype)
