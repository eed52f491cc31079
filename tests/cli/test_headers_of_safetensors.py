"""Headers of safetensors are taken and refused as safetensors does."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy

import tiers
import treepack.__main__
from commands import call, refused
from hostile.headers import PACKED, mutated, packed
from treepack import DecodeError
from treepack._src.formats.safetensors import FORMAT
from treepack._src.formats.safetensors.header import SAFETENSORS
from treepack._src.storage.address import Address
from treepack._src.storage.content import Opened

ARRAY: dict[str, Any] = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def hostile_headers() -> dict[str, bytes]:
    zeros = bytes(16)

    def one(**changes: Any) -> bytes:
        return packed({"a": ARRAY | changes}, zeros[:8])

    def two(first: list[int], second: list[int], body: int = 16) -> bytes:
        ours, theirs = ARRAY | {"data_offsets": first}, ARRAY | {"data_offsets": second}
        return packed({"a": ours, "b": theirs}, zeros[:body])

    many = 1 << 32
    return {
        "negative": one(data_offsets=[-8, 0]),
        "overlapping": two([0, 8], [4, 12], 12),
        "equal": two([0, 8], [0, 8], 8),
        "hole": two([0, 8], [12, 20], 20),
        "hole at the start": packed({"a": ARRAY | {"data_offsets": [8, 16]}}, zeros),
        "more after": packed({"a": ARRAY}, zeros),
        "beyond the end": packed({"a": ARRAY}, zeros[:7]),
        "backward": one(data_offsets=[8, 0]),
        "three offsets": one(data_offsets=[0, 8, 8]),
        "offsets of floats": one(data_offsets=[0.0, 8.0]),
        "negative shape": one(shape=[-1, -2]),
        "shape of bools": one(shape=[True, 2]),
        "no shape": one(shape=None),
        "shape wraps around": one(shape=[many, many, 0], data_offsets=[0, 0]),
        "shape beyond integers": one(shape=[10**4000, 0], data_offsets=[0, 0]),
        "other size": one(dtype="F64"),
        "half a byte": one(dtype="F4", shape=[3], data_offsets=[0, 1]),
        "six bits": one(dtype="F6_E3M2", shape=[2], data_offsets=[0, 2]),
        "packed in too many bytes": one(dtype="F4", shape=[8], data_offsets=[0, 8]),
        "unknown dtype": one(dtype="F31"),
        "no name of a dtype": one(dtype="F32 "),
        "unknown dtype of no whole bits": one(dtype="F31", shape=[3]),
        "unknown dtype without elements": one(dtype="F31", shape=[0]),
        "unknown dtype without bytes": packed(
            {"a": ARRAY | {"dtype": "F31", "data_offsets": [0, 0]}}, b""
        ),
        "dtype of another kind": one(dtype=["F32"]),
        "dtypes of NumPy": one(dtype="float32"),
        "no fields": packed({"a": {}}, b""),
        "no map": packed({"a": 5}, b""),
        "a list": packed(b"[]", b""),
        "nothing": packed(b"", b""),
        "metadata of numbers": packed({"__metadata__": {"a": 1}}, b""),
        "metadata of text": packed({"__metadata__": "a"}, b""),
        "NaN": packed(b'{"__metadata__":NaN}', b""),
        "half a character": packed(b'{"\\ud800":' + json.dumps(ARRAY).encode() + b"}", zeros[:8]),
        "no UTF-8": packed(b'{"\xff":' + json.dumps(ARRAY).encode() + b"}", zeros[:8]),
        "deep": packed(b'{"a":' + b"[" * 100_000, b""),
        "deep in an unread value": one(more=json.loads("[" * 200 + "]" * 200)),
        "more after the header": packed(b"{}\0", b""),
        "too large": packed(b"{}", b"", length=100_000_001),
        "cut": b"\x02\0\0",
        "empty": b"",
    }


def read(path: str, separator: str) -> Any:
    tree, _ = FORMAT.tree_of(Opened.of(Address.of(path)).content, separator, None)
    return tree


@pytest.mark.parametrize("name", hostile_headers())
def test_what_safetensors_refuses_is_refused(folder: Path, name: str) -> None:
    data = hostile_headers()[name]
    with pytest.raises(safetensors.SafetensorError):
        safetensors.deserialize(data)
    Path("hostile.safetensors").write_bytes(data)
    with pytest.raises(DecodeError):
        read("hostile.safetensors", ".")


def test_the_command_line_refuses_hostile_headers(folder: Path) -> None:
    Path("hostile.safetensors").write_bytes(hostile_headers()["negative"])
    assert "[-8, 0]" in refused("convert", "hostile.safetensors", "new", status=1)
    assert not Path("new").exists()
    twice = json.dumps({"a": ARRAY})[1:-1]
    Path("hostile.safetensors").write_bytes(packed(f"{{{twice},{twice}}}".encode(), bytes(8)))
    with pytest.raises(DecodeError, match="duplicate key 'a'"):
        call("convert", "hostile.safetensors", "new")
    path = "a." * 5000
    Path("deep.safetensors").write_bytes(packed({path: ARRAY}, bytes(8)))
    call("convert", "deep.safetensors", "new")  # the last key is the rest of the name
    call("convert", "new", "again.safetensors")
    assert [*safetensors.numpy.load_file("again.safetensors")] == [path]
    call("convert", "deep.safetensors", "new", "--sep", "/")
    assert list(treepack.open("new")) == [path]


@pytest.mark.parametrize(("shape", "nbytes"), [([2], 8), ([], 3), ([5], 15), ([0, 2], 0)])
def test_arrays_with_a_dtype_of_a_later_release_are_unreadable_and_others_are_read(
    folder: Path, shape: list[int], nbytes: int
) -> None:
    header = {
        "a.new": {"dtype": "NEW9_E2", "shape": shape, "data_offsets": [0, nbytes]},
        "x": ARRAY | {"data_offsets": [nbytes, nbytes + 8]},
    }
    data = packed(header, bytes(range(nbytes + 8)))
    with pytest.raises(safetensors.SafetensorError):
        safetensors.deserialize(data)
    Path("model.safetensors").write_bytes(data)
    x = np.frombuffer(data[-8:], np.float32)
    for source in ("model.safetensors", ".", data):
        for options in ({"select": "x"}, {"exclude": "a/**"}, {"target": {"x": x}}):
            np.testing.assert_equal(treepack.load(source, **options), {"x": x})
        for call_of in (treepack.load, treepack.abstract):
            with pytest.raises(DecodeError, match=r"NEW9_E2_unknown.: select= and exclude="):
                call_of(source)
        with treepack.open(source) as file:
            assert f"NEW9_E2_unknown[{nbytes}]" in repr(file)
            np.testing.assert_equal(file["x"][...], x)
            with pytest.raises(DecodeError, match=r"unsupported array dtype.*at a/new"):
                file["a/new"]
        found = treepack.verify(source)
        assert (found.ok, found.damage, found.corrupt) == (False, None, [])
        assert found.unreadable == ["a/new"]
    assert "1 unreadable, 1 unchecked" in call("verify", "model.safetensors", status=2)
    assert "left out an unreadable leaf: a/new" in call(
        "salvage", "model.safetensors", "new.treepack", status=1
    )
    np.testing.assert_equal(treepack.load("new.treepack"), {"x": x})


# The format forbids them, though its reader does not look.
NOT_TAKEN = "duplicate key"


def test_any_header_is_read_as_safetensors_reads_it(folder: Path) -> None:
    own = random.Random(23)
    taken = refused = 0
    count = tiers.either(600, 4000)
    for _ in range(count):
        data = mutated(own)
        Path("any.safetensors").write_bytes(data)
        try:
            expected = dict(safetensors.deserialize(data))
        except safetensors.SafetensorError:
            refused += 1
            with pytest.raises(DecodeError):
                read("any.safetensors", "")
            continue
        try:
            found = read("any.safetensors", "")
        except DecodeError as error:
            if not re.search(NOT_TAKEN, str(error)):
                raise
            continue
        taken += 1
        assert found.keys() == expected.keys()
        for name, array in found.items():
            content, [place] = array._deferred()
            assert expected[name]["data"] == content.read_range(*place)
            if array.dtype.metadata:
                assert expected[name]["dtype"] in dict(PACKED) or len(expected[name]["shape"]) > 64
                continue
            assert expected[name]["shape"] == [*array.shape]
            assert expected[name]["dtype"] == SAFETENSORS[array.dtype.name]
    assert min(taken, refused) > count / 5
