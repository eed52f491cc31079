"""treepack beside flax, eformer, msgpack, msgspec and ormsgpack, on the same trees."""

from __future__ import annotations

import itertools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import msgpack
import msgspec
import numpy as np
import optax
import ormsgpack
import pytest
from eformer.pytree import serialization as eformer
from flax import serialization as flax
from flax.training.train_state import TrainState
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import tiers
import treepack
from treepack import serialization
from trees import DTYPES, SCALAR_DTYPES, arrays, assert_same, example_array, raw_trees, state_trees

ALIGNMENTS = [1, 2, 4, 8, 16, 32, 64]


@given(state_trees())
def test_to_bytes_without_alignment_is_what_flax_writes(tree: Any):
    assert treepack.serialization.to_bytes(tree, align=1) == flax.to_bytes(tree)


# Leaves that are alike in all but one way.
ALIKE = [
    np.arange(6, dtype=np.float32),
    np.arange(6, dtype=np.float32) + 1,
    np.arange(6, dtype=np.int32),
    np.arange(6, dtype=">f4"),
    np.arange(12, dtype=np.float32)[::2],
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
    np.arange(6, dtype=np.float32).reshape(3, 2),
    np.arange(6, dtype=np.dtype(np.float32, metadata={"another": "object"})),
    np.float32(1),
    np.array(1, np.float32),
    np.zeros((6, 0), np.float32),
    np.arange(300, dtype=np.float32),
    np.arange(300, dtype=np.float32) + 1,
    jnp.arange(6, dtype=jnp.float32),
    1.5,
]
# flax writes the bytes of another byte order as they are, under the name of the usual one.
USUAL = [it.astype("f4") if it is ALIKE[3] else it for it in ALIKE]


@given(st.lists(st.sampled_from(range(len(ALIKE))), max_size=20), st.sampled_from([2**30, 500, 20]))
def test_arrays_like_the_one_before(numbers: list[int], chunk: int):
    def tree(leaves: list[Any]) -> Any:
        found = [leaves[number] for number in numbers]
        return {**{f"{at}": leaf for at, leaf in enumerate(found)}, "list": found}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flax, "MAX_CHUNK_SIZE", chunk)
        patch.setattr(treepack.serialization, "MAX_CHUNK_SIZE", chunk)
        expected = flax.to_bytes(tree(USUAL))
        assert treepack.serialization.to_bytes(tree(ALIKE), align=1) == expected


KEYS = ["{}", "key of thirty-one characters {:02}", "\u00e9{}", "__{}", "x" * 300 + "{}"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([*KEYS, int]),
            st.sampled_from(range(len(ALIKE))),
            st.sampled_from([1, 2, 40]),
        ),
        max_size=12,
    ),
    st.sampled_from(ALIGNMENTS),
)
def test_runs_of_arrays_that_are_alike(runs: list[tuple[Any, int, int]], align: int):
    def tree(leaves: list[Any]) -> dict[Any, Any]:
        made: dict[Any, Any] = {}
        for key, leaf, count in runs:
            for at in range(len(made), len(made) + count):
                made[at if key is int else key.format(at)] = leaves[leaf]
        return made

    expected = flax.to_bytes(tree(USUAL))
    assert treepack.serialization.to_bytes(tree(ALIKE), align=1) == expected
    aligned = treepack.serialization.to_bytes(tree(ALIKE), align=align)
    assert_same_values(flax.msgpack_restore(aligned), flax.msgpack_restore(expected))


class Marked(np.ndarray):
    """An array with a handler."""


def marked(_: Marked, state: Any) -> Marked:
    array: np.ndarray = state["marked"] if isinstance(state, dict) else state
    return array.view(Marked)


serialization.register_serialization_state(Marked, lambda it: {"marked": np.asarray(it)}, marked)


def test_arrays_with_handlers_amid_arrays_without():
    tree: dict[str, Any] = {str(at): np.arange(6) for at in range(40)}
    tree["20"] = np.arange(6).view(Marked)
    encoded = serialization.to_bytes(tree)
    found = flax.msgpack_restore(encoded)
    assert list(found["20"]) == ["marked"]
    for state in (tree, {**tree, "20": np.arange(6)}):
        restored = serialization.from_bytes(tree, serialization.to_bytes(state))
        is_marked = [type(leaf) is Marked for leaf in restored.values()]
        assert is_marked == [at == 20 for at in range(40)]


def test_arrays_that_are_copied_first_stay_what_they_are():
    columns = {str(at): np.asfortranarray(np.full((200, 300), at)) for at in range(20)}
    assert serialization.to_bytes(columns, align=1) == flax.to_bytes(columns)


@pytest.mark.parametrize("key", ["\ud800", 1, "__msgpack_chunked_array__"])
def test_a_key_amid_arrays_is_refused_as_elsewhere(key: Any):
    arrays = {str(at): np.arange(100) for at in range(2000)}
    errors = []
    for tree in ({**arrays, key: np.arange(100), "1": 0}, {"0": 1, key: 1.5, "1": 0}):
        with pytest.raises((TypeError, ValueError, treepack.TreepackError)) as caught:
            treepack.serialization.to_bytes(tree)
        errors.append((caught.type, str(caught.value)[:40]))
    assert errors[0] == errors[1]


@given(raw_trees(), st.booleans())
def test_msgpack_serialize_without_alignment_is_what_flax_writes(tree: Any, in_place: bool):
    expected = flax.msgpack_serialize(tree, in_place=in_place)
    assert treepack.serialization.msgpack_serialize(tree, in_place, align=1) == expected


@given(state_trees(), st.sampled_from(ALIGNMENTS))
def test_flax_and_eformer_read_what_treepack_writes(tree: Any, align: int):
    expected = flax.msgpack_restore(flax.to_bytes(tree))
    encoded = treepack.serialization.to_bytes(tree, align=align)
    assert_same_values(flax.msgpack_restore(encoded), expected)
    assert_same_values(eformer.msgpack_restore(encoded), expected)


@given(raw_trees(), st.sampled_from([None, True]))
def test_treepack_reads_what_flax_writes(tree: Any, copy: bool | None):
    encoded = flax.msgpack_serialize(tree, in_place=True)
    assert_same(treepack.serialization.msgpack_restore(encoded, copy=copy), native(tree))


@given(state_trees(), st.sampled_from(ALIGNMENTS), st.sampled_from([None, True]))
def test_a_tree_comes_back_into_its_template(tree: Any, align: int, copy: bool | None):
    restored = treepack.serialization.from_bytes(
        tree, treepack.serialization.to_bytes(tree, align=align), copy=copy
    )
    assert_same(restored, native(tree))


@given(state_trees())
def test_to_state_dict_is_that_of_flax(tree: Any):
    assert_same_values(treepack.serialization.to_state_dict(tree), flax.to_state_dict(tree))


@given(raw_trees())
def test_other_msgpack_libraries_read_the_containers(tree: Any):
    encoded = treepack.serialization.msgpack_serialize(tree, align=64)

    def bodies(code: int, data: Any) -> Any:
        return (code, len(data))

    plain = msgpack.unpackb(encoded, ext_hook=bodies, strict_map_key=False)
    assert str(msgspec.msgpack.decode(encoded, ext_hook=bodies)) == str(plain)
    assert str(ormsgpack.unpackb(encoded, ext_hook=bodies)) == str(plain)


@given(arrays(), st.sampled_from(ALIGNMENTS), st.integers(0, 70), st.booleans())
def test_arrays_are_aligned_wherever_they_stand(array: Any, align: int, before: int, boxed: bool):
    tree = {"x" * before: {"w": array}} if boxed else {"w": array, "v": [array]}
    encoded = treepack.serialization.msgpack_serialize(tree, in_place=True, align=align)
    for restored in (
        treepack.serialization.msgpack_restore(encoded),
        flax.msgpack_restore(encoded),
    ):
        assert_same_values(restored, tree)
    if boxed and array.nbytes >= 1024:
        found = treepack.serialization.msgpack_restore(encoded, copy=False if align >= 16 else None)
        offset = found["x" * before]["w"].ctypes.data - np.frombuffer(encoded, "u1").ctypes.data
        assert offset % align == 0 or align < array.dtype.alignment


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (5, 7), (600,)])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_every_dtype(dtype: np.dtype, shape: tuple[int, ...]):
    tree = {"a": example_array(dtype, shape)}
    if dtype in SCALAR_DTYPES:
        tree["s"] = example_array(dtype, (2,))[1]
    assert treepack.serialization.to_bytes(tree, align=1) == flax.to_bytes(tree)
    tree["s"] = example_array(dtype, (2,))[1]
    for align, copy in itertools.product((1, 16, 64), (None, True)):
        encoded = treepack.serialization.to_bytes(tree, align=align)
        assert_same(treepack.serialization.msgpack_restore(encoded, copy=copy), tree)
        assert_same(flax.msgpack_restore(encoded), tree)


BOUNDARIES = [0, 1, 15, 16, 17, 31, 32, 33, 127, 128, 255, 256, 257, 65535, 65536, 65537]


@pytest.mark.parametrize("size", BOUNDARIES)
def test_header_widths(size: int):
    tree = {
        "str": "s" * size,
        "bin": b"b" * size,
        "k" * size: 1,
        "list": [None] * size,
        "map": {str(i): i for i in range(size)},
        "array": np.arange(size % 256).astype(np.uint8).repeat(1 + size // 256),
        "shape": np.zeros((size, 0), np.float32),
    }
    # The body of an array has 10 to 20 bytes besides its payload.
    for less in range(24):
        if size > less:
            tree[f"ext{less}"] = np.zeros(size - less, np.uint8)
    encoded = treepack.serialization.msgpack_serialize(tree, in_place=True, align=1)
    assert encoded == flax.msgpack_serialize(tree, in_place=True)
    assert_same(treepack.serialization.msgpack_restore(encoded), tree)


@pytest.mark.parametrize("power", [7, 8, 15, 16, 31, 32, 63, 64])
def test_integer_widths(power: int):
    values = [2**power + offset for offset in (-2, -1, 0, 1)]
    values += [-value for value in values]
    values = [value for value in values if -(2**63) <= value < 2**64]
    encoded = treepack.serialization.msgpack_serialize(values)
    assert encoded == flax.msgpack_serialize(values)
    assert treepack.serialization.msgpack_restore(encoded) == values
    shape = np.zeros((2**power % 2**62, 0), np.uint8)
    assert_same(
        treepack.serialization.from_bytes(None, treepack.serialization.to_bytes(shape)), shape
    )


@pytest.mark.parametrize("size", [0, 1, 7, 8, 64, 100, 1000, 7.9, 1e9, 2**62])
def test_chunks_of_any_size(size: float, chunk_size: Any):
    chunk_size(size)
    tree = {
        "a": np.arange(40, dtype=np.float32).reshape(4, 10),
        "n": {"b": jnp.arange(9, dtype=jnp.bfloat16), "zero": np.float32(3), "e": np.zeros((0, 3))},
        "t": (np.arange(3), np.array(5)),
    }
    assert treepack.serialization.to_bytes(tree, align=1) == flax.to_bytes(tree)
    for align in ALIGNMENTS:
        encoded = treepack.serialization.to_bytes(tree, align=align)
        assert_same(treepack.serialization.from_bytes(tree, encoded), native(tree))
        assert_same(treepack.serialization.from_bytes(tree, encoded, copy=True), native(tree))
        assert_same(eformer.from_bytes(tree, encoded), native(tree))
    top = np.arange(100.0)
    assert treepack.serialization.to_bytes(top, align=1) == flax.to_bytes(top)
    assert_same(treepack.serialization.msgpack_restore(treepack.serialization.to_bytes(top)), top)


@pytest.mark.campaign
@pytest.mark.parametrize("more", tiers.either([], [], nightly=[1000]))
def test_an_array_over_one_gib(more: int):
    array = np.arange(2**27 + more, dtype=np.float64)
    encoded = treepack.serialization.to_bytes({"big": array})
    restored = treepack.serialization.msgpack_restore(encoded)["big"]
    assert np.array_equal(restored, array)
    del restored
    theirs = flax.msgpack_restore(encoded)["big"]
    assert np.array_equal(theirs, array)
    del theirs
    assert encoded == flax.to_bytes({"big": array})


class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.BatchNorm(use_running_average=False)(nn.Dense(40)(x)))


OPTIMIZERS = {
    "adam": optax.adam(1e-3),
    "adamw": optax.adamw(1e-3, mask=lambda params: jax.tree.map(lambda p: p.ndim > 1, params)),
    "adafactor": optax.adafactor(1e-3),
    "sgd": optax.sgd(1e-2, momentum=0.9, nesterov=True),
    "rmsprop": optax.rmsprop(1e-2, centered=True, momentum=0.9),
    "lamb": optax.lamb(1e-3),
    "lion": optax.lion(1e-3),
    "novograd": optax.novograd(1e-3),
    "yogi": optax.yogi(1e-3),
    "adagrad": optax.adagrad(1e-2),
    "adadelta": optax.adadelta(1e-2),
    "radam": optax.radam(1e-3),
    "amsgrad": optax.amsgrad(1e-3),
    "fromage": optax.fromage(1e-3),
    "sm3": optax.sm3(1e-3),
    "lbfgs": optax.lbfgs(1e-3),
    "schedule": optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.scale_by_adam(),
        optax.scale_by_schedule(optax.cosine_decay_schedule(1e-3, 100)),
    ),
    "accumulated": optax.MultiSteps(optax.adam(1e-3), 4).gradient_transformation(),
    "injected": optax.inject_hyperparams(optax.adam)(learning_rate=1e-3),
    "partitioned": optax.partition(
        {"a": optax.adam(1e-3), "b": optax.sgd(1e-2)},
        lambda params: jax.tree.map(lambda p: "a" if p.ndim > 1 else "b", params),
    ),
    "ema": optax.chain(optax.adam(1e-3), optax.ema(0.9)),
    "finite": optax.apply_if_finite(optax.adam(1e-3), 5),
    "lookahead-free": optax.chain(optax.add_decayed_weights(1e-4), optax.trace(0.9)),
}


@tiers.parametrize("name", OPTIMIZERS, quick=4)
def test_optimizer_states(name: str):
    params = Model().init(jax.random.PRNGKey(0), jnp.ones((2, 30)))["params"]
    optimizer = OPTIMIZERS[name]
    state = TrainState.create(apply_fn=Model().apply, params=params, tx=optimizer)
    expected = flax.to_bytes(state)
    assert treepack.serialization.to_bytes(state, align=1) == expected
    template = jax.tree.map(jnp.zeros_like, state)
    for encoded in (expected, treepack.serialization.to_bytes(state, align=64)):
        ours = treepack.serialization.from_bytes(template, encoded)
        theirs = flax.from_bytes(template, encoded)
        assert jax.tree.structure(ours) == jax.tree.structure(theirs) == jax.tree.structure(state)
        jax.tree.map(np.testing.assert_array_equal, ours, theirs)
        jax.tree.map(np.testing.assert_array_equal, ours, state)


@pytest.mark.parametrize("spec", [PartitionSpec("x", "y"), PartitionSpec("y"), PartitionSpec()])
def test_arrays_over_several_devices(spec: PartitionSpec):
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("x", "y"))
    array = jnp.arange(8 * 300, dtype=jnp.bfloat16).reshape(8, 300)
    sharded = jax.device_put(array, NamedSharding(mesh, spec))
    assert len(sharded.sharding.device_set) == 4
    assert treepack.serialization.to_bytes({"w": sharded}, align=1) == flax.to_bytes({"w": array})


def test_jax_arrays_of_any_layout():
    base = jnp.arange(24.0).reshape(2, 3, 4)
    tree = {"t": base.transpose(2, 0, 1), "s": base[:, ::2], "0": jnp.float32(3), "e": base[:0]}
    assert treepack.serialization.to_bytes(tree, align=1) == flax.to_bytes(tree)


def native(tree: Any) -> Any:
    """Returns a tree as it comes back: jax arrays as NumPy's, all arrays contiguous."""
    if isinstance(tree, dict):
        return {key: native(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(native(value) for value in tree)
    return np.array(tree, order="C") if isinstance(tree, (np.ndarray, jax.Array)) else tree


def assert_same_values(found: Any, expected: Any) -> None:
    """Like `assert_same`, for trees with arrays that are not contiguous."""
    assert_same(native(found), native(expected))
