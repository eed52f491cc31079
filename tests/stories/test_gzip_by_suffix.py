"""A checkpoint that is called .gz is gzip."""

import gzip
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from flax import serialization

import treepack

tree = {"w": jnp.zeros((100, 100)), "mask": np.arange(100) % 2 == 0, "step": 3}


def test_the_suffix_compresses(tmp_path: Path) -> None:
    path = tmp_path / "model.treepack.gz"
    treepack.save(path, tree)
    restored = serialization.msgpack_restore(gzip.decompress(path.read_bytes()))
    assert restored["step"] == 3
    np.testing.assert_array_equal(treepack.load(path)["w"], tree["w"])
    assert path.stat().st_size < 4_000


def test_readers_look_at_the_content(tmp_path: Path) -> None:
    treepack.save(tmp_path / "model.treepack", tree, compress=True, level=9)
    assert treepack.verify(tmp_path / "model.treepack").ok
    with treepack.open(tmp_path / "model.treepack") as file:
        assert file["mask"][:3].tolist() == [True, False, True]
    (tmp_path / "foreign.gz").write_bytes(gzip.compress(serialization.to_bytes(tree)))
    assert treepack.load(tmp_path / "foreign.gz", tree)["step"] == 3
