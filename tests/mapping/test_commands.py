"""`--map` of `treepack ls` and `convert`, and `mapping=` of `diff`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import treepack
from commands import call, refused

RULES = """
import treepack

model = treepack.Mapping({"kernel": ("layers.{l}.w", "(h d) m -> l m h d")}, h=2)
back = model.inverse()
rules = {"other": ("layers.{l}.w", "a b -> l a b")}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(RULES)
    layers = {f"layers.{at}.w": np.full((4, 3), at, np.float32) for at in range(2)}
    safetensors.numpy.save_file(layers, "hf.safetensors")
    return tmp_path


def test_files_are_listed_and_converted_in_another_layout(folder: Path) -> None:
    assert "kernel  float32[2,3,2,2]" in call("ls", "hf.safetensors", "--map", "model.py:model")
    assert "other  float32[2,4,3]" in call("ls", "hf.safetensors", "--map", "model.py:rules")
    call("convert", "hf.safetensors", "tree.treepack", "--map", "model.py:model")
    assert treepack.load("tree.treepack")["kernel"].shape == (2, 3, 2, 2)
    call("convert", "tree.treepack", "again.safetensors", "--map", "model.py:back")
    assert Path("again.safetensors").read_bytes() == Path("hf.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("model.py", "--map takes a Python file and a name in it, as llama.py:llama"),
        ("other.py:model", "--map: there is no file 'other.py'"),
        ("model.py:models", "--map: model.py has no name 'models': is it 'model'?"),
        ("hf.safetensors:model", "--map: 'hf.safetensors' is not a Python file"),
        ("model.py:treepack", "--map takes a treepack.Mapping or a dict of rules; treepack of"),
    ],
)
def test_a_mistake_in_the_option_is_told(folder: Path, given: str, error: str) -> None:
    assert error in refused("ls", "hf.safetensors", "--map", given)


def test_a_file_is_compared_with_a_tree_of_another_layout(folder: Path) -> None:
    rules = {"kernel": ("layers.{l}.w", "(h d) m -> l m h d"), "bias": ("layers.{l}.b", "a -> l a")}
    tree = {"kernel": np.repeat([0.0, 1.0], 12).reshape(2, 3, 2, 2).astype(np.float32)}
    assert not treepack.diff("hf.safetensors", tree, mapping=rules)
    tree["kernel"][1, 2, 0, 0] = 7
    differences = treepack.diff("hf.safetensors", {**tree, "bias": np.zeros(2)}, mapping=rules)
    assert [each.path for each in differences] == ["kernel", "bias"]
    treepack.save("tree", tree)
    with treepack.open("tree") as opened:
        [difference] = treepack.diff("hf.safetensors", opened, mapping=rules)
    assert difference.text.startswith("1 element, by 6 at most")
