"""Where flax has a defect: what treepack does instead, case by case."""

from __future__ import annotations

import collections
import dataclasses
import enum
import gzip
import time
from typing import Any

import equinox
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from eformer.pytree import serialization as eformer
from flax import nnx, struct
from flax import serialization as flax

import treepack
from lapses import Measured
from treepack import errors
from trees import assert_same


def refused(tree: Any, path: str, *words: str) -> None:
    """Checks that a tree cannot be saved, and that the error tells where and why."""
    for save in (treepack.serialization.to_bytes, treepack.serialization.msgpack_serialize):
        with pytest.raises(TypeError) as caught:
            save(tree)
        assert isinstance(caught.value, treepack.UnserializableLeafError)
        assert caught.value.path == path
        for word in (path, *words):
            assert word in str(caught.value)
    valid, issues = treepack.serialization.validate_serializable(tree)
    assert not valid
    assert issues[0].startswith(path + ": ")


def test_wrong_shape_or_dtype_against_the_template():
    target = {"a": {"w": np.zeros((2, 3), np.float32)}, "b": [jnp.zeros(4), 1], "n": 3}
    right = {"a": {"w": np.ones((2, 3), np.float32)}, "b": [np.ones(4, np.float32), 2.5], "n": "x"}
    assert_same(
        treepack.serialization.from_bytes(target, treepack.serialization.to_bytes(right)), right
    )
    wrong = {"a": {"w": np.ones((3, 2), np.float32)}, "b": [np.ones(4, np.float16), 2], "n": 3}
    encoded = treepack.serialization.to_bytes(wrong)
    for call in (
        lambda **options: treepack.serialization.from_bytes(target, encoded, **options),
        lambda **options: treepack.serialization.from_state_dict(
            target, treepack.serialization.to_state_dict(wrong), **options
        ),
        lambda **options: treepack.serialization.from_compressed_bytes(
            target, treepack.serialization.to_compressed_bytes(wrong), **options
        ),
    ):
        with pytest.raises(treepack.MismatchError) as caught:
            call()
        assert caught.value.mismatches == [
            errors.Mismatch("a/w", "float32[2,3]", "float32[3,2]"),
            errors.Mismatch("b/0", "float32[4]", "float16[4]"),
        ]
        for line in ("a/w: expected float32[2,3], found float32[3,2]", "b/0", "strict=False"):
            assert line in str(caught.value)
        assert_same(call(strict=False), flax.from_bytes(target, encoded))


def test_a_template_may_be_abstract():
    params = {"w": jnp.ones((2, 3), jnp.bfloat16), "b": [np.float32(2)]}
    encoded = treepack.serialization.to_bytes(params)
    shapes = jax.eval_shape(lambda: params)
    assert_same(
        treepack.serialization.from_bytes(shapes, encoded)["w"], np.ones((2, 3), ml_dtypes.bfloat16)
    )
    wrong = jax.eval_shape(lambda: {"w": jnp.ones((2, 4), jnp.bfloat16), "b": [jnp.float32(2)]})
    with pytest.raises(treepack.MismatchError, match=r"w: expected bfloat16\[2,4\]"):
        treepack.serialization.from_bytes(wrong, encoded)


def test_mismatches_inside_handlers_of_others():
    @struct.dataclass
    class Inner:
        w: Any

    class Outer:
        def __init__(self, value: Any):
            self.value = value

    treepack.serialization.register_serialization_state(
        Outer,
        lambda x: {"v": flax.to_state_dict(x.value)},
        lambda x, state: Outer(flax.from_state_dict(x.value, state["v"])),
    )
    target = {"o": Outer({"k": np.zeros(2)}), "i": Inner(np.zeros(3))}
    wrong = {"o": {"v": {"k": np.zeros(5)}}, "i": {"w": np.zeros(7)}}
    with pytest.raises(treepack.MismatchError) as caught:
        treepack.serialization.from_state_dict(target, wrong)
    paths = [mismatch.path for mismatch in caught.value.mismatches]
    assert sorted(paths) == ["i/w", "o/v/k"]
    assert treepack.serialization.from_state_dict(target, wrong, strict=False)["o"].value[
        "k"
    ].shape == (5,)


def test_extra_keys_in_the_file():
    target = {"a": {"w": np.zeros(2)}}
    encoded = treepack.serialization.to_bytes({"a": {"w": np.ones(2), "old": 1}, "more": 2})
    for strict in (True, False):
        assert_same(
            treepack.serialization.from_bytes(target, encoded, strict=strict),
            {"a": {"w": np.ones(2)}},
        )
    with pytest.raises(treepack.MismatchError) as caught:
        treepack.serialization.from_bytes(target, encoded, strict="exact")
    assert sorted(m.path for m in caught.value.mismatches) == ["a/old", "more"]
    exact = treepack.serialization.to_bytes({"a": {"w": np.ones(2)}})
    assert_same(
        treepack.serialization.from_bytes(target, exact, strict="exact"), {"a": {"w": np.ones(2)}}
    )
    with pytest.raises(ValueError, match="strict must be"):
        treepack.serialization.from_bytes(target, exact, strict="yes")


def test_array_against_subtree():
    array, subtree = {"a": {"w": np.zeros(2)}}, {"a": {"w": {"x": np.zeros(2)}}}
    for strict in (True, False, "exact"):
        with pytest.raises(ValueError, match=r"subtree .* at path \./a/w"):
            treepack.serialization.from_bytes(
                subtree, treepack.serialization.to_bytes(array), strict=strict
            )
    for target in (subtree, {"a": {"w": [1]}}, {"a": {"w": collections.OrderedDict(x=1)}}):
        with pytest.raises(treepack.MismatchError, match=r"a/w"):
            treepack.serialization.from_state_dict(target, array)
    with pytest.raises(treepack.MismatchError, match=r"a/w: expected float64\[2\], found a sub"):
        treepack.serialization.from_bytes(array, treepack.serialization.to_bytes(subtree))
    found = treepack.serialization.from_bytes(
        array, treepack.serialization.to_bytes(subtree), strict=False
    )
    assert_same(found, subtree)


def test_big_endian_arrays():
    for array in (np.arange(3, dtype=">i4"), np.arange(4, dtype=">f8")[::2], np.array(7, ">u2")):
        found = treepack.serialization.from_bytes(
            None, treepack.serialization.to_bytes({"a": array})
        )["a"]
        assert found.dtype == array.dtype.newbyteorder("=")
        np.testing.assert_array_equal(found, array)
        assert treepack.serialization.to_bytes(array, align=1) == flax.to_bytes(
            array.astype(found.dtype)
        )


@pytest.mark.parametrize(
    "value",
    [
        np.array(["a", "b"]),
        np.array([b"a"]),
        np.zeros(2, "V8"),
        np.zeros(2, [("a", "f4"), ("b", "i4")]),
        np.zeros(2, [("a", "f4")])[0],
        np.str_("text"),
        np.bytes_(b"bytes"),
        np.array(["a"], np.dtypes.StringDType()),
    ],
    ids=repr,
)
def test_str_void_bytes_and_structured_arrays(value: Any):
    refused({"a": [{"b": value}]}, "a/0/b", "dtype")


def test_object_and_masked_arrays():
    refused({"a": np.array([None, 1])}, "a", "dtype")
    refused({"a": np.ma.masked_array([1, 2], [True, False])}, "a", "mask")
    refused({"a": Measured(np.ones(2), "m")}, "a", "attributes")
    for mask in (np.ma.nomask, [False, False]):
        whole = {"a": np.ma.masked_array([1.0, 2.0], mask)}
        encoded = treepack.serialization.to_bytes(whole, align=1)
        assert encoded == flax.to_bytes({"a": whole["a"].data})
        assert type(treepack.loads(treepack.dumps(whole), whole)["a"]) is np.ndarray


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_typed_prng_keys(impl: str):
    keys = {"one": jax.random.key(3, impl=impl), "many": jax.random.split(jax.random.key(4), 3)}
    encoded = treepack.serialization.to_bytes(keys)
    plain = flax.msgpack_restore(encoded)
    assert plain["one"]["__prng_key__"] == impl
    assert_same(plain["one"]["data"], np.asarray(jax.random.key_data(keys["one"])))
    for found in (
        treepack.serialization.from_bytes(keys, encoded),
        treepack.serialization.msgpack_restore(encoded, copy=True),
        treepack.serialization.from_state_dict(keys, plain),
        treepack.serialization.msgpack_restore(treepack.serialization.msgpack_serialize(keys)),
        treepack.serialization.msgpack_restore(treepack.serialization.msgpack_serialize(plain)),
    ):
        for name, key in keys.items():
            assert found[name].dtype == key.dtype
            assert jax.random.key_impl(found[name]) == jax.random.key_impl(key)
            expected = jax.random.normal(key) if key.shape == () else jax.random.key_data(key)
            again = found[name]
            actual = jax.random.normal(again) if again.shape == () else jax.random.key_data(again)
            np.testing.assert_array_equal(actual, expected)
    shapes = jax.eval_shape(lambda: keys)
    assert treepack.serialization.from_state_dict(shapes, plain)["one"].dtype == keys["one"].dtype
    with pytest.raises(treepack.MismatchError, match=r"key<threefry2x32>\[2\]"):
        treepack.serialization.from_bytes({"many": jax.random.split(jax.random.key(0), 2)}, encoded)


def test_many_prng_keys():
    keys = jax.random.split(jax.random.key(0), 20_000)  # 160 kB of key data
    found = treepack.serialization.msgpack_restore(treepack.serialization.to_bytes([keys]))["0"]
    np.testing.assert_array_equal(jax.random.key_data(found), jax.random.key_data(keys))


def test_what_only_looks_like_a_prng_key_stays_a_dict():
    for value in (
        {"__prng_key__": "threefry2x32", "data": 1},
        {"__prng_key__": "no such", "data": np.zeros(2, np.uint32)},
        {"__prng_key__": 1, "data": np.zeros(2, np.uint32)},
        {"__prng_key__": "threefry2x32", "data": np.zeros(3, np.uint32)},
        {"__prng_key__": "threefry2x32", "data": np.zeros(2, np.uint32), "x": 1},
        {"__prng_key__": "x"},
    ):
        assert_same(
            treepack.serialization.msgpack_restore(treepack.serialization.msgpack_serialize(value)),
            value,
        )


class Config(dict):
    pass


class Layers(list):
    pass


@dataclasses.dataclass(frozen=True)
class Frozen:
    w: Any
    inner: Any
    static: str = dataclasses.field(default="s", metadata={"static": True})

    def __post_init__(self):
        assert self.static in ("s", "t")


@dataclasses.dataclass(slots=True)
class Slots:
    w: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Registered:
    w: Any
    name: str = dataclasses.field(metadata={"static": True}, default="n")


def containers() -> dict[str, Any]:
    w = jnp.arange(3.0)
    config, layers = Config(a=w), Layers([w, w])
    config.note = "kept"
    return {
        "OrderedDict": collections.OrderedDict(b=w, a=w),
        "defaultdict": collections.defaultdict(list, b=w, a=w),
        "Counter": collections.Counter(a=3),
        "dict subclass": config,
        "list subclass": layers,
        "frozen dataclass": Frozen(w, {"x": (w,)}, "t"),
        "slots dataclass": Slots([w]),
        "register_dataclass": Registered(w, "m"),
        "equinox": equinox.nn.MLP(2, 3, 4, 1, key=jax.random.key(0)),
        "nnx.State": nnx.state(nnx.Linear(2, 3, rngs=nnx.Rngs(0))),
        "nested": {"a": [collections.OrderedDict(x=Slots((w, Registered(w))))]},
    }


@pytest.mark.parametrize("name", containers())
def test_containers_that_flax_does_not_know(name: str):
    target = {"tree": containers()[name]}
    encoded = treepack.serialization.to_bytes(target)
    state = treepack.serialization.to_state_dict(target)
    # Without a template: plain dicts, for flax as well.
    plain = treepack.serialization.msgpack_restore(encoded)
    assert_same(flax.msgpack_restore(encoded), plain)
    assert plain.keys() == state.keys()
    found = treepack.serialization.from_bytes(target, encoded)["tree"]
    expected = target["tree"]
    assert type(found) is type(expected)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        if isinstance(b, (jax.Array, int)):
            np.testing.assert_array_equal(a, b)
    if isinstance(expected, (dict, list)):
        assert list(found) is not list(expected)
        assert getattr(found, "note", None) == getattr(expected, "note", None)
    if name == "OrderedDict":
        assert list(plain["tree"]) == list(found) == ["b", "a"]
    if name == "defaultdict":
        assert found.default_factory is list
    if name == "frozen dataclass":
        assert found.static == "t"
        assert list(plain["tree"]) == ["w", "inner"]


def test_containers_inside_flax_types():
    @struct.dataclass
    class State:
        params: Any
        extra: Any

    target = State({"w": jnp.ones(2)}, collections.OrderedDict(a=[Slots(jnp.ones(3))]))
    found = treepack.serialization.from_bytes(target, treepack.serialization.to_bytes(target))
    assert type(found.extra) is collections.OrderedDict
    assert type(found.extra["a"][0]) is Slots
    np.testing.assert_array_equal(found.extra["a"][0].w, np.ones(3))


def test_tuple_in_msgpack_serialize():
    assert treepack.serialization.msgpack_serialize((1, (2, [3]))) == flax.msgpack_serialize(
        [1, [2, [3]]]
    )


def test_large_arrays_inside_a_raw_list(chunk_size: Any):
    chunk_size(64)
    tree = [np.arange(100), {"a": [np.arange(50.0), 1]}]
    found = treepack.serialization.msgpack_restore(treepack.serialization.msgpack_serialize(tree))
    assert_same(found, tree)


def test_the_chunk_marker_as_a_key():
    for save in (treepack.serialization.to_bytes, treepack.serialization.msgpack_serialize):
        with pytest.raises(ValueError, match=r"a.*__msgpack_chunked_array__.*reserved"):
            save({"a": {"__msgpack_chunked_array__": 1}})


class Color(enum.IntEnum):
    RED = 1


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (object(), "object"),
        (Color.RED, ".value"),
        (Text("x"), "str"),
        (range(3), "range"),
        (len, "built"),
    ],
)
def test_unserialisable_leaf(value: Any, hint: str):
    refused({"a": [1, {"b": value}]}, "a/1/b", hint)
    refused(value, ".", hint)


def test_traced_values():
    def save(x: jax.Array) -> jax.Array:
        treepack.serialization.to_bytes({"x": x})
        return x

    with pytest.raises(TypeError, match=r"x: .*traced.*outside of jit"):
        jax.jit(save)(1.0)


def test_restored_arrays():
    tree = {"aligned": np.arange(1000.0), "odd": np.arange(3.0), "empty": np.zeros(0)}
    encoded = treepack.serialization.to_bytes(tree)
    views = treepack.serialization.msgpack_restore(encoded)
    copies = treepack.serialization.msgpack_restore(encoded, copy=True)
    for name in tree:
        assert not views[name].flags.writeable
        assert copies[name].flags.writeable
        assert copies[name].flags.owndata
        copies[name][...] = 7
    assert not views["aligned"].flags.owndata
    assert np.shares_memory(views["aligned"], np.frombuffer(encoded, np.uint8))
    assert_same(treepack.serialization.msgpack_restore(encoded), tree)
    failures = 0
    for before in range(8):  # one of them is aligned by chance
        encoded = treepack.serialization.to_bytes({"x": "x" * before, "odd": tree["odd"]})
        try:
            treepack.serialization.msgpack_restore(encoded, copy=False)
        except treepack.DecodeError as error:
            assert "copy=False" in str(error)  # noqa: PT017
            assert error.path == "odd"  # noqa: PT017
            failures += 1
    assert failures == 7
    only = treepack.serialization.msgpack_restore(
        treepack.serialization.to_bytes({"a": tree["aligned"]}), copy=False
    )
    assert_same(only, {"a": tree["aligned"]})


def test_arrays_keep_their_source_alive_and_in_place():
    source = bytearray(treepack.serialization.to_bytes({"a": np.arange(1000.0)}))
    array = treepack.serialization.msgpack_restore(source)["a"]
    if np.shares_memory(array, np.frombuffer(source, np.uint8)):
        with pytest.raises(BufferError):
            source.extend(b"x")
    encoded = treepack.serialization.to_bytes({"a": np.arange(1000.0)})
    array = treepack.serialization.msgpack_restore(encoded)["a"]
    del encoded, source
    np.testing.assert_array_equal(array, np.arange(1000.0))


def test_gzip_header_time_stamp(monkeypatch: pytest.MonkeyPatch):
    first = treepack.serialization.to_compressed_bytes({"a": np.arange(100)})
    monkeypatch.setattr(time, "time", lambda: 1e9)
    assert treepack.serialization.to_compressed_bytes({"a": np.arange(100)}) == first
    assert first[4:8] == bytes(4)
    assert gzip.decompress(first) == treepack.serialization.to_bytes({"a": np.arange(100)})


def test_get_serialization_info():
    tree = {"w": jnp.zeros((2, 3), jnp.bfloat16), "n": 1, "f": 2.5, "b": np.ones(2, np.int8)}
    info = treepack.serialization.get_serialization_info(tree)
    assert info["num_leaves"] == 4
    assert info["total_elements"] == 6 + 1 + 1 + 2
    assert info["memory_bytes"] == 12 + 8 + 8 + 2
    assert info["dtypes"] == ["bfloat16", "int8"]
    assert info["is_serializable"] is True
    arrays = {"w": np.zeros((2, 3), np.float32), "b": [np.zeros(3)]}
    ours, theirs = (m.get_serialization_info(arrays) for m in (treepack.serialization, eformer))
    assert sorted(theirs.pop("dtypes")) == ours.pop("dtypes")
    assert ours == theirs


def test_validate_serializable():
    assert treepack.serialization.validate_serializable({"a": [1, jnp.ones(2), None, "x"]}) == (
        True,
        [],
    )
    valid, issues = treepack.serialization.validate_serializable(
        {"a": object(), "b": [np.array(["x"])], "c": 1}
    )
    assert not valid
    assert [issue.split(": ")[0] for issue in issues] == ["a", "b/0"]
    valid, issues = treepack.serialization.validate_serializable({"x": {1: 1, "1": 2}, "n": 2**64})
    assert [issue.split(": ")[0] for issue in issues] == ["x", "n"]
    assert not valid

    class Broken:
        pass

    treepack.serialization.register_serialization_state(Broken, lambda x: 1 / 0, lambda x, s: x)
    deleted = jnp.ones(2)
    deleted.delete()
    cycle: list[Any] = []
    cycle.append(cycle)
    for value in (Broken(), {"__msgpack_chunked_array__": 1}, "\ud800", deleted, cycle):
        assert treepack.serialization.validate_serializable({"a": value})[0] is False
        with pytest.raises((ValueError, ArithmeticError)):
            treepack.serialization.to_bytes({"a": value})


def test_deep_nesting_and_cycles():
    tree: Any = np.arange(3)
    for _ in range(255):
        tree = {"a": [tree]}
    encoded = treepack.serialization.msgpack_serialize(tree)
    found = treepack.serialization.msgpack_restore(encoded)
    for _ in range(255):
        found = found["a"][0]
    assert_same(found, np.arange(3))
    cycle: dict[str, Any] = {}
    cycle["self"] = [cycle]
    for save in (treepack.serialization.to_bytes, treepack.serialization.msgpack_serialize):
        with pytest.raises(ValueError, match=r"nested .* or contains itself"):
            save(cycle)
    with pytest.raises((ValueError, RecursionError)):
        treepack.serialization.from_state_dict(cycle, cycle)
    assert treepack.serialization.current_path() == ""


def test_a_dict_that_changes_while_it_is_walked():
    class Evil:
        pass

    target: dict[str, Any] = {"a": Evil(), "b": 1}

    def grow(_: Any) -> dict[str, Any]:
        for i in range(100):
            target[f"new{i}"] = i
        return {}

    treepack.serialization.register_serialization_state(Evil, grow, lambda x, s: x)
    with pytest.raises(RuntimeError, match="changed size"):
        treepack.serialization.to_bytes(target)


def test_every_problem_of_a_tree_is_reported():
    class Broken:
        x = property(lambda _: 1 / 0)

    treepack.serialization.register_serialization_state(
        Broken, lambda it: {"x": it.x}, lambda it, _: it, override=True
    )
    tree = {
        "a": [object(), 1, np.array(["text"]), {"b": len}],
        "broken": Broken(),
        "keys": {1: 0, "1": 0},
        "large": 2**70,
        "odd": "\ud800",
        "reserved": {"__msgpack_chunked_array__": 1},
        "fine": (np.zeros(3), jnp.zeros(2), None),
    }
    valid, issues = treepack.serialization.validate_serializable(tree)
    assert not valid
    found = dict(issue.split(": ", 1) for issue in issues)
    assert list(found) == ["a/0", "a/2", "a/3/b", "broken", "keys", "large", "odd", "reserved"]
    assert found["broken"].startswith("ZeroDivisionError")
    # The first problem is the error of a save.
    for name in ("a", "broken", "keys", "large", "odd", "reserved"):
        assert not treepack.serialization.validate_serializable(tree[name])[0]
        with pytest.raises((TypeError, ValueError, OverflowError, ZeroDivisionError)):
            treepack.serialization.to_bytes(tree[name])
    endless: dict[str, Any] = {}
    endless.update(a=endless, b=endless, c=[endless])
    valid, issues = treepack.serialization.validate_serializable(endless)
    assert len(issues) == 1000
    assert all("nested" in issue for issue in issues)


def test_every_error_has_a_path():
    with pytest.raises(OverflowError, match=r"^at a/0: Integer value out of range"):
        treepack.serialization.to_bytes({"a": [2**64]})
    with pytest.raises(UnicodeEncodeError, match=r"surrogates not allowed \(at a/b\)"):
        treepack.serialization.to_bytes({"a": {"b": "\ud800"}})
    with pytest.raises(UnicodeEncodeError, match=r"surrogates not allowed \(at a\)"):
        treepack.serialization.to_bytes({"a": {"\ud800": 1}})
