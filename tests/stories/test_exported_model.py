"""A model is exported with its parameters and called by a program without its code."""

from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import treepack


@pytest.mark.campaign
def test_a_model_of_flax(tmp_path: Path) -> None:
    model = nn.Sequential([nn.Dense(4), nn.relu, nn.Dense(2)])
    params = model.init(jax.random.key(0), jnp.ones((1, 3)))
    exported = jax.export.export(jax.jit(model.apply))(
        params, jax.ShapeDtypeStruct((5, 3), jnp.float32)
    )
    treepack.save_exported(tmp_path / "model.treepack", exported, params, metadata={"v": 2})

    function, loaded = treepack.load_exported(tmp_path / "model.treepack")
    x = jnp.arange(15.0).reshape(5, 3)
    np.testing.assert_allclose(function.call(loaded, x), model.apply(params, x), rtol=1e-6)
    assert treepack.read_metadata(tmp_path / "model.treepack") == {"v": 2}
