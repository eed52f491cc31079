"""Static data of unregistered types, written by the definitions of these types."""

from __future__ import annotations

import dataclasses
import enum
import functools
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import treepack
from treepack._src.registry import library_types, static
from treepack._src.registry.definitions import is_definition


class Color(enum.Enum):
    RED = 1
    BLUE = "b"


class Flags(enum.Flag):
    A = 1
    B = 2


@dataclasses.dataclass(frozen=True)
class Config:
    size: int = 3
    color: Any = Color.RED
    act: Any = None

    @functools.cached_property
    def twice(self) -> int:
        return 2 * self.size


class Pair(NamedTuple):
    a: Any
    b: Any


class Row(tuple[Any, ...]):
    pass


@treepack.register_dataclass(serialized_name="tests.definitions.Layer")
@dataclasses.dataclass
class Layer:
    w: Any
    data: Any = dataclasses.field(metadata={"static": True})


@jax.tree_util.register_pytree_node_class
class Whole:
    """A node whose static data are one value, which is no tuple."""

    def __init__(self, w: Any, data: Any):
        self.w, self.data = w, data

    def tree_flatten(self) -> Any:
        return (self.w,), self.data

    @classmethod
    def tree_unflatten(cls, data: Any, children: Any) -> Whole:
        return cls(*children, data)


treepack.register_node(Whole, serialized_name="tests.definitions.Whole")


VALUES = {
    "a member": Color.BLUE,
    "flags": Flags.A | Flags.B,
    "a dataclass": Config(4),
    "in containers": (1, [{"c": Config(5, Color.BLUE)}]),
    "with code": Config(act=(jnp.tanh, 2)),
    "a namedtuple": Pair(Color.RED, [Pair(1, len)]),
    "a tuple": Row((1, Color.RED)),
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_a_template_or_static_brings_them_back(value: Any, tmp_path: Path) -> None:
    if isinstance(value, Config):
        assert value.twice
    tree = {"l": Layer(jnp.ones(2), value), "w": [Whole(jnp.zeros(1), value)]}
    treepack.save(tmp_path / "tree", tree)
    for options in ({"target": tree}, {"static": tree}, {"target": tree, "strict": "exact"}):
        found = treepack.load(tmp_path / "tree", **options)
        assert found["l"].data == value
        assert type(found["l"].data) is type(value)
        assert found["w"][0].data == value
    with pytest.raises(treepack.errors.PlaceholderError, match="'test_definitions"):
        treepack.load(tmp_path / "tree")
    unknown = treepack.load(tmp_path / "tree", unknown="dict")
    np.testing.assert_array_equal(unknown["l"]["w"], np.ones(2))
    assert treepack.verify(tmp_path / "tree").ok


def test_the_file_says_what_they_are() -> None:
    data = treepack.dumps([Layer(1, Config(4)), Layer(2, Color.BLUE)])
    for fillings in (
        [Layer(0, Config(9)), Layer(0, Color.RED)],
        {"0/data": Config(9), "1/data": Color.RED},
        {"0": Layer(0, Config(9)), "1/data": Color.RED},
    ):
        assert treepack.loads(data, static=fillings) == [Layer(1, Config(4)), Layer(2, Color.BLUE)]
    # As everywhere, a template has static data of its own.
    template = [Layer(0, Config(9)), Layer(0, Color.RED)]
    assert treepack.loads(data, template) == [Layer(1, Config(9)), Layer(2, Color.RED)]


def test_all_missing_types_are_reported() -> None:
    data = treepack.dumps({"x": Layer(1, (2, Config(4))), "y": Layer(2, Flags.A)})
    with pytest.raises(treepack.errors.PlaceholderError) as caught:
        treepack.loads(data)
    for part in ("at x/data/1: ", "at x/data/1/color: ", "at y/data: ", "register_auxdata on"):
        assert part in str(caught.value)
    for ty in (Config, Color, Flags):
        assert f"'test_definitions.{ty.__name__}'" in str(caught.value).split("register_auxdata")[1]


class Sizes(NamedTuple):
    rows: int


class Route(tuple[Any, ...]):
    """A subclass of tuple."""


def test_the_advice_about_tuples_succeeds() -> None:
    for value in (Sizes(1), Route((1, 2))):
        data = treepack.dumps(Layer(1, value))
        with pytest.raises(
            treepack.PlaceholderError, match=f"register_auxdata on .*{type(value).__name__}"
        ):
            treepack.loads(data)
        treepack.register_auxdata(type(value))
        for saved in (data, treepack.dumps(Layer(1, value))):
            found = treepack.loads(saved).data
            assert type(found) is type(value)
            assert found == value


@pytest.mark.campaign
def test_a_program_that_registers_their_names_reads_them() -> None:
    data = treepack.dumps(Layer(1, Config(4, Color.BLUE)))
    code = """if True:
        import dataclasses, enum, sys, treepack
        from typing import Any
        @treepack.register_auxdata(serialized_name="test_definitions.Color")
        class Color(enum.Enum):
            BLUE = 2
        @treepack.register_auxdata(serialized_name="test_definitions.Config")
        @dataclasses.dataclass(frozen=True)
        class Config:
            size: int = 3
            color: Any = None
            act: Any = None
        @treepack.register_dataclass(serialized_name="tests.definitions.Layer")
        @dataclasses.dataclass
        class Layer:
            w: Any
            data: Any = dataclasses.field(metadata={"static": True})
        print(treepack.loads(sys.stdin.buffer.read()))
    """
    done = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True)
    assert done.stdout.decode().startswith(
        "Layer(w=1, data=Config(size=4, color=<Color.BLUE: 2>, act=None))"
    )


def test_registered_ones_may_hold_code() -> None:
    @treepack.register_auxdata(serialized_name="tests.definitions.Model")
    @dataclasses.dataclass(frozen=True)
    class Model:
        act: Any
        size: int = 2

    @treepack.register_auxdata(
        serialized_name="tests.definitions.Scale",
        encode=lambda it: (it.size, it.act),
        decode=lambda parts: Scale(*parts),
    )
    class Scale:
        def __init__(self, size: int, act: Any):
            self.size, self.act = size, act

    data = treepack.dumps([Layer(1, Model(custom, 3)), Layer(2, Scale(4, custom))])
    found = treepack.loads(data, static={"0/data/act": custom, "1/data/1": custom})
    assert found[0].data == Model(custom, 3)
    assert (found[1].data.size, found[1].data.act) == (4, custom)
    with pytest.raises(treepack.errors.PlaceholderError) as caught:
        treepack.loads(data)
    assert "at 0/data/act: " in str(caught.value)
    assert "register_auxdata" not in str(caught.value)


@pytest.mark.campaign
def test_what_is_saved_is_the_same_in_each_process() -> None:
    code = """if True:
        import dataclasses, sys, treepack
        @treepack.register_dataclass(serialized_name="x.Layer")
        @dataclasses.dataclass
        class Layer:
            w: int
            data: object = dataclasses.field(metadata={"static": True})
        @dataclasses.dataclass(frozen=True)
        class Config:
            names: frozenset
        sys.stdout.buffer.write(treepack.dumps(Layer(1, Config(frozenset("abcdefgh")))))
    """
    environments = [{**os.environ, "PYTHONHASHSEED": seed} for seed in "12"]
    found = {
        subprocess.run([sys.executable, "-c", code], env=env, capture_output=True).stdout
        for env in environments
    }
    assert len(found) == 1


def custom(x: Any) -> Any:
    return x


def test_nothing_of_them_is_lost() -> None:
    @dataclasses.dataclass
    class More:
        a: int

        def __post_init__(self) -> None:
            self.more = 2 * self.a

    class Slotted(Pair):
        pass

    slotted = Slotted(1, 2)
    slotted.more = 3  # type: ignore[attr-defined]
    for value in (More(1), slotted, Config(size=object())):  # type: ignore[arg-type]
        with pytest.raises(treepack.UnserializableLeafError, match=r"at x: .*register_auxdata"):
            treepack.dumps({"x": Layer(1, value)})
    with pytest.raises(treepack.UnserializableLeafError, match="register_auxdata"):
        treepack.dumps(Layer(1, Color.RED), static="error")
    for tree in ({Color.RED: 1}, {(Config(),): 1}):
        with pytest.raises(treepack.UnserializableLeafError, match="register_auxdata"):
            treepack.dumps(tree)


def test_nothing_of_registered_ones_is_lost() -> None:
    """The attributes of nodes themselves are lost: JAX loses them, too."""

    @treepack.register_auxdata(serialized_name="tests.definitions.Derived")
    @dataclasses.dataclass
    class Derived:
        a: int
        more: dataclasses.InitVar[bool] = True

        def __post_init__(self, more: bool) -> None:
            if more:
                self.double = 2 * self.a

    @treepack.register_dataclass(serialized_name="tests.definitions.Node")
    @dataclasses.dataclass
    class Node(Derived):
        pass

    @treepack.register_auxdata(serialized_name="tests.definitions.Slotted")
    class Slotted(Pair):
        pass

    @treepack.register_auxdata(serialized_name="tests.definitions.Numbered")
    class Numbered(Row):
        pass

    class Hidden:
        __slots__ = ("__hidden", "double")

    @treepack.register_auxdata(serialized_name="tests.definitions.Unset")
    @dataclasses.dataclass
    class Unset(Hidden):
        __slots__ = ("a",)
        a: int

    hiding = Unset(1)
    hiding._Hidden__hidden = 3  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="'_Hidden__hidden' is not a field"):
        treepack.dumps({}, metadata=hiding)
    for value in (Slotted(1, 2), Numbered((1,)), Derived(1, False), Node(1, False), Unset(1)):
        assert treepack.read_metadata(treepack.dumps({}, metadata=value)) == value
        value.double = 3  # type: ignore[union-attr]
        for options in ({}, {"static": "error"}):
            with pytest.raises(treepack.UnserializableLeafError, match=r"at x: .*'double' is not"):
                treepack.dumps({"x": Layer(1, {"c": value})}, **options)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"metadata/c: .*'double' is not a field"):
            treepack.dumps({}, metadata={"c": value})
        tree = {"x": Layer(1, (value, jnp.tanh))}
        assert treepack.loads(treepack.dumps(tree, static="skip"), tree)["x"].data[0] is value
    assert treepack.loads(treepack.dumps(Node(1))) == Node(1)


@pytest.mark.parametrize("base", [dict, list, set, float, ValueError])
def test_a_dataclass_with_other_data_needs_functions(base: Any) -> None:
    """Such values were saved without this data, and could not be loaded."""
    ty = dataclasses.make_dataclass("Both", ["a"], bases=(base,))
    with pytest.raises(TypeError, match=r"is a \w+ besides its fields: pass encode="):
        treepack.register_auxdata(ty, serialized_name="tests.definitions.Both")
    assert treepack.register_tree({"x": Layer(1, ty(1))}) == {}


def test_another_definition_of_the_type() -> None:
    first, second = (dataclasses.make_dataclass("Options", names) for names in ("ab", "a"))
    first.__module__ = second.__module__ = "somewhere"
    data = treepack.dumps(Layer(1, first(1, 2)))
    with pytest.raises(treepack.DecodeError, match=r"somewhere\.Options cannot be restored"):
        treepack.loads(data, static=Layer(0, second(1)))


def test_those_of_libraries_need_no_registration() -> None:
    numbers = jax.lax.GatherDimensionNumbers((1,), (2,), (3,))
    tree = [Layer(1, numbers), Layer(2, (optax.EmptyState(), jax.sharding.AxisType.Explicit))]
    data = treepack.dumps(tree)
    assert treepack.loads(data) == tree
    assert b"jax:" in data


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType("haliax")
    monkeypatch.setitem(sys.modules, "haliax", module)
    source = """if True:
        import dataclasses, enum
        from typing import NamedTuple
        @dataclasses.dataclass(frozen=True)
        class Axis:
            name: str
            size: int
            def __post_init__(self):
                made.append(self)
        class Mode(enum.Enum):
            A = 1
        class Irreps(tuple): pass
        class Function:
            def __call__(self): ...
        @dataclasses.dataclass
        class Callable:
            a: int
            def __call__(self): ...
        @dataclasses.dataclass
        class Closing:
            a: int
            def __del__(self): ...
        made = []
        class Marker: pass
        class Holding:
            def __init__(self): self.table = 3
        class Variable:
            @property
            def value(self): return 3
            def __init__(self): self._value = 3
        class Slotted:
            __slots__ = ("table",)
    """
    exec(source, vars(module))
    return module


def test_they_are_looked_up_in_what_is_imported(
    library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = [
        Layer(1, library.Axis("x", 3)),
        Layer(2, (library.Mode.A, library.Irreps((1, library.Axis("y", 2))))),
    ]
    data = treepack.dumps(tree)
    library.made.clear()
    assert treepack.loads(data) == tree
    assert library.made == []  # no code of the type has run
    assert type(treepack.loads(data)[1].data[1]) is library.Irreps
    monkeypatch.delitem(sys.modules, "haliax")
    with pytest.raises(treepack.UnregisteredTypeError, match=r"'haliax:.*: import haliax"):
        treepack.loads(data)
    assert "haliax" not in sys.modules


def test_only_definitions_are_found(library: Any) -> None:
    assert library_types.find("haliax:Axis", is_definition) is library.Axis
    for name in ("Function", "Callable", "Closing", "made", "dataclasses.Field", "enum.Enum"):
        assert library_types.find(f"haliax:{name}", is_definition) is None
    assert library_types.find("haliax:Axis") is None  # no node
    assert library_types.find("flax:linen.Dense", is_definition) is None
    assert library_types.find("flax:nnx.GraphDef", is_definition) is None


def test_markers_of_libraries_are_code(library: Any) -> None:
    marker = library.Marker()
    tree = {"a": [marker, 1], "b": Layer(1, (marker, 2))}
    data = treepack.dumps(tree)
    for found in (treepack.loads(data, tree), treepack.loads(data, static=tree)):
        assert found["a"][0] is marker
        assert found["b"].data[0] is marker
    with pytest.raises(treepack.errors.PlaceholderError, match=r"at a/0: .*Marker.*at b/data/0: "):
        treepack.loads(data)
    held = library.Marker()
    held.table = jnp.ones(2)
    for value in (held, library.Holding(), library.Slotted()):
        for tree in ({"a": [library.Marker(), value]}, Layer(1, value)):
            with pytest.raises(treepack.UnserializableLeafError, match=r"at (a/1|\.): "):
                treepack.dumps(tree)
    with pytest.raises(treepack.UnserializableLeafError, match=r"at a: .*in \.value"):
        treepack.dumps({"a": library.Variable()})
    with pytest.raises(treepack.UnserializableLeafError, match=r"at a: .*no values"):
        treepack.dumps({"a": jax.ShapeDtypeStruct((2,), jnp.float32)})


def test_node_types_of_libraries_are_values() -> None:
    tree = Layer(1, (optax.EmptyState, len))
    data = treepack.dumps(tree)
    assert treepack.loads(data, static={"data/1": len}) == tree
    with pytest.raises(treepack.errors.PlaceholderError, match=r"at data: .*Layer"):
        treepack.loads(treepack.dumps(Layer(1, Layer)))


@treepack.register_auxdata(serialized_name="tests.definitions.Side")
class Side(enum.Enum):
    LEFT = 1


def containers_of(value: Any) -> list[Any]:
    """Returns containers that hash a value."""
    return [frozenset([value]), {value}, {value: 1}, frozenset([(value, 1), frozenset([value])])]


def test_values_of_libraries_in_sets_and_as_keys() -> None:
    node = jax.tree.structure([Layer(1, (1, "x")), optax.EmptyState(), {"a": (1, None)}])
    for value in (
        node,
        nnx.StateAxes({nnx.Param: 0, ...: None}),
        jax.ShapeDtypeStruct((2,), jnp.float32),
        jax.sharding.PartitionSpec("x"),
        jax.lax.Precision.HIGH,
    ):
        for held in containers_of(value):
            assert treepack.loads(treepack.dumps(Layer(1, held))).data == held


def test_axes_of_shardings_hash_as_enums_do() -> None:
    hashed = []

    @treepack.register_auxdata(serialized_name="tests.definitions.Axis")
    class Axis(enum.Enum):
        X = "x"

        def __hash__(self) -> int:
            hashed.append(self)
            return 1

    for axes in ((Axis.X,), ((Axis.X, "y"),)):
        with pytest.raises(treepack.DecodeError, match="cannot be the name of an axis"):
            static.rebuild_value("jax.sharding.PartitionSpec", (axes, frozenset(), frozenset()))
    parts = (Axis.X,), (1,), jax.sharding.PartitionSpec(), None
    with pytest.raises(treepack.DecodeError, match="cannot be the name of an axis"):
        static.rebuild_value("jax.sharding.NamedSharding", parts)
    assert not hashed
    with pytest.raises(treepack.UnserializableLeafError, match="axis"):
        treepack.dumps(Layer(1, jax.sharding.PartitionSpec(Axis.X)))
    spec = jax.sharding.PartitionSpec(Side.LEFT, "x")
    assert treepack.loads(treepack.dumps(Layer(1, spec))).data == spec


def test_units_and_wrapped_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclasses.dataclass(frozen=True)
    class Unit:
        text: str

        def to_string(self) -> str:
            return self.text

    class Wrapped:
        __slots__ = ("array", "key")

        def __init__(self, array: Any):
            self.array, self.key = array, 1

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Wrapped) and self.array.tobytes() == other.array.tobytes()

        def __hash__(self) -> int:
            return hash(self.array.tobytes())

    class Tag:
        pass

    Tag.__module__ = "lineax._tags"
    tag = Tag()
    places = {
        "lineax": {"symmetric_tag": tag},
        "astropy.units": {"Unit": Unit, "UnitBase": Unit},
        "mujoco.mjx._src.dataclasses": {"_NumPyArrayHashWrapper": Wrapped},
    }
    for name, content in places.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    for text in ("m", "kg m2 / s2", "10**3 Angstrom", "µm", "m(1/2)"):
        assert treepack.loads(treepack.dumps(Layer(1, Unit(text)))).data == Unit(text)
    for text in ("10**9999 m", "m;", "1e5m\n"):
        with pytest.raises(treepack.DecodeError, match="not a unit"):
            static.rebuild_value("astropy.units", text)
    # A pattern that backtracks takes years for this.
    for text in ("a" * 190 + "!", "1" * 190 + "!", "m 1" * 60 + "!"):
        with pytest.raises(treepack.DecodeError, match="not a unit"):
            static.rebuild_value("astropy.units", text)
    wrapped = treepack.loads(treepack.dumps(Layer(1, (Wrapped(np.arange(3)), 2)))).data[0]
    np.testing.assert_array_equal(wrapped.array, np.arange(3))
    assert wrapped.key == 1
    for value in (Unit("m"), Wrapped(np.arange(3)), tag):
        for held in containers_of(value):
            assert treepack.loads(treepack.dumps(Layer(1, held))).data == held


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("haliax:Axis", {"name": "x"}),
        ("haliax:Axis", {"name": "x", "size": 1, "more": 2}),
        ("haliax:Axis", ("x", 1)),
        ("haliax:Mode", "B"),
        ("haliax:Mode", [1]),
        ("haliax:Irreps", [1]),
    ],
)
def test_damaged_parts(name: str, parts: Any, library: Any) -> None:
    with pytest.raises(treepack.DecodeError, match="cannot be restored"):
        static.rebuild_value(name, parts)


def test_treedefs_of_library_types() -> None:
    state = optax.adam(1e-3).init({"w": jnp.ones(2)})
    tree = Layer(1, jax.tree.structure(state))
    assert treepack.loads(treepack.dumps(tree)) == tree
    with pytest.raises(treepack.UnserializableLeafError, match="register_node on it"):
        treepack.dumps(Layer(1, jax.tree.structure(Pair(1, 2))))
