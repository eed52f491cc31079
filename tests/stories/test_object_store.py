"""Checkpoints lie in a store that fsspec knows."""

import jax.numpy as jnp
import numpy as np
import pytest

import treepack

pytest.importorskip("fsspec")

state = {"params": {"w": jnp.arange(12.0).reshape(3, 4)}, "step": 3}


def test_every_verb_takes_its_url() -> None:
    url = "memory://stories/state.treepack"
    treepack.save(url, state, metadata={"run": "a"})
    loaded = treepack.load(url)
    np.testing.assert_array_equal(loaded["params"]["w"], state["params"]["w"])
    assert treepack.verify(url).ok
    assert treepack.read_metadata(url) == {"run": "a"}
    assert treepack.abstract(url)["params"]["w"].shape == (3, 4)
    with treepack.open(url) as file:
        assert file["params/w"][1].tolist() == [4, 5, 6, 7]
    assert treepack.load(url, select="step") == {"step": 3}
    assert treepack.load(url, state)["step"] == 3


def test_gzip_and_background_and_shards() -> None:
    treepack.save("memory://stories/state.treepack.gz", state, compress=True)
    assert treepack.load("memory://stories/state.treepack.gz")["step"] == 3
    treepack.save("memory://stories/later.treepack", state, background=True).result()
    assert treepack.load("memory://stories/later.treepack")["step"] == 3
    treepack.save("memory://stories/sharded", state, sharded=True)
    assert treepack.load("memory://stories/sharded")["step"] == 3


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(FileNotFoundError, match=r"nothing\.treepack"):
        treepack.load("memory://stories/nothing.treepack")
