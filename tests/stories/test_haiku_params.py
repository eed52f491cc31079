"""Parameters of haiku, whose keys have slashes."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import treepack

# As `hk.transform(...).init` returns them.
params = {
    "mlp/~/linear_0": {"w": jnp.ones((3, 4)), "b": jnp.zeros(4)},
    "mlp/~/linear_1": {"w": jnp.ones((4, 2)), "b": jnp.arange(2.0)},
}


def test_they_come_back(tmp_path: Path) -> None:
    state = {"params": params, "opt": optax.adam(1e-3).init(params)}
    treepack.save(tmp_path / "haiku.treepack", state)
    loaded = treepack.load(tmp_path / "haiku.treepack")
    assert jax.tree.structure(loaded) == jax.tree.structure(state)
    jax.tree.map(np.testing.assert_array_equal, loaded, state)


def test_a_slash_in_a_key_is_written_tilde_1(tmp_path: Path) -> None:
    treepack.save(tmp_path / "haiku.treepack", params)
    with treepack.open(tmp_path / "haiku.treepack") as file:
        assert file["mlp~1~0~1linear_1/b"][1] == 1
        assert file["mlp~1~0~1linear_1"]["b"][1] == 1
        assert file["mlp/~/linear_1"]["b"][1] == 1  # as it is, where only one place is meant
        with pytest.raises(KeyError) as caught:
            file["mlp/~/linear_2"]
        assert "mlp~1~0~1linear_1" in str(caught.value)  # tells how it is written


def test_patterns_choose_modules(tmp_path: Path) -> None:
    treepack.save(tmp_path / "haiku.treepack", params)
    weights = treepack.load(tmp_path / "haiku.treepack", select="*/w")
    assert {name: list(module) for name, module in weights.items()} == {
        name: ["w"] for name in params
    }
    last = treepack.load(tmp_path / "haiku.treepack", select="mlp~1~0~1linear_1")
    assert list(last) == ["mlp/~/linear_1"]


def test_haiku_itself(tmp_path: Path) -> None:
    haiku = pytest.importorskip("haiku")

    def network(x):
        return haiku.BatchNorm(True, True, 0.9)(haiku.nets.MLP([4, 2])(x), True)

    made = haiku.transform_with_state(network).init(jax.random.key(0), jnp.ones((1, 3)))
    treepack.save(tmp_path / "haiku.treepack", made)
    loaded = treepack.load(tmp_path / "haiku.treepack")
    assert jax.tree.structure(loaded) == jax.tree.structure(made)
    jax.tree.map(np.testing.assert_array_equal, loaded, made)
