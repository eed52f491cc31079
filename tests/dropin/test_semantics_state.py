"""State dicts, rule by rule: what flax and eformer do with containers."""

from __future__ import annotations

import collections
import dataclasses
import re
from functools import cached_property, partial, wraps
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
from treepack._src.pytree import handlers as _registry
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
        getattr(treepack.serialization, call)(*arguments)
    assert str(ours.value) == str(theirs.value)
    return str(theirs.value)


class Point(NamedTuple):
    x: Any
    y: Any


def test_dict():
    target = {1: "a", "b": {2.5: [1]}}
    assert treepack.serialization.to_state_dict(target) == flax.to_state_dict(target)
    text = same_error("to_state_dict", {1: "a", "1": "b"})
    assert "unique string representation" in text
    with pytest.raises(ValueError, match="unique string representation"):
        treepack.serialization.to_bytes({"x": {1: "a", "1": "b"}})
    # Restoring follows the keys of the target, and their order.
    state = {"b": 1, "1": 2, "a": 3, "extra": 4}
    found = treepack.serialization.from_state_dict({1: 0, "a": 0, "b": 0}, state)
    assert list(found.items()) == [(1, 2), ("a", 3), ("b", 1)]
    same_error("from_state_dict", {"a": 1, "z": 2}, {"a": 1})
    same_error("from_state_dict", {"x": {"a": 1}}, {"x": {}})


def test_list_and_tuple():
    target = [1, (2, [3])]
    assert treepack.serialization.to_state_dict(target) == {"0": 1, "1": {"0": 2, "1": {"0": 3}}}
    assert treepack.serialization.from_state_dict(
        target, {"1": {"1": {"0": 4}, "0": 5}, "0": 6}
    ) == [6, (5, [4])]
    same_error("from_state_dict", [1, 2], {"0": 1})
    text = same_error("from_state_dict", {"a": ((1, 2),)}, {"a": {"0": {"0": 1}}})
    assert text.endswith("at path ./a/0")


def test_namedtuple():
    target = {"p": Point(1, [2])}
    assert treepack.serialization.to_bytes(target, align=1) == flax.to_bytes(target)
    assert treepack.serialization.from_state_dict(target, {"p": {"y": {"0": 3}, "x": 4}}) == {
        "p": Point(4, [3])
    }
    legacy = {"name": "Point", "fields": {"0": "x", "1": "y"}, "values": {"0": 1, "1": {"0": 2}}}
    assert treepack.serialization.from_state_dict(Point(0, [0]), legacy) == Point(1, [2])
    with pytest.raises(ValueError, match=r"named tuple do not match,.* at path \./p"):
        treepack.serialization.from_state_dict(target, {"p": {"x": 1}})
    with pytest.raises(ValueError, match="named tuple do not match"):
        treepack.serialization.from_state_dict(Point(0, 0), {"x": 1, "y": 2, "z": 3})


def test_partial():
    target = jax.tree_util.Partial(max, jnp.ones(2), key=3)
    assert treepack.serialization.to_bytes(target, align=1) == flax.to_bytes(target)
    found = treepack.serialization.from_bytes(target, treepack.serialization.to_bytes(target))
    assert found.func is max
    assert found.keywords == {"key": 3}
    np.testing.assert_array_equal(found.args[0], np.ones(2))
    assert list(treepack.serialization.to_state_dict(target)) == ["args", "keywords"]


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
        assert treepack.serialization.to_bytes(target, align=1) == flax.to_bytes(target)
        found = treepack.serialization.from_bytes(target, flax.to_bytes(target))
        assert type(found) is type(target)
        assert jax.tree.structure(found) == jax.tree.structure(target)
        jax.tree.map(np.testing.assert_array_equal, found, target)
    same_error("from_state_dict", Struct(1, 2), {"a": 1})
    same_error("from_state_dict", {"s": Struct(1, 2)}, {"s": {"a": 1, "b": 2, "c": 3, "d": 4}})
    same_error("from_state_dict", FrozenDict({"a": 1}), {})


@pytest.mark.campaign
def test_flax_is_not_imported_for_this():
    import subprocess
    import sys

    code = (
        "import sys, numpy, treepack\n"
        "tree = {'a': numpy.ones(3), 'b': [1, (2,)]}\n"
        "treepack.serialization.from_bytes(tree, treepack.serialization.to_bytes(tree))\n"
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
        encoded = treepack.serialization.to_bytes({"t": target})
        assert_same(flax.msgpack_restore(encoded)["t"]["weight"], np.ones(3, np.float32))
        found = treepack.serialization.from_bytes({"t": target}, encoded)["t"]
        assert type(found) is type(target)
        np.testing.assert_array_equal(found.weight, np.ones(3))
    eformer.register_serialization_state(
        Plain, lambda x: {"v": x.value}, lambda x, state: Plain(state["v"])
    )
    assert treepack.serialization.to_state_dict([Plain(1)]) == {"0": {"v": 1}}
    assert treepack.serialization.from_state_dict(Plain(0), {"v": 5}).value == 5


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

    assert treepack.serialization.to_state_dict(Everything(1)) == {"leaf": 1}
    assert treepack.serialization.from_state_dict(Everything(1, 9), {"leaf": 2}) == Everything(2, 9)
    # A handler for a namedtuple comes before its being one.
    for target in (Everything(1), Fields(1)):
        for register, name in (
            (_xtree.register_serialization_state, "xtree"),
            (eformer.register_serialization_state, "eformer"),
            (flax.register_serialization_state, "flax"),
            (treepack.serialization.register_serialization_state, "treepack"),
        ):
            # As in flax, what it has already takes an override.
            override = {"override": True} if name == "treepack" else {}
            register(type(target), *handlers(name), **override)
            assert treepack.serialization.to_state_dict([target]) == {"0": {name: 1}}
            assert flax.msgpack_restore(treepack.serialization.to_bytes([target])) == {
                "0": {name: 1}
            }
            assert treepack.serialization.from_state_dict(target, {name: 3}).value == (name, 3)
    with pytest.raises(ValueError, match='handler for "Fields" is already registered'):
        treepack.serialization.register_serialization_state(Fields, *handlers("again"))
    treepack.serialization.register_serialization_state(Fields, *handlers("again"), override=True)
    assert treepack.serialization.to_state_dict(Fields(1)) == {"again": 1}


def test_handlers_of_builtin_types_can_be_overridden():
    with pytest.raises(ValueError, match='handler for "dict" is already registered'):
        treepack.serialization.register_serialization_state(dict, dict, lambda x, s: s)
    treepack.serialization.register_serialization_state(
        list, lambda xs: {"items": len(xs)}, lambda xs, s: [s["items"]], override=True
    )
    target = {"a": [1, 2, 3]}
    assert treepack.serialization.to_state_dict(target) == {"a": {"items": 3}}
    assert flax.msgpack_restore(treepack.serialization.to_bytes(target)) == {"a": {"items": 3}}
    assert treepack.serialization.from_bytes(target, treepack.serialization.to_bytes(target)) == {
        "a": [3]
    }
    flax.register_serialization_state(
        tuple, lambda xs: {"tuple": len(xs)}, lambda xs, s: s["tuple"], override=True
    )
    assert treepack.serialization.to_bytes((1, 2), align=1) == flax.to_bytes((1, 2))


def test_none_or_unregistered_target():
    state = {"a": 1}
    assert treepack.serialization.from_state_dict(None, state) is state
    assert treepack.serialization.from_state_dict(dict, state) is state
    assert treepack.serialization.from_state_dict(Plain, state) is state
    assert treepack.serialization.from_state_dict(Struct, state) is state
    assert treepack.serialization.from_state_dict(Plain(1), state) is state
    assert treepack.serialization.from_bytes(None, treepack.serialization.to_bytes(state)) == state
    assert (
        treepack.serialization.from_bytes(nn.Dense, treepack.serialization.to_bytes(state)) == state
    )
    assert treepack.serialization.to_state_dict(Plain) is Plain


def test_error_texts():
    assert treepack.serialization.current_path() == ""
    seen = []

    def restore(x: Plain, state: Any) -> Plain:
        seen.append(treepack.serialization.current_path())
        return Plain(treepack.serialization.from_state_dict(x.value, state["v"], name="v"))

    treepack.serialization.register_serialization_state(
        Plain, lambda x: {"v": treepack.serialization.to_state_dict(x.value)}, restore
    )
    target = {"params": {"Dense_0": [Plain((1, 2))]}}
    state = treepack.serialization.to_state_dict(target)
    treepack.serialization.from_state_dict(target, state)
    assert seen == ["./params/Dense_0/0"]
    del state["params"]["Dense_0"]["0"]["v"]["1"]
    with pytest.raises(ValueError, match=r"at path \./params/Dense_0/0/v\n"):
        treepack.serialization.from_state_dict(target, state)
    assert treepack.serialization.current_path() == ""
    treepack.serialization.register_serialization_state(
        Plain, lambda x: {1: 2}, restore, override=True
    )
    for call in (treepack.serialization.to_state_dict, treepack.serialization.to_bytes):
        with pytest.raises(AssertionError, match="must only have string keys"):
            call([Plain(1)])
        with pytest.raises(TypeError, match="must only have string keys"):
            call([Plain(1)])


def test_mutation():
    inner = {"w": jnp.ones(300), "l": [jnp.ones(2)]}
    treepack.serialization.register_serialization_state(
        Plain, lambda x: x.value, lambda x, s: Plain(s)
    )
    before = dict(inner)
    for in_place in (True, False):
        treepack.serialization.msgpack_serialize(inner, in_place)
    treepack.serialization.to_bytes(Plain(inner))
    treepack.serialization.to_state_dict(Plain(inner))
    assert inner == before
    assert isinstance(inner["w"], jax.Array)


def test_is_serializable():
    for target in ({}, [], (), FrozenDict(), Struct(1, 2), Struct, dict, partial, Plain, 1, "a"):
        if target is not partial:
            assert treepack.serialization.is_serializable(target) == flax.is_serializable(target)
    # Which flax cannot save, or does not say so.
    for target in (collections.OrderedDict(), Point(1, 2), collections.OrderedDict, Point):
        assert treepack.serialization.is_serializable(target)


def test_counters_are_set_and_not_added():
    found = treepack.serialization.from_bytes(
        collections.Counter(a=1), treepack.serialization.to_bytes(collections.Counter(a=5))
    )
    assert found == collections.Counter(a=5)

    class Shouting(dict):
        def update(self, *_: Any) -> None:
            raise AssertionError("not called")

    found = treepack.serialization.from_bytes(
        Shouting(a=1), treepack.serialization.to_bytes({"a": 2})
    )
    assert type(found) is Shouting
    assert found == {"a": 2}


def test_dataclasses_do_not_inherit_what_was_derived_from_the_template():
    @dataclasses.dataclass
    class Weights:
        w: Any
        count: int = dataclasses.field(init=False, default=3)

        @cached_property
        def total(self) -> float:
            return float(np.sum(self.w))

    template = Weights(np.zeros(3))
    assert template.total == 0
    saved = Weights(np.ones(3))
    saved.count = 7
    found = treepack.serialization.from_bytes(template, treepack.serialization.to_bytes(saved))
    assert found.total == 3
    assert found.count == 7


def test_big_endian_templates():
    target = {"a": np.arange(3, dtype=">f4"), "b": np.array([1, 2], ">M8[s]")}
    found = treepack.serialization.from_bytes(target, treepack.serialization.to_bytes(target))
    np.testing.assert_array_equal(found["a"], target["a"])
    swapped = flax.from_bytes(None, flax.to_bytes({"a": np.zeros(3, "<f4")}))
    treepack.serialization.from_state_dict({"a": np.zeros(3, ">f4")}, swapped)
    treepack.serialization.from_state_dict(swapped, {"a": np.zeros(3, ">f4")})


def test_templates_that_a_handler_cannot_serialize():
    register = flax.register_serialization_state
    register(Plain, lambda p: {"x": np.asarray(p.value)}, lambda p, s: Plain(s["x"]))
    encoded = flax.to_bytes({"p": Plain(np.ones(3))})
    shape = jax.ShapeDtypeStruct((3,), np.float64)
    for template in (Plain(shape), Plain(None)):
        found = treepack.serialization.from_bytes({"p": template}, encoded)["p"].value
        np.testing.assert_array_equal(found, np.ones(3))
    register(Plain, lambda p: {"x": p.value.tolist()}, lambda p, s: Plain(s["x"]), override=True)
    assert treepack.serialization.from_bytes(
        Plain(None), flax.to_bytes(Plain(np.ones(2)))
    ).value == [1, 1]


def test_handlers_may_try_another_way():
    def restore(x: Plain, state: Any) -> Plain:
        try:
            new = treepack.serialization.from_state_dict({"w": np.ones(3), "n": {"k": 1}}, state)
        except ValueError:
            new = treepack.serialization.from_state_dict({"w": np.ones(2)}, {"w": state["w"]})
        return Plain(new)

    treepack.serialization.register_serialization_state(Plain, lambda x: 1 / 0, restore)
    found = treepack.serialization.from_state_dict(
        {"a": Plain(0)}, {"a": {"w": np.zeros(2), "n": {}}}
    )
    assert found["a"].value["w"].shape == (2,)


def test_handlers_may_be_lenient_in_part_and_nothing_is_reported_twice():
    def handlers(**options: Any) -> tuple[Any, Any]:
        return (
            lambda x: {"w": x.value},
            lambda x, s: Plain(treepack.serialization.from_state_dict(x.value, s["w"], **options)),
        )

    treepack.serialization.register_serialization_state(Plain, *handlers())
    with pytest.raises(treepack.MismatchError) as caught:
        treepack.serialization.from_state_dict({"a": Plain(np.ones(3))}, {"a": {"w": np.ones(2)}})
    assert [m.path for m in caught.value.mismatches] == ["a/w"]

    def lenient(x: Plain, state: Any) -> Plain:
        return Plain(treepack.serialization.from_state_dict(np.ones(3), state["w"], strict=False))

    treepack.serialization.register_serialization_state(
        Plain, lambda x: 1 / 0, lenient, override=True
    )
    target = {"a": Plain(0), "b": np.ones(3)}
    found = treepack.serialization.from_state_dict(
        target, {"a": {"w": np.ones(2)}, "b": np.ones(3)}
    )
    assert found["a"].value.shape == (2,)
    with pytest.raises(treepack.MismatchError, match=r"b"):
        treepack.serialization.from_state_dict(target, {"a": {"w": np.ones(2)}, "b": np.ones(2)})


def test_static_metadata_means_nothing_to_flax_structs():
    @struct.dataclass
    class Two:
        a: Any
        b: Any = dataclasses.field(default=3, metadata={"static": True})

    assert treepack.serialization.to_bytes(Two(1, 5), align=1) == flax.to_bytes(Two(1, 5))
    assert treepack.serialization.from_bytes(Two(0, 0), flax.to_bytes(Two(1, 5))) == Two(1, 5)


def test_handlers_of_any_make():
    class Mapping(dict):
        pass

    treepack.serialization.register_serialization_state(Mapping, dict.copy, lambda x, s: Mapping(s))
    assert treepack.serialization.to_state_dict(Mapping(a=1)) == {"a": 1}

    @struct.dataclass
    class Versioned:
        a: Any

    original = flax._STATE_DICT_REGISTRY[Versioned][0]

    @wraps(original)
    def with_version(x: Any) -> Any:
        return {**original(x), "version": 1}

    flax.register_serialization_state(
        Versioned, with_version, lambda x, s: Versioned(s["a"]), override=True
    )
    assert treepack.serialization.to_bytes(Versioned(1), align=1) == flax.to_bytes(Versioned(1))


def test_current_path_of_flax_inside_its_handlers():
    seen = []

    def restore(x: Plain, state: Any) -> Plain:
        seen.append(flax.current_path())
        return Plain(flax.from_state_dict(x.value, state["x"], name="x"))

    flax.register_serialization_state(Plain, lambda x: {"x": flax.to_state_dict(x.value)}, restore)
    same_error("from_state_dict", {"q": [Plain([1, 2])]}, {"q": {"0": {"x": {"0": 1}}}})
    assert seen == ["./q/0", "./q/0"]
    assert flax.current_path() == ""


def test_hostile_states():
    legacy = {"name": 1, "fields": 2, "values": 3}
    fields = {**legacy, "fields": {"0": "x", "1": "y"}}
    for state in (legacy, fields, {**fields, "values": {"0": 1}}):
        with pytest.raises(ValueError, match="path"):
            treepack.serialization.from_state_dict(Point(1, 2), state)
    with pytest.raises(treepack.MismatchError, match=r"a"):
        treepack.serialization.from_state_dict({"a": np.ones(2)}, {"a": {1: 1, "b": 2}})


def test_a_partial_state_may_hold_more():
    target = jax.tree_util.Partial(max, 1)
    state = {"args": {"0": 2}, "keywords": {}, "version": 1}
    assert (
        treepack.serialization.from_state_dict(target, state).args
        == flax.from_state_dict(target, state).args
    )
