"""Random numbers go on where they were."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import treepack


def test_typed_and_raw_keys(tmp_path: Path) -> None:
    state = {
        "key": jax.random.key(1),
        "workers": jax.random.split(jax.random.key(2, impl="rbg"), 3),
        "raw": jax.random.PRNGKey(3),
        "carry": (jnp.ones(2), jax.random.key(4)),
    }
    treepack.save(tmp_path / "state.treepack", state)
    for loaded in (
        treepack.load(tmp_path / "state.treepack"),
        treepack.load(tmp_path / "state.treepack", state),
        treepack.load(tmp_path / "state.treepack", jax.eval_shape(lambda: state)),
    ):
        np.testing.assert_array_equal(
            jax.random.normal(loaded["key"], 3), jax.random.normal(state["key"], 3)
        )
        assert jax.random.key_impl(loaded["workers"]) == jax.random.key_impl(state["workers"])
        np.testing.assert_array_equal(
            jax.random.key_data(loaded["workers"]), jax.random.key_data(state["workers"])
        )
        np.testing.assert_array_equal(loaded["raw"], state["raw"])
        assert loaded["carry"][1].dtype == state["key"].dtype


def test_the_generator_of_a_data_loader(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    state = generator.bit_generator.state  # integers of 128 bits
    treepack.save(tmp_path / "data.treepack", {"position": 7, "rng": state})
    other = np.random.default_rng(1)
    other.bit_generator.state = treepack.load(tmp_path / "data.treepack")["rng"]
    np.testing.assert_array_equal(other.random(3), generator.random(3))
