"""Patches that no writer makes, with the right checksum: documented errors, within the bounds."""

from __future__ import annotations

import random
import zlib
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tiers
import treepack
import treepack._core as core
from hostile import limits
from hostile.changes import with_other_bytes

# The checksum, the length of the record and the mark, at the end of a patch.
END = 16

MAX_SIZE = 1 << 20


def sealed(body: bytes, end: bytes) -> bytes:
    """Returns a patch with the checksum of its bytes."""
    return body + zlib.crc32(body).to_bytes(4, "little") + end[4:]


def trees() -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns a base, and a tree whose arrays differ from it in each way."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal(20_000).astype(ml_dtypes.bfloat16)
    words = w.view(np.uint16).copy()
    words[::50] += 1
    dense = rng.standard_normal(3000).astype(np.float32)
    held = {"equal": np.arange(500), "sparse": w, "dense": dense, "stored": rng.random(400)}
    changed = {"sparse": words.view(w.dtype), "dense": dense * 1.01, "stored": rng.random(400)}
    plain = [1, "text", np.ones(3), "x" * 65, b"y" * 70_000, None, np.zeros((0, 2)), np.array(5)]
    return held, {**held, **changed, "new": plain, "step": 7}


def test_sealed_changes_of_patches_are_documented_errors() -> None:
    held, tree = trees()
    base = treepack.dumps(held)
    patch = treepack.dumps(tree, base=base)
    body, end = patch[:-END], patch[-END:]
    assert sealed(body, end) == patch
    rng, measured = random.Random(0), limits.Limits()
    outcomes = {True: 0, False: 0}
    for case in range(tiers.either(300, 10_000)):
        data = sealed(with_other_bytes(body, rng), end)
        if case % 10 == 0:
            data = with_other_bytes(patch, rng)
        with measured.memory(f"case {case}", len(data) + len(base), MAX_SIZE) as exceeded:
            is_read = True
            try:
                treepack.loads(data, base=base, max_size=MAX_SIZE)
            except treepack.TreepackError:
                is_read = False
        assert not exceeded, exceeded
        outcomes[is_read] += 1
        buffer = bytearray(base) + bytearray(5000)
        before = bytes(buffer)
        try:
            size = treepack.apply_delta(data, buffer)
        except ValueError:
            assert buffer == before, case
        else:
            # By the other way; `loads` may refuse a tree in it.
            lent = core.Content.lent
            joined, _ = core.join(lent(data), lent(base), max_size=None, threads=1)
            assert joined.read_range(0, joined.nbytes) == buffer[:size]
            assert size <= len(data) + len(base)
    assert all(outcomes.values()), outcomes


@pytest.mark.parametrize("field", range(8))
def test_a_patch_makes_no_more_than_its_base_and_itself(field: int) -> None:
    """Whatever size a difference claims: memory is taken for what the base can give."""
    held = {"w": np.zeros(50_000)}
    base = treepack.dumps(held)
    patch = treepack.dumps(held, base=base)
    body, end = bytearray(patch[:-END]), patch[-END:]
    at = body.index((400_000).to_bytes(8, "little"))
    body[at + field] ^= 0x40
    measured = limits.Limits()
    with (
        measured.memory("", len(patch) + len(base), 0) as exceeded,
        pytest.raises(treepack.TreepackError),
    ):
        treepack.loads(sealed(bytes(body), end), base=base)
    assert not exceeded
    with pytest.raises(treepack.TreepackError, match="max_size=300000 "):
        treepack.loads(patch, base=base, max_size=300_000)


@pytest.mark.parametrize(
    ("version", "error"), [(0, treepack.DecodeError), (2, treepack.NewerVersionError)]
)
def test_only_newer_patches_ask_for_an_upgrade(version: int, error: type[Exception]) -> None:
    held = {"w": np.zeros(1000)}
    base = treepack.dumps(held)
    patch = treepack.dumps(held, base=base)
    body = patch[:-END].replace(b"\xa7version\x01", b"\xa7version" + bytes([version]))
    with pytest.raises(treepack.TreepackError, match=f"version {version}") as raised:
        treepack.loads(sealed(body, patch[-END:]), base=base)
    assert type(raised.value) is error


def test_a_wrong_base_names_each_leaf_once() -> None:
    """Of many blocks and leaves: looking up each in a list would take quadratic time."""
    held = {f"w{number:03}": np.arange(100.0) for number in range(150)} | {"x": np.zeros(1 << 18)}
    patch = treepack.dumps(held, base=held)
    other = {name: array + 1 for name, array in held.items()}
    with pytest.raises(treepack.BaseMismatchError, match="and 146 more") as error:
        treepack.loads(patch, base=other)
    assert error.value.paths == [*held][:100]
    buffer = bytearray(treepack.dumps(other))
    with pytest.raises(treepack.BaseMismatchError, match="and 146 more"):
        treepack.apply_delta(patch, buffer)
    assert buffer == treepack.dumps(other)
