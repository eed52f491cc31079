"""Nodes that a class makes of its children and static data as positional arguments."""

from __future__ import annotations

import abc
import dataclasses
import functools
import gc
from typing import Any

import jax
import pytest

import treepack
from treepack._src.registry import types


def order_of(ty: type) -> list[int] | None:
    found = types.TYPES.entry_of(ty)
    assert found is not None
    return found.order


@dataclasses.dataclass
class Mixed:
    name: str = dataclasses.field(metadata={"static": True})
    w: Any
    size: int = dataclasses.field(metadata={"static": True})
    b: Any = 7


class Reversed:
    def __init__(self, b: Any, a: Any, made: str = "by __init__"):
        self.a, self.b, self.made = a, b, made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reversed) and vars(self) == vars(other)


@dataclasses.dataclass(frozen=True)
class Frozen(abc.ABC):  # whose metaclass calls as others do
    a: Any
    total: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", self.a + 1)


@dataclasses.dataclass(kw_only=True)
class ByKeyword:
    a: Any
    b: Any


@dataclasses.dataclass
class Made:
    a: Any

    def __new__(cls, **_: Any) -> Made:  # takes no positional arguments
        return object.__new__(cls)


class Meta(type):
    def __call__(cls, **fields: Any) -> Any:
        return super().__call__(**fields)


@dataclasses.dataclass
class WithMeta(metaclass=Meta):
    a: Any


@dataclasses.dataclass
class Wrapped:
    a: Any


def _by_keyword(init: Any) -> Any:
    @functools.wraps(init)
    def wrapped(self: Any, *, a: Any) -> None:
        init(self, a)

    return wrapped


Wrapped.__init__ = _by_keyword(Wrapped.__init__)  # type: ignore[method-assign]


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    register = treepack.register_dataclass
    register(Reversed, ["a", "b"], [], serialized_name="test.arguments.Reversed")
    for ty in (Mixed, ByKeyword, Made, WithMeta, Wrapped):
        register(ty, serialized_name=f"test.arguments.{ty.__name__}")
    register(Frozen, ["a"], [], drop_fields=["total"], serialized_name="test.arguments.Frozen")


@pytest.mark.parametrize(
    ("node", "order"),
    [
        (Mixed("layer", 1, 2, 3), [2, 0, 3, 1]),
        (Reversed(2, 1), [1, 0]),
        (Frozen(1), [0]),
        (ByKeyword(a=1, b=2), None),
        (Made(a=1), None),
        (WithMeta(a=1), None),
        (Wrapped(a=1), None),
    ],
    ids=lambda it: type(it).__name__,
)
def test_nodes_are_made_as_by_jax(node: Any, order: list[int] | None) -> None:
    assert order_of(type(node)) == order
    tree = {"nodes": [node, node], "other": (node, 5)}
    expected = jax.tree.map(lambda it: it, tree)
    assert treepack.loads(treepack.dumps(tree)) == expected == tree


def test_what_a_class_raises_names_the_type_and_the_path() -> None:
    data = treepack.dumps({"x": [Frozen(1)]})
    with pytest.raises(treepack.DecodeError, match=r"test\.arguments\.Frozen") as caught:
        treepack.loads(data.replace(b"\xa1a\x01", b"\xa1a\xc0"))
    assert caught.value.path == "x/0"


@pytest.mark.parametrize("options", [{}, {"copy": True}, {"dtype": "float32"}], ids=str)
def test_states_of_nodes_are_not_there_beside_all_nodes(options: dict[str, Any]) -> None:
    """Or Python's garbage collector would run again and again, over more and more objects."""
    seen = []

    @treepack.register_dataclass(serialized_name="test.Counted")
    @dataclasses.dataclass
    class Counted:
        value: int

        def __post_init__(self) -> None:
            seen.append(gc.get_stats()[0]["collections"])

    data = treepack.dumps([Counted(at) for at in range(10_000)])
    seen.clear()
    before = gc.get_stats()[0]["collections"]
    assert len(treepack.loads(data, **options)) == len(seen) == 10_000
    # Once for the objects that stay, or for the states of which they are made.
    assert gc.get_stats()[0]["collections"] - before <= 10_000 // gc.get_threshold()[0] + 2
    if "dtype" in options:  # nodes take the places of states
        assert seen[-1] - seen[0] <= 1
