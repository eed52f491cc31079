"""Templates with other names, axes or values than a file: what errors say, and that it succeeds."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import flax.serialization
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import nnx

import treepack
from treepack.orbax import TreepackHandler, TreepackRestore, TreepackSave

Saved = Callable[[Any], Callable[..., Any]]

KINDS = ["file", "gzip", "directory", "safetensors", "orbax", "series", "publisher", "manager"]


@pytest.fixture(params=KINDS)
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> Saved:
    """Saves a tree in some form, and returns a function like `load` without a path."""
    path = tmp_path / "model"

    def save(tree: Any) -> Callable[..., Any]:
        if request.param == "series":
            treepack.Series(path).save(3, tree)
            return lambda *args, **options: treepack.Series(path).resume(*args, **options)[1]
        if request.param == "publisher":
            treepack.Publisher(path).push(tree, version=1)
            return lambda *args, **options: treepack.Subscriber(path).latest(*args, **options)[1]
        if request.param == "manager":
            manager = ocp.CheckpointManager(path, item_handlers=TreepackHandler())
            manager.save(0, args=TreepackSave(tree))
            return lambda target, **options: manager.restore(
                0, args=TreepackRestore(target, **options)
            )
        place = path.with_suffix(".safetensors") if request.param == "safetensors" else path
        if request.param == "orbax":
            with ocp.StandardCheckpointer() as checkpointer:
                checkpointer.save(place, tree)
        else:
            options = {"directory": {"sharded": True}, "gzip": {"compress": "gzip"}}
            treepack.save(place, tree, **options.get(request.param, {}))  # type: ignore[arg-type]
        return lambda *args, **options: treepack.load(place, *args, **options)

    return save


class Module(eqx.Module):
    """A module of equinox."""

    child: Any


@flax.struct.dataclass
class Struct:
    """A dataclass of flax."""

    child: Any


class Pair(NamedTuple):
    """A namedtuple."""

    child: Any


class Listed:
    """A class with a handler whose state has a list."""

    def __init__(self, child: Any) -> None:
        self.child = child


flax.serialization.register_serialization_state(
    Listed,
    lambda it: {"leaves": [it.child["w"]]},
    lambda it, state: Listed({"w": state["leaves"][0]}),
)


class Handled(Listed):
    """A class with a handler whose state is a dict."""


flax.serialization.register_serialization_state(
    Handled,
    lambda it: {"child": it.child},
    lambda it, state: Handled(
        flax.serialization.from_state_dict(it.child, state["child"], name="child")
    ),
)

NODES = [
    *(lambda it: {"child": it}, lambda it: [it], lambda it: (it,), Module, Struct, Pair),
    *(Handled, nnx.State, lambda it: nnx.Dict(jax.tree.map(nnx.Param, it))),
]


def dense(features: int, value: float = 1) -> Any:
    return {"kernel": jnp.full((4, features), value), "bias": jnp.full(features, value)}


def refused(load: Callable[..., Any], *args: Any, **options: Any) -> str:
    with pytest.raises(treepack.MismatchError) as caught:
        load(*args, **options)
    assert caught.value.mismatches
    return str(caught.value)


def test_a_subtree_with_another_name_is_shown_on_both_sides(saved: Saved) -> None:
    load = saved({"params": {"encoder": {"in": dense(4), "out": dense(2)}, "lm_head": dense(9)}})
    body = {"in": dense(4, 0), "out": dense(2, 0)}
    template = {"params": {"backbone": body, "classifier": dense(3, 0)}}
    text = refused(load, template)
    for line in ("backbone: missing (expected", "encoder: unexpected (found"):
        assert f"\n  params/{line} a subtree with the keys ['in', 'out'])" in text
    assert "\nPass mapping= if leaves have other names in the file." in text
    assert 'Pass missing="target"' in text
    for options in ({}, {"unexpected": "ignore"}):
        text = refused(load, template, missing="target", **options)
        assert "no leaf of the file fits the template, so nothing is loaded: pass mapping=" in text
    mapping = {"params/backbone": "params/encoder"}
    found = load(template, missing="target", mapping=mapping)
    assert found["params"]["backbone"]["in"]["kernel"][0, 0] == 1
    assert found["params"]["classifier"]["kernel"][0, 0] == 0


@pytest.mark.parametrize("make", NODES)
def test_every_node_is_searched(tmp_path: Path, make: Any) -> None:
    def tree(name: str, leaf: Any) -> Any:
        return {"node": make({name: leaf}), "n": 1}

    path, leaf = tmp_path / "m", jnp.ones(3)
    treepack.save(path, {"node": make({"w": leaf})})
    text = refused(treepack.load, path, tree("v", leaf), missing="target", unexpected="ignore")
    assert "nothing is loaded: pass mapping=" in text
    shape = jax.ShapeDtypeStruct((3,), jnp.float32)
    found = treepack.load(path, tree("w", shape), missing="target")
    assert found["n"] == 1
    more = {**tree("w", shape), "x": make({"y": shape})}
    with pytest.warns(UserWarning, match=r"ShapeDtypeStructs stay in the tree .*: x/.*y"):
        treepack.load(path, more, missing="target")
    del more["node"]
    text = refused(treepack.load, path, more, missing="target", unexpected="ignore")
    assert re.search("ShapeDtypeStructs, for x/.*y", text), text


def test_the_state_of_a_handler_may_have_a_list(tmp_path: Path) -> None:
    treepack.save(tmp_path / "m", {"node": Listed({"w": np.ones(3)}), "more": 1})
    target = {"node": Listed({"w": np.zeros(3)}), "n": 1}
    found = treepack.load(tmp_path / "m", target, missing="target")
    assert found["node"].child["w"][0] == found["n"] == 1


def test_one_leaf_is_enough(tmp_path: Path) -> None:
    path = tmp_path / "m"
    treepack.save(path, {"w": np.ones(2), "v": np.ones(3)})
    for options in ({"missing": "target"}, {"mismatched": "target", "missing": "target"}):
        found = treepack.load(path, {"w": np.zeros(2), "x": 1}, **options)
        assert found["w"][0] == found["x"] == 1
        assert treepack.load(path, {}, **options) == {}
        text = refused(treepack.load, path, {"x": np.zeros(2)}, **options)
        assert "the template has x, the file w, v" in text
        found, report = treepack.load(path, {"x": 1}, **options, return_report=True)
        assert (found, report.loaded) == ({"x": 1}, [])
    wide = {"w": np.zeros(4)}
    text = refused(treepack.load, path, wide, select="w", mismatched="target")
    assert "nothing is loaded: pass mapping= if leaves have other names" in text
    assert text.endswith("; the template has w, the file w of another shape")
    treepack.save(path, {})
    assert treepack.load(path, wide, missing="target") == wide


def test_shapes_are_no_values_to_keep(saved: Saved) -> None:
    load = saved({"m": {"w": jnp.ones((2, 3)), "v": jnp.ones(3)}})
    template = jax.eval_shape(lambda: {"m": {"w": jnp.ones((2, 3)), "new": jnp.ones(3)}})
    text = refused(load, template, missing="target")
    assert text.endswith("arrays, not jax.ShapeDtypeStructs, for m/new")
    with_values = {"m": {**template["m"], "new": jnp.zeros(3)}}
    with pytest.warns(UserWarning, match="keeps m/new, .* at m/v that are not used"):
        assert load(with_values, missing="target")["m"]["new"].shape == (3,)
    part = load(template, select="m/w", missing="target")
    assert part["m"]["w"].shape == (2, 3)


def test_shapes_are_no_arrays_to_keep(tmp_path: Path) -> None:
    treepack.save(tmp_path / "m", {"w": jnp.ones((2, 3)), "v": jnp.ones(3)})
    wide = jax.eval_shape(lambda: {"w": jnp.ones((2, 4)), "v": jnp.ones(3)})
    text = refused(treepack.load, tmp_path / "m", wide, mismatched="target")
    assert text.endswith("jax.ShapeDtypeStructs, for w")


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((3, 8, 16), "a b c -> a c b"),
        ((8, 16, 3), "a b c -> c b a"),
        ((16, 3, 8), "a b c -> b a c"),
        ((3, 16, 9), None),
        ((3, 16, 8, 2), None),
    ],
)
def test_axes_in_another_order_are_named(
    saved: Saved, shape: tuple[int, ...], axes: str | None
) -> None:
    load = saved({"up": {"kernel": jnp.ones((3, 16, 8))}, "n": jnp.ones(2)})
    template = {"up": {"kernel": jnp.zeros(shape)}, "n": jnp.zeros(2)}
    _, first, *_ = refused(load, template).split("\nPass ")
    if axes is None:
        assert first.startswith('mismatched="target"')
    else:
        assert first.startswith(f"mapping={{'up/kernel': ('up/kernel', '{axes}')}}")
        found = load(template, mapping={"up/kernel": ("up/kernel", axes)})
        assert found["up"]["kernel"].shape == shape


@pytest.mark.parametrize(
    ("there", "here", "axes"),
    [
        ((3, 16, 8), (3, 128), "a b c -> a (b c)"),
        ((3, 128), (3, 16, 8), "a (b c) -> a b c"),
        ((16, 24), (2, 8, 24), "(a b) c -> a b c"),
        ((3, 16, 8), (384,), "a b c -> (a b c)"),
        ((2, 3, 20), (6, 4, 5), "a b (c d) -> (a b) c d"),
    ],
)
def test_axes_that_are_split_or_joined_are_a_rule(
    saved: Saved, there: tuple[int, ...], here: tuple[int, ...], axes: str
) -> None:
    """As the heads of attention: the rule keeps the order of the elements."""
    array = jnp.arange(float(math.prod(there))).reshape(there)
    load = saved({"up": {"kernel": array}, "n": jnp.ones(2)})
    template = {"up": {"kernel": jnp.zeros(here)}, "n": jnp.zeros(2)}
    text = refused(load, template)
    found = re.search(r"\nPass mapping=(\{.*\}) if these axes are split", text)
    assert found is not None
    assert eval(found[1]) == {"up/kernel": ("up/kernel", axes)}
    loaded = load(template, mapping=eval(found[1]))["up"]["kernel"]
    np.testing.assert_array_equal(loaded, array.reshape(here))
    assert "mismatched=" not in text
    assert "strict=" not in text


@pytest.mark.parametrize("shape", [(3, 16, 8, 1), (4, 12, 8), (12, 32)])
def test_arrays_of_equal_size_and_another_shape_are_not_given_up(
    saved: Saved, shape: tuple[int, ...]
) -> None:
    """No option reshapes or drops them where the shapes do not tell the axes."""
    load = saved({"up": {"kernel": jnp.ones((3, 16, 8))}, "n": jnp.ones(2)})
    found = refused(load, {"up": {"kernel": jnp.zeros(shape)}, "n": jnp.zeros(2)})
    assert f"such as [3, 16, 8] in place of {[*shape]}: load them without a template" in found
    assert "mismatched=" not in found
    assert "strict=" not in found


def test_axes_that_shapes_do_not_tell_are_not_guessed(saved: Saved) -> None:
    """As the filters of a convolution of PyTorch, whose kernels are square."""
    load = saved({"conv": {"kernel": jnp.ones((8, 4, 3, 3))}})
    found = refused(load, {"conv": {"kernel": jnp.zeros((3, 3, 4, 8))}})
    assert "The axes of conv/kernel have another order, which the shapes do not tell" in found
    assert "as axes in mapping=" in found


def test_all_swapped_axes_are_named(saved: Saved) -> None:
    load = saved({"a": {"w": jnp.ones((2, 3)), "b": jnp.ones(3)}, "c": {"w": jnp.ones((4, 2, 3))}})
    template = {"a": {"w": jnp.ones((3, 2)), "b": jnp.ones(3)}, "c": {"w": jnp.ones((4, 3, 2))}}
    found = re.search(r"\nPass mapping=(\{.*\}) if", refused(load, template))
    assert found is not None
    assert load(template, mapping=eval(found[1]))["c"]["w"].shape == (4, 3, 2)


def test_stacked_layers_that_are_not_transposed(saved: Saved) -> None:
    load = saved({"layers": [{"w": jnp.ones((8, 16))}] * 3})
    template = {"w": jnp.zeros((3, 16, 8))}
    text = refused(load, template, mapping={"w": ("layers/{l}/w", "a b -> l a b")})
    assert "l is 3" not in text
    assert "such axes" not in text
    assert load(template, mapping={"w": ("layers/{l}/w", "a b -> l b a")})["w"][0, 0, 0]


@pytest.mark.parametrize(
    ("there", "here", "renamed"),
    [
        ("model/params", "params", "{'params': 'model/params'}"),
        ("params", "model/params", "{'model/params': 'params'}"),
        ("model/params", "models/params", "{'models': 'model'}"),
    ],
)
def test_leaves_that_stay_though_the_file_has_them_elsewhere(
    tmp_path: Path, there: str, here: str, renamed: str
) -> None:
    def tree(path: str, value: float) -> Any:
        found: Any = {"w": np.full(2, value)}
        for name in reversed(path.split("/")):
            found = {name: found}
        return {**found, "step": int(value)}

    treepack.save(tmp_path / "x", tree(there, 1))
    with pytest.warns(UserWarning, match=re.escape(f"pass mapping={renamed} if")):
        kept = treepack.load(tmp_path / "x", tree(here, 0), missing="target")
    assert kept["step"] == 1
    loaded = treepack.load(tmp_path / "x", tree(here, 0), mapping=eval(renamed))
    assert str(loaded) == str(tree(here, 1))
