"""Finds the members of an archive whose directory, at its end, is damaged or cut off.

headers of members ──▶ a new directory ──▶ content with both, which zipfile reads

Sections are in APPNOTE.TXT of PKWARE.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import treepack._core as core
from treepack._src.printable import printable

# Of a member, its descriptor, an entry of the directory, and the end records: sections 4.3.7,
# 4.3.9, 4.3.12, 4.3.14 to 4.3.16.
_MEMBER, _DESCRIPTOR, _ENTRY = b"PK\3\4", b"PK\7\x08", b"PK\1\2"
_LONG_END, _LOCATOR, _END = b"PK\6\6", b"PK\6\7", b"PK\5\6"

_MEMBER_BYTES = 30

# The flag of members whose sizes are in a descriptor after them, section 4.4.4.
_IS_DESCRIBED = 8

# The extra field of sizes of 8 bytes, and a size that stands there, section 4.5.3.
_ZIP64, _ELSEWHERE = 1, 0xFFFFFFFF

# The number of bytes that are searched for a descriptor at once.
_PART_BYTES = 8 << 20

_VERSION = 45  # has ZIP64, section 4.4.3


class Member(NamedTuple):
    name: bytes
    flags: int
    method: int
    time: int
    date: int
    crc: int
    packed: int
    size: int
    offset: int


class Mended(NamedTuple):
    content: core.Content
    end: str


def mend(content: core.Content) -> Mended | None:
    """The last member may be cut: its size is then larger than its bytes."""
    members: list[Member] = []
    offset, nbytes, reason = 0, content.nbytes, ""
    while offset < nbytes:
        start = _read(content, offset, _MEMBER_BYTES)
        if not start.startswith(_MEMBER):
            if not start.startswith((_ENTRY, _LONG_END, _END)):
                reason = f", and no member begins at byte {offset}"
            break
        member, end = _member(content, offset)
        if member is None:
            reason = f", and the file ends in the header of a member at byte {offset}"
            break
        members.append(member)
        if end is None:
            name = printable(member.name.decode(errors="replace").removesuffix(".npy"))
            reason = f", and the file ends within {name}, at byte {nbytes}"
            break
        offset = end
    if not members:
        return None
    directory = _directory(members, nbytes)

    def read(start: int, count: int) -> bytes:
        return _read(content, start, count) or directory[start - nbytes :][:count]

    mended = core.Content.elsewhere(read, nbytes + len(directory), 0)
    return Mended(mended, reason)


def _read(content: core.Content, start: int, count: int) -> bytes:
    stop = min(start + count, content.nbytes)
    return content.read_range(start, stop) if start < stop else b""


def _member(content: core.Content, offset: int) -> tuple[Member | None, int | None]:
    header = _read(content, offset, _MEMBER_BYTES)
    if len(header) < _MEMBER_BYTES:
        return None, None
    flags, method, time, date, crc, packed, size, *lengths = struct.unpack("<6x4H3L2H", header)
    start = offset + _MEMBER_BYTES + sum(lengths)
    if start > content.nbytes:
        return None, None
    names = _read(content, offset + _MEMBER_BYTES, sum(lengths))
    name, extra = names[: lengths[0]], names[lengths[0] :]
    sizes = _long_sizes(extra)
    if sizes is not None and _ELSEWHERE in (packed, size):
        size, packed = sizes
    end: int | None = start + packed
    if flags & _IS_DESCRIBED:
        described = _descriptor(content, start, is_long=sizes is not None)
        if described is not None:
            crc, packed, size, end = described
        else:
            end = None
    if end is None or end > content.nbytes:
        packed = content.nbytes - start
        size, end = max(size, packed + 1), None
    return Member(name, flags, method, time, date, crc, packed, size, offset), end


def _long_sizes(extra: bytes) -> tuple[int, int] | None:
    while len(extra) >= 4:
        kind, length = struct.unpack_from("<2H", extra)
        if kind == _ZIP64 and 16 <= length <= len(extra) - 4:
            size, packed = struct.unpack_from("<2Q", extra, 4)
            return size, packed
        extra = extra[4 + length :]
    return None


def _descriptor(
    content: core.Content, start: int, *, is_long: bool
) -> tuple[int, int, int, int] | None:
    """Its signature may also occur in the bytes of the member; the size in it must be right."""
    form = struct.Struct("<4xL2Q" if is_long else "<4x3L")
    at = start
    while part := _read(content, at, _PART_BYTES + form.size - 1):
        place = part.find(_DESCRIPTOR)
        while 0 <= place <= len(part) - form.size:
            crc, packed, size = form.unpack_from(part, place)
            if start + packed == at + place:
                return crc, packed, size, at + place + form.size
            place = part.find(_DESCRIPTOR, place + 1)
        at += _PART_BYTES
    return None


def _directory(members: list[Member], start: int) -> bytes:
    entries = []
    for name, flags, method, time, date, crc, packed, size, offset in members:
        fields = _ENTRY, _VERSION, _VERSION, flags, method, time, date, crc, _ELSEWHERE, _ELSEWHERE
        lengths = len(name), 4 + 24, 0, 0, 0, 0, _ELSEWHERE
        entries += [struct.pack("<4s6H3L5H2L", *fields, *lengths), name]
        entries += [struct.pack("<2H3Q", _ZIP64, 24, size, packed, offset)]
    directory = b"".join(entries)
    places = len(members), len(members), len(directory), start
    end = struct.pack("<4sQ2H2L4Q", _LONG_END, 44, _VERSION, _VERSION, 0, 0, *places)
    locator = struct.pack("<4sLQL", _LOCATOR, 0, start + len(directory), 1)
    return b"".join([directory, end, locator, struct.pack("<4s4H2LH", _END, *_IN_LONG_END)])


# Disks, numbers of members, size and start of the directory, and length of the comment.
_IN_LONG_END = 0, 0, 0xFFFF, 0xFFFF, _ELSEWHERE, _ELSEWHERE, 0
