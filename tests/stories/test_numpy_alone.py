"""A process that serves a model has numpy, and no jax."""

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState

import treepack

PROGRAM = """
import sys
sys.modules.update(jax=None, jaxlib=None, flax=None, optax=None)  # as if they were not installed
import numpy as np, treepack

with treepack.open(sys.argv[1]) as file:
    kernel = file["params/w"]
    assert kernel.shape == (3, 4) and kernel[1].tolist() == [4, 5, 6, 7]
params = treepack.load(sys.argv[1], arrays="numpy", select="params")["params"]
assert type(params["w"]) is np.ndarray and params["w"].sum() == 66
assert treepack.verify(sys.argv[1]).ok
assert treepack.read_metadata(sys.argv[1]) == {"step": 1}
everything = treepack.load(sys.argv[1], arrays="numpy", unknown="dict")
assert everything["params"]["h"].dtype == "bfloat16" and everything["step"] == 1
treepack.save(sys.argv[2], {"w": params["w"] * 2, "pair": (1, None)})
assert treepack.load(sys.argv[2])["pair"] == (1, None)
assert sys.modules["jax"] is None
"""


def test_it_reads_a_training_state(tmp_path: Path) -> None:
    params = {"w": jnp.arange(12.0).reshape(3, 4), "h": jnp.ones(3, jnp.bfloat16)}
    state = TrainState.create(apply_fn=jnp.dot, params=params, tx=optax.adam(1e-3))
    state = state.apply_gradients(grads=jax.tree.map(jnp.zeros_like, params))
    path, other = tmp_path / "state.treepack", tmp_path / "other.treepack"
    treepack.save(path, state, metadata={"step": 1})
    command = [sys.executable, "-c", PROGRAM, str(path), str(other)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(treepack.load(other)["w"], params["w"] * 2)
