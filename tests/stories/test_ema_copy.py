"""An average of the parameters is kept beside them, and loaded in their place."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from flax.training.train_state import TrainState

import treepack


class EmaState(TrainState):
    ema: dict = struct.field(pytree_node=True, default_factory=dict)


def new_state() -> EmaState:
    params = {"w": jnp.ones((4, 2)), "b": jnp.zeros(2)}
    return EmaState.create(
        apply_fn=jnp.dot, params=params, tx=optax.adam(1e-2), ema=jax.tree.map(jnp.copy, params)
    )


def trained() -> EmaState:
    state = new_state()
    for _ in range(3):
        state = state.apply_gradients(grads=jax.tree.map(jnp.ones_like, state.params))
        ema = jax.tree.map(lambda e, p: 0.9 * e + 0.1 * p, state.ema, state.params)
        state = state.replace(ema=ema)
    return state


def test_the_averages_are_loaded_as_parameters(tmp_path: Path) -> None:
    state = trained()
    treepack.save(tmp_path / "state.treepack", state)
    template = jax.eval_shape(lambda: state.params)
    with treepack.open(tmp_path / "state.treepack") as file:
        params = file["ema"].load(template)
    np.testing.assert_array_equal(params["w"], state.ema["w"])


def test_an_old_checkpoint_has_no_averages(tmp_path: Path) -> None:
    state = trained()
    old = TrainState.create(apply_fn=jnp.dot, params=state.params, tx=optax.adam(1e-2))
    treepack.save(tmp_path / "old.treepack", old)
    loaded = treepack.load(tmp_path / "old.treepack", new_state(), missing="target")
    np.testing.assert_array_equal(loaded.params["w"], state.params["w"])
    np.testing.assert_array_equal(loaded.ema["w"], new_state().ema["w"])
