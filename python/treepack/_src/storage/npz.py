"""Reads archives of `numpy.savez`, one array at a time.

The format is in https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html.
"""

from __future__ import annotations

import functools
import itertools
import math
import struct
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import ml_dtypes
import numpy as np

import treepack._core as core
from treepack._src import dtypes as _dtypes
from treepack._src.printable import printable, short_repr
from treepack._src.storage.content import file_of
from treepack._src.storage.deferred import Computed, Held
from treepack._src.storage.foreign import ARCHIVE_END, ARCHIVE_END_BYTES
from treepack.errors import CorruptionError, DecodeError, TreepackError

if TYPE_CHECKING:
    import zipfile

NPY = "NPY_packed"
"""The dtype of members that no array of a tree can hold: the bytes of a `.npy` file."""

# The maximum compression ratio of deflate (https://zlib.net/zlib_tech.html).
_MAX_RATIO = 1032

# The number of members where 16 bits are too few: APPNOTE.TXT of PKWARE, section 4.4.22.
_MANY = 0xFFFF

# Bits of flags that change how a member is read: APPNOTE.TXT, section 4.4.4.
_FLAGS = 0x61

# Compression methods, APPNOTE.TXT of PKWARE, section 4.4.5.
_STORED, _DEFLATED = 0, 8

# The upper bits of surrogates, U+D800 to U+DFFF.
_SURROGATES = 0xD800 >> 11

# The size in bytes of the blocks in which checksums are computed.
_PART_BYTES = 8 << 20


def read_npz(content: core.Content, max_size: int | None = None) -> dict[str, Any]:
    """Reads the headers of an archive; arrays are read, and compared with their CRC, when used.

    Arrays of strings, for which trees have no form, are read now as lists. Other members that no
    array of a tree can hold, such as structures, are the bytes of their file. Members that are
    damaged or not supported, such as pickled objects, raise an error when they are used.

    Raises:
      DecodeError: If the data have another format, or the directory of the archive is damaged.
      TreepackError: If the decompressed arrays are larger than `max_size`.
    """
    import zipfile  # takes milliseconds of the start of every program

    arrays: dict[str, Any] = {}
    name = None
    try:
        archive = zipfile.ZipFile(file_of(content))
        _check_count(content, archive)
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
            arrays[name] = _member(content, archive, member)
    except (OSError, MemoryError, _TooLargeError):
        raise
    except Exception as error:  # zipfile may raise any type
        raise DecodeError(f"not a readable file of numpy.savez: {error}", path=name) from error
    return arrays


def _check_count(content: core.Content, archive: zipfile.ZipFile) -> None:
    """Compares the number of members with the one at the end, as zipfile does not.

    A damaged length of one entry hides others.
    """
    start = content.nbytes - ARCHIVE_END_BYTES - len(archive.comment)
    end = content.read_range(max(start, 0), max(start, 0) + ARCHIVE_END_BYTES)
    (count,) = struct.unpack_from("<H", end, 10)
    found = len(archive.infolist())
    if end.startswith(ARCHIVE_END) and count not in (found, _MANY):
        raise ValueError(f"its directory is damaged: expected {count} members, found {found}")


class _TooLargeError(TreepackError):
    """Arrays are larger than `max_size` allows."""


class _UnsupportedError(ValueError):
    """No array of a tree can hold a member."""


def _member(content: core.Content, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Any:
    """Returns an array, a list of strings, or an array of the bytes of a member that is neither.

    One that cannot be read raises when it is used.
    """
    try:
        _check_header(content, member)
        try:
            return _array(content, archive, member)
        except _UnsupportedError:
            read = functools.partial(_read, archive, member)
            return Packed((member.file_size,), _dtypes.packed(NPY), read, 0, "C")
    except (OSError, MemoryError):
        raise
    except Exception as error:  # of zipfile, zlib and NumPy
        # zipfile raises these, too, for what it lacks: methods of compression, passwords.
        is_limit = isinstance(error, RuntimeError)
        refuse = functools.partial(_refuse, printable(_name(member)), str(error), is_limit)
        dtype = _dtypes.packed("UNREADABLE_packed" if is_limit else "DAMAGED_packed")
        return Refused((member.compress_size,), dtype, refuse, 0, "C")


def _name(member: zipfile.ZipInfo) -> str:
    return member.filename.removesuffix(".npy")


def _refuse(name: str, reason: str, is_limit: bool, *_: int) -> bytes:
    if is_limit:
        raise DecodeError(f"the array {name} cannot be read: {reason}: select= loads the others")
    raise CorruptionError(f"the array {name} is damaged: {reason}")


def _check_header(content: core.Content, member: zipfile.ZipInfo) -> None:
    """Checks that a member can be read.

    Raises:
      NotImplementedError: If it has a compression that is not read.
      ValueError: If its directory entry differs from its own header, or its size cannot be true.
    """
    header = content.read_range(member.header_offset + 6, member.header_offset + 10)
    flags, method = struct.unpack("<HH", header)
    if method != member.compress_type or (flags ^ member.flag_bits) & _FLAGS:
        raise ValueError("the directory of the archive and the header of the member differ")
    is_stored = member.compress_type == _STORED
    if not is_stored and member.compress_type != _DEFLATED:
        raise NotImplementedError(f"unsupported zip compression method {member.compress_type}")
    if member.file_size > member.compress_size * (1 if is_stored else _MAX_RATIO):
        raise ValueError(
            f"{member.compress_size} compressed bytes cannot expand to {member.file_size} bytes"
        )


def _array(content: core.Content, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Any:
    """Returns an array of an archive, or a list of strings.

    Raises:
      _UnsupportedError: If no array of a tree can hold it.
    """
    with archive.open(member) as file:
        try:
            version = np.lib.format.read_magic(file)
            shape, fortran, dtype = _HEADERS[version](file)
        except (KeyError, ValueError, SyntaxError) as error:
            raise _UnsupportedError(f"unsupported header: {error}") from error
        before = file.tell()
    if dtype.hasobject:
        raise NotImplementedError("it has pickled objects, which are never read")
    is_text = dtype.kind in "SU"
    # NumPy stores dtypes of other libraries as a size: two bytes are bfloat16, as `recover_dtype`
    # of big_vision reads them; one byte is ambiguous.
    if dtype.type is np.void and dtype.str == "|V2" and dtype.names is None:
        dtype = np.dtype(ml_dtypes.bfloat16)
    if not is_text and _dtypes.resolve(dtype.name.encode()) is None:
        raise _UnsupportedError(_dtypes.unsupported(dtype.name))
    if min(shape, default=0) < 0 or before + math.prod(shape) * dtype.itemsize > member.file_size:
        raise ValueError(f"short read: the file ends before an array of shape {short_repr(shape)}")
    try:
        np.broadcast_to(np.zeros((), dtype), shape)
    except (ValueError, OverflowError) as error:
        raise _UnsupportedError(f"unsupported shape: {error}") from error
    # Empty strings and lists take memory, too.
    if is_text and math.prod(itertools.takewhile(bool, shape)) > member.file_size:
        raise _UnsupportedError("too many empty strings")
    read = functools.partial(_read, archive, member)
    is_stored = member.compress_type == _STORED
    if is_stored and not fortran and dtype.isnative and not is_text:
        lengths = content.read_range(member.header_offset + 26, member.header_offset + 30)
        start = member.header_offset + 30 + sum(struct.unpack("<HH", lengths)) + before
        return Stored(shape, dtype, read, content, start)
    made = Packed(shape, dtype, read, before, "F" if fortran else "C")
    return _texts(made.make()) if is_text else made


def _texts(array: np.ndarray) -> Any:
    """Returns an array of strings as a list."""
    if array.dtype.kind == "U" and array.nbytes:
        # Above the last, CPython makes strings that break later.
        points = np.ravel(array).view(np.uint32)
        if ((points > sys.maxunicode) | (points >> 11 == _SURROGATES)).any():
            raise _UnsupportedError("a string is not valid Unicode")
    return array.tolist()


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


class Refused(Packed):
    """The bytes of a member that is damaged or not supported; `check` raises the error."""


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
            while file.read(_PART_BYTES):
                pass
            if file.tell() < member.file_size:
                raise ValueError(
                    f"short read: expected {member.file_size} bytes, found {file.tell()}"
                )
    except (OSError, MemoryError):
        raise
    except Exception as error:  # of zipfile and zlib
        raise CorruptionError(
            f"the array {printable(_name(member))} is damaged: {error}"
        ) from error
    return data


_HEADERS: dict[tuple[int, int], Callable[[Any], Any]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
