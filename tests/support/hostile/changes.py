"""Other values, and other bytes, in the place of some."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import msgpack

# What an integer, or anything else, is replaced by.
INTEGERS = [0, 1, -1, 2, 7, 255, 2**31, 2**31 - 1, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**63]
INTEGERS += [2**64 - 1, -(2**31), -(2**63)]
OTHERS: list[Any] = [None, True, False, 1.5, float("nan"), "", "a", "é/~1", b"", b"\xc1", [], {}]
OTHERS += [
    [0],
    [[]],
    {"a": 1},
    {1: 2},
    "x" * 300,
    [0] * 70,
    ["array", []],
    "uint32",
    "threefry2x32",
    "a\x1b[2J\n\u202e\0",
    msgpack.ExtType(1, b"\x93\x90\xa5int32\xc4\x04abcd"),
    msgpack.ExtType(2, b"\x92\x01\x02"),
    msgpack.ExtType(1, b"\x93\x91\xcf\xff\xff\xff\xff\xff\xff\xff\xff\xa5uint8\xc4\x00"),
    {"__prng_key__": "threefry2x32", "data": 1},
    {"__msgpack_chunked_array__": True, "shape": {"0": 2**62}, "chunks": {}},
    {"__treepack__": b""},
]

# Headers of MessagePack that claim much.
HEADERS = [
    b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff",
    b"\xdb\x7f\xff\xff\xff", b"\xc9\xff\xff\xff\xff\x01", b"\xdc\xff\xff", b"\xde\xff\xff",
    b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff", b"\xd3\x80\0\0\0\0\0\0\0", b"\x91" * 20,
    b"\x81\xa1a" * 20, b"\xc7\0\x01", b"\xd6\xff\0\0\0\0", b"\xc1",
]  # fmt: skip


class Pairs:
    """A map in which a key may be twice."""

    def __init__(self, items: list[tuple[Any, Any]]):
        self.items = items


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the paths of all values in nested lists and dicts."""
    yield path
    if isinstance(value, (dict, list)):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(child, (*path, key))


def changed(value: Any, rng: random.Random) -> Any:
    """Returns another value in the place of one."""
    if value is None or isinstance(value, (bool, float, Pairs)):
        return rng.choice(OTHERS + INTEGERS)
    if isinstance(value, int):
        near = [value + 1, value - 1, value * 2, value * 1000, -value, value // 2]
        near = [it for it in near if -(2**63) <= it < 2**64]
        return rng.choice([*near, *INTEGERS, rng.choice(OTHERS)])
    if isinstance(value, str):
        at = rng.randrange(len(value) + 1)
        texts = [value[:at], value[at:], value + value, f"{value[:at]}/{value[at:]}", f"{value}\0"]
        texts += [value.replace("32", "64"), value.replace(":", ",")]
        return rng.choice([*texts, rng.choice(OTHERS + INTEGERS)])
    if isinstance(value, bytes):
        at = rng.randrange(len(value) + 1)
        flipped = bytearray(value)
        if value:
            flipped[at - 1] = rng.choice([0, 0xFF, 0xC1, 0xDD, 0xCF, 0xC6, rng.randrange(256)])
        parts = [value[:at], value[at:], value + value, bytes(flipped), bytes(flipped)]
        return rng.choice([*parts, rng.choice(OTHERS + INTEGERS)])
    if isinstance(value, msgpack.ExtType):
        if rng.random() < 0.2:
            return msgpack.ExtType(rng.choice([0, 1, 2, 3, 4, 127]), value.data)
        return msgpack.ExtType(value.code, with_changed_bytes(value.data, rng))
    if isinstance(value, list):
        found: list[Any] = list(value)
        choice = rng.randrange(5)
        at = rng.randrange(len(found) + 1)
        if choice == 0:
            return found[:at]
        if choice == 1:
            return found + found[at:]
        if choice == 2:
            rng.shuffle(found)
            return found
        if choice == 3 and found:
            del found[at - 1]
            return found
        return rng.choice(OTHERS + INTEGERS)
    if not isinstance(value, dict):
        return rng.choice(OTHERS + INTEGERS)
    items = list(value.items())
    at = rng.randrange(len(items) + 1)
    choice = rng.randrange(5)
    if choice == 0 and items:
        del items[at - 1]
    elif choice == 1 and items:
        key, child = items[at - 1]
        items[at - 1] = (rng.choice([key * 2, *OTHERS[5:8], 3]) if key else "k", child)
    elif choice == 2 and items:
        return Pairs([*items, rng.choice(items)])
    elif choice == 3:
        rng.shuffle(items)
    else:
        return rng.choice(OTHERS + INTEGERS)
    return dict(items)


def packed(value: Any) -> bytes:
    """Returns MessagePack of what `changed` makes."""
    try:
        return msgpack.packb(value)  # type: ignore[no-any-return]
    except TypeError:  # there are pairs in it
        return _packed(value)


def _packed(value: Any) -> bytes:
    packer = msgpack.Packer()
    if isinstance(value, list):
        return packer.pack_array_header(len(value)) + b"".join(map(_packed, value))
    if isinstance(value, dict):
        value = Pairs([*value.items()])
    if isinstance(value, Pairs):
        head = packer.pack_map_header(len(value.items))
        return head + b"".join(_packed(part) for item in value.items for part in item)
    return packer.pack(value)  # type: ignore[no-any-return]


def unpacked(data: bytes) -> Any:
    """Returns what is in MessagePack."""
    return msgpack.unpackb(data, strict_map_key=False, raw=False)


def with_change(value: Any, rng: random.Random) -> Any:
    """Returns nested lists and dicts in which a value, or a few, are others."""
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        path = rng.choice([*places(value)])
        value = _put(value, path, rng)
    return value


def _put(value: Any, path: tuple[Any, ...], rng: random.Random) -> Any:
    if not path:
        return changed(value, rng)
    key, *rest = path
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[key] = _put(value[key], tuple(rest), rng)
    return copy


def with_changed_bytes(data: bytes, rng: random.Random) -> bytes:
    """Returns MessagePack of another structure, or other bytes."""
    if rng.random() < 0.3:
        return with_other_bytes(data, rng)
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        return packed(with_change(unpacked(data), rng))
    return data


def with_other_bytes(data: bytes, rng: random.Random) -> bytes:
    """Returns bytes of which some are others, more or fewer."""
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.choice([0, 1, 1, 2, 4, 8, 32, len(data)]))
        other = rng.randrange(len(data) + 1)
        new = [
            bytes([data[at] ^ 1 << rng.randrange(8)]) if at < len(data) else b"",
            bytes([rng.randrange(256)]),
            rng.choice(HEADERS),
            b"",
            data[other : other + end - at],
            rng.randbytes(rng.randrange(5)),
            data[at:end] * 2,
        ]
        choice = rng.randrange(len(new))
        stop = at + 1 if choice < 2 else end
        data = data[:at] + new[choice] + data[stop:]
        if rng.random() < 0.1:
            data = data[: rng.randrange(len(data) + 1)]
    return data
