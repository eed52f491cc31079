"""States of optax's optimizers, without a template and with one."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import tiers
import treepack

params = {"dense": {"kernel": jnp.ones((3, 2)), "bias": jnp.zeros(2)}, "head": jnp.ones(2)}
labels = {"dense": "train", "head": "freeze"}

OPTIMIZERS = {
    "chain": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3)),
    "inject_hyperparams": lambda: optax.inject_hyperparams(optax.adamw)(learning_rate=1e-3),
    "schedule": lambda: optax.adamw(optax.cosine_decay_schedule(1e-3, 10)),
    "multi_transform": lambda: optax.multi_transform(
        {"train": optax.adam(1e-3), "freeze": optax.set_to_zero()}, labels
    ),
    "MultiSteps": lambda: optax.MultiSteps(optax.sgd(0.1, momentum=0.9), 2),
}


@tiers.parametrize("name", OPTIMIZERS)
def test_state_of_an_optimizer(name: str, tmp_path: Path) -> None:
    optimizer = OPTIMIZERS[name]()
    gradients = jax.tree.map(lambda x: x + 0.5, params)
    _, state = optimizer.update(gradients, optimizer.init(params), params)
    treepack.save(tmp_path / "state.treepack", state)
    loaded = [
        treepack.load(tmp_path / "state.treepack"),
        treepack.load(tmp_path / "state.treepack", optimizer.init(params)),
        treepack.load(tmp_path / "state.treepack", jax.eval_shape(optimizer.init, params)),
    ]
    for found in loaded:
        assert jax.tree.structure(found) == jax.tree.structure(state)
        jax.tree.map(np.testing.assert_array_equal, found, state)


def test_the_learning_rate_can_be_read_and_changed(tmp_path: Path) -> None:
    optimizer = OPTIMIZERS["inject_hyperparams"]()
    treepack.save(tmp_path / "state.treepack", {"opt": optimizer.init(params), "step": 3})
    with treepack.open(tmp_path / "state.treepack") as file:
        assert file["opt/hyperparams/learning_rate"][...] == jnp.float32(1e-3)
    state = treepack.load(tmp_path / "state.treepack")["opt"]
    state.hyperparams["learning_rate"] = jnp.asarray(1e-4)
    optimizer.update(params, state, params)
