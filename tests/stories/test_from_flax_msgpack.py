"""A program of flax with frozen dicts and msgpack files moves to treepack."""

from pathlib import Path

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
from flax.core import FrozenDict, freeze

import treepack
from treepack import serialization

params = freeze({"params": {"dense": {"kernel": jnp.ones((3, 2)), "bias": jnp.arange(2.0)}}})
template = jax.tree.map(jnp.zeros_like, params)


def same(found: object) -> None:
    assert type(found) is FrozenDict
    assert jax.tree.structure(found) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, found, params)


def test_by_one_changed_import() -> None:
    assert serialization.to_bytes(params)
    same(serialization.from_bytes(template, flax.serialization.to_bytes(params)))
    same(flax.serialization.from_bytes(template, serialization.to_bytes(params)))


def test_an_old_file_becomes_one_of_treepack(tmp_path: Path) -> None:
    (tmp_path / "old.msgpack").write_bytes(flax.serialization.to_bytes(params))
    same(treepack.load(tmp_path / "old.msgpack", template))
    same(treepack.load(tmp_path / "old.msgpack", jax.eval_shape(lambda: params)))
    with treepack.open(tmp_path / "old.msgpack") as file:
        assert file["params/dense/kernel"].shape == (3, 2)

    treepack.save(tmp_path / "new.treepack", treepack.load(tmp_path / "old.msgpack", template))
    same(treepack.load(tmp_path / "new.treepack"))
    same(flax.serialization.from_bytes(template, (tmp_path / "new.treepack").read_bytes()))
