"""A checkpoint of flax and optax is loaded by a program that knows only these."""

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
import pytest
from flax.training.train_state import TrainState

import treepack

LOAD = """
import sys
import flax.training.train_state, optax, treepack

params = treepack.load(sys.argv[1], select="params")["params"]
assert abs(params["w"] - 0.5).max() < 1e-5
state = treepack.load(sys.argv[1], static={"tx": optax.adam(0.5), "apply_fn": None})
assert type(state) is flax.training.train_state.TrainState
assert type(state.opt_state[0]) is optax.ScaleByAdamState
assert state.step == 1 and state.opt_state[0].count == 1
state = state.apply_gradients(grads={"w": state.params["w"] * 0})
try:
    treepack.load(sys.argv[1])
except treepack.TreepackError as error:
    print(error)
"""


@pytest.mark.campaign
@pytest.mark.filterwarnings("ignore")
def test_it_loads_without_a_registration_on_either_side(tmp_path: Path) -> None:
    state = TrainState.create(apply_fn=None, params={"w": jnp.ones(3)}, tx=optax.adam(0.5))
    state = state.apply_gradients(grads=jax.tree.map(jnp.ones_like, state.params))
    path = tmp_path / "state.treepack"
    treepack.save(path, state)
    command = [sys.executable, "-c", LOAD, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # Without code and without a template, the error names what is missing, and how to give it.
    assert "tx" in done.stdout
    assert "static=" in done.stdout
