"""`treepack convert`, `get` and `salvage`: the files that they write."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import flax.serialization
import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy

import treepack.__main__
from commands import TREE, call, refused
from treepack import CorruptionError, TreepackError, serialization
from treepack._src.formats.safetensors.header import SAFETENSORS
from trees import ML_DTYPES


@pytest.mark.parametrize("gzip", ["--gzip", "--no-gzip"])
def test_conversions_keep_all(folder: Path, gzip: str) -> None:
    call("convert", "model", "new", gzip, "--align", "16")
    assert (Path("new").read_bytes()[:2] == b"\x1f\x8b") == (gzip == "--gzip")
    found = treepack.load("new")
    assert found["list"][1] == (1, "x")
    assert isinstance(found["list"][0], jax.Array)
    assert treepack.read_metadata("new") == {"epoch": 3}
    assert treepack.verify("new").ok
    assert not treepack.verify("new").unchecked
    call("convert", "new", "again", "--no-gzip")
    assert Path("again").read_bytes() == Path("model").read_bytes()
    # flax's files stay flax's.
    call("convert", "flax", "new", gzip, "--align", "1")
    call("convert", "new", "again", "--no-gzip", "--align", "1")
    assert Path("again").read_bytes() == Path("flax").read_bytes()


def test_other_formats(folder: Path) -> None:
    call("convert", "flax", "new.safetensors")
    flat = safetensors.numpy.load_file("new.safetensors")
    assert sorted(flat) == ["params.dense.bias", "params.dense.kernel", "params.scale", "step"]
    np.testing.assert_array_equal(flat["params.dense.kernel"], TREE["params"]["dense"]["kernel"])
    np.testing.assert_array_equal(flat["params.scale"], TREE["params"]["scale"])
    call("convert", "new.safetensors", "back")
    back = serialization.msgpack_restore(Path("back").read_bytes())
    assert back["params"]["scale"].dtype == ml_dtypes.bfloat16
    jax.tree.map(np.testing.assert_array_equal, back, TREE)
    call("convert", "flax", "new.npz", "--dtype", "float16", "--sep", "/")
    with np.load("new.npz") as archive:
        kernel = archive["params/dense/kernel"]
    assert kernel.dtype == np.float16
    np.testing.assert_array_equal(kernel, TREE["params"]["dense"]["kernel"].astype(np.float16))
    call("convert", "new.npz", "back", "--sep", "/", "--dtype", "float32")
    np.savez_compressed("packed.npz", a=np.arange(3), b=np.asfortranarray(np.ones((2, 3))))
    call("convert", "packed.npz", "back2")
    back = serialization.msgpack_restore(Path("back2").read_bytes())
    np.testing.assert_array_equal(back["b"], np.ones((2, 3)))
    # Of other writers.
    safetensors.numpy.save_file(
        {"a.b": np.arange(4, dtype=np.uint16)}, "hf.safetensors", metadata={"format": "np"}
    )
    call("convert", "hf.safetensors", "back3", "--gzip")
    assert treepack.open("back3")["a/b"][2] == 2


def test_safetensors_are_written_as_by_its_writer(folder: Path) -> None:
    names = [*SAFETENSORS]
    flat = {f"ä{at % 2}.{name}": np.ones(3, name) for at, name in enumerate(reversed(names))}
    flat |= {"b": np.ones((), np.float32), "a": np.ones((2, 0), np.float32)}
    metadata = {"z": "ö\n"}  # of several keys its writer has no order
    expected = safetensors.numpy.save(flat, metadata)
    for at, tree in enumerate([flat, dict(sorted(flat.items()))]):
        treepack.save(f"{at}", tree, metadata=metadata)
        call("convert", f"{at}", "new.safetensors", "--sep", "/")
        assert Path("new.safetensors").read_bytes() == expected


def test_parts(folder: Path) -> None:
    call("get", "model", "params/dense", "dense")
    found = flax.serialization.msgpack_restore(Path("dense").read_bytes())
    np.testing.assert_array_equal(found["kernel"], TREE["params"]["dense"]["kernel"])
    call("get", "model", "params/dense/kernel", "kernel", "--dtype", "bfloat16")
    assert serialization.msgpack_restore(Path("kernel").read_bytes()).dtype == ml_dtypes.bfloat16


def test_floats_in_lists_become_another_dtype(folder: Path) -> None:
    tree = {"list": [np.ones(300, np.float32), {"deeper": np.ones(2)}], "count": [np.arange(3)]}
    Path("lists").write_bytes(serialization.msgpack_serialize(tree))
    call("convert", "lists", "new", "--dtype", "bfloat16")
    new = serialization.msgpack_restore(Path("new").read_bytes())
    assert jax.tree.map(lambda it: it.dtype.name, new) == {
        "list": ["bfloat16", {"deeper": "bfloat16"}],
        "count": ["int64"],
    }


def test_floats_that_overflow_another_dtype_are_named(folder: Path) -> None:
    treepack.save("wide", {"a": {"b.c": [np.ones(2), np.full(3, 1e39)]}})
    text = refused("convert", "wide", "x", "--dtype", "float16")
    assert "overflow float16 at a/b.c/1 (at least 3)" in text
    assert "--dtype of a larger range" in text
    assert "cast=" not in text


def test_parts_of_a_part_are_left_out(folder: Path) -> None:
    with pytest.warns(UserWarning, match="leave out every leaf of the file"):
        call("get", "flax", "params", "part.treepack", "--skip", "dense/*", "--skip", "scale")
    assert treepack.load("part.treepack") == {}
    call("get", "flax", "params", "part.treepack", "--skip", "dense/kernel")
    assert sorted(dict(treepack.open("part.treepack").leaves())) == ["dense/bias", "scale"]
    assert "is it 'scale'" in refused("get", "flax", "params", "part.treepack", "--skip", "scael")


def test_what_cannot_be_converted(folder: Path) -> None:
    for command in (["convert", "flax"], ["get", "flax", "params"], ["salvage", "flax"]):
        assert ".pt file, " in refused(*command, "new.pt")
    for args, message in (
        (("convert", "model", "x.safetensors"), "at key: .*found PRNGKeyArray"),
        (("convert", "flax", "x.npz"), "bfloat16"),
        (("convert", "flax", "x", "--dtype", "int8"), "got int8"),
        (("convert", "flax", "x.npz", "--gzip"), "apply only to msgpack"),
        (("get", "model", "nothing", "x"), "nothing at nothing"),
        (("ls", "nothing-like-this://host/x"), "Protocol not known"),
    ):
        assert re.search(message, refused(*args))
    Path("bad.safetensors").write_bytes(b"\xff" * 20)
    assert "does not fit" in refused("convert", "bad.safetensors", "x", status=1)
    Path("keys").write_bytes(serialization.to_bytes({"a.b": np.ones(2), "a": {"b": 1.0}}))
    assert "choose another one with --sep" in refused("convert", "keys", "x.npz")
    treepack.save("large", {"n": 2**70})
    assert "at n: " in refused("convert", "large", "x.msgpack")
    names = ["bad.safetensors", "flax", "keys", "large", "model"]
    assert sorted(os.listdir()) == names  # noqa: PTH208


REFERENCES = [
    ("PLACEHOLDER://a.w", "of Orbax or T5X"),
    ("AGGREGATED://a.w", "of Orbax or T5X"),
    ("//GDAPlaceholder:a/w", "of flax"),
    (
        {"driver": "zarr", "kvstore": {"driver": "file", "path": "a.w"}, "dtype": "float32"},
        "of T5X",
    ),
]


@pytest.mark.parametrize(("leaf", "kind"), REFERENCES)
def test_references_to_other_files_are_no_values(folder: Path, leaf: Any, kind: str) -> None:
    """Those of older versions of Orbax and flax, and of T5X."""
    Path("checkpoint").write_bytes(serialization.to_bytes({"a": {"w": leaf}, "b": [leaf, 1]}))
    for args in (("convert", "checkpoint", "new"), ("get", "checkpoint", "a", "new")):
        text = refused(*args)
        assert f"{kind} " in text
        assert "'checkpoint': not all values are in the file" in text
        assert "are references" in text or "are specifications" in text
        assert not Path("new").exists()
    call("convert", "checkpoint", "new", "--skip", "a", "--skip", "b/0*")
    assert serialization.msgpack_restore(Path("new").read_bytes())["b"] == {"1": 1}


NAMES = [name for name in ("bcomplex32", "complex32") if hasattr(ml_dtypes, name)]


@pytest.mark.parametrize("name", NAMES)
def test_complex_numbers_of_ml_dtypes(folder: Path, name: str) -> None:
    array = np.asarray([3j, 3j], getattr(ml_dtypes, name))
    Path("complex").write_bytes(serialization.to_bytes({"w": array}))
    assert "|x| from  3 to 3" in call("show", "complex", "w")


@pytest.mark.parametrize("dtype", ML_DTYPES, ids=str)
def test_npz_has_no_dtypes_of_ml_dtypes(folder: Path, dtype: Any) -> None:
    Path("one").write_bytes(serialization.to_bytes({"w": np.zeros(3, dtype)}))
    with pytest.raises(treepack.TreepackError, match=f"npz .* {dtype.name}: "):
        call("convert", "one", "one.npz")


def damage(path: Path, leaf: str) -> None:
    """Changes the last bit of a leaf in a file."""
    with treepack.open(path) as file:
        place = file._at(leaf)
        end = place.catalog.leaf(place.value)[3]
    data = bytearray(path.read_bytes())
    data[end - 1] ^= 1
    path.unlink()  # which jax may have mapped
    path.write_bytes(data)


@pytest.mark.parametrize("leaf", ["params/dense/kernel", "step", "key"])
def test_damaged_leaves_are_not_copied(folder: Path, leaf: str) -> None:
    damage(Path("model"), leaf)
    damage(Path("model"), "params/scale")
    corrupt = treepack.verify("model").corrupt
    assert {*corrupt} == {leaf, "params/scale"}
    message = f"'model': {', '.join(corrupt)} are damaged: `treepack salvage` copies"
    for target in (["new"], ["new.msgpack"], ["new", "--gzip"], ["new", "--dtype", "float16"]):
        with pytest.raises(CorruptionError, match=message):
            call("convert", "model", *target)
        with pytest.raises(CorruptionError, match=message):
            call("get", "model", leaf, *target)
    for target in ("new.npz", "new.safetensors"):
        with pytest.raises(CorruptionError, match=message):
            call("get", "model", "params", target, "--dtype", "float32")
    assert not Path("new").exists()
    assert "are damaged" in refused("convert", "model", "new", status=1)
    call("get", "model", "params/dense/bias", "new")
    call("salvage", "model", "new", status=1)
    assert treepack.verify("new").ok
    call("convert", "model", "new", "--skip", leaf, "--skip", "params/scale")
    assert treepack.verify("new").ok


def test_what_msgpack_has_no_form_for_is_salvaged(folder: Path) -> None:
    treepack.save("large", {"big": 2**80, "text": "abc", "w": np.ones(3)})
    damage(Path("large"), "text")
    call("salvage", "large", "new", status=1)
    assert treepack.load("new")["big"] == 2**80
    call("get", "large", "big", "new")
    assert treepack.load("new") == 2**80


@pytest.mark.parametrize("sharded", [False, True])
def test_damaged_arrays_of_open_files_are_not_saved(folder: Path, sharded: bool) -> None:
    treepack.save("some", {"w": TREE["params"]["dense"]["kernel"]}, sharded=sharded)
    (path,) = Path("some").glob("*-00000.treepack") if sharded else [Path("some")]
    with treepack.open("some") as file:
        treepack.save("copy", dict(file))
    assert treepack.verify("copy").ok
    damage(path, "w")
    with treepack.open("some") as file:
        for options in ({}, {"compress": True}, {"compress": "numbers"}):
            with pytest.raises(CorruptionError, match=r"some.*damaged leaves: w"):
                treepack.save("new", dict(file), **options)  # type: ignore[arg-type]
        with pytest.raises(CorruptionError, match=r"some.*damaged leaves: w"):
            treepack.save("directory", dict(file), sharded=True)
        with pytest.raises(CorruptionError):
            treepack.save("new", iter(file.leaves()))
        with pytest.raises(CorruptionError):
            treepack.dumps(dict(file))
        for mapping in (None, {"w": ("w", "a b -> b a")}, {"w": ("w/{l}", "... -> l ...")}):
            with pytest.raises(CorruptionError):
                treepack.save("new.safetensors", dict(file), mapping=mapping)
        for options in ([], ["--map=w=w=a b -> b a"], ["--map=u/{l}=w=l b -> b"]):
            with pytest.raises(CorruptionError, match="w is damaged"):
                call("convert", "some", "new", *options)
    assert not Path("new").exists()


def test_salvage(folder: Path) -> None:
    data = Path("model").read_bytes()
    Path("cut").write_bytes(data[: len(data) // 2])
    text = call("salvage", "cut", "new", status=1)
    assert "damaged: the data ends" in text
    Path("flipped").write_bytes(data[:3000] + b"?" + data[3001:])
    assert "params/dense/kernel" in call("salvage", "flipped", "new", status=1)
    found = serialization.msgpack_restore(Path("new").read_bytes())
    assert list(found["params"]["dense"]) == ["bias"]
    assert found["step"] == 7
    call("salvage", "model", "new")
    assert Path("new").read_bytes() == data


def test_nothing_is_salvaged_of_other_files(folder: Path) -> None:
    Path("empty").write_bytes(b"")
    with zipfile.ZipFile("weights.pt", "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
    # Its first byte would be a map.
    Path("weights.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(3000))
    messages = {"empty": "(0 bytes)"}
    for name in ("empty", "weights.pt", "weights.h5"):
        message = messages.get(name, "looks like a")
        text = call("salvage", name, "new", status=1)
        assert message in text
        assert "nothing was written" in text
        with treepack.open(name, salvage=True) as file:
            assert len(file) == 0
        assert not Path("new").exists()


def test_safetensors_that_begin_like_a_map_are_salvaged_as_such(folder: Path) -> None:
    tensors = {"w": np.ones(30)} | {"n" * 30: np.ones(1)}
    data = safetensors.numpy.save(tensors)
    assert 0x80 <= data[0] < 0xA0
    for name in ("weights.safetensors", "weights"):
        Path(name).write_bytes(data)
        call("salvage", name, "new")
        assert treepack.load("new").keys() == tensors.keys()
        Path("new").unlink()


def test_references_are_no_leaves_to_salvage(folder: Path) -> None:
    tree = {"a": "PLACEHOLDER://a", "l": [{"driver": "zarr", "kvstore": "x"}], "w": np.ones(3)}
    Path("old").write_bytes(serialization.msgpack_serialize(tree))
    text = call("salvage", "old", "new", status=1)
    assert "left out, as not in the file: a are references" in text
    assert "left out, as not in the file: l/0 are specifications of T5X" in text
    assert "saved 1 leaf" in text
    assert list(treepack.load("new")) == ["w"]


LARGE = """
import numpy as np, treepack
treepack.save("large", {f"l{i}": np.full(1 << 22, i, np.float32) for i in range(20)}, durable=False)
"""


MEMORY = """
import sys
from pathlib import Path
from treepack._cli import app, output
import numpy as np, zipfile, json
def memory(field):
    return int(Path("/proc/self/status").read_text().split(field)[1].split()[1])
Path("/proc/self/clear_refs").write_text("5")  # what the process that started this one had
before = memory("VmRSS")
app(sys.argv[1:], standalone_mode=False)
print("MEMORY", memory("VmHWM") - before)
"""


@pytest.mark.campaign
def test_files_may_be_larger_than_memory(folder: Path) -> None:
    subprocess.run([sys.executable, "-c", LARGE], check=True)
    for args in (
        ("convert", "large", "large.safetensors"),
        ("convert", "large.safetensors", "again", "--dtype", "bfloat16"),
        ("convert", "large", "large.npz"),
        ("convert", "large", "packed", "--gzip"),
        ("get", "packed", "l3", "one"),
    ):
        command = [sys.executable, "-c", MEMORY, *args]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert int(done.stdout.split("MEMORY")[1]) < 150 << 10, args  # KiB, of 320 MiB
    assert treepack.open("again")["l7"][5] == 7
    assert safetensors.numpy.load_file("large.safetensors")["l7"][5] == 7
    assert treepack.open("one")["."][9] == 3


def test_names_that_other_formats_cannot_have(folder: Path) -> None:
    for tree, path, message in (
        ({"a": {"b": 1}, "ab": 2}, "new.safetensors", "two arrays"),
        ({"a": {"b": 1}, "ab": 2}, "new.npz", "two arrays"),
        ({"__metadata__": 1}, "new.safetensors", "__metadata__"),
        ({"a\0b": 1}, "new.npz", "no NUL"),
        ({"a" * 65_532: 1}, "new.npz", "at most"),
    ):
        treepack.save("old.treepack", tree)
        with pytest.raises(TreepackError, match=message):
            call("convert", "old.treepack", path, "--sep", "")
    treepack.save("old.treepack", {"a" * 65_531: 1})
    call("convert", "old.treepack", "new.npz")
    with np.load("new.npz") as archive:
        assert archive["a" * 65_531] == 1


def test_names_as_deep_as_trees(folder: Path) -> None:
    safetensors.numpy.save_file({".".join("a" * 511): np.ones(1)}, "deep.safetensors")
    call("convert", "deep.safetensors", "new", "--dtype", "float16")
    call("convert", "new", "new.npz")
    with np.load("new.npz") as archive:
        assert archive[".".join("a" * 511)].dtype == np.float16


# Layers


def write_layers(path: str) -> dict[str, np.ndarray]:
    flat = {
        f"model.layers.{at}.w": np.arange(6, dtype=np.float32).reshape(2, 3) + at
        for at in range(11)
    }
    flat["head.w"] = np.arange(8, dtype=np.float32).reshape(2, 4)
    flat["norm"] = np.ones(3, np.float32)
    safetensors.numpy.save_file(flat, path)
    return flat


@pytest.mark.parametrize("sep", [".", "/"])
def test_layers_are_stacked_and_split(folder: Path, sep: str) -> None:
    flat = write_layers("one.safetensors")
    if sep != ".":
        flat = {name.replace(".", sep): array for name, array in flat.items()}
        safetensors.numpy.save_file(flat, "one.safetensors")
    options = ("--map", "head/w=head/w=o i -> i o", "--map", "scale=norm", "--sep", sep)
    stack = ("--map", "w=model/layers/{l}/w=o i -> l i o")
    call("convert", "one.safetensors", "two.treepack", *stack, *options)
    loaded = treepack.load("two.treepack")
    assert loaded.keys() == {"w", "head", "scale"}
    expected = np.stack([flat[f"model{sep}layers{sep}{at}{sep}w"].T for at in range(11)])
    np.testing.assert_array_equal(loaded["w"], expected)
    np.testing.assert_array_equal(loaded["head"]["w"], flat[f"head{sep}w"].T)
    assert treepack.verify("two.treepack").ok
    options = ("--map", "head/w=head/w=o i -> i o", "--map", "norm=scale", "--sep", sep)
    split = ("--map", "model/layers/{l}/w=w=l i o -> o i")
    call("convert", "two.treepack", "back.safetensors", *split, *options)
    found = safetensors.numpy.load_file("back.safetensors")
    assert found.keys() == flat.keys()
    for name, array in flat.items():
        np.testing.assert_array_equal(found[name], array)
