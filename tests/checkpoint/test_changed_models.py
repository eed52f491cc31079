"""Loads files into templates of changed models: renamed, moved, of other shapes, partly."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import flax.serialization
import jax
import numpy as np
import optax
import pytest

import treepack
from treepack import serialization

HAIKU = {"mlp/~/linear_0": {"w": np.ones(2), "b": np.zeros(1)}, "step": 1}

PLAIN = {"dense": HAIKU["mlp/~/linear_0"], "step": 1}


@pytest.fixture(params=["file", "sharded", "bytes"])
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Returns a function that saves a tree; its result can be loaded."""

    def save(tree: Any) -> Any:
        if request.param == "bytes":
            return treepack.dumps(tree)
        treepack.save(tmp_path / "tree", tree, sharded=request.param == "sharded")
        return tmp_path / "tree"

    return save


def same(one: Any, other: Any) -> None:
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_paths_without_escapes_are_renamed(saved: Any) -> None:
    zeros = jax.tree.map(np.zeros_like, PLAIN)
    for old in ("mlp/~/linear_0", "mlp~1~0~1linear_0"):
        same(treepack.load(saved(HAIKU), zeros, mapping={"dense": old}), PLAIN)
    leaves = {"dense/w": "mlp/~/linear_0/w", "dense/b": "mlp/~/linear_0/b"}
    same(treepack.load(saved(HAIKU), zeros, mapping=leaves), PLAIN)
    zeros = jax.tree.map(np.zeros_like, HAIKU)
    same(treepack.load(saved(PLAIN), zeros, mapping={"mlp/~/linear_0": "dense"}), HAIKU)
    with pytest.raises(treepack.TreepackError, match=r"matches nothing.*is it 'mlp~1~0~1linear_0"):
        treepack.load(saved(HAIKU), zeros, mapping={"dense": "mlp/linear_0"})


def test_an_ambiguous_path_without_escapes_is_refused() -> None:
    data = treepack.dumps({"a/b": {"c": 1}, "a": {"b/c": 2}})
    with pytest.raises(treepack.TreepackError, match="x: a~1b/c and a/b~1c both fit"):
        treepack.load(data, {"x": 0}, mapping={"x": "a/b/c"})
    assert treepack.load(data, mapping={"x": "a/b~1c"}) == {"x": 2, "a/b": {"c": 1}}
    kept = treepack.load(data, {"x": 0, "a/b": {"c": 8}, "a": {"b/c": 9}}, mapping={"x": "a~1b/c"})
    assert kept == {"x": 1, "a/b": {"c": 1}, "a": {"b/c": 2}}


def test_a_subtree_moves_next_to_its_empty_namesake(saved: Any) -> None:
    params = {"w": np.ones(3, np.float32)}
    alone = optax.adamw(1e-3)
    old = jax.tree.map(lambda leaf: leaf + 1, alone.init(params))
    new = optax.chain(optax.clip(1.0), alone).init(params)
    loaded = treepack.load(saved({"opt": old}), {"opt": new}, mapping={"opt/1/0": "opt/0"})
    same(loaded, {"opt": (new[0], old)})
    back = treepack.load(
        saved({"opt": (new[0], old)}), {"opt": alone.init(params)}, mapping={"opt/0": "opt/1/0"}
    )
    same(back, {"opt": old})


def test_arrays_of_another_shape_stay_the_targets(saved: Any) -> None:
    source = saved({"head": np.ones((2, 3)), "body": np.ones(3), "n": 1})
    target = {"head": np.zeros((4, 3)), "body": np.zeros(3), "n": 0}
    with pytest.raises(treepack.MismatchError, match='Pass mismatched="target"'):
        treepack.load(source, target)
    loaded, report = treepack.load(source, target, mismatched="target", return_report=True)
    same(loaded, {**target, "body": np.ones(3), "n": 1})
    assert (report.loaded, report.kept) == (["body", "n"], ["head"])
    # Other differences are errors still.
    with pytest.raises(treepack.MismatchError, match="body: expected float32"):
        treepack.load(source, {**target, "body": np.zeros(3, np.float32)}, mismatched="target")
    with pytest.raises(treepack.MismatchError, match="n: expected"):
        treepack.load(source, {**target, "n": {"m": 0}}, mismatched="target")
    moved = {"tail": target["head"], "body": target["body"], "n": 0}
    found = treepack.load(source, moved, mapping={"tail": "head"}, mismatched="target")
    same(found, {**moved, "body": np.ones(3), "n": 1})


def test_excluded_leaves_are_not_loaded(saved: Any) -> None:
    tree = {"a": {"w": np.ones(1), "b": np.ones(2)}, "c": np.ones(3)}
    source, zeros = saved(tree), jax.tree.map(np.zeros_like, tree)
    same(treepack.load(source, exclude="a/w"), {"a": {"b": tree["a"]["b"]}, "c": tree["c"]})
    with pytest.warns(UserWarning, match="leave out every leaf"):
        same(treepack.load(source, exclude=["a/*", "c"], select="c"), {})
    same(
        treepack.load(source, zeros, exclude="**/b"),
        {**tree, "a": {**tree["a"], "b": zeros["a"]["b"]}},
    )
    same(treepack.load(source, select="a", exclude={"a": {"w": True, "b": False}, "c": False}), {
        "a": {"b": tree["a"]["b"]}})  # fmt: skip
    with pytest.raises(treepack.TreepackError, match=r"exclude .*: w\b"):
        treepack.load(source, exclude="w")


def test_a_node_without_leaves_may_be_missing(saved: Any) -> None:
    moments = {"w": np.ones(3)}
    template = {"w": np.zeros(3), "opt": (optax.EmptyState(), {"mu": moments}), "more": [{}, ()]}
    data = saved({"w": np.ones(3), "opt": {"1": {"mu": moments}}})
    same(treepack.load(data, template), template | {"w": np.ones(3)})
    with pytest.raises(treepack.MismatchError):
        treepack.load(data, template, strict="exact")
    with pytest.raises(treepack.MismatchError, match="more: missing"):
        treepack.load(data, template | {"more": [{}, (1,)]})


PARAMS = {"one": {"w": np.ones((2, 3))}, "two": {"w": np.ones((3, 3))}}
MOMENTS = {"mu": PARAMS, "nu": PARAMS}
HEAD = {"head": {"w": np.ones((3, 9))}}
OTHER = {"head": {"kernel": np.ones((3, 9))}}


@pytest.mark.parametrize(
    ("file", "template", "warning", "options"),
    [
        ({"opt": MOMENTS}, {"opt": {"adam": MOMENTS}}, "keeps all of opt,", {}),
        ({"opt": {"trace": PARAMS}}, {"opt": MOMENTS}, "keeps all of opt,", {}),
        ({"x": HEAD}, {"x": OTHER, "y": 1}, "keeps all of x,", {}),
        ({"x": HEAD | PARAMS}, {"x": OTHER | PARAMS}, "keeps all of x/head,.* exclude='x/h", {}),
        ({"opt": {"trace": PARAMS}}, {"opt": MOMENTS}, "", {"exclude": "opt"}),
        ({"opt": MOMENTS}, {"state": MOMENTS}, "", {"mapping": {"state": "opt"}}),
        ({}, {"opt": MOMENTS, "ema": PARAMS}, "", {}),
        ({"opt": MOMENTS}, {}, "", {}),
        ({"x": PARAMS | {"old": PARAMS["one"]}}, {"x": PARAMS | HEAD}, "", {}),
        ({"opt": {"trace": PARAMS}}, {"opt": MOMENTS}, "", {"return_report": True}),
        ({"hand": PARAMS}, HEAD, "", {"select": "params"}),
        ({"heads": HEAD["head"]}, HEAD, "keeps head, .* at heads", {"select": ["params", "head"]}),
        ({"x": OTHER}, {"x": HEAD}, "keeps all of x,", {"select": ["params", "x/head/w"]}),
        (HEAD, {"y": 1}, "", {"select": ["params", "y"]}),
        ({"haed": HEAD["head"]}, HEAD, "keeps head, .* at haed .* mapping={'head': 'haed'}", {}),
        ({"x": {"haed": HEAD["head"], **PARAMS}}, {"x": HEAD | PARAMS}, "keeps x/head,", {}),
        ({"x": {"w": 1, "b": 2}}, {"x": {"w": 1, "bias": 2}}, "keeps x/bias, .* at x/b ", {}),
        (
            {"x": {"y": HEAD["head"] | {"b": 1}}},
            {"x": {"y": OTHER["head"] | {"b": 1}}},
            "keeps x/y/kernel, .* at x/y/w ",
            {},
        ),
        ({"x": {"w": 1, "b": 2}}, {"x": {"w": 1, "bias": 2}}, "", {"exclude": "x/bias"}),
        ({"w": 1, "b": 2}, {"w": 1, "c": 2}, "", {}),
        ({"x": {"121": HEAD, **PARAMS}}, {"x": {"12": HEAD, **PARAMS}}, "", {}),
        ({"x": PARAMS}, {"x": PARAMS | HEAD}, "", {}),
        (
            HEAD | {"v": 1},
            {"last": HEAD["head"], "y": 1},
            "mapping= gives leaves at lats that are not used: change mapping=",
            {"mapping": {"lats": "head", "y": "v"}},
        ),
    ],
)
def test_a_subtree_that_stays_beside_unused_leaves_is_a_warning(
    saved: Any, file: Any, template: Any, warning: str, options: Any
) -> None:
    data, template = saved({"params": PARAMS, **file}), {"params": PARAMS, **template}
    expected = pytest.warns(UserWarning, match=warning) if warning else contextlib.nullcontext()
    with expected:
        treepack.load(data, template, missing="target", **options)


def test_a_selection_of_which_the_file_has_nothing(saved: Any) -> None:
    data, template = saved({"params": PARAMS}), {"params": PARAMS, **HEAD}
    with pytest.raises(treepack.MismatchError, match=r"nothing is loaded: .* head/w, the file .*"):
        treepack.load(data, template, select="head", missing="target")
    found, report = treepack.load(
        data, template, select="head", missing="target", return_report=True
    )
    same(found, template)
    assert (report.loaded, len(report.kept)) == ([], 3)
    same(treepack.load(saved({}), template, select="head", missing="target"), template)
    same(treepack.load(data, template, exclude=["params", "head"], missing="target"), template)


def test_a_node_without_leaves_takes_none(saved: Any) -> None:
    """Orbax stores the empty states of optax as `None`."""
    params = {"w": np.ones(3, np.float32)}
    state = optax.adamw(1e-3).init(params)
    stored = {**flax.serialization.to_state_dict(state), "1": None, "2": None}
    for verb in (
        lambda target: treepack.load(saved(stored), target),
        lambda target: treepack.loads(flax.serialization.msgpack_serialize(stored), target),
        lambda target: serialization.from_state_dict(target, stored),
    ):
        same(verb(state), state)
    with pytest.raises(treepack.MismatchError, match=r"0: expected a subtree \(ScaleByAdamState\)"):
        treepack.load(saved({**stored, "0": None}), state)
    with pytest.raises(treepack.MismatchError):
        treepack.load(saved(stored), state, strict="exact")
