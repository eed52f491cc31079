"""A model and an optimizer of flax.nnx."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import treepack
from commands import call


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.linear = nnx.Linear(3, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.dropout(self.norm(self.linear(x)))


def trained(seed: int = 0) -> tuple[Model, Any]:
    model = Model(nnx.Rngs(seed))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    optimizer.update(model, nnx.grad(lambda model: model(jnp.ones((2, 3))).sum())(model))
    return model, optimizer


def same(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        if jax.dtypes.issubdtype(other.dtype, jax.dtypes.prng_key):
            one, other = jax.random.key_data(one), jax.random.key_data(other)
        np.testing.assert_array_equal(one, other)


@pytest.mark.campaign
def test_the_state_of_a_model(tmp_path: Path) -> None:
    model, _ = trained()
    graph, state = nnx.split(model)
    treepack.save(tmp_path / "model.treepack", state)

    loaded = treepack.load(tmp_path / "model.treepack")  # nnx is imported: nothing to register
    same(loaded, state)
    same(nnx.state(nnx.merge(graph, loaded)), state)

    shapes = nnx.eval_shape(lambda: Model(nnx.Rngs(1)))
    graph, template = nnx.split(shapes)
    again = nnx.merge(graph, treepack.load(tmp_path / "model.treepack", template))
    same(nnx.state(again), state)
    assert again(jnp.ones((2, 3))).shape == (2, 4)


@pytest.mark.parametrize("is_whole", [True, False], ids=["module", "state"])
def test_the_state_fills_a_module(tmp_path: Path, is_whole: bool) -> None:
    parts = trained()
    for part, new in zip(parts, trained(seed=1), strict=True):
        treepack.save(tmp_path / "state.treepack", part if is_whole else nnx.state(part))
        for found in (
            treepack.load(tmp_path / "state.treepack", new),
            treepack.load(tmp_path / "state.treepack", {"it": new}, mapping={"it": "."})["it"],
        ):
            assert type(found) is type(part)
            same(nnx.state(found), nnx.state(part))
    with pytest.raises(treepack.MismatchError, match="_pytree__state: missing"):
        treepack.load(treepack.dumps(nnx.state(parts[0])), parts[0], strict="exact")


PURE = {"fc": {"weight": np.ones((3, 4), np.float32), "bias": np.ones(4, np.float32)}}


@pytest.mark.parametrize(
    "mapping",
    [
        {"linear/kernel": "fc/weight", "linear/bias": "fc/bias"},
        {"linear/kernel/value": "fc/weight", "linear/bias/value": "fc/bias"},
        lambda path: path.replace("linear", "fc").replace("kernel", "weight"),
        {"linear/bias": "fc/bias", "linear/kernel": ("fc/weight", "a b")},
    ],
)
def test_paths_of_variables_in_templates_need_no_value(mapping: Any) -> None:
    state = nnx.state(Model(nnx.Rngs(0)).linear)
    found = treepack.load(treepack.dumps(PURE), {"linear": state}, mapping=mapping)
    same(found, {"linear": jax.tree.map(jnp.ones_like, state)})


@pytest.mark.parametrize(
    ("mapping", "back"),
    [
        (
            {"linear/kernel": "fc/weight", "linear/bias": "fc/bias"},
            {"fc/weight": "linear/kernel", "fc/bias": "linear/bias"},
        ),
        (
            {"linear/bias": "fc/bias", "linear/kernel": ("fc/weight", "a b")},
            {"fc/bias": "linear/bias", "fc/weight": ("linear/kernel", "a b")},
        ),
    ],
)
def test_paths_of_variables_in_files_need_no_value(tmp_path: Path, mapping: Any, back: Any) -> None:
    state = jax.tree.map(jnp.ones_like, {"linear": nnx.state(Model(nnx.Rngs(0)).linear)})
    treepack.save(tmp_path / "model.safetensors", state, mapping=mapping)
    with treepack.open(tmp_path / "model.safetensors") as file:
        assert {path for path, _ in file.leaves()} == {"fc/weight", "fc/bias"}
    np.testing.assert_equal(treepack.load(treepack.dumps(state), PURE, mapping=back), PURE)


def test_the_command_renames_variables(tmp_path: Path) -> None:
    source, target = tmp_path / "model", tmp_path / "model.safetensors"
    treepack.save(source, nnx.state(Model(nnx.Rngs(0)).linear))
    call("convert", str(source), str(target), "--map", "w=kernel=a b -> b a")
    with treepack.open(target) as file:
        assert {path: it.shape for path, it in file.leaves()} == {"bias/value": (4,), "w": (4, 3)}


def test_a_value_beside_others_is_not_of_a_variable(tmp_path: Path) -> None:
    tree = {"loss": {"value": np.ones(3), "scale": np.ones(3)}}
    treepack.save(tmp_path / "model.safetensors", tree, mapping={"loss": "x"})
    with treepack.open(tmp_path / "model.safetensors") as file:
        assert {path for path, _ in file.leaves()} == {"x/value", "x/scale"}


@pytest.mark.campaign
def test_parameters_alone(tmp_path: Path) -> None:
    model, _ = trained()
    treepack.save(tmp_path / "params.treepack", nnx.state(model, nnx.Param))
    other = Model(nnx.Rngs(1))
    template = nnx.state(other, nnx.Param)
    nnx.update(other, treepack.load(tmp_path / "params.treepack", template))
    same(nnx.state(other, nnx.Param), nnx.state(model, nnx.Param))


def test_model_and_optimizer_in_one_tree(tmp_path: Path) -> None:
    model, optimizer = trained()
    graph, state = nnx.split((model, optimizer))
    treepack.save(tmp_path / "state.treepack", state, metadata={"step": 1})
    template = jax.tree.map(jnp.zeros_like, state)
    loaded_model, loaded = nnx.merge(graph, treepack.load(tmp_path / "state.treepack", template))
    same(nnx.state(loaded), nnx.state(optimizer))
    same(nnx.state(loaded_model), nnx.state(model))
    assert loaded.step[...] == 1


def test_the_objects_themselves(tmp_path: Path) -> None:
    model, optimizer = trained()
    treepack.save(tmp_path / "state.treepack", {"model": model, "optimizer": optimizer})
    new = Model(nnx.Rngs(5))
    template = {"model": new, "optimizer": nnx.Optimizer(new, optax.adam(1e-2), wrt=nnx.Param)}
    loaded = treepack.load(tmp_path / "state.treepack", template)
    assert type(loaded["model"]) is Model
    same(nnx.state(loaded["model"]), nnx.state(model))
    same(nnx.state(loaded["optimizer"]), nnx.state(optimizer))


def test_split_with_its_graph_definition(tmp_path: Path) -> None:
    model, _ = trained()
    parts = nnx.split(model)
    treepack.save(tmp_path / "parts.treepack", parts)  # the definition of the graph is code
    graph, state = treepack.load(tmp_path / "parts.treepack", nnx.split(Model(nnx.Rngs(3))))
    same(nnx.state(nnx.merge(graph, state)), nnx.state(model))
