"""The prompt and notebooks: what names complete, what values look like."""

from __future__ import annotations

import rlcompleter
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treepack
from treepack import checkpoints, errors, orbax, orbax_v1, serialization

MANY = {f"a{number}": np.float32(number) for number in range(20_000)}


@pytest.mark.parametrize("module", [treepack, checkpoints, errors, orbax, orbax_v1, serialization])
def test_public_names_alone_complete(module: types.ModuleType) -> None:
    assert sorted(module.__all__) == dir(module)
    assert all(hasattr(module, name) for name in dir(module))


def completed(value: Any) -> set[str]:
    """Returns the names that Python's prompt completes behind a dot."""
    completer = rlcompleter.Completer({"value": value})
    names = {it.removeprefix("value.").rstrip("()") for it in completer.attr_matches("value.")}
    return {name for name in names if name[0] != "_"}


OF_ARRAYS = {
    *("T", "astype", "dtype", "max", "mean", "min", "nbytes", "ndim", "numpy", "path", "shape"),
    *("size", "statistics", "std", "sum"),
}


def test_no_internal_names_of_arrays_complete(folder: Path) -> None:
    tree = {"a": {"0": np.ones(2), "1": np.ones(2)}, "w": np.ones(2)}
    treepack.save("file", tree)
    treepack.save("directory", tree, sharded=True)
    treepack.save("a.safetensors", tree)
    np.savez("a.npz", w=np.ones(2))
    for path in ("file", "directory", "a.safetensors", "a.npz"):
        with treepack.open(path) as file:
            array = file["w"]
            assert {*dir(array)} == completed(array) == OF_ARRAYS


def test_no_internal_names_of_saves_complete(folder: Path) -> None:
    saving = treepack.save("a", MANY, background=True)
    names = {*("path", "progress", "done", "result", "exception", "running")}
    names |= {*("add_done_callback", "cancel", "cancelled")}
    assert {*dir(saving)} == names
    of_futures = {"set_exception", "set_result", "set_running_or_notify_cancel"}
    assert completed(saving) == names | of_futures
    saving.result()


def test_arrays_of_files_compute(tmp_path: Path) -> None:
    array = np.arange(12.0).reshape(4, 3)
    with treepack.open(treepack.dumps({"w": array})) as file:
        lazy = file["w"]
        for name in ("max", "mean", "min", "std", "sum"):
            assert getattr(lazy, name)() == getattr(array, name)()
            for options in ({"axis": 0}, {"axis": (0, 1), "keepdims": True}):
                expected = getattr(array, name)(**options)
                np.testing.assert_array_equal(getattr(lazy, name)(**options), expected)
        np.testing.assert_array_equal(lazy.numpy(), array)
        assert type(lazy.numpy()) is np.ndarray


def test_a_file_knows_its_path_and_size(tmp_path: Path) -> None:
    tree = {"a": (np.ones((2, 3)), 7), "b": {"c": np.ones(4, np.int8)}}
    path = tmp_path / "model"
    treepack.save(path, tree)
    with treepack.open(path) as file:
        assert (file.path, file.num_params, file.nbytes) == (str(path), 10, 53)
        assert file["b"].num_params == 4
        loaded = file.to_dict()
    assert type(loaded["a"]) is list
    np.testing.assert_array_equal(loaded["a"][0], tree["a"][0])
    assert treepack.open(treepack.dumps(tree)).path is None


def lines(value: Any) -> int:
    """Returns the lines of a repr in a terminal of 120 columns."""
    return sum(1 + len(line) // 120 for line in repr(value).splitlines())


@pytest.mark.parametrize(
    "begin", ["encoder.layers.attention.query.kernel.and.more." * 2, "k" * 3000]
)
def test_reprs_of_long_keys_have_at_most_twenty_lines(begin: str) -> None:
    tree = {f"{begin}{number}": np.float32(number) for number in range(30)}
    data = treepack.dumps(tree)
    found, file = treepack.verify(data), treepack.open(data)
    report = treepack.Report(*[[*tree]] * 6)
    other = {key: value + 1 for key, value in tree.items()}
    for value in (file, file.keys(), found, found.leaves, report, treepack.diff(tree, other)):
        assert lines(value) <= 20, value
        assert "29" not in repr(value)
        assert ".more.0" in repr(value) or "kkk0" in repr(value)
        assert "more" in repr(value).split(begin[:10])[-1]


def test_reprs_have_at_most_twenty_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    treepack.save("many", MANY)
    file = treepack.open("many")
    found = treepack.verify("many")
    _, report = treepack.load("many", MANY, return_report=True)
    for value in (file, file.keys(), found, found.leaves, report):
        assert lines(value) <= 20, value
    assert "and 19997 more" in repr(report)
    assert "'a0': 'ok', " in repr(found)
    few = treepack.open(treepack.dumps({"a": 1, "b": {"c": 2}}))
    assert repr(few.keys()) == "KeysView(['a', 'b'])"
    assert repr(treepack.verify(treepack.dumps({"a": 1})).leaves) == "{'a': 'unchecked'}"
