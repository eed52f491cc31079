"""Conversions of the core, against NumPy and ml_dtypes."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treepack._src.mapping import pointwise

SOURCES = [
    *(ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e8m0fnu, np.int8, np.uint8),
    *(ml_dtypes.bfloat16, np.float16, np.float32, np.float64, np.int32, ">f4", ml_dtypes.int4),
]
TARGETS = [np.float32, ml_dtypes.bfloat16, np.float16, np.float64, ml_dtypes.float8_e4m3fn]


@np.errstate(all="ignore")
def expected_of(
    source: np.ndarray,
    dtype: Any,
    *,
    scale: float | None = None,
    add: float | None = None,
    scales: np.ndarray | None = None,
    block: tuple[int, ...] = (),
    start: tuple[int, ...] | None = None,
) -> np.ndarray:
    """Computes it in several passes of NumPy."""
    values = source.astype(np.float32)
    if scales is not None:
        factors = scales.astype(np.float32)
        for axis, size in enumerate(block):
            factors = factors.repeat(size, axis)
        box = zip(start or (0,) * len(block), source.shape[source.ndim - len(block) :], strict=True)
        values = values * factors[tuple(slice(at, at + size) for at, size in box)]
    if scale is not None:
        values = values * np.float32(scale)
    if add is not None:
        values = values + np.float32(add)
    return values.astype(dtype)


@np.errstate(all="ignore")
def assert_same_bits(actual: np.ndarray, expected: np.ndarray) -> None:
    """Compares the bits of all numbers, and only the places of NaN."""
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(~np.isnan(actual), numbers)
    for array in (actual, expected):
        assert array.flags.c_contiguous
    bits = [array[numbers].view(f"u{array.itemsize}") for array in (actual, expected)]
    np.testing.assert_array_equal(*bits)


@st.composite
def calls(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Draws a source and a target, perhaps views of larger arrays, and the other arguments."""
    shape = tuple(draw(st.lists(st.integers(0, 9), max_size=3)))
    seed = np.random.default_rng(draw(st.integers(0, 9)))
    margins = draw(st.lists(st.integers(0, 2), min_size=len(shape), max_size=len(shape)))
    inside = tuple(
        slice(margin, margin + size) for margin, size in zip(margins, shape, strict=True)
    )
    sizes = [size + 2 * margin for size, margin in zip(shape, margins, strict=True)]
    dtype = np.dtype(draw(st.sampled_from(SOURCES)))
    data = seed.integers(0, 256, (*sizes, dtype.itemsize), np.uint8)
    if dtype == ml_dtypes.int4:
        data %= 16
    source = data.view(dtype)[..., 0][(*inside, ...)]
    memory = np.zeros(sizes, draw(st.sampled_from(TARGETS)))
    target = memory[(*inside, ...)]
    if draw(st.booleans()):
        order = draw(st.permutations(range(len(shape))))
        source, target = source.transpose(order), target.transpose(order)
        shape = target.shape
    numbers = st.none() | st.sampled_from([0.5, 1, -3, 1 / 3, 1e-3, 300])
    options: dict[str, Any] = {"scale": draw(numbers), "add": draw(numbers)}
    if count := draw(st.integers(0, len(shape))):
        block = tuple(draw(st.lists(st.integers(1, 5), min_size=count, max_size=count)))
        start = tuple(draw(st.lists(st.integers(0, 7), min_size=count, max_size=count)))
        ends = map(int.__add__, start, shape[-count:])
        number = [
            -(-end // size) + draw(st.integers(0, 1)) for end, size in zip(ends, block, strict=True)
        ]
        scales = seed.standard_normal(number).astype(draw(st.sampled_from(TARGETS[:2])))
        options |= {"scales": scales, "block": block, "start": start}
    return source, target, options


@given(calls(), st.sampled_from([None, 1, 3]))
def test_equal_to_numpy(
    call: tuple[np.ndarray, np.ndarray, dict[str, Any]], threads: int | None
) -> None:
    source, target, options = call
    outside = target.base.copy() if target.base is not None else None
    pointwise.apply(source, target, threads=threads, **options)
    assert_same_bits(target.copy(), expected_of(source, target.dtype, **options).copy())
    if outside is not None and target.base is not None:
        target[...] = 0
        np.testing.assert_array_equal(target.base, outside)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_all_numbers_of_two_bytes(dtype: Any) -> None:
    source = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    for target in (np.float32, ml_dtypes.bfloat16, np.float16):
        actual = np.empty(source.shape, target)
        pointwise.apply(source, actual)
        assert_same_bits(actual, expected_of(source, target))


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_float32_is_rounded_to_the_nearest(dtype: Any) -> None:
    near = np.arange(1 << 16, dtype=np.uint16).view(dtype).astype(np.float32)
    near = near[np.isfinite(near)]
    up, down = np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf))
    middle = near / 2 + np.roll(near, 1) / 2
    source = np.concatenate(
        [up, down, middle, np.nextafter(middle, up), np.nextafter(middle, down)]
    )
    actual = np.empty(source.shape, dtype)
    pointwise.apply(source, actual)
    assert_same_bits(actual, expected_of(source, dtype))


@pytest.mark.parametrize("threads", [1, 3])
def test_many_pieces(threads: int) -> None:
    """Rows longer than a piece, and many rows in one."""
    random = np.random.default_rng(0)
    for shape, block in [((3, (1 << 18) + 77), (2, 128)), ((5000, 300), (128, 128))]:
        source = random.integers(0, 256, shape, np.uint8).view(ml_dtypes.float8_e4m3fn)
        number = [math.ceil(size / each) for size, each in zip(shape, block, strict=True)]
        scales = random.standard_normal(number).astype(np.float32)
        target = np.empty(shape, ml_dtypes.bfloat16)
        pointwise.apply(source, target, scales=scales, block=block, threads=threads)
        expected = expected_of(source, target.dtype, scales=scales, block=block)
        assert_same_bits(target, expected)


def test_mapped_memory(tmp_path: Any) -> None:
    np.arange(12, dtype=np.float16).tofile(tmp_path / "x")
    source = np.memmap(tmp_path / "x", np.float16, "r", shape=(3, 4))
    target = np.empty((2, 3), np.float32)
    pointwise.apply(source[1:, 1:], target, add=1)
    np.testing.assert_array_equal(target, [[6, 7, 8], [10, 11, 12]])


def test_scales_that_are_missing_are_an_error() -> None:
    source, target = np.ones((5, 4), np.int8), np.empty((5, 4), np.float32)
    with pytest.raises(IndexError, match="other scales"):
        pointwise.apply(source, target, scales=np.ones((2, 2), np.float32), block=(2, 2))


def test_a_target_over_its_source_is_an_error() -> None:
    memory = np.ones(8, np.float32)
    with pytest.raises(ValueError, match="overlap"):
        pointwise.apply(memory[:4], memory[2:6])
