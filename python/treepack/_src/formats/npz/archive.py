from __future__ import annotations

import functools
import io
import struct
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

import treepack._core as core
from treepack._src import dtypes as _dtypes
from treepack._src.arrays.deferred import Computed
from treepack._src.formats.numpy_arrays import (
    NPY,
    Encoded,
    Header,
    Strings,
    UnsupportedError,
    encoded,
    read_header,
)
from treepack._src.printable import printable
from treepack._src.storage.content import Opened
from treepack._src.storage.fetch import RemoteRange, fetching
from treepack.errors import (
    SALVAGE_ADVICE,
    CorruptionError,
    DecodeError,
    TreepackError,
)

if TYPE_CHECKING:
    import zipfile

# The maximum compression ratio of deflate (https://zlib.net/zlib_tech.html).
_MAX_RATIO = 1032

# The number of members where 16 bits are too few: APPNOTE.TXT of PKWARE, section 4.4.22.
_MANY = 0xFFFF

# The signature of the end record, and its size in bytes without a comment; the same of an entry of
# the directory without a name: APPNOTE.TXT of PKWARE, sections 4.3.16 and 4.3.12.
_END, _END_BYTES = b"PK\5\6", 22
_ENTRY, _ENTRY_BYTES = b"PK\1\2", 46

# The end of the name of a folder, an entry without data.
_FOLDER = b"/"

# Bits of flags that change how a member is read: APPNOTE.TXT, section 4.4.4.
_FLAGS = 0x61

# Compression methods, APPNOTE.TXT of PKWARE, section 4.4.5.
_STORED, _DEFLATED = 0, 8

# The number of bytes behind a header that the core may read with it, at least.
_AHEAD_BYTES = 32

# The approximate size in bytes of the headers of a member, which are read through a buffer.
_HEAD_BYTES = 8 << 10

# The size in bytes of the blocks in which checksums are computed.
_PART_BYTES = 8 << 20


def is_archive(content: core.Content) -> bool:
    """Returns whether data are a damaged archive with an array first, so not PyTorch's."""
    if content.nbytes < _END_BYTES:
        return False
    end = content.read_range(content.nbytes - _END_BYTES, content.nbytes)
    if not end.startswith(_END):
        return False
    (start,) = struct.unpack_from("<I", end, 16)
    while start + _ENTRY_BYTES <= content.nbytes - _END_BYTES:
        entry = content.read_range(start, start + _ENTRY_BYTES)
        if not entry.startswith(_ENTRY):
            break
        length, *others = struct.unpack_from("<HHH", entry, 28)
        first = start + _ENTRY_BYTES
        name = content.read_range(first, min(first + length, content.nbytes))
        if not name.endswith(_FOLDER):
            return name.endswith(b".npy")
        start = first + length + sum(others)
    return False


def read_npz(opened: Opened, max_size: int | None) -> dict[str, Any]:
    """Reads the headers of an archive; arrays are read, and compared with their CRC, when used.

    Arrays of strings become lists now. Other members that no array of a tree can hold, such as
    structures, are the bytes of their file.
    """
    import zipfile  # takes milliseconds of the start of every program

    arrays: dict[str, Any] = {}
    content, blocks, name = opened.content, opened.blocks, None
    try:
        archive = zipfile.ZipFile(opened.file())
        _check_count(content, archive)
        # Members inside each other would take the same bytes many times.
        packed = sum(member.compress_size for member in archive.infolist())
        if packed > content.nbytes:
            raise _ArchiveError(
                f"its members overlap: they have {packed} of {content.nbytes} bytes"
            )
        nbytes = sum(
            member.file_size
            for member in archive.infolist()
            if member.compress_type != _STORED and not member.is_dir()
        )
        if max_size is not None and nbytes > max_size:
            raise _TooLargeError(f"the decompressed arrays exceed max_size={max_size} bytes")
        strings = Strings(content.nbytes)
        members = [member for member in archive.infolist() if not member.is_dir()]

        def ranges(member: zipfile.ZipInfo, nbytes: int) -> Iterator[RemoteRange]:
            start, stop = member.header_offset, member.header_offset + _HEAD_BYTES + nbytes
            if blocks is not None and start < content.nbytes:
                yield blocks, content.stored(start, min(stop, content.nbytes))

        with fetching((each for it in members for each in ranges(it, 0)), joins=False):
            for member in members:
                name = _name(member)
                if name in arrays:
                    raise _ArchiveError("two arrays in the archive have this name")
                # Newer versions of zipfile compare its end with the next one, of a damaged place.
                arrays[name] = array = _member(content, archive, _alone(member), strings)
                if isinstance(array, Computed):
                    array.ranges = functools.partial(ranges, member, member.compress_size)
    except _TooLargeError:
        raise
    except Exception as error:  # zipfile may raise any type
        _raise_of_system(error)
        reason = f"its directory is damaged or missing{SALVAGE_ADVICE}"
        if isinstance(error, _ArchiveError):
            reason = str(error)
        raise DecodeError(f"not a readable file of numpy.savez: {reason}", path=name) from error
    return arrays


def _alone(member: zipfile.ZipInfo) -> zipfile.ZipInfo:
    import zipfile

    alone = zipfile.ZipInfo(member.orig_filename)
    for name in _READ:
        setattr(alone, name, getattr(member, name))
    return alone


# The attributes of a member that reading needs.
_READ = ("header_offset", "compress_size", "file_size", "compress_type", "flag_bits", "CRC")


def _check_count(content: core.Content, archive: zipfile.ZipFile) -> None:
    """Unlike zipfile, notices that a damaged length of one entry hides others."""
    start = content.nbytes - _END_BYTES - len(archive.comment)
    end = content.read_range(max(start, 0), max(start, 0) + _END_BYTES)
    (count,) = struct.unpack_from("<H", end, 10)
    listed = len(archive.infolist())
    if end.startswith(_END) and count not in (listed, _MANY):
        raise _ArchiveError(f"its directory is damaged: expected {count} members, found {listed}")


def _raise_of_system(error: Exception) -> None:
    """Raises errors of the system again; damage leads zipfile to places before the start."""
    if isinstance(error, (OSError, MemoryError)) and not isinstance(error, io.UnsupportedOperation):
        raise error


class _ArchiveError(ValueError):
    """An archive is read by zipfile, but is not one of NumPy."""


class _TooLargeError(TreepackError):
    """Arrays are larger than `max_size` allows."""


def _member(
    content: core.Content, archive: zipfile.ZipFile, member: zipfile.ZipInfo, strings: Strings
) -> Any:
    try:
        _check_header(content, member)
        try:
            array = _array(content, archive, member, strings)
        except UnsupportedError:
            header = Header((member.file_size,), "C", _dtypes.packed(NPY), 0)
            array = Encoded(header, functools.partial(_read, archive, member))
        # Headers are read with these bytes, so that damage would be one of all leaves.
        if member.file_size < _AHEAD_BYTES:
            _range(archive, member)
        return array
    except Exception as error:  # of zipfile, zlib and NumPy
        _raise_of_system(error)
        # zipfile raises these, too, for what it lacks: methods of compression, passwords.
        is_limit = isinstance(error, RuntimeError)
        refuse = functools.partial(_refuse, printable(_name(member)), str(error), is_limit)
        dtype = _dtypes.packed("UNREADABLE_packed" if is_limit else "DAMAGED_packed")
        length = max(member.compress_size, _AHEAD_BYTES)
        return Refused(Header((length,), "C", dtype, 0), refuse)


def _name(member: zipfile.ZipInfo) -> str:
    return member.filename.removesuffix(".npy")


def _refuse(name: str, reason: str, is_limit: bool, *_: int) -> bytes:
    if is_limit:
        raise _dtypes.UnreadableError(
            f"the array {name} cannot be read: {reason}: select= loads the others, and --skip "
            "leaves it out of a conversion"
        )
    raise CorruptionError(f"the array {name} is damaged: {reason}")


def _check_header(content: core.Content, member: zipfile.ZipInfo) -> None:
    header = content.read_range(member.header_offset + 6, member.header_offset + 10)
    flags, method = struct.unpack("<HH", header)
    if method != member.compress_type or (flags ^ member.flag_bits) & _FLAGS:
        raise ValueError("the directory of the archive and the header of the member differ")
    if flags & _FLAGS:
        raise NotImplementedError("it is encrypted or a patch of another one")
    is_stored = member.compress_type == _STORED
    if not is_stored and member.compress_type != _DEFLATED:
        raise NotImplementedError(f"unsupported zip compression method {member.compress_type}")
    if member.file_size > member.compress_size * (1 if is_stored else _MAX_RATIO):
        raise ValueError(
            f"{member.compress_size} compressed bytes cannot expand to {member.file_size} bytes"
        )


def _array(
    content: core.Content, archive: zipfile.ZipFile, member: zipfile.ZipInfo, strings: Strings
) -> Any:
    with archive.open(member) as file:
        header = read_header(file, member.file_size)
    read = functools.partial(_read, archive, member)
    if member.compress_type == _STORED and header.is_plain:
        lengths = content.read_range(member.header_offset + 26, member.header_offset + 30)
        start = member.header_offset + 30 + sum(struct.unpack("<HH", lengths)) + header.nbytes
        return StoredMember(header, read, content, start)
    return encoded(header, read, strings)


class StoredMember(Computed):
    def __init__(self, header: Header, read: Callable[..., bytes], data: core.Content, start: int):
        self.shape, self.dtype = header.shape, header.dtype
        self.read, self._content, self._start = read, data, start
        self._is_checked = False

    def _elements(self, start: int, stop: int) -> np.ndarray:
        if not self._is_checked:
            self.read()
            self._is_checked = True
        first, last = (self._start + index * self.dtype.itemsize for index in (start, stop))
        return np.frombuffer(self._content.read_range(first, last), self.dtype)


class Refused(Encoded):
    """A damaged or unsupported member; `read` raises the error."""


def _read(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, start: int = 0, nbytes: int = 0
) -> bytes:
    """Compares the member with its CRC."""
    try:
        return _range(archive, member, start, nbytes)
    except Exception as error:  # of zipfile and zlib
        _raise_of_system(error)
        raise CorruptionError(
            f"the array {printable(_name(member))} is damaged: {error}"
        ) from error


def _range(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, start: int = 0, nbytes: int = 0
) -> bytes:
    with archive.open(member) as file:
        file.read(start)
        data = file.read(nbytes)
        while file.read(_PART_BYTES):
            pass
        if file.tell() < member.file_size:
            raise ValueError(f"short read: expected {member.file_size} bytes, found {file.tell()}")
    return data
