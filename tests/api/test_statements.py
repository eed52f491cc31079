"""Calls that were accepted in silence, though they do something else than they seem to."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import treepack
from commands import call, refused

TREE = {"w": np.ones(3), "b": {"c": 1}}


@pytest.mark.parametrize(
    "options",
    [
        {"select": lambda path: False},
        {"exclude": "**"},
        {"select": "w", "exclude": "w"},
        {"exclude": ["w", "b"]},
    ],
    ids=["predicate", "all", "both", "each"],
)
def test_a_selection_of_nothing(tmp_path: Path, options: Any) -> None:
    treepack.save(tmp_path / "a", TREE)
    with pytest.warns(UserWarning, match="leave out every leaf"):
        assert treepack.load(tmp_path / "a", **options) == {}
    treepack.save(tmp_path / "empty", {})
    with warnings.catch_warnings(action="error"):
        assert treepack.load(tmp_path / "empty") == {}
        assert list(treepack.load(tmp_path / "a", select=lambda path: path == "w")) == ["w"]


def test_one_file_of_a_sharded_checkpoint(tmp_path: Path) -> None:
    treepack.save(tmp_path / "saved", {"w": jnp.ones(1000)}, sharded=True)
    [shards] = (tmp_path / "saved").glob("*-*.treepack")
    with pytest.warns(UserWarning, match="one file of a sharded checkpoint.*pass its directory"):
        treepack.load(shards)
    with warnings.catch_warnings(action="error"):
        treepack.load(tmp_path / "saved")


def test_a_variable_in_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TREEPACK_RUNS", str(tmp_path))
    with pytest.warns(UserWarning, match=r"os\.path\.expandvars"):
        treepack.save("$TREEPACK_RUNS/a", TREE)
    with warnings.catch_warnings(action="error"):
        assert treepack.load("$TREEPACK_RUNS/a")["b"] == {"c": 1}  # it is its name
        treepack.save("$OTHER/a", TREE)  # no variable
    with pytest.warns(UserWarning, match=r"expandvars"), pytest.raises(FileNotFoundError):
        treepack.load("$TREEPACK_RUNS/b")


@pytest.mark.parametrize("path", ["a.treepack.gz", "a.gz"])
def test_numbers_are_not_gzip(tmp_path: Path, path: str) -> None:
    treepack.save(tmp_path / "whole", TREE)
    with treepack.open(tmp_path / "whole") as file:
        for tree in (TREE, file):
            with pytest.raises(ValueError, match=r"choose a name without \.gz"):
                treepack.save(tmp_path / path, tree, compress="numbers")
    assert not (tmp_path / path).exists()


def test_convert_takes_a_base_for_patches_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    treepack.save("whole", TREE)
    treepack.save("base", TREE)
    assert "this file is whole" in refused("convert", "whole", "out", "--base", "base")
    assert not Path("out").exists()
    treepack.save("patch", {**TREE, "b": {"c": 2}}, base="base")
    call("convert", "patch", "out", "--base", "base")
    assert treepack.load("out")["b"] == {"c": 2}


def test_values_of_static_without_a_place(tmp_path: Path) -> None:
    def half(value: float) -> float:
        return value / 2

    tree = {"model": {"f": half, "w": np.ones(2)}, "step": 3}
    treepack.save(tmp_path / "a", tree)
    data = treepack.dumps(tree)
    given = {"model/f": half}
    for static in (given, tree, {**given, "step": 5}, {"model": {"f": half}}):
        with warnings.catch_warnings(action="error"):
            assert treepack.load(tmp_path / "a", static=static)["model"]["f"] is half
    with treepack.open(tmp_path / "a") as file:
        for load in (
            lambda static: treepack.load(tmp_path / "a", static=static),
            lambda static: treepack.load(tmp_path / "a", static=static, exclude=None),
            lambda static: treepack.loads(data, static=static),
            lambda static: treepack.abstract(data, static=static),
            lambda static: file.load(static=static),
        ):
            with pytest.warns(UserWarning, match="static= has values for model/g, tx, where"):
                load({**given, "model/g": half, "tx": 1})
        with warnings.catch_warnings(action="error"):  # a program may pass all for each part
            file.load(select="step", static=given)


@pytest.mark.parametrize("name", ["a", "a.npz", "directory"])
@pytest.mark.parametrize("value", [1e300, -1e300j])
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # of jax
def test_complex_numbers_that_overflow_in_jax(tmp_path: Path, name: str, value: complex) -> None:
    def save(values: list[complex]) -> None:
        tree = {"w": np.array(values, complex)}
        if name == "a.npz":
            np.savez(tmp_path / name, **tree)
        else:
            treepack.save(tmp_path / name, tree, sharded=name == "directory")

    save([value, 1])
    template: Any = {"w": jnp.zeros(2, jnp.complex64)}
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    for options in ({}, {"sharding": device}, {"mapping": {"w": "w"}}):
        for target in (template, jax.eval_shape(lambda: template)):
            with pytest.raises(
                treepack.TreepackError, match=r"overflow complex64 at w \(1\): .*'ov"
            ):
                treepack.load(tmp_path / name, target, **options)
    assert np.isinf(treepack.load(tmp_path / name, template, cast="overflow")["w"][0])
    assert treepack.load(tmp_path / name, {"w": np.zeros(2, complex)})["w"][0] == value
    save([complex("inf"), complex("nan")])
    assert np.isinf(treepack.load(tmp_path / name, template)["w"][0])


def test_a_digest_equals_its_digits() -> None:
    digest = treepack.digest({"w": np.arange(3)})
    assert digest == str(digest)
    assert hash(digest) == hash(str(digest))
    assert digest == treepack.digest({"w": np.arange(3)})
    assert "0" * 32 != digest != 3


def test_check_leaves_out_tensors_without_a_rule_with_rest_skip() -> None:
    file = treepack.dumps({"norm": np.ones(2), "head": np.ones(3), "same": np.ones(1)})
    target = {"scale": np.ones(2)}
    rules = {"scale": "norm"}
    treepack.Mapping(rules, rest="skip").check(target, file)
    with pytest.raises(treepack.TreepackError, match="head: no rule takes it"):
        treepack.Mapping(rules).check(target, file)
    with pytest.raises(treepack.TreepackError, match=r"the target has \[3\], the file \[2\]"):
        treepack.Mapping(rules, rest="skip").check({"scale": np.ones(3)}, file)


@pytest.mark.parametrize("name", ["a", "a.safetensors", "directory"])
@pytest.mark.parametrize("abstract", [False, True])
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # of jax
def test_floats_of_64_bits_that_overflow_in_jax(tmp_path: Path, name: str, abstract: bool) -> None:
    treepack.save(tmp_path / name, {"w": np.array([1e300, 1])}, sharded=name == "directory")
    template: Any = {"w": jnp.zeros(2)}
    template = jax.eval_shape(lambda: template) if abstract else template
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    for options in ({}, {"sharding": device}, {"cast": True}, {"mapping": {"w": ("w", "a -> a")}}):
        with pytest.raises(
            treepack.TreepackError, match=r"overflow float32 at w \(1\): .*cast='over"
        ):
            treepack.load(tmp_path / name, template, **options)
    assert np.isinf(treepack.load(tmp_path / name, template, cast="overflow")["w"][0])
    assert treepack.load(tmp_path / name, {"w": np.zeros(2)})["w"][0] == 1e300
    treepack.save(tmp_path / name, {"w": np.array([np.inf, np.nan])}, sharded=name == "directory")
    assert np.isinf(treepack.load(tmp_path / name, template)["w"][0])


def test_options_of_one_call_of_loads_do_not_hold_for_others() -> None:
    data = treepack.dumps({"w": np.ones(3), "step": 1})
    for _ in range(2):
        assert treepack.loads(data, copy=True)["w"].flags.writeable
        with pytest.raises(ValueError, match="copy must be True, False or None, got 1"):
            treepack.loads(data, copy=1)  # type: ignore[arg-type]  # equals `True`
        with pytest.raises(ValueError, match="arrays must be"):
            treepack.loads(data, arrays=["numpy"])  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="threads must be an integer"):
            treepack.loads(data, threads="all")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="'array': is it 'arrays'"):
            treepack.loads(data, array="numpy")  # type: ignore[call-arg]
        assert not treepack.loads(data)["w"].flags.writeable
        patch = treepack.dumps({"w": np.ones(3), "step": 2}, base=data)
        with pytest.raises(treepack.BaseMismatchError, match="this is a patch"):
            treepack.loads(patch, copy=True)
        assert treepack.loads(patch, base=data)["step"] == 2
