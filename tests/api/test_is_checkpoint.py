"""What `is_checkpoint` takes for a checkpoint, and what not."""

from __future__ import annotations

import gzip
import io
import json
import pickle
from pathlib import Path
from typing import Any

import flax.serialization
import jax
import msgpack
import numpy as np
import pytest

import treepack

TREE = {"w": np.arange(5000.0), "step": 3}


def npz() -> bytes:
    file = io.BytesIO()
    np.savez(file, **TREE)
    return file.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        treepack.dumps(TREE),
        treepack.dumps([1, 2]),
        treepack.dumps(3.5),
        flax.serialization.to_bytes(TREE),
        gzip.compress(flax.serialization.to_bytes(TREE)),
        # As large as none that is looked into.
        gzip.compress(flax.serialization.to_bytes({"w": np.zeros(3_000_000)}), 0),
        bytes([0x80]),
        npz(),
    ],
    ids=range(8),
)
def test_checkpoints(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    assert treepack.is_checkpoint(path)
    assert treepack.is_checkpoint(str(path))
    assert treepack.is_checkpoint(data)
    assert treepack.is_checkpoint(memoryview(data))
    assert treepack.is_checkpoint(io.BytesIO(data))


def test_files_and_directories_of_treepack(tmp_path: Path) -> None:
    treepack.save(tmp_path / "file", TREE)
    treepack.save(tmp_path / "file.gz", TREE)
    treepack.save(tmp_path / "directory", jax.tree.map(jax.numpy.asarray, TREE), sharded=True)
    for path in tmp_path.iterdir():
        assert treepack.is_checkpoint(path)
    damaged = bytearray((tmp_path / "file").read_bytes())
    damaged[9000] ^= 1
    assert treepack.is_checkpoint(damaged)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"step: 3\n",
        json.dumps({"a": 1}).encode(),
        pickle.dumps(TREE),
        msgpack.packb([1, 2]),
        msgpack.packb(7),
        gzip.compress(b"text"),
        gzip.compress(b"text" * 6_000_000, 0),
        flax.serialization.to_bytes(TREE)[:1000],
        bytes([0x81]) * 50,
    ],
    ids=range(10),
)
def test_data_other_than_checkpoints(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    assert not treepack.is_checkpoint(path)
    assert not treepack.is_checkpoint(data)


def test_where_nothing_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    for path in (tmp_path, tmp_path / "missing", tmp_path / "file" / "below"):
        assert not treepack.is_checkpoint(path)
    with pytest.raises(ValueError, match="storage_options="):
        treepack.is_checkpoint(tmp_path, storage_options={})


def test_urls(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    options: Any = {"use_listings_cache": False}
    treepack.save("memory://is_checkpoint/file", TREE)
    assert treepack.is_checkpoint("memory://is_checkpoint/file")
    assert treepack.is_checkpoint("memory://is_checkpoint/file", storage_options=options)
    assert not treepack.is_checkpoint("memory://is_checkpoint/missing")
