"""Weak dtypes of JAX's arrays come back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import flax.serialization
import jax
import jax.numpy as jnp
import msgpack
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import treepack

WEAK = {
    "float": jnp.asarray(0.1),
    "int": jnp.asarray(3),
    "complex": jnp.asarray(1 + 2j),
    "nan": jnp.asarray(float("nan")),
    "zero": jnp.asarray(-0.0),
    "vector": jnp.full(3, 2.5) * jnp.asarray(2.0),
    "matrix": jnp.full((2, 100), 7),
    "empty": jnp.full((0, 3), 1.0),
}

STRONG = {
    "ones": jnp.ones(3) * 2,
    "half": jnp.float16(2),
    "bool": jnp.asarray(True),
    "scalar": jnp.float32(1),
    "numpy": np.arange(3),
}


def weak_types(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: getattr(leaf, "weak_type", None), tree)


def check(found: Any, saved: Any) -> None:
    """Compares trees with bits, dtypes, and weakness."""
    assert weak_types(found) == weak_types(saved)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(saved), strict=True):
        assert type(one) is type(other)
        assert np.asarray(one).dtype == np.asarray(other).dtype
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def test_the_trees_here_are_what_they_seem() -> None:
    assert set(weak_types(WEAK).values()) == {True}
    assert set(weak_types(STRONG).values()) == {False, None}


@pytest.mark.parametrize("tree", [WEAK, STRONG, [WEAK, (STRONG, 5)], WEAK["int"]], ids=range(4))
def test_without_a_template(tmp_path: Path, tree: Any) -> None:
    check(treepack.loads(treepack.dumps(tree)), tree)
    path = tmp_path / "a.treepack"
    treepack.save(path, tree)
    check(treepack.load(path), tree)
    check(treepack.open(path).load(), tree)
    expected = jax.tree.map(lambda leaf: getattr(leaf, "weak_type", False), tree)
    expected = jax.tree.map(lambda leaf: leaf is True, expected)
    for found in (treepack.abstract(path), treepack.abstract(treepack.dumps(tree))):
        assert jax.tree.map(lambda leaf: getattr(leaf, "weak_type", False), found) == expected
    as_numpy = treepack.load(path, arrays="numpy")
    assert not any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(as_numpy))


def test_a_template_says_what_is_weak() -> None:
    weak, strong = jnp.asarray(1.0), jnp.float32(1)
    for saved in (weak, strong, np.array(1, np.float32), 1.0):
        data = treepack.dumps({"a": saved})
        for template in (weak, strong, jnp.full(2, 1.0)[0]):
            for target in (template, jax.eval_shape(lambda template=template: template)):
                found = treepack.loads(data, {"a": target})["a"]
                assert isinstance(found, jax.Array)
                assert found.weak_type == template.weak_type
    restored = treepack.loads(treepack.dumps(WEAK), treepack.abstract(treepack.dumps(WEAK)))
    check(restored, WEAK)


def test_a_restored_state_needs_no_new_compilation() -> None:
    traced = []

    @jax.jit
    def step(tree: Any) -> Any:
        traced.append(1)
        return jax.tree.map(lambda leaf: leaf + 1, tree)

    step(WEAK)
    step(treepack.loads(treepack.dumps(WEAK)))
    step(treepack.loads(treepack.dumps(WEAK), WEAK))
    assert len(traced) == 1


@pytest.mark.campaign
def test_arrays_of_many_shapes_compile_nothing(caplog: pytest.LogCaptureFixture) -> None:
    shapes = [(0, size) for size in range(1, 40)] + [(size,) for size in range(1, 20)]
    made = [jnp.full(shape, 1.5) for shape in shapes]
    data = treepack.dumps({str(number): array for number, array in enumerate(made)})
    target = treepack.abstract(data)
    record = treepack.dumps({}, metadata={"arrays": [jnp.asarray(it)[None] for it in made]})
    mesh = Mesh(np.array(jax.devices()), "x")
    place = NamedSharding(mesh, PartitionSpec())
    with jax.log_compiles(), caplog.at_level("WARNING"):
        for found in (
            treepack.loads(data),
            treepack.loads(data, target),
            treepack.loads(data, sharding=place),
            treepack.open(data, salvage=True).load(),
        ):
            assert all(array.weak_type for array in found.values())
        assert len(treepack.open(record).metadata["arrays"]) == len(made)
    assert not [it.getMessage() for it in caplog.records if "ompiling" in it.getMessage()]


def test_devices_and_shardings_stay() -> None:
    weak = jnp.full(8, 1.5)
    data = treepack.dumps({"a": weak})
    mesh = Mesh(np.array(jax.devices()), "x")
    explicit = jax.make_mesh((len(jax.devices()),), ("x",), axis_types=(AxisType.Explicit,))
    for place in (
        jax.devices()[-1],
        NamedSharding(mesh, PartitionSpec("x")),
        NamedSharding(explicit, PartitionSpec("x")),
    ):
        target = {"a": jax.device_put(weak, place)}
        found = treepack.loads(data, target)["a"]
        assert found.weak_type
        assert found.committed
        assert found.sharding == target["a"].sharding
        options: Any = {"sharding" if isinstance(place, NamedSharding) else "device": place}
        found = treepack.loads(data, **options)["a"]
        assert found.weak_type
        assert found.sharding == target["a"].sharding
    assert not treepack.loads(data)["a"].committed


def test_every_bit_stays() -> None:
    bits = np.array([0x7F800001, 0xFFC12345, 1, 0x80000001, 0x7F800000], np.uint32)
    target = {"a": jnp.full(5, 1.0)} | {str(i): jnp.asarray(1.0) for i in range(5)}
    saved = {"a": bits.view(np.float32)} | {
        str(i): np.asarray(it) for i, it in enumerate(bits.view("f4"))
    }
    found = treepack.loads(treepack.dumps(saved), target)
    check(found, {name: found[name] for name in target})
    assert all(leaf.weak_type for leaf in found.values())
    assert np.asarray(found["a"]).tobytes() == bits.tobytes()
    assert b"".join(np.asarray(found[str(i)]).tobytes() for i in range(5)) == bits.tobytes()


def test_files_without_weak_arrays_have_no_trace_of_them() -> None:
    assert b"weak" not in treepack.dumps(STRONG)
    assert b"weak_jax" in treepack.dumps(WEAK)
    assert treepack.serialization.to_bytes(WEAK) == flax.serialization.to_bytes(WEAK)


def test_flax_reads_them() -> None:
    found = flax.serialization.msgpack_restore(treepack.dumps(WEAK))
    found.pop("__treepack__")
    for name, array in WEAK.items():
        assert np.asarray(found[name]).tobytes() == np.asarray(array).tobytes()


@pytest.mark.parametrize("leaf", [5, "a", None, b"abc", {"x": 1}, np.float16(2), np.arange(3)])
def test_a_record_that_calls_other_leaves_weak(leaf: Any) -> None:
    state = msgpack.unpackb(treepack.dumps({"a": WEAK["vector"]}))
    state["a"] = msgpack.unpackb(flax.serialization.to_bytes({"a": leaf}))["a"]
    data = msgpack.packb(state)
    for verb in (treepack.loads, treepack.abstract):
        try:
            found = verb(data)
        except treepack.TreepackError:
            continue
        assert not getattr(found["a"], "dtype", None) or np.asarray(leaf).dtype == found["a"].dtype


def test_a_record_that_calls_a_typed_key_weak() -> None:
    key = jax.random.key(3)
    state = msgpack.unpackb(treepack.dumps({"a": WEAK["vector"]}), strict_map_key=False)
    state["a"] = msgpack.unpackb(treepack.dumps({"a": key}), strict_map_key=False)["a"]
    found = treepack.loads(msgpack.packb(state), sharding=SingleDeviceSharding(jax.devices()[1]))
    assert jax.random.key_data(found["a"]).tolist() == jax.random.key_data(key).tolist()


def test_sharded_checkpoints(tmp_path: Path) -> None:
    mesh = Mesh(np.array(jax.devices()), "x")
    weak = jax.device_put(jnp.full(8, 1.5), NamedSharding(mesh, PartitionSpec("x")))
    tree = {"a": weak, "b": jnp.asarray(2.0), "c": jnp.ones(3)}
    treepack.save(tmp_path / "sharded", tree, sharded=True)
    check(treepack.load(tmp_path / "sharded", tree), tree)
    assert weak_types(treepack.load(tmp_path / "sharded")) == weak_types(tree)


@pytest.mark.campaign
def test_numpy_alone_does_without_jax() -> None:
    program = """
import sys, numpy as np, treepack
treepack.loads(treepack.dumps({"a": np.ones(3)}))
assert "jax" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
