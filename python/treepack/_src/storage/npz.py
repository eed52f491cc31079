"""Reads archives of `numpy.savez`, one array at a time.

The format is in https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html.
"""

from __future__ import annotations

import functools
import itertools
import math
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import ml_dtypes
import numpy as np

import treepack._core as core
from treepack._src import dtypes as _dtypes
from treepack._src.printable import printable, short_repr
from treepack._src.storage.content import file_of
from treepack._src.storage.deferred import Computed, Held
from treepack.errors import CorruptionError, DecodeError, TreepackError

if TYPE_CHECKING:
    import zipfile

# The maximum compression ratio of deflate (https://zlib.net/zlib_tech.html).
_MAX_RATIO = 1032

# Compression methods, APPNOTE.TXT of PKWARE, section 4.4.5.
_STORED, _DEFLATED = 0, 8

# The size in bytes of the blocks in which checksums are computed.
_PART_BYTES = 8 << 20


def read_npz(content: core.Content, max_size: int | None = None) -> dict[str, Any]:
    """Reads the headers of an archive; arrays are read, and compared with their CRC, when used.

    Arrays of strings, for which trees have no form, are read now as lists.

    Raises:
      DecodeError: If the data have another format, have other content than arrays, or are damaged.
      TreepackError: If the decompressed arrays are larger than `max_size`.
    """
    import zipfile  # takes milliseconds of the start of every program

    arrays: dict[str, Any] = {}
    name = None
    try:
        archive = zipfile.ZipFile(file_of(content))
        # Members inside each other would take the same bytes many times.
        packed = sum(member.compress_size for member in archive.infolist())
        if packed > content.nbytes:
            raise ValueError(f"its members overlap: they have {packed} of {content.nbytes} bytes")
        nbytes = sum(
            member.file_size
            for member in archive.infolist()
            if member.compress_type != _STORED and not member.is_dir()
        )
        if max_size is not None and nbytes > max_size:
            raise _TooLargeError(f"the decompressed arrays exceed max_size={max_size} bytes")
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if member.is_dir():
                continue
            if name in arrays:
                raise ValueError("two arrays in the archive have this name")
            arrays[name] = _array(content, archive, member)
    except (OSError, MemoryError, _TooLargeError):
        raise
    except Exception as error:  # zipfile and NumPy may raise any type
        raise DecodeError(f"not a readable file of numpy.savez: {error}", path=name) from error
    return arrays


class _TooLargeError(TreepackError):
    """Arrays are larger than `max_size` allows."""


def _array(content: core.Content, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Any:
    """Returns an array of an archive, or a list of strings."""
    is_stored = member.compress_type == _STORED
    if not is_stored and member.compress_type != _DEFLATED:
        raise ValueError(f"unsupported zip compression method {member.compress_type}")
    if member.file_size > member.compress_size * (1 if is_stored else _MAX_RATIO):
        raise ValueError(
            f"{member.compress_size} compressed bytes cannot expand to {member.file_size} bytes"
        )
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f"unsupported .npy version {version}")
        shape, fortran, dtype = _HEADERS[version](file)
        before = file.tell()
    if dtype.hasobject:
        raise ValueError("the array has pickled objects, which are never read")
    is_text = dtype.kind in "SU"
    if min(shape, default=0) < 0 or before + math.prod(shape) * dtype.itemsize > member.file_size:
        raise ValueError(f"short read: the file ends before an array of shape {short_repr(shape)}")
    try:
        np.broadcast_to(np.zeros((), dtype), shape)
    except (ValueError, OverflowError) as error:
        raise ValueError(
            f"NumPy does not support the shape {short_repr(shape)}: {error}"
        ) from error
    # Empty strings and lists take memory, too.
    if is_text and math.prod(itertools.takewhile(bool, shape)) > member.file_size:
        raise ValueError(f"too many empty strings in an array of shape {short_repr(shape)}")
    if dtype.type is np.void and dtype.names is None and dtype.subdtype is None:
        dtype = _of_void(dtype)
    if not is_text and _dtypes.resolve(dtype.name.encode()) is None:
        raise ValueError(f"{_dtypes.unsupported(dtype.name)}: read it with numpy.load")
    read = functools.partial(_read, archive, member)
    if is_stored and not fortran and dtype.isnative and not is_text:
        lengths = content.read_range(member.header_offset + 26, member.header_offset + 30)
        start = member.header_offset + 30 + sum(struct.unpack("<HH", lengths)) + before
        return Stored(shape, dtype, read, content, start)
    made = Packed(shape, dtype, read, before, "F" if fortran else "C")
    return made.make().tolist() if is_text else made


class Stored(Computed):
    """An array that lies in an archive as it is; `check` compares it with its CRC."""

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        read: Callable[[], bytes],
        content: core.Content,
        start: int,
    ):
        self.shape, self.dtype = shape, dtype
        self.check, self._content, self._start = read, content, start
        self._is_checked = False

    def _elements(self, start: int, stop: int) -> np.ndarray:
        if not self._is_checked:
            self.check()
            self._is_checked = True
        first, last = (self._start + index * self.dtype.itemsize for index in (start, stop))
        return np.frombuffer(self._content.read_range(first, last), self.dtype)


class Packed(Held):
    """An array that is compressed, or lies in another order; `check` compares it with its CRC."""

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        read: Callable[..., bytes],
        before: int,
        order: Literal["C", "F"],
    ):
        """The elements lie after `before` bytes, in `order` and in the byte order of `dtype`."""
        super().__init__(shape, dtype.newbyteorder("="))
        self.check, self._before, self._order, self._there = read, before, order, dtype

    def make(self) -> np.ndarray:
        """Returns the array."""
        data = self.check(self._before, self.nbytes)
        found = np.ndarray(self.shape, self._there, data, order=self._order)
        return found.astype(self.dtype, copy=False)

    def _make(self) -> np.ndarray:
        return self.make().reshape(-1)


def _read(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, start: int = 0, nbytes: int = 0
) -> bytes:
    """Reads a member to its end, where zipfile compares the CRC; returns a range of it.

    Raises:
      CorruptionError: If the member is damaged.
    """
    try:
        with archive.open(member) as file:
            file.read(start)
            data = file.read(nbytes)
            if len(data) < nbytes:
                raise ValueError(f"short read: expected {nbytes} bytes, found {len(data)}")
            while file.read(_PART_BYTES):
                pass
    except (OSError, MemoryError):
        raise
    except Exception as error:  # of zipfile and zlib
        name = printable(member.filename.removesuffix(".npy"))
        raise CorruptionError(f"the array {name} is damaged: {error}") from error
    return data


def _of_void(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Returns the dtype of elements whose dtype NumPy stored as a size.

    NumPy writes bfloat16 as `|V2`; `recover_dtype` of big_vision reads
    it as bfloat16, too. One-byte dtypes are ambiguous.
    """
    if dtype.itemsize != 2:
        raise ValueError(
            f"unknown dtype of {dtype.itemsize} bytes: NumPy stored {dtype.str}. Load the array "
            "with numpy.load, and view it with its original dtype"
        )
    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return found


_HEADERS: dict[tuple[int, int], Callable[[Any], Any]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
