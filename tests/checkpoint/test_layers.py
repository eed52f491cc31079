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

    def spy(array: np.ndarray, target: np.ndarray, path: object, **options: Any) -> None:
        sizes.append(target.nbytes)
        cast(array, target, path, **options)

    cast = boxed._dtypes.cast
    monkeypatch.setattr(boxed._dtypes, "cast", spy)
    monkeypatch.setattr(boxed, "CAST_BYTES", most)
    found = treepack.load(path, {"up": template}, rename={"up": source}, select="up", cast=True)
    assert np.array_equal(found["up"], expected.astype(np.float16))
    assert max(sizes) <= most
    assert len(sizes) > 1


@pytest.mark.parametrize("axes", [(2, 1, 0), (0, 2, 1), (1, 2, 0)])
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
    for pattern in ("a", "a/*/b?", "a/**"):
        with pytest.raises(ValueError, match=r"one \*, for the number"):
            treepack.stack(pattern)
    for wrong in (
        {"up": treepack.stack("a/*/b/*")},
        {"up/*": treepack.stack("a/*")},
        {"up": treepack.transpose("a/*")},
        {"*": treepack.transpose("lm_head/weight")},
    ):
        says("must have the same wildcards as", ValueError, wrong)
        with pytest.raises(ValueError, match="must have the same wildcards as"):
            treepack.save(tmp_path / "wrong.safetensors", template, rename=wrong)
    reverse = r"a matrix, found an array of 3 dimensions: pass the order of its axes as a second"
    says(reverse, TreepackError, {"up": treepack.transpose("lm_head/weight")})
    treepack.save(tmp_path / "stacked", {"up": [np.zeros((2, 3, 4))] * 2})
    four = {"up": np.zeros((2, 4, 3, 2))}
    rename = {"up": treepack.stack("up/*", transpose=True)}
    with pytest.raises(
        TreepackError, match=r"as transpose= of treepack.stack, such as \(2, 1, 0\)"
    ):
        treepack.load(tmp_path / "stacked", four, rename=rename)
    with pytest.raises(TypeError, match=r"transpose takes the path of an array, .*got ndarray"):
        treepack.transpose(np.zeros((2, 3)))  # type: ignore[arg-type]
    twin = treepack.transpose("lm_head/weight", (2, 1, 0))
    tied = {"up": twin, "other": twin, "model/layers/0/up/weight": "up"}
    says("maps two leaves to the same path", TreepackError, tied, {**template, "other": 1})
    wanted = treepack.transpose("model/layers/*/up/weight")
    deep = {"layers": {"0": {"w": {"array": np.zeros((6, 4), np.float32)}}}}
    says(
        "layers/\\*/w, which is not .*'layers/0/w/array'",
        TreepackError,
        {"layers/*/w": wanted},
        deep,
    )
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


@pytest.mark.parametrize("kind", ["list", "dict"])
@pytest.mark.parametrize("axes", [None, (1, 0), (0, 1)])
def test_layers_of_a_list_are_transposed(path: Path, tmp_path: Path, kind: str, axes: Any) -> None:
    """With the same wildcards on both sides, as in plain renames; layers beyond the target stay."""
    each = [arrays()[f"model.layers.{at}.up.weight"].transpose(axes) for at in range(LAYERS)]
    layers: Any = [{"kernel": np.zeros_like(it)} for it in each]
    if kind == "dict":
        layers = {f"{at}": it for at, it in enumerate(layers)}
    rename = {
        "layers/*/kernel": treepack.transpose("model/layers/*/up/weight", axes),
        "lm_head/weight": "head",
    }
    template = {"layers": layers, "head": arrays()["lm_head.weight"]}
    found = treepack.load(path, template, rename=rename, unexpected="error")
    for at, expected in enumerate(each):
        kernel = found["layers"][at if kind == "list" else str(at)]["kernel"]
        assert np.array_equal(kernel, expected)
    with treepack.open(path) as file:
        again = file.load(template, rename=rename)
    jax.tree.map(np.testing.assert_array_equal, again, found)
    back = {**rename, "head": "lm_head/weight"}
    del back["lm_head/weight"]
    treepack.save(tmp_path / "back.safetensors", found, rename=back)
    saved = safetensors.numpy.load_file(tmp_path / "back.safetensors")
    assert saved.keys() == arrays().keys()
    for name, array in arrays().items():
        assert np.array_equal(saved[name], array)


def test_wildcards_of_sources(path: Path, tmp_path: Path) -> None:
    first = arrays()["model.layers.0.up.weight"]
    rename: dict[str, Any] = {"**/kernel": treepack.transpose("**/weight")}
    target: dict[str, Any] = {"model": {"layers": {"0": {"up": {"kernel": first.T}}}}}
    few, report = treepack.load(path, target, rename=rename, return_report=True)  # one of twelve
    assert np.array_equal(few["model"]["layers"]["0"]["up"]["kernel"], first.T)
    assert "model/layers/1/up/weight" in report.unexpected
    with pytest.raises(MismatchError, match="model/layers/1"):
        treepack.load(path, target, rename=rename, unexpected="error")
    target["model"]["layers"]["12"] = target["model"]["layers"]["0"]
    with pytest.raises(MismatchError, match="model/layers/12: missing"):
        treepack.load(path, target, rename=rename)
    # The first source of a leaf counts.
    pair: dict[str, Any] = {
        "w/1": treepack.transpose("model/layers/1/up/weight", (0, 1)),
        "w/*": treepack.transpose("model/layers/*/up/weight"),
    }
    two = {"w": {"0": first.T, "1": first}}
    loaded = treepack.load(path, two, rename=pair)
    assert np.array_equal(loaded["w"]["1"], arrays()["model.layers.1.up.weight"])
    treepack.save(tmp_path / "two.safetensors", loaded, rename=pair)
    saved = safetensors.numpy.load_file(tmp_path / "two.safetensors")
    assert np.array_equal(saved["model.layers.0.up.weight"], first)
    assert np.array_equal(saved["model.layers.1.up.weight"], arrays()["model.layers.1.up.weight"])
    # A tuple has no wildcards.
    star = {("*",): treepack.transpose("lm_head/weight", (2, 1, 0))}
    head = arrays()["lm_head.weight"]
    found = treepack.load(path, {"*": head.T}, rename=star)
    assert np.array_equal(found["*"], head.T)
    treepack.save(tmp_path / "star.safetensors", {"*": head.T, "b": first}, rename=star)
    saved = safetensors.numpy.load_file(tmp_path / "star.safetensors")
    assert saved.keys() == {"lm_head.weight", "b"}


@pytest.mark.parametrize("transpose", [True, False])
def test_experts_of_each_layer_are_stacked(tmp_path: Path, transpose: bool) -> None:
    flat = {
        f"layers.{layer}.moe.{expert}.w": np.full((2, 3), 100 * layer + expert)
        for layer in range(3)
        for expert in range(11)
    }
    safetensors.numpy.save_file(flat, tmp_path / "moe.safetensors")
    rename = {"layers/*/w": treepack.stack("layers/*/moe/*/w", transpose=transpose)}
    shape = (11, 3, 2) if transpose else (11, 2, 3)
    template = {"layers": [{"w": np.zeros(shape, int)} for _ in range(3)]}
    found = treepack.load(tmp_path / "moe.safetensors", template, rename=rename)
    assert [it["w"][10, 0, 0] for it in found["layers"]] == [10, 110, 210]
    treepack.save(tmp_path / "again.safetensors", found, rename=rename)
    again = safetensors.numpy.load_file(tmp_path / "again.safetensors")
    assert again.keys() == flat.keys()
    assert all(np.array_equal(again[name], flat[name]) for name in flat)
    del flat["layers.1.moe.7.w"]
    safetensors.numpy.save_file(flat, tmp_path / "moe.safetensors")
    with pytest.raises(TreepackError, match=r"lacks layers/1/moe/7/w, although it has layer 10"):
        treepack.load(tmp_path / "moe.safetensors", template, rename=rename)
