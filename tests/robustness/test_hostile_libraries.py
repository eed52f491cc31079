"""Files that name the types of libraries with children and static data that they never have."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import random
import sys
import types as types_of_python
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox
import flax.linen
import flax.training.train_state
import jax
import jax.experimental.sparse
import jax.numpy as jnp
import msgpack
import numpy as np
import optax
import pytest
from flax import nnx

import tiers
import treepack
import treepack._core as core
from treepack import serialization
from treepack._src.registry import library_types, static
from treepack._src.registry.definitions import is_definition
from trees import record_of, sealed

USED = (equinox, flax.linen, flax.training.train_state, jax.experimental.sparse, nnx, optax)


class Node:
    """A node with any children and any static data."""

    def __init__(self, children: dict[str, Any], static: Any):
        self.children, self.static = children, static


jax.tree_util.register_pytree_with_keys(
    Node,
    lambda node: (
        [(jax.tree_util.GetAttrKey(key), child) for key, child in node.children.items()],
        node.static,
    ),
    lambda static, children: Node(dict(enumerate(children)), static),  # type: ignore[arg-type]
)

NAME = "hostile.Node"

STATIC: list[Any] = [
    None, (), 1, "x", (1, 2), {"a": 1}, [1], ("a", ("b",)), ((), (), ()),
    (("a",), ("b",), (3,)), True, frozenset([1]), 2.5, b"x", (None,) * 3, jnp.float32,
]  # fmt: skip


def some_tree(draw: random.Random, depth: int = 0) -> Any:
    leaves = [np.ones(3, np.float32), np.ones(0), 1, 2.5, "x", None, b"b", jnp.ones(2)]
    kind = draw.randrange(4 if depth < 3 else 2)
    if kind == 2:
        return [some_tree(draw, depth + 1) for _ in range(draw.randrange(3))]
    if kind == 3:
        return {str(key): some_tree(draw, depth + 1) for key in range(draw.randrange(3))}
    return draw.choice(leaves)


@functools.cache
def types(step: int, fits: Callable[[type], bool] = library_types.is_node) -> dict[str, type]:
    """The types of libraries in each `step`th imported module, by their names in files."""
    names = sorted(it for it in sys.modules if library_types.library_at(it) is not None)
    found = {}
    for name in names[::step]:
        for value in list(getattr(sys.modules[name], "__dict__", {}).values()):
            if isinstance(value, type) and isinstance(value.__module__, str):
                found[library_types.library_name(value, fits) or ""] = value
    found.pop("", None)
    return found


def field_names(ty: type) -> list[str]:
    if dataclasses.is_dataclass(ty):
        return [field.name for field in dataclasses.fields(ty)]
    return list(getattr(ty, "_fields", ()))


# `make test` takes each sixteenth type.
STEP = tiers.either(16, 1)


def test_every_node_type_of_the_libraries() -> None:
    assert USED
    if NAME not in treepack.registered_types():
        treepack.register_node(Node, serialized_name=NAME)
    draw = random.Random(0)
    found = types(STEP)
    assert len(found) > 200 // STEP
    made = refused = 0
    for name, ty in sorted(found.items()):
        fields = field_names(ty)
        for keys in (
            fields,
            draw.choices([*fields, "a", "0"], k=draw.randrange(4)),
            [str(index) for index in range(draw.randrange(4))],
        ):
            children = {key: some_tree(draw) for key in keys}
            data = treepack.dumps([Node(children, draw.choice(STATIC))])
            state = serialization.msgpack_restore(data)
            record = record_of(data).replace(serialized(NAME), serialized(name))
            try:
                core.assemble(
                    state, sealed(record),
                    convert=None, unknown_as_dict=False, placeholders=False, static=None,
                )  # fmt: skip
                made += 1
            except treepack.TreepackError:
                refused += 1
    assert made > 10 or STEP > 1
    assert refused > 300 // STEP


def test_every_definition_of_the_libraries() -> None:
    draw = random.Random(0)
    found = types(STEP, is_definition)
    assert len(found) > 100 // STEP
    made = refused = 0
    for name, ty in sorted(found.items()):
        fields = field_names(ty)
        for parts in (
            dict.fromkeys(fields),
            {key: draw.choice(STATIC) for key in fields},
            {"a": 1},
            *draw.choices(STATIC, k=4),
        ):
            try:
                value = static.rebuild_value(name, parts)
            except treepack.DecodeError:
                refused += 1
                continue
            assert isinstance(value, ty)
            made += 1
            for ask in (hash, repr, core.encode_value, lambda it: it == it):
                with contextlib.suppress(Exception):
                    ask(value)
    assert made > 100 // STEP
    assert refused > 100 // STEP


def serialized(text: str) -> bytes:
    return serialization.msgpack_serialize(text)


@pytest.mark.parametrize("name", ["optax:EmptyState" * 5_000, "jax:" + "." * 10_000, "flax:\0"])
def test_names_of_any_length(name: str) -> None:
    assert library_types.find(name) is None


def test_modules_are_listed_once_for_all_names_of_a_file() -> None:
    count = 1000
    record = {
        "version": 1,
        "types": [{"name": f"jax:Unknown{index}", "fields": None} for index in range(count)],
        "nodes": [
            ["plain", []],
            *([{"typed": [at, msgpack.packb({"tuple": []})]}, [[1, 0]]] for at in range(count)),
            ["dict", [[1, at + 1] for at in range(count)]],
        ],
        "metadata": None,
    }
    state = {f"n{index}": {"0": 1} for index in range(count)}
    data = msgpack.packb({**state, "__treepack__": sealed(msgpack.packb(record))})
    library_types._modules.cache_clear()
    assert treepack.loads(data, unknown="dict") == state
    assert library_types._modules.cache_info().misses <= 1


called: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_called() -> None:
    called.clear()


@treepack.register_function(serialized_name="tests.hostile.canary")
def canary(*args: Any, **keywords: Any) -> list[Any]:
    called.append((args, keywords))
    return []


LONG = range(1 << 50)  # a list of it is a MemoryError


def gadgets() -> list[bytes]:
    """Encoded static data that code of a library might call, or make a list of."""
    part = functools.partial(canary, "/home")
    names = ("keys", "items", "unflatten", "pop", "get", "shape", "__iter__")
    space = types_of_python.SimpleNamespace(**dict.fromkeys(names, part))
    values = [space, (space, space), [space], {"a": part}, canary, part, (part,), ((part,), part)]
    values += [LONG, (LONG,), [LONG], (LONG, LONG), {"a": LONG}]
    return [core.encode_value(value) for value in values]


def test_no_type_of_the_libraries_uses_functions_and_long_ranges_of_a_file() -> None:
    assert USED
    for name, ty in sorted(types(STEP).items()):
        for children in (field_names(ty), ["0"], []):
            for static_data in gadgets():
                record = {
                    "version": 1,
                    "types": [{"name": name, "fields": None}],
                    "nodes": [
                        ["plain", []],
                        [{"typed": [0, static_data]}, [[len(children), 0]] if children else []],
                        ["dict", [[1, 1]]],
                    ],
                    "metadata": None,
                }
                state = {"n": dict.fromkeys(children, 1)}
                for placeholders in (False, True):
                    with contextlib.suppress(treepack.TreepackError):
                        core.assemble(
                            state, sealed(msgpack.packb(record)),
                            convert=None, unknown_as_dict=False, placeholders=placeholders,
                            static=None,
                        )  # fmt: skip
                assert not called, (name, children, static_data)


@pytest.mark.parametrize(
    "value",
    [
        {"named": ["collections.defaultdict", {"tuple": [{"named": ["function",
            {"str": "tests.hostile.canary"}]}, {"dict": []}]}]},
        {"named": ["jax.nn", {"str": "__getattr__"}]},
    ],
)  # fmt: skip
def test_values_that_a_file_may_not_name(value: Any) -> None:
    with pytest.raises(treepack.DecodeError):
        core.decode_value(msgpack.packb(value))


def test_code_of_the_program_gets_no_objects_with_functions() -> None:
    @jax.tree_util.register_pytree_node_class
    class Box:
        def tree_flatten(self) -> Any:
            return (), types_of_python.SimpleNamespace(keys=functools.partial(canary, 1))

        @classmethod
        def tree_unflatten(cls, aux: Any, children: Any) -> Any:
            dict(aux)
            return cls()

    treepack.register_node(Box, serialized_name="tests.hostile.Box")
    data = treepack.dumps([Box()])
    with pytest.raises(treepack.UnregisteredTypeError, match=r"tests\.hostile\.Box"):
        treepack.loads(data)
    assert not called


def test_code_of_the_program_gets_short_ranges_only() -> None:
    @jax.tree_util.register_pytree_node_class
    class Steps:
        def __init__(self, of: range):
            self.of = [*of]

        def tree_flatten(self) -> Any:
            return (), range(*((self.of[0], self.of[-1] + 1) if self.of else (1 << 50,)))

        @classmethod
        def tree_unflatten(cls, aux: Any, children: Any) -> Any:
            return cls(aux)

    treepack.register_node(Steps, serialized_name="tests.hostile.Steps")
    assert treepack.loads(treepack.dumps([Steps(range(3, 5))]))[0].of == [3, 4]
    with pytest.raises(treepack.UnregisteredTypeError, match="long ranges"):
        treepack.loads(treepack.dumps([Steps(range(0))]))
    key = range(1 << 50)
    assert [*treepack.loads(treepack.dumps({key: 1}))] == [key]


class Touched:
    """An object of the program, whose methods a file must not cause to run."""

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self._note("called", *args)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return functools.partial(self._note("attribute", name)._note, name)

    def __getitem__(self, key: Any) -> Any:
        return self._note("item", key)

    def __iter__(self) -> Any:
        return iter([self._note("iterated")])

    def __len__(self) -> int:
        self._note("measured")
        return 0

    def _note(self, *what: Any) -> Touched:
        called.append((what, {}))
        return self


def placeholder(path: str) -> Any:
    return {"named": ["treepack.hole", {"tuple": [{"str": path}, {"str": "function: f"}]}]}


def loaded_from_open(data: bytes, **options: Any) -> Any:
    return treepack.open(data).load(**options)


def data_of(name: str, fields: Any, static_data: Any, children: list[str], child: Any = 0) -> bytes:
    """A file with one node at `n`."""
    encoded = msgpack.packb(static_data)
    record = {
        "version": 1,
        "types": [{"name": name, "fields": fields}],
        "nodes": [
            ["plain", []],
            [{"typed": [0, encoded]}, [[len(children), child]] if children else []],
            ["dict", [[1, 1]]],
        ],
        "metadata": None,
    }
    return msgpack.packb(
        {"n": dict.fromkeys(children, 1), "__treepack__": sealed(msgpack.packb(record))}
    )


def test_no_type_of_the_libraries_uses_objects_of_the_program() -> None:
    assert USED
    fills: list[Any] = [placeholder("0"), placeholder(""), {"tuple": [placeholder("0")] * 2}]
    # Functions among the children of a module, which are static data as well.
    packed = {"bytes": msgpack.packb({"tuple": []})}
    mark, names = {"str": "treepack.functions"}, {"list": [{"str": "0"}]}
    relu = {"named": ["jax.nn", {"str": "relu"}]}
    for function in (placeholder("0"), relu):
        functions = {"dict": [[{"str": "0"}, function]]}
        fills.append({"tuple": [mark, packed, names, functions]})
    given: list[Any] = [{"n": Touched()}, {"n/0": Touched(), "n/": Touched()}, {"n": [Touched()]}]
    for name, ty in sorted(types(STEP).items()):
        for children in (field_names(ty), [], ["0"]):
            for filled, static_values in itertools.product(fills, given):
                data = data_of(name, None, filled, children)
                with contextlib.suppress(treepack.TreepackError):
                    treepack.loads(data, static=static_values)
                assert not called, (name, children, filled)


@jax.tree_util.register_pytree_node_class
class Stack:
    """Code of a library that uses what it gets."""

    def tree_flatten(self) -> Any:
        return (), ()

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Any) -> Any:
        for part in (*aux, *children):
            part()
        return cls()


Stack.__module__ = "optax.hostile"


@pytest.fixture
def of_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types_of_python.ModuleType("optax.hostile")
    module.Stack = Stack  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "optax.hostile", module)


@pytest.mark.usefixtures("of_a_library")
def test_code_of_a_library_gets_no_objects_of_the_program() -> None:
    code = {"typed": [1, msgpack.packb(placeholder(""))]}
    below = msgpack.packb({"tuple": []})
    record = {
        "version": 1,
        "types": [{"name": it, "fields": None} for it in ("optax:hostile.Stack", "treepack.code")],
        "nodes": [[code, []], [{"typed": [0, below]}, [[1, 0]]], ["dict", [[1, 1]]]],
        "metadata": None,
    }
    child = msgpack.packb({"n": {"0": {}}, "__treepack__": sealed(msgpack.packb(record))})
    filled = data_of("optax:hostile.Stack", None, {"tuple": [placeholder("0")]}, [])
    relu = {"dict": [[{"str": "0"}, {"named": ["jax.nn", {"str": "relu"}]}]]}
    packed = {"bytes": msgpack.packb({"tuple": []})}
    names = {"list": [{"str": "0"}]}
    marked = {"tuple": [{"str": "treepack.functions"}, packed, names, relu]}
    for data in (child, filled, data_of("optax:hostile.Stack", None, marked, [])):
        for static_values in ({"n/0": canary}, {"n/0": Touched()}):
            for load in (treepack.loads, treepack.abstract, loaded_from_open):
                with pytest.raises(
                    treepack.UnregisteredTypeError, match=r"code of optax|a library"
                ):
                    load(data, static=static_values)
                assert not called


@treepack.register_dataclass(serialized_name="tests.hostile.Holder")
@dataclasses.dataclass
class Holder:
    w: Any
    backend: Any = dataclasses.field(default=None, metadata={"static": True})

    @property
    def secret(self) -> Any:
        called.append("secret")
        return "secret"


class Options(dict[str, Any]):
    """A mapping of the program."""

    def __getitem__(self, key: str) -> Any:
        called.append(key)
        return "secret"


@dataclasses.dataclass
class Settings:
    inner: Any

    @property
    def secret(self) -> Any:
        called.append("secret")
        return "secret"


# Paths of placeholders, the static data of the program, and what the path selects, if anything.
ASKED: list[tuple[str, Any, Any]] = [
    ("secret", None, None),
    ("__class__", None, None),
    ("w", None, None),
    ("backend/secret", Settings(1), None),
    ("backend/inner/secret", Settings(Settings(1)), None),
    ("backend/environ/HOME", os, None),
    ("backend/a", Options(a=1), None),
    ("backend/0", Touched(), None),
    ("backend/secret", Touched(), None),
    ("backend/append", [1], None),
    ("backend/-1", [len], None),
    ("backend/00", [len], None),
    ("backend/\u0660", [len], None),
    ("backend/real", 1, None),
    ("backend/0", [len], len),
    ("backend/1/a", (0, {"a": len}), len),
    ("backend/inner", Settings(len), len),
    ("backend/inner/init", Settings(optax.sgd(1.0)), "init"),
    ("backend", len, len),
]


@pytest.mark.parametrize(("path", "held", "selected"), ASKED, ids=[it[0] for it in ASKED])
def test_a_path_of_a_file_selects_only_what_a_save_leaves_out(
    path: str, held: Any, selected: Any, tmp_path: Path
) -> None:
    if selected == "init":
        selected = held.inner.init
    data = data_of(
        "tests.hostile.Holder", [["w"], ["backend"]], {"tuple": [placeholder(path)]}, ["w"]
    )
    (tmp_path / "step_1").write_bytes(data)
    mine = {"n": Holder(1, held)}
    by_static: list[Callable[..., Any]] = [
        treepack.loads,
        treepack.abstract,
        functools.partial(treepack.load, tmp_path / "step_1"),
        functools.partial(treepack.open(data).load, arrays="numpy"),
        treepack.open(data, salvage=True).load,
        treepack.open(data).abstract,
        lambda **options: treepack.Series(tmp_path).resume(verify="manifest", **options)[1],  # type: ignore[index]
    ]
    for number, load in enumerate(by_static):
        arguments = () if number > 1 else (data,)
        for static_values in (mine, {"n": mine["n"]}, {"n/backend": held}):
            try:
                found = load(*arguments, static=static_values)
            except treepack.TreepackError:
                assert selected is None
            else:
                assert selected is not None
                node = found["n"] if isinstance(found, dict) else found
                assert node.backend is selected
    # A template has its own static data.
    for restore in (
        treepack.loads,
        functools.partial(treepack.loads, strict=False),
        lambda data, target: treepack.open(data).load(target),
        lambda data, target: treepack.serialization.from_bytes(target, data),
    ):
        assert restore(data, mine)["n"].backend is held
    assert not called


def test_an_upgrade_for_a_template_gets_no_attributes_that_a_file_names() -> None:
    data = data_of(
        "tests.hostile.Renamed", [["w"], ["backend"]], {"tuple": [placeholder("secret")]}, ["w"]
    )

    @treepack.register_dataclass(
        serialized_name="tests.hostile.Renamed",
        version=1,
        upgrade=lambda static, children, _: ({**static}, {"w": 1}),
    )
    @dataclasses.dataclass
    class Renamed(Holder):
        pass

    with contextlib.suppress(treepack.TreepackError):
        treepack.loads(data, {"n": Renamed(1, None)})
    assert not called


def test_long_paths_of_placeholders_are_looked_up_in_linear_time() -> None:
    data = data_of(
        "tests.hostile.Holder",
        [["w"], ["backend"]],
        {"tuple": [placeholder("a/" * 200_000)]},
        ["w"],
    )
    with pytest.raises(treepack.PlaceholderError) as caught:
        treepack.loads(data, static={"n/backend": len})
    assert caught.value
