"""Leaves that are made of others while they are loaded; NumPy is the oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from jax.sharding import NamedSharding, PartitionSpec

import tiers
import treepack
import treepack._core as core
from commands import call, refused
from treepack import CorruptionError, MismatchError, TreepackError
from treepack._src.checkpoint import boxed
from trees import nested

LAYERS = 12  # so that the order of numbers is not that of texts


def arrays() -> dict[str, np.ndarray]:
    flat = {
        f"model.layers.{at}.up.weight": np.arange(24, dtype=np.float32).reshape(4, 6) + 100 * at
        for at in range(LAYERS)
    }
    return flat | {"lm_head.weight": np.arange(30, dtype=np.float32).reshape(2, 3, 5)}


@pytest.fixture(params=["safetensors", "file", "gzip", "directory"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(arrays(), path)
    if request.param != "safetensors":
        saved = tmp_path / ("saved.gz" if request.param == "gzip" else "saved")
        treepack.save(saved, treepack.load(path), sharded=request.param == "directory")
        return saved
    return path


def sources(**options: Any) -> dict[str, Any]:
    return {"up": treepack.stack("model/layers/*/up/weight", **options)}


@tiers.parametrize("axis", [0, 1, 2, -1], quick=2)
@tiers.parametrize("transpose", [False, True, (1, 0)], quick=2)
@pytest.mark.parametrize("spec", [None, ("x",), (None, "x"), (None, None, "x")])
def test_layers_are_stacked(path: Path, axis: int, transpose: Any, spec: Any) -> None:
    axes = (1, 0) if transpose else (0, 1)
    each = [arrays()[f"model.layers.{at}.up.weight"].transpose(axes) for at in range(LAYERS)]
    expected = np.stack(each, axis)
    where = None
    if spec is not None:
        where = NamedSharding(jax.make_mesh((2,), ("x",)), PartitionSpec(*spec))
    template = {"up": jax.ShapeDtypeStruct(expected.shape, np.float32, sharding=where)}
    rename = sources(axis=axis, transpose=transpose)
    found = treepack.load(path, template, rename=rename, select="up")["up"]
    assert np.array_equal(found, expected)
    if where is not None:
        assert found.sharding == where
    as_numpy = treepack.load(path, {"up": expected}, rename=rename, select="up")["up"]
    assert isinstance(as_numpy, np.ndarray)
    assert np.array_equal(as_numpy, expected)
    half = {"up": jax.ShapeDtypeStruct(expected.shape, np.float16, sharding=where)}
    cast = treepack.load(path, half, rename=rename, select="up", cast=True)["up"]
    assert np.array_equal(cast, expected.astype(np.float16))


@tiers.parametrize("axis", [1, None, 0, 2], quick=2)
@tiers.parametrize("transpose", [True, False], quick=1)
@pytest.mark.parametrize("is_split", [False, True])
def test_layers_are_cast_in_blocks(
    path: Path, axis: int | None, transpose: bool, is_split: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block has the size that was set, or is one layer or row of the file."""
    name = "model/layers/{}/up/weight"
    each = [arrays()[name.format(at).replace("/", ".")] for at in range(LAYERS)]
    each = [it.T if transpose else it for it in each]
    if axis is None:
        expected, most = each[3], 12
        source = treepack.transpose(name.format(3), (1, 0) if transpose else (0, 1))
    else:
        expected, most = np.stack(each, axis), 2 * 48
        source = treepack.stack(name.format("*"), axis=axis, transpose=transpose)
    where = NamedSharding(jax.make_mesh((2,), ("x",)), PartitionSpec()) if is_split else None
    template: Any = np.zeros(expected.shape, np.float16)
    if is_split:
        template = jax.ShapeDtypeStruct(expected.shape, np.float16, sharding=where)
    sizes = []

    def spy(array: np.ndarray, target: np.ndarray, path: object) -> None:
        sizes.append(target.nbytes)
        cast(array, target, path)

    cast = boxed._dtypes.cast
    monkeypatch.setattr(boxed._dtypes, "cast", spy)
    monkeypatch.setattr(boxed, "CAST_BYTES", most)
    found = treepack.load(path, {"up": template}, rename={"up": source}, select="up", cast=True)
    assert np.array_equal(found["up"], expected.astype(np.float16))
    assert max(sizes) <= most
    assert len(sizes) > 1


@pytest.mark.parametrize("axes", [None, (0, 2, 1), (1, 2, 0)])
def test_an_array_is_transposed_beside_others(path: Path, axes: Any) -> None:
    whole = arrays()["lm_head.weight"]
    expected = whole.transpose(axes)
    rename = {"head": treepack.transpose("lm_head/weight", axes), "model/layers/0": "first"}
    template = {"head": expected, "first": {"up": {"weight": np.zeros((4, 6), np.float32)}}}
    found, report = treepack.load(path, template, rename=rename, return_report=True)
    assert np.array_equal(found["head"], expected)
    assert found["first"]["up"]["weight"][1, 0] == 6
    assert {"head", "first/up/weight"} <= set(report.loaded)
    assert "model/layers/1/up/weight" in report.unexpected


@pytest.mark.parametrize("mmap", [True, False])
def test_large_arrays_are_transposed_in_windows(tmp_path: Path, mmap: bool) -> None:
    made = np.random.default_rng(0).integers(0, 1 << 16, (2, 2100, 2300), np.uint16)
    treepack.save(tmp_path / "saved", {"layers": list(made)})
    rename = {"up": treepack.stack("layers/*", transpose=True)}
    template = {"up": made.transpose(0, 2, 1)}
    found = treepack.load(tmp_path / "saved", template, rename=rename, mmap=mmap)["up"]
    assert found.flags.c_contiguous
    assert np.array_equal(found, template["up"])
    treepack.save(tmp_path / "again.safetensors", {"up": found}, rename=rename)
    again = treepack.load(tmp_path / "again.safetensors")["layers"]
    assert all(np.array_equal(again[str(at)], made[at]) for at in range(2))


def test_memory_that_does_not_fit_is_refused() -> None:
    memory = np.zeros(24, np.uint8)

    def copy(source: Any, target: Any, at: int, strides: tuple[int, ...]) -> None:
        core.copy_array(source, (3, 4), 2, target, at, strides, threads=None)

    source = np.arange(24, dtype=np.uint8)
    copy(source, memory, 0, (2, 6))
    turned = memory.view(np.uint16).reshape(4, 3)
    assert np.array_equal(turned, source.view(np.uint16).reshape(3, 4).T)
    for error, wrong in (
        (IndexError, (source, memory, 1, (2, 6))),
        (IndexError, (source, memory, 0, (2, 4))),
        (ValueError, (source[:23], memory, 0, (2, 6))),
        (ValueError, (memory, memory, 0, (2, 6))),
    ):
        with pytest.raises(error):
            copy(*wrong)


def test_what_does_not_fit(path: Path, tmp_path: Path) -> None:
    template = {"up": np.zeros((LAYERS, 4, 6), np.float32)}

    def says(text: str, error: type[Exception], rename: Any, target: Any = template) -> None:
        with pytest.raises(error, match=text):
            treepack.load(path, target, rename=rename, select="up")

    says(
        r"stack\('nothing/\*'\) matches nothing", TreepackError, {"up": treepack.stack("nothing/*")}
    )
    says("from 0 to 2, got 3", TreepackError, sources(axis=3))
    says("a permutation of 2 axes", TreepackError, sources(transpose=(0, 1, 2)))
    says(
        r"up: expected float32\[12,4,6\], found float32\[12,6,4\]",
        MismatchError,
        sources(transpose=True),
    )
    with pytest.raises(ValueError, match=r"one \*, for the number"):
        treepack.stack("a/*/b/*")
    lacks = arrays()
    del lacks["model.layers.7.up.weight"]
    safetensors.numpy.save_file(lacks, tmp_path / "lacks.safetensors")
    with pytest.raises(
        TreepackError, match=r"lacks model/layers/7/up/weight, although it has layer 11"
    ):
        treepack.load(tmp_path / "lacks.safetensors", template, rename=sources(), select="up")
    for name, text in (
        ("9" * 300, r"lacks model/layers/12/up/weight, although it has layer 1\d+"),
        ("9" * 5000, r"lacks model/layers/12/up/weight, although it has layer inf"),
        ("03", "layers/03/up/weight and .*layers/3/up/weight are the same layer"),
    ):
        more = arrays() | {f"model.layers.{name}.up.weight": np.zeros((4, 6), np.float32)}
        safetensors.numpy.save_file(more, tmp_path / "more.safetensors")
        with pytest.raises(TreepackError, match=text):
            treepack.load(tmp_path / "more.safetensors", template, rename=sources(), select="up")
    other = arrays() | {"model.layers.3.up.weight": np.zeros((4, 7), np.float32)}
    safetensors.numpy.save_file(other, tmp_path / "other.safetensors")
    with pytest.raises(
        TreepackError,
        match=r"expected .* at .*layers/3/up/weight, as at .*/0/.*, found float32\[4, 7\]",
    ):
        treepack.load(tmp_path / "other.safetensors", template, rename=sources(), select="up")


def test_each_layer_is_verified(tmp_path: Path) -> None:
    path = tmp_path / "saved"
    treepack.save(path, {"layers": [np.full(1000, at, np.float32) for at in range(3)]})
    data = bytearray(path.read_bytes())
    at = data.index(np.full(9, 1, np.float32).tobytes())
    data[at + 400] ^= 1
    path.write_bytes(data)
    rename = {"up": treepack.stack("layers/*")}
    template = {"up": np.zeros((3, 1000), np.float32)}
    with pytest.raises(CorruptionError, match="up is damaged"):
        treepack.load(path, template, rename=rename, verify=True)
    kept = treepack.load(path, template, rename=rename, on_corrupt="skip")
    assert not kept["up"].any()
    with pytest.raises(CorruptionError, match="layers/1 is damaged"):
        call("convert", str(path), str(tmp_path / "new"), "--stack", "up=layers/*")


def test_an_array_without_elements_has_few_layers(tmp_path: Path) -> None:
    path = str(tmp_path / "saved.safetensors")
    treepack.save(path, {"w": np.zeros((3, 0)), "many": np.zeros((1 << 40, 0))})
    message = refused("convert", path, str(tmp_path / "new"), "--unstack", "many=l/*")
    assert f"has {1 << 40} empty layers" in message
    call("convert", path, str(tmp_path / "new"), "--unstack", "w=l/*")
    assert treepack.load(tmp_path / "new")["l"]["2"].shape == (0,)


@tiers.parametrize("axis", [0, 1, -1], quick=2)
@pytest.mark.parametrize("transpose", [False, True, (1, 0), (0, 1)])
@pytest.mark.parametrize("kind", ["numpy", "jax", "sharded", "file"])
@tiers.parametrize("background", [False, True])
def test_layers_are_unstacked_as_they_were_stacked(
    tmp_path: Path, axis: int, transpose: Any, kind: str, background: bool
) -> None:
    flat = {
        f"model.layers.{at}.up.weight": (np.arange(24) + 100 * at).reshape(4, 6) for at in range(12)
    }
    flat = {name: array.astype(ml_dtypes.bfloat16) for name, array in flat.items()}
    flat["lm_head.weight"] = np.arange(30, dtype=np.float32).reshape(2, 3, 5)
    path = tmp_path / "model.safetensors"
    treepack.save(path, nested(flat), metadata={"format": "flax"})
    pattern = "model/layers/*/up/weight"
    sources = {
        "up": treepack.stack(pattern, axis=axis, transpose=transpose),
        "head": treepack.transpose("lm_head/weight", (1, 2, 0)),
    }
    turned = transpose in (True, (1, 0))
    shape = [6, 4] if turned else [4, 6]
    shape.insert(axis % 3, 12)
    template: dict[str, Any] = {
        "up": np.zeros(shape, ml_dtypes.bfloat16),
        "head": np.zeros((3, 5, 2), np.float32),
    }
    if kind in ("jax", "sharded"):
        template = jax.tree.map(lambda it: jax.ShapeDtypeStruct(it.shape, it.dtype), template)
    whole = treepack.load(path, template, rename=sources)
    if kind == "sharded":
        split = NamedSharding(jax.make_mesh((2,), ("x",)), PartitionSpec(None, "x"))
        whole["up"] = jax.device_put(whole["up"], split)
    if kind == "file":
        treepack.save(tmp_path / "saved", whole)
        file = treepack.open(tmp_path / "saved")
        whole = {"up": file["up"], "head": file["head"]}
    back = {
        "up": treepack.unstack(pattern, axis=axis, transpose=transpose),
        "head": treepack.transpose("lm_head/weight", (1, 2, 0)),
    }
    again = tmp_path / "again.safetensors"
    saved = treepack.save(again, whole, rename=back, background=background)
    if saved is not None:
        saved.result()
    assert again.read_bytes() == path.read_bytes()
    treepack.save(again, whole, rename=sources)  # the same sources
    assert again.read_bytes() == path.read_bytes()
