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


def test_paths_that_are_selected_are_taken_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "haiku.treepack"
    treepack.save(path, params, select="mlp/~/linear_1/w")
    assert {name: list(it) for name, it in treepack.load(path).items()} == {"mlp/~/linear_1": ["w"]}
    treepack.save(path, params)
    for select in ("mlp/~/linear_1", ["mlp/~/linear_1/w", "mlp/~/linear_1/b"]):
        found = treepack.load(path, select=select)
        assert {name: sorted(it) for name, it in found.items()} == {"mlp/~/linear_1": ["b", "w"]}
        into = treepack.load(path, {**params, "own": 1}, select=select, missing="target")
        assert into["own"] == 1
    message = "is it 'mlp~1~0~1linear_1/"
    for options in ({"select": "mlp/~/linear_2/w"}, {"select": "mlp/~/linear_1/*"}):
        with pytest.raises(treepack.TreepackError, match=message):
            treepack.load(path, **options)
        with pytest.raises(treepack.TreepackError, match=message):
            treepack.save(path, params, **options)
    with pytest.raises(treepack.TreepackError, match=message):
        treepack.load(path, params, mapping={"w": "mlp/~/linear_2/w"})


def test_the_command_line_takes_them_as_they_are(tmp_path: Path) -> None:
    from commands import call

    path, new = str(tmp_path / "haiku.treepack"), str(tmp_path / "new")
    safetensors = str(tmp_path / "haiku.safetensors")
    treepack.save(path, params)
    for args in (
        ("show", path, "mlp/~/linear_1/w"),
        ("get", path, "mlp/~/linear_1", new),
        ("convert", path, new, "--select", "mlp/~/linear_1"),
        ("convert", path, new, "--skip", "mlp/~/linear_1/w"),
        ("convert", path, safetensors),
        *(("ls", it, "mlp/~/linear_1") for it in (path, safetensors)),
    ):
        call(*args)
    for it in (path, safetensors):
        with pytest.raises(treepack.MissingPathError):
            call("ls", it, "mlp/~/linear_7")


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
