"""Files of older versions and other libraries are read as long as there is a treepack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flax.serialization
import jax
import numpy as np
import pytest

import treepack
from golden.make import tree
from treepack import serialization
from trees import assert_same

FOLDER = Path(__file__).parents[1] / "golden"
FILES = sorted(path for path in FOLDER.iterdir() if path.suffix in (".msgpack", ".treepack", ".gz"))


def test_all_are_there() -> None:
    assert len(FILES) == 5


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_golden_files(path: Path, tmp_path: Path) -> None:
    expected: Any = tree()
    state = flax.serialization.to_state_dict(expected)
    assert_same(serialization.load_from_file(None, path), state)
    assert_same(serialization.load_from_file(expected, path), expected)
    with treepack.open(path) as file:
        assert_same(file.load(expected), expected)
        kernel = file["params/dense/kernel"]
        np.testing.assert_array_equal(kernel[1:, 2], expected["params"]["dense"]["kernel"][1:, 2])
        np.testing.assert_array_equal(np.asarray(file["params/large"]), state["params"]["large"])
        assert file["complex"] == 1 + 2j
        assert file["step"] == np.int32(7)
    assert treepack.verify(path).ok
    if path.suffix != ".msgpack":
        assert_same(treepack.load(path), expected)
        assert treepack.read_metadata(path) == {"made": "by version 1 of the format"}
        assert not treepack.verify(path).unchecked
    if path.suffix == ".treepack":
        treepack.save(tmp_path / "again", expected, metadata=treepack.read_metadata(path))
        assert (tmp_path / "again").read_bytes() == path.read_bytes()
    if path.suffix != ".gz":
        assert_same(
            flax.serialization.msgpack_restore(path.read_bytes())["params"], state["params"]
        )
    assert jax.tree.structure(treepack.load(path, expected)) == jax.tree.structure(expected)
