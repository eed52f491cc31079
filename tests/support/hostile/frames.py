"""Gzip and numbers around data, in blocks as small as one likes, with the right checksums."""

from __future__ import annotations

import itertools
import random
import struct
import zlib
from typing import Any, NamedTuple

import numpy as np

from hostile.changes import with_other_bytes

END = b"\x03\x00"
GZIP = b"\x1f\x8b\x08\x00" + bytes(4) + b"\x00\xff"
NUMBERS = b"\xc1treepack\x01"


class Frame(NamedTuple):
    """A compressed file, taken apart.

    Attributes:
      head: The first header.
      blocks: The blocks, and the checksum of what is in each.
      tail: The version, the size of a block, the size of all, how many blocks there are.
      whole: The checksum of all.
    """

    head: bytes
    blocks: list[tuple[bytes, int]]
    tail: list[int]
    whole: int


def gzip_of(content: bytes, block: int) -> Frame:
    """Compresses data with gzip."""
    return _frame(GZIP, content, block, _deflated)


def numbers_of(content: bytes, block: int, width: int) -> Frame:
    """Compresses data by the exponents of floats of some width."""
    return _frame(NUMBERS, content, block, lambda part: _elements(part, width))


def _frame(head: bytes, content: bytes, block: int, compress: Any) -> Frame:
    parts = [content[at : at + block] for at in range(0, len(content), block)]
    blocks = [(compress(part), zlib.crc32(part)) for part in parts]
    return Frame(head, blocks, [1, block, len(content), len(blocks)], zlib.crc32(content))


def _deflated(part: bytes) -> bytes:
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    return packer.compress(part) + packer.flush(zlib.Z_SYNC_FLUSH)


def _elements(part: bytes, width: int) -> bytes:
    phase = min(len(part), 1 if width > 1 else 0)
    count = (len(part) - phase) // width
    stop = phase + count * width
    found = np.frombuffer(part[phase:stop], f"<u{width}")
    if width > 1:
        found = found << 1 | found >> 8 * width - 1
    rows = found.view(np.uint8).reshape(count, width)
    planes, coded = [], 0
    for number in range(width):
        plane = rows[:, number].tobytes()
        short = _deflated(plane)
        if len(short) + 4 < len(plane):
            coded |= 1 << number
            plane = struct.pack("<I", len(short)) + short
        planes.append(plane)
    inside = part[:phase] + part[stop:] + b"".join(planes)
    sizes = struct.pack("<4B3I", width, phase, coded, 0, len(part), len(inside), zlib.crc32(part))
    return sizes + inside


def assembled(frame: Frame, *, index: bool = True, crc: bool = True) -> bytes:
    """Puts a compressed file together."""
    _, _, size, _ = frame.tail
    data = [frame.head, *(block for block, _ in frame.blocks)]
    data.append(END + struct.pack("<II", frame.whole, size & 0xFFFFFFFF))
    if not index:
        return b"".join(data)
    entries = [struct.pack("<II", len(block), crc) for block, crc in frame.blocks]
    members = [
        _member(b"TP", b"".join(part))
        for part in (entries[at : at + 8191] for at in range(0, len(entries), 8191))
    ]
    version, block, size, count = frame.tail
    found = zlib.crc32(b"".join(entries)) if crc else 1
    lengths = sum(map(len, members))
    tail = struct.pack("<IIQQQII", version, block, size, count, lengths, found, 0)
    return b"".join([*data, *members, _member(b"TE", tail)])


def _member(name: bytes, inside: bytes) -> bytes:
    extra = name + struct.pack("<H", len(inside)) + inside
    return GZIP[:3] + b"\x04" + GZIP[4:] + struct.pack("<H", len(extra)) + extra + END + bytes(8)


def with_change(frame: Frame, rng: random.Random) -> bytes:
    """Returns a compressed file with other blocks or another index, whose checksums are right."""
    how = {"index": rng.random() < 0.9, "crc": rng.random() < 0.97}
    blocks, tail, choice = list(frame.blocks), list(frame.tail), rng.random()
    at = rng.randrange(len(blocks)) if blocks else 0
    if choice < 0.35:
        number = rng.randrange(len(tail))
        near = [tail[number] + 1, tail[number] - 1, tail[number] * 2, 0, 1, 262144, 262145]
        value = rng.choice([*near, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1])
        tail[number] = max(0, min(value, (2**32 if number < 2 else 2**64) - 1))
    elif choice < 0.5 and blocks:
        order = rng.randrange(4)
        if order == 0:
            del blocks[at]
        elif order == 1:
            blocks.insert(at, rng.choice(blocks))
        elif order == 2:
            rng.shuffle(blocks)
        else:
            blocks[at] = (b"", blocks[at][1])
        if rng.random() < 0.7:
            tail[3] = len(blocks)
    elif choice < 0.85 and blocks:
        block, old = blocks[at]
        if frame.head == NUMBERS and rng.random() < 0.5:
            fields = list(struct.unpack("<4B3I", block[:16]))
            number = rng.randrange(7)
            most = 255 if number < 4 else 2**32 - 1
            found = rng.choice([0, 1, 2, 3, 4, 8, 255, fields[number] + 1, fields[number] * 2])
            fields[number] = max(0, min(most, rng.choice([found, most, 262144, 2**31])))
            block = struct.pack("<4B3I", *fields) + block[16:]
        else:
            block = with_other_bytes(block, rng)
        inside = _inflated(block) if frame.head == GZIP else None
        blocks[at] = (block, old if inside is None else zlib.crc32(inside))
    elif choice < 0.9:
        return with_other_bytes(assembled(frame, **how), rng)
    else:
        data = assembled(frame, **how)
        return rng.choice([data + data, data[: rng.randrange(len(data) + 1)], data + b"\0" * 9])
    if frame.head == GZIP and rng.random() < 0.8:
        parts = [_inflated(block) for block, _ in blocks]
        if None not in parts:
            whole = b"".join(part for part in parts if part is not None)
            frame = frame._replace(whole=zlib.crc32(whole))
            if rng.random() < 0.7 and tail[2] == frame.tail[2]:
                tail[2] = len(whole)
    return assembled(frame._replace(blocks=blocks, tail=tail), **how)


def _inflated(block: bytes) -> bytes | None:
    """Returns what is in a block, if it is one."""
    reader = zlib.decompressobj(-15)
    try:
        found = reader.decompress(block, 1 << 20)
    except zlib.error:
        return None
    return found if not reader.eof and not reader.unconsumed_tail else None


def widths(rng: random.Random) -> int:
    """Returns the width of elements."""
    return rng.choice([1, 2, 4, 8])


def block_size(rng: random.Random, nbytes: int) -> int:
    """Returns a size of blocks, few of which are in so many bytes."""
    return rng.choice(list(itertools.islice((64, 200, 513, 4096, 262144), 5))) + nbytes // 100
