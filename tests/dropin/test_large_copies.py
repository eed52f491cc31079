"""Copies of the arrays of a large tree, which share one mapping."""

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from treepack import serialization

MIB = 1 << 20


@pytest.fixture(scope="module")
def tree() -> dict[str, np.ndarray]:
    """48 MiB in arrays of which most do not end where a page does."""
    tree = {f"w{i}": np.arange(i, i + MIB + 100 * i, dtype=np.float32) for i in range(12)}
    return tree | {"small": np.arange(10.0), "fortran": np.ones((1000, 300), order="F")}


@pytest.fixture(scope="module")
def encoded(tree: dict[str, np.ndarray]) -> bytes:
    return serialization.to_bytes(tree)


def resident() -> int:
    """The bytes of this process that are in memory and belong to no file."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    pytest.skip("the system does not tell how much memory is in use")


def test_they_are_equal_and_independent(tree: dict[str, np.ndarray], encoded: bytes) -> None:
    before = bytes(encoded)
    copies = serialization.msgpack_restore(encoded, copy=True)
    for name, array in tree.items():
        np.testing.assert_array_equal(copies[name], array)
        assert copies[name].flags.writeable
        assert copies[name].flags.aligned
    for copy in copies.values():
        copy += 1  # no array lies in another's memory
    for name, array in tree.items():
        np.testing.assert_array_equal(copies[name], array + 1)
    assert encoded == before


def test_whether_they_may_be_written_can_be_changed(encoded: bytes) -> None:
    array = serialization.msgpack_restore(encoded, copy=True)["w3"]
    array.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    array.flags.writeable = True
    array[0] = 1
    assert array[0] == 1
    pages: Any = array.base
    assert memoryview(pages).nbytes == -(-array.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE


def test_a_view_keeps_the_memory(tree: dict[str, np.ndarray], encoded: bytes) -> None:
    copies = serialization.msgpack_restore(encoded, copy=True)
    view = copies.pop("w5")[5:].reshape(-1, 1)
    del copies
    np.testing.assert_array_equal(view[:, 0], tree["w5"][5:])


def test_an_array_that_goes_gives_its_memory_back(
    tree: dict[str, np.ndarray], encoded: bytes
) -> None:
    before = resident()
    copies = serialization.msgpack_restore(encoded, copy=True)
    assert resident() - before > 45 * MIB
    kept = copies["w7"]
    del copies
    assert resident() - before < 8 * MIB
    np.testing.assert_array_equal(kept, tree["w7"])


def test_unaligned_payloads_are_copied_read_only() -> None:
    # In raw lists payloads cannot always be aligned.
    arrays = [np.arange(MIB, dtype=np.complex128) for _ in range(3)]
    data = bytearray(b"\x00" * 3 + serialization.msgpack_serialize(arrays, align=1))
    views = serialization.msgpack_restore(memoryview(data)[3:])
    assert len(views) == 3
    for view, array in zip(views, arrays, strict=True):
        np.testing.assert_array_equal(view, array)
        assert not view.flags.writeable
