"""Under `jax.transfer_guard("disallow")`, which forbids implicit transfers, every verb works."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax._src.array import ArrayImpl
from jax._src.lib import guard_lib

import treepack
from commands import call
from treepack import serialization
from treepack._src.leaves import leaves, prng
from treepack._src.placing import placement

DEVICES = np.array(jax.devices())
SPLIT = jax.sharding.NamedSharding(jax.sharding.Mesh(DEVICES, "x"), jax.P("x"))
COPIES = jax.sharding.NamedSharding(jax.sharding.Mesh(DEVICES, "x"), jax.P())

KEYS = jax.random.split(jax.random.key(1), 8)
LEAVES: dict[str, Any] = {
    "float": jnp.ones((8, 3)),
    "bfloat16": jnp.ones(8, jnp.bfloat16),
    "float8": jnp.ones(8, jnp.float8_e4m3fn),
    "int4": jnp.ones(8, jnp.int4),
    "bool": jnp.ones(8, bool),
    "complex": jnp.ones(8, jnp.complex64),
    "empty": jnp.zeros((0, 3)),
    "scalar": jnp.float32(2),
    "key": jax.random.key(0),
    "keys": jax.random.split(jax.random.key(1, impl="rbg"), 8),
    "weak_float": jnp.asarray(1.5),
    "weak_int": jnp.asarray(3),
    "weak_complex": jnp.asarray(1j),
    "weak_nan": jnp.asarray(float("nan")),
    "weak": jnp.full(8, 2.0),
    "split": jax.device_put(jnp.ones((8, 4)), SPLIT),
    "copies": jax.device_put(jnp.ones(8), COPIES),
    "split_keys": jax.device_put(KEYS, SPLIT),
    "split_int4": jax.device_put(jnp.ones(8, jnp.int4), SPLIT),
    "split_weak": jax.device_put(jnp.full(8, 2.0), SPLIT),
    "numpy": np.ones(8, np.float32),
    "number": 3.5,
}
OTHER: Any = {
    "a": LEAVES | {"key": jax.random.key(2), "keys": jax.random.key(0), "float": jnp.zeros((8, 3))}
}
TREE: Any = {"a": LEAVES, "n": [1, None]}
ARRAYS = {name: LEAVES[name] for name in ("float", "bfloat16", "scalar", "weak_float", "split")}
WHOLE = jnp.ones((8, 4))
FIRST, STEP = jnp.asarray(1, jnp.int32), jnp.asarray(2, jnp.int32)
EXPORTED = jax.export.export(jax.jit(lambda tree, x: x))({"w": jnp.ones(3)}, jnp.ones(3))


def abstract(tree: Any) -> Any:
    def struct(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array):
            return leaf
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)

    return jax.tree.map(struct, tree)


def every_load(load: Callable[..., Any]) -> None:
    load()
    for template in (TREE, abstract(TREE)):
        load(template)
        load(template, cast=True)
    for options in (
        {"arrays": "numpy"},
        {"arrays": "jax"},
        {"dtype": jnp.bfloat16},
        {"device": jax.devices()[1]},
        {"sharding": lambda *_: COPIES},
        {"copy": True},
    ):
        load(**options)


def files(path: Path, **options: Any) -> None:
    treepack.save(path, TREE, **options)
    every_load(lambda *args, **more: treepack.load(path, *args, **more))
    treepack.load(path, TREE, missing="target", return_report=True)
    treepack.verify(path)
    treepack.diff(path, TREE)
    treepack.diff(path, OTHER)
    treepack.read_metadata(path)
    assert treepack.is_checkpoint(path)
    treepack.load(path, treepack.abstract(path))


def narrowed(path: Path) -> None:
    treepack.save(path, {"w": np.ones((8, 4))})
    for template in (LEAVES["split"], WHOLE):
        treepack.load(path, {"w": template}, cast=True)
        treepack.load(path, abstract({"w": template}), cast=True)


def opened(path: Path) -> None:
    treepack.save(path, TREE)
    with treepack.open(path) as file:
        every_load(file.load)
        for name in LEAVES:
            leaf = file["a"][name]
            if isinstance(leaf, treepack.LazyArray) and leaf.ndim:
                leaf[1:3], leaf[...]


def patches(path: Path) -> None:
    data = treepack.dumps(TREE, base=TREE)
    every_load(lambda *args, **more: treepack.loads(data, *args, base=TREE, **more))
    treepack.save(path, TREE)
    treepack.save(f"{path}-patch", TREE, base=path)
    treepack.load(f"{path}-patch", TREE, base=path)
    treepack.apply_delta(data, bytearray(treepack.dumps(TREE)))


def streams(path: Path) -> None:
    treepack.write_stream(path, TREE["a"].items())
    for _ in treepack.read_stream(path):
        pass


def pieces(_: Path) -> None:
    buffer = bytearray(treepack.packed_size(TREE))
    treepack.pack_into(TREE, buffer)
    every_load(lambda *args, **more: treepack.loads(buffer, *args, **more))
    list(treepack.buffers(TREE))


def series(path: Path, **options: Any) -> None:
    run = treepack.Series(path, **options)
    run.save(1, TREE, metrics={"loss": LEAVES["scalar"]})
    run.save(STEP, TREE)
    run.wait()
    for template in (None, TREE, abstract(TREE)):
        assert run.resume(template) is not None


def published(path: Path) -> None:
    publisher, subscriber = treepack.Publisher(path), treepack.Subscriber(path)
    for version in (1, STEP):
        publisher.push(TREE, version=version)
        subscriber.latest()
        subscriber.latest(TREE)
    assert subscriber.wait(newer_than=FIRST)[0] == 2


def dropin(_: Path) -> None:
    data = serialization.to_bytes(TREE)
    serialization.from_bytes(TREE, data)
    serialization.from_bytes(None, data)
    serialization.msgpack_restore(data)
    serialization.from_state_dict(TREE, serialization.to_state_dict(TREE))


def exported(path: Path) -> None:
    treepack.save_exported(path, EXPORTED, {"w": LEAVES["float"]})
    treepack.load_exported(path)


def safetensors(path: Path) -> None:
    treepack.save(f"{path}.safetensors", ARRAYS)
    treepack.load(f"{path}.safetensors", ARRAYS)
    treepack.load(f"{path}.safetensors", arrays="jax")


def npz(path: Path) -> None:
    np.savez(f"{path}.npz", w=np.ones(8))
    treepack.load(f"{path}.npz", {"w": LEAVES["bfloat16"]}, cast=True)


def static_data(_: Path) -> None:
    part = jax.tree_util.Partial(jax.nn.relu, LEAVES["float"])
    treepack.loads(treepack.dumps([part], metadata={"a": LEAVES["scalar"]}))


# Each kind of rule: axes, a stack of layers, another name, numbers computed at the borders.
RULES: dict[Any, Any] = {
    "float": ("float", "x y -> y x"),
    "split": ("rows.{i}", "y -> i y"),
    "renamed": "scalar",
    "scaled": ("factor", "x -> x", {"scale": 2.0}),
}
MAPPED = {name: LEAVES[name] for name in ("float", "split")} | {
    "renamed": LEAVES["scalar"],
    "scaled": jnp.ones(8),
}


def mapped(path: Path) -> None:
    tree, mapping = MAPPED, treepack.Mapping(RULES, i=8)
    treepack.save(path, tree, mapping=mapping)
    treepack.save(f"{path}.safetensors", tree, mapping=mapping)
    treepack.save(f"{path}-hub", tree, mapping=mapping, format="safetensors")
    for file in (path, f"{path}.safetensors", f"{path}-hub"):
        for template in (tree, abstract(tree)):
            treepack.load(file, template, mapping=mapping, strict=False)
        treepack.load(file, mapping=mapping, arrays="jax")
        with treepack.open(file, mapping=mapping) as opened:
            opened["split"][1:3], opened["scaled"][...]
            opened.load(tree, strict=False)


def digests(path: Path) -> None:
    treepack.save(path, TREE)
    found = treepack.digest(TREE)
    assert treepack.digest(path) == found
    treepack.load(path, TREE, expect=found)
    with treepack.open(path) as file:
        treepack.digest(file)


def commands(path: Path) -> None:
    treepack.save(path, TREE)
    for words in (
        *(["ls"], ["info"], ["verify"], ["digest"], ["show", "a/weak"], ["diff", str(path)]),
        *(["convert", f"{path}.gz"], ["convert", f"{path}.safetensors", "--select", "a/float"]),
    ):
        call(words[0], str(path), *words[1:])


def checkpoint_series(path: Path) -> None:
    state = {name: LEAVES[name] for name in ("float", "key", "int4", "split", "number")}
    treepack.checkpoints.save_checkpoint(path, state, STEP)
    treepack.checkpoints.restore_checkpoint(path, state)
    treepack.checkpoints.restore_checkpoint(path, None)


def orbax_directory(path: Path) -> None:
    for template in (None, ARRAYS, abstract(ARRAYS)):
        treepack.load(path, template)
    with treepack.open(path) as file:
        file["float"][1:3]


VERBS: dict[str, Callable[[Path], object]] = {
    "linked_series": lambda path: series(path, unchanged="link"),
    "fast_series": lambda path: series(path, fast=f"{path}-fast"),
    "file": files,
    "gzip": lambda path: files(path, compress=True),
    "sharded": lambda path: files(path, sharded=True),
    "background": lambda path: treepack.save(path, TREE, background=True).result(),
    "bytes": lambda _: every_load(
        lambda *args, **more: treepack.loads(treepack.dumps(TREE), *args, **more)
    ),
    "series": series,
    "sharded_series": lambda path: series(path, sharded=True),
    **{
        function.__name__: function
        for function in (
            *(opened, patches, pieces, streams, published, dropin, exported, safetensors, npz),
            *(static_data, narrowed, mapped, digests, commands, checkpoint_series),
        )
    },
}


@pytest.fixture
def guard() -> Iterator[None]:
    """Guards all threads."""
    prng._implementation.cache_clear()
    before = jax.config.jax_transfer_guard
    jax.config.update("jax_transfer_guard", "disallow")
    yield
    jax.config.update("jax_transfer_guard", before)


def _is_explicit() -> bool:
    level = jax.config.jax_transfer_guard_device_to_host
    return level == "allow" or guard_lib.thread_local_state().explicit_device_get


@pytest.fixture
def accelerator(guard: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the devices for accelerators, from which each read of an array is a transfer.

    JAX checks no reads of a CPU's arrays, except of packed dtypes.
    """

    def checked(function: Callable[..., Any]) -> Callable[..., Any]:
        def read(*args: Any, **options: Any) -> Any:
            if args and isinstance(args[0], jax.Array) and not _is_explicit():
                raise RuntimeError(f"Disallowed device-to-host transfer: {args[0].aval}")
            return function(*args, **options)

        return read

    reads = {
        "_single_device_array_to_np_array_did_copy",
        "_to_np_array_did_copy",
    }  # before jax 0.12
    for name in (*(reads & {*vars(ArrayImpl)}), "copy_to_host_async"):
        monkeypatch.setattr(ArrayImpl, name, checked(getattr(ArrayImpl, name)))
    for name in ("asarray", "array", "ascontiguousarray", "copyto"):  # by the buffer protocol
        monkeypatch.setattr(np, name, checked(getattr(np, name)))
    # The core keeps the function itself, so its code is replaced.
    monkeypatch.setattr(leaves.Transfer.view, "__code__", (lambda array: None).__code__)
    monkeypatch.setattr(placement, "_is_on_cpu", lambda place: False)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_transfers_explicitly_from_accelerators(
    verb: str, accelerator: None, tmp_path: Path
) -> None:
    VERBS[verb](tmp_path / "f")


def test_reads_of_accelerators_are_checked(accelerator: None) -> None:
    item, texts = operator.methodcaller("item"), operator.methodcaller("tolist")
    for read in (np.asarray, np.array, float, repr, item, texts):
        with pytest.raises(RuntimeError, match="Disallowed device-to-host"):
            read(LEAVES["scalar"])
    jax.device_get(LEAVES["scalar"])


def test_directories_of_orbax_are_read(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    with ocp.StandardCheckpointer() as checkpointer:  # which makes implicit transfers itself
        checkpointer.save(tmp_path / "f", ARRAYS)
    request.getfixturevalue("guard")
    orbax_directory(tmp_path / "f")


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_transfers_explicitly(verb: str, guard: None, tmp_path: Path) -> None:
    VERBS[verb](tmp_path / "f")


@pytest.mark.parametrize("name", ["key", "weak_float", "int4"])
def test_a_guard_against_explicit_transfers_stays(name: str) -> None:
    data = treepack.dumps(LEAVES[name])
    placement._jax_has.cache_clear()  # as in a program that loads its first array under the guard
    with jax.transfer_guard_host_to_device("disallow_explicit"):
        treepack.dumps(LEAVES[name])
        with pytest.raises(Exception, match="Disallowed host-to-device"):
            treepack.loads(data)
