"""Copies of open files and their parts by `save`: what they keep, and what they refuse."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import treepack
import treepack.checkpoints
from treepack import CorruptionError, MismatchError, TreepackError


@treepack.register_dataclass(serialized_name="tests.copies.Layer")
@dataclasses.dataclass
class Layer:
    w: Any
    act: str = dataclasses.field(metadata={"static": True}, default="relu")


TREE: dict[str, Any] = {
    "layers": [Layer(np.arange(3000, dtype=np.float32)), Layer(np.ones(2, np.int8))],
    "opt": (jnp.ones((2, 3)), {"mu": np.full(4, 0.5)}),
    "step": 3,
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    treepack.save("saved.treepack", TREE, metadata={"epoch": 2})
    return tmp_path


def test_a_whole_file_is_copied_to_the_bit() -> None:
    with treepack.open("saved.treepack") as file:
        treepack.save("copy", file)
        assert Path("copy").read_bytes() == Path("saved.treepack").read_bytes()
        treepack.save("copy.gz", file)
    assert isinstance(treepack.load("copy.gz")["layers"][0], Layer)
    assert treepack.read_metadata("copy.gz") == {"epoch": 2}
    with treepack.open("copy.gz") as file:
        treepack.save("copy", file)
    assert Path("copy").read_bytes() == Path("saved.treepack").read_bytes()


def test_a_copy_for_flax_is_what_flax_writes() -> None:
    tree = {"a": {"w": np.ones(3, np.float32)}, "n": 1}
    treepack.save("plain.treepack", tree)
    with treepack.open("plain.treepack") as file:
        treepack.save("plain.msgpack", file, align=1)
    assert Path("plain.msgpack").read_bytes() == flax.serialization.to_bytes(tree)
    with treepack.open("plain.msgpack") as file:  # the suffix decides, or else the file
        treepack.save("copy", file, align=1)
        treepack.save("copy.treepack", file)
    assert Path("copy").read_bytes() == Path("plain.msgpack").read_bytes()
    assert not treepack.verify("copy.treepack").unchecked


@pytest.mark.parametrize("suffix", [".treepack", ".treepack.gz"])
def test_lists_of_an_archive_stay_lists(suffix: str) -> None:
    np.savez("names.npz", **{"a.names": np.array(["x", "y"]), "a.w": np.ones(2)})
    with treepack.open("names.npz") as file:
        treepack.save(f"copy{suffix}", file)
    assert treepack.load(f"copy{suffix}")["a"]["names"] == ["x", "y"]
    assert not treepack.diff("names.npz", f"copy{suffix}")
    assert treepack.verify(f"copy{suffix}").ok


def test_parts_become_dicts() -> None:
    with treepack.open("saved.treepack") as file:
        treepack.save("part", file["opt"])
        treepack.save("more", file, select=["layers", "step"], exclude="layers/1")
        assert treepack.read_metadata("part") is None
        assert treepack.read_metadata("more") == {"epoch": 2}
        with pytest.raises(TreepackError, match="select matches nothing in the file: none"):
            treepack.save("none", file, select="none")
        with pytest.raises(TreepackError, match="exclude matches nothing in the file: none"):
            treepack.save("none", file, exclude="none")
    jax.tree.map(np.testing.assert_array_equal, treepack.load("part", TREE["opt"]), TREE["opt"])
    found = treepack.load("more")
    assert found.keys() == {"layers", "step"}
    np.testing.assert_array_equal(found["layers"]["0"]["w"], TREE["layers"][0].w)
    assert not Path("none").exists()


def test_exclude_is_the_rest_of_select() -> None:
    treepack.save("one", TREE, select=["opt", "step"])
    treepack.save("other", TREE, exclude=["layers"])
    assert Path("one").read_bytes() == Path("other").read_bytes()
    with pytest.raises(ValueError, match="exclude= requires a tree"):
        treepack.save("it", iter([("a", 1)]), exclude="a")


def test_floats_are_cast_to_a_dtype() -> None:
    with treepack.open("saved.treepack") as file:
        treepack.save("small", file, dtype="bfloat16")
        treepack.save("part", file["opt"], dtype=jnp.float16)
    found = treepack.load("small")
    assert isinstance(found["layers"][1], Layer)
    assert [np.asarray(leaf).dtype.name for leaf in jax.tree.leaves(found)] == [
        *("bfloat16", "int8", "bfloat16", "bfloat16", "int64"),
    ]
    with pytest.raises(MismatchError, match="bfloat16"):
        treepack.load("small", TREE)
    treepack.load("small", TREE, cast=True)
    assert treepack.load("part")["1"]["mu"].dtype == np.float16
    with pytest.raises(ValueError, match="of a tree are cast before"):
        treepack.save("small", TREE, dtype="bfloat16")


@pytest.mark.parametrize("separator", [".", "/", "::"])
def test_other_formats_have_names(separator: str) -> None:
    flat = {
        f"opt{separator}0": TREE["opt"][0],
        f"opt{separator}1{separator}mu": TREE["opt"][1]["mu"],
    }
    with treepack.open("saved.treepack") as file:
        for name in ("new.safetensors", "new.npz"):
            treepack.save(name, file, select="opt", separator=separator)
    with np.load("new.npz") as archive:
        for found in (dict(archive), safetensors.numpy.load_file("new.safetensors")):
            assert found.keys() == flat.keys()
            for key, array in flat.items():
                np.testing.assert_array_equal(found[key], array)
    with safetensors.safe_open("new.safetensors", "numpy") as opened:
        assert opened.metadata() == {"epoch": "2"}
    treepack.save("tree.safetensors", {"opt": {"0": flat[f"opt{separator}0"]}}, separator=separator)
    assert [*safetensors.numpy.load_file("tree.safetensors")] == [f"opt{separator}0"]


def test_intact_leaves_of_a_damaged_file_are_copied() -> None:
    data = bytearray(Path("saved.treepack").read_bytes())
    data[data.index(np.full(4, 0.5).tobytes())] ^= 1
    Path("bad").write_bytes(data)
    with treepack.open("bad") as file:
        with pytest.raises(CorruptionError, match="'bad': opt/1/mu is damaged"):
            treepack.save("copy", file)
        treepack.save("copy", file, exclude="opt/1")
    with treepack.open("bad", salvage=True) as file:
        treepack.save("rest", file)
    assert [path for path, _ in treepack.open("rest").leaves()] == [
        *("layers/0/w", "layers/1/w", "opt/0", "step"),
    ]


SAVES: dict[str, Callable[[Any], object]] = {
    "file": lambda tree: treepack.save("new", tree),
    "background": lambda tree: treepack.save("new", tree, background=True).result(),
    "gzip": lambda tree: treepack.save("new", tree, compress=True),
    "numbers": lambda tree: treepack.save("new", tree, compress="numbers"),
    "flax": lambda tree: treepack.save("new.msgpack", tree),
    "iterator": lambda tree: treepack.save("new", iter(tree.items())),
    "patch": lambda tree: treepack.save("new", tree, base={"x": np.zeros(4)}),
    "sharded": lambda tree: treepack.save("new/it", tree, sharded=True),
    "safetensors": lambda tree: treepack.save("new.safetensors", tree),
    "repository": lambda tree: treepack.save("new/it", tree, format="safetensors"),
    "mapping": lambda tree: treepack.save("new", tree, mapping={"x": ("y", "a -> a")}),
    "dumps": treepack.dumps,
    "to_bytes": treepack.serialization.to_bytes,
    "buffers": treepack.buffers,
    "pack_into": lambda tree: treepack.pack_into(tree, bytearray(9999)),
    "stream": lambda tree: treepack.write_stream("new", tree.items()),
    "series": lambda tree: treepack.Series("new").save(1, tree),
    "fast": lambda tree: treepack.Series("new", fast="new/fast").save(1, tree),
    "links": lambda tree: treepack.Series("new", unchanged="link").save(1, tree),
    "publisher": lambda tree: treepack.Publisher("new").push(tree, version=1),
    "checkpoints": lambda tree: treepack.checkpoints.save_checkpoint("new", tree, 1),
    "digest": treepack.digest,
}


@pytest.mark.parametrize("save", SAVES.values(), ids=SAVES)
def test_no_save_takes_a_damaged_array_of_an_open_file(save: Callable[[Any], object]) -> None:
    data = bytearray(Path("saved.treepack").read_bytes())
    data[data.index(np.full(4, 0.5).tobytes())] ^= 1
    Path("bad").write_bytes(data)
    with treepack.open("bad") as file, pytest.raises(CorruptionError, match="damaged"):
        save({"x": file["opt/1/mu"]})
    files = {path.name for path in Path().rglob("*") if path.is_file()}
    assert files <= {"saved.treepack", "bad", "fast.treepack"}  # which names the run
    with treepack.open("saved.treepack") as file:
        save({"x": file["opt/1/mu"]})


def test_options_that_an_open_file_has_no_use_for() -> None:
    with treepack.open("saved.treepack") as file:
        for name, given in (
            *(("background", True), ("sharded", True)),
            *(("base", {"a": 1}), ("metadata", {"a": 1})),
        ):
            options: Any = {name: given}
            cure = r"leave it out, or save file\.load\(\)"
            with pytest.raises(ValueError, match=f"{name}= does not apply to an open file: {cure}"):
                treepack.save("copy", file, **options)
        with pytest.raises(ValueError, match="apply only to msgpack"):
            treepack.save("copy.npz", file, compress=True)
        with pytest.raises(TypeError, match="separator must be a text"):
            treepack.save("copy.npz", file, separator=1)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"cannot write msgpack to a \.pt file"):
            treepack.save("copy.pt", file)
    assert {path.name for path in Path().iterdir()} == {"saved.treepack"}


@pytest.mark.parametrize("suffix", [".npz", ".npy"])
@pytest.mark.parametrize("options", [{}, {"separator": "/"}, {"select": "a"}])
def test_arrays_of_numpy_are_saved_from_an_open_file(suffix: str, options: Any) -> None:
    """The error for a tree has a call that works."""
    for tree in ({"a": {"w": np.ones(3)}}, np.ones(3), iter([("a/w", np.ones(3))])):
        if "select" in options and not isinstance(tree, dict):
            continue
        with pytest.raises(ValueError, match=f"cannot write msgpack to a {suffix} file") as caught:
            treepack.save(f"new{suffix}", tree, **options)
        assert f"treepack.save('new{suffix}', file)" in str(caught.value)
    assert not Path(f"new{suffix}").exists()
    treepack.save("new.treepack", np.ones(3) if suffix == ".npy" else {"a": {"w": np.ones(3)}})
    with treepack.open("new.treepack") as file:
        treepack.save(f"new{suffix}", file)
    if suffix == ".npy":
        assert np.load("new.npy").tolist() == [1, 1, 1]
        return
    with np.load("new.npz") as archive:
        assert archive["a.w"].tolist() == [1, 1, 1]


def test_arrays_that_flax_cannot_read_are_not_written_for_it() -> None:
    np.savez("a.npz", w=np.ones(3), s=np.array([(1, 2.5)], [("t", "i8"), ("v", "f4")]))
    head = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
    head += b'"s":{"dtype":"F4","shape":[4],"data_offsets":[4,6]}}'
    Path("a.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + bytes(6))
    for name, dtype in (("a.npz", "NPY_packed"), ("a.safetensors", "F4_packed")):
        treepack.save("ours.treepack", treepack.load(name))
        with pytest.raises(TreepackError, match=f"at s: flax cannot read dtype {dtype}"):
            treepack.save("new.msgpack", treepack.load(name))
        for source in (name, "ours.treepack"):
            with treepack.open(source) as file:
                with pytest.raises(TreepackError, match=f"at s: flax cannot read dtype {dtype}"):
                    treepack.save("new.msgpack", file)
                treepack.save("new.msgpack", file, exclude="s")
                treepack.save("copy.treepack", file)
            flax_tree = flax.serialization.msgpack_restore(Path("new.msgpack").read_bytes())
            assert [*flax_tree] == ["w"]
            assert treepack.load("copy.treepack")["s"].dtype.metadata == {"treepack.packed": dtype}
