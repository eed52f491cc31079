"""Arrays in the encoding of NumPy, which its files and archives share.

The format is in https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import ml_dtypes
import numpy as np

from treepack._src import dtypes as _dtypes
from treepack._src.arrays.deferred import ComputedWhole, elements_of
from treepack._src.formats.named import without_dtype
from treepack._src.printable import printable, short_repr
from treepack._src.storage.write import pieces
from treepack.errors import TreepackError

NPY = "NPY_packed"
"""The dtype of arrays that no array of a tree can hold: the bytes of a `.npy` file."""

# The upper bits of surrogates, U+D800 to U+DFFF.
_SURROGATES = 0xD800 >> 11


class UnsupportedError(ValueError):
    """No array of a tree can hold an array of NumPy."""


class Header(NamedTuple):
    shape: tuple[int, ...]
    order: Literal["C", "F"]
    dtype: np.dtype[Any]
    nbytes: int

    @property
    def is_text(self) -> bool:
        return self.dtype.kind in "SU"

    @property
    def is_plain(self) -> bool:
        return self.order == "C" and self.dtype.isnative and not self.is_text


def read_header(file: Any, nbytes: int) -> Header:
    """Raises an UnsupportedError, a NotImplementedError for pickled objects, or a ValueError."""
    try:
        head = _Head(file)
        version = np.lib.format.read_magic(head)
        shape, fortran, dtype = _HEADERS[version](head)
    except (OSError, MemoryError, UnsupportedError):
        raise
    except Exception as error:  # of NumPy, and of Python's own parser
        raise UnsupportedError(_UNSUPPORTED) from error
    before = file.tell()
    if dtype.hasobject:
        raise NotImplementedError("it has pickled objects, which are never read")
    # NumPy stores dtypes of other libraries as a size: two bytes are bfloat16, as `recover_dtype`
    # of big_vision reads them; one byte is ambiguous.
    if dtype.type is np.void and dtype.str == "|V2" and dtype.names is None:
        dtype = np.dtype(ml_dtypes.bfloat16)
    header = Header(shape, "F" if fortran else "C", dtype, before)
    if not header.is_text and _dtypes.resolve(dtype.name.encode()) is None:
        raise UnsupportedError(_dtypes.unsupported(dtype.name))
    if min(shape, default=0) < 0 or before + math.prod(shape) * dtype.itemsize > nbytes:
        raise ValueError(f"short read: the file ends before an array of shape {short_repr(shape)}")
    try:
        np.broadcast_to(np.zeros((), dtype), shape)
    except (TypeError, ValueError, OverflowError) as error:
        raise UnsupportedError(
            f"unsupported shape {short_repr(shape)}: read it with numpy.load"
        ) from error
    # Empty strings and lists take memory, too.
    if header.is_text and math.prod(itertools.takewhile(bool, shape)) > nbytes:
        raise UnsupportedError("too many empty strings")
    return header


class _Head:
    """The beginning of a file: NumPy reads a header of any length before it refuses it."""

    def __init__(self, file: Any):
        self._file = file

    def read(self, nbytes: int = 0, /) -> bytes:
        if nbytes > _MAX_HEADER_BYTES:
            raise UnsupportedError(
                f"its header has {nbytes} bytes, at most {_MAX_HEADER_BYTES} are read"
            )
        data: bytes = self._file.read(nbytes)
        if sum(map(data.count, (b"+", b"-", b"~"))) > _MOST_SIGNS:
            raise UnsupportedError(_UNSUPPORTED)
        return data


# As `max_header_size` of NumPy, which parses each with Python's own parser.
_MAX_HEADER_BYTES = 10_000

# Python's parser raises a MemoryError for a number with thousands of signs.
_MOST_SIGNS = 1000

_UNSUPPORTED = (
    "unsupported header: it is damaged, or of another version: copy the file again, or write it "
    "with numpy.save"
)


_HEADERS: dict[tuple[int, int], Callable[[Any], Any]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


class Encoded(ComputedWhole):
    """`read` takes an offset and a number of bytes."""

    def __init__(self, header: Header, read: Callable[..., bytes]):
        super().__init__(header.shape, header.dtype.newbyteorder("="))
        self.read, self._header = read, header

    def make(self) -> np.ndarray:
        header, data = self._header, self.read(self._header.nbytes, self.nbytes)
        array = np.ndarray(header.shape, header.dtype, data, order=header.order)
        return array.astype(self.dtype, copy=False)

    def _make(self) -> np.ndarray:
        return self.make().reshape(-1)


def encoded(header: Header, read: Callable[..., bytes], strings: Strings) -> Any:
    """Strings are read now."""
    array = Encoded(header, read)
    if not header.is_text:
        return array
    strings.take(header)
    return _texts(array.make())


# The strings of a file that may be leaves, and the bytes of it for each one more: a leaf takes
# hundreds of bytes, and a byte of a compressed file may expand to many.
_FREE_STRINGS = 1 << 16
_STRING_BYTES = 4


class Strings:
    """Bounds the strings of a file of `nbytes` bytes, each of which is a leaf."""

    def __init__(self, nbytes: int):
        self._left = _FREE_STRINGS + nbytes // _STRING_BYTES

    def take(self, header: Header) -> None:
        count = math.prod(header.shape)
        if count > self._left:
            raise UnsupportedError(
                f"it has {count} strings, more than {self._left}: read it with numpy.load"
            )
        self._left -= count


def _texts(array: np.ndarray) -> Any:
    if array.dtype.kind == "U" and array.nbytes:
        # Above the last, CPython makes strings that break later.
        points = np.ravel(array).view(np.uint32)
        if ((points > sys.maxunicode) | (points >> 11 == _SURROGATES)).any():
            raise UnsupportedError("a string is not valid Unicode")
    return array.tolist()


def check_dtype(array: Any, name: str, form: str) -> None:
    is_other = _dtypes.is_packed(array.dtype) and _dtypes.shown(array.dtype) != NPY
    if is_other or array.dtype.isbuiltin == 2:
        # Of safetensors or ml_dtypes: NumPy would read it as another dtype, or not at all.
        raise TreepackError(f"at {printable(name)}: {without_dtype(form, array)}")


def write_array(file: Any, array: Any) -> None:
    if _dtypes.shown(array.dtype) != NPY:  # which has its header
        head = {
            "descr": np.lib.format.dtype_to_descr(array.dtype),
            "fortran_order": False,
            "shape": array.shape,
        }
        np.lib.format.write_array_header_1_0(file, head)
    file.writelines(pieces(elements_of(array)))
