"""Typed values as no writer makes them.

Takes the encodings of a value of each codec, changes some parts of them, and seals them into
records as metadata, static data and keys.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import datetime
import decimal
import fractions
import functools
import pathlib
import random
import types
import uuid
import zoneinfo
from typing import Any

import equinox
import flax.core
import flax.nnx as nnx
import flax.typing
import jax
import jax.numpy as jnp
import msgpack
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import treepack
import treepack._core as core
from node_types import NODES, Config, Mode, scale
from treepack._src.registry import codecs as _codecs
from treepack._src.registry.placeholders import Placeholder
from trees import record_of, sealed

touched: list[str] = []


class Touched:
    """An object of the program, whose methods a file must not cause to run."""

    def __call__(self, *_: Any) -> Any:
        return self._note("called")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._note(f"attribute {name}")

    def __getitem__(self, key: Any) -> Any:
        return self._note(f"item {key}")

    def __iter__(self) -> Any:
        return iter([self._note("iterated")])

    def __len__(self) -> int:
        self._note("measured")
        return 0

    def _note(self, what: str) -> Touched:
        touched.append(what)
        return self


@treepack.register_dataclass(serialized_name="hostile.Guarded")
@dataclasses.dataclass
class Guarded:
    """A node of the program with code, and a property."""

    w: Any
    backend: Any = dataclasses.field(default=None, metadata={"static": True})

    @property
    def secret(self) -> Any:
        touched.append("property")
        return "secret"


# Types that use their static data, or would; and paths of placeholders in them.
USING = [
    *("hostile.Guarded", "jax:example_libraries.optimizers.JoinPoint", "optax:EmptyState"),
    *("jax:experimental.sparse.BCOO", "jax:core.ClosedJaxpr", "jax.tree_util.Partial"),
    *("flax:nnx.State", "equinox:nn.Linear", "treepack.pruned", "collections.defaultdict"),
]
PATHS = [
    *("", "0", "secret", "w", "backend", "backend/secret", "backend/0", "backend/environ/HOME"),
    *("backend/__class__", "__class__", "backend/-1", "backend/pop", "keys/0", "func", "a/" * 9999),
]


# A value of more parts is not changed any more, since some changes repeat one many times.
MOST_PARTS = 3000


def values() -> list[Any]:
    """Returns values of all codecs."""
    mesh = Mesh(np.array(jax.devices()).reshape(-1, 1), ("x", "y"))
    abstract = jax.sharding.AbstractMesh((8, 4), ("x", "y"))
    spec = PartitionSpec("x", None, ("y",))
    return [
        2**100,
        {1, 2},
        bytearray(b"abc"),
        range(1, 9, 2),
        types.MappingProxyType({"a": 1}),
        slice(1, None, 2),
        functools.partial(scale, 2, x=3),
        pathlib.Path("a/b"),
        pathlib.PureWindowsPath("a"),
        Placeholder("a", "b"),
        np.dtype("float32"),
        np.float32(2),
        np.arange(6, dtype=np.int16).reshape(2, 3),
        jnp.float32,
        np.int8,
        tuple,
        spec,
        NamedSharding(mesh, PartitionSpec("x")),
        NamedSharding(abstract, spec, memory_kind="device"),
        jax.tree_util.Partial(scale, 2, x=3),
        jax.tree.structure({"a": [1, (2, None)], "b": NODES["pair"]}),
        jax.tree.structure([NODES["plain"], NODES["frozen"]]),
        jax.lax.Precision.HIGHEST,
        jnp.arange(3),
        jax.nn.relu,
        getattr(flax.typing, "HashableMapping", dict)({"a": 1}),  # flax 0.12.0 has none
        equinox.nn.Identity,
        Mode.EVAL,
        Config(3, ("a",)),
        ...,
        NotImplemented,
        type(None),
        nnx.Param,
        collections.OrderedDict({1: 2}),
        collections.defaultdict(list, {1: 2}),
        collections.Counter("aab"),
        collections.deque([1, 2], 3),
        types.SimpleNamespace(a=1),
        fractions.Fraction(1, 3),
        decimal.Decimal("1.50e7"),
        uuid.UUID(int=5),
        datetime.date(2024, 2, 29),
        datetime.time(1, 2, 3, 4, zoneinfo.ZoneInfo("Europe/Berlin")),
        datetime.datetime(2024, 2, 29, 1, 2, 3, 4, datetime.UTC, fold=1),
        datetime.timezone(datetime.timedelta(hours=1), "a"),
        zoneinfo.ZoneInfo("UTC"),
        jax.ShapeDtypeStruct((2, 3), jnp.bfloat16, sharding=NamedSharding(mesh, PartitionSpec())),
        jax.lax.DotAlgorithmPreset.F16_F16_F32,
        jax.lax.DotAlgorithm(jnp.float32, np.float32, np.float32),
        jax.lax.RoundingMethod.TO_NEAREST_EVEN,
        jax.lax.ConvDimensionNumbers((0, 1), (1, 0), (0, 1)),
        flax.core.FrozenDict({"a": {"b": 1}}),
        nnx.StateAxes({nnx.Param: 0, ...: None}),
        nnx.DiffState(0, nnx.Param),
        {(1, 2): frozenset({1, (2, 3)}), None: [1.5, 2j, b"x", True]},
    ]


def encoded(value: Any) -> Any:
    """Returns how a value is written, before it becomes bytes."""
    try:
        return msgpack.unpackb(core.encode_value(value), strict_map_key=False)
    except (TypeError, ValueError):
        return {"tuple": []}


NAMES = [*sorted(_codecs.NAMES), "function", "node_types.Mode", "node_types.Config", "tests.Lost"]
NUMBERS = [0, 1, -1, 2, 3, 4, 64, 65, 255, 2**20, 2**26, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1]


def mutated(value: Any, seeds: list[Any], rng: random.Random) -> Any:
    """Returns a value with one part changed."""
    places: list[tuple[Any, Any]] = []

    def visit(node: Any) -> None:
        keys = (
            range(len(node)) if isinstance(node, list) else node if isinstance(node, dict) else ()
        )
        for key in keys:
            if len(places) > MOST_PARTS:
                return
            places.append((node, key))
            visit(node[key])

    # The whole of it as well.
    root = [copy.deepcopy(value)]
    visit(root)
    if len(places) > MOST_PARTS:
        return value
    node, key = rng.choice(places)
    node[key] = changed(node[key], seeds, rng)
    return root[0]


def changed(part: Any, seeds: list[Any], rng: random.Random) -> Any:
    """Returns something else in the place of a part."""
    kind = rng.randrange(13)
    if kind == 0:
        return {"int": rng.choice([*NUMBERS, *(-number for number in NUMBERS)])}
    if kind == 1:
        big = rng.choice([2**31, 2**63, 2**64, 10**30, -1, 2**26, 10**12])
        return {
            "named": [
                "range",
                {"tuple": [{"int": 0}, {"named": ["int", {"str": str(big)}]}, {"int": 1}]},
            ]
        }
    if kind == 2:
        return {"named": ["int", {"str": str(rng.choice([2**63, 2**64, 10**40, -(10**30), "x"]))}]}
    if kind == 3:
        return copy.deepcopy(rng.choice(seeds))
    if kind == 4 and isinstance(part, list) and part:
        return part * rng.choice([0, 2, 65, 1000]) if len(part) < 100 else part[:1]
    if kind == 5 and isinstance(part, list) and part:
        return rng.sample(part, rng.randrange(len(part)))
    if kind == 6 and isinstance(part, dict):
        (old,) = part.values() if len(part) == 1 else (None,)
        return {rng.choice(["tuple", "list", "frozenset", "dict", "str", "bytes", "int"]): old}
    if kind == 7:
        return {"named": [rng.choice(NAMES), copy.deepcopy(part) if rng.random() < 0.7 else "none"]}
    if kind == 8 and isinstance(part, str):
        return rng.choice(
            [
                *NAMES,
                "",
                "\0",
                "x" * 10_000,
                "x" * 150 + "!",
                "float32",
                "V3",
                "O",
                "M8[s]",
                "int4",
                "Auto",
                "none",
                "dict",
            ]
        )
    if kind == 9 and isinstance(part, int) and not isinstance(part, bool):
        return rng.choice([*NUMBERS, *(-number for number in NUMBERS)])
    if kind == 10 and isinstance(part, bytes):
        return rng.choice([b"", part * 2, part[:-1], bytes(1000)])
    if kind == 12:
        return placeholder(rng)
    if kind == 11:
        return {
            rng.choice(["tuple", "list", "frozenset"]): [copy.deepcopy(part)]
            * rng.choice([1, 2, 200])
        }
    return rng.choice(
        [
            "none",
            {"bool": True},
            {"float": float("nan")},
            {"str": ""},
            {"bytes": b""},
            {"dict": []},
            {"tuple": []},
        ]
    )


def placeholder(rng: random.Random) -> Any:
    """Returns a placeholder for something of the program."""
    parts = [{"str": rng.choice(PATHS)}, {"str": "function: f"}]
    return {"named": ["treepack.hole", {"tuple": parts}]}


class Values:
    """Makes cases."""

    def __init__(self) -> None:
        self._seeds = [encoded(value) for value in values()]
        # Types of libraries that need not be installed.
        self._seeds += [{"named": ["astropy.units", {"str": "kg m2"}]}]
        more = [collections.defaultdict(int, a=1), collections.OrderedDict({1: 2})]
        self._nodes = [*NODES.values(), *more, Guarded(1, len)]
        self._states = [parts_of(node) for node in self._nodes]

    def case(self, rng: random.Random) -> tuple[Any, bytes]:
        """Returns a template, and data that may have its types."""
        while True:
            try:
                return rng.choice(self._nodes), _case(rng, self._seeds, self._states)
            except (ValueError, OverflowError, TypeError):
                pass  # no bytes at all


def _case(rng: random.Random, seeds: list[Any], states: list[tuple[Any, Any]]) -> bytes:
    """Returns the data of a case."""
    value = copy.deepcopy(rng.choice(seeds))
    for _ in range(rng.choice([1, 1, 2, 4, 8])):
        value = mutated(value, seeds, rng)
    packed = msgpack.packb(value)
    place = rng.randrange(6)
    if place == 4:
        # Arrays of many shapes, for each of which JAX would compile.
        count = rng.randrange(1, 200)
        shapes = [rng.sample(range(4), rng.randrange(1, 4)) for _ in range(count)]
        sizes = [[*shape, number, 0] for number, shape in enumerate(shapes)]
        state = {str(number): array_of(shape) for number, shape in enumerate(sizes)}
        kind = rng.choice(["weak_jax", "jax"])
        nodes = [[kind, []], ["dict", [[count, 0]]]]
        record = {"version": 1, "types": [], "nodes": nodes, "metadata": None}
    elif place == 5:
        name, names, fields = USING[0], ["w"], [["w"], ["backend"]]
        static = {"tuple": [placeholder(rng)]}
        if rng.random() < 0.5:
            name, names = rng.choice(USING), rng.choice([["w"], [], ["0"], ["args", "keywords"]])
            fields = rng.choice([None, [names, ["backend"]]])
            static = rng.choice([static, placeholder(rng), {"tuple": [value, placeholder(rng)]}])
        record = {
            "version": 1,
            "types": [{"name": name, "fields": fields}],
            "nodes": [
                ["plain", []],
                [{"typed": [0, msgpack.packb(static)]}, [[len(names), 0]] if names else []],
                ["dict", [[1, 1]]],
            ],
            "metadata": None,
        }
        state = {"a": dict.fromkeys(names, 1)}
    elif place == 0:
        record = {"version": 1, "types": [], "nodes": [["plain", []]], "metadata": packed}
        state = {"a": 1}
    elif place == 1:
        keys = msgpack.packb({"list": [value, {"int": 5}]} if rng.random() < 0.7 else value)
        record = {
            "version": 1,
            "types": [],
            "nodes": [["plain", []], [{"dict_with_keys": keys}, [[2, 0]]]],
        }
        state = {"a": 1, "b": 2}
    else:
        state, record = copy.deepcopy(rng.choice(states))
        for node in record["nodes"]:
            if isinstance(node[0], dict) and "typed" in node[0]:
                if rng.random() < 0.6:  # a part of what it was
                    old = msgpack.unpackb(node[0]["typed"][1], strict_map_key=False)
                    value = mutated(old, [value], rng)
                node[0]["typed"][1] = msgpack.packb(value)
        if rng.random() < 0.2 and record["types"]:
            rng.choice(record["types"])[0] = rng.choice(
                [
                    *treepack.registered_types(),
                    "treepack.pruned",
                    "treepack.unnamed",
                    "jax.tree_util.Partial",
                    "collections.OrderedDict",
                ]
            )
        if rng.random() < 0.2 and record["types"]:
            chosen = rng.choice(record["types"])
            chosen[1] = rng.choice(
                [None, [[], []], [["a"] * 1000, []], [list(state), []], [[], list(state)]]
            )
    return msgpack.packb({**state, "__treepack__": sealed(msgpack.packb(record))})


def array_of(shape: list[int]) -> msgpack.ExtType:
    """Returns how flax writes an empty array."""
    return msgpack.ExtType(1, msgpack.packb([shape, "float32", b""]))


def parts_of(tree: Any) -> tuple[Any, Any]:
    """Returns the state of a tree and its record."""
    state = msgpack.unpackb(treepack.dumps(tree), strict_map_key=False)
    return state, msgpack.unpackb(record_of(state.pop("__treepack__")), strict_map_key=False)
