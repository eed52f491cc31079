"""Trees of small arrays that are written straight to the bytes that are returned."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from flax import serialization as flax
from hypothesis import given
from hypothesis import strategies as st

import tiers
import treepack
from tiers import examples
from treepack import serialization

# Around what is copied at once, of more shapes and dtypes than headers are remembered of.
SIZES = (8, 1016, 1024, 1032, 2048, 4096, 4104)
ARRAYS = [
    np.arange(size // np.dtype(dtype).itemsize).astype(dtype).reshape(shape)
    for size in SIZES
    for dtype in ("f4", "i8")
    for shape in ((-1,), (2, -1))
    if size // np.dtype(dtype).itemsize % 2 == 0
]


def tree_of(numbers: list[int], more: str, count: int) -> dict[str, Any]:
    chosen = [ARRAYS[number] for number in numbers] * count
    return {f"{more}{at}": array for at, array in enumerate(chosen)}


@examples(60)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, len(ARRAYS) - 1), min_size=1, max_size=12),
            # Keys whose headers can be widened, and cannot.
            st.sampled_from(["", "a", "k" * 27, "k" * 40, "k" * 300]),
            st.sampled_from([1, 7, 40]),
        ),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([1, 16, 64]),
)
def test_they_are_the_bytes_that_any_other_way_gives(
    trees: list[tuple[list[int], str, int]], align: int
) -> None:
    for numbers, more, count in trees:
        tree = tree_of(numbers, more, count)
        expected = serialization.state_layout(tree, align=align).to_bytes(threads=1)
        # The first one tells the next how much memory is needed.
        for _ in range(2):
            assert serialization.to_bytes(tree, align=align) == expected
        if align == 1:
            assert expected == flax.to_bytes(tree)
        assert treepack.dumps(tree, align=align) == treepack.dumps(tree, align=align)


def test_large_arrays_among_them() -> None:
    large = np.arange(300_000.0)
    small = tree_of([0, 8, 12, 3], "a", 400)
    before = serialization.to_bytes(small)
    for tree in (
        {**small, "b": large},
        {"a": large, **small},
        {"0": small, "1": large, "2": small},
    ):
        expected = serialization.state_layout(tree, align=16).to_bytes(threads=1)
        for _ in range(2):
            assert serialization.to_bytes(tree) == expected
            assert serialization.to_bytes(small) == before


LIKE_ANY = """
import ctypes, gc, hashlib, pickle, sys
import numpy as np
from treepack import serialization

for count in (1, 400, 405, 395, 440, 3000, 400, 20000, 20001):
    tree = {f"{at}": np.full(37, at) for at in range(count)}
    layout = serialization.state_layout(tree, align=16)
    for _ in range(3):
        found, other = serialization.to_bytes(tree), layout.to_bytes(threads=1)
        copy = bytes(memoryview(other))
        assert type(found) is bytes and len(found) == len(copy) == memoryview(found).nbytes
        assert found == copy and hash(found) == hash(copy) and {found: 1}[copy] == 1
        assert found + b"x" == copy + b"x" and found[-5:] == copy[-5:] and 2 * found == 2 * copy
        assert pickle.loads(pickle.dumps(found)) == copy
        assert hashlib.sha256(found).digest() == hashlib.sha256(copy).digest()
        assert found.find(b"not there, certainly") == -1
        assert sys.getsizeof(found) == sys.getsizeof(copy)
        end = id(found) + bytes.__basicsize__ - 1 + len(found)  # in C, it ends with a zero
        assert ctypes.string_at(end, 1) == bytes(1)
        assert sys.getrefcount(found) == 2 and gc.collect() >= 0
        del found, other, copy
"""


@pytest.mark.campaign
@tiers.parametrize("allocator", ["default", "debug", "malloc_debug"])
def test_what_is_returned_is_like_any_bytes(allocator: str) -> None:
    environment = {**os.environ, "PYTHONMALLOC": allocator}
    subprocess.run([sys.executable, "-X", "dev", "-c", LIKE_ANY], env=environment, check=True)
