"""The wire format, rule by rule: what stock flax, eformer and msgpack write and read."""

from __future__ import annotations

import mmap
import struct
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import msgpack
import numpy as np
import pytest
from eformer.pytree import serialization as eformer
from flax import serialization as flax

import treepack
from trees import assert_same


def wire(value: Any, **options: Any) -> Any:
    """Returns what msgpack sees in an encoding, extensions as they are."""
    encoded = treepack.serialization.msgpack_serialize(value, align=1, **options)
    return msgpack.unpackb(encoded, strict_map_key=False)


def ext(code: int, *body: Any) -> msgpack.ExtType:
    return msgpack.ExtType(code, msgpack.packb(body))


def restored(value: Any) -> Any:
    """Returns what is restored from a value that msgpack has encoded."""
    return treepack.serialization.msgpack_restore(msgpack.packb(value))


def test_ext_codes():
    assert wire(np.zeros(2)).code == 1
    assert wire(np.array(2.0)).code == 1
    assert wire(jnp.float32(2)).code == 1
    assert wire(2 + 3j).code == 2
    assert wire(np.float32(2)).code == 3
    assert wire(np.complex64(2)).code == 3


def test_ndarray_body():
    array = np.array([[1, 2, 3], [4, 5, 6]], np.int16, order="F")
    shape, dtype, payload = msgpack.unpackb(wire(array).data)
    assert (shape, dtype) == ([2, 3], "int16")
    assert payload == struct.pack("<6h", 1, 2, 3, 4, 5, 6)
    for dtype in (ml_dtypes.int2, ml_dtypes.int4, ml_dtypes.float4_e2m1fn, ml_dtypes.float6_e2m3fn):
        _, name, payload = msgpack.unpackb(wire(np.zeros(5, dtype)).data)
        assert (name, len(payload)) == (dtype.__name__, 5)


def test_complex_body():
    assert msgpack.unpackb(wire(2 - 3j).data) == [2.0, -3.0]
    assert restored(ext(2, 1, 2.5)) == 1 + 2.5j
    assert restored(ext(2, 1.0, 2.0, "more", [3])) == 1 + 2j
    for body in ([1.0], [], ["a", "b"]):
        with pytest.raises(treepack.DecodeError):
            restored(ext(2, *body))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 9, 16, 17, 255, 256, 65535, 65536])
def test_ext_header(size: int):
    value = msgpack.ExtType(7, b"x" * size)
    assert treepack.serialization.msgpack_serialize(value) == msgpack.packb(value)
    assert restored(value) == value


def test_chunking(chunk_size: Any):
    chunk_size(16)
    array = np.arange(10, dtype=np.float32).reshape(2, 5)
    encoded = wire({"a": array})["a"]
    assert encoded["__msgpack_chunked_array__"] is True
    assert encoded["shape"] == {"0": 2, "1": 5}
    assert [msgpack.unpackb(chunk.data)[0] for chunk in encoded["chunks"].values()] == [
        [4],
        [4],
        [2],
    ]
    chunk_size(40)
    assert wire({"a": array})["a"].code == 1
    # The marker's presence counts, not its value, nor its place.
    chunks = {"0": ext(1, [1, 2], "uint8", b"ab"), "1": ext(1, [1], "uint8", b"c")}
    for marker in (True, False, None, "x"):
        items = {"chunks": chunks, "__msgpack_chunked_array__": marker, "shape": {"0": 3}}
        assert_same(restored({"w": [items]}), {"w": [np.frombuffer(b"abc", np.uint8)]})


def test_chunk_size_is_read_at_call_time_from_either_module():
    array = {"a": np.zeros(100)}
    whole = treepack.serialization.to_bytes(array)
    try:
        treepack.serialization.MAX_CHUNK_SIZE = 100
        assert treepack.serialization.MAX_CHUNK_SIZE == 100
        assert treepack.serialization.to_bytes(array) != whole
        treepack.serialization.MAX_CHUNK_SIZE = 2**30
        assert treepack.serialization.MAX_CHUNK_SIZE == 2**30
        assert treepack.serialization.to_bytes(array) == whole
    finally:
        treepack.serialization.MAX_CHUNK_SIZE = 2**30


def test_byte_identity():
    tree = {"b": [1, {"c": np.ones((2, 3))}], "a": (jnp.ones(3), None, True, 1.5, "x", b"y", 2j)}
    assert (
        treepack.serialization.to_bytes(tree, align=1)
        == flax.to_bytes(tree)
        == eformer.to_bytes(tree)
    )


def test_key_order():
    tree = {"b": 1, "a": {"d": 1, "c": 2}}
    assert list(treepack.serialization.msgpack_restore(treepack.serialization.to_bytes(tree))) == [
        "b",
        "a",
    ]
    assert list(wire(tree)) == ["a", "b"]
    assert list(wire(tree)["a"]) == ["c", "d"]
    assert list(wire(tree, in_place=True)) == ["b", "a"]
    assert list(wire({10: 1, 9: 2, -1: 3})) == [-1, 9, 10]
    # Which jax cannot sort: they stay as they are.
    assert list(wire({"a": 1, 2: 3})) == ["a", 2]


def test_wide_headers():
    for encoded in (b"\xd9\x01a", b"\xda\x00\x01a", b"\xdb\x00\x00\x00\x01a"):
        assert treepack.serialization.msgpack_restore(encoded) == "a"
    for encoded in (b"\xc4\x01a", b"\xc5\x00\x01a", b"\xc6\x00\x00\x00\x01a"):
        assert treepack.serialization.msgpack_restore(encoded) == b"a"
    for encoded in (b"\xdc\x00\x01\x05", b"\xdd\x00\x00\x00\x01\x05"):
        assert treepack.serialization.msgpack_restore(encoded) == [5]
    for encoded in (b"\xde\x00\x01\xa1a\x05", b"\xdf\x00\x00\x00\x01\xa1a\x05"):
        assert treepack.serialization.msgpack_restore(encoded) == {"a": 5}
    for encoded in (b"\xcc\x05", b"\xcd\0\5", b"\xce\0\0\0\5", b"\xcf\0\0\0\0\0\0\0\5"):
        assert treepack.serialization.msgpack_restore(encoded) == 5
    for encoded in (b"\xd0\xfb", b"\xd1\xff\xfb", b"\xd2" + b"\xff" * 3 + b"\xfb"):
        assert treepack.serialization.msgpack_restore(encoded) == -5
    assert treepack.serialization.msgpack_restore(b"\xd3" + b"\xff" * 7 + b"\xfb") == -5
    assert treepack.serialization.msgpack_restore(b"\xca" + struct.pack(">f", 1.5)) == 1.5
    body = msgpack.packb(([2], "uint8", b"ab"))
    for header in (b"\xc7", b"\xc8\0", b"\xc9\0\0\0"):
        found = treepack.serialization.msgpack_restore(header + bytes([len(body), 1]) + body)
        assert_same(found, np.frombuffer(b"ab", np.uint8))


def test_reader_leniency():
    tree = {"a": np.arange(1000), "b": [1]}
    encoded = treepack.serialization.msgpack_serialize(tree)
    pages = mmap.mmap(-1, len(encoded))
    pages.write(encoded)
    for source in (
        encoded,
        bytearray(encoded),
        memoryview(encoded),
        pages,
        np.frombuffer(encoded, np.uint8),
        memoryview(b"xx" + encoded)[2:],
    ):
        assert_same(treepack.serialization.msgpack_restore(source), tree)
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    payload = array.tobytes()
    for shape, dtype in (([2, -1], "float32"), ([2, 3], "<f4"), ([-1, 3], "f4"), ([2, 3], "f")):
        assert_same(restored(ext(1, shape, dtype, payload)), array)
        assert_same(restored(ext(1, shape, dtype.encode(), payload)), array)
    assert_same(restored(ext(1, 6, "<f4", payload)), array.reshape(6))
    assert_same(restored(ext(1, [3], "i1", "abc")), np.frombuffer(b"abc", np.int8))
    assert_same(restored(ext(1, [1], ">i2", b"\1\2")), np.array([258], ">i2"))
    assert treepack.serialization.msgpack_restore(b"\x82\xa1a\x01\xa1a\x02") == {"a": 2}
    assert restored(msgpack.ExtType(42, b"data")) == msgpack.ExtType(42, b"data")
    stamp = msgpack.Timestamp(1_600_000_000, 7)
    assert restored(stamp) == stamp
    assert treepack.serialization.msgpack_serialize(stamp) == msgpack.packb(stamp)
    keys = {1: "a", None: "b", 2.5: "c", False: "d", b"x": "e"}
    assert restored(keys) == keys


def test_extensions_without_msgpack(monkeypatch: pytest.MonkeyPatch):
    import sys

    monkeypatch.setitem(sys.modules, "msgpack", None)
    found = treepack.serialization.msgpack_restore(b"\xc7\x03\x2aabc")
    assert found == (42, b"abc")
    assert treepack.serialization.msgpack_serialize(found) == b"\xc7\x03\x2aabc"


def test_integers():
    for value in (-(2**63), 2**64 - 1):
        assert (
            treepack.serialization.msgpack_restore(treepack.serialization.msgpack_serialize(value))
            == value
        )
    for value in (-(2**63) - 1, 2**64, 10**100):
        with pytest.raises(OverflowError):
            flax.msgpack_serialize(value)
        with pytest.raises(OverflowError, match="out of range"):
            treepack.serialization.msgpack_serialize({"a": [value]})
        with pytest.raises(OverflowError):
            treepack.serialization.to_bytes(value)


def test_bytes_likes():
    for value in (bytearray(b"abc"), memoryview(b"abc"), memoryview(b"axbxc")[::2]):
        assert treepack.serialization.msgpack_serialize({"a": value}) == msgpack.packb(
            {"a": b"abc"}
        )
        assert treepack.serialization.to_bytes({"a": value}) == msgpack.packb({"a": b"abc"})


def test_large_strings_and_bytes_are_not_changed():
    tree = {"s": "ü" * 100_000, "b": b"\0\1" * 100_000}
    assert treepack.serialization.to_bytes(tree) == flax.to_bytes(tree)
    assert treepack.serialization.msgpack_restore(treepack.serialization.to_bytes(tree)) == tree


@pytest.mark.parametrize("value", [7, "text", {"a": 1}, None])
def test_a_key_named_like_the_record_is_kept(value: object) -> None:
    """The record is bytes; what a program has under its key is its own."""
    tree, ours = {"__treepack__": value, "a": 1}, treepack.serialization
    data = ours.to_bytes(tree)
    assert data == flax.to_bytes(tree)
    assert ours.msgpack_restore(data) == flax.msgpack_restore(data) == tree
    assert ours.from_bytes(None, data) == ours.from_bytes(tree, data) == tree
