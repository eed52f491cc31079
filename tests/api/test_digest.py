"""Digests of arrays and trees."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import treepack._core as core

POLYNOMIALS = (0x9A6C9329AC4BC9B5, 0xC96C5795D7870F42)  # reflected: NVME, XZ


def table(polynomial: int) -> list[int]:
    crcs = []
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ (polynomial if crc & 1 else 0)
        crcs.append(crc)
    return crcs


TABLES = [table(polynomial) for polynomial in POLYNOMIALS]


def reference(data: bytes) -> bytes:
    """Returns a digest of bytes as docs/format.md defines it."""
    digest = b""
    for crcs in TABLES:
        crc = 2**64 - 1
        for byte in data:
            crc = crc >> 8 ^ crcs[(crc ^ byte) & 255]
        digest += (crc ^ 2**64 - 1).to_bytes(8, "big")
    return digest


@pytest.mark.parametrize("threads", [1, 3])
def test_the_core_sums_the_bytes_in_c_order(threads: int) -> None:
    numbers = np.arange(60_000, dtype=np.int16).reshape(100, 600)
    arrays: list[Any] = [
        np.arange(10, dtype=np.float32),
        np.zeros((0, 3)),
        numbers,
        numbers[:, ::2],
        numbers.T,
        np.asfortranarray(numbers[:9]),
        numbers[:9].astype(">i2"),
        jnp.arange(5000.0),
        jnp.zeros((), jnp.bfloat16),
        np.float64(3),
    ]
    digests = core.digests(arrays, threads=threads)
    assert len(digests) == 16 * len(arrays)
    for array in arrays:
        native = np.asarray(array)
        data = native.astype(native.dtype.newbyteorder("<")).tobytes()
        digest, digests = digests[:16], digests[16:]
        assert digest == reference(data), (array.dtype, array.shape)


def test_digests_of_parts_are_joined() -> None:
    array = np.random.default_rng(0).integers(0, 255, 5000, np.uint8)
    whole, nothing = core.digests([array, array[:0]], threads=None)[:16], bytes(16)
    assert reference(b"") == nothing
    for cut in (0, 1, 4096, 5000):
        first, second = (core.digests([part], threads=None) for part in (array[:cut], array[cut:]))
        assert core.join_digests(first, second, array.size - cut) == whole
    with pytest.raises(ValueError, match="16"):
        core.join_digests(b"", whole, 3)
    with pytest.raises(OverflowError):
        core.join_digests(whole, whole, -1)
