"""Compares checkpoints and trees: `diff`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import treepack

TREE: dict[str, Any] = {
    "a": {"w": np.arange(6.0), "b": np.array([1.0, np.nan])},
    "key": jax.random.key(1),
    "name": "x",
    "n": float("nan"),
}


def test_equal_trees_of_all_sources(tmp_path: Path) -> None:
    treepack.save(tmp_path / "file", TREE)
    treepack.save(tmp_path / "sharded", TREE, sharded=True)
    sources = [TREE, treepack.dumps(TREE), tmp_path / "file", str(tmp_path / "sharded")]
    with treepack.open(tmp_path / "file") as file:
        for one in [*sources, file]:
            for other in [*sources, file]:
                found = treepack.diff(one, other)
                assert found == []
                assert found.leaves == 5
        assert treepack.diff(file["a"], TREE["a"]) == []
        assert file["name"] == "x"  # it stays open


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"a": {"w": np.arange(6.0)}}, ("a/b", "only in the first", "float64[2]")),
        ({"z": 1}, ("z", "only in the second", "int")),
        ({"name": "y"}, ("name", "value", "'x' and 'y'")),
        ({"key": jax.random.key(2)}, ("key", "value", None)),
        ({"n": 1.0}, ("n", "value", "nan and 1.0")),
        (
            {"a": {**TREE["a"], "w": np.zeros((2, 3))}},
            ("a/w", "shape", "float64[6] and float64[2,3]"),
        ),
        (
            {"a": {**TREE["a"], "w": np.arange(6.0, dtype="f4")}},
            ("a/w", "dtype", "float64 and float32"),
        ),
        (
            {"a": {**TREE["a"], "w": np.array([0.0, 1, 2, 3, 4, 6])}},
            ("a/w", "values", "1 element, by 1 at most, relative 0.167"),
        ),
    ],
)
def test_each_difference(change: Any, expected: tuple[str, str, str | None]) -> None:
    [found] = treepack.diff(TREE, TREE | change)
    assert (found.path, found.kind) == expected[:2]
    assert expected[2] in (None, found.text)


def test_tolerances_and_the_repr() -> None:
    one = {f"l{at}": np.full(3, at + 1.0) for at in range(30)}
    other = {name: array + 1e-3 for name, array in one.items()}
    found = treepack.diff(one, other)
    assert len(found) == found.leaves == 30
    assert treepack.diff(one, other, atol=2e-3) == treepack.diff(one, other, rtol=2e-3) == []
    lines = repr(found).splitlines()
    assert lines[0] == "30 of 30 leaves differ"
    assert lines[-1] == "  and 12 more"
    assert len(lines) == 20
