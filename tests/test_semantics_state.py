"""State dicts, rule by rule: what flax and eformer do with containers."""

from __future__ import annotations

import collections
import dataclasses
import re
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from eformer.pytree import _xtree, auto_pytree
from eformer.pytree import serialization as eformer
from flax import serialization as flax
from flax import struct
from flax.core import FrozenDict, freeze
from flax.training.train_state import TrainState

import treepack
from treepack import _registry
from trees import assert_same


@pytest.fixture(autouse=True)
def _restore_registries():
    """Takes back what a test registers."""
    registries = [
        _registry._handlers,
        flax._STATE_DICT_REGISTRY,
        eformer._STATE_DICT_REGISTRY,
        _xtree._STATE_DICT_REGISTRY,
    ]
    before = [dict(registry) for registry in registries]
    yield
    for registry, content in zip(registries, before, strict=True):
        registry.clear()
        registry.update(content)


def same_error(call: Any, *arguments: Any) -> str:
    """Returns the text of an error that flax raises as well, word by word."""
    with pytest.raises(ValueError) as theirs:  # noqa: PT011
        getattr(flax, call)(*arguments)
    with pytest.raises(ValueError, match=re.escape(str(theirs.value))) as ours:
        getattr(treepack, call)(*arguments)
    assert str(ours.value) == str(theirs.value)
    return str(theirs.value)


class Point(NamedTuple):
    x: Any
    y: Any


def test_dict():
    target = {1: "a", "b": {2.5: [1]}}
    assert treepack.to_state_dict(target) == flax.to_state_dict(target)
    text = same_error("to_state_dict", {1: "a", "1": "b"})
    assert "unique string representation" in text
    with pytest.raises(ValueError, match="unique string representation"):
        treepack.to_bytes({"x": {1: "a", "1": "b"}})
    # Restoring follows the keys of the target, and their order.
    state = {"b": 1, "1": 2, "a": 3, "extra": 4}
    found = treepack.from_state_dict({1: 0, "a": 0, "b": 0}, state)
    assert list(found.items()) == [(1, 2), ("a", 3), ("b", 1)]
    same_error("from_state_dict", {"a": 1, "z": 2}, {"a": 1})
    same_error("from_state_dict", {"x": {"a": 1}}, {"x": {}})


def test_list_and_tuple():
    target = [1, (2, [3])]
    assert treepack.to_state_dict(target) == {"0": 1, "1": {"0": 2, "1": {"0": 3}}}
    assert treepack.from_state_dict(target, {"1": {"1": {"0": 4}, "0": 5}, "0": 6}) == [6, (5, [4])]
    same_error("from_state_dict", [1, 2], {"0": 1})
    text = same_error("from_state_dict", {"a": ((1, 2),)}, {"a": {"0": {"0": 1}}})
    assert text.endswith("at path ./a/0")


def test_namedtuple():
    target = {"p": Point(1, [2])}
    assert treepack.to_bytes(target, align=1) == flax.to_bytes(target)
    assert treepack.from_state_dict(target, {"p": {"y": {"0": 3}, "x": 4}}) == {"p": Point(4, [3])}
    legacy = {"name": "Point", "fields": {"0": "x", "1": "y"}, "values": {"0": 1, "1": {"0": 2}}}
    assert treepack.from_state_dict(Point(0, [0]), legacy) == Point(1, [2])
    with pytest.raises(ValueError, match=r"named tuple do not match,.* at path \./p"):
        treepack.from_state_dict(target, {"p": {"x": 1}})
    with pytest.raises(ValueError, match="named tuple do not match"):
        treepack.from_state_dict(Point(0, 0), {"x": 1, "y": 2, "z": 3})


def test_partial():
    target = jax.tree_util.Partial(max, jnp.ones(2), key=3)
    assert treepack.to_bytes(target, align=1) == flax.to_bytes(target)
    found = treepack.from_bytes(target, treepack.to_bytes(target))
    assert found.func is max
    assert found.keywords == {"key": 3}
    np.testing.assert_array_equal(found.args[0], np.ones(2))
    assert list(treepack.to_state_dict(target)) == ["args", "keywords"]


@struct.dataclass
class Struct:
    a: Any
    b: Any
    name: str = struct.field(pytree_node=False, default="static")


def test_flax_types():
    params = freeze({"kernel": jnp.ones((2, 3)), "nested": {"bias": jnp.zeros(3)}})
    boxed = nn.Partitioned(jnp.ones((2, 2)), names=("a", None))
    state = TrainState.create(apply_fn=None, params=params, tx=optax.adamw(1e-3))
    for target in (params, boxed, state, Struct(1, [params]), nn.LogicallyPartitioned(1, ("a",))):
        assert treepack.to_bytes(target, align=1) == flax.to_bytes(target)
        found = treepack.from_bytes(target, flax.to_bytes(target))
        assert type(found) is type(target)
        assert jax.tree.structure(found) == jax.tree.structure(target)
        jax.tree.map(np.testing.assert_array_equal, found, target)
    same_error("from_state_dict", Struct(1, 2), {"a": 1})
    same_error("from_state_dict", {"s": Struct(1, 2)}, {"s": {"a": 1, "b": 2, "c": 3, "d": 4}})
    same_error("from_state_dict", FrozenDict({"a": 1}), {})


def test_flax_is_not_imported_for_this():
    import subprocess
    import sys

    code = (
        "import sys, numpy, treepack\n"
        "tree = {'a': numpy.ones(3), 'b': [1, (2,)]}\n"
        "treepack.from_bytes(tree, treepack.to_bytes(tree))\n"
        "others = {'flax', 'eformer', 'msgpack', 'optax', 'msgspec'}\n"
        "loaded = others.intersection(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class Plain:
    def __init__(self, value: Any):
        self.value = value


def test_eformer_types():
    @_xtree.dataclass
    class Tree:
        weight: jax.Array
        name: str = "static"

    @auto_pytree
    class Auto:
        weight: jax.Array

    for target in (Tree(jnp.ones(3)), Auto(jnp.ones(3))):
        encoded = treepack.to_bytes({"t": target})
        assert_same(flax.msgpack_restore(encoded)["t"]["weight"], np.ones(3, np.float32))
        found = treepack.from_bytes({"t": target}, encoded)["t"]
        assert type(found) is type(target)
        np.testing.assert_array_equal(found.weight, np.ones(3))
    eformer.register_serialization_state(
        Plain, lambda x: {"v": x.value}, lambda x, state: Plain(state["v"])
    )
    assert treepack.to_state_dict([Plain(1)]) == {"0": {"v": 1}}
    assert treepack.from_state_dict(Plain(0), {"v": 5}).value == 5


def test_registered_handlers():
    def handlers(name: str) -> tuple[Any, Any]:
        return (lambda x: {name: x.value}), (lambda x, state: Plain((name, state[name])))

    class Fields(NamedTuple):
        value: Any

    @jax.tree_util.register_pytree_with_keys_class
    @dataclasses.dataclass
    class Everything:
        value: Any
        cached: int = 7

        def tree_flatten_with_keys(self):
            return [(jax.tree_util.GetAttrKey("leaf"), self.value)], self.cached

        @classmethod
        def tree_unflatten(cls, aux, children):
            return cls(*children, aux)

    assert treepack.to_state_dict(Everything(1)) == {"leaf": 1}
    assert treepack.from_state_dict(Everything(1, 9), {"leaf": 2}) == Everything(2, 9)
    # A handler for a namedtuple comes before its being one.
    for target in (Everything(1), Fields(1)):
        for register, name in (
            (_xtree.register_serialization_state, "xtree"),
            (eformer.register_serialization_state, "eformer"),
            (flax.register_serialization_state, "flax"),
            (treepack.register_serialization_state, "treepack"),
        ):
            register(type(target), *handlers(name))
            assert treepack.to_state_dict([target]) == {"0": {name: 1}}
            assert flax.msgpack_restore(treepack.to_bytes([target])) == {"0": {name: 1}}
            assert treepack.from_state_dict(target, {name: 3}).value == (name, 3)
    with pytest.raises(ValueError, match='handler for "Fields" is already registered'):
        treepack.register_serialization_state(Fields, *handlers("again"))
    treepack.register_serialization_state(Fields, *handlers("again"), override=True)
    assert treepack.to_state_dict(Fields(1)) == {"again": 1}


def test_handlers_of_builtin_types_can_be_overridden():
    with pytest.raises(ValueError, match='handler for "dict" is already registered'):
        treepack.register_serialization_state(dict, dict, lambda x, s: s)
    treepack.register_serialization_state(
        list, lambda xs: {"items": len(xs)}, lambda xs, s: [s["items"]], override=True
    )
    target = {"a": [1, 2, 3]}
    assert treepack.to_state_dict(target) == {"a": {"items": 3}}
    assert flax.msgpack_restore(treepack.to_bytes(target)) == {"a": {"items": 3}}
    assert treepack.from_bytes(target, treepack.to_bytes(target)) == {"a": [3]}
    flax.register_serialization_state(
        tuple, lambda xs: {"tuple": len(xs)}, lambda xs, s: s["tuple"], override=True
    )
    assert treepack.to_bytes((1, 2), align=1) == flax.to_bytes((1, 2))


def test_none_or_unregistered_target():
    state = {"a": 1}
    assert treepack.from_state_dict(None, state) is state
    assert treepack.from_state_dict(dict, state) is state
    assert treepack.from_state_dict(Plain, state) is state
    assert treepack.from_state_dict(Struct, state) is state
    assert treepack.from_state_dict(Plain(1), state) is state
    assert treepack.from_bytes(None, treepack.to_bytes(state)) == state
    assert treepack.from_bytes(nn.Dense, treepack.to_bytes(state)) == state
    assert treepack.to_state_dict(Plain) is Plain


def test_error_texts():
    assert treepack.current_path() == ""
    seen = []

    def restore(x: Plain, state: Any) -> Plain:
        seen.append(treepack.current_path())
        return Plain(treepack.from_state_dict(x.value, state["v"], name="v"))

    treepack.register_serialization_state(
        Plain, lambda x: {"v": treepack.to_state_dict(x.value)}, restore
    )
    target = {"params": {"Dense_0": [Plain((1, 2))]}}
    state = treepack.to_state_dict(target)
    treepack.from_state_dict(target, state)
    assert seen == ["./params/Dense_0/0"]
    del state["params"]["Dense_0"]["0"]["v"]["1"]
    with pytest.raises(ValueError, match=r"at path \./params/Dense_0/0/v$"):
        treepack.from_state_dict(target, state)
    assert treepack.current_path() == ""
    treepack.register_serialization_state(Plain, lambda x: {1: 2}, restore, override=True)
    for call in (treepack.to_state_dict, treepack.to_bytes):
        with pytest.raises(AssertionError, match="must only have string keys"):
            call([Plain(1)])
        with pytest.raises(TypeError, match="must only have string keys"):
            call([Plain(1)])


def test_mutation():
    inner = {"w": jnp.ones(300), "l": [jnp.ones(2)]}
    treepack.register_serialization_state(Plain, lambda x: x.value, lambda x, s: Plain(s))
    before = dict(inner)
    for in_place in (True, False):
        treepack.msgpack_serialize(inner, in_place)
    treepack.to_bytes(Plain(inner))
    treepack.to_state_dict(Plain(inner))
    assert inner == before
    assert isinstance(inner["w"], jax.Array)


def test_is_serializable():
    for target in ({}, [], (), FrozenDict(), Struct(1, 2), Struct, dict, partial, Plain, 1, "a"):
        if target is not partial:
            assert treepack.is_serializable(target) == flax.is_serializable(target)
    # Which flax cannot save, or does not say so.
    for target in (collections.OrderedDict(), Point(1, 2), collections.OrderedDict, Point):
        assert treepack.is_serializable(target)
