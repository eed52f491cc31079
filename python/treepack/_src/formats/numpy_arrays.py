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
from treepack._src.formats.named import without_dtype
from treepack._src.printable import printable, short_repr
from treepack._src.storage.deferred import elements_of
from treepack._src.storage.write import pieces
from treepack.errors import TreepackError

NPY = "NPY_packed"
"""The dtype of arrays that no array of a tree can hold: the bytes of a `.npy` file."""

# The upper bits of surrogates, U+D800 to U+DFFF.
_SURROGATES = 0xD800 >> 11


class UnsupportedError(ValueError):
    """No array of a tree can hold an array of NumPy."""


class Header(NamedTuple):
    """The header of an array.

    Attributes:
      shape: Its shape.
      order: The order of its elements.
      dtype: Its dtype, in the byte order of the elements.
      nbytes: The size of the header in bytes.
    """

    shape: tuple[int, ...]
    order: Literal["C", "F"]
    dtype: np.dtype[Any]
    nbytes: int

    @property
    def is_text(self) -> bool:
        """Whether it has strings, for which trees have no arrays; see `texts`."""
        return self.dtype.kind in "SU"

    @property
    def is_plain(self) -> bool:
        """Whether the elements lie in the file as in an array in memory."""
        return self.order == "C" and self.dtype.isnative and not self.is_text


def read_header(file: Any, nbytes: int) -> Header:
    """Reads the header of an array from a file object of `nbytes` bytes.

    Raises:
      UnsupportedError: If no array of a tree can hold the array.
      NotImplementedError: If it has pickled objects.
      ValueError: If the file is too short.
    """
    try:
        head = _Head(file)
        version = np.lib.format.read_magic(head)
        shape, fortran, dtype = _HEADERS[version](head)
    except (KeyError, ValueError, SyntaxError) as error:
        raise UnsupportedError(f"unsupported header: {error}") from error
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
    except (ValueError, OverflowError) as error:
        raise UnsupportedError(f"unsupported shape: {error}") from error
    # Empty strings and lists take memory, too.
    if header.is_text and math.prod(itertools.takewhile(bool, shape)) > nbytes:
        raise UnsupportedError("too many empty strings")
    return header


class _Head:
    """The beginning of a file: NumPy reads a header of any length before it refuses it."""

    def __init__(self, file: Any):
        self._file = file

    def read(self, nbytes: int = 0, /) -> bytes:
        """Reads bytes of the header."""
        if nbytes > _MAX_HEADER_BYTES:
            raise ValueError(f"it has {nbytes} bytes, at most {_MAX_HEADER_BYTES} are read")
        data: bytes = self._file.read(nbytes)
        return data


# As `max_header_size` of NumPy, which parses each with Python's own parser.
_MAX_HEADER_BYTES = 10_000


_HEADERS: dict[tuple[int, int], Callable[[Any], Any]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def array_of(header: Header, data: Any) -> np.ndarray:
    """Returns an array of its elements, in native byte order."""
    array = np.ndarray(header.shape, header.dtype, data, order=header.order)
    return array.astype(header.dtype.newbyteorder("="), copy=False)


def texts(array: np.ndarray) -> Any:
    """Returns an array of strings as a list.

    Raises:
      UnsupportedError: If a string is not valid Unicode.
    """
    if array.dtype.kind == "U" and array.nbytes:
        # Above the last, CPython makes strings that break later.
        points = np.ravel(array).view(np.uint32)
        if ((points > sys.maxunicode) | (points >> 11 == _SURROGATES)).any():
            raise UnsupportedError("a string is not valid Unicode")
    return array.tolist()


def check_dtype(array: Any, name: str, form: str) -> None:
    """Raises a TreepackError for a dtype that NumPy's files lack; see `without_dtype`."""
    if array.dtype.isbuiltin == 2:
        # Of ml_dtypes: NumPy would read it as another dtype, or not at all.
        raise TreepackError(f"at {printable(name)}: {without_dtype(form, array)}")


def write_array(file: Any, array: Any) -> None:
    """Writes an array to a file object, a few MiB at a time."""
    if _dtypes.shown(array.dtype) != NPY:  # which has its header
        head = {
            "descr": np.lib.format.dtype_to_descr(array.dtype),
            "fortran_order": False,
            "shape": array.shape,
        }
        np.lib.format.write_array_header_1_0(file, head)
    file.writelines(pieces(elements_of(array)))
