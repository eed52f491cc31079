"""Files and directories that are not ours: each verb says what they are, and what to do."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import pickle
import re
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.serialization
import fsspec  # type: ignore[import-untyped]
import jax
import jax.numpy as jnp
import msgpack
import numpy as np
import pytest

import treepack
from treepack import serialization

TREE: dict[str, Any] = {"params": {"w": np.arange(6.0).reshape(2, 3)}, "step": 7}


def zipped(*names: str) -> bytes:
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w") as archive:
        for name in names:
            archive.writestr(name, b"content")
    return found.getvalue()


def npz() -> bytes:
    found = io.BytesIO()
    np.savez(found, w=np.ones(3))
    return found.getvalue()


def tarred() -> bytes:
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("params/w"))
    return found.getvalue()


def stream() -> bytes:
    """What the StreamingCheckpointer of EasyLM writes."""
    packer = msgpack.Packer()
    leaves = {("params", "w"): np.ones(3), ("params", "long" * 20, "b"): np.zeros(2)}
    return b"".join(
        packer.pack((key, flax.serialization.to_bytes(leaf))) for key, leaf in leaves.items()
    )


def exported() -> bytes:
    function = jax.jit(lambda tree: jax.tree.map(jnp.sin, tree))
    return bytes(jax.export.export(function)({"w": np.ones(3, np.float32)}).serialize())


# As `torch.save` begins without zip: the pickle of its magic number, and one of the version.
TORCH_LEGACY = pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2)

# As protobuf has `ir_version: 8, producer_name: "pytorch"`.
ONNX = b"\x08\x08\x12\x07pytorch\x1a\x052.1.0:\x05\n\x03abc"

FILES: dict[str, tuple[Callable[[], bytes] | bytes, str]] = {
    "pickle 0": (pickle.dumps(TREE, 0), "pickle"),
    "pickle 2": (pickle.dumps(TREE, 2), "pickle"),
    "pickle 5": (pickle.dumps(TREE, 5), "pickle"),
    "small pickle": (pickle.dumps(None, 4), "pickle"),
    "torch": (zipped("archive/data.pkl", "archive/version"), "PyTorch: load it with torch"),
    "legacy torch": (TORCH_LEGACY, "PyTorch: load it with torch"),
    "keras": (zipped("metadata.json", "model.weights.h5"), "Keras"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(40), "HDF5 file, such as weights of Keras"),
    "zip": (zipped("a.txt"), "zip archive: unpack it"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", "git lfs pull"),
    "html": (b"\n<html><body>404</body></html>", "HTML page"),
    "xml": (b"<?xml version='1.0'?><Error/>", "XML document"),
    "json": (b'{\n  "a": 1\n}', "JSON"),
    "weights": (b'{"metadata": {}, "weight_map": {"w": "x"}}', "index of a checkpoint in several"),
    "yaml": (b"learning_rate: 0.1\nsteps: 5\n", 'YAML text that begins with "learning_rate: 0.1"'),
    "text": (b"Repository not found", 'text that begins with "Repository not found"'),
    "zeros": (bytes(1 << 13), "only zeros"),
    "zstd": (b"\x28\xb5\x2f\xfd" + bytes(9), "Zstandard data: decompress"),
    "xz": (lzma.compress(b"a"), "xz data: decompress"),
    "bz2": (bz2.compress(b"a"), "bzip2 data: decompress"),
    "lz4": (b"\x04\x22\x4d\x18" + bytes(9), "LZ4 data: decompress"),
    "7z": (b"7z\xbc\xaf\x27\x1c" + bytes(26), "7z archive"),
    "tar": (tarred, "tar archive: unpack it"),
    "parquet": (b"PAR1" + bytes(20) + b"PAR1", "Parquet"),
    "arrow": (b"ARROW1\0\0" + bytes(20), "Arrow"),
    "feather": (b"FEA1" + bytes(20), "Feather"),
    "gguf": (b"GGUF" + struct.pack("<IQQ", 3, 1, 1), "GGUF"),
    "tensorflow": (b"\0\0\x01\x02" * 8 + b"\x57\xfb\x80\x8b\x24\x75\x47\xdb", "TensorFlow check"),
    "checkpoint": (b'model_checkpoint_path: "ckpt-1"\n', "TensorFlow"),
    "saved model": (b"\x08\x01\x12\x83\x05\n\x03abc", "SavedModel"),
    "tflite": (b"\x1c\0\0\0TFL3" + bytes(20), "TensorFlow Lite"),
    "onnx": (ONNX, "ONNX"),
    "stablehlo": (b"ML\xefR\x0dStableHLO_v1.0.0", "StableHLO"),
    "jax.export": (exported, r"jax\.export: read it with jax\.export\.deserialize"),
    "stream": (stream, r"stream of EasyLM: read it with treepack\.read_stream"),
}


@pytest.mark.parametrize("name", FILES)
def test_what_a_file_is(tmp_path: Path, name: str) -> None:
    data, message = FILES[name]
    data = data if isinstance(data, bytes) else data()
    path = tmp_path / "file"
    path.write_bytes(data)
    verbs: list[Callable[[], object]] = [
        lambda: treepack.load(path),
        lambda: treepack.load(path, TREE),
        lambda: treepack.load(path, TREE, select="step"),
        lambda: treepack.loads(data),
        lambda: treepack.open(path),
        lambda: treepack.abstract(path),
        lambda: treepack.read_metadata(path),
        lambda: serialization.from_bytes(TREE, data),
        lambda: serialization.load_from_file(None, path),
    ]
    for verb in verbs:
        with pytest.raises(treepack.DecodeError, match=f"looks like .*{message}"):
            verb()
    found = treepack.verify(path)
    assert not found.ok
    with pytest.raises(treepack.DecodeError, match=message):
        raise treepack.DecodeError(found.damage or "")
    # A compressed one is no other.
    with pytest.raises(treepack.DecodeError, match=f"looks like .*{message}"):
        treepack.loads(gzip.compress(data))


def test_our_own_files_look_like_nothing_else(tmp_path: Path) -> None:
    for data in (treepack.dumps(TREE), serialization.to_bytes(TREE)):
        for cut in (1, len(data) // 2, len(data) - 1):
            damage = treepack.verify(data[:cut]).damage
            assert damage is not None
            assert "looks like" not in damage
    treepack.save(tmp_path / "directory", TREE, sharded=True)
    with pytest.raises(treepack.DecodeError, match="give the directory that it is in"):
        treepack.load(tmp_path / "directory" / "manifest.treepack")


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for verb in (treepack.load, treepack.open, treepack.abstract, treepack.read_metadata):
        with pytest.raises(treepack.DecodeError, match=r"\(0 bytes\)"):
            verb(tmp_path / "file")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "is empty"),
        (["config.json", "flax_model.msgpack"], r"load its files flax_model\*\.msgpack"),
        (["pytorch_model.bin"], "PyTorch"),
        (["saved_model.pb"], "TensorFlow"),
        (["ckpt-1.index", "ckpt-1.data-00000-of-00001"], "TensorFlow"),
        ([".zgroup"], "Zarr"),
        (["head.json", f"version_3-{'0a' * 8}.patch"], r"Subscriber\(directory\)\.latest\(\)"),
        (["step-1.treepack"], "load one of them, such as step-1.treepack"),
        (["a\x1b", "b", "c", "d", "e", "f"], r"It contains a\\x1b, b, c, d, e, …"),
    ],
)
def test_what_a_directory_is(tmp_path: Path, names: list[str], message: str) -> None:
    for name in names:
        (tmp_path / name).touch()
    for verb in (treepack.load, treepack.open, treepack.verify):
        with pytest.raises(treepack.DecodeError, match=rf"no manifest\.treepack: .*{message}"):
            verb(tmp_path)


def test_errors_name_checkpoints_in_a_directory(tmp_path: Path) -> None:
    """Those of treepack's handler lie in a step of Orbax's manager."""
    item = tmp_path / "run" / "10" / "state"
    treepack.save(item, {"w": 1}, sharded=True)
    (tmp_path / "run" / "10" / "_CHECKPOINT_METADATA").write_text("{}")
    (tmp_path / "run" / "9").mkdir()
    assert treepack.load(tmp_path / "run" / "10") == {"w": 1}
    treepack.save(tmp_path / "run" / "10" / "zero", {"w": 1}, sharded=True)
    for verb in (treepack.load, treepack.open, treepack.verify):
        with pytest.raises(treepack.DecodeError, match=f"contains a checkpoint: load '{item}'"):
            verb(tmp_path / "run" / "10")
    (tmp_path / "run" / "9").rmdir()
    with pytest.raises(treepack.DecodeError, match=f"contains a checkpoint: load '{item}'"):
        treepack.load(tmp_path / "run")


TREE = {"w": np.ones(3)}


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"step_3/": None, "step_1": TREE}, "a series with the step 1: load '.*/step_1'"),
        ({"step_3": b"", "step_2": b"text", "step_1/": TREE}, "a series .* 1: load '.*/step_1'"),
        ({"step_3/m": TREE}, "a checkpoint: load '.*/step_3/m'"),
        ({"step_3/default/": TREE}, "a checkpoint: load '.*/step_3/default'"),
        ({"checkpoint_7/x.txt": b"", "checkpoint_5": TREE}, "step 5: load '.*/checkpoint_5'"),
        ({"sub/m.treepack": TREE, "a/": None}, "a checkpoint: load '.*/sub/m.treepack'"),
        ({"sub/step_4": TREE}, "a checkpoint: load '.*/sub/step_4'"),
        ({"sub/inner/": TREE}, "a checkpoint: load '.*/sub/inner'"),
        ({"sub/model.safetensors": TREE}, "a checkpoint: load '.*/sub'"),
        ({"model": TREE, "notes.txt": b"text"}, "a checkpoint: load '.*/model'"),
        ({"step_3/": None, "sub/": None}, "It contains step_3, sub$"),
    ],
)
def test_the_checkpoint_that_an_error_names_is_one(
    tmp_path: Path, files: dict[str, Any], found: str
) -> None:
    for name, content in files.items():
        place = tmp_path / "outer" / name
        (place if name.endswith("/") else place.parent).mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            place.write_bytes(content)
        elif content is not None:
            treepack.save(place, content, sharded=name.endswith("/") or None)
    for verb in (treepack.load, treepack.open, treepack.abstract, treepack.verify):
        with pytest.raises(treepack.DecodeError, match=found) as error:
            verb(tmp_path / "outer")
    if named := re.search(r"load '(.*)'", str(error.value)):
        np.testing.assert_array_equal(treepack.load(named[1])["w"], TREE["w"])


def test_directories_at_urls() -> None:
    fs = fsspec.filesystem("memory")
    fs.pipe({"/foreign/3/state/_METADATA": b"{}", "/foreign/3/_CHECKPOINT_METADATA": b"{}"})
    fs.pipe("/weights/model.safetensors.index.json", b"{}")
    for verb in (treepack.load, treepack.open, treepack.verify):
        for place in ("foreign", "foreign/3", "foreign/3/state"):
            with pytest.raises(treepack.DecodeError, match=rf"'memory://{place}': .* of Orbax"):
                verb(f"memory://{place}")
    for verb in (treepack.load, treepack.open):
        with pytest.raises(treepack.DecodeError, match="index of safetensors"):
            verb("memory://weights")
    assert "index of safetensors" in str(treepack.verify("memory://weights").damage)


READ_POINTER: dict[str, Callable[[Path], object]] = {
    "one.safetensors": lambda path: treepack.load(path),
    "model.safetensors.index.json": lambda path: treepack.load(path.parent),
    "head.json": lambda path: treepack.Subscriber(path.parent).latest(TREE),
    "base": lambda path: treepack.load(path.parent / "patch", base=path),
}


@pytest.mark.parametrize("name", READ_POINTER)
def test_pointers_in_place_of_files(tmp_path: Path, name: str) -> None:
    """A clone without git-LFS has such files; tests of other kinds are beside theirs."""
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"
    treepack.save(tmp_path / "whole.safetensors", {"w": np.ones(2)})
    treepack.save(tmp_path / "whole", TREE)
    treepack.save(tmp_path / "patch", TREE, base=tmp_path / "whole")
    (tmp_path / name).write_bytes(pointer)
    with pytest.raises(treepack.TreepackError, match=rf"{name}.*git lfs pull"):
        READ_POINTER[name](tmp_path / name)


def test_compressed_files_of_a_directory_are_read_where_they_begin(tmp_path: Path) -> None:
    """They may expand to a thousand times their size, whatever `max_size` says."""
    data = gzip.compress(serialization.to_bytes({"w": np.zeros(1 << 17)}))
    (tmp_path / "step_3").write_bytes(data[: len(data) // 2])  # all of it would be an error
    with pytest.raises(treepack.NoManifestError, match=r"load '.*/step_3'"):
        treepack.load(tmp_path, max_size=1000)
    (tmp_path / "step_3").write_bytes(gzip.compress(b"text" * 1000))
    with pytest.raises(treepack.NoManifestError) as error:
        treepack.load(tmp_path)
    assert "load '" not in str(error.value)
