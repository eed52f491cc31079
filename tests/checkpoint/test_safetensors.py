"""Files and repositories of safetensors are checkpoints; safetensors' own reader is the oracle."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

import tiers
import treepack
from commands import call
from treepack import (
    CorruptionError,
    DecodeError,
    MismatchError,
    UnserializableLeafError,
    serialization,
)
from treepack._src.checkpoint import load
from treepack._src.formats.safetensors.header import SAFETENSORS
from trees import nested

INDEX = "model.safetensors.index.json"


def arrays() -> dict[str, np.ndarray]:
    """The arrays of a small model, as PyTorch names them."""
    layers = {
        f"model.layers.{at}.w": np.arange(64, dtype=np.float32).reshape(8, 8) + at
        for at in range(3)
    }
    return {
        **layers,
        "model.embed": np.arange(20).astype(ml_dtypes.bfloat16),
        "step": np.array(7, np.int64),
        "empty": np.zeros((0, 3), np.float16),
        "mask": np.array([True, False]),
    }


def write_repository(folder: Path, *, has_index: bool, flat: dict[str, np.ndarray] | None = None):
    """Writes two files, with or without an index of their arrays."""
    flat = arrays() if flat is None else flat
    folder.mkdir()
    names = [*flat]
    files = {}
    for number, part in enumerate((names[:2], names[2:]), 1):
        file = f"model-{number:05}-of-00002.safetensors"
        safetensors.numpy.save_file(
            {name: flat[name] for name in part}, folder / file, {"format": "pt"}
        )
        files.update(dict.fromkeys(part, file))
    (folder / "config.json").write_text("{}")
    if has_index:
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return folder


def check_same(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for left, right in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (left.dtype, left.shape) == (right.dtype, right.shape)
        assert np.asarray(left).tobytes() == np.asarray(right).tobytes()


def file_at(folder: Path) -> Path:
    path = folder / "model.safetensors"
    safetensors.numpy.save_file(arrays(), path, {"format": "pt"})
    return path


def without_suffix(folder: Path) -> Path:
    return file_at(folder).rename(folder / "model")


def in_memory(folder: Path) -> str:
    """The URL of a directory."""
    for file in write_repository(folder / "repository", has_index=True).iterdir():
        fsspec.filesystem("memory").pipe(f"/{folder.name}/{file.name}", file.read_bytes())
    return f"memory://{folder.name}"


SOURCES: dict[str, Callable[[Path], Any]] = {
    "file": file_at,
    "file without a suffix": without_suffix,
    "data": lambda folder: file_at(folder).read_bytes(),
    "file object": lambda folder: io.BytesIO(file_at(folder).read_bytes()),
    "repository": lambda folder: write_repository(folder / "it", has_index=False),
    "repository with an index": lambda folder: write_repository(folder / "it", has_index=True),
    "URL of a repository": in_memory,
    "URL of a file": lambda folder: f"{in_memory(folder)}/model-00002-of-00002.safetensors",
}


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Any]:
    """A source, and the tree in it."""
    flat = arrays()
    if request.param == "URL of a file":
        flat = dict([*flat.items()][2:])
    return SOURCES[request.param](tmp_path), nested(flat)


def test_all_verbs_read_it(source: tuple[Any, Any]) -> None:
    given, tree = source
    check_same(treepack.load(given), tree)
    assert treepack.read_metadata(given) == {"format": "pt"}
    assert treepack.is_checkpoint(given)
    abstract = treepack.abstract(given)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), abstract) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), tree
    )
    found = treepack.verify(given)
    assert found.ok
    assert set(found.leaves.values()) == {"unchecked"}
    with treepack.open(given) as file:
        array = file["model/layers/2/w"]
        assert np.array_equal(array[1:3, 2], tree["model"]["layers"]["2"]["w"][1:3, 2])
        check_same(file.load(), tree)
    selected = treepack.load(given, select="model/layers/2")
    check_same(selected, {"model": {"layers": {"2": tree["model"]["layers"]["2"]}}})


def test_templates(source: tuple[Any, Any]) -> None:
    given, tree = source
    tree["step"] = tree["step"].astype(np.int32)
    as_jax = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)
    found = treepack.load(given, as_jax)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(found))
    check_same(found, tree)
    half = as_jax | {"mask": as_jax["mask"], "step": as_jax["step"]}
    half["model"] = jax.tree.map(
        lambda it: jax.ShapeDtypeStruct(it.shape, jnp.bfloat16), half["model"]
    )
    cast = treepack.load(given, half, cast=True)
    assert cast["model"]["layers"]["2"]["w"].dtype == jnp.bfloat16
    moved = treepack.load(given, {"it": tree["mask"]}, mapping={"it": "mask"}, select="it")
    assert moved["it"].tolist() == [True, False]
    with pytest.raises(MismatchError, match=r"model/layers/2/w: expected float32\[9\]"):
        treepack.load(given, tree | {"model": {"layers": {"2": {"w": np.zeros(9, np.float32)}}}})


@pytest.mark.parametrize("spec", [("x", None), (None, "x"), (None, None)])
@pytest.mark.parametrize("is_template", [True, False])
def test_each_device_reads_its_part(source: tuple[Any, Any], spec: Any, is_template: bool) -> None:
    given, tree = source
    mesh = jax.make_mesh((4,), ("x",))
    split = NamedSharding(mesh, PartitionSpec(*spec))
    whole = tree["model"]["layers"]["2"]["w"]
    only = {
        "model": {"layers": {"2": {"w": jax.ShapeDtypeStruct((8, 8), np.float32, sharding=split)}}}
    }
    where = {"select": "model/layers/2/w"}
    if is_template:
        found = treepack.load(given, only, **where)
    else:
        found = treepack.load(given, sharding=split, **where)
    found = found["model"]["layers"]["2"]["w"]
    assert found.sharding == split
    for shard in found.addressable_shards:
        assert np.array_equal(shard.data, whole[shard.index])


@tiers.examples(60)
@given(data=st.data())
def test_every_dtype_and_shape(data: st.DataObject) -> None:
    names = [name for name in SAFETENSORS if not name.startswith("complex")]
    dtypes = {name: np.dtype(getattr(ml_dtypes, name, name)) for name in names}
    flat = {}
    for at in range(data.draw(st.integers(0, 5))):
        dtype = dtypes[data.draw(st.sampled_from(names))]
        shape = tuple(data.draw(st.lists(st.integers(0, 4), max_size=4)))
        size = int(np.prod(shape)) * dtype.itemsize
        raw = data.draw(st.binary(min_size=size, max_size=size))
        if dtype.name == "bool":
            raw = bytes(byte & 1 for byte in raw)
        flat[f"{data.draw(st.sampled_from(['a', 'b.c', 'é/~']))}.{at}"] = np.frombuffer(
            raw, dtype
        ).reshape(shape)
    check_same(treepack.load(packed(flat)), nested(flat))


def packed(flat: dict[str, np.ndarray]) -> bytes:
    """The bytes of a file, written here, because safetensors' writer lacks some dtypes of NumPy."""
    header, offset = {}, 0
    for name, array in flat.items():
        header[name] = {
            "dtype": SAFETENSORS[array.dtype.name],
            "shape": array.shape,
            "data_offsets": [offset, offset := offset + array.nbytes],
        }
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(it.tobytes() for it in flat.values())


def test_what_safetensors_writes_is_what_is_read(tmp_path: Path) -> None:
    path = file_at(tmp_path)
    found = treepack.load(path)
    with safetensors.safe_open(path, "numpy") as file:
        for name in arrays():
            if name != "model.embed":  # NumPy's reader there has no bfloat16
                leaf = found
                for key in name.split("."):
                    leaf = leaf[key]
                assert np.array_equal(leaf, file.get_tensor(name))


def test_an_open_file_can_be_pickled(tmp_path: Path) -> None:
    for path in (file_at(tmp_path), write_repository(tmp_path / "it", has_index=True)):
        with treepack.open(path) as file:
            again = pickle.loads(pickle.dumps(file))
        with again:
            assert again["model/layers/1/w"][0, 0] == 1


def test_a_file_that_is_overwritten_is_noticed(tmp_path: Path) -> None:
    path = file_at(tmp_path)
    with treepack.open(path) as file:
        other = {name: array + 1 for name, array in arrays().items() if name.startswith("model.l")}
        safetensors.numpy.save_file(other | {"more": np.zeros(99)}, tmp_path / "other")
        shutil.copyfile(tmp_path / "other", path)
        with pytest.raises(CorruptionError):
            np.asarray(file["model/layers/2/w"])


@pytest.mark.skipif(sys.platform != "linux", reason="it lists mappings")
@pytest.mark.parametrize("mmap", [True, False])
def test_files_are_mapped_only_on_request(tmp_path: Path, mmap: bool) -> None:
    folder = write_repository(tmp_path / "it", has_index=True)
    for path in (folder, next(folder.glob("*.safetensors"))):
        loaded = treepack.load(path, mmap=mmap)
        maps = Path("/proc/self/maps").read_text()
        assert (str(path) in maps) == mmap
        if path == folder:
            check_same(loaded, nested(arrays()))
        del loaded


def test_an_index_without_files_is_damage(tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {}}))
    with pytest.raises(DecodeError, match="the directory has no safetensors file"):
        treepack.load(tmp_path)
    assert "has no safetensors file" in str(treepack.verify(tmp_path).damage)


def test_what_is_wrong_with_a_repository(tmp_path: Path) -> None:
    folder = write_repository(tmp_path / "it", has_index=True)
    index = json.loads((folder / INDEX).read_text())
    first, second = sorted(set(index["weight_map"].values()))

    def says(text: str, files: Any) -> None:
        content = files if isinstance(files, str) else json.dumps({"weight_map": files})
        (folder / INDEX).write_text(content)
        with pytest.raises(DecodeError, match=text):
            treepack.load(folder)

    says("model.safetensors.index.json is not an index of safetensors", "{")
    says("weight_map", "{}")
    says("a map of strings to strings", {"a": 3})
    says(
        "names ../secret.safetensors, which is not in the directory", {"a": "../secret.safetensors"}
    )
    says(rf"the array is not in {first}, where the index has it \(at nothing\)", {"nothing": first})
    (folder / INDEX).write_text(json.dumps({"weight_map": {"step": second}}))
    assert [*treepack.load(folder)] == ["step"]  # the index counts
    (folder / INDEX).unlink()
    if hasattr(os, "mkfifo"):
        os.mkfifo(folder / INDEX)
        with pytest.raises(DecodeError, match=r"index\.json is not a regular file"):
            treepack.load(folder)
        (folder / INDEX).unlink()
    for name in (first, second):
        (folder / name).rename(folder / f"unet.{name}")
    shutil.copyfile(folder / f"unet.{first}", folder / "copy.safetensors")
    text = r"the array is in two files: copy\.safetensors and .*: load one of them by its path"
    with pytest.raises(DecodeError, match=text):
        treepack.load(folder)
    (folder / "copy.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ...")
    with pytest.raises(DecodeError, match=r"copy\.safetensors"):
        treepack.open(folder)


def test_an_adapter_is_not_a_part_of_the_model_beside_it(tmp_path: Path) -> None:
    safetensors.numpy.save_file({"lora_A": np.zeros(1)}, tmp_path / "adapter_model.safetensors")
    assert list(treepack.load(tmp_path)) == ["lora_A"]
    safetensors.numpy.save_file({"w": np.ones(3)}, tmp_path / "consolidated.safetensors")
    assert list(treepack.load(tmp_path)) == list(treepack.abstract(tmp_path)) == ["w"]
    assert [*treepack.verify(tmp_path).leaves] == ["w"]
    assert list(treepack.load(tmp_path / "adapter_model.safetensors")) == ["lora_A"]


@pytest.mark.parametrize("has_index", [True, False])
def test_hidden_files_and_other_models_beside_it(tmp_path: Path, has_index: bool) -> None:
    """Such as macOS writes on exFAT, adapters, and files of other layouts or precisions."""
    folder = write_repository(tmp_path / "it", has_index=has_index)
    junk = b"\0\5\x16\7\0\2\0\0Mac OS X"
    for name in ("._model-00001-of-00002.safetensors", f"._{INDEX}", ".#model.safetensors"):
        (folder / name).write_bytes(junk)
    for name in ("adapter_model", "consolidated", "model.fp16"):
        safetensors.numpy.save_file({"step": np.zeros(1)}, folder / f"{name}.safetensors")
    fp16 = {"weight_map": {"step": "model.fp16.safetensors"}}
    (folder / "model.fp16.safetensors.index.json").write_text(json.dumps(fp16))
    other = folder / "model.fp16.safetensors.index.json"
    if has_index:
        check_same(treepack.load(folder), nested(arrays()))
        check_same(treepack.load(folder / INDEX), nested(arrays()))
    else:
        assert treepack.load(folder)["step"].shape == (1,)  # the only index counts
        other.unlink()
        check_same(treepack.load(folder), nested(arrays()))
        other.write_text(json.dumps(fp16))
    assert treepack.load(other)["step"].shape == (1,)
    assert treepack.load(folder / "adapter_model.safetensors")["step"].shape == (1,)
    (folder / INDEX).unlink(missing_ok=True)
    (folder / "a.safetensors.index.json").write_text(json.dumps(fp16))
    with pytest.raises(DecodeError, match=r"several indices: a\..*: load one of them by its path"):
        treepack.open(folder)
    file_at(folder)
    check_same(treepack.load(folder), nested(arrays()))
    assert "float32" in call("ls", str(folder))
    for file in folder.glob("[am]*.index.json"):
        file.unlink()
    treepack.save(folder, {"a": np.ones(3)}, format="safetensors")


def test_parts_in_a_folder(tmp_path: Path) -> None:
    folder = write_repository(tmp_path / "it", has_index=True)
    index = json.loads((folder / INDEX).read_text())
    parts = folder / "parts"
    parts.mkdir()
    for file in folder.glob("*.safetensors"):
        file.rename(parts / file.name)
    with pytest.raises(DecodeError, match=r"names model-0.*, which is not in the directory"):
        treepack.load(folder)
    files = {name: f"parts/{file}" for name, file in index["weight_map"].items()}
    (folder / INDEX).write_text(json.dumps({"weight_map": files}))
    check_same(treepack.load(folder), nested(arrays()))


def test_functions_for_treepacks_bytes_name_the_one_that_reads_it(tmp_path: Path) -> None:
    path = file_at(tmp_path)
    for read in (
        lambda: treepack.loads(path.read_bytes()),
        lambda: serialization.from_bytes(arrays(), path.read_bytes()),
        lambda: serialization.load_from_file(None, path),
    ):
        with pytest.raises(DecodeError, match=r"treepack\.load"):
            read()


def test_damage_is_what_safetensors_would_say(tmp_path: Path) -> None:
    path = file_at(tmp_path)
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:40], b"\xff" * 20, whole.replace(b"[8,8]", b"[8,9]", 1)):
        path.write_bytes(damaged)
        with pytest.raises(safetensors.SafetensorError):
            safetensors.numpy.load_file(path)
        found = treepack.verify(path)
        assert not found.ok
        assert found.damage
        assert not treepack.is_checkpoint(path)
        with pytest.raises(DecodeError) as error:
            treepack.load(path)
        assert str(error.value.reason) in found.damage


NAMES = ["l.weight", "l.weight.absmax", "l.weight.state.nf4", "l.bias", "n.weight", "n.w.x", "n"]

SPLIT = {
    "l": {"weight": 0, "weight.absmax": 1, "weight.state.nf4": 2, "bias": 3},
    "n.weight": 4,
    "n.w.x": 5,
    "n": 6,
}


@pytest.mark.parametrize("kind", ["file", "repository", "npz"])
def test_a_name_that_begins_another(tmp_path: Path, kind: str) -> None:
    """As in quantized repositories: the longer name keeps its rest as one key."""
    flat = {name: np.array([at], np.float32) for at, name in enumerate(NAMES)}
    tree = jax.tree.map(lambda at: np.array([at], np.float32), SPLIT)
    path = tmp_path / "model.safetensors"
    if kind == "repository":
        path = write_repository(tmp_path / "it", has_index=True, flat=flat)
    elif kind == "npz":
        path = tmp_path / "it.npz"
        np.savez(path, **flat)
    else:
        safetensors.numpy.save_file(flat, path)
    check_same(treepack.load(path), tree)
    check_same(treepack.load(path, tree), tree)
    check_same(treepack.load(path, flat), flat)
    check_same(treepack.load(path, {"l.bias": flat["l.bias"]}), {"l.bias": flat["l.bias"]})
    assert treepack.verify(path).ok
    assert treepack.load(path, select="l/weight.*")["l"].keys() == {
        "weight.absmax",
        "weight.state.nf4",
    }
    moved = treepack.load(path, {"q": flat["n"]}, mapping={"q": "l/weight.absmax"})
    assert moved["q"] == 1
    with treepack.open(path) as file:
        assert file["l/weight"][0] == 0
        assert file["l/weight.absmax"][0] == 1
        for name, (_, array) in zip(sorted(flat), sorted(file.leaves()), strict=True):
            assert array[:].tolist() == np.asarray(array).tolist() == flat[name].tolist()
    assert "weight.state.nf4" in call("ls", str(path))
    for saved in (treepack.load(path), flat):
        treepack.save(tmp_path / "again.safetensors", saved)
        again = safetensors.numpy.load_file(tmp_path / "again.safetensors")
        check_same(again, dict(sorted(flat.items())))


def test_a_name_with_many_parts_keeps_the_last_as_one_key() -> None:
    name = ".".join("a" * 2000)
    found = treepack.load(packed({name: np.ones(2, np.float32)}))
    keys = []
    while isinstance(found, dict):
        [(key, found)] = found.items()
        keys.append(key)
    assert ".".join(keys) == name
    assert found.tolist() == [1, 1]


def test_the_beginnings_of_a_long_name_are_not_made(tmp_path: Path) -> None:
    """They would be 1 TB, and take minutes."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(packed({"a." * 2**20: np.ones(2, np.float32), "a": np.zeros(1, np.float32)}))
    for source in (path, tmp_path):
        assert treepack.verify(source).ok
        assert sorted(map(np.size, jax.tree.leaves(treepack.load(source)))) == [1, 2]


@pytest.mark.parametrize("before", [b" ", b"\n\t\r "])
def test_white_space_before_the_header(tmp_path: Path, before: bytes) -> None:
    data = packed({"a": np.ones(2, np.float32)})
    size = struct.unpack("<Q", data[:8])[0] + len(before)
    data = struct.pack("<Q", size) + before + data[8:]
    assert safetensors.numpy.load(data)["a"].tolist() == [1, 1]
    (tmp_path / "model").write_bytes(data)
    for source in (data, tmp_path / "model"):
        assert treepack.load(source)["a"].tolist() == [1, 1]


def test_unknown_dtypes_are_left_out_beside_empty_containers() -> None:
    tree = {"e": {}, "v": np.ones(2), "w": np.ones(3, np.float32)}
    data = treepack.dumps(tree).replace(b"float32", b"floatXX")
    template = {"e": {}, "v": np.zeros(2)}
    loaded = treepack.open(data).load(template, unexpected="ignore")
    assert loaded["e"] == {}
    np.testing.assert_array_equal(loaded["v"], tree["v"])


PIPE = ["pipe"] if hasattr(os, "mkfifo") else []  # Windows has none


@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("harm", ["header", "index", "missing", "link", "name", *PIPE])
def test_leaves_of_undamaged_parts(tmp_path: Path, harm: str, has_index: bool) -> None:
    tree = {name: np.ones(300, np.float32) for name in "abc"}
    folder = tmp_path / "model"
    treepack.save(folder, tree, format="safetensors", max_shard_size=2000)
    index = json.loads((folder / INDEX).read_text())
    part = folder / index["weight_map"]["b"]
    named, left = part.name, {"a", "c"}
    if harm == "header":
        part.write_bytes(b"\0" + part.read_bytes()[1:])
    elif harm == "index":
        (folder / INDEX).write_bytes(b"{")
        named, left = INDEX, {*"abc"}
    elif harm == "name":
        index["weight_map"]["d"] = part.name
        (folder / INDEX).write_text(json.dumps(index))
        left = {*"abc"}
    else:
        part.unlink()
        if harm == "pipe":
            os.mkfifo(part)
        if harm == "link":  # huggingface_hub's cache has links
            part.symlink_to("removed")
    if not has_index:
        if left != {"a", "c"}:
            return  # only an index can be damaged so
        (folder / INDEX).unlink()
    with pytest.raises(DecodeError, match=named):
        treepack.load(folder)
    found = treepack.verify(folder)
    assert (found.ok, {*found.leaves}) == (False, left)
    assert named in str(found.damage)
    assert str(found.damage).count("(") <= 1  # it has its place once
    with treepack.open(folder, salvage=True) as file:
        assert {*file} == left
        assert named in str(file.damage)
        assert {*file.unverified} == left
        np.testing.assert_array_equal(file["a"], tree["a"])
    with pytest.warns(UserWarning, match=named):
        check_same(treepack.load(folder, on_corrupt="skip"), {name: tree[name] for name in left})
    assert named in call("salvage", str(folder), str(tmp_path / "rest.treepack"), status=1)
    check_same(treepack.load(tmp_path / "rest.treepack"), {name: tree[name] for name in left})


@pytest.mark.parametrize("form", ["file", "data", "index", "no index", "gzip"])
def test_arrays_before_the_end_of_a_truncated_file(tmp_path: Path, form: str) -> None:
    """Also where a byte is added. Others are named."""
    tree = {name: np.full(10, number, np.float64) for number, name in enumerate("abcd")}
    tree["e"] = np.zeros(0)
    path = tmp_path / "x.safetensors"
    treepack.save(path, tree)
    if form in ("index", "no index"):
        path = write_repository(tmp_path / "folder", has_index=form == "index", flat=tree)
    for file in sorted(path.glob("model-*")) if path.is_dir() else [path]:
        whole = file.read_bytes()
        start = 8 + int.from_bytes(whole[:8], "little")
        entries = json.loads(whole[8:start])
        entries.pop("__metadata__", None)
        ends = {name: entry["data_offsets"][1] for name, entry in entries.items()}
        for size in (start, start + 80, start + 81, len(whole) - 1, len(whole) + 1):
            data = whole[:size] + b"?" * (size - len(whole))
            file.write_bytes(data)
            source: Any = path
            if form == "data":
                source = data
            elif form == "gzip":
                source = tmp_path / "x.gz"
                source.write_bytes(gzip.compress(data))
            lost = sorted((name for name in ends if start + ends[name] > size), key=ends.get)
            left = {name: tree[name] for name in tree if name not in lost}
            with pytest.raises(DecodeError, match="the arrays end at byte"):
                treepack.load(source)
            found = treepack.verify(source)
            assert (found.ok, {*found.leaves}) == (False, {*left})
            assert (f", without all bytes of {', '.join(lost)}" in str(found.damage)) == bool(lost)
            with treepack.open(source, salvage=True) as opened:
                assert {*opened} == {*opened.unverified} == {*left}
                for name, array in left.items():
                    np.testing.assert_array_equal(opened[name], array)
            if left:
                with pytest.warns(UserWarning, match="the arrays end at byte"):
                    check_same(treepack.load(source, on_corrupt="skip"), left)
        file.write_bytes(whole)


def test_repositories_without_an_undamaged_part(tmp_path: Path) -> None:
    for has_index in (True, False):
        folder = write_repository(tmp_path / f"{has_index}", has_index=has_index)
        parts = [*folder.glob("model-*")]
        for part in parts:
            part.write_bytes(bytes(99))
        found = treepack.verify(folder)
        assert not found.leaves
        assert all(part.name in str(found.damage) for part in parts)
        with pytest.raises(DecodeError, match=parts[0].name):
            treepack.open(folder, salvage=True)


@pytest.mark.parametrize("kind", ["data", "file", "directory", "URL"])
def test_packed_elements_are_bytes(tmp_path: Path, kind: str) -> None:
    header = {
        "a.x": {"dtype": "F4", "shape": [2, 4], "data_offsets": [0, 4]},
        "a.y": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
        "z": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [12, 15]},
    }
    text = json.dumps(header).encode()
    data = struct.pack("<Q", len(text)) + text + bytes(15)
    assert len(safetensors.deserialize(data)) == 3
    (tmp_path / "model.safetensors").write_bytes(data)
    fsspec.filesystem("memory").pipe(f"/{tmp_path.name}/model.safetensors", data)
    source: Any = {
        "data": data,
        "file": tmp_path / "model.safetensors",
        "directory": tmp_path,
        "URL": f"memory://{tmp_path.name}",
    }[kind]
    y = np.zeros(2, np.float32)
    check_same(treepack.load(source, select="a/y"), {"a": {"y": y}})
    check_same(treepack.load(source, {"a": {"y": y}}), {"a": {"y": y}})
    check_same(treepack.load(source, {"q": y}, mapping={"q": "a/y"}), {"q": y})
    with treepack.open(source) as file:
        assert "F4_packed" in repr(file)
        assert file["a/x"].dtype.metadata == {"treepack.packed": "F4_packed"}
    found = treepack.load(source)
    assert found["a"]["x"].tobytes() == data[-15:-11]
    assert found["z"].tobytes() == data[-3:]
    assert found["z"].dtype.metadata == {"treepack.packed": "F6_E2M3_packed"}
    check_same(found["a"]["y"], y)
    assert treepack.verify(source).ok
    assert treepack.abstract(source)["a"]["x"].shape == (4,)
    template = {"a": {"x": found["a"]["x"], "y": y}}
    check_same(treepack.load(source, template), template)
    assert not treepack.diff(source, source)
    [changed] = treepack.diff(source, {**found, "z": np.zeros(3, np.int8)})
    assert (changed.kind, changed.text) == ("dtype", "F6_E2M3_packed and int8")
    with pytest.raises(MismatchError, match=r"a/x: expected float64\[2,4\]"):
        treepack.load(source, {"a": {"x": np.zeros((2, 4)), "y": y}})


@pytest.mark.parametrize(
    ("kind", "shape", "nbytes"), [("F32", [1] * 65, 4), ("F64", [0, 1 << 60], 0)]
)
def test_arrays_that_numpy_lacks_are_bytes(
    tmp_path: Path, kind: str, shape: list[int], nbytes: int
) -> None:
    header = {
        "wide": {"dtype": kind, "shape": shape, "data_offsets": [0, nbytes]},
        "x": {"dtype": "F32", "shape": [1], "data_offsets": [nbytes, nbytes + 4]},
    }
    text = json.dumps(header).encode()
    data = struct.pack("<Q", len(text)) + text + bytes(range(nbytes + 4))
    assert len(safetensors.deserialize(data)) == 2
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    for source in (path, tmp_path, data):
        assert treepack.verify(source).ok
        found = treepack.load(source)
        assert found["wide"].tobytes() == bytes(range(nbytes))
        assert found["wide"].dtype.metadata == {"treepack.packed": f"{kind}_packed"}
        assert found["x"].tobytes() == data[-4:]
        assert not treepack.diff(source, found)
    assert f"{kind}_packed[{nbytes}]" in call("ls", str(path))
    call("show", str(path), "wide")
    call("convert", str(path), str(tmp_path / "new.treepack"))
    assert not treepack.diff(path, tmp_path / "new.treepack")
    call("convert", str(path), str(tmp_path / "new.treepack"), "--sep", "/")
    with pytest.raises(UnserializableLeafError, match=f"dtype {kind}_packed: save its bytes"):
        treepack.save(tmp_path / "again.safetensors", found)


def test_commands(source: tuple[Any, Any], tmp_path: Path) -> None:
    given, tree = source
    if not isinstance(given, (str, Path)):
        pytest.skip("commands take paths")
    assert "float32[8,8]" in call("ls", str(given))
    assert "unchecked" in call("verify", str(given))
    assert "bfloat16" not in call("show", str(given), "mask")
    assert "0 of" in call("diff", str(given), str(given))
    call("get", str(given), "model/layers/2/w", str(tmp_path / "part.treepack"))
    assert np.array_equal(
        treepack.load(tmp_path / "part.treepack"), tree["model"]["layers"]["2"]["w"]
    )
    call("convert", str(given), str(tmp_path / "all.treepack"))
    check_same(treepack.load(tmp_path / "all.treepack"), tree)


@pytest.mark.parametrize("count", [1, 3])
def test_max_size_bounds_compressed_files_together(count: int, tmp_path: Path) -> None:
    for number in range(count):
        name = f"model-{number + 1:05}-of-{count:05}.safetensors"
        treepack.save(tmp_path / name, {f"w{number}": np.zeros(5000)})
        data = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(gzip.compress(data))
    paths = [tmp_path, tmp_path / name] if count == 1 else [tmp_path]
    for path in paths:
        for read in (treepack.load, treepack.open, treepack.abstract, treepack.verify):
            read(path, max_size=count * 41_000)
            with pytest.raises(treepack.TreepackError, match="max_size="):
                read(path, max_size=count * 40_000)


def test_the_names_of_a_file_are_paths(tmp_path: Path) -> None:
    arrays = {"l.weight": np.ones((2, 3)), "l.deep.bias": np.zeros(3), "x": np.ones(1)}
    safetensors.numpy.save_file(arrays, tmp_path / "n.safetensors")
    np.savez(tmp_path / "n.npz", **arrays)
    for name in ("n.safetensors", "n.npz"):
        with treepack.open(tmp_path / name) as file:
            for key, array in arrays.items():
                np.testing.assert_array_equal(file[key][...], array)
                assert key in file
            assert file["l"]["deep.bias"].shape == file.get("l.deep.bias").shape == (3,)
            assert "l.deep.weight" not in file
            with pytest.raises(KeyError, match=r"l\.deep\.weight"):
                file["l.deep.weight"]
    treepack.save(tmp_path / "n", {"l": {"weight": 1}})
    with treepack.open(tmp_path / "n") as file:
        assert "l.weight" not in file  # its names are paths


@pytest.mark.parametrize("suffix", ["safetensors", "npz"])
def test_a_flat_target_with_the_names_of_the_file_needs_no_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    """One for each leaf takes fifty times as long."""
    path = tmp_path / f"x.{suffix}"
    names = ["l.1.w", "l.0.w", "l.0.b", "head"]
    arrays = {name: np.full(3, at, np.float32) for at, name in enumerate(names)}
    if suffix == "npz":
        np.savez(path, **arrays)
    else:
        safetensors.numpy.save_file(arrays, path)
    target = {name: np.zeros(3, np.float32) for name in sorted(names)}
    with pytest.raises(treepack.MismatchError, match=r"\n  *l\.0\.w: expected float32\[2\]"):
        treepack.load(path, target | {"l.0.w": np.zeros(2, np.float32)})
    with pytest.raises(treepack.MismatchError, match=r"l\.1\.b"):
        treepack.load(path, target | {"l.1.b": np.zeros(2, np.float32)})
    with pytest.raises(treepack.TreepackError, match="head"):
        treepack.load(path, {"l.0.w": target["l.0.w"]}, unexpected="error")
    monkeypatch.setattr(load.MappedReader, "__init__", None)
    fewer = treepack.load(path, {"l.0.w": target["l.0.w"]})
    assert fewer["l.0.w"].tolist() == [1, 1, 1]
    more = treepack.load(path, target | {"l.1.b": np.full(2, 7.0)}, missing="target")
    assert more["l.1.b"].tolist() == [7, 7]
    assert more["l.1.w"].tolist() == [0, 0, 0]
    for like in (target, jax.eval_shape(lambda: jax.tree.map(jnp.asarray, target))):
        found = treepack.load(path, like)
        assert [*found] == [*like]
        assert all((found[name] == at).all() for at, name in enumerate(names))
