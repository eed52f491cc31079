"""A model of equinox with its optimizer, trained under filter_jit."""

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import treepack

optimizer = optax.adamw(1e-2)


class Model(eqx.Module):
    mlp: eqx.nn.MLP
    norm: eqx.nn.LayerNorm
    scale: jax.Array
    name: str = eqx.field(static=True, default="model")

    def __init__(self, key: Any):
        self.mlp = eqx.nn.MLP(2, 3, 4, 2, activation=jax.nn.gelu, key=key)
        self.norm = eqx.nn.LayerNorm(3)
        self.scale = jnp.ones(())

    def __call__(self, x: Any) -> Any:
        return self.norm(self.mlp(x)) * self.scale


def new_state(seed: int = 0) -> tuple[Model, Any]:
    model = Model(jax.random.key(seed))
    return model, optimizer.init(eqx.filter(model, eqx.is_array))


@eqx.filter_jit
def train(model: Model, state: Any) -> tuple[Model, Any]:
    gradients = eqx.filter_grad(lambda model: (model(jnp.ones(2)) ** 2).sum())(model)
    updates, state = optimizer.update(gradients, state, eqx.filter(model, eqx.is_array))
    return eqx.apply_updates(model, updates), state


def same(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    assert bool(eqx.tree_equal(found, expected))


def test_training_goes_on(tmp_path: Path) -> None:
    state = train(*new_state())
    treepack.save(tmp_path / "state.treepack", state)
    resumed = treepack.load(tmp_path / "state.treepack", new_state(seed=1))
    same(resumed, state)
    same(train(*resumed), train(*state))


def test_shapes_of_filter_eval_shape_are_a_template(tmp_path: Path) -> None:
    state = train(*new_state())
    treepack.save(tmp_path / "state.treepack", state)
    template = eqx.filter_eval_shape(new_state)
    same(treepack.load(tmp_path / "state.treepack", template), state)


def test_the_arrays_alone_load_without_a_template(tmp_path: Path) -> None:
    linear = eqx.filter(eqx.nn.Linear(2, 3, key=jax.random.key(0)), eqx.is_array)
    treepack.save(tmp_path / "linear.treepack", linear)
    same(treepack.load(tmp_path / "linear.treepack"), linear)


def test_the_state_of_batch_norm(tmp_path: Path) -> None:
    def make() -> Any:
        return eqx.nn.make_with_state(eqx.nn.BatchNorm)(3, axis_name="batch", mode="batch")

    norm, state = make()
    _, state = jax.vmap(norm, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(
        jnp.arange(12.0).reshape(4, 3), state
    )
    treepack.save(tmp_path / "norm.treepack", (norm, state))
    _, loaded = treepack.load(tmp_path / "norm.treepack", (norm, make()[1]))
    for one, other in zip(jax.tree.leaves(loaded), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(one, other)
