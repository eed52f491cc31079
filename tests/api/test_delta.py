"""Patches: `base=`, and `apply_delta`."""

from __future__ import annotations

import gzip
import io
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import treepack
from treepack import serialization
from trees import assert_equal, assert_same, leaves, state_trees

BF16 = ml_dtypes.bfloat16


def moved(array: np.ndarray, rate: float, seed: int = 1) -> np.ndarray:
    """Returns an array of which some elements are one unit in the last place away."""
    rng = np.random.default_rng(seed)
    words = array.view(f"u{array.dtype.itemsize}").copy()
    chosen = rng.random(words.shape) < rate
    words[chosen] += rng.choice([-1, 1], int(chosen.sum())).astype(words.dtype)
    return words.view(array.dtype)


def policies() -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns a tree, and the same after a step."""
    rng = np.random.default_rng(0)
    held = {
        "params": {
            "w": rng.standard_normal((300, 400)).astype(BF16),
            "frozen": rng.standard_normal((100, 100)).astype(np.float32),
            "b": rng.standard_normal(7),
        },
        "layers": [(np.arange(50), "relu"), None],
        "step": np.int64(3),
    }
    params = {**held["params"], "w": moved(held["params"]["w"], 0.02)}
    params["b"] = params["b"] * 1.5
    return held, {**held, "params": params, "step": np.int64(4)}


@given(state_trees(leaves()), state_trees(leaves()))
def test_any_two_trees_are_a_base_and_a_patch(tree: Any, held: Any):
    for other in (held, tree):
        data = treepack.dumps(other)
        # Bytes are data, not a tree, and lists of them frames; a text is a path, and several are an
        # error, as other leaves are, except arrays; `None` is no base.
        values = [*other.values()] if isinstance(other, dict) else other
        is_node = isinstance(values, (list, tuple))
        are_data = (
            all(isinstance(value, (bytes, str)) for value in values) and values
            if is_node
            else not hasattr(other, "dtype")
        )
        base = data if are_data else other
        patch = treepack.dumps(tree, base=base)
        assert treepack.dumps(tree, base=data) == patch
        assert_equal(treepack.loads(patch, base=base), treepack.loads(treepack.dumps(tree)))
        for described in (True, False):
            options: Any = {"described": described}
            try:
                whole = b"".join(treepack.buffers(tree, **options))
            except OverflowError:  # the form of flax has no big integers
                assert not described
                continue
            patch = b"".join(treepack.buffers(tree, base=base, **options))
            assert treepack.packed_size(tree, base=base, **options) == len(patch)
            packed = bytearray(len(patch))
            treepack.pack_into(tree, packed, base=base, **options)
            assert packed == patch
            assert_equal(treepack.loads(patch, base=base), treepack.loads(whole))


@pytest.mark.parametrize("length", [0, 1, 23, 24, 25])
def test_short_bytes_end_a_patch_without_types(length: int):
    """Where the end of a file has its record."""
    held = {"w": np.arange(1000.0), "z": b"y" * length}
    tree = {"w": held["w"] + 1, "z": b"z" * length}
    patch = b"".join(treepack.buffers(tree, base=held))
    assert_same(treepack.loads(patch, base=held), tree)
    assert_same(treepack.loads(treepack.dumps(tree, base=held), base=held), tree)


@given(st.data())
def test_every_bit_survives(data: st.DataObject):
    dtype = np.dtype(data.draw(st.sampled_from(["f2", "f4", "f8", "i1", "u4", "c8", "?", BF16])))
    size = 40 * dtype.itemsize
    held, new = (data.draw(st.binary(min_size=size, max_size=size)) for _ in range(2))
    changed = data.draw(st.integers(0, size))
    new = new[:changed] + held[changed:]
    if dtype.kind == "b":
        held, new = bytes(it & 1 for it in held), bytes(it & 1 for it in new)
    base, tree = {"w": np.frombuffer(held, dtype)}, {"w": np.frombuffer(new, dtype)}
    patch = treepack.dumps(tree, base=base)
    assert treepack.loads(patch, base=base)["w"].tobytes() == new


@pytest.mark.parametrize("leaf", [2**90, jnp.add, jax.nn.relu])
def test_a_base_is_any_tree_that_is_saved(leaf: Any):
    held, new = ({"leaf": leaf, "w": np.arange(100.0) + step} for step in (0, 1))
    patch = treepack.dumps(new, base=held)
    assert patch == treepack.dumps(new, base=treepack.dumps(held))
    assert_same(treepack.loads(patch, new, base=held), new)


@pytest.mark.parametrize(
    "kind", ["tree", "jax", "bytes", "state", "aligned", "gzip", "file", "mapped"]
)
def test_a_base_is_a_tree_or_data(kind: str, tmp_path: Path):
    held, policy = policies()
    base: Any = {
        "tree": lambda: held,
        "jax": lambda: jax.tree.map(jnp.asarray, {**held, "layers": None, "step": None}),
        "bytes": lambda: treepack.dumps(held),
        "state": lambda: serialization.to_bytes(held),
        "aligned": lambda: memoryview(treepack.dumps(held, align=64)),
        "gzip": lambda: gzip.compress(treepack.dumps(held)),
        "file": lambda: treepack.open(treepack.dumps(held)),
        "mapped": lambda: (
            treepack.save(tmp_path / "held", held),
            treepack.open(tmp_path / "held"),
        )[1],
    }[kind]()
    patch = treepack.dumps(policy, base=base)
    assert len(patch) < 12_000 < len(treepack.dumps(policy)) / 20 + 12_000
    assert_same(treepack.loads(patch, base=base), policy)
    if kind != "jax":
        assert_same(treepack.loads(patch, base=held), policy)


def test_all_that_encodes_takes_a_base():
    held, policy = policies()
    for described in (True, False):
        expected = bytearray(treepack.packed_size(policy, described=described))
        treepack.pack_into(policy, expected, described=described)
        pieces = b"".join(treepack.buffers(policy, base=held, described=described))
        assert treepack.packed_size(policy, base=held, described=described) == len(pieces)
        patch = bytearray(len(pieces) + 2)
        options: Any = {"base": held, "described": described, "offset": 2}
        assert treepack.pack_into(policy, patch, **options) == len(pieces)
        assert patch[2:] == pieces
        buffer = bytearray(len(expected) + 9)
        treepack.pack_into(held, buffer, described=described, offset=4)
        assert treepack.apply_delta(pieces, buffer, offset=4) == len(expected)
        assert buffer[4:-5] == expected
    for compress in ("gzip", "numbers"):
        compressed = treepack.dumps(policy, base=held, compress=compress)
        assert_same(treepack.loads(compressed, base=held), policy)


def test_a_patch_is_msgpack_of_the_same_tree():
    held, policy = policies()
    mark, tree, tail = msgpack.unpackb(treepack.dumps(policy, base=held), strict_map_key=False)
    assert mark == tail[-8:]
    assert tail.endswith(b"\x93treepd\n")
    codes = {name: leaf.code for name, leaf in tree["params"].items()}
    assert codes == {"w": 68, "frozen": 68, "b": 1}  # the last is too small
    assert tree["layers"]["0"]["1"] == "relu"


def test_arrays_come_back_as_the_options_say():
    held = {"w": jnp.arange(1000, dtype=jnp.float32), "frozen": jnp.ones(500)}
    policy = {"w": held["w"].at[::50].add(1.0), "frozen": held["frozen"]}
    patch = treepack.dumps(policy, base=held)
    found = treepack.loads(patch, base=held)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(found))
    assert_same({name: np.asarray(leaf) for name, leaf in found.items()}, policy)
    half = jax.tree.map(lambda it: jax.ShapeDtypeStruct(it.shape, jnp.bfloat16), policy)
    assert treepack.loads(patch, half, base=held, cast=True)["w"].dtype == jnp.bfloat16
    assert type(treepack.loads(patch, base=held, arrays="numpy")["w"]) is np.ndarray
    with pytest.raises(treepack.MismatchError):
        treepack.loads(patch, {"w": held["w"]}, base=held, strict="exact")
    with pytest.raises(treepack.TreepackError, match="max_size=100 "):
        treepack.loads(patch, base=held, max_size=100)


def test_whole_data_ignore_a_base():
    held, policy = policies()
    assert_same(treepack.loads(treepack.dumps(policy), base=held), policy)


def test_a_patch_needs_its_base():
    held, policy = policies()
    patch = treepack.dumps(policy, base=held)
    both = ["params/w", "params/frozen"]
    with pytest.raises(treepack.TreepackError, match="this is a patch: pass base="):
        treepack.loads(patch)
    with pytest.raises(treepack.TreepackError, match="a patch itself"):
        treepack.loads(patch, base=patch)
    with pytest.raises(treepack.BaseMismatchError, match=f"differ: {', '.join(both)}$") as error:
        treepack.loads(patch, base={"layers": held["layers"], "params": {"w": np.zeros(3)}})
    assert error.value.paths == both
    with pytest.raises(
        treepack.BaseMismatchError, match=r"has none of the leaves: pa.*, l"
    ) as error:
        treepack.loads(patch, base={"ema": held})
    assert error.value.paths == [*both, "layers/0/0"]
    for path in ("w", "frozen"):
        params = {**held["params"], path: moved(held["params"][path], 0.001)}
        other = {**held, "params": params}
        with pytest.raises(treepack.BaseMismatchError) as error:
            treepack.loads(patch, base=other)
        assert error.value.paths == [f"params/{path}"]


def test_frames_are_a_base():
    held, new = {"w": np.arange(1000.0)}, {"w": np.arange(1000.0) + 1}
    frames = treepack.buffers(held)
    patch = treepack.dumps(new, base=frames)
    assert patch == treepack.dumps(new, base=held)
    assert np.array_equal(treepack.loads(patch, base=frames)["w"], new["w"])


def test_a_whole_tree_is_not_applied():
    tree = {"w": np.arange(100.0)}
    buffer = bytearray(treepack.packed_size(tree))
    treepack.pack_into(tree, buffer)
    for data in (bytes(buffer), gzip.compress(treepack.dumps(tree, base=buffer))):
        with pytest.raises(treepack.DecodeError, match=r"not a patch: .* into the buffer"):
            treepack.apply_delta(data, buffer)


def test_a_damaged_patch_is_an_error():
    held, policy = policies()
    patch = treepack.dumps(policy, base=held)
    for at in range(0, len(patch), 37):
        damaged = bytearray(patch)
        damaged[at] ^= 1 << at % 8
        with pytest.raises(treepack.TreepackError):
            treepack.loads(damaged, base=held)
        buffer = bytearray(treepack.dumps(held))
        with pytest.raises(treepack.TreepackError):
            treepack.apply_delta(damaged, buffer)
        assert buffer == treepack.dumps(held)


def test_shared_memory_is_patched_in_place():
    held, policy = policies()
    memory = SharedMemory(create=True, size=treepack.packed_size(held) + 100)
    try:
        size = treepack.pack_into(held, memory.buf)
        patch = b"".join(treepack.buffers(policy, base=held))
        assert treepack.apply_delta(patch, memory.buf) == size
        found = serialization.from_bytes(held, bytes(memory.buf[:size]))
        assert_same(found, policy)
        # The same patch once more: this is another base, and it stays.
        before = bytes(memory.buf)
        with pytest.raises(treepack.BaseMismatchError):
            treepack.apply_delta(patch, memory.buf)
        assert before == bytes(memory.buf)
    finally:
        memory.close()
        memory.unlink()


def test_a_patch_may_lie_in_the_buffer():
    held, policy = policies()
    patch = b"".join(treepack.buffers(policy, base=held))
    size = treepack.packed_size(held)
    buffer = bytearray(size) + patch
    treepack.pack_into(held, buffer)
    assert treepack.apply_delta(memoryview(buffer)[size:], buffer) == size
    assert_same(serialization.from_bytes(held, bytes(buffer[:size])), policy)


def test_an_array_that_moves_is_not_patched_in_place():
    tree: Any = {"step": 127, "w": np.arange(100.0)}
    buffer = bytearray(treepack.packed_size(tree) + 100)
    treepack.pack_into(tree, buffer, align=1)
    before = bytes(buffer)
    patch = b"".join(treepack.buffers({**tree, "step": 128}, base=tree, align=1))
    with pytest.raises(ValueError, match=r"^w would move .* pack the whole tree"):
        treepack.apply_delta(patch, buffer)
    with pytest.raises(ValueError, match="buffer is too small"):
        treepack.apply_delta(patch, buffer[: len(before) - 105])
    with pytest.raises(BufferError):
        treepack.apply_delta(patch, before)
    with pytest.raises(ValueError, match="offset"):
        treepack.apply_delta(patch, buffer, offset=-1)
    assert buffer == before


def test_a_stream_is_not_a_base():
    with pytest.raises(TypeError, match="is a file object"):
        treepack.dumps({}, base=io.BytesIO())


@pytest.mark.parametrize(
    ("buffer", "message"),
    [
        (b"<\0\0\0\0\0\0\0{" + bytes(60), "looks like a safetensors file"),
        (b"PK\x03\x04" + bytes(60), "does not begin with a tree: write one"),
        (bytes(64), "does not begin with a tree: write one with pack_into first"),
    ],
)
def test_a_patch_says_that_a_buffer_has_no_tree(buffer: bytes, message: str):
    held = {"w": np.arange(1000.0)}
    with pytest.raises(treepack.DecodeError, match=message):
        treepack.apply_delta(treepack.dumps(held, base=held), bytearray(buffer))


def test_unchanged_jax_arrays_are_those_of_the_base():
    held = {
        "w": jnp.arange(1000, dtype=jnp.float32),
        "frozen": {"a/b": jnp.ones(500), "half": jnp.ones(500, jnp.bfloat16)},
        "numpy": np.ones(500, np.float32),
        "tiny": jnp.ones(1),
        "weak": jnp.full(200, 1.0),
    }
    policy = {**held, "w": held["w"].at[3].set(0)}
    patch = treepack.dumps(policy, base=held)
    for found in (treepack.loads(patch, base=held), treepack.loads(patch, held, base=held)):
        assert_same(jax.tree.map(np.asarray, found), jax.tree.map(np.asarray, policy))
        pairs = zip(jax.tree.leaves(found), jax.tree.leaves(held), strict=True)
        assert [one is two for one, two in pairs] == [True, True, False, False, False, True], found
        assert not np.shares_memory(found["numpy"], held["numpy"])
    half = jax.tree.map(lambda it: jax.ShapeDtypeStruct(it.shape, jnp.bfloat16), policy)
    found = treepack.loads(patch, half, base=held, cast=True)
    assert found["frozen"]["half"] is held["frozen"]["half"]
    assert held["weak"].weak_type
    assert found["frozen"]["a/b"].dtype == jnp.bfloat16
    assert type(treepack.loads(patch, base=held, arrays="numpy")["weak"]) is np.ndarray
    device = treepack.loads(patch, base=held, device=jax.devices()[0])
    assert device["frozen"]["a/b"].committed
    for base in (treepack.dumps(held), treepack.open(treepack.dumps(held))):
        found = treepack.loads(patch, base=base)
        assert not any(one is two for one, two in zip(found.values(), held.values(), strict=True))


def test_unchanged_arrays_of_the_base_keep_their_place():
    mesh = jax.make_mesh((2,), ("x",), devices=jax.devices()[:2])
    there = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    held = {"w": jax.device_put(jnp.ones(800), there), "b": jnp.ones(800)}
    patch = treepack.dumps(held, base=held)
    found = treepack.loads(patch, base=held, sharding={"w": there, "b": there})
    assert found["w"] is held["w"]
    assert found["b"].sharding == there
    found = treepack.loads(patch, base=held, device=jax.devices()[1])
    assert {leaf.devices().pop() for leaf in found.values()} == {jax.devices()[1]}


@pytest.mark.parametrize("keys", ["{}", "params/layers_{}/attention/query/kernel"])
def test_unchanged_arrays_take_few_bytes(keys: str) -> None:
    count = 300
    held = {keys.format(at): np.ones(1000, np.float32) for at in range(count)}
    assert len(treepack.dumps(held, base=held)) < 100 * count
