"""Compares checkpoints and trees: `diff`."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import treepack
from trees import altered

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
        (
            {"key": jax.random.key(2)},
            ("key", "value", "key<threefry2x32> [0, 1] and key<threefry2x32> [0, 2]"),
        ),
        ({"name": np.int32(3) * np.ones(2, "i4")}, ("name", "value", "str 'x' and int32[2]")),
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
def test_each_difference(change: Any, expected: tuple[str, str, str]) -> None:
    [found] = treepack.diff(TREE, TREE | change)
    assert (found.path, found.kind) == expected[:2]
    assert expected[2] == found.text


@treepack.register_dataclass(serialized_name="test.diff.Attention")
@dataclasses.dataclass
class Attention:
    """A node with static data."""

    w: Any
    heads: Any = dataclasses.field(default=2, metadata={"static": True})
    act: Any = dataclasses.field(default=None, metadata={"static": True})


@jax.tree_util.register_pytree_with_keys_class
class Quantized:
    """A node whose static data have no names, and are never compared by their own code."""

    def __init__(self, w: Any, static: Any):
        self.w, self.static = w, static

    def tree_flatten_with_keys(self) -> Any:
        return [(jax.tree_util.GetAttrKey("w"), self.w)], self.static

    tree_unflatten = classmethod(lambda cls, static, children: cls(*children, static))


def test_static_data(tmp_path: Path) -> None:
    def tree(heads: Any, act: Any = jax.nn.relu, bits: Any = 8) -> Any:
        nodes = [
            Attention(np.ones(2), 1),
            Attention(np.ones(2), heads, act),
            Attention(None, heads),
        ]
        return {"a": nodes, "q": Quantized(np.ones(2), {"bits": bits, "nan": float("nan")})}

    one, other = tree(4), tree(7, jax.nn.gelu, "x" * 99)
    expected = [
        ("a/1/heads", "static", "4 and 7"),
        ("a/1/act", "static", "'relu' and 'gelu'"),
        ("a/2/heads", "static", "4 and 7"),
        ("q", "static", f"8 and '{'x' * 39}..."),
    ]
    treepack.save(tmp_path / "one", one)
    treepack.save(tmp_path / "sharded", one, sharded=True)
    for source in (one, tmp_path / "one", tmp_path / "sharded"):
        assert treepack.diff(source, tree(4)) == []
        found = treepack.diff(source, other)
        assert found == expected
        assert repr(found).splitlines()[0] == "0 of 4 leaves differ, and 4 static values"
    with treepack.open(tmp_path / "one") as file:
        assert treepack.diff(file["a/1"], other["a"][1]) == [
            (path[4:], *rest) for path, *rest in expected[:2]
        ]
        assert not treepack.diff(file["a"], file["a"])
    assert not treepack.diff(one, treepack.serialization.to_bytes(other))  # has no static data
    assert not treepack.diff(tree(4, lambda: 1), tree(4, lambda: 2))  # code is not compared
    damaged = altered(treepack.dumps(one), b"\xa3int\x04", b"\xa3int\xc1")
    with pytest.raises(treepack.DecodeError, match=r"damaged value.*at a/1"):
        treepack.diff(damaged, other)
    with treepack.open(damaged, salvage=True) as file:
        assert not treepack.diff(file, other)
    assert [it.path for it in treepack.diff(Attention(1, "x"), Attention(1, None))] == ["heads"]


@pytest.mark.parametrize(
    ("one", "other", "path", "text"),
    [
        ([1, 2], (1, 2), "a", "list and tuple"),
        ([], {}, "a", "list and dict"),
        ({1: 2}, {"1": 2}, "a", "dict with keys other than strings and dict"),
        ({"w": 1}, Attention(1), "a", "dict and test.diff.Attention"),
        ({"b": {"w": 1}}, {"b": Attention(1)}, "a/b", "dict and test.diff.Attention"),
        ([Attention(1), (1,)], [Attention(1), [1]], "a/1", "tuple and list"),
    ],
)
def test_types_of_containers(one: Any, other: Any, path: str, text: str) -> None:
    trees, turned = ({"a": one}, {"a": other}), " and ".join(text.split(" and ")[::-1])
    assert treepack.diff(*trees) == [(path, "static", text)]
    assert treepack.diff(*trees[::-1]) == [(path, "static", turned)]
    data = treepack.serialization.to_bytes(trees[0])  # it has no types
    assert not treepack.diff(data, trees[1])


def test_formats_without_types(tmp_path: Path) -> None:
    tree = {"a": [np.ones(2)], "b": Attention(np.ones(2))}
    treepack.save(tmp_path / "model.safetensors", tree)
    treepack.save(tmp_path / "parts", tree, format="safetensors")
    np.savez(tmp_path / "model.npz", **{"a/0": np.ones(2), "b/w": np.ones(2)})
    for name in ("model.safetensors", "parts", "model.npz"):
        assert not treepack.diff(tmp_path / name, tree)


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


def test_tolerances_are_those_of_each_element() -> None:
    """Small elements by `atol`, large ones by `rtol`, as in NumPy."""
    one = {"w": np.array([0.0, 1.0, 1e6]), "rate": 0.5, "n": 10**400, "count": 1000}
    other = {"w": one["w"] + [1e-9, 1e-9, 0.1], "rate": 0.5 + 1e-9, "n": 10**400, "count": 1001}
    assert [it.path for it in treepack.diff(one, other)] == ["w", "rate", "count"]
    assert [it.path for it in treepack.diff(one, other, rtol=1e-6, atol=1e-8)] == ["count"]
    assert not treepack.diff(one, other, rtol=1e-2, atol=1e-8)
    found = treepack.diff(one, {**other, "n": 10**400 + 1}, atol=1e-8, rtol=1e-8)
    assert [it.path for it in found] == ["w", "n", "count"]
    assert found[0].text == "1 element, by 0.1 at most, relative 1e-07"
    with_infinity = {"w": np.array([np.inf, 1.0]), "x": float("inf")}
    without = {"w": np.array([5.0, np.nan]), "x": 5.0}
    found = treepack.diff(with_infinity, without, rtol=1.0, atol=1.0)
    assert [it.text[:9] for it in found] == ["2 element", "inf and 5"]


@pytest.mark.parametrize(
    ("dtype", "one", "other", "text"),
    [
        ("int64", 2**60, 2**60 + 1, "by 1 at most"),
        ("uint64", 2**63, 2**63 + 1, "by 1 at most"),
        ("int64", -(2**63), 2**63 - 1, "by 1.84e.19 at most"),
        ("datetime64[ns]", 2**60, 2**60 + 1, "by 1 at most"),
        ("datetime64[s]", "NaT", 7, "NaN or infinite"),
        ("timedelta64[s]", 2**60, 2**60 + 1, "by 1 at most"),
        ("float64", 1e308, -1e308, r"by 1.8e\+308 at most"),
        ("float64", np.inf, -np.inf, "NaN or infinite"),
    ],
)
def test_numbers_are_compared_exactly(dtype: str, one: Any, other: Any, text: str):
    left, right = np.array([one], dtype), np.array([other], dtype)
    (found,) = treepack.diff({"a": left}, {"a": right})
    assert found.kind == "values"
    assert re.search(f"^1 element, .*{text}", found.text), found
    assert not treepack.diff({"a": left}, {"a": left.copy()})


def test_integers_of_two_dtypes_are_compared_exactly():
    (found,) = treepack.diff({"a": np.array([2**60])}, {"a": np.array([2**60 + 1], np.uint64)})
    assert found.text.startswith("int64 and uint64, 1 element, by 1 at most")


def test_the_size_of_both_is_bounded(tmp_path: Path) -> None:
    treepack.save(tmp_path / "large.gz", {"w": np.zeros(1 << 20)})
    tree = {"w": np.zeros(1 << 20)}
    for pair in ((tmp_path / "large.gz", tree), (tree, tmp_path / "large.gz")):
        with pytest.raises(treepack.TreepackError, match="max_size"):
            treepack.diff(*pair, max_size=1 << 20)
        assert not treepack.diff(*pair, max_size=9 << 20)


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_a_flat_dict_beside_a_file_of_names(tmp_path: Path, suffix: str) -> None:
    flat = {"a.b.w": np.ones(2), "a.c": np.zeros(3), "a.c.d": np.ones(1)}
    path = tmp_path / f"model{suffix}"
    if suffix == ".npz":
        np.savez(path, **flat)
    else:
        treepack.save(path, flat)
    assert not treepack.diff(path, flat)
    assert not treepack.diff(flat, path)
    changed = {**flat, "a.b.w": np.zeros(2), "e.f": np.ones(1)}
    found = [(each.path, each.kind) for each in treepack.diff(path, changed)]
    assert found == [("a/b/w", "values"), ("e.f", "only in the second")]
    assert treepack.diff(changed, path, stats=True).modules["a/b"].largest == 1
