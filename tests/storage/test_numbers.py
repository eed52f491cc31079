"""`compress="numbers"`: files whose exponents are coded by frequency, and what reads them."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import flax.serialization
import jax
import ml_dtypes
import msgpack
import numpy as np
import pytest

import treepack
from commands import call, refused
from treepack import serialization

NORMAL = np.random.default_rng(0).normal(0, 0.02, (1024, 512))
TREE = {
    "weights": NORMAL.astype(ml_dtypes.bfloat16),
    "master": NORMAL[:256].astype(np.float32),
    "wide": NORMAL[:64],
    "small": {"mask": NORMAL[0] > 0, "ids": np.arange(70_000), "step": 3, "name": "x"},
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    treepack.save(tmp_path / "saved", TREE, compress="numbers", metadata={"epoch": 2})
    return tmp_path / "saved"


def same(found: Any, expected: Any = TREE) -> None:
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_all_that_read_files_read_it(path: Path) -> None:
    assert path.read_bytes()[:10] == b"\xc1treepack\x01"
    for mmap in (True, False):
        same(treepack.load(path, mmap=mmap, arrays="numpy"))
    same(treepack.load(path, TREE))
    same(treepack.load(path, select="small", arrays="numpy"), {"small": TREE["small"]})
    same(treepack.load(io.BytesIO(path.read_bytes()), arrays="numpy"))
    same(treepack.loads(path.read_bytes(), arrays="numpy"))
    same(serialization.load_from_file(None, path))
    assert treepack.read_metadata(path) == {"epoch": 2}
    assert treepack.is_checkpoint(path)
    found = treepack.verify(path)
    assert found.ok
    assert not found.unchecked
    with treepack.open(path) as file:
        assert file["small/step"] == 3
        np.testing.assert_array_equal(file["weights"][5:900:7, 3], TREE["weights"][5:900:7, 3])


def test_all_that_write_files_write_it(tmp_path: Path) -> None:
    start, path = b"\xc1treepack\x01", tmp_path / "saved"
    data = treepack.dumps(TREE, compress="numbers")
    assert data.startswith(start)
    same(treepack.loads(data, arrays="numpy"))
    small = treepack.dumps({"a": 1}, compress="numbers")  # a single block has no index
    assert treepack.loads(small) == {"a": 1}
    with treepack.open(small) as file:
        assert file["a"] == 1
    treepack.save(path, TREE, compress="numbers", background=True).result()
    same(treepack.load(path, arrays="numpy"))
    treepack.save(path, iter([("a/b", NORMAL)]), compress="numbers")
    assert path.read_bytes().startswith(start)
    same(treepack.load(path, arrays="numpy"), {"a": {"b": NORMAL}})
    serialization.save_to_file(TREE, path, compress="numbers")
    assert path.read_bytes().startswith(start)
    same(serialization.load_from_file(None, path))
    data = serialization.to_compressed_bytes(TREE, compress="numbers")
    assert data.startswith(start)
    same(serialization.from_compressed_bytes(None, data))
    assert serialization.compress_bytes(data, compress="numbers").startswith(start)
    with pytest.raises(treepack.TreepackError, match="compressed as numbers"):
        serialization.from_bytes(None, data)
    treepack.save("memory://numbers/saved", TREE, compress="numbers")
    same(treepack.load("memory://numbers/saved", arrays="numpy"))
    same(
        treepack.load("memory://numbers/saved", select="wide", arrays="numpy")["wide"], NORMAL[:64]
    )


@pytest.mark.parametrize("align", [1, 64])
def test_a_sharded_checkpoint(tmp_path: Path, align: int) -> None:
    path = tmp_path / "saved"
    treepack.save(path, TREE, sharded=True, compress="numbers", align=align)
    assert any(file.read_bytes()[:2] == b"\xc1t" for file in path.iterdir())
    same(treepack.load(path, arrays="numpy"))
    assert treepack.verify(path).ok
    with pytest.raises(treepack.TreepackError, match="max_size"):
        treepack.load(path, max_size=1 << 20)


def test_weights_become_smaller_than_by_gzip() -> None:
    tree = {"w": np.tile(TREE["weights"], (2, 1))[:1500]}
    sizes = [len(treepack.dumps(tree, compress=how)) for how in (False, True, "gzip", "numbers")]
    assert sizes[1] == sizes[2]
    assert sizes[0] / sizes[3] > 1.48 > 1.3 > sizes[0] / sizes[1]


def test_how_to_compress_is_checked(tmp_path: Path) -> None:
    for how in ("zstd", "Numbers", 2):
        with pytest.raises(ValueError, match="compress must be"):
            treepack.dumps(1, compress=how)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="compress must be"):
            treepack.save(tmp_path / "saved", 1, compress=how)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="level"):
        treepack.dumps(1, compress="numbers", level=3)
    for compress in (serialization.compress_bytes, serialization.to_compressed_bytes):
        for how in ("zstd", False):
            with pytest.raises(ValueError, match="compress must be"):
                compress(b"", compress=how)  # type: ignore[operator]
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(msgpack.FormatError):
        flax.serialization.msgpack_restore(treepack.dumps(TREE, compress="numbers"))


def test_no_more_is_decompressed_than_allowed(path: Path) -> None:
    for read in (treepack.load, treepack.open, treepack.verify):
        with pytest.raises(treepack.TreepackError, match="max_size=1000"):
            read(path, max_size=1000)
    with pytest.raises(treepack.TreepackError, match="max_size=1000"):
        treepack.loads(path.read_bytes(), max_size=1000)


def test_damage_is_found_and_the_rest_salvaged(path: Path) -> None:
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[len(whole) // 3] ^= 1
    path.write_bytes(damaged)
    assert treepack.verify(path).corrupt == ["weights"]
    with pytest.raises(treepack.GzipCorruptionError):
        treepack.load(path)
    with treepack.open(path, salvage=True) as file:
        np.testing.assert_array_equal(file["master"][...], TREE["master"])
    # Without its end it is read in order.
    for cut in (9, 10, 30, len(whole) // 2, len(whole) - 30):
        path.write_bytes(whole[:cut])
        assert not treepack.verify(path).ok
        if cut < len(whole) - 100:  # else only the index is damaged
            with pytest.raises(treepack.CorruptionError if cut > 10 else ValueError):
                treepack.load(path)
        with contextlib.suppress(treepack.TreepackError):
            treepack.is_checkpoint(path)
    path.write_bytes(whole[: len(whole) - 30])
    same(treepack.load(path, arrays="numpy"))
    with pytest.raises(treepack.GzipCorruptionError, match="index"):
        treepack.open(path)


@pytest.mark.parametrize("place", range(0, 40, 3))
def test_every_changed_byte_is_noticed(place: int) -> None:
    data = bytearray(treepack.dumps(TREE, compress="numbers"))
    for at in (place, len(data) * place // 40, len(data) - 1 - place):
        data[at] ^= 0x40
        with contextlib.suppress(treepack.TreepackError, EOFError):
            assert not treepack.verify(bytes(data)).ok
        data[at] ^= 0x40
    assert treepack.verify(bytes(data)).ok


def test_files_are_converted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    call("convert", "saved", "plain.treepack")
    plain = Path("plain.treepack").read_bytes()
    call("convert", "plain.treepack", "again", "--numbers")
    assert Path("again").read_bytes() == path.read_bytes()
    call("convert", "again", "x.msgpack")
    same(flax.serialization.msgpack_restore(Path("x.msgpack").read_bytes()))
    call("convert", "again", "x.gz")
    assert Path("x.gz").read_bytes()[:2] == b"\x1f\x8b"
    call("convert", "x.gz", "back.treepack", "--no-gzip")
    assert Path("back.treepack").read_bytes() == plain
    assert "--numbers" in refused("convert", "saved", "x.npz", "--numbers")
    assert "--numbers" in refused("convert", "saved", "x", "--numbers", "--level", "3")
    assert "--numbers" in refused("convert", "saved", "x", "--numbers", "--gzip")
