"""What others make: states of flax, nnx and optax, modules of equinox, pickles of all kinds."""

from __future__ import annotations

import collections
import dataclasses
import functools
import re
import subprocess
import sys
import types
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import flax.linen as nn
import flax.serialization
import jax
import jax.numpy as jnp
import msgpack
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState
from jax.example_libraries import optimizers

import tiers
import treepack
import treepack._core as core
from treepack import serialization

ROOT = Path(__file__).parents[2]


class Network(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(3)(nn.relu(nn.Dense(4)(x)))


def train_state() -> TrainState:
    model = Network()
    params = model.init(jax.random.key(0), jnp.ones((1, 2)))
    return TrainState.create(apply_fn=model.apply, params=params, tx=optax.adamw(1e-3))


def same_leaves(one: Any, other: Any) -> None:
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for found, expected in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        if jnp.issubdtype(getattr(expected, "dtype", int), jax.dtypes.prng_key):
            found, expected = jax.random.key_data(found), jax.random.key_data(expected)
        np.testing.assert_array_equal(found, expected)


# What has no name


class Bag:
    def __init__(self, items: Any):
        self.items = items


def test_the_state_of_a_handler_is_the_same_in_both_forms() -> None:
    key = jax.random.key(3)
    state = {
        "items": [np.ones(2), {"a": (jnp.ones(1), [2])}, key, {1: jnp.ones(3)}],
        "map": {1: [None]},
        "w": jnp.ones(4),
    }
    made: list[Any] = []
    serialization.register_serialization_state(
        Bag, lambda bag: bag.items, lambda _, state: made.append(state) or Bag(state)
    )
    tree = {"first": [jnp.ones(3)], "bag": Bag(state), "last": (1, 2)}
    plain = serialization.to_bytes(tree)
    data = treepack.dumps(tree)
    assert serialization.msgpack_restore(data).keys() == tree.keys()
    for saved in (plain, data):
        serialization.from_bytes(tree, saved)
    loaded = treepack.loads(data, static=tree)
    assert loaded["last"] == (1, 2)
    assert isinstance(loaded["first"][0], jax.Array)
    for found in made:
        assert type(found["items"]) is list
        assert type(found["items"][1]["a"]) is list
        assert found["items"][3].keys() == {1}
        assert found["map"] == {1: [None]}
        np.testing.assert_array_equal(found["w"], np.ones(4))
    assert isinstance(made[-1]["w"], jax.Array)


def test_a_node_whose_handler_makes_lists_is_a_placeholder() -> None:
    @jax.tree_util.register_pytree_node_class
    class Pair:
        def __init__(self, items: list[Any]):
            self.items = items

        def tree_flatten_with_keys(self) -> Any:
            return ((jax.tree_util.GetAttrKey("items"), self.items),), None

        def tree_flatten(self) -> Any:
            return (self.items,), None

        @classmethod
        def tree_unflatten(cls, _: Any, children: Any) -> Pair:
            return cls(*children)

    treepack.register_node(Pair, serialized_name="tests.libraries.Pair")
    pair = Pair([1, 2])
    assert treepack.loads(treepack.dumps(pair)).items == [1, 2]
    serialization.register_serialization_state(
        Pair, lambda pair: {"0": pair.items}, lambda _, state: Pair(state["0"])
    )
    data = treepack.dumps(pair)
    assert serialization.from_bytes(Pair([0]), data).items == [1, 2]
    assert treepack.loads(data, static={".": Pair([0])}).items == [1, 2]


def test_an_error_of_a_handler_tells_its_place() -> None:
    class Needy:
        w = 1

    serialization.register_serialization_state(
        Needy, lambda it: {"w": it.w}, lambda it, state: state["w"]
    )
    with pytest.raises(KeyError) as error:
        serialization.from_state_dict({"a": [Needy()]}, {"a": {"0": {}}})
    assert error.value.__notes__ == ["while Needy was restored at ./a/0"]


class Unnamed:
    """A node whose static data have no name, unless a test gives it one."""

    def __init__(self, child: Any, auxdata: Any):
        self.child, self.auxdata = child, auxdata


jax.tree_util.register_pytree_node(
    Unnamed,
    lambda it: ((it.child,), it.auxdata),
    lambda auxdata, children: Unnamed(*children, auxdata),
)


class Unregistered(Unnamed):
    """A node of a type without a name."""


jax.tree_util.register_pytree_node(
    Unregistered,
    lambda it: ((it.child,), it.auxdata),
    lambda auxdata, children: Unregistered(*children, auxdata),
)


def test_a_placeholder_is_filled_by_what_is_like_the_node() -> None:
    treepack.register_node(Unnamed, serialized_name="libraries.Unnamed")
    for ty in (Unnamed, Unregistered):
        for wrap, path in ((lambda node: node, "."), (lambda node: {"m": node}, "m")):
            data = treepack.dumps(wrap(ty(1, lambda: 1)))
            for static in (wrap(ty(0, "A")), {path: ty(0, "A")}):
                found = treepack.loads(data, static=static)
                found = found if path == "." else found["m"]
                assert type(found) is ty
                assert (found.child, found.auxdata) == (1, "A")
            for wrong in ({"typo": 5}, [1], (5,), 5, None, {"n": Unnamed(0, "A")}):
                with pytest.raises(treepack.TreepackError) as caught:
                    treepack.loads(data, static=wrong)
                if ty is Unnamed:
                    assert re.search(rf"at {path}: .*like it", str(caught.value))
                else:
                    assert re.search(r"unregistered type .*Unregistered", str(caught.value))
            assert treepack.loads(data, unknown="dict") == wrap({"0": 1})
            template = wrap(ty(0, "B"))
            with pytest.raises(ValueError, match="static="):
                treepack.loads(data, template, static=template)
    # All static data of a node can be given by themselves.
    data = treepack.dumps([Unnamed(1, abs), Unnamed(2, lambda: 1)])
    found = treepack.loads(data, static={"0": "A", "1": "B"})
    assert [node.auxdata for node in found] == ["A", "B"]


def test_a_module_in_a_dict_is_filled_by_such_a_dict() -> None:
    class Net(nnx.Module):
        def __init__(self) -> None:
            self.linear = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
            self.act = lambda x: x * 2

    state = {"model": Net(), "step": 3}
    treepack.register_tree(state, prefix="libraries")
    found = treepack.loads(treepack.dumps(state), static=state)
    assert found["model"].linear(jnp.ones((1, 2))).shape == (1, 3)
    assert found["model"].act(2) == 4


def test_a_train_state_whole() -> None:
    state = train_state()
    treepack.register_tree(state)
    with pytest.raises(TypeError, match=r"the field 'apply_fn'.*register_function"):
        treepack.dumps({"state": state}, static="error")
    data = treepack.dumps({"state": [state]})
    with pytest.raises(treepack.TreepackError, match=r"at state/0/apply_fn: .*static=") as caught:
        treepack.loads(data)
    assert "Network" in str(caught.value)
    with pytest.raises(treepack.TreepackError, match=r"at state/0/tx"):
        treepack.loads(data, static={"state/0/apply_fn": state.apply_fn})
    with pytest.raises(
        treepack.errors.PlaceholderError,
        match=r"at state/0/apply_fn: .*at state/0/tx: .*'state/0/tx': \.\.\.",
    ):
        treepack.loads(data, static={})
    misspelt = {"state/0/apply_fn": state.apply_fn, "state/0/tz": state.tx}
    with pytest.raises(
        treepack.TreepackError, match=r"is 'state/0/tz' in static= meant for state/0/tx"
    ):
        treepack.loads(data, static=misspelt)
    by_path = {"state/0/apply_fn": state.apply_fn, "state/0/tx": state.tx}
    for static in (by_path, {"state": [state]}):
        found = treepack.loads(data, static=static)["state"][0]
        same_leaves(found, state)
        grads = jax.tree.map(jnp.ones_like, state.params)
        same_leaves(found.apply_gradients(grads=grads), state.apply_gradients(grads=grads))
        assert treepack.abstract(data, static=static)["state"][0].step == 0
    # With a target nothing is missing, and flax reads it as well.
    same_leaves(treepack.loads(data, {"state": [state]}), {"state": [state]})
    restored = flax.serialization.from_bytes({"state": {"0": state}}, data)
    same_leaves(restored["state"]["0"], state)


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.linear = nnx.Linear(2, 3, rngs=rngs)
        self.layers = nnx.List([nnx.Linear(3, 3, rngs=rngs)])
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.norm = nnx.BatchNorm(3, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.norm(self.layers[0](self.linear(x)))


def test_an_nnx_module_whole() -> None:
    model = Model(nnx.Rngs(0))
    treepack.register_tree(model)
    found = treepack.loads(treepack.dumps(model))
    assert type(found) is Model
    x = jnp.ones((4, 2))
    np.testing.assert_array_equal(found(x), model(x))
    # It can be trained on.
    found.linear.kernel.value = found.linear.kernel.value + 1
    assert not np.array_equal(found.linear.kernel.value, model.linear.kernel.value)
    definition, state = nnx.split(model)
    with pytest.raises(TypeError, match=r"GraphDef.*save nnx\.state"):
        treepack.dumps([definition, state], static="error")
    data = treepack.dumps([definition, state])
    merged = nnx.merge(*treepack.loads(data, static={"0": definition}))
    np.testing.assert_array_equal(merged(x), model(x))
    with pytest.raises(TypeError, match=r"save nnx\.state\(model\)"):
        serialization.msgpack_serialize({"a": definition})


class Holder:
    def __init__(self, value: Any):
        self.value = value


def test_types_with_a_handler() -> None:
    serialization.register_serialization_state(
        Holder, lambda it: {"v": it.value}, lambda _, state: Holder(state["v"]), override=True
    )
    tree = {"a": [Holder(np.arange(3))], "b": Holder(1)}
    data = treepack.dumps(tree)
    plain = serialization.to_bytes(tree)
    assert repr(serialization.msgpack_restore(data)) == repr(serialization.msgpack_restore(plain))
    with pytest.raises(treepack.TreepackError, match=r"at a/0: .*Holder"):
        treepack.loads(data)
    template = Holder(0)
    for static in ({"a/0": template, "b": template}, {"a": [template], "b": template}):
        found = treepack.loads(data, static=static)
        np.testing.assert_array_equal(found["a"][0].value, np.arange(3))
        assert found["b"].value == 1


def test_a_handler_of_jax_arrays() -> None:
    ty = type(jnp.zeros(1))
    serialization.register_serialization_state(
        ty, lambda array: np.asarray(array), lambda _, state: np.array(state)
    )
    try:
        tree = {"a": jnp.arange(3)}
        found = serialization.from_bytes(tree, serialization.to_bytes(tree))["a"]
        assert type(found) is np.ndarray
        assert found.flags.writeable
    finally:
        from treepack._src.pytree import handlers

        del handlers._handlers[ty]


class Hashable:
    """What some libraries make of arrays in static data, so that JAX can compare them."""

    def __init__(self, array: np.ndarray):
        self.array = array

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hashable) and np.array_equal(self.array, other.array)

    def __hash__(self) -> int:
        return hash(self.array.tobytes())


@dataclasses.dataclass(frozen=True)
class System:
    """A dataclass whose flatten function makes others of its static fields, as those of mjx do."""

    qpos: Any
    body: Any
    names: Any


def flatten_system(system: System) -> Any:
    def static(value: Any) -> Any:
        return Hashable(value) if isinstance(value, np.ndarray) else value

    children = ((jax.tree_util.GetAttrKey("qpos"), system.qpos),)
    return children, (static(system.body), static(system.names))


def unflatten_system(static: Any, children: Any) -> System:
    # No array is taken for what it is not.
    return System(
        *children, *(it.array if type(it) is Hashable else str.lower(it) for it in static)
    )


jax.tree_util.register_pytree_with_keys(System, flatten_system, unflatten_system)


def test_a_tree_fills_placeholders_with_its_static_data_as_they_are_saved() -> None:
    treepack.register_dataclass(System, serialized_name="tests.libraries.System")
    system = System(jnp.arange(3.0), np.arange(4), "names")
    data = treepack.dumps({"a": [system]}, static="skip")
    other = System(None, np.arange(4), "other names")
    for static in ({"a": [other]}, {"a": (other,)}):
        found = treepack.loads(data, static=static)["a"][0]
        np.testing.assert_array_equal(found.qpos, system.qpos)
        np.testing.assert_array_equal(found.body, system.body)
        assert found.names == "names"  # it was saved
        assert jax.tree.structure(found) == jax.tree.structure(system)
    found = treepack.loads(data, static={"a/0/body": Hashable(np.arange(4))})["a"][0]
    np.testing.assert_array_equal(found.body, system.body)
    assert jax.tree.structure(found) == jax.tree.structure(system)


class Key:
    """A key of a dict that has no name."""

    def __init__(self, name: str):
        self.name = name

    def __str__(self) -> str:
        return self.name


def test_a_tree_fills_placeholders_of_what_is_known_by_itself() -> None:
    keys = [Key("x"), Key("y")]
    tree = [
        collections.OrderedDict.fromkeys(keys, 1),
        collections.defaultdict(lambda: 3, a=2),
        jax.tree_util.Partial(lambda x: x + 1),
    ]
    found = treepack.loads(treepack.dumps(tree, static="skip"), static=tree)
    assert list(found[0]) == keys
    assert found[1]["b"] == 3
    assert found[2](1) == 2


# Classes with methods of their own


class Pose(NamedTuple):
    """A namedtuple that is a sequence of something else, as `Rotation` of jax is."""

    quat: Any
    name: Any

    def __len__(self) -> int:
        if self.quat.ndim == 1:
            raise TypeError("a single pose has no len()")
        return int(self.quat.shape[0])

    def __iter__(self) -> Any:
        raise TypeError("take .quat")

    def __bool__(self) -> bool:
        raise TypeError("a pose is neither true nor false")

    def __eq__(self, other: object) -> bool:
        raise TypeError("compare .quat")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("shape", [(4,), (5, 4)])
def test_namedtuples_with_a_len_of_their_own(tmp_path: Path, shape: Any) -> None:
    from jax.scipy.spatial.transform import Rotation

    treepack.register_namedtuple(Rotation, serialized_name="tests.libraries.Rotation")
    treepack.register_namedtuple(Pose, serialized_name="tests.libraries.Pose")
    quat = np.random.default_rng(0).normal(size=shape)
    quat /= np.linalg.norm(quat, axis=-1, keepdims=True)
    rotation = Rotation(jnp.asarray(quat))
    tree = {"a": [rotation], "b": Pose(quat, 3)}
    treepack.save(tmp_path / "file", tree)
    treepack.save(tmp_path / "directory", tree, sharded=True)
    plain = serialization.to_bytes(tree)
    for found in (
        treepack.load(tmp_path / "file"),
        treepack.load(tmp_path / "file", tree),
        treepack.load(tmp_path / "file", tree, select="b"),
        treepack.load(tmp_path / "directory", tree),
        treepack.loads(treepack.dumps(tree)),
        serialization.from_bytes(tree, plain),
        serialization.from_state_dict(tree, serialization.to_state_dict(tree)),
        flax.serialization.from_bytes({"a": [rotation]}, serialization.to_bytes({"a": [rotation]}))
        | {"b": tree["b"]},
    ):
        assert type(found["a"][0]) is Rotation
        assert type(found["b"]) is Pose
        np.testing.assert_array_equal(found["a"][0].quat, rotation.quat)
        np.testing.assert_array_equal(found["b"].quat, quat)
        assert found["b"].name == 3
    assert treepack.abstract(treepack.dumps(tree))["b"].quat.shape == shape
    static = treepack.read_metadata(treepack.dumps({}, metadata=tree["b"]))
    np.testing.assert_array_equal(static.quat, quat)


class Guarded(dict[str, Any]):
    """A dict that cannot be changed, and counts what is below."""

    def __setitem__(self, key: str, value: Any) -> None:
        raise TypeError("it cannot be changed")

    def __len__(self) -> int:
        return 1000

    def __bool__(self) -> bool:
        raise TypeError("neither")


class Row(list[Any]):
    """A list that cannot be changed, and counts what is below."""

    def append(self, value: Any) -> None:
        raise TypeError("it cannot be changed")

    extend = __setitem__ = append  # type: ignore[assignment]

    def __len__(self) -> int:
        return 1000


def test_dicts_and_lists_with_methods_of_their_own() -> None:
    tree = {"a": Guarded(x=np.ones(2), y=1), "b": Row([np.ones(3), 2])}
    target = {"a": Guarded(x=np.zeros(2), y=0), "b": Row([np.zeros(3), 0])}
    target["a"].note = target["b"].note = "of the template"
    for found in (
        serialization.from_bytes(target, serialization.to_bytes(tree)),
        serialization.from_state_dict(target, serialization.to_state_dict(tree)),
        treepack.loads(treepack.dumps(tree), target),
    ):
        assert type(found["a"]) is Guarded
        assert type(found["b"]) is Row
        assert found["a"].note == found["b"].note == "of the template"
        assert [found["a"][key] for key in ("x", "y")][1] == 1
        np.testing.assert_array_equal(found["a"]["x"], np.ones(2))
        assert [*found["b"]][1] == 2
        assert sum(1 for _ in found["b"]) == 2


# Modules of equinox


class Net(eqx.Module):
    layers: list[Any]
    table: dict[Any, Any]


def test_functions_anywhere_in_a_module_are_code() -> None:
    treepack.register_dataclass(Net, serialized_name="tests.libraries.Net")
    linear = eqx.nn.Linear(2, 3, key=jax.random.key(0))
    net = Net([linear, jax.nn.relu, (jnp.ones(2), [jax.nn.gelu])], {1: jnp.zeros(3), 2: jnp.tanh})
    treepack.register_tree(net)
    same_leaves(treepack.loads(treepack.dumps(net)), net)
    encoded = serialization.to_bytes(net)
    state = serialization.msgpack_restore(encoded)
    assert list(state["layers"]) == ["0", "2"]
    same_leaves(serialization.from_bytes(net, encoded), net)
    same_leaves(treepack.loads(treepack.dumps(net), net), net)
    assert serialization.validate_serializable(net) == (True, [])
    lambdas = Net([lambda x: x], {})
    with pytest.raises(TypeError, match="layers"):
        treepack.dumps(lambdas, static="error")
    data = treepack.dumps(lambdas)
    assert treepack.loads(data, static={"layers/0": abs}).layers == [abs]


@tiers.parametrize(
    "make",
    [
        lambda key: eqx.nn.MLP(2, 2, 4, 2, key=key),
        lambda key: eqx.nn.Sequential([eqx.nn.Linear(2, 2, key=key), eqx.nn.Lambda(jax.nn.relu)]),
        lambda key: eqx.nn.GRUCell(2, 2, key=key),
        lambda key: eqx.nn.LayerNorm(2),
    ],
)
def test_modules_as_they_come(make: Any) -> None:
    module = make(jax.random.key(0))
    treepack.register_tree(module)
    found = treepack.loads(treepack.dumps(module))
    same_leaves(found, module)
    arguments = (jnp.ones(2), jnp.ones(2)) if isinstance(module, eqx.nn.GRUCell) else (jnp.ones(2),)
    np.testing.assert_array_equal(found(*arguments), module(*arguments))


# Others


def test_namedtuples_that_jax_takes_apart_in_another_way() -> None:
    init, update, params_of = optimizers.adam(1e-2)
    state = init({"w": jnp.ones(3), "b": (jnp.zeros(2),)})
    treepack.register_tree(state)
    found = treepack.loads(treepack.dumps(state))
    assert type(found) is type(state)
    same_leaves(params_of(found), params_of(state))
    grads = params_of(state)
    same_leaves(params_of(update(0, grads, found)), params_of(update(0, grads, state)))
    same_leaves(serialization.from_bytes(state, serialization.to_bytes(state)), state)


@treepack.register_function(serialized_name="tests.libraries.add")
def add(*numbers: Any) -> Any:
    return sum(numbers)


def test_partials_of_partials() -> None:
    partial = jax.tree_util.Partial(jax.tree_util.Partial(add, 1), jnp.ones(2))
    found = treepack.loads(treepack.dumps([partial]))[0]
    np.testing.assert_array_equal(found(3), [5, 5])
    restored = serialization.from_bytes(partial, serialization.to_bytes(partial))
    np.testing.assert_array_equal(restored(3), [5, 5])


def test_partials_of_partials_with_arrays() -> None:
    partial = jax.tree_util.Partial
    treepack.register_function(jnp.add, serialized_name="libraries.add")
    inner = partial(jnp.add, jnp.ones(2, jnp.bfloat16))
    found = treepack.loads(treepack.dumps(partial(inner, jnp.zeros(2))))
    assert found().tolist() == [1, 1]
    with jax.enable_x64(True):
        data = treepack.dumps(partial(partial(jnp.add, jnp.float64(1)), 2))
    with pytest.raises(treepack.DecodeError, match="float64 to float32"):
        treepack.loads(data)


def test_shardings_keep_the_types_of_their_axes() -> None:
    for kind in jax.sharding.AxisType:
        mesh = jax.make_mesh((1,), ("x",), axis_types=(kind,))
        node = jax.tree_util.Partial(jax.nn.relu, 1)
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
        metadata = treepack.read_metadata(treepack.dumps(node, metadata=sharding))
        assert metadata == sharding
        assert metadata.mesh.axis_types == (kind,)


def test_static_data_of_libraries() -> None:
    class Config(NamedTuple):
        value: Any

    values = [
        types.MappingProxyType({"a": (1, 2)}),
        functools.partial(add, 1, key=2),
        jax.tree.structure({"a": [1, (2, None)], "b": {}}),
    ]
    for value in values:
        found = treepack.read_metadata(treepack.dumps([], metadata=value))
        if isinstance(value, functools.partial):
            assert (found.func, found.args, found.keywords) == (add, (1,), {"key": 2})
        else:
            assert found == value
    with pytest.raises(TypeError, match="unregistered type"):
        treepack.dumps([], metadata=jax.tree.structure(Config(1)))


def test_linen_modules_are_no_state() -> None:
    module = Network()
    assert serialization.to_state_dict(module) is module
    assert serialization.from_state_dict(module, 3) == 3
    assert not serialization.is_serializable(module)
    with pytest.raises(TypeError, match="save its variables"):
        serialization.to_bytes({"model": module})
    # Its own functions swapped for ours do not disturb flax.
    before = flax.serialization.to_state_dict, flax.serialization.from_state_dict
    flax.serialization.to_state_dict = serialization.to_state_dict
    flax.serialization.from_state_dict = serialization.from_state_dict
    try:
        same_leaves(train_state().params, train_state().params)
    finally:
        flax.serialization.to_state_dict, flax.serialization.from_state_dict = before


def test_patching_flax() -> None:
    theirs = flax.serialization.to_bytes
    with serialization.patch():
        assert flax.serialization.to_bytes is serialization.to_bytes
        assert flax.serialization.msgpack_restore is serialization.msgpack_restore
        assert flax.serialization.to_state_dict is not serialization.to_state_dict
    assert flax.serialization.to_bytes is theirs
    patch = serialization.patch()
    assert flax.serialization.from_bytes is serialization.from_bytes
    patch.undo()
    assert flax.serialization.to_bytes is theirs


def test_patching_flax_without_a_comparison_of_leaves() -> None:
    template = {"w": np.zeros((16, 3), np.float32), "n": 1}
    encoded = serialization.to_bytes({"w": np.ones((4, 3), jnp.bfloat16), "n": np.ones(2)})
    expected = flax.serialization.from_bytes(template, encoded)
    with serialization.patch(strict=False):
        found = flax.serialization.from_bytes(template, encoded)
        with pytest.raises(treepack.MismatchError):
            flax.serialization.from_bytes(template, encoded, strict=True)
    same_leaves(found, expected)
    with serialization.patch(), pytest.raises(treepack.MismatchError, match="strict=False"):
        flax.serialization.from_bytes(template, encoded)
    with pytest.raises(ValueError, match="strict must be "):
        serialization.patch(strict="no")  # type: ignore[arg-type]


def test_norms_of_equinox_before_and_after_their_state_is_made() -> None:
    norm = eqx.nn.BatchNorm(3, "batch", mode="ema")
    for tree in (norm, eqx.nn.State(norm), eqx.nn.make_with_state(lambda: norm)()):
        same_leaves(treepack.loads(treepack.dumps(tree), tree), tree)
    with pytest.raises(treepack.PlaceholderError, match="ema_state_index/marker") as caught:
        treepack.loads(treepack.dumps(norm))
    assert "static=" in str(caught.value)
    same_leaves(treepack.loads(treepack.dumps(norm), static=norm), norm)
    with pytest.raises(treepack.UnserializableLeafError, match="'marker'"):
        treepack.dumps(norm, static="error")


def test_the_ext_type_of_orbax_is_a_tuple() -> None:
    encoded = msgpack.packb({"a": msgpack.ExtType(4, msgpack.packb([1, [2, b"x"]]))})
    assert serialization.msgpack_restore(encoded) == {"a": (1, [2, b"x"])}


HINTS = [
    (np.dtype("f4"), "dtype"),
    (len, "functions are code"),
    (jax.tree.structure(1), "PyTreeDef"),
]


@pytest.mark.parametrize(("value", "hint"), HINTS)
def test_hints_by_kind(value: Any, hint: str) -> None:
    with pytest.raises(treepack.UnserializableLeafError, match=hint) as caught:
        treepack.dumps({"a": value}, static="error")
    assert caught.value.path == "a"


# Pickles


@pytest.mark.campaign
def test_the_package_can_be_pickled_by_value() -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    code = (
        "import cloudpickle, sys, numpy as np, treepack\n"
        "from treepack import serialization\n"
        "def work(tree):\n"
        "    return serialization.from_bytes(tree, treepack.dumps(tree))\n"
        "sys.stdout.buffer.write(cloudpickle.dumps(work))\n"
    )
    pickled = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    work = cloudpickle.loads(pickled)
    assert work({"a": 1}) == {"a": 1}
    for thing in (treepack, serialization, treepack.save, treepack.errors.DecodeError):
        assert cloudpickle.loads(cloudpickle.dumps(thing)) is thing


@pytest.mark.campaign
def test_joblib_and_dask_can_send_it() -> None:
    joblib = pytest.importorskip("joblib")
    tree = {"a": np.arange(3)}

    def work(index: int) -> int:
        return len(treepack.dumps([tree, index]))

    found = joblib.Parallel(n_jobs=2, backend="loky")(joblib.delayed(work)(i) for i in range(2))
    assert found == [work(0), work(1)]
    protocol = pytest.importorskip("distributed.protocol")
    again = protocol.deserialize(*protocol.serialize(work, serializers=("pickle",)))
    assert again(1) == work(1)


def test_partials_of_functions_with_rules_of_their_own() -> None:
    relu = jax.tree_util.Partial(jax.nn.relu)
    assert treepack.loads(treepack.dumps(relu)).func is jax.nn.relu

    @jax.custom_vjp
    def hundredfold(x: Any) -> Any:
        return x

    hundredfold.defvjp(lambda x: (x, None), lambda _, cotangent: (cotangent * 100,))
    treepack.register_function(hundredfold, serialized_name="tests.libraries.hundredfold")
    found = treepack.loads(treepack.dumps(jax.tree_util.Partial(hundredfold)))
    assert jax.grad(lambda x: found(x))(1.0) == 100


def test_what_fills_a_placeholder_has_the_same_children() -> None:
    import dataclasses

    one = dataclasses.make_dataclass("One", ["w", "b"])
    other = dataclasses.make_dataclass("One", ["w", "c"])
    data = treepack.dumps({"m": one(1, 2)})
    assert treepack.loads(data, static={"m": one(0, 0)})["m"] == one(1, 2)
    with pytest.raises(treepack.DecodeError, match="'b'"):
        treepack.loads(data, static={"m": other(7, 8)})
    with pytest.raises(treepack.UnregisteredTypeError, match=r"unregistered type '\w+\.One'"):
        treepack.loads(data, static={"m": 5})


def test_both_families_write_the_same_tree() -> None:
    class Node:
        def __init__(self, w: Any, b: Any):
            self.w, self.b = w, b

    jax.tree_util.register_pytree_node(
        Node, lambda it: ((it.w, it.b), None), lambda _, children: Node(*children)
    )
    treepack.register_node(Node, serialized_name="tests.libraries.Node")
    node = Node(1, 2)
    assert list(serialization.msgpack_restore(treepack.dumps(node))) == ["0", "1"]
    serialization.register_serialization_state(
        Node,
        lambda it: {name: serialization.to_state_dict(getattr(it, name)) for name in ("w", "b")},
        lambda it, state: Node(
            serialization.from_state_dict(it.w, state["w"]),
            serialization.from_state_dict(it.b, state["b"]),
        ),
    )
    nested = Node(Node(np.ones(2), {"a": jnp.arange(3), "n": None}), (node, 5))
    for saved in (node, nested):
        data = treepack.dumps(saved)
        state = serialization.msgpack_restore(data)
        assert serialization.to_bytes(state) == serialization.to_bytes(saved)
        assert list(state) == ["w", "b"]
        for found in (treepack.loads(data), treepack.loads(data, saved, strict=True)):
            assert jax.tree.structure(found) == jax.tree.structure(saved)
            jax.tree.map(np.testing.assert_array_equal, found, saved)
    assert treepack.loads(treepack.dumps(node)).b == 2


def test_handlers_that_make_other_state_need_a_template() -> None:
    class Node:
        def __init__(self, w: Any, b: Any):
            self.w, self.b = w, b

    jax.tree_util.register_pytree_node(
        Node, lambda it: ((it.w, it.b), None), lambda _, children: Node(*children)
    )
    treepack.register_node(Node, serialized_name="tests.libraries.OtherState")
    handlers: list[Any] = [
        lambda it: {"w": it.w},
        lambda it: {"w": it.w, "b": it.b + 1},
        lambda it: {"b": it.b, "w": it.w},  # in another order
        lambda it: {"w": it.w, "b": it.b, "more": 1},
        lambda it: {"w": it.w, "b": {"b": it.b}},
        lambda it: {"w": it.w, "b": [it.b]},
    ]
    for handler in handlers:
        serialization.register_serialization_state(
            Node, handler, lambda _, state: Node(state["w"], 5), override=True
        )
        with pytest.raises(treepack.errors.PlaceholderError, match=r"at a: .*Node"):
            treepack.loads(treepack.dumps({"a": Node(np.ones(2), np.ones(3))}))
    serialization.register_serialization_state(
        Node,
        lambda it: {"w": it.w, "sum": it.w + it.b},
        lambda _, state: Node(state["w"], state["sum"] - state["w"]),
        override=True,
    )
    data = treepack.dumps(Node(1.5, 2.5))
    assert serialization.msgpack_restore(data) == {"w": 1.5, "sum": 4.0}
    assert treepack.loads(data, Node(0.0, 0.0)).b == 2.5
    assert treepack.loads(data, static=Node(0.0, 0.0)).b == 2.5


def test_exactness_reaches_into_handlers() -> None:
    kind = type("Exact", (Holder,), {})
    serialization.register_serialization_state(
        kind,
        lambda it: {"v": it.value},
        lambda it, state: kind(serialization.from_state_dict(it.value, state["v"])),
    )
    saved = serialization.to_bytes(kind({"w": np.zeros(3), "extra": np.zeros(4)}))
    template = kind({"w": np.zeros(3)})
    assert list(serialization.from_bytes(template, saved).value) == ["w"]
    with pytest.raises(treepack.MismatchError, match="v/extra: unexpected"):
        serialization.from_bytes(template, saved, strict="exact")


def test_leaving_out_is_reproducible() -> None:
    data = [treepack.dumps(train_state()) for _ in range(2)]
    assert data[0] == data[1]


def test_an_array_of_jax_with_a_handler_is_still_one() -> None:
    ty = type(jnp.zeros(1))
    serialization.register_serialization_state(ty, np.asarray, lambda _, state: np.array(state))
    try:
        assert isinstance(treepack.loads(treepack.dumps([jnp.ones(2)]))[0], jax.Array)
    finally:
        from treepack._src.pytree import handlers

        del handlers._handlers[ty]


def test_errors_of_templates_can_be_pickled() -> None:
    import pickle

    with pytest.raises(treepack.MismatchError) as caught:
        serialization.from_bytes({"a": 1, "b": 2}, serialization.to_bytes({"a": 1, "c": 2}))
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    assert again.__notes__ == caught.value.__notes__
    assert again.mismatches == caught.value.mismatches


@pytest.mark.campaign
def test_private_names_of_others_may_go() -> None:
    """Each is looked up in one place, and where it is missing, what needs it is left out."""
    code = (
        "import sys\n"
        "import flax.serialization, flax.typing, equinox, jax, numpy as np, optax, treepack\n"
        "import jax.export, jax._src.export as internals\n"
        "from treepack import serialization\n"
        "del flax.serialization._STATE_DICT_REGISTRY, flax.serialization._error_context\n"
        "vars(flax.typing).pop('HashableMapping', None)\n"
        "del internals._export\n"
        "sys.modules['jax._src.export._export'] = None\n"
        "equinox.nn.Identity = lambda: ()\n"
        "tree = {'a': [np.ones(3)], 'b': flax.core.freeze({'c': 1})}\n"
        "again = serialization.from_bytes(tree, serialization.to_bytes(tree))\n"
        "assert again['b']['c'] == 1, again\n"
        "state = optax.adam(0.1).init({'w': jax.numpy.ones(2)})\n"
        "treepack.register_tree(state)\n"
        "assert type(treepack.loads(treepack.dumps(state))) is type(state)\n"
        "try:\n"
        "    treepack.dumps([], metadata=object())\n"
        "except TypeError as error:\n"
        "    assert 'cannot be saved' in str(error), error\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_core_finds_what_it_calls() -> None:
    from treepack._src import hooks as _hooks

    declared = (ROOT / "src/py/hooks.rs").read_text().split("\nhooks! {\n")[1]
    names = re.findall(r"^    (\w+),$", declared, re.M)
    imported = {name for name in vars(_hooks) if name[0] != "_"} - {"annotations"}
    assert {*names} == imported
    for text, name in re.findall(r"((?:    ///.*\n)+)    (\w+),", declared):
        methods = re.findall(r"`\w*\.(\w+)\(", text)
        assert methods or callable(getattr(_hooks, name)), name
        assert all(callable(getattr(getattr(_hooks, name), method)) for method in methods), name


def test_the_core_is_of_no_use_without_its_package() -> None:
    code = (
        "import importlib.util, sys\n"
        "spec = importlib.util.spec_from_file_location('_core', sys.argv[1])\n"
        "core = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(core)\n"
        "for data in (b'\\x80', b'\\xc1'):\n"
        "    try:\n"
        "        core.restore(data, None, None)\n"
        "    except RuntimeError as error:\n"
        "        print(error)\n"
        "try:\n"
        "    core.set_hooks(sys, sys)\n"
        "except AttributeError as error:\n"
        "    print(error)\n"
        "assert 'treepack' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, core.__file__], capture_output=True, text=True, check=True
    )
    assert done.stdout.count("`import treepack` must end first") == 2
    assert "has no attribute 'classify'" in done.stdout


class Numbered:
    """A container whose state has a dict with integer keys."""

    def __init__(self, items: dict[int, Any]):
        self.items = items


@pytest.mark.parametrize("module", [flax.serialization, serialization])
def test_integer_keys_in_the_state_of_a_handler(module: Any, tmp_path: Path) -> None:
    module.register_serialization_state(
        Numbered,
        lambda it: {"items": {key: module.to_state_dict(item) for key, item in it.items.items()}},
        lambda it, state: Numbered(
            {
                key: module.from_state_dict(it.items[key], item)
                for key, item in state["items"].items()
            }
        ),
        override=True,
    )
    tree = {"n": Numbered({1: np.ones(2), 2: {"a": np.zeros(3)}})}
    target = {"n": Numbered({1: np.zeros(2), 2: {"a": np.ones(3)}})}
    data = module.to_bytes(tree)
    (tmp_path / "plain").write_bytes(data)
    treepack.save(tmp_path / "described", tree)
    state = serialization.to_state_dict(tree)
    jax.tree.map(np.testing.assert_array_equal, state, module.to_state_dict(tree))
    if module is not serialization and version("flax") == "0.12.0":
        pytest.skip("flax 0.12.0 writes integer keys, but does not read them")
    expected = module.from_bytes(target, data)["n"].items
    for found in (
        serialization.from_bytes(target, data),
        serialization.from_state_dict(target, state),
        serialization.from_state_dict(target, state, strict="exact"),
        treepack.load(tmp_path / "plain", target),
        treepack.load(tmp_path / "described", target, strict="exact"),
        treepack.load(tmp_path / "plain", target, missing="target"),
        treepack.load(tmp_path / "plain", target, select="n/items/*"),
        treepack.load(tmp_path / "described", target, missing="target"),
    ):
        jax.tree.map(np.testing.assert_array_equal, found["n"].items, expected)
    part = treepack.load(tmp_path / "plain", target, select="n/items/2")["n"].items
    assert part[1].tolist() == [0, 0]
    assert part[2]["a"].tolist() == [0, 0, 0]
    wrong = {"n": Numbered({1: np.zeros(5), 2: {"a": np.ones(3)}})}
    with pytest.raises(treepack.MismatchError, match=r"n/items/1: expected float64\[5\]"):
        serialization.from_bytes(wrong, data, strict="exact")
