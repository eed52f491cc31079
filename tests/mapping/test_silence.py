"""Loads through a mapping say what they leave out, and what the file alone cannot tell."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import treepack
from commands import call

QUERY = {"q": ("q.weight", "(h d) m -> m h d")}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    tensors = {"q.weight": np.ones((12, 8), np.float32), "norm": np.ones(8, np.float32)}
    safetensors.numpy.save_file(tensors, tmp_path / "hf.safetensors")
    return tmp_path / "hf.safetensors"


@pytest.mark.parametrize("shape", [(8, 5, 3), (8, 12), (9, 4, 3)], ids=["sizes", "rank", "m"])
@pytest.mark.parametrize("abstract", [False, True])
def test_a_template_of_another_shape(file: Path, shape: Any, abstract: bool) -> None:
    query = jax.ShapeDtypeStruct(shape, jnp.float32) if abstract else np.zeros(shape, np.float32)
    template = {"q": query, "norm": np.zeros(8, np.float32)}
    with pytest.raises(treepack.TreepackError, match=r"\n  q: .*, in the template: .*, d=32\)"):
        treepack.load(file, template, mapping=QUERY)
    rules = treepack.Mapping(QUERY, d=3)  # the cure
    with pytest.raises(treepack.MismatchError, match=r"found float32\[8,4,3\]\n"):
        treepack.load(file, template, mapping=rules)
    assert treepack.load(file, template, mapping=rules, strict=False)["q"].shape == (8, 4, 3)
    if abstract:
        return
    for mapping in (QUERY, rules):
        kept, report = treepack.load(
            file, template, mapping=mapping, mismatched="target", return_report=True
        )
        assert [it.kind for it in treepack.diff(file, kept, mapping=rules)] == ["shape"]
        assert kept["q"] is query
        assert (kept["norm"] == 1).all()
        assert report.loaded == ["norm"]
        assert report.kept == ["q"]


def test_the_cure_of_joined_axes(file: Path) -> None:
    template = {"q": np.zeros((8, 12), np.float32), "norm": np.zeros(8, np.float32)}
    rules = treepack.Mapping(QUERY, d=3)
    with pytest.raises(treepack.MismatchError, match=r"the rule of q gives: 'a b c -> a \(b c\)'"):
        treepack.load(file, template, mapping=rules)
    joined = treepack.Mapping({"q": ("q.weight", "(h d) m -> m (h d)")}, d=3)
    assert treepack.load(file, template, mapping=joined)["q"].shape == (8, 12)


def test_a_mismatch_without_values_to_keep(file: Path) -> None:
    template = {"q": jax.ShapeDtypeStruct((8, 5, 3), jnp.float32), "norm": np.zeros(8, np.float32)}
    with pytest.raises(treepack.MismatchError, match="no values to keep"):
        treepack.load(file, template, mapping=QUERY, mismatched="target")


def test_unknown_sizes_name_the_calls_that_take_them(file: Path) -> None:
    with pytest.raises(
        treepack.TreepackError,
        match=r"as in treepack\.Mapping\(rules, \w=32\), "
        r"or a template to treepack\.load",
    ):
        treepack.open(file, mapping=QUERY)
    with treepack.open(file, mapping=treepack.Mapping(QUERY, h=4)) as tree:
        assert tree["q"].shape == (8, 4, 3)
    with pytest.raises(treepack.TreepackError, match=r"pass one to treepack\.load, or a dict"):
        treepack.open(file, mapping=lambda path: path)


def test_structs_that_no_rule_makes(file: Path) -> None:
    template = jax.eval_shape(lambda: {"norm": jnp.ones(8), "head": jnp.ones(3)})
    rules = treepack.Mapping({"norm": "norm"}, rest="skip")
    with pytest.warns(UserWarning, match='head is still a jax.ShapeDtypeStruct.*rest="skip"'):
        loaded = treepack.load(file, template, mapping=rules)
    assert loaded["head"] is template["head"]
    with warnings.catch_warnings(action="error"):
        treepack.load(file, template, mapping=rules, select="norm")
        treepack.load(file, {**template, "head": np.zeros(3)}, mapping=rules)


def test_code_is_missed(tmp_path: Path) -> None:
    tree = {"f": len, "none": None, "empty": {}, "w": np.ones(2), "part": {"n": 1}}
    treepack.save(tmp_path / "a", tree)
    rules = {"v": "w"}
    with pytest.raises(treepack.PlaceholderError, match=r"at f: .*exclude=\['f'\]"):
        treepack.load(tmp_path / "a", mapping=rules)
    loaded = treepack.load(tmp_path / "a", mapping=rules, exclude=["f"])
    assert loaded == {"none": None, "empty": {}, "v": loaded["v"], "part": {"n": 1}}
    template = {"f": len, "none": None, "empty": {}, "v": np.zeros(2), "part": {"n": 0}}
    assert treepack.load(tmp_path / "a", template, mapping=rules)["f"] is len
    with treepack.open(tmp_path / "a", mapping=rules) as file:
        assert file["v"].shape == (2,)
        with pytest.raises(treepack.PlaceholderError, match="at f: "):
            file.load()
        with pytest.raises(treepack.PlaceholderError, match="at f: "):
            file.abstract()
        assert file["part"].load() == file["part"].abstract() == {"n": 1}


def test_the_cure_of_an_overflow_in_a_rule(tmp_path: Path) -> None:
    treepack.save(tmp_path / "a", {"w": np.array([[1e6, 1]], np.float32)})
    rules = {"v": ("w", "a b -> b a", {"dtype": "float16"})}
    for options in ({}, {"cast": "overflow", "dtype": "float16"}):
        with pytest.raises(treepack.TreepackError, match=r"leave dtype= out of the rule: load\(d"):
            treepack.load(tmp_path / "a", mapping=rules, **options)
    moved = {"v": ("w", "a b -> b a")}
    cast = treepack.load(tmp_path / "a", mapping=moved, dtype="float16", cast="overflow")["v"]
    assert type(cast) is np.ndarray
    assert cast.tolist() == [[np.inf], [1]]
    template = {"v": np.zeros((2, 1), np.float16)}
    cast = treepack.load(tmp_path / "a", template, mapping=moved, cast="overflow")["v"]
    assert cast.tolist() == [[np.inf], [1]]


@pytest.mark.parametrize("form", ["treepack", "gzip", "npz", "safetensors", "directory", "mapped"])
def test_offsets_are_those_in_the_file(tmp_path: Path, form: str) -> None:
    tree = {"a": np.arange(700, dtype=np.float32), "b": np.full(3, 7.5)}
    names = {"npz": "a.npz", "safetensors": "a.safetensors"}
    path = tmp_path / names.get(form, "a")
    if form == "npz":
        np.savez(path, **tree)
    else:
        treepack.save(path, tree, compress=form == "gzip", sharded=form == "directory")
    given = ["--map", "c=a"] if form == "mapped" else []
    found = json.loads(call("ls", str(path), "--json", "--flat", *given))
    offsets = {leaf["path"]: leaf["offset"] for leaf in found["leaves"]}
    if form in ("treepack", "gzip"):
        data = treepack.loads(path.read_bytes()) and path.read_bytes()
        if form == "gzip":
            import gzip

            data = gzip.decompress(data)
        for name, array in tree.items():
            start = data.index(array.tobytes())
            assert offsets[name] <= start <= offsets[name] + 128
    else:
        assert set(offsets.values()) == {None}
