"""Types that the core goes through by itself: what comes of them is what Python makes of them."""

from __future__ import annotations

import dataclasses
import gc
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import treepack
from treepack import serialization
from treepack._src.registry import fixed_fields as _fixed_fields


class Pair(NamedTuple):
    a: Any
    b: Any


class Fields(NamedTuple):
    a: Any
    b: Any


class Halved(Fields):
    """What JAX sees in it is not what its attributes say."""

    @property
    def a(self) -> Any:  # type: ignore[override]
        return "half"


@flax.struct.dataclass
class Struct:
    a: Any
    b: Any = flax.struct.field(pytree_node=False)


@flax.struct.dataclass
class Counted:
    a: Any
    count: int = flax.struct.field(pytree_node=False, default=0)


def counting(struct: Counted, **changes: Any) -> Counted:
    return Counted(**{"count": struct.count + 1, **changes})


Counted.replace = counting  # type: ignore[method-assign, assignment]


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    a: Any
    b: Any = dataclasses.field(metadata={"static": True})


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass
class Sometimes:
    """Its child `b` is one only if there is one."""

    a: Any
    b: Any

    def tree_flatten_with_keys(self) -> Any:
        key = jax.tree_util.GetAttrKey
        children = [(key("a"), self.a)] + ([(key("b"), self.b)] if self.b is not None else [])
        return children, None

    @classmethod
    def tree_unflatten(cls, _: Any, children: Any) -> Sometimes:
        return cls(children[0], children[1] if len(children) > 1 else None)


class Module(eqx.Module):
    a: Any
    b: Any = eqx.field(static=True)


class Code(eqx.Module):
    a: Any
    b: Any


class Bare(eqx.Module):
    """Its field `b` has a default in the class, and may be missing."""

    a: Any
    b: Any = None


def bare(a: Any, _: Any) -> Any:
    made: Any = object.__new__(Bare)
    object.__setattr__(made, "a", a)
    return made


for ty in (Pair, Halved, Struct, Counted, Layer, Sometimes, Module, Code, Bare):
    treepack.register_tree(
        bare(1, 2) if ty is Bare else ty(1, 2),  # type: ignore[call-arg]
        prefix="fixed",
    )
treepack.register_function(jnp.tanh, serialized_name="fixed.tanh")


leaves = st.sampled_from([1, 2.5, "text", None, np.arange(3.0), jnp.ones(2)])
functions = st.just(jnp.tanh)
static = st.sampled_from([1, 1000, 10**6, True, "text", None, (1, "x"), jnp.tanh, 2.5])


def nodes(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(children, max_size=2)
    code = st.one_of(children, functions, lists, st.lists(functions, min_size=1, max_size=2))
    return st.one_of(
        *(st.builds(ty, children, children) for ty in (Pair, Halved, Sometimes)),
        *(st.builds(ty, children, static) for ty in (Struct, Layer, Module)),
        st.builds(Counted, children),
        st.builds(Code, code, code),
        st.builds(Bare, children, children),
        st.builds(bare, children, st.none()),
        lists,
        st.dictionaries(st.sampled_from("ab"), children, max_size=2),
    )


trees = st.recursive(leaves, nodes, max_leaves=12)


@pytest.mark.parametrize("node", [Pair(1, 2), Struct(1, 2), Layer(1, 2), Module(1, 2)])
def test_types_of_libraries_are_known(node: Any) -> None:
    """Whatever version it is: otherwise Python would describe each of their nodes."""
    assert _fixed_fields.fixed_fields(node) is not None


def one_by_one(call: Callable[[], Any]) -> Any:
    """Calls a function while Python describes each node."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_fixed_fields, "_of_kind", lambda *_: None)
        return call()


class Failed(str):
    """An error in words."""


def outcome(call: Callable[[], Any]) -> Any:
    """Returns what a function returns, or its error."""
    try:
        return call()
    except Exception as error:
        return Failed(f"{type(error).__name__}: {error}")


def same(a: Any, b: Any) -> bool:
    leaves, treedef = jax.tree.flatten(a)
    others, other = jax.tree.flatten(b)
    return treedef == other and all(
        (type(x) is type(y) and np.array_equal(x, y))
        if hasattr(x, "shape")
        else x is y or (type(x) is type(y) and x == y)
        for x, y in zip(leaves, others, strict=True)
    )


@given(trees)
def test_what_is_written_is_the_same(tree: Any) -> None:
    for write in (treepack.dumps, serialization.to_bytes):
        found = outcome(lambda write=write: write(tree))
        assert found == one_by_one(lambda write=write: outcome(lambda: write(tree)))


@given(trees)
def test_what_is_read_is_the_same(tree: Any) -> None:
    data = treepack.dumps(tree)
    assert same(treepack.loads(data), tree)
    reads = [lambda: treepack.loads(data), lambda: treepack.loads(data, tree)]
    state = outcome(lambda: serialization.to_bytes(tree))
    if isinstance(state, bytes):
        reads.append(lambda: serialization.from_bytes(tree, state))
    for read in reads:
        found = outcome(read)
        expected = one_by_one(lambda read=read: outcome(read))
        assert found == expected if isinstance(found, Failed) else same(found, expected)


@pytest.mark.parametrize("ty", [Struct, Layer, Module])
def test_static_data_without_a_name(ty: Any) -> None:
    tree = [ty(1, object()), ty(2, 3)]

    def saved() -> Any:
        return outcome(lambda: treepack.dumps(tree))

    assert saved().startswith("UnserializableLeafError: at 0: ")
    assert saved() == one_by_one(saved)
    data = treepack.dumps(tree, static="skip")
    assert data == one_by_one(lambda: treepack.dumps(tree, static="skip"))
    assert treepack.loads(data, static=tree)[1].b == 3


def test_static_data_that_change_are_written_as_they_are() -> None:
    shared = [1]

    class Grows:
        pass

    def encode(_: Any) -> Any:
        shared.append(len(shared) + 1)
        return None

    treepack.register_auxdata(Grows, "fixed.Grows", encode, lambda _: None)
    data = treepack.dumps([Layer(0, shared), Layer(0, Grows()), Layer(0, shared)])
    assert [layer.b for layer in treepack.loads(data)] == [[1], None, [1, 2]]


def test_a_struct_with_its_own_replace() -> None:
    data = serialization.to_bytes(Counted(5))
    assert serialization.from_bytes(Counted(0, 7), data) == Counted(5, 8)


def test_names_of_jax_that_may_go(monkeypatch: pytest.MonkeyPatch) -> None:
    import jax._src.tree_util as internals

    tree = [Pair(1, 2), Struct(1, 2), Layer(3, 4), Module(5, 6)]
    data = treepack.dumps(tree)
    monkeypatch.setattr(_fixed_fields, "_known", {})
    monkeypatch.delattr(internals, "_registry")
    assert treepack.dumps(tree) == data
    assert treepack.loads(data, tree) == tree


# What a review by experiment has found


def test_a_struct_with_a_field_for_init_alone() -> None:
    @flax.struct.dataclass
    class Initial:
        a: Any
        v: dataclasses.InitVar[int] = 3

        def __post_init__(self, v: int) -> None:
            object.__setattr__(self, "v", v)

    found = serialization.from_bytes(Initial(0, 7), serialization.to_bytes(Initial(1, 7)))
    assert (found.a, found.v) == (1, 7)  # type: ignore[comparison-overlap]


class Opaque:
    def __init__(self, x: Any) -> None:
        self.x = x


serialization.register_serialization_state(
    Opaque, lambda opaque: {"x": opaque.x}, lambda _, state: Opaque(state["x"])
)


@pytest.mark.parametrize("inside", [[1, 2], {1: 2, "2": 3}, {1: 2, "1": 3}, {(1, 2): 3}])
def test_nodes_in_the_state_of_a_handler(inside: Any) -> None:
    nodes: list[Any] = [Layer(inside, 1)]
    if type(inside) is list:  # equinox takes no keys that have no order
        nodes.append(Module(inside, 1))
    for node in nodes:

        def saved(node: Any = node) -> Any:
            return outcome(lambda: serialization.to_bytes(Opaque(node)))

        assert saved() == one_by_one(saved)


def test_tuples_that_only_look_like_namedtuples() -> None:
    class Looks(tuple):
        _fields = ("a", "b")

        def __new__(cls, a: Any, b: Any) -> Any:
            made: Any = tuple.__new__(cls, (a, b))
            made.a, made.b = a, b
            return made

        @classmethod
        def _make(cls, items: Any) -> Any:
            return cls(*items)

    tree: Any = Looks(1, np.ones(2))
    found = serialization.from_bytes(tree, serialization.to_bytes(tree))
    assert type(found) is Looks
    assert found[0] == found.a == 1


def test_a_namedtuple_with_other_attributes_than_elements() -> None:
    class Swapped(Fields):
        a = Fields.b

    treepack.register_namedtuple(Swapped, serialized_name="fixed.Swapped")
    tree = Swapped(1, 2)
    assert tuple(treepack.loads(treepack.dumps(tree))) == (1, 2)


def test_types_whose_objects_call_back_when_they_go() -> None:
    gone: list[str] = []

    class Calls:
        def __del__(self) -> None:
            gone.append(type(self).__name__)

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class ByDataclass(Calls):
        x: Any

    @jax.tree_util.register_pytree_node_class
    class Slotted(Calls):
        __slots__ = ("x",)

        def tree_flatten(self) -> Any:
            return (self.x,), ()

        @classmethod
        def tree_unflatten(cls, _: Any, children: Any) -> Any:
            made = cls()
            (made.x,) = children
            return made

    class Row(NamedTuple):
        x: Any

    class Named(Row, Calls):
        pass

    tree = [ByDataclass(1), Slotted.tree_unflatten((), (2,)), Named(3)]
    for _ in range(2):
        treepack.dumps(tree)
        serialization.to_bytes(tree)
        treepack.register_dataclass(ByDataclass, serialized_name="fixed.ByDataclass")
        treepack.register_node(Slotted, serialized_name="fixed.Slotted")
        treepack.register_namedtuple(Named, serialized_name="fixed.Named")
    gc.collect()
    assert not gone
    found = treepack.loads(treepack.dumps(tree))
    assert (found[0].x, found[1].x, found[2].x) == (1, 2, 3)


@pytest.mark.campaign
def test_a_dtype_that_calls_back_when_it_goes() -> None:
    code = """if True:
        import numpy as np
        from treepack import serialization

        class Calls:
            def __del__(self):
                serialization.to_bytes({"a": np.ones(2)})

        for i in range(300):
            dtype = np.dtype("i4", metadata={"x": Calls()})
            serialization.to_bytes({"a": np.ones(2, dtype)})
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


def test_a_node_that_lacks_an_attribute() -> None:
    @dataclasses.dataclass
    class Whole:
        a: Any

    part: Any = object.__new__(Whole)
    with pytest.raises(AttributeError, match="no attribute 'a'") as caught:
        treepack.dumps({"n": part})
    assert caught.value.__notes__ == ["treepack: while serializing n"]
    broken: Any = object.__new__(Layer)
    for write in (treepack.dumps, serialization.to_bytes):
        found = outcome(lambda write=write: write({"n": broken}))
        assert found == one_by_one(lambda write=write: outcome(lambda: write({"n": broken})))


def test_static_data_with_an_identity_that_change() -> None:
    @dataclasses.dataclass(eq=False)
    class Mutable:
        x: int

    @jax.tree_util.register_pytree_with_keys_class
    class Changes:
        def tree_flatten_with_keys(self) -> Any:
            mutable.x += 1
            return (), None

        @classmethod
        def tree_unflatten(cls, *_: Any) -> Any:
            return cls()

    mutable = Mutable(0)
    treepack.register_auxdata(Mutable, "fixed.Mutable")
    treepack.register_node(Changes, serialized_name="fixed.Changes")
    data = treepack.dumps([Layer(0, mutable), Changes(), Layer(0, mutable)])
    first, _, second = treepack.loads(data)
    assert first.b.x < second.b.x
