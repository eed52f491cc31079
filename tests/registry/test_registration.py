"""Registering types of nodes: once, under one name, for JAX, for export and for files."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import pathlib
import sys
import threading
import types
import warnings
from typing import Any, NamedTuple

import flax.struct
import jax
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

import treepack
import treepack._core as core
from node_types import NODES, Config, Frozen, Mode, Point, scale
from treepack._src.registry.names import default_name
from trees import altered


def field(**options: Any) -> Any:
    return dataclasses.field(metadata={"static": True}, **options)


def test_bare_and_with_arguments() -> None:
    with pytest.warns(UserWarning, match="Bare' may name another type"):

        @treepack.register_dataclass
        @dataclasses.dataclass
        class Bare:
            w: Any

    @treepack.register_dataclass(serialized_name="my.Layer")
    @dataclasses.dataclass
    class Named:
        w: Any

    types = treepack.registered_types()
    assert types["my.Layer"] is Named
    assert types[f"{__name__}.test_bare_and_with_arguments.<locals>.Bare"] is Bare
    assert jax.tree.leaves([Bare(1), Named(2)]) == [1, 2]
    assert treepack.serialization.is_serializable(Bare)
    assert treepack.serialization.validate_serializable([Bare(1)]) == (True, [])


def test_to_register_twice_does_nothing() -> None:
    @dataclasses.dataclass
    class Twice:
        w: Any

    for _ in range(2):
        assert treepack.register_dataclass(Twice, serialized_name="Twice") is Twice
    with pytest.raises(ValueError, match=r"Twice is already .* the name 'Twice'.* 'Thrice'"):
        treepack.register_dataclass(Twice, serialized_name="Thrice")


@pytest.mark.parametrize("name", NODES)
def test_every_kind_may_be_registered_again(name: str) -> None:
    ty = type(NODES[name])
    names = {found: name for name, found in treepack.registered_types().items()}
    if ty in names and issubclass(ty, tuple):
        treepack.register_namedtuple(ty, serialized_name=names[ty])
    elif ty in names and name not in ("pair", "keyed", "free"):
        treepack.register_dataclass(ty, serialized_name=names[ty])
    elif ty in names and name != "keyed":
        treepack.register_node(ty, serialized_name=names[ty])
    found = treepack.loads(treepack.dumps(NODES[name]))
    assert jax.tree.structure(found) == jax.tree.structure(NODES[name])


def test_fields_that_init_does_not_take() -> None:
    @treepack.register_dataclass(drop_fields=["cache"], serialized_name="tests.Made")
    @dataclasses.dataclass
    class Made:
        w: Any
        cache: Any = None
        twice: Any = dataclasses.field(init=False)

        def __post_init__(self) -> None:
            self.twice = 2 * self.w

    assert treepack.loads(treepack.dumps(Made(np.float32(3), "x"))) == Made(np.float32(3))


def test_a_conflict_names_both_sides() -> None:
    @dataclasses.dataclass
    class One:
        w: Any

    @dataclasses.dataclass
    class Other:
        w: Any

    treepack.register_dataclass(One, serialized_name="conflict")
    with pytest.raises(ValueError, match=r"'conflict' is already registered for .*One.*Other"):
        treepack.register_dataclass(Other, serialized_name="conflict")
    jax.tree_util.register_dataclass(Other)
    with pytest.raises(ValueError, match=r"'conflict'.*One.*Other"):
        treepack.register_node(Other, serialized_name="conflict")
    with pytest.raises(ValueError, match=r"'conflict' .*One: an alias .*restart without that type"):
        treepack.register_dataclass(Other, serialized_name="moved", aliases=["conflict"])


SOURCE = """
import dataclasses, treepack
@treepack.register_dataclass
@dataclasses.dataclass
class Layer:
    w: object
@treepack.register_function
def act(x):
    return x
"""


def test_a_module_that_is_loaded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = []
    for _ in range(3):
        module = types.ModuleType("reloaded")
        monkeypatch.setitem(sys.modules, "reloaded", module)
        exec(SOURCE, vars(module))
        modules.append(module)
    layers = [module.Layer for module in modules]
    assert treepack.registered_types()["reloaded.Layer"] is layers[-1]
    node = layers[-1](np.ones(2))
    assert type(treepack.loads(treepack.dumps(node))) is layers[-1]
    exported = jax.export.export(jax.jit(lambda x: x))(node)
    again = jax.export.deserialize(exported.serialize())
    assert again.in_tree == exported.in_tree
    partial = treepack.loads(treepack.dumps(jax.tree_util.Partial(modules[-1].act)))
    assert partial.func is modules[-1].act


def test_what_others_have_registered_is_adopted() -> None:
    @flax.struct.dataclass
    class Adopted:
        w: Any
        n: int = flax.struct.field(pytree_node=False, default=3)

    jax.export.register_pytree_node_serialization(
        Adopted,
        serialized_name="theirs",
        serialize_auxdata=lambda aux: str(aux[0]).encode(),
        deserialize_auxdata=lambda data: (int(data),),
    )
    treepack.register_dataclass(Adopted, ["w"], ["n"], serialized_name="ours")
    assert treepack.loads(treepack.dumps(Adopted(1, 2))) == Adopted(1, 2)
    exported = jax.export.export(jax.jit(lambda x: x))(Adopted(np.ones(1)))
    assert jax.export.deserialize(exported.serialize()).in_tree == exported.in_tree
    with pytest.raises(ValueError, match=r"with the fields \['w'\] and the static fields \['n'\]"):
        treepack.register_dataclass(Adopted, ["n"], ["w"], serialized_name="ours")


def test_dropped_fields_need_a_default() -> None:
    @dataclasses.dataclass
    class Dropping:
        w: Any
        cache: Any

    with pytest.raises(ValueError, match="'cache'"):
        treepack.register_dataclass(Dropping, ["w"], [], ["cache"])
    assert f"{Dropping.__module__}.{Dropping.__qualname__}" not in treepack.registered_types()


def test_a_class_that_is_not_a_dataclass() -> None:
    class Free:
        def __init__(self, w: Any, n: int):
            self.w, self.n = w, n

    treepack.register_dataclass(Free, ["w"], ["n"], serialized_name="Free")
    found = treepack.loads(treepack.dumps(Free(np.ones(2), 3)))
    assert (type(found), found.n) == (Free, 3)


def test_types_that_jax_does_not_know() -> None:
    class Unknown:
        pass

    with pytest.raises(ValueError, match=r"not registered with JAX: call jax\.tree_util"):
        treepack.register_node(Unknown, serialized_name="Unknown")
    with pytest.raises(ValueError, match="register_node"):
        treepack.register_namedtuple(Unknown, serialized_name="Unknown")
    with pytest.raises(TypeError, match="expected a class"):
        treepack.register_dataclass(3)  # type: ignore[call-overload]
    for known in (dict, list, tuple):
        with pytest.raises(ValueError, match="needs no registration"):
            treepack.register_node(known, serialized_name="dict")

    class Tuple(NamedTuple):
        x: int

    with pytest.raises(ValueError, match=r"use treepack\.register_namedtuple"):
        treepack.register_node(Tuple, serialized_name="Tuple")


def test_errors_name_the_registration_of_the_kind() -> None:
    class Node:
        """A node without names of fields."""

    class Pair(NamedTuple):
        """A namedtuple."""

        x: int = 1

    Node.__module__ = Pair.__module__ = "elsewhere"
    jax.tree_util.register_pytree_node(Node, lambda _: ([1], None), lambda *_: Node())
    for made, wanted, unwanted in (
        ([Node()], r"@treepack\.register_node\(serialized_name=", "dataclass"),
        ([Pair()], r"@treepack\.register_dataclass\(.*, or register_namedtuple ", "register_node"),
        ([Pair(), Node()], r"dataclass\(.*, or register_namedtuple, register_node ", "it under"),
    ):
        data = altered(treepack.dumps(made), b"elsewhere", b"Elsewhere")
        with pytest.raises(treepack.UnregisteredTypeError, match=wanted) as caught:
            treepack.loads(data)
        assert unwanted not in str(caught.value)


def test_fields_that_changed_since_it_was_saved() -> None:
    def define(*fields: str) -> Any:
        made = dataclasses.make_dataclass("Changing", fields, namespace={"__module__": "changing"})
        return treepack.register_dataclass(made)

    data = treepack.dumps({"layer": define("a", "b")(np.ones(2), 3)})
    define("a", "c")
    message = r"'b'(.*\n)*.*layer"
    with pytest.raises(treepack.UnregisteredTypeError, match=message):
        treepack.loads(data)
    assert treepack.loads(data, unknown="dict")["layer"]["b"] == 3
    assert treepack.loads(data, {"layer": {"a": np.zeros(2), "b": 0}})["layer"]["b"] == 3


def test_a_field_that_became_static_since_it_was_saved() -> None:
    def define(**options: Any) -> Any:
        fields = ["a", ("b", Any, dataclasses.field(**options))]
        made = dataclasses.make_dataclass("Moved", fields, namespace={"__module__": "moved"})
        return treepack.register_dataclass(made)

    static = {"metadata": {"static": True}}
    for before, after in (({}, static), (static, {})):
        data = treepack.dumps(define(**before)(np.ones(2), 3))
        define(**after)
        with pytest.raises(
            treepack.UnregisteredTypeError,
            match=r"a (child|static) field, .* a (static|child) field",
        ):
            treepack.loads(data)


def test_conditional_children() -> None:
    @jax.tree_util.register_pytree_with_keys_class
    @dataclasses.dataclass
    class Conditional:
        a: Any
        b: Any = None

        def tree_flatten_with_keys(self) -> Any:
            names = ["a", "b"] if self.b is not None else ["a"]
            return [(jax.tree_util.GetAttrKey(name), getattr(self, name)) for name in names], ()

        @classmethod
        def tree_unflatten(cls, _: Any, children: Any) -> Conditional:
            return cls(*children)

    treepack.register_node(Conditional, serialized_name="tests.Conditional")
    assert treepack.loads(treepack.dumps(Conditional(1, 2))) == Conditional(1, 2)
    data = treepack.dumps([Conditional(1), Conditional(jax.numpy.ones(3))])
    assert treepack.loads(data)[0] == Conditional(1)
    assert treepack.abstract(data)[1].a.shape == (3,)
    assert treepack.loads(data, [Conditional(0), Conditional(np.zeros(3, "f4"))])[0].a == 1
    with pytest.raises(treepack.DecodeError, match=r"expected the children \['a'\], found \['b'\]"):
        treepack.loads(altered(data, b"\x81\xa1a\x01", b"\x81\xa1b\x01"))


def test_static_data_that_are_one_field_themselves() -> None:
    @jax.tree_util.register_pytree_node_class
    @dataclasses.dataclass
    class Shaped:
        w: Any
        shape: tuple[int, ...]

        def tree_flatten(self) -> Any:
            return (self.w,), self.shape

        @classmethod
        def tree_unflatten(cls, shape: Any, children: Any) -> Shaped:
            return cls(*children, shape)

    treepack.register_node(Shaped, serialized_name="tests.Shaped")
    for shape in ((), (3,), (3, 4)):
        node = Shaped(np.ones(3), shape)
        assert treepack.loads(treepack.dumps(node)).shape == shape
        exported = jax.export.export(jax.jit(lambda x: x))(node)
        assert jax.export.deserialize(exported.serialize()).in_tree == exported.in_tree


def test_a_registration_that_fails_changes_nothing() -> None:
    def define(*drop: str) -> Any:
        made = dataclasses.make_dataclass("Failing", ["w"], namespace={"__module__": "failing"})
        return treepack.register_dataclass(made, drop_fields=drop)

    first = define()
    with pytest.raises(ValueError, match="'other'"):
        define("other")
    assert type(treepack.loads(treepack.dumps(first(1)))) is first


def test_arguments_are_those_of_jax() -> None:
    @flax.struct.dataclass
    class Known:
        w: Any = None

    with pytest.raises(TypeError, match="data_fields and meta_fields"):
        treepack.register_dataclass(Known, ["w"])
    with pytest.raises(ValueError, match=r"already registered with JAX with the fields \['w'\]"):
        treepack.register_dataclass(Known, ["w"], [], ["w"], serialized_name="tests.Known")
    with pytest.raises(ValueError, match="'x'"):
        treepack.register_dataclass(Known, drop_fields=["x"], serialized_name="tests.Known")


def test_a_class_with_properties() -> None:
    class Lazy:
        def __init__(self, w: Any):
            self._w = w

        @property
        def w(self) -> Any:
            return self._w

    for _ in range(2):
        treepack.register_dataclass(Lazy, ["w"], [], serialized_name="tests.Lazy")
    assert treepack.loads(treepack.dumps(Lazy(3))).w == 3


def test_names_of_treepack_itself() -> None:
    @dataclasses.dataclass
    class Named:
        w: Any

    with pytest.raises(ValueError, match="reserved for treepack"):
        treepack.register_dataclass(Named, serialized_name="jax.tree_util.Partial")
    with pytest.raises(ValueError, match="reserved for treepack"):
        treepack.register_dataclass(Named, serialized_name="numpy.dtype")
    with pytest.raises(ValueError, match="reserved for treepack"):
        treepack.register_auxdata(Color, "int")


def test_threads_may_register() -> None:
    failures = []

    def work(thread: int) -> None:
        try:
            for index in range(50):
                made = dataclasses.make_dataclass(f"T{thread}_{index}", ["w"])
                treepack.register_dataclass(made, serialized_name=made.__name__)
                treepack.register_auxdata(
                    enum.Enum(made.__name__, "A"), f"E{thread}_{index}", repr, repr
                )
                treepack.registered_types()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_types_of_one_name_in_a_tree() -> None:
    def make(fields: str) -> Any:
        return collections.namedtuple("Same", fields)

    with pytest.raises(ValueError, match="two types in the tree have the name"):
        treepack.register_tree([make("x")(1), make("y")(2)])


def test_methods_are_not_registered_by_the_name_of_their_function() -> None:
    class Model:
        def __init__(self, n: int):
            self.n = n

        def apply(self) -> int:
            return self.n

    partials = [jax.tree_util.Partial(Model(n).apply) for n in (1, 2)]
    treepack.register_tree(partials)
    with pytest.raises(TypeError, match="register_function"):
        treepack.dumps(partials, static="error")
    treepack.register_function(partials[1].func, serialized_name="tests.apply")
    assert treepack.loads(treepack.dumps(partials[1]))() == 2


def test_a_whole_tree() -> None:
    state = optax.chain(optax.clip(1.0), optax.adam(0.1)).init({"w": np.ones(2)})
    added = treepack.register_tree({"state": state, "list": [None, 3]}, prefix="whole")
    assert added == {}  # all are in `node_types` already
    state = optax.adagrad(0.1).init({"w": np.ones(2)})
    added = treepack.register_tree((state, np.ones(3)), prefix="whole")
    assert list(added) == ["whole.ScaleByRssState"]
    found = treepack.loads(treepack.dumps(state))
    assert jax.tree.structure(found) == jax.tree.structure(state)


def test_is_serializable_knows_types_of_jax_by_the_class() -> None:
    for node in NODES.values():
        assert treepack.serialization.is_serializable(type(node))
    assert not treepack.serialization.is_serializable(np.ndarray)
    assert not treepack.serialization.is_serializable(type(None))


# Static data


class Color(enum.IntFlag):
    RED = 1
    GREEN = 2


treepack.register_auxdata(Color, "tests.Color")

SHARDING = jax.sharding.NamedSharding(
    jax.sharding.Mesh(np.asarray(jax.devices()[:2]), ("data",)), PartitionSpec("data")
)

VALUES: list[Any] = [
    *(None, True, 0, -(2**63), 2**63 - 1, 2**63, -(2**200), 1.5, float("inf"), -0.0, 1 - 2j),
    *("", "text", b"", b"bytes", (), [], {}, frozenset(), (1, (2, [3])), [1, (2,)]),
    {"b": 1, "a": (2,), 3: None},
    frozenset({3, 1, "x", (2, None)}),
    *(Mode.TRAIN, Color.RED, Color.RED | Color.GREEN, Config(3, ("a",)), scale, jax.nn.relu),
    *(np.dtype("float32"), jax.numpy.bfloat16.dtype, np.float32(1.5), np.float64, np.int8(3)),
    *(jax.numpy.float32, jax.numpy.bfloat16, int, list, PartitionSpec("x", None, ("y", "z"))),
    PartitionSpec(),
    PartitionSpec("a", unreduced={"b"}),
    *(Point(1, (2,)), [Frozen(1, Mode.EVAL)]),
    *(
        {1, 2},
        set(),
        bytearray(b"abc"),
        range(1, 9, 2),
        slice(None, 3),
        pathlib.Path("a/b"),
        pathlib.PureWindowsPath("a/b"),
    ),
    *(jax.lax.Precision.HIGHEST, SHARDING),
]


# No names of the values: those of sets and functions are others in each process.
@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_static_data_come_back(value: Any) -> None:
    encoded = core.encode_value(value)
    found = core.decode_value(encoded)
    assert found == value
    assert type(found) is type(value)
    if type(value) not in (frozenset, set):  # which has no order
        assert repr(found) == repr(value)
    assert core.encode_value(found) == encoded


def test_small_arrays() -> None:
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    found = core.decode_value(core.encode_value((array,)))[0]
    np.testing.assert_array_equal(found, array)
    assert (found.dtype, found.flags.writeable) == (array.dtype, True)
    with pytest.raises(TypeError, match="may have up to 65536 bytes"):
        core.encode_value(np.zeros(10000))


def test_equal_sets_are_equal_bytes() -> None:
    elements = [str(i) for i in range(50)]
    one = core.encode_value(frozenset(elements))
    assert core.encode_value(frozenset(reversed(elements))) == one


class Unregistered(enum.IntEnum):
    A = 1


@pytest.mark.parametrize(
    "value", [object(), Unregistered.A, lambda: None, np.void(b"a"), object, iter([])]
)
def test_other_static_data_are_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="cannot be saved"):
        core.encode_value([value])


def test_static_data_that_contain_themselves() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ValueError, match="more than 32 levels deep"):
        core.encode_value(value)


def test_codecs_of_the_program() -> None:
    class Shape:
        def __init__(self, *dims: int):
            self.dims = dims

    treepack.register_auxdata(Shape, "tests.Shape", lambda s: s.dims, lambda dims: Shape(*dims))
    assert core.decode_value(core.encode_value(Shape(1, 2))).dims == (1, 2)
    with pytest.raises(TypeError, match="must be passed together"):
        treepack.register_auxdata(Shape, "x", lambda s: s.dims)
    with pytest.raises(TypeError, match="not an enum, a dataclass or a subclass of tuple"):
        treepack.register_auxdata(object)
    with pytest.raises(ValueError, match=r"'tests\.Shape' .*Shape"):
        treepack.register_auxdata(Color.__class__, "tests.Shape", repr, repr)
    with pytest.raises(ValueError, match="cannot also have the name 'other'"):
        treepack.register_auxdata(Color, "other")


def test_functions() -> None:
    with pytest.raises(TypeError, match="has no name of its own"):
        treepack.register_function(lambda: None)
    with pytest.raises(ValueError, match="'other'"):
        treepack.register_function(scale, serialized_name="other")
    with pytest.raises(ValueError, match=r"already registered for node_types\.scale"):
        treepack.register_function(np.sum, serialized_name="node_types.scale")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("os.system", "true"),
        ("function", "os.system"),
        ("function", 3),
        ("jax.nn", "_private"),
        ("jax.nn", "nothing"),
        ("type", ("os", "system")),
        ("type", ("jax.numpy", "save")),
        ("type", ("jax.numpy", "_x")),
        ("type", ("numpy", "O")),
        ("numpy.dtype", "O"),
        ("numpy.dtype", "M8[s/0]"),
        ("numpy.ndarray", ("float32", (3,), b"")),
        ("numpy.ndarray", 3),
        ("node_types.Mode", "NOTHING"),
        ("node_types.Config", {"other": 3}),
        ("tests.Color", []),
        ("node_types.Config", {}),
        ("jax.sharding.PartitionSpec", ((), 3, 4)),
        ("int", "x"),
    ],
)
def test_hostile_static_data(name: str, value: Any) -> None:
    hostile = named(name, value)
    with pytest.raises(treepack.DecodeError):
        core.decode_value(hostile)


def named(name: str, value: Any) -> bytes:
    """Returns the bytes of a named value, whatever it is made of."""
    import msgpack

    def pack(value: Any) -> Any:
        if value is None:
            return "none"
        kind = {int: "int", str: "str", bytes: "bytes", tuple: "tuple", list: "list", dict: "dict"}
        if type(value) in (tuple, list):
            value_of: Any = [pack(item) for item in value]
        elif type(value) is dict:
            value_of = [[pack(key), pack(item)] for key, item in value.items()]
        else:
            value_of = value
        return {kind[type(value)]: value_of}

    packed: bytes = msgpack.packb({"named": [name, pack(value)]})
    return packed


def test_the_hostile_values_are_what_they_seem() -> None:
    assert core.decode_value(named("node_types.Mode", "EVAL")) is Mode.EVAL
    assert core.decode_value(named("numpy.ndarray", ("int8", (1,), b"\3"))) == 3


def test_types_that_a_tree_cannot_register_are_reported() -> None:
    @dataclasses.dataclass
    class Plain:
        a: Any

    class Local(NamedTuple):
        a: Any

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert list(treepack.register_tree([Plain(1), Local(2)])) == [default_name(Local)]
    assert "Local'" in str(caught[0].message)
    assert "Plain, " in str(caught[1].message)
    assert {warning.filename for warning in caught} == {__file__}


def test_an_older_function_is_an_error() -> None:
    def define() -> Any:
        scope: dict[str, Any] = {"__name__": "registration.functions"}
        exec("def scale(x): return x", scope)
        return scope["scale"]

    module = types.ModuleType("registration.functions")
    sys.modules[module.__name__] = module
    old, new = define(), define()
    treepack.register_function(old)
    module.scale = new  # type: ignore[attr-defined]
    treepack.register_function(new)
    with pytest.raises(TypeError, match=r"older definition of 'registration.functions.scale'"):
        treepack.dumps(jax.tree_util.Partial(old))
    del sys.modules[module.__name__]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("jax.sharding.PartitionSpec", (range(2**26), frozenset(), frozenset())),
        ("jax.sharding.PartitionSpec", ((range(9),), frozenset(), frozenset())),
        ("jax.sharding.PartitionSpec", ((("x", ("y",)),), frozenset(), frozenset())),
        ("jax.sharding.PartitionSpec", ((), frozenset([(1,)]), frozenset())),
        ("numpy.ndarray", ("int8", range(2**26), b"")),
        ("numpy.ndarray", ("int8", (True,), b"\0")),
        ("numpy.ndarray", ("int8", (-1,), b"\0")),
        ("numpy.ndarray", ("int8", (2**63, 0), b"")),
        ("numpy.ndarray", ("int8", (1,) * 65, b"\0")),
        ("numpy.ndarray", ("int16", (1,), b"\0")),
        ("numpy.ndarray", (np.dtype("int8"), (1,), b"\0")),
        ("numpy.generic", ("int8", (1,), b"\0")),
        ("jax.Array", ("int8", range(2**26), b"")),
        ("jax.sharding.NamedSharding", (("x",), (0,), PartitionSpec(), None)),
        ("jax.sharding.NamedSharding", (("x",), (-1,), PartitionSpec(), None)),
        ("jax.sharding.NamedSharding", (("x",), (True,), PartitionSpec(), None)),
        ("jax.sharding.NamedSharding", (("x", "y"), (2**31, 2**31), PartitionSpec(), None)),
        ("jax.sharding.NamedSharding", (("x", "x"), (2, 2), PartitionSpec(), None)),
        ("jax.sharding.NamedSharding", (("x",), (2, 2), PartitionSpec(), None)),
        ("jax.sharding.NamedSharding", (("x",), (2,), ("x",), None)),
        ("jax.sharding.NamedSharding", (("x",), (2,), PartitionSpec("y"), None)),
        ("jax.sharding.NamedSharding", (("x",), (2,), PartitionSpec(), 3)),
        ("jax.sharding.NamedSharding", (("x",), (2,), PartitionSpec(), None, ("Auto", "Auto"))),
        ("jax.sharding.NamedSharding", (("x",), (2,), PartitionSpec(), None, range(2**26))),
        ("jax.tree_util.Partial", (scale, range(2**26), {})),
        ("jax.tree_util.PyTreeDef", ("dict", ["a", "a"], [None, None])),
        ("jax.tree_util.PyTreeDef", ("none", None, [None])),
        ("jax.tree_util.PyTreeDef", ("list", None, range(2**26))),
        ("jax.tree_util.PyTreeDef", ("tests.Frozen", range(2), [None, None])),
        ("functools.partial", (scale, (), [])),
        ("range", (1, 2)),
        ("slice", (1,)),
        ("treepack.hole", (None, None)),
        ("types.MappingProxyType", [("a", 1)]),
        ("node_types.Config", range(10**12)),
        ("node_types.Mode", range(10**12)),
        ("function", range(10**12)),
        ("equinox.Missing", 1),
    ],
)
def test_parts_of_static_data_have_exact_types(name: str, parts: Any) -> None:
    from treepack._src.registry import static as _static

    with pytest.raises(treepack.DecodeError):
        _static.rebuild_value(name, parts)


class Unit(enum.Enum):
    METRE = 1


@dataclasses.dataclass(frozen=True)
class Scale:
    unit: Unit


def doubled(x: Any) -> Any:
    return 2 * x


def halved(x: Any) -> Any:
    return x / 2


@jax.tree_util.register_pytree_node_class
class Measured:
    """A node whose auxdata its class makes of values of the program."""

    def __init__(self, w: Any, static: Any) -> None:
        self.w, self.static = w, static

    def tree_flatten(self) -> tuple[Any, Any]:
        return (self.w,), self.static

    @classmethod
    def tree_unflatten(cls, static: Any, children: Any) -> Measured:
        return cls(*children, static)


def test_types_and_functions_in_static_data_of_a_tree_are_registered() -> None:
    parts = [
        Scale(Unit.METRE),
        types.MappingProxyType({"by": doubled}),
        functools.partial(halved, 4),
        (jax.tree_util.tree_structure([0]), optax.EmptyState()),
    ]
    assert treepack.register_tree([Measured(1, part) for part in parts]) == {
        f"{__name__}.Measured": Measured
    }
    loaded = treepack.loads(treepack.dumps([Measured(1, part) for part in parts]))
    scale, mapping, partial, last = [node.static for node in loaded]
    assert (scale, mapping, last) == (parts[0], parts[1], parts[3])
    assert (partial.func, partial.args) == (halved, (4,))


@pytest.mark.parametrize("register", [treepack.register_dataclass, treepack.register_namedtuple])
def test_an_upgrade_needs_a_version(register: Any) -> None:
    class Tuple(NamedTuple):
        a: int

    @dataclasses.dataclass
    class Data:
        a: int

    kind = Data if register is treepack.register_dataclass else Tuple
    options = {"serialized_name": f"registration.Upgraded{kind.__name__}"}
    with pytest.raises(ValueError, match="pass version=1"):
        register(kind, upgrade=lambda *old: old[:2], **options)
    assert register(kind, version=1, upgrade=lambda *old: old[:2], **options) is kind
