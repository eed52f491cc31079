"""Small messages need few calls of Python functions, which would take most of their time."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import flax.serialization  # its types need further looks
import flax.struct
import jax
import numpy as np
import pytest

import treepack
from treepack import serialization

ARRAY = np.arange(24, dtype=np.float32)
STEP = {"obs": ARRAY, "action": ARRAY[:6], "reward": 1.5, "done": False, "step": 123_456}
NESTED = {"obs": {"pos": ARRAY, "image": ARRAY}, "info": {"id": 7, "tags": ["a"], "goal": (1, 2.5)}}
TREES = {"5 leaves": STEP, "1 leaf": ARRAY, "nested": NESTED}


def calls(call: Callable[[], Any]) -> list[str]:
    """Returns the names of the functions that `call` calls, once everything is imported."""
    call()
    found: list[str] = []

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            found.append(frame.f_code.co_qualname)

    gc.disable()  # JAX and hypothesis follow it by functions of Python
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
        gc.enable()
    return found[1:]


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize(
    ("most", "verb"),
    [
        (20, lambda tree, data: treepack.dumps(tree)),
        (20, lambda tree, data: treepack.loads(data)),
        (20, lambda tree, data: treepack.loads(data, arrays="numpy")),
        (20, lambda tree, data: treepack.loads(data, tree)),
        (20, lambda tree, data: treepack.loads(memoryview(data))),
        (35, lambda tree, data: treepack.open(data)),
        (10, lambda tree, data: serialization.to_bytes(tree)),
        (10, lambda tree, data: serialization.from_bytes(tree, data)),
        (10, lambda tree, data: serialization.msgpack_restore(data)),
    ],
)
def test_calls_of_a_message(name: str, most: int, verb: Callable[[Any, bytes], Any]) -> None:
    tree = TREES[name]
    data = treepack.dumps(tree)
    found = calls(lambda: verb(tree, data))
    assert len(found) <= most, found


class Transition(NamedTuple):
    obs: Any
    reward: Any


@flax.struct.dataclass
class Struct:
    obs: Any
    reward: Any


VERBS: list[Callable[[Any, bytes], Any]] = [
    lambda tree, data: treepack.dumps(tree),
    lambda tree, data: treepack.loads(data, tree),
    lambda tree, data: serialization.to_bytes(tree),
    lambda tree, data: serialization.from_bytes(tree, data),
]


@pytest.mark.parametrize(
    ("tree", "bounds"),
    [
        ({"obs": ARRAY, "reward": np.float32(1)}, (20, 24, 15, 15)),
        (Transition(ARRAY, 1.5), (36, 40, 30, 24)),
        (Struct(ARRAY, 1.5), (36, 40, 30, 24)),
    ],
)
def test_calls_for_a_type(tree: Any, bounds: tuple[int, ...]) -> None:
    data = treepack.dumps(tree)
    for verb, most in zip(VERBS, bounds, strict=True):
        found = calls(lambda verb=verb: verb(tree, data))  # type: ignore[misc]
        assert len(found) <= most, found


@pytest.mark.parametrize("leaf", [ARRAY, np.float32(1), jax.numpy.ones(3)])
def test_calls_for_each_leaf_of_a_state(leaf: Any) -> None:
    tree = {f"layer{at}": {"kernel": leaf, "bias": leaf} for at in range(50)}
    state = serialization.to_state_dict(tree)
    found = calls(lambda: serialization.to_state_dict(tree))
    assert len(found) <= 5 * 100, found[:40]
    found = calls(lambda: serialization.from_state_dict(tree, state))
    assert len(found) <= 5 * 100, found[:40]


@pytest.mark.parametrize(
    ("most", "verb"),
    [
        (85, lambda path: treepack.save(path, STEP, durable=False)),
        (60, lambda path: treepack.load(path)),
        (60, lambda path: treepack.load(path, STEP)),
        (65, lambda path: treepack.open(path)["obs"]),
        (35, lambda path: serialization.save_to_file(STEP, path, durable=False)),
        (50, lambda path: serialization.load_from_file(STEP, path)),
    ],
)
def test_calls_of_a_small_file(tmp_path: Path, most: int, verb: Callable[[str], Any]) -> None:
    path = f"{tmp_path}/step.treepack"
    treepack.save(path, STEP)
    found = calls(lambda: verb(path))
    assert len(found) <= most, found
