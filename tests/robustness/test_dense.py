"""Files of nothing but tiny values: memory is bounded by their number, and time is linear."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

import tiers
import treepack
from hostile import limits
from treepack import serialization
from trees import sealed

# So many bytes for each value, beside `TIMES` those of the file; docs/guarantees.md has it.
PER_VALUE = 300

NBYTES = 1 << 17

ITEMS: dict[str, bytes] = {
    "nil": b"\xc0",
    "empty maps": b"\x80",
    "empty lists": b"\x90",
    "strings": b"\xa1a",
    "bytes": b"\xc4\x00",
    "maps": b"\x81\xa0\xc0",
    "extensions": b"\xc7\x00\x07",
    "nested": b"\x91" * 100 + b"\xc0",
    "complex": msgpack.packb(msgpack.ExtType(2, msgpack.packb((1.0, 2.0)))),
    "arrays": msgpack.packb(msgpack.ExtType(1, msgpack.packb(([0], "u1", b"")))),
    "scalars": msgpack.packb(msgpack.ExtType(3, msgpack.packb(([], "u1", b"a")))),
}

RECORD = {"version": 1, "types": [], "nodes": [["plain", []]]}


def described(state: bytes, **record: Any) -> bytes:
    """Returns a file of a state, and of a record with some other values."""
    seal = msgpack.packb(sealed(msgpack.packb({**RECORD, **record})))
    return b"\x82\xa1a" + state + msgpack.packb("__treepack__") + seal


def dense(name: str) -> tuple[bytes, int]:
    """Returns a file of nothing but equal values, and how many they are."""
    item = ITEMS[name]
    count = NBYTES // len(item)
    values = 101 if name == "nested" else 2 if name == "maps" else 1
    return described(b"\xdd" + struct.pack(">I", count) + item * count), values * count


def leaves(data: bytes) -> int:
    with treepack.open(data) as file:
        repr(file)
        return sum(1 for _ in file.leaves())


VERBS: dict[str, Callable[[bytes], object]] = {
    "msgpack_restore": serialization.msgpack_restore,
    "loads": lambda data: treepack.loads(data, arrays="numpy"),
    "abstract": treepack.abstract,
    "open": leaves,
    "verify": treepack.verify,
    "read_metadata": treepack.read_metadata,
}


@pytest.fixture(scope="module")
def measured() -> limits.Limits:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("resets the peak of memory")
    for verb in VERBS.values():
        verb(treepack.dumps({"a": np.ones(3)}))
    return limits.Limits()


def check(measured: limits.Limits, verb: str, data: bytes, values: int) -> None:
    with (
        measured.memory("", len(data), PER_VALUE * values) as found,
        measured.time("", 100 * len(data)) as late,  # what is quadratic takes longer by far
    ):
        VERBS[verb](data)
    assert not found + late


@tiers.parametrize("verb", VERBS, quick=2)
@pytest.mark.parametrize("name", ITEMS)
def test_memory_follows_the_number_of_values(measured: limits.Limits, name: str, verb: str) -> None:
    check(measured, verb, *dense(name))


@tiers.parametrize("verb", VERBS, quick=2)
@pytest.mark.parametrize("part", ["nodes", "types", "metadata", "tuples"])
def test_memory_follows_what_is_in_a_record(measured: limits.Limits, part: str, verb: str) -> None:
    count = NBYTES // 8
    records: dict[str, dict[str, Any]] = {
        "nodes": {"nodes": [*[["dict", []]] * count, ["plain", []]]},
        "types": {"types": [{"name": ""}] * count},
        "metadata": {"metadata": msgpack.packb({"list": ["none"] * count})},
        "tuples": {"metadata": msgpack.packb({"list": [{"tuple": []}] * count})},
    }
    check(measured, verb, described(b"\x01", **records[part]), count)
