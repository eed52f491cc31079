"""Loads a whole tree into a template by one walk, whichever order its keys have.

Every function of the core that walks over saved data or over a template is counted.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import flax.core
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import treepack
import treepack._core as core
from treepack import serialization
from treepack._src.options import Reading
from treepack._src.restore.template import restore_encoded

WALKS = {"assemble", "mark_older", "open", "restore", "restore_encoded", "restore_selected"}


def walks(call: Callable[[], Any]) -> tuple[list[str], Any]:
    """Returns the names of the core's walks in a call, and its result."""
    found: list[str] = []

    def note(_: Any, event: str, function: Any) -> None:
        owner = getattr(function, "__self__", None)
        is_core = getattr(function, "__module__", None) == core.__name__ or owner is core.Catalog
        if event == "c_call" and is_core and function.__name__ in WALKS:
            found.append(function.__name__)

    sys.setprofile(note)
    try:
        result = call()
    finally:
        sys.setprofile(None)
    return found, result


class Pair(NamedTuple):
    first: Any
    second: Any


@treepack.register_dataclass(serialized_name="tests.one_walk.Layer")
@dataclasses.dataclass
class Layer:
    weight: Any
    bias: Any


def new_state() -> dict[str, Any]:
    layers = [Layer(jnp.ones((2, 3)), jnp.zeros(3)), Layer(jnp.ones((3, 1)), jnp.zeros(1))]
    moments = {"w": (jnp.full(4, 2.0), jnp.full(4, 3.0)), "a": Pair(jnp.ones(2), jnp.zeros(1))}
    return {"step": jnp.int32(7), "params": {"z": layers, "b": jnp.arange(3)}, "moments": moments}


def ordered(tree: Any, order: Callable[[Any], Any]) -> Any:
    """Returns a tree whose dicts have their keys in another order."""
    if type(tree) is dict:
        return {key: ordered(tree[key], order) for key in order(tree)}
    if isinstance(tree, Pair):
        return Pair(*(ordered(child, order) for child in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(ordered(child, order) for child in tree)
    return tree


TEMPLATES: dict[str, Callable[[Any], Any]] = {
    "the same": lambda tree: tree,
    "abstract": lambda tree: jax.eval_shape(lambda: tree),
    "sorted": lambda tree: ordered(tree, sorted),
    "reversed": lambda tree: ordered(tree, reversed),
    "NumPy, sorted": lambda tree: jax.tree.map(np.asarray, tree),
    "a part": lambda tree: {"params": tree["params"]},
    "frozen": lambda tree: {**tree, "params": flax.core.freeze(tree["params"])},
}


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("saved", ["as made", "jitted"])
def test_a_whole_load_is_one_walk(tmp_path: Path, name: str, saved: str) -> None:
    tree = new_state() if saved == "as made" else jax.jit(new_state)()
    template = TEMPLATES[name](new_state())
    path = tmp_path / "model.treepack"
    treepack.save(path, tree)
    data = treepack.dumps(tree)
    encoded = serialization.to_bytes(jax.tree.map(np.asarray, tree))
    expected = tree if name != "a part" else {"params": tree["params"]}
    for call in (
        lambda: treepack.load(path, template),
        lambda: treepack.loads(data, template),
        lambda: treepack.loads(encoded, template),
    ):
        found, result = walks(call)
        assert found == ["restore_encoded"]
        assert jax.tree.structure(result) == jax.tree.structure(template)
        same = jax.tree.map(np.array_equal, jax.tree.leaves(result), jax.tree.leaves(expected))
        assert all(same)


@pytest.mark.parametrize("order", [list, sorted, reversed])
def test_the_data_are_read_once(order: Callable[[Any], Any]) -> None:
    tree = {f"layer{at}": {"w": np.full(4, at), "b": np.zeros(1)} for at in range(5000)}
    data = treepack.dumps(tree)
    ranges: list[int] = []

    def read(start: int, size: int) -> bytes:
        ranges.append(size)
        return data[start : start + size]

    content = core.Content.elsewhere(read, len(data), 1)
    template = ordered(tree, order)
    restored = restore_encoded(template, content, Reading.of({}))
    assert list(restored) == list(template)
    assert all(np.array_equal(restored[name]["w"], child["w"]) for name, child in tree.items())
    # Headers are read many at once, the arrays one by one.
    assert sum(size for size in ranges if size > 64) < 1.1 * len(data)


def test_of_equal_keys_the_last_counts() -> None:
    data = b"\x83\xa1a\x01\xa1b\x02\xa1a\x03"
    for template in ({"a": 0, "b": 0}, {"b": 0, "a": 0}):
        assert serialization.from_bytes(template, data) == {"a": 3, "b": 2}


def test_damage_in_leaves_that_the_template_lacks() -> None:
    tree = {"a": np.ones(3), "b": np.zeros(2)}
    data = serialization.to_bytes(tree, align=1)
    assert data.count(b"float64") == 2
    unknown = b"floatx4".join(data.rsplit(b"float64", 1))
    found = treepack.loads(unknown, {"a": np.zeros(3)})
    assert np.array_equal(found["a"], tree["a"])
    with pytest.raises(treepack.DecodeError, match="floatx4"):
        treepack.loads(unknown, {"b": np.zeros(2), "a": np.zeros(3)})
