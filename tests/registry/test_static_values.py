"""Values that static data, keys and metadata may have without registration, as they come back."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import datetime
import decimal
import fractions
import functools
import subprocess
import sys
import types
import uuid
import zoneinfo
from typing import Any

import flax.core
import flax.nnx as nnx
import jax
import jax.numpy as jnp
import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.lax import ConvDimensionNumbers, DotAlgorithm, DotAlgorithmPreset, RoundingMethod
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import treepack
import treepack._core as core
from treepack import serialization

ZONES = [zoneinfo.ZoneInfo(name) for name in ("UTC", "Europe/Berlin", "America/New_York")]

offsets = st.timedeltas(datetime.timedelta(hours=-23), datetime.timedelta(hours=23))
zones = st.none() | st.sampled_from(ZONES) | st.builds(datetime.timezone, offsets)
zones |= st.builds(datetime.timezone, offsets, st.text(max_size=3))

hashable = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.text(max_size=5),
    st.fractions(),
    st.decimals(allow_nan=False),
    st.dates(),
    st.times(timezones=zones),
    st.datetimes(timezones=zones, allow_imaginary=True),
    st.timedeltas(),
    zones,
    st.uuids(),
    st.sampled_from([..., NotImplemented, type(None), type(...), bytearray, range, slice, int]),
    st.sampled_from([jnp.float32, np.int8, jnp.bfloat16, nnx.Param, nnx.Carry, nnx.BatchStat]),
    st.sampled_from([*DotAlgorithmPreset, *RoundingMethod, *jax.lax.Precision]),
    st.builds(
        jax.ShapeDtypeStruct,
        st.lists(st.integers(0, 2**40), max_size=5).map(tuple),
        st.sampled_from([np.dtype("float32"), jnp.bfloat16, np.int8, bool]),
        weak_type=st.booleans(),
    ),
    st.sampled_from(
        [
            jax.ShapeDtypeStruct(
                (8,), jnp.float32, sharding=NamedSharding(Mesh(jax.devices()[:1], "x"), spec)
            )
            for spec in (PartitionSpec("x"), PartitionSpec())
        ]
    ),
    st.builds(DotAlgorithm, *[st.sampled_from([np.float32, jnp.bfloat16])] * 3, st.integers(1, 9)),
    st.just(ConvDimensionNumbers((0, 3, 1), (2, 1, 0), (0, 2, 1))),
    st.builds(nnx.DiffState, st.integers(0, 9), st.just(nnx.Param)),
)

items = st.dictionaries(hashable, hashable, max_size=4)

unhashable = st.one_of(
    st.builds(collections.OrderedDict, items),
    st.builds(collections.defaultdict, st.sampled_from([None, list, int, dict]), items),
    st.dictionaries(hashable, st.integers(), max_size=4).map(collections.Counter),
    st.builds(collections.deque, st.lists(hashable, max_size=4), st.none() | st.integers(4, 9)),
    st.dictionaries(st.text(max_size=3), hashable, max_size=3).map(
        lambda fields: types.SimpleNamespace(**fields)
    ),
    st.dictionaries(st.text(max_size=3), items, max_size=3).map(flax.core.FrozenDict),
    items.map(nnx.StateAxes),
)


def check(value: Any) -> Any:
    """Checks that a value comes back as it was, and is written as it was again."""
    encoded = core.encode_value(value)
    found = core.decode_value(encoded)
    assert type(found) is type(value)
    assert found == value
    assert repr(found) == repr(value)
    assert core.encode_value(found) == encoded
    return found


@given(hashable)
def test_values_that_auxdata_have_come_back_equal_with_their_hash(value: Any) -> None:
    assert hash(check(value)) == hash(value)


@given(unhashable)
def test_containers_come_back_equal_with_their_order(value: Any) -> None:
    found = check(value)
    if isinstance(value, dict):
        assert list(found.items()) == list(value.items())
    if isinstance(value, collections.deque):
        assert found.maxlen == value.maxlen
    if isinstance(value, collections.defaultdict):
        assert found.default_factory is value.default_factory


@given(st.datetimes(timezones=st.sampled_from(ZONES)), st.booleans())
def test_times_keep_their_fold_and_the_object_of_their_zone(
    time: datetime.datetime, fold: bool
) -> None:
    found = check(time.replace(fold=fold))
    assert found.fold == fold
    assert found.tzinfo is time.tzinfo


@pytest.mark.parametrize("text", ["NaN", "sNaN12", "-0", "Infinity", "1E+999999999"])
def test_decimals_that_are_no_numbers(text: str) -> None:
    found = core.decode_value(core.encode_value(decimal.Decimal(text)))
    assert str(found) == text


@treepack.register_dataclass(serialized_name="tests.WithStatic")
@dataclasses.dataclass
class WithStatic:
    w: Any
    static: Any = dataclasses.field(metadata={"static": True})


@given(hashable)
def test_treedefs_are_equal_after_a_round_trip(value: Any) -> None:
    saved = WithStatic(np.arange(3), value)
    found = treepack.loads(treepack.dumps(saved))
    assert jax.tree.structure(found) == jax.tree.structure(saved)


class Zone(datetime.tzinfo):
    pass


@pytest.mark.parametrize(
    "value",
    [
        datetime.datetime(2024, 1, 1, tzinfo=Zone()),
        jax.ShapeDtypeStruct((), jax.random.key(0).dtype),
        jax.ShapeDtypeStruct(
            (3,), jnp.float32, sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0])
        ),
        collections.defaultdict(lambda: 0),
        Zone(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_made_again_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="cannot be saved"):
        core.encode_value(value)


def named(name: str, parts: Any) -> bytes:
    """Encodes a name with any parts."""
    inner = msgpack.unpackb(core.encode_value(parts), strict_map_key=False)
    packed: bytes = msgpack.packb({"named": [name, inner]})
    return packed


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("Ellipsis", 1),
        ("collections.OrderedDict", [("a", 1)]),
        ("collections.defaultdict", (1, {})),
        ("collections.Counter", "aab"),
        ("collections.deque", ((1, 2), -1)),
        ("collections.deque", ((1, 2), True)),
        ("collections.deque", ((1, 2), 2**70)),
        ("types.SimpleNamespace", {1: 2}),
        ("fractions.Fraction", (1, 0)),
        ("fractions.Fraction", ("1", "2")),
        ("decimal.Decimal", "1e99999999999999999999"),
        ("decimal.Decimal", 1.5),
        ("uuid.UUID", b"abc"),
        ("datetime.date", "2024-13-01"),
        ("datetime.datetime", ("2024-01-01", 2, None)),
        ("datetime.datetime", ("2024-01-01T00:00:00+01:00", 0, None)),
        ("datetime.datetime", ("2024-01-01", 0, "UTC")),
        ("datetime.timedelta", (2**40, 0, 0)),
        ("datetime.timezone", (datetime.timedelta(days=3), None)),
        ("zoneinfo.ZoneInfo", "../../etc/passwd"),
        ("zoneinfo.ZoneInfo", "os.path"),
        ("jax.ShapeDtypeStruct", ((-1,), "float32", False, None)),
        ("jax.ShapeDtypeStruct", ((1,) * 65, "float32", False, None)),
        ("jax.ShapeDtypeStruct", ((1,), "object", False, None)),
        ("jax.ShapeDtypeStruct", ((1,), "float32", False, PartitionSpec())),
        ("jax.lax.DotAlgorithm", (1, 2, 3, 4, 5, 6, False)),
        ("jax.lax.DotAlgorithmPreset", "__class__"),
        ("jax.lax.ConvDimensionNumbers", ((0,), (-1,), (0,))),
        ("flax.core.FrozenDict", [1]),
        ("flax.nnx.StateAxes", ((1,), ())),
        ("flax.nnx.DiffState", ("a", 1)),
        ("type", ("flax.nnx", "relu")),
        ("type", ("flax.nnx", "__class__")),
        ("type", ("flax.nnx", "spmd")),
        ("type", ("os", "system")),
        ("lineax.tag", "linear_solve"),
    ],
)
def test_damaged_parts_are_errors(name: str, parts: Any) -> None:
    with pytest.raises(treepack.DecodeError):
        core.decode_value(named(name, parts))


@pytest.mark.campaign
def test_a_library_that_is_not_imported_is_named_and_not_imported() -> None:
    cases = {
        "flax.core": named("flax.core.FrozenDict", {"a": 1}),
        "flax.typing": named("flax.typing.HashableMapping", {"a": 1}),
        "flax.nnx": named("type", ("flax.nnx", "Param")),
        "lineax": named("lineax.tag", "symmetric_tag"),
        "penzai.core.struct": named("penzai.core.struct.StructStaticMetadata", (["a"], {})),
        "equinox": named("equinox.Missing", None),
    }
    program = f"""
import sys, treepack, treepack._core as core
for module, data in {cases!r}.items():
    try:
        core.decode_value(data)
    except treepack.UnregisteredTypeError as error:
        assert f"import {{module}}" in str(error), error
    else:
        raise AssertionError(module)
    assert module not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_tags_of_lineax() -> None:
    lineax = pytest.importorskip("lineax")
    tags = [getattr(lineax, name) for name in dir(lineax) if name.endswith("_tag")]
    assert len(tags) > 5
    assert all(check(tag) is tag for tag in tags)
    assert check(lineax.RESULTS) is lineax.RESULTS
    operator = lineax.MatrixLinearOperator(jnp.eye(3), frozenset(tags[:2]))
    treepack.register_tree(operator)
    found = treepack.loads(treepack.dumps(operator))
    assert jax.tree.structure(found) == jax.tree.structure(operator)


def test_structs_of_penzai() -> None:
    pz = pytest.importorskip("penzai.pz")
    named_array = pz.nx.wrap(jnp.ones((2, 3))).tag("a", "b")
    treepack.register_tree(named_array)
    found = treepack.loads(treepack.dumps(named_array))
    assert jax.tree.structure(found) == jax.tree.structure(named_array)


def test_fractions_stay_exact() -> None:
    assert check(fractions.Fraction(1, 3**200)) == fractions.Fraction(1, 3**200)


def test_texts_of_numpy() -> None:
    for value in (np.str_("a"), np.bytes_(b"a")):
        assert type(check(value)) is type(value)
        assert check({value: 1}) == {value: 1}


class Text(str):
    """A subclass of a plain type."""


class Unknown:
    """A type that nothing is known of."""

    def __init__(self, a: int = 1) -> None:
        self.a = a

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(self.a)


class Model(Unknown):
    """As pydantic has them."""

    def model_dump(self) -> dict[str, Any]:
        return vars(self)


class ConfigDict(Unknown):
    """As ml_collections has them."""

    def to_dict(self) -> dict[str, Any]:
        return vars(self)


# What the errors about leaves and static data advise, by the values that they are about.
ADVICE: list[tuple[Any, str, Any]] = [
    (range(3), r"save list\(\.\.\.\) of it, or pass it as metadata=", list),
    (decimal.Decimal("1.5"), r"save str\(\.\.\.\) of it, or pass it as metadata=", str),
    (uuid.UUID(int=7), r"save str\(\.\.\.\) of it, or pass it as metadata=", str),
    (PartitionSpec("x", None), r"save tuple\(\.\.\.\) of it, or pass it as metadata=", tuple),
    (argparse.Namespace(a=1), r"save vars\(\.\.\.\) of it", vars),
    (types.SimpleNamespace(a=1), r"save vars\(\.\.\.\) of it", vars),
    (ConfigDict(), r"save its \.to_dict\(\)", lambda it: it.to_dict()),
    (Model(), r"save its \.model_dump\(\)", lambda it: it.model_dump()),
    (Text("a"), "convert it to str", str),
    (np.str_("a"), r"save its \.tolist\(\)", lambda it: it.tolist()),
    (np.array(["a"]), r"save its \.tolist\(\)", lambda it: it.tolist()),
    (
        np.rec.array([(1, 2.0)], dtype=[("a", int), ("b", float)]),
        r"or its fields as a dict: \{name: array\[name\] for name in array\.dtype\.names\}",
        lambda array: {name: array[name] for name in array.dtype.names},
    ),
    (
        jax.ShapeDtypeStruct((2,), jnp.float32),
        "save the arrays that the function itself returns, or pass the tree as metadata=",
        lambda it: np.zeros(it.shape, it.dtype),
    ),
]


@pytest.mark.parametrize(("value", "advice", "follow"), ADVICE, ids=lambda it: type(it).__name__)
def test_the_advice_about_a_leaf_succeeds(value: Any, advice: str, follow: Any) -> None:
    with pytest.raises(treepack.UnserializableLeafError, match=f"at a: .*{advice}"):
        treepack.dumps({"a": value})
    expected = follow(value)
    np.testing.assert_equal(treepack.loads(treepack.dumps({"a": expected}))["a"], expected)
    if "metadata=" in advice:
        core.decode_value(core.encode_value(value))


def test_the_advice_about_a_leaf_of_an_unknown_type_succeeds() -> None:
    other = type("Other", (Unknown,), {})
    with pytest.raises(treepack.UnserializableLeafError, match=r"static=\"skip\"") as caught:
        treepack.dumps({"a": other(), "b": 1})
    assert "register its type with jax.tree_util.register_pytree_node" in str(caught.value)
    assert treepack.loads(
        treepack.dumps({"a": other(), "b": 1}, static="skip"), static={"a": 5}
    ) == {
        "a": 5,
        "b": 1,
    }
    jax.tree_util.register_pytree_node(other, lambda it: ((it.a,), None), lambda _, it: other(*it))
    assert treepack.loads(treepack.dumps({"a": other(3)}), {"a": other()})["a"].a == 3


def test_the_advice_about_static_data_succeeds() -> None:
    for value, functions in (
        (argparse.Namespace(a=1), (vars, lambda found: argparse.Namespace(**found))),
        (ConfigDict(), (lambda it: it.to_dict(), lambda found: ConfigDict(**found))),
        (Model(), (lambda it: it.model_dump(), lambda found: Model(**found))),
        (Text("a"), (str, Text)),
        (Unknown(2), (vars, lambda found: Unknown(**found))),
    ):
        advice = r"call treepack\.register_auxdata on its type, with encode="
        for save in (
            functools.partial(core.encode_value, value),
            functools.partial(treepack.dumps, WithStatic(1, value)),
            functools.partial(treepack.dumps, {}, metadata=Unknown(2)),
        ):
            with pytest.raises(TypeError, match=advice):
                save()
        treepack.register_auxdata(type(value), f"advice.{type(value).__name__}", *functions)
        found = core.decode_value(core.encode_value(value))
        assert type(found) is type(value)
        assert found == value


def test_the_advice_about_functions_in_static_data_succeeds() -> None:
    def named(x: Any) -> Any:
        return x

    for function, advice, options in (
        (named, "register_function on it, if", {}),
        (lambda x: x, "register_function on it, with serialized_name=, if", {"name": "advice.f"}),
    ):
        partial = functools.partial(function, 3)
        with pytest.raises(TypeError, match=advice):
            treepack.dumps(WithStatic(1, partial))
        name = options.get("name", "advice.named")
        treepack.register_function(function, serialized_name=name)
        found = treepack.loads(treepack.dumps(WithStatic(1, partial)))
        assert found.static.args == (3,)


def test_the_advice_about_a_handler_without_a_dict_succeeds() -> None:
    ty = type("Handled", (), {})
    serialization.register_serialization_state(ty, lambda _: [1, 2], lambda *_: ty())
    with pytest.raises(
        treepack.UnserializableLeafError, match="must return a dict: save the result"
    ):
        treepack.dumps({"a": ty()})
    assert treepack.loads(treepack.dumps({"a": serialization.to_state_dict(ty())})) == {"a": [1, 2]}


def test_keys_that_could_not_be_read_back_are_refused() -> None:
    """The structure of a node of the program compares the node's static data."""
    key = jax.tree.structure(Traced(1.0, jax.nn.relu))
    text = r"a key .*PyTreeDef\(.*\) cannot be read back, .*str\(\.\.\.\)"
    for metadata in ({key: 1}, {(1, key): 2}, {key}, frozenset([key])):
        with pytest.raises(TypeError, match=text):
            treepack.dumps({}, metadata=metadata)
    with pytest.raises(treepack.UnserializableLeafError, match=text):
        treepack.dumps({key: np.ones(2)})
    plain = jax.tree.structure([1, 2])
    assert treepack.loads(treepack.dumps({plain: 3})) == {plain: 3}


@jax.tree_util.register_pytree_node_class
class Traced:
    def __init__(self, value: Any, function: Any) -> None:
        self.value, self.function = value, function

    def tree_flatten(self) -> Any:
        return (self.value,), self.function

    @classmethod
    def tree_unflatten(cls, function: Any, children: Any) -> Any:
        return cls(*children, function)


treepack.register_node(Traced, serialized_name="tests.Traced")
