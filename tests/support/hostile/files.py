"""Trees, their files, and other files with the right checksums."""

from __future__ import annotations

import collections
import random
import struct
import tempfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import treepack
from hostile.changes import changed, packed, unpacked, with_change, with_changed_bytes
from treepack import serialization
from trees import record_of

KEY = b"__treepack__"
MARK = b"\x93treepk\n"


class Point(collections.namedtuple("Point", ["x", "y"])):
    """A node of a type that is registered."""


treepack.register_namedtuple(Point, serialized_name="hostile.Point")


def trees() -> dict[str, Any]:
    """Returns trees of all kinds of leaves and containers, by name."""
    rows = np.arange(24, dtype=np.float32).reshape(6, 4)
    return {
        "params": {"params": {"w": rows, "b": np.ones(4)}, "step": 7},
        "jax": {"params": [jnp.ones((2, 3)), (jnp.zeros(3, jnp.bfloat16), 2.5)], "n": None},
        "node": Point(rows, {"a": [1, (2, None)], "b": Point(b"x", "text")}),
        "keys": {1: np.int8(3), (2, "x"): [1j, True], "key": jax.random.key(3)},
        "scalars": {"i": 2**63, "f": -0.0, "c": 2 - 3j, "s": "é" * 9, "b": b"\xc1" * 40, "n": None},
        "types": [bytearray(b"abc"), np.datetime64(5, "ns"), np.arange(3) > 1, np.zeros((0, 3))],
        "aligned": {"w": np.arange(700, dtype=np.int16), "v": np.ones((3, 300), np.float32)},
        "many": {f"layer_{at}": {"w": rows[at % 6], "b": at} for at in range(30)},
        "leaf": rows,
        "empty": {"a": {}, "b": [], "c": {"d": ()}},
        "deep": _nested(60),
        "named": collections.OrderedDict(b=rows, a=collections.OrderedDict(c=1)),
        "odd": {"": 1, "a/b": {"~": 2, ".": {"0": 3}}, "é\n\x1b": 4, "0": [5]},
        "large": {"w": np.arange(20_000, dtype=np.int32), "v": np.zeros(9, np.uint8)},
        # The texts of all paths have 22 MB.
        "long": {"k" * 30_000: {f"x{at}": jnp.ones(1) for at in range(700)} | {"n": [1, "a"]}},
    }


def _nested(depth: int) -> Any:
    tree: Any = np.arange(3)
    for level in range(depth):
        tree = [tree] if level % 2 else {"a": tree}
    return tree


METADATA = {"step": 3, "config": ("adam", {"lr": 0.1}), "shape": range(3)}


class Parts(NamedTuple):
    """A file of `save`, taken apart.

    Attributes:
      heads: What is before each leaf.
      leaves: The leaves.
      rest: What is between the last leaf and the key of the record.
      record: The record, without its index.
      index: The index, in which the outline is a value, too.
    """

    heads: list[bytes]
    leaves: list[bytes]
    rest: bytes
    record: dict[str, Any]
    index: dict[str, Any]


class Source(NamedTuple):
    """What cases are made of.

    Attributes:
      tree: A tree.
      parts: Its file, taken apart.
      state: Its state with the key of the record, as `dumps` writes it.
      flax: Its state as flax has it.
    """

    tree: Any
    parts: Parts
    state: dict[str, Any]
    flax: bytes


def sources() -> dict[str, Source]:
    """Returns the sources of all trees, by name."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file")
        for name, tree in trees().items():
            # Small chunks, so that some arrays have several.
            serialization.MAX_CHUNK_SIZE = 40 if name == "jax" else 2**30
            treepack.save(path, tree, metadata=METADATA, durable=False)
            state = unpacked(treepack.dumps(tree, metadata=METADATA))
            flax = serialization.to_bytes(tree)
            found[name] = Source(tree, parts_of(path.read_bytes()), state, flax)
    serialization.MAX_CHUNK_SIZE = 2**30
    return found


def parts_of(data: bytes) -> Parts:
    """Takes a file apart."""
    record = unpacked(record_of(data))
    index = unpacked(record.pop("index"))
    heads, leaves, at = [], [], 0
    for head, size in zip(index["heads"], index["sizes"], strict=True):
        heads.append(data[at : at + head])
        leaves.append(data[at + head : at + head + size])
        at += head + size
    rest = data[at : at + index["rest"]]
    return Parts(heads, leaves, rest, record, {**index, "outline": unpacked(index["outline"])})


def sealed_file(pieces: list[bytes], record: bytes, *, width: int = 2, most: int = 2**32) -> bytes:
    """Returns a file with the right checksums.

    Args:
      pieces: What has a checksum each; the key of the record comes after the last.
      record: The record.
      width: How many bytes the length of what comes after the key has.
      most: The most checksums.
    """
    count = min(most, len(pieces))
    length = len(record) + 4 * count + 24
    head = {1: b"\xc4", 2: b"\xc5", 4: b"\xc6"}[width] + length.to_bytes(width, "big")
    pieces = [*pieces[:-1], pieces[-1] + packed(KEY.decode()) + head]
    sums = struct.pack(f"<{count}I", *map(zlib.crc32, pieces[:count]))
    crc = zlib.crc32(record + sums)
    footer = struct.pack("<QII", len(record), count, crc) + MARK
    return b"".join([*pieces, record, sums, footer])


def file_of(parts: Parts, *, width: int = 4, most: int = 2**32) -> bytes:
    """Puts a file together."""
    index = parts.index
    if isinstance(index, dict) and not isinstance(index.get("outline", b""), bytes):
        index = {**index, "outline": packed(index["outline"])}
    record = parts.record
    if isinstance(record, dict):
        record = {**record, "index": index if isinstance(index, bytes) else packed(index)}
    pieces = [head + leaf for head, leaf in zip(parts.heads, parts.leaves, strict=True)]
    return sealed_file([*pieces, parts.rest], packed(record), width=width, most=most)


def hostile_file(parts: Parts, rng: random.Random) -> bytes:
    """Returns a file with other content, an index or a record, whose checksums are right."""
    how: dict[str, Any] = {}
    for _ in range(rng.choice([1, 1, 1, 1, 2, 3])):
        choice = rng.random()
        if choice < 0.35 and parts.leaves:
            parts = _with_leaf(parts, rng)
        elif choice < 0.45 and parts.leaves:
            parts = _with_head(parts, rng)
        elif choice < 0.65:
            parts = parts._replace(index=with_change(parts.index, rng))
        elif choice < 0.9:
            parts = parts._replace(record=with_changed_record(parts.record, rng))
        elif choice < 0.94:
            rest = with_changed_bytes(parts.rest, rng)
            index = parts.index
            if rng.random() < 0.7 and isinstance(index, dict):
                index = {**index, "rest": len(rest)}
            parts = parts._replace(rest=rest, index=index)
        else:
            how = {"width": rng.choice([2, 4]), "most": rng.choice([0, 1, 2**32])}
    try:
        return file_of(parts, **how)
    except OverflowError:  # too long for the width
        return file_of(parts)


def with_changed_record(record: Any, rng: random.Random) -> Any:
    """Returns another record; the typed values in it stay such values, at times."""
    if not isinstance(record, dict) or rng.random() < 0.6:
        return with_change(record, rng)
    record = dict(record)
    if isinstance(record.get("metadata"), bytes) and rng.random() < 0.3:
        record["metadata"] = with_changed_bytes(record["metadata"], rng)
        return record
    nodes = record.get("nodes")
    if isinstance(nodes, list) and nodes:
        at = rng.randrange(len(nodes))
        kind = nodes[at][0] if isinstance(nodes[at], list) and nodes[at] else None
        if isinstance(kind, dict):
            for key, value in kind.items():
                if isinstance(value, bytes):
                    new: Any = with_changed_bytes(value, rng)
                elif isinstance(value, list) and value and isinstance(value[-1], bytes):
                    new = [*value[:-1], with_changed_bytes(value[-1], rng)]
                else:
                    new = changed(value, rng)
                nodes = [*nodes[:at], [{key: new}, *nodes[at][1:]], *nodes[at + 1 :]]
        else:
            kinds = ["plain", "jax", "weak_jax", "bytearray", "memoryview", "dict", "list", "tuple"]
            if isinstance(nodes[at], list):
                nodes = [*nodes[:at], [rng.choice(kinds), *nodes[at][1:]], *nodes[at + 1 :]]
        record["nodes"] = nodes
    return record


def _with_leaf(parts: Parts, rng: random.Random) -> Parts:
    at = rng.randrange(len(parts.leaves))
    leaves = list(parts.leaves)
    if rng.random() < 0.2:
        leaves[at] = rng.choice(leaves)
    else:
        leaves[at] = with_changed_bytes(leaves[at], rng)
    return _with_lengths(parts._replace(leaves=leaves), rng)


def _with_head(parts: Parts, rng: random.Random) -> Parts:
    at = rng.randrange(len(parts.heads))
    heads = list(parts.heads)
    # The key is the last value in it; headers of containers are before.
    heads[at] = with_changed_bytes(heads[at], rng)
    return _with_lengths(parts._replace(heads=heads), rng)


def _with_lengths(parts: Parts, rng: random.Random) -> Parts:
    """Lets the index have the lengths that there are; at times it has the old ones."""
    if rng.random() < 0.15 or not isinstance(parts.index, dict):
        return parts
    lengths = {"heads": list(map(len, parts.heads)), "sizes": list(map(len, parts.leaves))}
    return parts._replace(index={**parts.index, **lengths})


def hostile_state(state: dict[str, Any], rng: random.Random) -> bytes:
    """Returns what `dumps` might have written, without an index or checksums of leaves."""
    found = state[KEY.decode()]
    record = found[: struct.unpack("<Q", found[-24:-16])[0]]
    if rng.random() < 0.6:
        record = packed(with_changed_record(unpacked(record), rng))
    rest = {key: value for key, value in state.items() if key != KEY.decode()}
    if rng.random() < 0.6:
        rest = with_change(rest, rng)
    crc = zlib.crc32(record)
    seal = record + struct.pack("<QII", len(record), 0, crc) + MARK
    if not isinstance(rest, dict):
        return packed(rest)
    return packed({**rest, KEY.decode(): seal})


def hostile_flax(data: bytes, rng: random.Random) -> bytes:
    """Returns another state of flax."""
    return with_changed_bytes(data, rng)


def stream_of(source: Source, rng: random.Random | None) -> bytes:
    """Returns a stream of EasyLM of the leaves of a file, or of others."""
    items = []
    for number, leaf in enumerate(source.parts.leaves):
        key: Any = ["params", f"layer_{number}"]
        if rng is not None and rng.random() < 0.1:
            key = with_change(key, rng)
        if rng is not None and rng.random() < 0.2:
            leaf = with_changed_bytes(leaf, rng)
        item: Any = [key, leaf]
        if rng is not None and rng.random() < 0.05:
            item = with_change(item, rng)
        items.append(packed(item))
    return b"".join(items)
