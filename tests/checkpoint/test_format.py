"""The reader of docs/format.md, which is written from that page alone, reads what `save` writes."""

from __future__ import annotations

import collections
import re
import zlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import msgpack
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import treepack
from treepack import serialization

PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text()
CODE = re.findall(r"```python\n(.*?)```", PAGE, re.S)
READER = next(code for code in CODE if "def read" in code)
NUMBERS = next(code for code in CODE if "def numbers_of" in code)
PATCHES = next(code for code in CODE if "def patched" in code)


@pytest.fixture(scope="module")
def reader() -> dict[str, Any]:
    """The names that the reader defines, with those for numbers."""
    names: dict[str, Any] = {}
    for code, most in ((NUMBERS, 60), (PATCHES, 60), (READER, 150)):
        assert "treepack" not in "".join(re.findall(r"^(?:import|from) .*$", code, re.M))
        assert len([line for line in code.splitlines() if line.strip()]) <= most
        exec(compile(code, "format.md", "exec"), names)
    return names


class Point(collections.namedtuple("Point", ["x", "y"])):
    """A node of a type of the program."""


treepack.register_namedtuple(Point, serialized_name="format.Point")

DTYPES = ["bool", "int8", "int4", "uint2", "int64", "float16", "complex64", "datetime64[25us]"]
DTYPES += ["float8_e4m3fn", "float4_e2m1fn", "bfloat16"]


def tree() -> dict[str, Any]:
    """One of each kind."""
    rows = NamedSharding(jax.make_mesh((jax.device_count(),), ("a",)), PartitionSpec("a"))
    return {
        "params": {
            "w": np.arange(6.0).reshape(2, 3),
            "large": jnp.arange(4096.0).reshape(64, 64),  # one chunk, for its alignment
            "rows": jax.device_put(jnp.arange(64.0).reshape(32, 2), rows),
        },
        "dtypes": {name: np.arange(2).astype(name) for name in DTYPES},
        "zero": np.zeros((0, 3), np.float32),
        "scalar": np.float32(0.5),
        "key": jax.random.split(jax.random.key(3)),
        "leaves": [1, 2.5, "text", None, True, b"bytes", 1 + 2j, 2**63, -5],
        "array bytes": bytearray(b"more"),
        "tuple": (1, (2, [])),
        "keys": {1: "one", (2, "a"): "two", None: 3, 2**70: {"a/b": 4}},
        "ordered": collections.OrderedDict(a=1, b=[2]),
        "point": Point(np.arange(3), y="y"),
        "empty": {"x": {}},
        "": {"~": {".": 0}},
    }


def same(found: Any, expected: Any) -> None:
    """Compares what the reader returns with a tree, which it has as far as it knows the types."""
    if type(expected) is collections.OrderedDict:
        found, expected = found, ("collections.OrderedDict", (None, None), dict(expected))
    elif type(expected) is Point:
        expected = ("format.Point", (), expected._asdict())
    elif isinstance(expected, jax.Array) and jnp.issubdtype(expected.dtype, jax.dtypes.prng_key):
        expected = ("threefry2x32", jax.random.key_data(expected))
    if isinstance(expected, (np.ndarray, jax.Array)):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
        return
    assert type(found) is type(expected), (found, expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for key, value in expected.items():
            same(found[key], value)
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    else:
        assert found == expected


METADATA = {"step": (1, 2.5), "set": {1, 2**80}, "dtype": np.dtype("int8"), "none": [None, b"x"]}


FRAMES: list[dict[str, Any]] = [{}, {"compress": True}, {"compress": "numbers"}]
FORMS = [frame | more for frame in FRAMES for more in ({}, {"align": 1}, {"sharded": True})]


@pytest.mark.parametrize("how", FORMS)
def test_it_reads_all_kinds(tmp_path: Path, reader: dict[str, Any], how: Any) -> None:
    treepack.save(tmp_path / "saved", tree(), metadata=METADATA, **how)
    file = reader["read"](tmp_path / "saved")
    same(file.tree(), tree())
    assert reader["typed"](msgpack.unpackb(file.record["metadata"])) == METADATA


def test_it_reads_linked_blocks_of_rows(
    tmp_path: Path, reader: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treepack._src.saving.sharded.BLOCK_BYTES", 4000)
    run = treepack.Series(tmp_path, unchanged="link")
    saved = {"buffer": np.zeros((1009, 50), np.float32), "few": np.arange(3)}
    for step in range(2):
        saved["buffer"][400 * step] = step
        run.save(step, saved)
    same(reader["read"](Path(run.path(1))).tree(), saved)


def test_it_reads_numbers_of_many_blocks(tmp_path: Path, reader: dict[str, Any]) -> None:
    normal = np.random.default_rng(0).normal(0, 0.02, 1 << 18)
    large = {name: normal.astype(name) for name in ("bfloat16", "float32", "float64", "int32")}
    for align in (1, 64):
        treepack.save(tmp_path / "saved", large, compress="numbers", align=align)
        file = reader["read"](tmp_path / "saved")
        assert len(file.data.blocks) > 10
        same(file.tree(), large)
        whole = reader["numbers_of"]((tmp_path / "saved").read_bytes())
        same(reader["File"](whole).tree(), large)


@pytest.mark.parametrize("leaf", [np.arange(3), 7, [], {}, None, jnp.ones(2)])
def test_it_reads_trees_that_are_leaves(tmp_path: Path, reader: dict[str, Any], leaf: Any) -> None:
    treepack.save(tmp_path / "saved", leaf)
    same(reader["read"](tmp_path / "saved").tree(), leaf)


@pytest.mark.parametrize("compress", ["gzip", "numbers"])
def test_it_reads_a_part(tmp_path: Path, reader: dict[str, Any], compress: Any) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (6, 1 << 18), np.uint8)
    treepack.save(tmp_path / "saved", dict(zip("abcdef", noise, strict=True)), compress=compress)
    file = reader["read"](tmp_path / "saved")
    first, last, _ = file.data.blocks[4]
    stream = bytearray(file.data.data)
    # Whoever reads another block does not notice.
    stream[first + 16 : last] = bytes(last - first - 16)
    file.data.data = bytes(stream)
    same(file.leaf(("b",)), noise[1])
    with pytest.raises((AssertionError, zlib.error)):
        file.leaf(("e",))


def test_it_reads_code_as_a_placeholder(tmp_path: Path, reader: dict[str, Any]) -> None:
    treepack.save(tmp_path / "saved", {"f": same, "x": 1})
    name, (what, (field, _)), children = reader["read"](tmp_path / "saved").tree()["f"]
    assert (name, what, field, children) == ("treepack.code", "treepack.hole", "", {})


def test_it_reads_chunks(
    tmp_path: Path, reader: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serialization, "MAX_CHUNK_SIZE", 1000)
    saved = {"a": np.arange(3000, dtype=np.int16).reshape(30, 100), "b": ml_dtypes.bfloat16(1)}
    treepack.save(tmp_path / "saved", saved)
    state = msgpack.unpackb((tmp_path / "saved").read_bytes())
    assert len(state["a"]["chunks"]) == 6
    same(reader["read"](tmp_path / "saved").tree()["a"], saved["a"])


def test_all_names_are_in_the_page() -> None:
    from treepack._src.registry.codecs import NAMES

    for name in [*NAMES, "function", "treepack.pruned", "treepack.unnamed", "treepack.code"]:
        assert f"`{name}`" in PAGE, name
    for name in ("treepack.variable", "treepack.functions"):
        assert f'"{name}"' in PAGE, name
    dtypes = [getattr(ml_dtypes, name) for name in dir(ml_dtypes)]
    for dtype in [np.dtype(found) for found in dtypes if isinstance(found, type)]:
        if dtype.kind != "O":
            assert f"`{dtype.name}`" in PAGE, dtype


def test_differences_are_read(reader: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    held = {
        "sparse": rng.standard_normal(3_000_000).astype(np.float16),
        "dense": rng.integers(0, 1 << 30, 200_000, np.int32),
        "ordered": rng.standard_normal(200_000).astype(np.float32),
        "of 16 bits": rng.standard_normal(20_000).astype(np.float16),
        "of 64 bits": rng.standard_normal(20_000),
        "stored": rng.integers(0, 256, 5 << 20, np.uint8),
        "equal": rng.standard_normal(1000) + 1j,
        "one": np.zeros(1000, np.int64),
        "signs": rng.standard_normal(1000).astype(np.float32),
    }
    new = {name: array.copy() for name, array in held.items()}
    new["sparse"][rng.integers(0, 3_000_000, 9000)] *= np.float16(-1.01)
    new["dense"] += rng.integers(-9, 9, 200_000, np.int32)
    for name in ("ordered", "of 16 bits", "of 64 bits"):
        new[name] = (new[name] * 1.001 + 1e-3).astype(new[name].dtype)
    new["stored"][: 3 << 20] = rng.integers(0, 256, 3 << 20, np.uint8)
    new["one"][7::10] -= 1
    new["signs"][::9] *= -1
    data = treepack.dumps(new, base=held)
    mark, tree, tail = msgpack.unpackb(data)
    assert mark == tail[-8:] == data[3:11]
    crc, length = np.frombuffer(tail[-16:-8], "<u4")
    assert crc == zlib.crc32(data[:-16])
    record = msgpack.unpackb(tail[: int(length)])
    assert record == {"version": 1, "nbytes": len(treepack.dumps(new))}
    for name, leaf in tree.items():
        if name != "__treepack__":
            assert leaf.code == 68
            found = reader["patched"](leaf.data, held[name].tobytes())
            array = reader["value"](found)
            assert array.tobytes() == new[name].tobytes()
