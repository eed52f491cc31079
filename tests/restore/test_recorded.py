"""Trees that are put together while they are read are those that their states become."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import treepack
import treepack._core as core
from treepack import serialization


@treepack.register_dataclass(
    serialized_name="recorded.Node", data_fields=["value", "children"], meta_fields=["name"]
)
@dataclasses.dataclass
class Node:
    value: Any
    children: Any = ()
    name: str = "node"


@treepack.register_dataclass(serialized_name="recorded.Picky")
@dataclasses.dataclass
class Picky:
    value: Any

    def __post_init__(self) -> None:
        if self.value == 13:
            raise ValueError("not 13")
        if self.value == "stop":
            raise KeyboardInterrupt


class Pair(NamedTuple):
    first: Any
    second: Any


treepack.register_namedtuple(Pair, serialized_name="recorded.Pair")

BUILT: list[Any] = [
    5,
    [],
    [()],
    [[1, 2.5], (None, True), {"b": "text", "a": b"bytes"}],
    {str(key): [key] for key in range(300)},
    {str(key): [] for key in range(12)},
    [[at] for at in range(300)],
    Node(1, [Node(2), Node(3, name="other")]),
    [Node({"x": (Node(np.arange(3)),)}), Node([])],
    {"w": Node(np.float32(2)), "": [np.zeros((2, 3)), 1j]},
    [np.zeros(300), [np.ones((0, 2))]],
]
OTHERS: list[Any] = [
    {"a": {}},
    {"a": jnp.arange(3), "b": [Node(jnp.zeros(2))]},
    [bytearray(b"x")],
    {1: [2]},
    [jax.random.key(0)],
]


def outcome(data: bytes, **options: Any) -> Any:
    """Returns a tree in words, or the error."""
    try:
        return repr(treepack.loads(data, **options))
    except Exception as error:
        return type(error), str(error), error.__notes__ if hasattr(error, "__notes__") else []


def without(data: bytes, **options: Any) -> Any:
    """Returns the same of the state."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "restore_recorded", lambda *_, **__: None)
        return outcome(data, **options)


@pytest.mark.parametrize("tree", BUILT, ids=repr)
def test_what_is_built_is_what_the_state_becomes(tree: Any) -> None:
    data = treepack.dumps(tree)
    found = core.restore_recorded(data, None, None)
    assert found is not None
    assert repr(found[0]) == repr(tree)
    assert outcome(data) == without(data)
    assert outcome(data, copy=True) == without(data, copy=True)


@pytest.mark.parametrize("tree", OTHERS, ids=repr)
def test_other_kinds_of_nodes_are_what_the_state_becomes(tree: Any) -> None:
    data = treepack.dumps(tree)
    assert core.restore_recorded(data, None, None) is not None
    for options in ({}, {"arrays": "jax"}, {"arrays": "numpy"}, {"containers": "plain"}):
        assert outcome(data, **options) == without(data, **options)
    assert core.restore_recorded(serialization.to_bytes(tree), None, None) is None


def test_arrays_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serialization, "MAX_CHUNK_SIZE", 16)
    data = treepack.dumps([[np.arange(10.0)], Node(np.arange(9.0))])
    assert outcome(data) == without(data)


def test_arrays_are_there_when_code_of_types_sees_them() -> None:
    @treepack.register_dataclass(serialized_name="recorded.Summed")
    @dataclasses.dataclass
    class Summed:
        value: Any

        def __post_init__(self) -> None:
            self.total = float(self.value.sum())

    data = treepack.dumps([Summed(np.ones(100_000))])
    for offset in range(9):  # views, and copies of what is not aligned
        found = treepack.loads(memoryview(bytes(offset) + data)[offset:])
        assert found[0].total == 100_000


def test_errors_of_code_have_their_path() -> None:
    data = treepack.dumps({"a": [Picky(1), Picky(12)]}).replace(b"value\x0c", b"value\x0d")
    assert outcome(data) == without(data)
    with pytest.raises(ValueError, match=r"recorded\.Picky .*not 13 \(at a/1\)"):
        treepack.loads(data)


def test_an_interrupt_is_one() -> None:
    data = treepack.dumps([Picky("stap")]).replace(b"stap", b"stop")
    with pytest.raises(KeyboardInterrupt):
        treepack.loads(data)


def test_unknown_types_are_reported() -> None:
    data = treepack.dumps([Node(1)])
    other = data.replace(b"recorded.Node", b"recorded.None")
    assert outcome(other) == without(other)
    assert outcome(data, unknown="dict") == without(data, unknown="dict")


@pytest.mark.parametrize("tree", [BUILT[3], BUILT[7], BUILT[8], [[1], [2]]], ids=repr)
def test_damage_is_reported_as_by_the_state(tree: Any) -> None:
    data = treepack.dumps(tree)
    for at in range(len(data)):
        for bit in (1, 2, 16, 128):
            damaged = data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]
            assert outcome(damaged) == without(damaged), (at, bit)
        assert outcome(data[:at]) == without(data[:at]), at


def test_keys_that_are_no_strings_stay() -> None:
    data = treepack.dumps({"k": (1,)})
    record = core.Catalog.open(core.Content.lent(data), salvage=False).record
    assert core.assemble({7: {"0": 1}}, record) == {7: (1,)}
    # Paths have them as text.
    data = treepack.dumps({"k": [jnp.zeros(2)]})
    record = core.Catalog.open(core.Content.lent(data), salvage=False).record
    seen: list[str] = []

    def convert(leaves: list[Any]) -> list[Any]:
        seen.extend(str(leaf[0]) for leaf in leaves)
        return [leaf[2] for leaf in leaves]

    state = {7: {"0": np.zeros(2)}}
    assert type(core.assemble(state, record, convert=convert)[7]) is list
    assert seen == ["7/0"]
