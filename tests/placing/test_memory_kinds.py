"""Arrays in each memory of their devices, through each verb, with and without a template."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import tiers
import treepack

KINDS = [memory.kind for memory in jax.devices()[0].addressable_memories()]
MESH = Mesh(np.array(jax.devices()[:4]).reshape(4), ("x",))


def one(kind: str) -> Any:
    return SingleDeviceSharding(jax.devices()[1], memory_kind=kind)


def rows(kind: str) -> Any:
    return NamedSharding(MESH, PartitionSpec("x"), memory_kind=kind)


def columns(kind: str) -> Any:
    return NamedSharding(MESH, PartitionSpec(None, "x"), memory_kind=kind)


def replicas(kind: str) -> Any:
    return NamedSharding(MESH, PartitionSpec(), memory_kind=kind)


def in_file(path: Path, tree: Any, template: Any, **options: Any) -> Any:
    treepack.save(path, tree)
    return treepack.load(path, template, **options)


def in_compressed_file(path: Path, tree: Any, template: Any, **options: Any) -> Any:
    treepack.save(path, tree, compress="numbers")
    return treepack.load(path, template, **options)


def in_directory(path: Path, tree: Any, template: Any, **options: Any) -> Any:
    treepack.save(path, tree, sharded=True)
    return treepack.load(path, template, **options)


def in_safetensors(path: Path, tree: Any, template: Any, **options: Any) -> Any:
    treepack.save(path.with_suffix(".safetensors"), tree)
    return treepack.load(path.with_suffix(".safetensors"), template, **options)


def in_background(path: Path, tree: Any, template: Any, **options: Any) -> Any:
    treepack.save(path, tree, background=True).result()
    return treepack.load(path, template, **options)


def opened(path: Path, tree: Any, template: Any, **options: Any) -> Any:
    treepack.save(path, tree)
    with treepack.open(path) as file:
        return file.load(template, **options)


def in_bytes(path: Path, tree: Any, template: Any, **options: Any) -> Any:
    return treepack.loads(treepack.dumps(tree), template, **options)


def against_a_base(path: Path, tree: Any, template: Any, **options: Any) -> Any:
    base = jax.tree.map(lambda leaf: jax.device_put(leaf + 1, leaf.sharding), tree)
    patch = treepack.dumps(tree, base=base)
    return treepack.loads(patch, template, base=base, **options)


def in_series(path: Path, tree: Any, template: Any, **options: Any) -> Any:
    run = treepack.Series(path)
    run.save(0, tree)
    found = run.resume(template, **options)
    assert found is not None
    return found[1]


VERBS = [
    in_file,
    in_compressed_file,
    in_directory,
    in_safetensors,
    in_background,
    opened,
    in_bytes,
    against_a_base,
    in_series,
]


@tiers.parametrize("kind", KINDS, quick=2)
@pytest.mark.parametrize("verb", VERBS)
def test_arrays_come_to_the_memory_of_the_template(
    tmp_path: Path, verb: Callable[..., Any], kind: str
) -> None:
    values = jnp.arange(64, dtype=jnp.float32).reshape(8, 8)
    for number, place in enumerate((one, rows, columns, replicas)):
        for saved in {kind, KINDS[0]}:
            tree = {"w": jax.device_put(values, place(saved))}
            described = jax.ShapeDtypeStruct(values.shape, values.dtype, sharding=place(kind))
            concrete = jax.device_put(values * 0, place(kind))
            for template in ({"w": described}, {"w": concrete}):
                found = verb(tmp_path / f"{number}{saved}", tree, template)["w"]
                assert found.sharding == place(kind)
                np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_come_to_the_memory_of_an_explicit_sharding(tmp_path: Path, kind: str) -> None:
    values = np.arange(64, dtype=np.float32).reshape(8, 8)
    for number, place in enumerate((one, rows, columns, replicas)):
        for verb in (in_file, in_directory, in_bytes):
            path = tmp_path / f"{number}{verb.__name__}"
            found = verb(path, {"w": values}, None, sharding=place(kind))["w"]
            assert found.sharding == place(kind)
            np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_cast_into_the_memory_of_the_template(tmp_path: Path, kind: str) -> None:
    values = jnp.arange(64, dtype=jnp.float32).reshape(8, 8)
    template = {"w": jax.ShapeDtypeStruct(values.shape, jnp.bfloat16, sharding=rows(kind))}
    found = in_directory(tmp_path / "x", {"w": values}, template, cast=True)["w"]
    assert found.sharding == rows(kind)
    np.testing.assert_array_equal(found, values.astype(jnp.bfloat16))


@pytest.mark.parametrize("kind", KINDS)
def test_the_memory_of_arrays_on_a_mesh_is_recorded(tmp_path: Path, kind: str) -> None:
    tree = {"w": jax.device_put(jnp.arange(64.0).reshape(8, 8), rows(kind))}
    for verb in (in_file, in_directory, in_bytes):
        found = verb(tmp_path / verb.__name__, tree, None)["w"]
        assert found.sharding.memory_kind == kind
        assert found.sharding.spec == PartitionSpec("x")
    treepack.save(tmp_path / "again", tree)
    assert treepack.abstract(tmp_path / "again")["w"].sharding.memory_kind == kind


def test_the_same_bytes_are_written_whatever_the_memory() -> None:
    values = jnp.arange(64.0)
    assert len({treepack.dumps(jax.device_put({"w": values}, one(kind))) for kind in KINDS}) == 1
