"""Rules that compute elements: factors, sums, padding and the blocks of quantized weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

import treepack
from treepack import TreepackError
from treepack._src.mapping import moving, pointwise

BF16 = np.dtype(ml_dtypes.bfloat16)


def weights(dtype: Any, *shape: int) -> np.ndarray:
    values = np.random.default_rng(0).standard_normal(shape, np.float32) * 8
    return values.astype(dtype)


def opened(file: Any, rules: Any, **sizes: Any) -> Any:
    return treepack.open(treepack.dumps(file), mapping=treepack.Mapping(rules, **sizes))


@pytest.mark.parametrize("dtype", [BF16, np.dtype(np.float16), np.dtype(np.float32)])
@pytest.mark.parametrize("options", [{"scale": 45.25}, {"add": 1.0}, {"scale": 0.3, "add": -2}])
def test_elements_are_computed_in_float32(dtype: Any, options: dict[str, float]) -> None:
    file = weights(dtype, 6, 4)
    array = opened({"w": file}, {"x": ("w", "a b -> b a", options)})["x"]
    values = file.astype(np.float32) * np.float32(options.get("scale", 1))
    expected = (values + np.float32(options.get("add", 0))).astype(dtype).T
    assert array.dtype == dtype
    assert np.array_equal(array, expected)
    assert np.array_equal(array[1, 2:5], expected[1, 2:5])


def test_a_rule_casts_and_its_template_does_not_round_twice() -> None:
    file = {"w": weights(np.float32, 6, 4)}
    array = opened(file, {"x": ("w", "a b", {"dtype": "bfloat16"})})["x"]
    assert np.array_equal(array, file["w"].astype(BF16))
    with pytest.raises(TreepackError, match="overflow float16 at x"):
        np.asarray(opened({"w": np.full(3, 1e6)}, {"x": ("w", "a", {"dtype": "float16"})})["x"])


def test_padding_is_zeros_and_left_out_on_the_way_back(tmp_path: Path) -> None:
    file = weights(np.float32, 10, 3)
    rules = {"embed": ("w", "v m -> m v", {"pad": {"v": 16}})}
    array = opened({"w": file}, rules)["embed"]
    expected = np.pad(file, ((0, 6), (0, 0))).T
    assert np.array_equal(array, expected)
    assert np.array_equal(array[1, 7:13], expected[1, 7:13])
    mapping = treepack.Mapping(rules, v=10)
    treepack.save(tmp_path / "m.safetensors", {"embed": expected}, mapping=mapping)
    assert np.array_equal(treepack.load(tmp_path / "m.safetensors")["w"], file)
    with pytest.raises(TreepackError, match="the size of v is unknown"):
        treepack.save(tmp_path / "n.safetensors", {"embed": expected}, mapping=rules)


QUANTIZED = {"w": ("l.{l}.w", "(h d) m -> l m h d", {"scales": "l.{l}.s", "block": (4, 3)})}


def quantized(dtype: Any, rows: int, columns: int) -> tuple[dict[str, Any], np.ndarray]:
    """Returns two quantized matrices with factors, and their values."""
    file, values = {}, []
    for at in range(2):
        file[f"l.{at}.w"] = weights(dtype, rows, columns)
        factors = np.arange(-(-rows // 4) * -(-columns // 3), dtype=np.float32) + 1 + at
        file[f"l.{at}.s"] = factors = factors.reshape(-(-rows // 4), -(-columns // 3))
        wide = factors.repeat(4, 0).repeat(3, 1)[:rows, :columns]
        values.append(file[f"l.{at}.w"].astype(np.float32) * wide)
    return file, np.stack(values)


@pytest.mark.parametrize("form", ["plain", "gzip"])
@given(data=st.data())
def test_blocks_have_factors(form: str, data: Any) -> None:
    dtype = data.draw(st.sampled_from([ml_dtypes.float8_e4m3fn, np.int8, np.float32]))
    heads, size, columns = (data.draw(st.integers(1, 5)) for _ in range(3))
    file, values = quantized(dtype, heads * size, columns)
    expected = values.reshape(2, heads, size, columns).transpose(0, 3, 1, 2)
    before, moving.WINDOW_BYTES = (
        moving.WINDOW_BYTES,
        data.draw(st.sampled_from([1, 24, 1 << 20])),
    )
    try:
        source = treepack.dumps(file, compress=form == "gzip")
        array = treepack.open(source, mapping=treepack.Mapping(QUANTIZED, h=heads))["w"]
        assert array.dtype == np.float32
        assert np.array_equal(array, expected)
        box = tuple(
            slice(data.draw(st.integers(0, n - 1)), None, data.draw(st.integers(1, 3)))
            for n in array.shape
        )
        assert np.array_equal(array[box], expected[box])
    finally:
        moving.WINDOW_BYTES = before


def test_devices_read_their_blocks_in_the_dtype_of_the_template() -> None:
    file, values = quantized(ml_dtypes.float8_e4m3fn, 8, 6)
    where = NamedSharding(jax.make_mesh((2,), ("x",)), PartitionSpec(None, "x"))
    template = {"w": jax.ShapeDtypeStruct((2, 6, 2, 4), BF16, sharding=where)}
    loaded = treepack.load(treepack.dumps(file), template, mapping=QUANTIZED)["w"]
    expected = values.reshape(2, 2, 4, 6).transpose(0, 3, 1, 2).astype(BF16)
    assert loaded.sharding == where
    assert np.array_equal(loaded, expected)


@pytest.mark.parametrize(("block", "shape"), [((1, 6), (8, 1)), ((1, 6), (8,)), ((8, 6), ())])
def test_rows_and_tensors_have_factors(block: Any, shape: Any) -> None:
    file = {"w": weights(np.int8, 8, 6), "s": np.arange(1, 1 + int(np.prod(shape)), dtype=BF16)}
    file["s"] = file["s"].reshape(shape)
    array = opened(file, {"w": ("w", "a b", {"scales": "s", "block": block})})["w"]
    factors = file["s"].astype(np.float32).reshape(-1, 1)
    assert np.array_equal(array, file["w"].astype(np.float32) * factors)


@pytest.mark.parametrize("shape", [(3, 2), (6, 1), (1, 3, 2), (6, 1, 1)])
def test_factors_lie_as_their_blocks(shape: Any) -> None:
    factors = np.arange(1, 7, dtype=np.float32).reshape(shape)
    file = treepack.dumps({"w": np.ones((4, 6), np.int8), "s": factors})
    rules: Any = {"t": ("w", "a b", {"scales": "s", "block": (2, 2)})}
    if 3 in shape:  # as of transposed weights
        with pytest.raises(TreepackError, match=r"blocks of \[2, 2\] in \[4, 6\] need \[2, 3\]"):
            treepack.load(file, mapping=rules)
    else:
        found = treepack.load(file, mapping=rules)["t"]
        assert found[::2, ::2].tolist() == [[1, 2, 3], [4, 5, 6]]


def test_numbers_may_be_of_numpy() -> None:
    file = treepack.dumps({"w": np.ones((4, 6), np.int8), "s": np.full((2, 3), 3, np.float32)})
    options: Any = {"scale": np.float32(2), "add": np.int64(1), "pad": {"h": np.int64(3)}}
    options |= {"scales": "s", "block": (np.int32(2), np.int64(2))}
    mapping = treepack.Mapping({"t": ("w", "(h d) m -> h d m", options)}, d=np.int64(2))
    assert treepack.load(file, mapping=mapping)["t"].tolist() == [[[7] * 6] * 2] * 2 + [
        [[0] * 6] * 2
    ]


def test_experts_in_one_tensor_have_factors() -> None:
    file = {"w": weights(np.int8, 3, 4, 6), "s": np.arange(12, dtype=np.float32).reshape(3, 2, 2)}
    array = opened(file, {"w": ("w", "e f m -> e m f", {"scales": "s", "block": (2, 3)})})["w"]
    expected = file["w"] * file["s"].repeat(2, 1).repeat(3, 2)
    assert np.array_equal(array, expected.transpose(0, 2, 1))
    assert np.array_equal(array[1:, 2], expected.transpose(0, 2, 1)[1:, 2])


@pytest.mark.parametrize(
    ("options", "is_exact"),
    [({"scale": 32.0}, True), ({"scale": 3.0}, False), ({"add": 1.0}, False)],
)
def test_a_save_refuses_to_round(tmp_path: Path, options: Any, is_exact: bool) -> None:
    tree = {"x": weights(BF16, 4, 4)}
    path = tmp_path / "m.safetensors"
    rules = {"x": ("w", "a b -> b a", options)}
    if not is_exact:
        with pytest.raises(ValueError, match=r"rounds elements.*inexact=True"):
            treepack.save(path, tree, mapping=rules)
        rules = {"x": ("w", "a b -> b a", {**options, "inexact": True})}
    treepack.save(path, tree, mapping=rules)
    values = tree["x"].astype(np.float32) - np.float32(options.get("add", 0))
    expected = (values * np.float32(1 / options.get("scale", 1))).astype(BF16).T
    assert np.array_equal(treepack.load(path)["w"], expected)


def test_quantized_weights_are_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="scales= has no inverse"):
        treepack.save(tmp_path / "m.safetensors", {"w": np.ones((2, 2, 2, 2))}, mapping=QUANTIZED)


@pytest.mark.parametrize("axes", ["o i -> l i o", "o i -> i o l", "o i -> i l o"])
def test_many_scaled_layers_are_the_same_on_several_threads(axes: str) -> None:
    """The places of layers lie one after the other, or are interleaved."""
    random = np.random.default_rng(0)
    file = {f"l.{at}": random.random((600, 500), np.float32) for at in range(6)}
    rules = {"x": ("l.{l}", axes, {"scale": 3.0, "inexact": True})}
    order = {"l": 0, "o": 1, "i": 2}
    turned = [order[name] for name in axes.partition("-> ")[2].split()]
    expected = np.stack([*file.values()]).transpose(turned) * np.float32(3)
    for threads in (1, 3):
        found = treepack.load(treepack.dumps(file), mapping=rules, threads=threads)["x"]
        assert np.array_equal(found, expected)


def test_a_load_takes_the_threads_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int | None] = []

    def apply(*args: Any, threads: int | None = None, **options: Any) -> None:
        given.append(threads)
        pointwise.apply(*args, threads=threads, **options)

    monkeypatch.setattr(moving, "apply", apply)
    file = treepack.dumps({"w": np.ones((4, 6), np.float32)})
    rules: Any = {"t": ("w", "a b -> b a", {"scale": 2.0})}
    for threads in (1, 2, None):
        treepack.load(file, mapping=rules, threads=threads)
    assert given == [1, 2, None]
