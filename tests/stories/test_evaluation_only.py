"""An evaluation loads the parameters of a training state, and nothing else."""

from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.training.train_state import TrainState

import treepack

model = nn.Dense(3)
batch = jnp.ones((2, 4))


@pytest.fixture
def state(tmp_path: Path) -> TrainState:
    params = model.init(jax.random.key(0), batch)["params"]
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(1e-3))
    treepack.save(tmp_path / "state.treepack", state)
    return state


def test_select_params(state: TrainState, tmp_path: Path) -> None:
    loaded = treepack.load(tmp_path / "state.treepack", select="params")
    params = loaded["params"] if isinstance(loaded, dict) else loaded.params
    np.testing.assert_array_equal(params["kernel"], state.params["kernel"])


def test_a_template_of_the_parameters_alone(state: TrainState, tmp_path: Path) -> None:
    shapes = jax.eval_shape(model.init, jax.random.key(0), batch)
    loaded = treepack.load(tmp_path / "state.treepack", shapes)
    np.testing.assert_array_equal(
        model.apply(loaded, batch), model.apply({"params": state.params}, batch)
    )


def test_the_open_file(state: TrainState, tmp_path: Path) -> None:
    with treepack.open(tmp_path / "state.treepack") as file:
        params = file["params"].load()
        assert "opt_state" in file
    np.testing.assert_array_equal(params["kernel"], state.params["kernel"])


def test_into_the_state_of_another_optimizer(state: TrainState, tmp_path: Path) -> None:
    fresh = TrainState.create(
        apply_fn=model.apply,
        params=jax.tree.map(jnp.zeros_like, state.params),
        tx=optax.sgd(0.1, momentum=0.9),
    )
    loaded = treepack.load(tmp_path / "state.treepack", fresh, select=["params", "step"])
    np.testing.assert_array_equal(loaded.params["kernel"], state.params["kernel"])
    assert jax.tree.structure(loaded) == jax.tree.structure(fresh)
