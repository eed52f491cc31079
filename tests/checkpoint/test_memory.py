"""The memory that parts of sharded arrays are read to."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import treepack._core as core
from tiers import examples

MIB = 1 << 20


@examples(20)
@given(st.lists(st.integers(0, 3 * MIB), max_size=40))
def test_arrays_have_their_size_and_nothing_in_common(sizes: list[int]) -> None:
    arrays = core.fresh_memory(sizes)
    assert len(arrays) == len(sizes)
    if sum(sizes) < 32 * MIB:
        assert arrays == [None] * len(sizes)
        return
    for number, (array, size) in enumerate(zip(arrays, sizes, strict=True)):
        assert (array is None) == (size < MIB // 4)
        if array is not None:
            assert (array.dtype, array.shape) == (np.uint8, (size,))
            assert array.ctypes.data % 4096 == 0
            assert array.flags.writeable
            array.fill(number)
    for number, array in enumerate(arrays):
        assert array is None or (array == number).all()


def test_large_ones_lie_together_and_each_keeps_its_own() -> None:
    first, *others = core.fresh_memory([3 * MIB // 2] * 40)
    assert [other.ctypes.data - first.ctypes.data for other in others] == [
        number * 3 * MIB // 2 for number in range(1, 40)
    ]
    last = others[-1]
    last.fill(7)
    del first, others
    assert (last == 7).all()


def test_what_cannot_be_had_is_left_to_the_allocator() -> None:
    assert core.fresh_memory([1 << 62, 1 << 62]) == [None, None]
