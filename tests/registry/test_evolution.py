"""Types that change between saving and loading, and the names that they have."""

from __future__ import annotations

import collections
import dataclasses
import enum
import importlib
import sys
import types
from pathlib import Path
from typing import Any, NamedTuple

import flax.serialization
import jax
import jax.numpy as jnp
import msgpack
import numpy as np
import optax
import pytest

import treepack
from trees import altered

STATIC: dict[str, Any] = {"metadata": {"static": True}}


def define(*fields: Any, **options: Any) -> Any:
    """Registers a dataclass by the name tests.Evolving, in place of its older self."""
    made = dataclasses.make_dataclass("Evolving", fields, namespace={"__module__": "evolving"})
    return treepack.register_dataclass(made, serialized_name="tests.Evolving", **options)


def static(name: str, **options: Any) -> Any:
    return name, Any, dataclasses.field(**STATIC, **options)


def test_fields_in_another_order() -> None:
    old = define("a", "b", static("c"), static("d"))
    data = treepack.dumps([old(1, np.ones(2), "c", "d")])
    new = define("b", "a", static("d"), static("c"))
    found = treepack.loads(data)[0]
    assert type(found) is new
    assert (found.a, found.c, found.d) == (1, "c", "d")
    assert treepack.abstract(data)[0].b.shape == (2,)


def test_new_fields_get_their_defaults() -> None:
    data = treepack.dumps(define("a")(1))
    define(
        "a",
        ("b", Any, dataclasses.field(default=2)),
        ("c", Any, dataclasses.field(default_factory=list)),
        static("d", default="new"),
    )
    found = treepack.loads(data)
    assert (found.a, found.b, found.c, found.d) == (1, 2, [], "new")
    define("a", "b")
    with pytest.raises(treepack.UnregisteredTypeError, match=r"without the field 'b'.*no default"):
        treepack.loads(data)
    define("a", static("b"))
    with pytest.raises(treepack.UnregisteredTypeError, match=r"without the field 'b'.*no default"):
        treepack.loads(data)


def test_removed_fields_are_reported() -> None:
    data = treepack.dumps(define("a", "b")(1, 2))
    define("a")
    with pytest.raises(treepack.UnregisteredTypeError, match="'b'"):
        treepack.loads(data)
    assert treepack.loads(data, unknown="dict") == {"a": 1, "b": 2}


def test_upgrades() -> None:
    data = treepack.dumps({"x": define("w", "bias", static("act"))(np.ones(2), 3, "relu")})

    def upgrade(fields: Any, children: Any, version: int) -> Any:
        assert version == 0
        children["kernel"] = children.pop("w")
        del children["bias"]
        return {"activation": fields["act"].upper()}, children

    new = define("kernel", static("activation"), version=2, upgrade=upgrade)
    found = treepack.loads(data)["x"]
    assert type(found) is new
    assert found.activation == "RELU"
    assert found.kernel.sum() == 2
    # What is saved now is read as it is, and not by what is older.
    data = treepack.dumps(found)
    assert treepack.loads(data).activation == "RELU"
    define("kernel", static("activation"), version=1, upgrade=upgrade)
    with pytest.raises(treepack.UnregisteredTypeError, match=r"in version 2, and is .* version 1"):
        treepack.loads(data)
    define("kernel", static("activation"), version=3)
    with pytest.raises(treepack.UnregisteredTypeError, match="without upgrade=") as caught:
        treepack.loads(data)
    assert 'load(..., target, missing="target", unexpected="ignore")' in str(caught.value)
    template = define("kernel", static("activation"), version=3)(np.zeros(2), "none")
    options: Any = {"missing": "target", "unexpected": "ignore"}
    assert treepack.load(data, template, **options).kernel.sum() == 2


def test_upgrades_of_namedtuples_and_other_nodes() -> None:
    def define_tuple(fields: list[str], **options: Any) -> Any:
        made = collections.namedtuple("Made", fields)
        return treepack.register_namedtuple(made, serialized_name="tests.evolution.Made", **options)

    data = treepack.dumps(define_tuple(["a", "b"])(1, 2))
    new = define_tuple(
        ["sum"], version=1, upgrade=lambda _, children, __: ({}, {"sum": sum(children.values())})
    )
    assert treepack.loads(data) == new(3)

    def define_node(**options: Any) -> Any:
        class Node:
            def __init__(self, value: Any, unit: str):
                self.value, self.unit = value, unit

        jax.tree_util.register_pytree_with_keys(
            Node,
            lambda node: ([(jax.tree_util.DictKey("v"), node.value)], node.unit),
            lambda unit, children: Node(*children, unit),
        )
        return treepack.register_node(Node, serialized_name="tests.evolution.Node", **options)

    data = treepack.dumps(define_node()(2.0, "m"))
    define_node(version=1, upgrade=lambda unit, children, _: ("cm", {"v": children["v"] * 100}))
    found = treepack.loads(data)
    assert (found.value, found.unit) == (200.0, "cm")


def scaled(static: Any, children: Any, version: int) -> Any:
    return static, {"mass": children["mass"] * 1000}


@pytest.mark.parametrize("strict", [True, False, "exact"])
def test_upgrades_into_a_template(strict: Any, tmp_path: Path) -> None:
    path = tmp_path / "old"
    tree = {"u": [define("mass")(np.array([1.0, 2.0]))], "w": np.ones(1)}
    treepack.save(path, tree)
    data, flat = path.read_bytes(), treepack.serialization.msgpack_restore(treepack.dumps(tree))
    new = define("mass", version=1, upgrade=scaled)
    template = {"u": [new(np.zeros(2))], "w": np.zeros(1)}
    expected = [1000.0, 2000.0]
    assert treepack.loads(data)["u"][0].mass.tolist() == expected
    for found in (
        treepack.loads(data, template, strict=strict),
        treepack.load(path, template, strict=strict),
        treepack.load(path, template, strict=strict, missing="target"),
        treepack.serialization.from_bytes(template, data, strict=strict),
        treepack.open(path).load(template, strict=strict),
    ):
        assert type(found["u"][0]) is type(template["u"][0])
        assert found["u"][0].mass.tolist() == expected
        assert found["w"].tolist() == [1]
    part = treepack.open(path)["u"].load(template["u"], strict=strict)
    assert part[0].mass.tolist() == expected
    found = treepack.load(path, template, select="u", strict=strict)
    assert found["u"][0].mass.tolist() == expected
    assert found["w"].tolist() == [0]
    # What was encoded without types is not known to be old.
    assert treepack.serialization.from_state_dict(template, flat)["u"][0].mass.tolist() == [1, 2]
    with pytest.raises(
        treepack.TreepackError, match="mapping= does not support files with nodes of older versions"
    ):
        treepack.load(path, template, mapping={"w": "w"})


def test_upgrades_of_names_into_a_template() -> None:
    data = treepack.dumps({"x": define("w", "bias", static("act"))(np.ones(2), 3, "relu")})
    state = msgpack.unpackb(data, ext_hook=flax.serialization._msgpack_ext_unpack)

    def upgrade(fields: Any, children: Any, version: int) -> Any:
        return {"activation": fields["act"].upper()}, {"kernel": children["w"] + children["bias"]}

    new = define("kernel", static("activation"), version=2, upgrade=upgrade)
    template = {"x": new(np.zeros(2), "none")}
    before = repr(state)
    for found in (
        treepack.loads(data, template),
        treepack.serialization.from_state_dict(template, state),
    ):
        assert found["x"].kernel.tolist() == [4, 4]
        assert found["x"].activation == "none"  # static data are those of the template
    assert repr(state) == before
    # What the upgrade makes is compared as well.
    with pytest.raises(treepack.MismatchError, match=r"x/kernel: expected float64\[3\], found"):
        treepack.loads(data, {"x": new(np.zeros(3), "none")})


def test_new_fields_into_a_template(tmp_path: Path) -> None:
    treepack.register_auxdata(
        Mode, "tests.evolution.Mode", lambda _: 1, lambda _: pytest.fail("it was read")
    )
    path = tmp_path / "old"
    treepack.save(path, {"x": define("a", static("mode"))(1, Mode.ONE)})
    new = define("a", static("mode"), ("b", Any, dataclasses.field(default=None)))
    template = {"x": new(0, None, np.ones(2))}
    for strict in (True, False, "exact"):
        with pytest.raises(treepack.MismatchError, match=r"x/b: missing \(expected float64\[2\]\)"):
            treepack.load(path, template, strict=strict)
    # The template has a value already; what is static there is not even read.
    found, report = treepack.load(path, template, missing="target", return_report=True)
    assert (found["x"].a, found["x"].mode) == (1, None)
    assert found["x"].b.tolist() == [1, 1]
    assert (report.loaded, report.kept) == (["x/a"], ["x/b"])
    # A removed field is an error.
    gone = define(static("mode"), ("b", Any, dataclasses.field(default=2)))
    with pytest.raises(treepack.MismatchError, match="x/a: unexpected"):
        treepack.load(path, {"x": gone(None, 0)})


class Mode(enum.Enum):
    """Static data that no reader needs."""

    ONE = 1


class Inner(NamedTuple):
    z: Any


@pytest.mark.parametrize("sharded", [False, True])
def test_an_upgrade_gets_the_same_with_a_template_as_without(tmp_path: Path, sharded: bool) -> None:
    treepack.register_namedtuple(Inner, serialized_name="tests.evolution.Inner")
    path = tmp_path / "old"
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    w = jax.device_put(jnp.arange(4.0), place)
    old = define("w", "layers", "inner", "key", static("act"))
    placeholder = lambda x: x  # noqa: E731
    treepack.save(
        path,
        {"x": old(w, [1, (2,)], Inner(3), jax.random.key(5), placeholder)},
        static="skip",
        sharded=sharded,
    )
    seen = []

    def upgrade(fields: Any, children: Any, version: int) -> Any:
        seen.append(
            (fields, {name: (type(child), repr(child)) for name, child in children.items()})
        )
        w = children["w"].at[0].set(7) * 2
        key = jax.random.split(children["key"])[0]
        return fields, {
            "w": w,
            "key": key,
            "layers": [*children["layers"], Inner(4)],
            "inner": {"i": w + 1},
        }

    new = define("w", "layers", "inner", "key", static("act"), version=1, upgrade=upgrade)
    key = jax.random.key(0)
    template = {"x": new(jnp.zeros(4), [0, (0,), Inner(0)], {"i": jnp.zeros(4)}, key, placeholder)}
    expected = treepack.load(path, static={"x/act": placeholder})["x"]
    for strict in (True, False, "exact"):
        for found in (
            treepack.load(path, template, strict=strict)["x"],
            treepack.load(path, template, strict=strict, missing="target")["x"],
            treepack.open(path)["x"].load(template["x"], strict=strict),
        ):
            assert repr(found) == repr(expected)
            assert isinstance(found.w, jax.Array)
            assert type(found.layers[1]) is tuple
    assert all(one == seen[0] for one in seen)
    if not sharded:
        numpy = treepack.serialization.load_from_file(template, path)["x"]
        assert type(numpy.w) is np.ndarray
        assert numpy.w.tolist() == [14, 2, 4, 6]


def test_what_a_template_ignores_is_not_upgraded(tmp_path: Path) -> None:
    path = tmp_path / "old"
    treepack.save(path, {"x": define("a")(1), "n": 2})
    define("a", version=1, upgrade=lambda *_: pytest.fail("it was upgraded"))
    assert treepack.load(path, {"n": 0}) == {"n": 2}
    found, report = treepack.load(path, {"n": 0}, missing="target", return_report=True)
    assert (found, report.unexpected) == ({"n": 2}, ["x/a"])


def test_a_part_of_an_older_node_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "old"
    treepack.save(path, {"x": define("a", "b")(1, 2)})
    new = define("a", "b", version=1, upgrade=lambda static, children, _: (static, children))
    with pytest.raises(
        treepack.TreepackError, match="at x: a node of an older version must be loaded completely"
    ):
        treepack.load(path, {"x": new(0, 0)}, select="x/a")


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (None, "upgrade= must return a pair of static data and children, got None"),
        (({}, {"a": 1, "b": 2}), r"values for unknown fields \['b'\]"),
        ((None, {"a": 1}), "upgrade= must return static data as a dict by name, got None"),
        (({"c": 1}, {"a": 1}), r"values for unknown fields \['c'\]"),
    ],
)
def test_what_an_upgrade_must_not_return(made: Any, message: str) -> None:
    data = treepack.dumps({"x": define("a")(1)})
    new = define("a", version=1, upgrade=lambda *_: made)
    for target in (None, {"x": new(0)}):
        with pytest.raises(treepack.DecodeError, match=message):
            treepack.loads(data, target)


def test_aliases() -> None:
    data = treepack.dumps(define("a")(1))

    @dataclasses.dataclass
    class Renamed:
        a: Any

    with pytest.raises(ValueError, match=r"'tests\.Evolving'"):
        treepack.register_dataclass(
            Renamed, serialized_name="tests.evolution.Renamed", aliases=["tests.Evolving"]
        )
    older = altered(data, b"tests.Evolving", b"tests.Ancestry")
    with pytest.raises(treepack.UnregisteredTypeError, match="aliases= takes"):
        treepack.loads(older)
    treepack.register_dataclass(
        Renamed, serialized_name="tests.evolution.Renamed", aliases=["tests.Ancestry"]
    )
    assert type(treepack.loads(older)) is Renamed
    assert b"tests.evolution.Renamed" in treepack.dumps(Renamed(1))

    @treepack.register_auxdata(
        serialized_name="tests.evolution.Color", aliases=["tests.evolution.Shade"]
    )
    class Color(enum.Enum):
        RED = 1

    data = altered(
        treepack.dumps({Color.RED: 0}), b"tests.evolution.Color", b"tests.evolution.Shade"
    )
    assert treepack.loads(data) == {Color.RED: 0}
    unknown = altered(data, b"tests.evolution.Shade", b"tests.evolution.Light")
    with pytest.raises(treepack.UnregisteredTypeError, match="aliases= takes"):
        treepack.loads(unknown)


def test_instances_of_a_class_that_was_defined_again_are_saved_under_its_name() -> None:
    """As they were before it was: loading them converts them."""
    old = define("a", static("c"))(1, "c")
    new = define("a", static("c"), ("b", Any, dataclasses.field(default=2)))
    found = treepack.loads(treepack.dumps([old, new(3, "d", 4)]))
    assert found == [new(1, "c", 2), new(3, "d", 4)]

    def define_tuple(*fields: str) -> Any:
        made = collections.namedtuple("Again", fields, module="evolving")
        return treepack.register_namedtuple(made, serialized_name="tests.Again")

    data = [define_tuple("a")(1), define_tuple("a", "b")(2, 3)]
    newest = define_tuple("b", "a")
    assert treepack.loads(treepack.dumps(data[1])) == newest(3, 2)
    with pytest.raises(treepack.UnregisteredTypeError, match="'b'"):
        treepack.loads(treepack.dumps(data))
    template = [newest(5, 6), newest(5, 6)]
    found = treepack.load(treepack.dumps(data), template, missing="target")
    assert found == [newest(5, 1), newest(3, 2)]


def test_static_data_of_a_class_that_was_defined_again_are_saved_under_its_name() -> None:
    def define_mode() -> Any:
        made = enum.Enum("Again", {"ONE": 1}, module="evolving", qualname="Again")  # type: ignore[misc]
        return treepack.register_auxdata(made, "tests.evolution.Again")

    old, new = define_mode().ONE, define_mode().ONE
    assert treepack.loads(treepack.dumps({old: 0})) == {new: 0}


@pytest.mark.parametrize("define_again", [dataclasses.dataclass, flax.struct.dataclass, NamedTuple])
def test_the_newest_definition_is_saved_though_only_an_older_one_is_registered(
    define_again: Any,
) -> None:
    def make() -> Any:
        return type("Layer", (), {"__module__": "again", "__annotations__": {"w": Any}})

    treepack.register_dataclass(dataclasses.dataclass(make()), serialized_name="again.Layer")
    if define_again is NamedTuple:
        newest: Any = collections.namedtuple("Layer", ["w"], module="again")
    else:
        newest = define_again(make())
    data = treepack.dumps([newest(w=1)])
    # The name belongs to the older one, so only a template can tell that the newest is meant.
    assert treepack.loads(data, [newest(w=0)]) == [newest(w=1)]
    with pytest.raises(treepack.PlaceholderError, match=r"again\.Layer"):
        treepack.loads(data)


def test_redefinition_replaces_both_ways_in_jax_export_too() -> None:
    def define_node(mark: bytes) -> Any:
        class Node:
            def __init__(self, value: Any):
                self.value = value

        Node.__module__, Node.__qualname__ = "evolving", "Node"
        jax.tree_util.register_pytree_node(
            Node, lambda node: ((node.value,), mark), lambda _, children: Node(*children)
        )

        def read(data: bytes) -> bytes:
            assert data == mark + b"!"
            return mark

        return treepack.register_node(
            Node,
            serialized_name="tests.evolution.Coded",
            serialize_auxdata=lambda aux: aux + b"!",
            deserialize_auxdata=read,
        )

    for mark in (b"one", b"two"):
        node = define_node(mark)
        assert treepack.loads(treepack.dumps(node(3))).value == 3
        exported = jax.export.export(jax.jit(lambda it: it))(node(jnp.ones(2)))
        again = jax.export.deserialize(bytearray(exported.serialize()))
        assert type(again.call(node(jnp.ones(2)))) is node


MODULE = """
import dataclasses, treepack
from typing import Any

@treepack.register_dataclass(serialized_name="tests.reloaded.Layer")
@dataclasses.dataclass
class Layer:
    w: Any

@treepack.register_function
def scale(x):
    return x * {factor}
"""


def test_a_module_that_is_reloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "reloaded_layers.py"
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    file.write_text(MODULE.format(factor=2))
    module = importlib.import_module("reloaded_layers")
    data = treepack.dumps([module.Layer(1), jax.tree_util.Partial(module.scale)])
    file.write_text(MODULE.format(factor=33))
    importlib.reload(module)
    layer, function = treepack.loads(data)
    assert type(layer) is module.Layer
    assert function(1) == 33


def test_two_living_things_of_one_name_are_a_conflict() -> None:
    module = types.ModuleType("two_things")
    sys.modules["two_things"] = module

    def make() -> Any:
        made = dataclasses.make_dataclass("Thing", ["w"])
        made.__module__ = "two_things"  # as an argument, only from Python 3.12 on
        return made

    module.Thing = first = make()  # type: ignore[attr-defined]
    treepack.register_dataclass(first)
    with pytest.raises(ValueError, match=r"already registered for two_things\.Thing"):
        treepack.register_dataclass(make())
    # Its module holds another one now.
    module.Thing = second = make()  # type: ignore[attr-defined]
    treepack.register_dataclass(second)
    assert treepack.registered_types()["two_things.Thing"] is second


def test_a_registration_that_fails_leaves_nothing_behind() -> None:
    @dataclasses.dataclass
    class First:
        w: Any

    jax.tree_util.register_dataclass(First)
    jax.export.register_pytree_node_serialization(
        First,
        serialized_name="tests.evolution.Taken",
        serialize_auxdata=lambda _: b"",
        deserialize_auxdata=lambda _: (),
    )

    @dataclasses.dataclass
    class Second:
        w: Any

    with pytest.raises(ValueError, match="another type with that name"):
        treepack.register_dataclass(Second, serialized_name="tests.evolution.Taken")
    assert jax.tree.leaves(Second(1)) != [1]
    assert "tests.evolution.Taken" not in treepack.registered_types()
    treepack.register_dataclass(Second, serialized_name="tests.evolution.Free")
    assert treepack.loads(treepack.dumps(Second(1))) == Second(1)


def test_a_tree_is_registered_whole_or_not_at_all() -> None:
    class Fine(NamedTuple):
        w: Any

    class Clash(NamedTuple):
        w: Any

    class Other(NamedTuple):
        w: Any

    Other.__qualname__ = Clash.__qualname__
    for ty in (Fine, Clash, Other):
        ty.__module__ = "tests.whole"
    before = treepack.registered_types()
    with pytest.raises(ValueError, match="Clash"):
        treepack.register_tree([Fine(1), Clash(2), Other(3)])
    assert treepack.registered_types() == before
    with pytest.warns(UserWarning, match=r"tests\.whole"):
        added = treepack.register_tree([Fine(1), Clash(2)])
    assert list(added) == [f"tests.whole.{ty.__qualname__}" for ty in (Fine, Clash)]


def test_default_names() -> None:
    state = optax.adamw(1e-3).init({"w": jnp.zeros(2)})
    added = treepack.register_tree(state)
    known = treepack.registered_types()
    assert {*added} <= known.keys()
    assert known["optax.ScaleByAdamState"] is optax.ScaleByAdamState
    assert known["optax.EmptyState"] is optax.EmptyState
    for name in ("", None):
        if name is not None:
            with pytest.raises(ValueError, match="must be a non-empty string"):
                treepack.register_namedtuple(NamedTuple("Empty", []), serialized_name=name)
    with pytest.warns(UserWarning, match="local"):

        @treepack.register_function
        def local() -> None:
            """Does nothing."""


def test_names_of_another_main_module() -> None:
    data = altered(treepack.dumps(define("a")(1)), b"tests.Evolving", b"__main__.Layer")
    with pytest.raises(treepack.UnregisteredTypeError, match=r"serialized_name='__main__\.Layer'"):
        treepack.loads(data)
    define_main = dataclasses.make_dataclass("Lay", ["a"], namespace={"__module__": "__main__"})
    treepack.register_dataclass(define_main, serialized_name="__main__.Lay")
    data = altered(treepack.dumps(define_main(1)), b"__main__.Lay", b"__main__.Lax")
    with pytest.raises(treepack.UnregisteredTypeError, match=r"serialized_name='__main__\.Lax'"):
        treepack.loads(data)


def test_namedtuples_among_static_data_are_written_by_name() -> None:
    @treepack.register_dataclass(serialized_name="tests.evolution.Holder")
    @dataclasses.dataclass
    class Holder:
        w: Any
        config: Any = dataclasses.field(**STATIC)

    def define_config(*fields: str, **defaults: Any) -> Any:
        made = collections.namedtuple("Config", fields, **defaults)
        return treepack.register_namedtuple(made, serialized_name="tests.evolution.Config")

    data = treepack.dumps(Holder(1, define_config("rows", "cols")(rows=1, cols=2)))
    define_config("cols", "rows", "depth", defaults=[3])
    assert treepack.loads(data).config._asdict() == {"cols": 2, "rows": 1, "depth": 3}


def test_dataclasses_among_static_data_change_as_nodes_do() -> None:
    def define_config(*fields: Any, name: str, **options: Any) -> Any:
        made = dataclasses.make_dataclass("Settings", fields, namespace={"__module__": "settings"})
        return treepack.register_auxdata(made, name, **options)

    data = treepack.dumps([], metadata=define_config("a", name="tests.Settings")(1))
    define_config("a", ("b", int, dataclasses.field(default=5)), name="tests.Settings")
    found = treepack.read_metadata(data)
    assert (found.a, found.b) == (1, 5)


def test_a_name_is_more_than_an_alias() -> None:
    def make(name: str, aliases: Any = ()) -> Any:
        made = dataclasses.make_dataclass("Back", ["a"], namespace={"__module__": "back"})
        return treepack.register_dataclass(made, serialized_name=name, aliases=aliases)

    make("tests.back.A")
    make("tests.back.B", ["tests.back.A"])
    again = make("tests.back.A")
    assert type(treepack.loads(treepack.dumps(again(1)))) is again


def test_two_lambdas_are_a_conflict() -> None:
    treepack.register_function(lambda x: x + 1, serialized_name="tests.evolution.lambda")
    with pytest.raises(ValueError, match="already registered for"):
        treepack.register_function(lambda x: x * 2, serialized_name="tests.evolution.lambda")


def test_two_functions_of_one_function_are_a_conflict() -> None:
    def make(factor: int) -> Any:
        def scale(x: int) -> int:
            return factor * x

        return scale

    first = make(2)
    treepack.register_function(first, serialized_name="tests.evolution.scale")
    data = treepack.dumps(jax.tree_util.Partial(first))
    with pytest.raises(ValueError, match="already registered for"):
        treepack.register_function(make(3), serialized_name="tests.evolution.scale")
    assert treepack.loads(data)(1) == 2


def test_options_are_checked_when_a_type_is_registered() -> None:
    made = dataclasses.make_dataclass("Checked", ["a"])
    for version in (-1, "2", 2**32):
        with pytest.raises(ValueError, match="version must be"):
            treepack.register_dataclass(made, serialized_name="tests.Checked", version=version)
    with pytest.raises(TypeError, match="aliases must be a list"):
        treepack.register_dataclass(made, serialized_name="tests.Checked", aliases="old")


@pytest.mark.parametrize(
    "saved", [0.5, jnp.asarray(0.5), np.ones(4, np.float32), jnp.ones((2, 3), jnp.bfloat16)]
)
def test_abstract_traces_upgrades(saved: Any) -> None:
    rest = {"b": np.ones(2), "a": [jnp.ones(3), "text", (1, None), jax.random.key(0)]}
    data = treepack.dumps({"x": define("a", "rest")(saved, rest)})

    def upgrade(fields: Any, children: Any, version: int) -> Any:
        return [fields, {"rest": children["rest"], "b": jnp.log(children["a"]), "n": np.ones(2)}]

    new = define("b", "rest", "n", version=1, upgrade=upgrade)
    made, found = treepack.loads(data)["x"], treepack.abstract(data)["x"]
    assert type(found) is new
    before = treepack.abstract(treepack.dumps(made))
    assert repr(found) == repr(before)
    assert list(found.rest) == ["b", "a"]
    restored = treepack.loads(data, {"x": found})["x"]
    assert restored.b.tolist() == made.b.tolist()


def test_abstract_tells_of_an_upgrade_that_needs_values() -> None:
    data = treepack.dumps([define("a")(jnp.ones(()))])
    define("a", version=1, upgrade=lambda fields, it, _: (fields, {"a": float(it["a"])}))
    assert treepack.loads(data)[0].a == 1
    with pytest.raises(treepack.DecodeError, match=r"upgrade= uses the values.*load the tree"):
        treepack.abstract(data)
    define("a", version=1, upgrade=lambda *_: 5)
    with pytest.raises(treepack.DecodeError, match="upgrade= must return a pair"):
        treepack.abstract(data)
