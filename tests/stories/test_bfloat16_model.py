"""Models in bfloat16 and in eight bits, and changes of precision when they are loaded."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import serialization

import treepack

params = {"w": jnp.arange(6, dtype=jnp.bfloat16).reshape(2, 3) / 3, "b": jnp.ones(2)}


def test_every_bit_comes_back(tmp_path: Path) -> None:
    tree = {**params, "e": jnp.ones(4, jnp.float8_e4m3fn), "i": jnp.arange(4, dtype=jnp.int8)}
    treepack.save(tmp_path / "model.treepack", tree)
    for loaded in (
        treepack.load(tmp_path / "model.treepack"),
        treepack.load(tmp_path / "model.treepack", jax.eval_shape(lambda: tree)),
        treepack.load(tmp_path / "model.treepack", arrays="numpy"),
    ):
        for name, value in tree.items():
            assert loaded[name].dtype == value.dtype
            assert np.asarray(loaded[name]).tobytes() == np.asarray(value).tobytes()
    flax = serialization.msgpack_restore((tmp_path / "model.treepack").read_bytes())
    assert flax["w"].dtype == jnp.bfloat16


def test_a_template_may_have_another_precision(tmp_path: Path) -> None:
    treepack.save(tmp_path / "model.treepack", params)
    template = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float32), params)
    with pytest.raises(treepack.MismatchError, match="cast=True"):
        treepack.load(tmp_path / "model.treepack", template)
    loaded = treepack.load(tmp_path / "model.treepack", template, cast=True)
    np.testing.assert_array_equal(loaded["w"], params["w"].astype(jnp.float32))
