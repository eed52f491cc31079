"""Modules and variables of nnx that are in several places are one object again after a load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax import serialization as flax_serialization

import treepack
from treepack import serialization
from treepack._src.pytree.ties import tied
from treepack._src.registry.placeholders import LeftOut
from treepack._src.restore import ties as restored_ties


class Model(nnx.Module):
    """A tied embedding, a shared submodule, and a shared node in a list."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(4, 3, rngs=rngs)
        self.one = nnx.Linear(3, 3, rngs=rngs)
        self.two = self.one
        self.head = self.embed.embedding
        self.rest = nnx.List([self.one, nnx.Linear(3, 3, rngs=rngs)])


def model(seed: int = 0) -> Model:
    return Model(nnx.Rngs(seed))


def is_tied(found: Any) -> bool:
    same = found.one is found.two is found.rest[0] and found.head is found.embed.embedding
    return same and found.rest[1] is not found.one


def saved(path: Path, **options: Any) -> Path:
    treepack.save(path, model(), **options)
    return path


def series(path: Path, like: Any, **options: Any) -> Any:
    run = treepack.Series(path)
    run.save(3, model())
    return run.resume(like, **options)[1]


def published(path: Path, like: Any, **options: Any) -> Any:
    tree = model()
    publisher, subscriber = treepack.Publisher(path), treepack.Subscriber(path)
    publisher.push(tree, version=1)
    subscriber.latest(like, **options)
    tree.one.kernel[...] += 1
    publisher.push(tree, version=2)
    return subscriber.latest(like, **options)[1]


def patched(_: Path, like: Any, **options: Any) -> Any:
    base, tree = treepack.dumps(model()), model()
    tree.one.kernel[...] += 1
    return treepack.loads(treepack.dumps(tree, base=base), like, base=base, **options)


def opened(path: Path, like: Any, **options: Any) -> Any:
    treepack.save(path, {"a": {"m": model()}})
    with treepack.open(path) as file:
        return file["a"]["m"].load(like, **options)


FORMS: dict[str, Callable[..., Any]] = {
    "file": lambda path, like, **more: treepack.load(saved(path), like, **more),
    "gzip": lambda path, like, **more: treepack.load(saved(path, compress=True), like, **more),
    "sharded": lambda path, like, **more: treepack.load(saved(path, sharded=True), like, **more),
    "bytes": lambda _, like, **more: treepack.loads(treepack.dumps(model()), like, **more),
    "report": lambda path, like, **more: treepack.load(
        saved(path), like, return_report=True, **more
    )[0],
    "patch": patched,
    "part": opened,
    "series": series,
    "published": published,
}


@pytest.mark.parametrize("form", FORMS)
def test_shared_nodes_are_restored(form: str, tmp_path: Path) -> None:
    templates = {
        "with": model(1),
        "nnx": nnx.eval_shape(model),
        "jax": jax.eval_shape(model),
    }
    for name, template in templates.items():
        found = FORMS[form](tmp_path / name, template)
        assert is_tied(found), name
        assert np.array_equal(found.head[...], model().head[...])
    assert is_tied(FORMS[form](tmp_path / "without", None, static=model()))


@pytest.mark.parametrize("form", ["safetensors", "state", "from_bytes"])
def test_forms_without_a_record_take_the_ties_of_the_template(form: str, tmp_path: Path) -> None:
    path, tree = tmp_path / "m.safetensors", model()
    if form == "safetensors":
        treepack.save(path, tree)
        found = treepack.load(path, model(1))
    elif form == "state":
        found = serialization.from_state_dict(model(1), serialization.to_state_dict(tree))
    else:
        found = serialization.from_bytes(model(1), serialization.to_bytes(tree))
    assert is_tied(found)
    assert np.array_equal(found.head[...], tree.head[...])


def test_optimizers_and_states_of_tied_modules(tmp_path: Path) -> None:
    def state(seed: int) -> Any:
        tree = model(seed)
        return {"m": tree, "o": nnx.Optimizer(tree, optax.adam(1e-3), wrt=nnx.Param), "ema": [tree]}

    treepack.save(tmp_path / "f", state(0))
    found = treepack.load(tmp_path / "f", state(1))
    assert is_tied(found["m"])
    assert found["ema"][0] is found["m"]

    definition, split = nnx.split(model())
    treepack.save(tmp_path / "s", split)
    for loaded in (treepack.load(tmp_path / "s"), treepack.load(tmp_path / "s", split)):
        assert is_tied(nnx.merge(definition, loaded))


def test_abstract_trees_are_tied_and_serve_as_templates(tmp_path: Path) -> None:
    abstract = treepack.abstract(saved(tmp_path / "f"), static=model())
    assert is_tied(abstract)
    assert is_tied(treepack.load(tmp_path / "f", abstract))


def test_a_selected_part_moves_what_shares_it(tmp_path: Path) -> None:
    saved(tmp_path / "f")
    found = treepack.load(tmp_path / "f", model(1), select="rest/0")
    assert is_tied(found)
    assert np.array_equal(found.one.kernel[...], model().one.kernel[...])
    assert np.array_equal(found.head[...], model(1).head[...])

    state = serialization.to_state_dict(model())
    del state["head"], state["two"]  # as nnx.state has them
    treepack.save(tmp_path / "state", state)
    found = treepack.load(tmp_path / "state", model(1), missing="target")
    assert is_tied(found)
    assert np.array_equal(found.head[...], model().head[...])


def test_what_is_not_shared_stays_apart(tmp_path: Path) -> None:
    treepack.save(tmp_path / "f", {"a": model(), "b": model()})
    found = treepack.load(tmp_path / "f", {"a": model(1), "b": model(1)})
    assert found["a"] is not found["b"]
    assert is_tied(found["a"])


def test_a_template_of_separate_arrays_is_a_mismatch(tmp_path: Path) -> None:
    saved(tmp_path / "f")
    apart = jax.tree.map(jnp.zeros_like, model())
    with pytest.raises(treepack.MismatchError, match="head: expected a node of its own") as raised:
        treepack.load(tmp_path / "f", apart)
    assert "strict=False" in str(raised.value)
    assert "jax.eval_shape" in str(raised.value)
    found = treepack.load(tmp_path / "f", apart, strict=False)
    assert found.one is not found.two
    assert np.array_equal(found.two.kernel[...], model().one.kernel[...])


def test_several_values_for_a_shared_node_are_a_mismatch(tmp_path: Path) -> None:
    apart = jax.tree.map(lambda x: x, model())
    apart.two.kernel[...] += 1
    treepack.save(tmp_path / "f", apart)
    with pytest.raises(treepack.MismatchError, match="two/kernel: expected the values of one"):
        treepack.load(tmp_path / "f", model(1))
    found = treepack.load(tmp_path / "f", model(1), strict=False)
    assert not np.array_equal(found.two.kernel[...], found.one.kernel[...])


def test_flax_reads_all_places() -> None:
    state = flax_serialization.msgpack_restore(treepack.dumps(model()))
    del state["__treepack__"]
    assert np.array_equal(state["head"]["value"], state["embed"]["embedding"]["value"])


@pytest.mark.parametrize(
    "ties",
    [
        [("a", "a/b")],
        [("a/b", "a")],
        [("b", "a"), ("a", "b")],
        [("a", "b"), ("b", "c")],
        [("x/y", "a"), ("a", "x")],
        [(".", "a"), ("a", ".")],
    ],
)
def test_hostile_ties(ties: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    leaf = nnx.Param(jnp.ones(2))
    tree = {"a": nnx.Dict(b=leaf), "b": nnx.Dict(b=leaf), "c": 1}
    monkeypatch.setattr(LeftOut, "ties", lambda *_: ties)
    data = treepack.dumps(tree)
    try:
        found = treepack.loads(data)
    except treepack.DecodeError:
        return
    assert set(found) == {"a", "b", "c"}


def test_a_node_that_contains_itself_by_ties_is_an_error() -> None:
    tree = nnx.Dict(a=nnx.Dict(b=nnx.Dict()))
    with pytest.raises(treepack.DecodeError, match="contains itself"):
        tied({"x": tree}, [("x", "x/a")])


def test_long_chains_of_ties_take_linear_time():
    class Counted(dict):
        lookups = 0

        def __contains__(self, path: object) -> bool:
            Counted.lookups += 1
            return super().__contains__(path)

    groups = restored_ties._Groups([])
    groups._first = Counted()
    count = 2000
    for number in range(count):
        groups.join(str(number + 1), str(number))
    assert {first for first, _ in groups.ties()} == {str(count)}
    assert Counted.lookups < 10 * count


@pytest.mark.skipif(not hasattr(nnx, "var_defaults"), reason="newer versions of flax have them")
@pytest.mark.parametrize("ref", [False, True])
@pytest.mark.parametrize("part", ["module", "state", "dict"])
def test_hijax_variables_are_saved_by_their_values(ref: bool, part: str) -> None:
    """JAX takes them for leaves."""
    with nnx.var_defaults(hijax=True, ref=ref):
        one, other = model(), model(1)
    parts: Any = {
        "module": lambda tree: tree,
        "state": nnx.state,
        "dict": lambda tree: {"head": tree.head, "kernel": tree.one.kernel},
    }[part]
    tree, like = parts(one), parts(other)
    found = treepack.loads(treepack.dumps(tree), like)
    also = serialization.from_bytes(like, serialization.to_bytes(tree))
    for again in (found, also):
        pairs = zip(*map(jax.tree.leaves, (again, tree)), strict=True)
        for new, old in pairs:
            assert type(new) is type(old)
            if isinstance(old, nnx.Variable):
                assert new is not old
                assert new.get_metadata() == old.get_metadata()
                np.testing.assert_array_equal(new.get_value(), old.get_value())
    if part == "module":
        assert is_tied(found)
    if part == "dict":
        pure = treepack.loads(treepack.dumps(tree), containers="plain")
        np.testing.assert_array_equal(pure["head"]["value"], one.head.get_value())
