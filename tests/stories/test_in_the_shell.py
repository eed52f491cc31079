"""Checkpoints in the shell: list, verify, compare, convert."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from flax import serialization
from flax.training.train_state import TrainState
from optax import adam

import treepack
from commands import call as run


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainState:
    monkeypatch.chdir(tmp_path)
    params = {"dense": {"kernel": jnp.ones((64, 8)), "bias": jnp.zeros(8)}}
    state = TrainState.create(apply_fn=jnp.dot, params=params, tx=adam(1e-3))
    treepack.save("state.treepack", state)
    return state


def test_the_leaves_of_a_training_state(state: TrainState) -> None:
    assert "float32[64,8]" in run("ls", "state.treepack")
    listed = json.loads(run("ls", "state.treepack", "--json"))
    assert "kernel" in json.dumps(listed)
    assert "kernel" in run("show", "state.treepack", "params/dense/kernel")


def test_verify_finds_damage(state: TrainState) -> None:
    run("verify", "state.treepack")
    data = bytearray(Path("state.treepack").read_bytes())
    data[200] ^= 1
    Path("damaged.treepack").write_bytes(data)
    assert "damaged.treepack" in run("verify", "state.treepack", "damaged.treepack", status=1)


def test_diff_tells_the_leaves_that_differ(state: TrainState) -> None:
    treepack.save("other.treepack", state.replace(step=5))
    assert "step" in run("diff", "state.treepack", "other.treepack", status=1)
    run("diff", "state.treepack", "state.treepack")


def test_flax_reads_what_convert_makes_of_it(state: TrainState) -> None:
    run("convert", "state.treepack", "state.msgpack")
    template = state.replace(params={"dense": {"kernel": np.zeros((64, 8)), "bias": np.zeros(8)}})
    restored = serialization.from_bytes(template, Path("state.msgpack").read_bytes())
    np.testing.assert_array_equal(
        restored.params["dense"]["kernel"], state.params["dense"]["kernel"]
    )
    run("get", "state.treepack", "params", "params.treepack")
    run("convert", "params.treepack", "params.safetensors")
    run("convert", "params.safetensors", "again.treepack")
    assert treepack.load("again.treepack")["dense"]["bias"].tolist() == [0] * 8
