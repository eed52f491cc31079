"""Files of every form, and of older versions, are read as long as there is a treepack."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import treepack
from golden import forms, make_landed
from golden.make import tree
from trees import assert_equal, assert_same

FOLDER = Path(forms.__file__).parent
FILES = sorted(path.name for path in forms.FOLDER.iterdir())

STREAM = "stream.easylm"  # which has a test of its own
FILES.remove(STREAM)


BUFFERS = (bytearray, memoryview)


def test_all_are_there() -> None:
    assert set(forms.EXPECTED) <= {*FILES, STREAM}


@pytest.mark.parametrize("name", FILES)
def test_every_value_is_read(name: str) -> None:
    path = forms.FOLDER / name
    expected = forms.EXPECTED[name]()
    if name.startswith("holes"):
        with pytest.raises(treepack.PlaceholderError, match="static"):
            treepack.load(path)
    elif name.startswith("unregistered"):
        with pytest.raises(treepack.UnregisteredTypeError, match=r"golden\.Unknown"):
            treepack.load(path)
    elif name != "state.msgpack":
        assert_equal(treepack.load(path), expected)
        assert_equal(treepack.load(path, copy=True, mmap=False), expected)
        shapes = [np.shape(leaf) for leaf in jax.tree.leaves(expected)]
        assert [np.shape(leaf) for leaf in jax.tree.leaves(treepack.abstract(path))] == shapes
    # A template brings back what the state has: byte strings.
    state = jax.tree.map(lambda it: bytes(it) if type(it) in BUFFERS else it, expected)
    assert_equal(treepack.load(path, expected), state)
    assert treepack.verify(path).ok
    with treepack.open(path) as file:
        assert_equal(file.load(expected), state)


@pytest.mark.parametrize("name", ["metadata.treepack", "iterator.treepack", "directory"])
def test_metadata(name: str) -> None:
    expected = {"step": 7, "when": datetime.date(2024, 2, 29), "name": "golden"}
    assert treepack.read_metadata(forms.FOLDER / name) == expected


def test_streams_are_read_leaf_by_leaf() -> None:
    found = dict(treepack.read_stream(forms.FOLDER / STREAM))
    for path, leaf in forms.leaves():
        assert_same(found[path] if np.ndim(leaf) == 0 else np.asarray(found[path]), leaf)


@pytest.mark.campaign
def test_the_same_bytes_are_written_again(tmp_path: Path) -> None:
    """Who changes what is written keeps these files, and adds others. zlib may change, too."""
    # In a process of its own: other tests register types of libraries under other names.
    write = "import sys, pathlib, golden.forms; golden.forms.write(pathlib.Path(sys.argv[1]))"
    tests = Path(__file__).parent.parent
    path = os.pathsep.join([str(tests), str(tests / "support"), os.environ.get("PYTHONPATH", "")])
    subprocess.run(
        [sys.executable, "-c", write, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path},
        check=True,
    )
    for path in tmp_path.iterdir():
        if path.suffix != ".gz" and path.is_file():
            assert path.read_bytes() == (forms.FOLDER / path.name).read_bytes(), path.name


LANDED_TREES = {"directory": make_landed.sharded, "typed": make_landed.typed}
LANDED = sorted((FOLDER / "landed").iterdir())


@pytest.mark.parametrize("path", LANDED, ids=lambda path: path.name)
def test_files_of_older_versions(path: Path) -> None:
    """The format has been version 1 since 2026-11-22; of files before, the state is read."""
    date, form = path.name.split(".")[0].rsplit("-", 1)
    expected = LANDED_TREES.get(form, tree)()
    if form == "state" or date == "2026-11-21":
        state = jax.tree.map(
            lambda it: np.asarray(it) if isinstance(it, jax.Array) else it, expected
        )
        assert_equal(treepack.serialization.load_from_file(expected, path), state)
        return
    assert_equal(treepack.load(path), expected)
    assert_equal(treepack.load(path, expected), expected)
    assert treepack.verify(path).ok
    with treepack.open(path) as file:
        assert_equal(file.load(expected), expected)
    if form == "metadata":
        assert treepack.read_metadata(path) == {"step": 7}
