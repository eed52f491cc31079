"""A training run with flax and optax stops and goes on from its checkpoint."""

from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState

import treepack

model = nn.Dense(3)
batch = jnp.arange(8.0).reshape(2, 4)


def new_state() -> TrainState:
    params = model.init(jax.random.key(0), batch)["params"]
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    return TrainState.create(apply_fn=model.apply, params=params, tx=optimizer)


@jax.jit
def train(state: TrainState) -> TrainState:
    def loss(params):
        return (state.apply_fn({"params": params}, batch) ** 2).mean()

    return state.apply_gradients(grads=jax.grad(loss)(state.params))


def same(found: TrainState, expected: TrainState) -> None:
    assert type(found) is TrainState
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_the_resumed_run_is_the_same_as_one_that_went_on(tmp_path: Path) -> None:
    state = train(train(new_state()))
    treepack.save(tmp_path / "state.treepack", state)
    template = state.replace(params=jax.tree.map(jnp.zeros_like, state.params))
    resumed = treepack.load(tmp_path / "state.treepack", template)
    same(resumed, state)
    same(train(resumed), train(state))


def test_shapes_are_enough_of_a_template(tmp_path: Path) -> None:
    state = train(new_state())
    treepack.save(tmp_path / "state.treepack", state)
    shapes = jax.eval_shape(lambda: state)
    resumed = treepack.load(tmp_path / "state.treepack", shapes)
    same(resumed, state)
    assert resumed.tx is state.tx

    fresh = jax.eval_shape(new_state)  # functions of its own
    resumed = train(treepack.load(tmp_path / "state.treepack", fresh))
    jax.tree.map(np.testing.assert_array_equal, resumed.params, train(state).params)


def test_parts_of_the_code_come_back_by_name(tmp_path: Path) -> None:
    state = train(new_state())
    treepack.save(tmp_path / "state.treepack", state)
    code = {"tx": state.tx, "apply_fn": state.apply_fn}
    same(treepack.load(tmp_path / "state.treepack", static=code), state)
