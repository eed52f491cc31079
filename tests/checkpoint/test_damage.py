"""Damaged files: what is refused, what `verify` finds, what salvage saves."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import flax.serialization
import jax
import jax.numpy as jnp
import msgpack
import numpy as np
import pytest

import tiers
import treepack
import treepack._core as core
from treepack import serialization
from treepack._src.sharded.files import MANIFEST
from trees import record_of, sealed


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).bytes(2 << 20)
    foreign = gzip.compress(serialization.to_bytes({"a": noise}), 1)
    with pytest.raises(treepack.errors.GzipError, match="no index"):
        treepack.open(foreign)
    with pytest.raises(treepack.DecodeError, match="looks like"):
        treepack.open(b"PK\x03\x04" + bytes(100))
    with pytest.raises(FileNotFoundError):
        treepack.open(tmp_path / "nothing")
    with pytest.raises(ValueError, match="Protocol not known"):
        treepack.open("nothing-like-this://host/file")
    with pytest.raises(treepack.DecodeError):
        treepack.open(b"")


# Damage

SMALL: dict[str, Any] = {
    "params": {"w": np.arange(400.0), "b": np.arange(3)},
    "step": 7,
    "empty": {"x": {}},
    "last": "text",
}


def test_every_bit_counts(tmp_path: Path) -> None:
    path = tmp_path / "saved"
    treepack.save(path, SMALL)
    data = path.read_bytes()
    assert treepack.verify(path).ok
    catalog = core.Catalog.open(core.Content.lent(data), salvage=False)
    regions = [(leaf, *catalog.leaf(value)[2:]) for leaf, value in catalog.leaves(0)]
    end_of_leaves = regions[-1][2]
    record_start = len(data) - len(data[data.index(b"__treepack__") + 12 :])
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        found = treepack.verify(bytes(damaged))
        assert not found.ok, position
        if position < end_of_leaves:
            [expected] = [leaf for leaf, _, end, begin in regions if begin <= position < end]
            assert found.corrupt == [expected], position
            assert found.damage is None
        elif position < record_start:
            assert found.damage is not None
        else:
            assert found.damage is not None, position


@pytest.mark.parametrize("write", [treepack.dumps, serialization.to_bytes])
def test_unreadable_files_are_not_damaged(write: Any) -> None:
    data = write({f"{at}": np.zeros(100_000, np.uint8) for at in range(9)})

    class Failing(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if 300_000 < self.tell() < 500_000:
                raise ConnectionResetError("the server went away")
            return super().read(size)

    for salvage in (False, True):
        with pytest.raises(ConnectionResetError, match="went away"):
            treepack.open(Failing(data), salvage=salvage)


def test_equal_keys_have_a_status_each() -> None:
    """Only the last of them is found by its path."""
    for data, expected in [
        (b"\x82\xa1a\x81\xa1b\x02\xa1a\x01", ["a/b", "a"]),
        (b"\x82\xa1a\x01\xa1a\x81\xa1b\x02", ["a", "a/b"]),
        (b"\x82\xa1a\x81\xa1b\x02\xa1a\x80", ["a/b"]),
    ]:
        leaves = treepack.verify(data).leaves
        assert [*leaves] == expected
        assert (
            dict(leaves)
            == dict.fromkeys(expected, "unchecked")
            == pickle.loads(pickle.dumps(leaves))
        )
        assert repr(leaves) == repr(dict(leaves))
        assert "b" not in leaves


def test_damage_in_gzip(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tree = {str(index): rng.integers(0, 256, 1 << 18, np.uint8) for index in range(4)}
    path = tmp_path / "saved"
    treepack.save(path, tree, compress=True)
    assert set(treepack.verify(path).leaves.values()) == {"ok"}
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    found = treepack.verify(bytes(data))
    assert not found.ok
    assert 1 <= len(found.corrupt) <= 2
    for name, status in found.leaves.items():
        if status == "ok":
            np.testing.assert_array_equal(np.asarray(treepack.open(bytes(data))[name]), tree[name])


def test_files_of_flax_are_unchecked() -> None:
    found = treepack.verify(flax.serialization.to_bytes({"a": np.zeros(3), "b": 1}))
    assert found.leaves == {"a": "unchecked", "b": "unchecked"}
    assert found.unchecked == ["a", "b"]
    assert found.ok
    assert not treepack.verify(flax.serialization.to_bytes({"a": np.zeros(3)})[:-1]).ok


@pytest.mark.campaign
@tiers.parametrize("described", [False, True])
def test_files_that_are_cut_short(tmp_path: Path, described: bool) -> None:
    path = tmp_path / "saved"
    treepack.save(path, SMALL)
    data = path.read_bytes() if described else serialization.to_bytes(SMALL)
    leaves = [path for path, _ in treepack.open(data).leaves()]
    for length in range(len(data)):
        cut = data[:length]
        with pytest.raises(treepack.DecodeError):
            treepack.open(cut)
        with treepack.open(cut, salvage=True) as file:
            assert file.damage
            found = dict(file.leaves())
            assert list(found) == leaves[: len(found)]
            for name, leaf in found.items():
                if isinstance(leaf, treepack.LazyArray):
                    np.testing.assert_array_equal(
                        np.asarray(leaf), SMALL["params"][name.removeprefix("params/")]
                    )
            kept = file.load(SMALL, missing="target")
            assert kept["last"] == "text"
    assert len(found) == len(leaves) - (not described)


def test_damage_is_at_a_leaf_and_takes_leaves() -> None:
    tree = {"p": {"a": np.arange(3000.0), "b": np.ones(3)}, "step": 1}
    for saved, inside in ((tree, 2000), ({"p": {"a": jax.random.key(1)}, "step": 1}, 40)):
        for data in (treepack.dumps(saved, align=64), serialization.to_bytes(saved)):
            cut = data[:inside]
            for read in (treepack.loads, treepack.open, serialization.msgpack_restore):
                with pytest.raises(treepack.DecodeError, match=r"ends early.*, at p/a\)$"):
                    read(cut)
            with treepack.open(cut, salvage=True) as file:
                assert str(file.damage).endswith(", at p/a)")
                assert "`treepack salvage`" not in str(file.damage)
                advice = 'leaves() lists the intact leaves, load(target, missing="target") loads'
                assert advice in str(file.damage)
                for path in ("p/a", "step"):
                    with pytest.raises(KeyError, match="may be lost, since the file is damaged;"):
                        file[path]
                assert not list(file.leaves())
                assert file.load(saved, missing="target")["step"] == 1
            with treepack.open(data, salvage=True) as file, pytest.raises(KeyError, match="is it"):
                file["p/A"]


def test_records_of_later_versions() -> None:
    data = treepack.dumps((1, 2))
    record = msgpack.unpackb(record_of(data))
    plain = data[: data.index(b"__treepack__")] + b"__treepack__"

    def with_record(**more: Any) -> bytes:
        return plain + msgpack.packb(sealed(msgpack.packb({**record, **more})))

    assert treepack.open(with_record(later=[1])).load() == (1, 2)
    for load in (treepack.open, treepack.loads):
        with pytest.raises(treepack.DecodeError, match=r"version 2.*newer treepack"):
            load(with_record(version=2))


def test_damaged_indices_are_refused(tmp_path: Path) -> None:
    treepack.save(tmp_path / "saved", {"a": 1, "b": {"c": np.zeros(3)}})
    data = (tmp_path / "saved").read_bytes()
    plain = data[: data.index(b"__treepack__")] + b"__treepack__"
    record = msgpack.unpackb(record_of(data))
    index = msgpack.unpackb(record["index"])
    changes: list[dict[str, Any]] = [
        {"heads": []},
        {"heads": [3], "sizes": [1]},
        {"outline": b""},
        {"outline": b"\xc1"},
        {"outline": msgpack.packb({"a": 7, "b": {"c": 0}})},
        {"outline": msgpack.packb({"a": 0, "b": {"c": "x"}})},
        {"outline": msgpack.packb({"a": 0})},
        {"outline": msgpack.packb({"a": 0, "b": {"c": 0, "d": 0}})},
        {"kinds": []},
        {"sizes": [2**64 - 1, 2**64 - 1]},
    ]
    for change in changes:
        packed = msgpack.packb({**record, "index": msgpack.packb({**index, **change})})
        damaged = plain + msgpack.packb(sealed(packed))
        # Where the leaves do not lie in the data, the headers are read instead.
        with contextlib.suppress(treepack.DecodeError):
            assert [path for path, _ in treepack.open(damaged).leaves()] == ["a", "b/c"]
        assert treepack.loads(damaged)["a"] == 1


def test_a_file_inside_another_one(tmp_path: Path) -> None:
    treepack.save(tmp_path / "inner", {"a": 1})
    inner = (tmp_path / "inner").read_bytes()
    outer = serialization.to_bytes({"x": 2, "inner": inner})
    with treepack.open(outer) as file:
        assert list(file) == ["x", "inner"]
        assert treepack.open(file["inner"])["a"] == 1


# What a review has found


def test_damage_in_small_gzip_files() -> None:
    data = treepack.dumps({"a": np.arange(1000)}, compress=True)
    assert treepack.verify(data).leaves == {"a": "ok"}
    damaged = bytearray(data)
    damaged[len(data) // 2] ^= 8
    for found in (treepack.verify(bytes(damaged)), treepack.verify(data[: len(data) // 2])):
        assert not found.ok
        assert found.damage


def test_gzip_that_is_cut_short(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (8, 1 << 18), np.uint8)
    tree = {str(index): row for index, row in enumerate(noise)}
    treepack.save(tmp_path / "saved", tree, compress=True)
    data = (tmp_path / "saved").read_bytes()
    foreign = gzip.compress(serialization.to_bytes(tree), 1)
    assert treepack.verify(foreign).ok
    for whole in (data, foreign):
        cut = whole[: len(whole) * 5 // 8]
        with pytest.raises(treepack.CorruptionError):
            treepack.open(cut)
        with treepack.open(cut, salvage=True) as file:
            assert file.damage
            found = dict(file.leaves())
        assert list(found) == [str(index) for index in range(len(found))]
        assert 3 <= len(found) <= 5
        with treepack.open(cut, salvage=True) as file:
            for name, leaf in file.leaves():
                np.testing.assert_array_equal(np.asarray(leaf), tree[name])
        assert not treepack.verify(cut).ok


def test_kinds_of_later_versions(tmp_path: Path) -> None:
    treepack.save(tmp_path / "saved", {"a": 1, "b": np.zeros(3)})
    data = (tmp_path / "saved").read_bytes()
    record = msgpack.unpackb(record_of(data))
    index = msgpack.unpackb(record["index"])
    for later in ({"quark": [1, 2]}, "quark", 7):
        index["kinds"][0] = later
        packed = msgpack.packb({**record, "index": msgpack.packb(index)})
        plain = data[: data.index(b"__treepack__")] + b"__treepack__"
        with treepack.open(plain + msgpack.packb(sealed(packed))) as file:
            assert file["a"] == 1
            assert file["b"].shape == (3,)


@pytest.mark.parametrize("length", [b"\x3d", b"\x3f"])
def test_an_array_of_another_length_than_its_leaf_is_noticed(tmp_path: Path, length: bytes) -> None:
    """The index, the shape and the byte string are right, and the extension around them is not."""
    treepack.save(tmp_path / "saved", {"w": np.zeros((3, 4), np.float32), "z": 1}, align=1)
    data = (tmp_path / "saved").read_bytes()
    plain = data[: data.index(b"__treepack__")] + b"__treepack__"
    end = msgpack.packb(sealed(record_of(data)))
    assert treepack.verify(plain + end).ok
    other = plain.replace(b"\xc7\x3e\x01\x93", b"\xc7" + length + b"\x01\x93") + end
    assert other != plain + end
    assert treepack.verify(other).leaves == {"w": "corrupt", "z": "unchecked"}
    with treepack.open(other) as file, pytest.raises(treepack.DecodeError):
        np.asarray(file["w"])
    with pytest.raises(treepack.DecodeError):
        treepack.loads(other)


def test_an_index_that_tells_another_dtype_or_shape_is_noticed(tmp_path: Path) -> None:
    treepack.save(tmp_path / "saved", {"w": np.arange(12, dtype=np.float32).reshape(4, 3)})
    data = (tmp_path / "saved").read_bytes()
    record = msgpack.unpackb(record_of(data))
    index = msgpack.unpackb(record["index"])
    for dtype, shape in [
        ("float64", [4, 3]),
        ("int32", [4, 3]),
        ("float16", [4, 3]),
        ("float32", [2, 6]),
        ("float32", [1 << 40, 100]),
        ("float32", [(1 << 63) - 1, 100]),
    ]:
        other = {**index, "kinds": [{"array": [dtype, shape]}]}
        packed = msgpack.packb({**record, "index": msgpack.packb(other)})
        plain = data[: data.index(b"__treepack__")] + b"__treepack__"
        array = treepack.open(plain + msgpack.packb(sealed(packed)))["w"]
        assert (array.dtype, array.shape) == (dtype, tuple(shape))
        for read in (lambda array=array: array[1, 2], lambda array=array: array[:, 0]):
            with pytest.raises(treepack.DecodeError):
                read()


def test_a_file_that_is_cut_short_while_it_is_open(tmp_path: Path) -> None:
    path = tmp_path / "model"
    treepack.save(path, {"a": np.zeros(10), "w": np.ones((1000, 100))})
    with treepack.open(path) as file:
        array = file["w"]
        os.truncate(path, 100_000)
        with pytest.raises(treepack.CorruptionError, match="overwritten in place"):
            array[100:900]


def test_saves_of_a_file_name_that_it_was_overwritten(tmp_path: Path) -> None:
    """Its leaves are not damaged: other ones are there now."""
    path = tmp_path / "model"
    treepack.save(path, {"w": np.ones((1000, 100))})
    with treepack.open(path) as file:
        with path.open("r+b") as other:
            other.seek(4000)
            other.write(bytes(8))
        with pytest.raises(treepack.CorruptionError, match="overwritten in place"):
            treepack.save(tmp_path / "copy", file)
    with pytest.raises(treepack.CorruptionError, match="w; copy the file again, or read its"):
        treepack.digest(path)


@pytest.mark.parametrize("form", [True, "numbers"])
def test_errors_of_damaged_blocks_have_a_cure(tmp_path: Path, form: Any) -> None:
    path = tmp_path / "model"
    rng = np.random.default_rng(0)
    treepack.save(path, {str(it): rng.normal(size=2**17) for it in range(4)}, compress=form)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    for read in (treepack.load, treepack.digest):
        with pytest.raises(treepack.errors.GzipCorruptionError) as caught:
            read(path)
        assert caught.value.__notes__ == [
            "treepack: copy the file again, or its intact leaves with `treepack salvage`"
        ]
    with treepack.open(path, salvage=True) as file:
        treepack.save(tmp_path / "rest", file)
    assert 0 < len(treepack.load(tmp_path / "rest")) < 4


@pytest.mark.parametrize("rows", [1, 3000])
def test_all_reads_notice_that_a_file_was_overwritten(tmp_path: Path, rows: int) -> None:
    path = tmp_path / "model"
    for read in (
        lambda file, array: array[:10],
        lambda file, array: array[[0, 1]],
        lambda file, array: array.statistics(),
        lambda file, array: file["w"][0],
        lambda file, array: file.load(select="w"),
        lambda file, array: treepack.save(tmp_path / "copy", {"w": array}),
        lambda file, array: treepack.digest(file),
    ):
        treepack.save(path, {"w": np.ones((1000, 2)), "step": 1})
        with treepack.open(path) as file:
            array = file["w"]
            path.write_bytes(treepack.dumps({"w": np.ones((rows, 2)), "step": 1}))
            with pytest.raises(treepack.CorruptionError, match="overwritten in place"):
                read(file, array)


def test_a_file_that_is_overwritten_while_it_is_open(tmp_path: Path) -> None:
    path = tmp_path / "model"
    treepack.save(path, {"w": np.ones(1000), "step": 1})
    with treepack.open(path) as file:
        array = file["w"]
        treepack.save(path, {"w": np.zeros(1000), "step": 2})  # which replaces it
        assert array[0] == np.asarray(array)[0] == file["step"] == 1
    with treepack.open(path) as file:
        array = file["w"]
        path.write_bytes(treepack.dumps({"w": np.ones(10)}))
        for read in (
            lambda: array[:10],
            lambda: np.asarray(array),
            lambda: file.load(),
            lambda: file["step"],
            lambda: treepack.save(tmp_path / "copy", {"w": array}),
        ):
            with pytest.raises(treepack.TreepackError, match="model"):
                read()
        with pytest.raises(treepack.CorruptionError, match="overwritten in place"):
            np.asarray(array)


@pytest.mark.parametrize("how", ["plain", "gzip", "numbers"])
@pytest.mark.parametrize("kind", ["file", "sharded", "host"])
def test_all_forms_notice_that_a_file_was_overwritten(tmp_path: Path, kind: str, how: str) -> None:
    values = [np.random.default_rng(it).integers(0, 99, 300_001) for it in (1, 2)]
    if kind == "sharded":
        sharding = jax.sharding.NamedSharding(
            jax.sharding.Mesh(np.array(jax.devices()[:2]), "x"), jax.sharding.PartitionSpec("x")
        )
        values = [jax.device_put(it[1:].astype(np.int32), sharding) for it in values]
    form = {"plain": False, "gzip": True}.get(how, how)
    for name, value in zip(("one", "two"), values, strict=True):
        treepack.save(tmp_path / name, {"w": value}, compress=form, sharded=kind != "file")
    one, two = (
        [it for it in sorted((tmp_path / name).iterdir()) if it.name != MANIFEST]
        if kind != "file"
        else [tmp_path / name]
        for name in ("one", "two")
    )
    with treepack.open(tmp_path / "one") as file:
        array = file["w"]
        assert array[5] == values[0][5]
        for old, new in zip(one, two, strict=True):
            shutil.copyfile(new, old)
        for read in (lambda: array[5], lambda: array[::2], lambda: np.asarray(array), file.load):
            with pytest.raises(treepack.CorruptionError, match="overwritten in place"):
                read()


def test_an_index_has_nothing_between_leaves_and_record_but_containers(tmp_path: Path) -> None:
    """Where the key of the record is another one, part of it is not before the record."""
    treepack.save(tmp_path / "saved", {"a": 1, "b": 2})
    data = (tmp_path / "saved").read_bytes()
    record = msgpack.unpackb(record_of(data))
    index = msgpack.unpackb(record["index"])
    assert index["rest"] == 0
    packed = msgpack.packb({**record, "index": msgpack.packb({**index, "rest": 2})})
    key = b"\xac__treepack__"
    damaged = data[: data.index(key)] + b"\xae\xdf" + key + msgpack.packb(sealed(packed))
    assert not treepack.verify(damaged).ok
    with pytest.raises(
        treepack.DecodeError, match="unknown bytes between the leaves and the record"
    ):
        treepack.loads(damaged)
    with pytest.raises(treepack.DecodeError, match="between the leaves and the record"):
        treepack.open(damaged)
    with treepack.open(damaged, salvage=True) as file:
        assert (file["a"], file["b"]) == (1, 2)


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("was", ["jax", "weak_jax", "bytearray"])
def test_another_leaf_than_was_saved_is_damage(tmp_path: Path, was: str, later: bool) -> None:
    """The record has an array of jax or bytes, the data a scalar of NumPy."""
    path = tmp_path / "saved"
    treepack.save(path, [np.int8(3), jnp.zeros(2)])
    data = path.read_bytes()
    record = msgpack.unpackb(record_of(data))
    if later:
        index = msgpack.unpackb(record["index"])
        kinds = ["quark" if it == {"scalar": "int8"} else it for it in index["kinds"]]
        record["index"] = msgpack.packb({**index, "kinds": kinds})
    plain = data[: data.index(b"__treepack__")] + b"__treepack__"
    whole = plain + msgpack.packb(sealed(msgpack.packb(record)))
    assert treepack.verify(whole).ok
    nodes = [[was, []] if node == ["plain", []] else node for node in record["nodes"]]
    assert nodes != record["nodes"]
    other = plain + msgpack.packb(sealed(msgpack.packb({**record, "nodes": nodes})))
    cut = other.replace(b"\xa4int8", b"\xa9int8", 1)  # the leaf cannot be read
    for damaged in (other, cut):
        found = treepack.verify(damaged)
        assert "found another value" in str(found.damage) or found.corrupt
        with pytest.raises(treepack.DecodeError):
            treepack.loads(damaged)
    assert "found another value" in str(treepack.verify(other).damage)


@pytest.mark.parametrize("dtype", ["uint", "<u8"])
def test_aliases_of_dtypes_inside_of_leaves_have_bytes_that_fit(dtype: str) -> None:
    """Only NumPy knows how large an element of `uint` is."""

    def data(dtype: str) -> Any:
        array = msgpack.ExtType(1, msgpack.packb(([2], dtype, bytes(8))))
        key = {"__prng_key__": "threefry2x32", "data": array}
        return msgpack.packb({"key": key, "list": [{1: array}], "b": 1})

    assert treepack.verify(data("<u4")).ok
    assert serialization.msgpack_restore(data("<u4"))["b"] == 1
    assert len(treepack.verify(data(dtype)).corrupt) == 2
    with pytest.raises(treepack.DecodeError, match="does not fit its 8 bytes"):
        serialization.msgpack_restore(data(dtype))


@pytest.mark.parametrize("size", [5, 70_000])
def test_nothing_stands_after_numbers(size: int) -> None:
    """Data of one block have no index after them, others one of empty members of gzip."""
    tree = {"x": np.random.default_rng(0).normal(size=size)}
    data = treepack.dumps(tree, compress="numbers")
    assert treepack.verify(data).ok
    assert not treepack.verify(data + b"\x1f").ok
    for tail in (b"garbage", data, gzip.compress(b"more")):
        longer = data + tail
        assert not treepack.verify(longer).ok
        for read in (treepack.loads, serialization.decompress_bytes):
            with pytest.raises(treepack.errors.GzipError):
                read(longer)
    if size > 5:
        cuts = range(len(data) - 140, len(data))
        assert sum(treepack.verify(data[:cut]).ok for cut in cuts) <= 1  # where the index begins


def test_a_mark_without_its_record_is_damage(tmp_path: Path) -> None:
    """Neither the key of the record nor the record is right, but the data end as with one."""
    treepack.save(tmp_path / "saved", {"w": np.arange(6.0), "s": 3})
    data = bytearray((tmp_path / "saved").read_bytes())
    key = data.index(b"__treepack__")
    data[key + 3] ^= 1
    assert treepack.verify(bytes(data)).damage is not None
    with treepack.open(bytes(data), salvage=True) as file:
        assert file.damage is not None
        assert file["s"] == 3
    data[-30] ^= 1
    assert "damaged" in str(treepack.verify(bytes(data)).damage)
    inside = serialization.to_bytes({"a": 1, "b": treepack.dumps({"w": 1})})
    assert treepack.verify(inside).ok  # a file in a file of flax
