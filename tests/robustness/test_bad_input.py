"""Input that is not what it should be: a clear error with its offset, and nothing worse."""

from __future__ import annotations

import functools
import gzip
import pickle
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from flax import serialization as flax
from hypothesis import given
from hypothesis import strategies as st

import treepack
from tiers import examples
from treepack import serialization
from trees import assert_same

TREE = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": [1, 2.5, None, True, "text", b"bytes", 2 + 3j, np.float32(1)],
    "c": {"key": -5},
}
ENCODED = treepack.serialization.msgpack_serialize(TREE)


def test_truncated_at_every_byte():
    for end in range(len(ENCODED)):
        with pytest.raises(treepack.DecodeError) as caught:
            treepack.serialization.msgpack_restore(ENCODED[:end])
        assert 0 <= caught.value.offset <= end
        assert f"byte {caught.value.offset}" in str(caught.value)
        assert caught.value.path.split("/")[0] in {".", *TREE}


def test_truncated_chunks_at_every_byte(chunk_size: Any):
    chunk_size(8)
    encoded = treepack.serialization.to_bytes({"a": np.arange(5)})
    for end in range(len(encoded)):
        with pytest.raises(treepack.DecodeError):
            treepack.serialization.msgpack_restore(encoded[:end])


def test_flipped_bytes():
    encoded = treepack.serialization.to_bytes({**TREE, "big": np.arange(300)}, align=64)
    for position in range(len(encoded) - 2400):
        for bit in range(8):
            damaged = bytearray(encoded)
            damaged[position] ^= 1 << bit
            try:
                treepack.serialization.msgpack_restore(bytes(damaged), copy=True)
            except treepack.DecodeError as error:
                assert error.offset is not None  # noqa: PT017


@examples(1000)
@given(st.binary(max_size=200), st.sampled_from([None, True, False]))
def test_any_bytes(data: bytes, copy: bool | None):
    try:
        treepack.serialization.msgpack_restore(data, copy=copy)
    except treepack.DecodeError as error:
        assert 0 <= error.offset <= len(data)  # noqa: PT017


@examples(1000)
@given(st.integers(0, len(ENCODED) - 1), st.binary(min_size=1, max_size=9), st.booleans())
def test_overwritten_bytes(start: int, new: bytes, shift: bool):
    damaged = ENCODED[:start] + new + ENCODED[start + (0 if shift else len(new)) :]
    try:
        treepack.serialization.msgpack_restore(damaged)
    except treepack.DecodeError as error:
        assert 0 <= error.offset <= len(damaged)  # noqa: PT017


def test_deep_nesting():
    for depth in (513, 100_000):
        for header in (b"\x91", b"\x81\xa1a", b"\x81\x91"):
            with pytest.raises(treepack.DecodeError):
                treepack.serialization.msgpack_restore(header * depth + b"\xc0")
    assert treepack.serialization.msgpack_restore(b"\x91" * 512 + b"\xc0")


def array(shape: Any, dtype: Any, payload: bytes) -> bytes:
    return msgpack.packb({"w": msgpack.ExtType(1, msgpack.packb((shape, dtype, payload)))})


@pytest.mark.parametrize(
    "data",
    [
        b"\xdb\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x01",
        array([2**40], "float32", b"abcd"),
        array([2**62, 2**62], "float32", b"abcd"),
        array([2**31, 2**31, 2**31], "uint8", b""),
        array([-1, -1], "uint8", b"ab"),
        array([-5], "uint8", b"ab"),
        array([2.5], "uint8", b"ab"),
        array([2**64 - 1], "uint8", b"ab"),
        array([3], "uint16", b"abcde"),
        array("x", "uint8", b"ab"),
        array([2], 5, b"ab"),
        array([2], "object", b"ab" * 8),
        array([2], "O", b"ab" * 8),
        array([2], "no such dtype", b"ab"),
        array([2], "(2,)u1", b"abcd"),
        array([2], "V0", b""),
        array([2], "\xff\xfe", b"ab"),
        array([1] * 65, "uint8", b"a"),
        array([1], "uint8", b"a")[:-1] + b"ab",
        msgpack.packb({"w": msgpack.ExtType(1, b"")}),
        msgpack.packb({"w": msgpack.ExtType(1, msgpack.packb(([1], "u1")))}),
        msgpack.packb({"w": msgpack.ExtType(1, msgpack.packb(([1], "u1", b"a", 1)))}),
        msgpack.packb({"w": msgpack.ExtType(3, b"\xc1")}),
        msgpack.packb(msgpack.ExtType(1, msgpack.packb(([1], "u1", b"a")) + b"x")),
        b"\xc7\x01\x80a",  # an extension type that msgpack does not allow
        b"\xd4\xff\x00",  # a time stamp of one byte
        b"\xa2\xff\xfe",  # a string that is not UTF-8
        b"\x81\xa1\xff\x01",
        b"\x81\x90\x01",  # a list for a key
        b"\xc1",
        b"\x01\x02",
    ],
    ids=repr,
)
def test_hostile_values(data: bytes):
    tracemalloc.start()
    try:
        with pytest.raises(treepack.DecodeError) as caught:
            treepack.serialization.msgpack_restore(data)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
    assert 0 <= caught.value.offset <= len(data)


def test_errors_have_the_path():
    damaged = array([3], "uint8", b"ab")
    with pytest.raises(treepack.DecodeError, match=r"\[3\].*\(byte \d+, at w\)"):
        treepack.serialization.msgpack_restore(damaged)
    deep = msgpack.packb({"a": [0, {"b": msgpack.ExtType(1, b"")}]})
    with pytest.raises(treepack.DecodeError) as caught:
        treepack.serialization.msgpack_restore(deep)
    assert caught.value.path == "a/1/b"


def test_trailing_bytes():
    with pytest.raises(treepack.DecodeError, match="3 trailing bytes") as caught:
        treepack.serialization.msgpack_restore(ENCODED + b"abc")
    assert caught.value.offset == len(ENCODED)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"", "empty"),
        (b"<!DOCTYPE html><html><body>404</body></html>", "HTML"),
        (b"\n<html>", "HTML"),
        (b'<?xml version="1.0"?><Error/>', "XML"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", "git-LFS"),
        (gzip.compress(ENCODED), "gzip"),
        (b"PK\x03\x04" + bytes(50), "zip"),
        (b'{"error": "not found"}', "JSON"),
        (b"\x10\0\0\0\0\0\0\0" + b'{"a":{"dtype":"F32"}}', "safetensors"),
        (b"\x89HDF\r\n\x1a\n", "HDF5"),
        (b"\x93NUMPY\x01\0", ".npy"),
        (b"\x28\xb5\x2f\xfd" + bytes(9), "Zstandard"),
        *((pickle.dumps({"a": 1}, protocol), "pickle") for protocol in (2, 3, 4, 5)),
    ],
)
def test_what_a_file_is_instead(tmp_path: Path, data: bytes, name: str):
    with pytest.raises(treepack.DecodeError, match=name) as caught:
        treepack.serialization.msgpack_restore(data)
    assert "byte" in str(caught.value)
    if name == "gzip":
        return
    path = tmp_path / "file"
    path.write_bytes(data)
    for mmap in (True, False):
        with pytest.raises(treepack.DecodeError, match=name):
            treepack.serialization.load_from_file(None, path, mmap=mmap)


def test_things_that_are_no_bytes():
    for data in ("text", 5, None, [1]):
        with pytest.raises(TypeError):
            treepack.serialization.msgpack_restore(data)


@pytest.mark.parametrize("align", [0, 3, 48, 128, -1])
def test_alignments_that_there_are_not(align: int):
    for save in (treepack.serialization.to_bytes, treepack.serialization.msgpack_serialize):
        with pytest.raises(ValueError, match=f"align .*64, got {align}"):
            save({}, align=align)


@pytest.mark.parametrize(
    ("data", "theirs"),
    [
        (b"version https://git-lfs.github.com/spec/v1\n", msgpack.ExtraData),
        (b"PK\x03\x04 and so on", msgpack.ExtraData),
        (b"\x01\x01", msgpack.ExtraData),
        (b"\xc1", msgpack.FormatError),
        (b"\x91" * 2000, msgpack.StackError),
    ],
)
def test_errors_are_those_of_msgpack_as_well(data, theirs):
    """Such as for transformers, which catches `ExtraData` to tell its users to install git-lfs."""
    with pytest.raises(theirs):
        msgpack.unpackb(data)
    for call in (treepack.serialization.msgpack_restore, treepack.loads, treepack.open):
        with pytest.raises(theirs) as caught:
            call(data)
        assert isinstance(caught.value, treepack.DecodeError)
        assert f"(byte {caught.value.offset}" in str(caught.value)
        again = pickle.loads(pickle.dumps(caught.value))
        assert (type(again), str(again)) == (treepack.DecodeError, str(caught.value))


def test_errors_can_be_pickled():
    raised = []
    for call in (
        lambda: treepack.serialization.msgpack_restore(b"\xc1"),
        lambda: treepack.serialization.to_bytes({"a": object()}),
        lambda: treepack.serialization.from_bytes(
            {"a": np.zeros(2)}, treepack.serialization.to_bytes({"a": np.zeros(3)})
        ),
    ):
        try:
            call()
        except (ValueError, TypeError) as error:
            raised.append(error)
    for error in raised:
        again = pickle.loads(pickle.dumps(error))
        assert isinstance(error, type(again))
        assert str(again) == str(error)
        assert again.__dict__ == error.__dict__
    assert len(raised) == 3


@pytest.mark.campaign
def test_memory_is_given_back():
    import gc
    import sys

    source = treepack.serialization.to_bytes({"a": [np.arange(1000)], "s": "x" * 1000})
    tree = {"a": np.arange(1000), "b": {"c": "text" * 100}}
    state = treepack.serialization.to_state_dict(tree)
    damaged = source[:-5]
    watched = [source, damaged, tree["a"], tree["b"]["c"], state["a"].dtype, None]

    def work() -> None:
        for _ in range(50):
            treepack.serialization.msgpack_restore(source)
            treepack.serialization.msgpack_restore(source, copy=True)
            treepack.serialization.from_bytes(tree, treepack.serialization.to_bytes(tree))
            with pytest.raises(ValueError, match="byte"):
                treepack.serialization.msgpack_restore(damaged)
            with pytest.raises(TypeError):
                treepack.serialization.to_bytes([tree, object()])

    work()
    gc.collect()
    before = [sys.getrefcount(thing) for thing in watched[:-1]]
    work()
    gc.collect()
    assert [sys.getrefcount(thing) for thing in watched[:-1]] == before


def test_the_tree_of_this_file_is_sound():
    assert_same(treepack.serialization.msgpack_restore(ENCODED), TREE)


@pytest.mark.parametrize(
    "name",
    [
        *("M8[s/0]", "M8[0s]", "m8[Y/-00]", "M8[s/2]", "U1", "S4", "a5", "V4", "f4,U1", "O", "T"),
        *("i4," * 1_000_000, "f" * 20_000_000, "datetime64[s]]", "float32\n", "2f4", ""),
    ],
    ids=lambda name: name[:20],
)
def test_dtype_names_that_do_harm(name: str):
    """Some of these end the program in NumPy itself, some take seconds or memory."""
    for code in (1, 3):
        body = msgpack.packb(([1], name, bytes(8)))
        with pytest.raises(treepack.DecodeError, match="unsupported array dtype") as caught:
            treepack.serialization.msgpack_restore(
                msgpack.packb({"w": msgpack.ExtType(code, body)})
            )
        assert len(str(caught.value)) < 200
        assert caught.value.path == "w"


@pytest.mark.parametrize("name", ["M8[25us]", "datetime64[ns]", "m8[D]", "?", "|b1", "=f8", "half"])
def test_dtype_names_that_are_allowed(name: str):
    dtype = np.dtype(name)
    body = msgpack.packb(([1], name, bytes(dtype.itemsize)))
    found = treepack.serialization.msgpack_restore(msgpack.packb(msgpack.ExtType(1, body)))
    assert_same(found, np.zeros(1, dtype))


def test_empty_arrays_too_large_for_numpy():
    with pytest.raises(treepack.DecodeError, match="does not fit"):
        treepack.serialization.msgpack_restore(array([0, 2**62, 2**62], "float32", b""))


def test_small_stacks():
    """As deep as it goes, in a thread with a sixteenth of the usual megabytes."""
    code = (
        "import threading, treepack\n"
        "tree, lists, keys, done = 1, 1, 1, []\n"
        "for _ in range(512):\n"
        "    tree, lists, keys = {'a': tree}, [lists], {1: keys}\n"
        "def work():\n"
        "    encoded = treepack.serialization.msgpack_serialize(tree)\n"
        "    state = treepack.serialization.msgpack_restore(encoded)\n"
        "    treepack.serialization.from_state_dict(tree, state)\n"
        "    for described in (tree, lists, keys):\n"
        "        data = treepack.dumps(described)\n"
        "        treepack.loads(data)\n"
        "    for described in (tree, lists):\n"
        "        data = treepack.dumps(described)\n"
        "        treepack.loads(data, described)\n"
        "        treepack.loads(data, described, strict='exact')\n"
        "    try:\n"
        "        treepack.serialization.msgpack_serialize([tree])\n"
        "    except ValueError:\n"
        "        done.append(1)\n"
        "threading.stack_size(1 << 19)\n"
        "thread = threading.Thread(target=work)\n"
        "thread.start()\n"
        "thread.join()\n"
        "assert done\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_late_chunk_markers_are_not_read_again_and_again():
    """What stands before a marker is read once, however many markers are around it."""
    data = b"\xc0"
    for _ in range(400):
        chunks = b"\xa6chunks\x81\xa10" + msgpack.packb(
            msgpack.ExtType(1, msgpack.packb(([0], "u1", b"")))
        )
        shape = b"\xa5shape\x81\xa10\x00"
        data = b"\x84\xa1x" + data + msgpack.packb("__msgpack_chunked_array__") + b"\xc3"
        data += shape + chunks
    few = data.replace(b"\xa1x\xc0", b"\xa1x" + msgpack.packb([None] * 10), 1)
    assert_same(treepack.serialization.msgpack_restore(few), flax.msgpack_restore(few))
    # 400 times as many values, if each level read them again.
    many = msgpack.packb([None] * 4_000_000)
    data = data.replace(b"\xa1x\xc0", b"\xa1x" + many, 1)
    assert_same(treepack.serialization.msgpack_restore(data), np.zeros(0, np.uint8))


def test_keys_that_could_not_be_read_back():
    with pytest.raises(TypeError, match=r"\(1, 2\)"):
        treepack.serialization.msgpack_serialize({"a": {(1, 2): 3}})
    assert treepack.serialization.msgpack_restore(
        treepack.serialization.to_bytes({"a": {(1, 2): 3}})
    ) == {"a": {"(1, 2)": 3}}


def test_many_dtype_objects():
    tree = {str(i): np.array([i], ">f4") for i in range(300)}
    found = treepack.serialization.msgpack_restore(treepack.serialization.to_bytes(tree))
    assert [float(found[str(i)][0]) for i in range(300)] == list(range(300))
    units = {str(i): np.zeros(1, f"M8[{i}s]") for i in range(1, 300)}
    assert_same(
        treepack.serialization.msgpack_restore(treepack.serialization.to_bytes(units)), units
    )


@pytest.mark.parametrize("load", [treepack.loads, functools.partial(serialization.from_bytes, {})])
def test_what_the_data_are_comes_first(load: Any):
    with pytest.raises(
        treepack.DecodeError, match=r"^the data looks like an HTML page: [^;]*; look[^;]* \(byte 1"
    ):
        load(b"<!DOCTYPE html>")
    with pytest.raises(
        treepack.DecodeError, match=r"^the data .*\(0 bytes\): send or read it again \(byte 0"
    ):
        load(b"")


def test_a_path_is_not_data(tmp_path: Path):
    for path in ("model.treepack", tmp_path / "model.treepack"):
        with pytest.raises(TypeError, match=r"'.*model\.treepack'"):
            treepack.loads(path)  # type: ignore[call-overload]


def test_scalars_with_a_shape_are_no_keys() -> None:
    """They are arrays, and are made such by flax, which raises a TypeError."""
    for shape, is_key in (([], True), ([2], False), ([1], False), ([0], False)):
        size = 4 * int(np.prod(shape))
        scalar = msgpack.ExtType(3, msgpack.packb((shape, "float32", bytes(size))))
        data = b"\x81" + msgpack.packb(scalar) + b"\x01"
        for read in (treepack.serialization.msgpack_restore, treepack.open, treepack.verify):
            if is_key:
                read(data)
            elif read is not treepack.verify:
                with pytest.raises(treepack.DecodeError, match="a map key cannot be hashed"):
                    read(data)
            else:
                assert not read(data).ok


def test_tuples_with_lists_are_no_keys() -> None:
    """Those of Orbax, which are extension values."""
    key = msgpack.ExtType(4, msgpack.packb([1, [2]]))
    with pytest.raises(treepack.DecodeError, match="list"):
        treepack.serialization.msgpack_restore(msgpack.packb({key: 1}))
    flat = msgpack.ExtType(4, msgpack.packb([1, 2]))
    assert treepack.serialization.msgpack_restore(msgpack.packb({flat: 1})) == {(1, 2): 1}
