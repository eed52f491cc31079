"""One table of changes to a type between saving and loading, for every kind of node."""

from __future__ import annotations

import collections
import dataclasses
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import chex
import equinox
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.tree_util import GetAttrKey

import tiers
import treepack

NAME = "tests.kinds.Evolving"
REQUIRED = dataclasses.MISSING

# The fields of a type: their defaults by name.
Fields = dict[str, Any]


def body(data: Fields, static: Fields, field: Any, static_field: Any) -> dict[str, Any]:
    """Returns the namespace of a class with these fields, in the order of the dicts."""
    made = {
        name: (static_field if name in static else field)(
            kw_only=True, **({} if default is REQUIRED else {"default": default})
        )
        for name, default in (data | static).items()
    }
    return {"__module__": "evolving", "__annotations__": dict.fromkeys(made, Any), **made}


def static_field(**options: Any) -> Any:
    return dataclasses.field(metadata={"static": True}, **options)


def struct_static(**options: Any) -> Any:
    return flax.struct.field(pytree_node=False, **options)


def plain(data: Fields, static: Fields) -> Any:
    made = type("Evolving", (), body(data, static, dataclasses.field, static_field))
    return dataclasses.dataclass(made)


def by_jax(data: Fields, static: Fields) -> Any:
    return jax.tree_util.register_dataclass(plain(data, static), [*data], [*static])


def struct(data: Fields, static: Fields) -> Any:
    made = type("Evolving", (), body(data, static, flax.struct.field, struct_static))
    return flax.struct.dataclass(made)


def module(data: Fields, static: Fields) -> Any:
    fill = body(data, static, equinox.field, lambda **it: equinox.field(static=True, **it))
    return types.new_class("Evolving", (equinox.Module,), {}, lambda space: space.update(fill))


def by_chex(data: Fields, static: Fields) -> Any:
    """A dataclass that is flattened to children and their names."""
    if static:
        pytest.skip("all fields are children")
    made = type("Evolving", (), body(data, static, dataclasses.field, static_field))
    return chex.dataclass(made)


def namedtuple(data: Fields, static: Fields) -> Any:
    if static:
        pytest.skip("namedtuples have no static fields")
    names = sorted(data, key=lambda name: data[name] is not REQUIRED)
    defaults = [data[name] for name in names if data[name] is not REQUIRED]
    return collections.namedtuple("Evolving", names, defaults=defaults, module="evolving")


def keyed(data: Fields, static: Fields) -> Any:
    """A class that JAX flattens by functions of the program."""

    class Evolving:
        def __init__(self, **values: Any):
            self.__dict__.update(data | static | values)

    jax.tree_util.register_pytree_with_keys(
        Evolving,
        lambda node: (
            [(GetAttrKey(name), getattr(node, name)) for name in data],
            tuple(getattr(node, name) for name in static),
        ),
        lambda aux, children: Evolving(
            **dict(zip(data, children, strict=True)), **dict(zip(static, aux, strict=True))
        ),
    )
    return Evolving


def nnx_module(data: Fields, static: Fields) -> Any:
    def init(self: Any, **values: Any) -> None:
        for name, default in (data | static).items():
            value = values.get(name, default)
            setattr(self, name, nnx.Param(value) if name in data else value)

    return type("Evolving", (nnx.Module,), {"__init__": init, "__module__": "evolving"})


def subclass_of_dict(data: Fields, static: Fields) -> Any:
    if static:
        pytest.skip("dicts have no static fields")
    return type("Evolving", (dict,), {})


KINDS: dict[str, Callable[[Fields, Fields], Any]] = {
    "dataclass": plain,
    "dataclass of jax": by_jax,
    "flax.struct": struct,
    "equinox": module,
    "chex": by_chex,
    "namedtuple": namedtuple,
    "register_node": keyed,
    "nnx": nnx_module,
    "subclass of dict": subclass_of_dict,
}
# Their children are attributes that nodes have or have not: nothing has a default.
WITHOUT_DEFAULTS = {"register_node", "nnx"}

# What changes: data and static fields before, and after; what loading without a template says
# (`None`: the new fields get their defaults).
CHANGES: dict[str, tuple[Fields, Fields, Fields, Fields, str | None]] = {
    "a new field": ({"w": REQUIRED}, {}, {"w": REQUIRED, "x": 0.5}, {}, None),
    "a new field first, and static": (
        {"w": REQUIRED},
        {"k": "k"},
        {"x": 0.5, "w": REQUIRED},
        {"l": 7, "k": "k"},
        None,
    ),
    "a new field, None": (
        {"w": REQUIRED},
        {"k": "k"},
        {"w": REQUIRED, "x": None},
        {"k": "k"},
        None,
    ),
    "a new static field": ({"w": REQUIRED}, {}, {"w": REQUIRED}, {"l": 7}, None),
    "another order": (
        {"w": REQUIRED, "v": REQUIRED},
        {"k": "k", "l": "l"},
        {"v": REQUIRED, "w": REQUIRED},
        {"l": "l", "k": "k"},
        None,
    ),
    "a field less": (
        {"w": REQUIRED, "v": 0.5},
        {},
        {"w": REQUIRED},
        {},
        "'v', which it no longer has",
    ),
    "a new field without a default": (
        {"w": REQUIRED},
        {},
        {"w": REQUIRED, "v": REQUIRED},
        {},
        "'v', which has no default",
    ),
    "a child that is static now": (
        {"w": REQUIRED, "k": "k"},
        {},
        {"w": REQUIRED},
        {"k": "k"},
        "'k' as a child field, and now has it as a static field",
    ),
    "a static field that is a child now": (
        {"w": REQUIRED},
        {"k": "k"},
        {"w": REQUIRED, "k": "k"},
        {},
        "'k' as a static field, and now has it as a child field",
    ),
}


def registered(kind: str, data: Fields, static: Fields, **options: Any) -> Any:
    """Defines a class, which is registered in place of its older definition."""
    made = KINDS[kind](data, static)
    made.__qualname__, made.__module__ = "Evolving", "evolving"
    if kind == "subclass of dict":
        return made
    if kind == "namedtuple":
        return treepack.register_namedtuple(made, serialized_name=NAME, **options)
    if dataclasses.is_dataclass(made):
        return treepack.register_dataclass(made, serialized_name=NAME, **options)
    return treepack.register_node(made, serialized_name=NAME, **options)


def array(value: float) -> jax.Array:
    return jnp.full(2, value)


def filled(ty: Any, data: Fields, static: Fields, value: float) -> Any:
    values = {name: array(value + at) for at, name in enumerate(sorted(data))}
    return ty(**values, **{name: f"{name}{value}" for name in static})


def values_of(node: Any, *fields: Fields) -> dict[str, Any]:
    """Returns the fields of a node: of arrays one element, `None` for those that it lacks."""
    found = {}
    for name in sorted({name for some in fields for name in some}):
        value = node.get(name) if isinstance(node, dict) else getattr(node, name, None)
        value = value.get_value() if isinstance(value, nnx.Variable) else value
        found[name] = float(value[0]) if isinstance(value, (jax.Array, np.ndarray)) else value
    return found


@pytest.fixture(params=tiers.params(["bytes", "directory", "file", "gzip", "numbers"], quick=2))
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Any], Any]:
    def save(tree: Any) -> Any:
        if request.param == "bytes":
            return treepack.dumps(tree)
        path = tmp_path / "saved"
        compress = request.param if request.param in ("gzip", "numbers") else False
        treepack.save(path, tree, compress=compress, sharded=request.param == "directory")
        return path

    return save


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_type_that_changes(kind: str, change: str, saved: Callable[[Any], Any]) -> None:
    data, static, new_data, new_static, refusal = CHANGES[change]
    source = saved({"m": filled(registered(kind, data, static), data, static, 0.0)})
    new = registered(kind, new_data, new_static)
    template = {"m": filled(new, new_data, new_static, 10.0)}

    # With a template, it fills in what is new, and what is gone is left out.
    found, report = treepack.load(
        source, template, missing="target", unexpected="ignore", return_report=True
    )
    kept, both = set(new_data) - set(data), set(new_data) & set(data)
    gone = set(data) - set(new_data)
    expected = values_of(template["m"], new_data, new_static)
    old = values_of(filled(KINDS["dataclass"](data, static), data, static, 0.0), data, static)
    assert type(found["m"]) is new
    assert values_of(found["m"], new_data, new_static) == expected | {n: old[n] for n in both}
    suffix = "/value" if kind == "nnx" else ""
    assert set(report.kept) == {f"m/{name}{suffix}" for name in kept}
    assert set(report.unexpected) == {f"m/{name}{suffix}" for name in gone}

    # Without, fields have their defaults, or an error says what to do.
    if kind == "subclass of dict":
        return
    if kind == "register_node" and refusal is None and (kept or set(new_static) - set(static)):
        refusal = "which has no default"
    if refusal is not None and kind != "nnx":
        with pytest.raises(treepack.UnregisteredTypeError, match=refusal):
            treepack.load(source)
        # A template has taken it; so do dicts.
        assert set(treepack.load(source, unknown="dict")["m"]) == set(data)
        return
    node = treepack.load(source)["m"]
    assert type(node) is new
    defaults = {} if kind == "nnx" else new_data | new_static
    assert values_of(node, new_data, new_static) == {
        name: old.get(name, defaults.get(name)) for name in new_data | new_static
    }
    assert type(treepack.abstract(source)["m"]) is new


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "subclass of dict"])
def test_an_upgrade_of_every_kind(kind: str) -> None:
    static: Fields = {} if kind in ("namedtuple", "chex") else {"k": "k"}
    old = registered(kind, {"w": REQUIRED}, static)
    data = treepack.dumps({"m": filled(old, {"w": 0}, static, 1.0)})

    def upgrade(meta: Any, children: Any, version: int) -> Any:
        assert version == 0
        more = jax.tree.map(lambda leaf: leaf + 1, children["w"])
        if kind == "nnx":
            return meta, {**children, "w": more}
        children = {"v": more}
        if kind == "chex":
            return ("v",), children
        return {name: f"{value}!" for name, value in meta.items()}, children

    names = {"w" if kind == "nnx" else "v": REQUIRED}
    new = registered(kind, names, static, version=1, upgrade=upgrade)
    end = "" if kind == "nnx" else "!"
    expected = dict.fromkeys(names, 2.0) | {name: f"{name}1.0{end}" for name in static}
    found = treepack.loads(data)["m"]
    assert type(found) is new
    assert values_of(found, names, static) == expected
    template = {"m": filled(new, names, static, 5.0)}
    found = treepack.loads(data, template)["m"]
    assert values_of(found, names) == {name: expected[name] for name in names}


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind not in {*WITHOUT_DEFAULTS, "chex", "subclass of dict"}]
)
def test_what_an_upgrade_lacks_stays_as_in_the_template(
    kind: str, saved: Callable[[Any], Any]
) -> None:
    inner = registered(kind, {"w": REQUIRED}, {})(w=array(1))
    source = saved({"m": registered(kind, {"w": REQUIRED}, {})(w=inner), "n": 1})
    fields = {"v": REQUIRED, "x": 0.5}
    new = registered(
        kind, fields, {}, version=1, upgrade=lambda meta, old, _: (meta, {"v": old["w"]})
    )
    template = {"m": new(v=new(v=array(0), x=7), x=array(8)), "n": 0}
    found, report = treepack.load(source, template, missing="target", return_report=True)
    assert values_of(found["m"], {"x": 0.5}) == {"x": 8}
    assert values_of(found["m"].v, fields) == {"v": 1, "x": 7}
    assert set(report.kept) == {"m/x", "m/v/x"}
    assert set(report.loaded) == {"m/v/v", "n"}
    template = {"m": new(v=new(v=array(0), x=7.0), x=8.0), "n": 0}
    found = treepack.load(source, template)  # as without a template
    assert (found["m"].x, found["m"].v.x) == (0.5, 0.5)


def test_a_module_with_a_function_for_a_child_changes() -> None:
    old = registered("equinox", {"w": REQUIRED, "act": REQUIRED}, {"k": REQUIRED})
    data = treepack.dumps(old(w=np.ones(2), act=jax.nn.relu, k="k"))
    new = registered("equinox", {"x": 0.5, "act": REQUIRED, "w": REQUIRED}, {"l": 7, "k": REQUIRED})
    found = treepack.loads(data)
    assert (type(found), found.x, found.l, found.k) == (new, 0.5, 7, "k")
    assert found.act is jax.nn.relu
    assert found.w.tolist() == [1, 1]


def test_fields_that_swap_places_are_no_silent_swap() -> None:
    """Records of these types do not say which field is which."""
    data = treepack.dumps(registered("equinox", {"w": REQUIRED}, {"k": REQUIRED})(w=1, k=2))
    registered("equinox", {"k": REQUIRED}, {"w": REQUIRED})
    with pytest.raises(treepack.UnregisteredTypeError, match="'w' as a child field"):
        treepack.loads(data)
    assert treepack.loads(data, unknown="dict") == {"w": 1}

    def opaque(*names: str) -> Any:
        def init(self: Any, **values: Any) -> None:
            self.__dict__.update(values)

        made = type("Evolving", (), {"__init__": init})
        jax.tree_util.register_pytree_with_keys(
            made,
            lambda node: ([(GetAttrKey(name), getattr(node, name)) for name in names], "aux"),
            lambda _, children: made(**dict(zip(names, children, strict=True))),
        )
        made.__module__ = "evolving"
        return treepack.register_node(made, serialized_name=NAME)

    data = treepack.dumps(opaque("a", "b")(a=1, b=2))
    assert vars(treepack.loads(data)) == {"a": 1, "b": 2}
    new = opaque("b", "a")
    with pytest.raises(
        treepack.UnregisteredTypeError, match=r"\['a', 'b'\], and now has the children \['b', 'a'\]"
    ):
        treepack.loads(data)
    assert vars(treepack.loads(data, new(a=0, b=0))) == {"a": 1, "b": 2}


@pytest.mark.parametrize("strict", [True, False, "exact"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_field_less_is_an_error_that_names_both_ways_out(kind: str, strict: Any) -> None:
    old = registered(kind, {"w": REQUIRED, "v": REQUIRED}, {})
    data = treepack.dumps({"m": filled(old, {"w": 0, "v": 0}, {}, 0.0), "n": 1})
    new = registered(kind, {"w": REQUIRED}, {})
    template = {"m": filled(new, {"w": 0}, {}, 5.0), "n": 0}

    def assert_loaded(**options: Any) -> None:
        found = treepack.load(data, template, strict=strict, **options)
        assert type(found["m"]) is new
        assert values_of(found["m"], {"w": 0}) == {"w": 1.0}

    if kind != "subclass of dict" or strict == "exact":
        with pytest.raises(treepack.MismatchError, match="unexpected") as caught:
            treepack.load(data, template, strict=strict)
        assert 'Pass unexpected="ignore" to ignore' in str(caught.value)
        assert "or select= to load fewer leaves" in str(caught.value)
    assert_loaded(unexpected="ignore")
    assert_loaded(select=["m/w", "n"])
    with pytest.raises(treepack.MismatchError, match="unexpected") as caught:
        treepack.load(data, template, strict=strict, unexpected="error")
    assert 'Pass unexpected="ignore" to ignore' in str(caught.value)


def test_nodes_of_libraries_that_lack_what_a_file_has() -> None:
    chain = optax.chain(optax.clip(1.0), optax.adam(0.1))
    state = chain.init({"w": jnp.ones(2)})

    class Older(NamedTuple):
        count: Any
        mu: Any

    adam = state[1][0]
    less = (state[0], (Older(adam.count, adam.mu), state[1][1]))
    more = {"opt": state, "list": [1, 2, 3], "pair": (1, 2)}
    template = {"opt": less, "list": [0, 0], "pair": (0,)}
    with pytest.raises(treepack.MismatchError, match="opt/1/0/nu: unexpected"):
        treepack.load(treepack.dumps(more), template)
    found = treepack.load(treepack.dumps(more), template, unexpected="ignore")
    assert jax.tree.structure(found) == jax.tree.structure(template)
    assert (found["list"], found["pair"]) == ([1, 2], (1,))


@pytest.mark.parametrize("strict", [True, False])
def test_an_nnx_state_may_lack_what_a_file_has(strict: bool, tmp_path: Path) -> None:
    """A node that is a mapping is like a dict: parameters of LoRA come out of a whole state."""

    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs):
            self.lora = nnx.LoRA(2, 1, 2, rngs=rngs)
            self.base = nnx.Linear(2, 2, rngs=rngs)

    whole = nnx.state(Model(nnx.Rngs(0)))
    template = nnx.state(nnx.eval_shape(lambda: Model(nnx.Rngs(1))), nnx.LoRAParam)
    treepack.save(tmp_path / "whole", whole)
    found, report = treepack.load(tmp_path / "whole", template, strict=strict, return_report=True)
    assert jax.tree.structure(found) == jax.tree.structure(template)
    np.testing.assert_array_equal(found["lora"]["lora_a"][...], whole["lora"]["lora_a"][...])
    assert "base/kernel/value" in report.unexpected
    for refusing in ({"strict": "exact"}, {"unexpected": "error"}):
        with pytest.raises(treepack.MismatchError, match="base: unexpected"):
            treepack.load(tmp_path / "whole", template, **refusing)


def test_a_handler_gets_what_the_template_has_if_the_rest_is_ignored() -> None:
    class Handled:
        def __init__(self, **values: Any):
            self.__dict__.update(values)

    def restore(target: Handled, state: dict[str, Any]) -> Handled:
        if vars(target).keys() != state.keys():
            raise ValueError(f"other names: {sorted(state)}")
        return Handled(**state)

    with treepack.serialization.patch():
        flax.serialization.register_serialization_state(Handled, lambda it: dict(vars(it)), restore)
    data = treepack.dumps({"m": Handled(a=1, b=2)})
    template = {"m": Handled(a=0)}
    with pytest.raises(ValueError, match="other names"):
        treepack.load(data, template)
    found, report = treepack.load(data, template, unexpected="ignore", return_report=True)
    assert (vars(found["m"]), report.unexpected) == ({"a": 1}, ["m/b"])
    with pytest.raises(treepack.MismatchError, match="m/b: unexpected"):
        treepack.load(data, template, unexpected="error")
