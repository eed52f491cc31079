"""Arrays on an accelerator: saves, loads and deltas beside `jax.device_get` and `jax.device_put`.

    python benches/accelerator.py            # 1 GiB of float32 and bfloat16 on the default device
    python benches/accelerator.py --mib 4096

A time covers the transfer between device and host, and for files the writing or reading in memory
(/dev/shm where there is one). Each row prints the bytes per second, and the ratio to the transfer
alone, measured in turns with it. All results are compared bit by bit, and the kinds of memory of
loaded and saved arrays. On a machine without an accelerator it measures the CPU backend, where
transfers copy nothing.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

import treepack
from measure import medians

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


def states(nbytes: int, kind: str) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """Returns arrays in a memory of the default device, and a copy with 1 % other values."""
    rows = max(1, nbytes // (8 * 4096 * 6))
    place = SingleDeviceSharding(jax.devices()[0], memory_kind=kind)
    found: tuple[dict[str, jax.Array], dict[str, jax.Array]] = {}, {}
    for number, key in enumerate(jax.random.split(jax.random.key(0), 8)):
        values = jax.random.normal(key, (rows, 4096), jnp.float32)
        is_changed = jax.random.uniform(key, values.shape) < 0.01
        for tree, held in zip(
            found, (values, jnp.where(is_changed, values * 1.01, values)), strict=True
        ):
            tree[f"w{number}"] = jax.device_put(held, place)
            tree[f"h{number}"] = jax.device_put(held.astype(jnp.bfloat16), place)
    return jax.block_until_ready(found)


def fresh(tree: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Returns the same arrays without the copies on the host that jax keeps of fetched ones."""
    return {
        name: jax.make_array_from_single_device_arrays(
            it.shape, it.sharding, [shard.data for shard in it.addressable_shards]
        )
        for name, it in tree.items()
    }


def check(found: dict[str, Any], expected: dict[str, jax.Array]) -> None:
    """Compares arrays bit by bit, and their places.

    Raises:
      AssertionError: If they differ.
    """
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        other = found[name]
        assert other.dtype == array.dtype, name
        assert other.sharding == array.sharding, name
        bits = jnp.dtype(f"uint{8 * array.dtype.itemsize}")
        assert np.array_equal(np.asarray(array).view(bits), np.asarray(other).view(bits)), name


def measure(
    tree: dict[str, jax.Array], newer: dict[str, jax.Array], folder: Path, rounds: int
) -> None:
    """Prints a line for each verb."""
    nbytes = sum(array.nbytes for array in tree.values())
    path = folder / "state"
    template = {
        name: jax.ShapeDtypeStruct(it.shape, it.dtype, sharding=it.sharding)
        for name, it in tree.items()
    }
    treepack.save(path, tree, durable=False)
    encoded = treepack.dumps(tree)
    patch = treepack.dumps(newer, base=tree)
    host = jax.device_get(tree)
    places = {name: it.sharding for name, it in tree.items()}
    check(treepack.load(path, template), tree)
    check(treepack.loads(encoded, template), tree)
    check(treepack.loads(patch, template, base=tree), newer)
    saves: dict[str, Callable[[], Any]] = {
        "jax.device_get": lambda: jax.device_get(fresh(tree)),
        "dumps": lambda: treepack.dumps(fresh(tree)),
        "save": lambda: treepack.save(path, fresh(tree), durable=False),
        "dumps(base=), 1 % changed": lambda: treepack.dumps(fresh(newer), base=host),
    }
    loads: dict[str, Callable[[], Any]] = {
        "jax.device_put": lambda: jax.block_until_ready(jax.device_put(host, places)),
        "loads": lambda: jax.block_until_ready(treepack.loads(encoded, template)),
        "load": lambda: jax.block_until_ready(treepack.load(path, template)),
        "loads(base=), 1 % changed": lambda: jax.block_until_ready(
            treepack.loads(patch, template, base=host)
        ),
    }
    for calls in (saves, loads):
        times = medians(calls, memory=nbytes, rounds=rounds)
        first = next(iter(times.values()))
        for name, seconds in times.items():
            print(f"  {name:34}{nbytes / seconds / 1e9:8.2f} GB/s{first / seconds:8.2f}")
    waits = []
    for _ in range(rounds):
        held, start = fresh(tree), time.perf_counter()
        saving = treepack.save(path, held, durable=False, background=True)
        waits.append(time.perf_counter() - start)
        saving.result()
    print(f"  save(background=True) returns after {statistics.median(waits) * 1e3:.1f} ms")
    print(f"  a delta is {len(encoded) / len(patch):.1f} times smaller")


def main() -> None:
    """Measures each kind of memory of the default device."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--mib", type=int, default=1024, help="size of the arrays")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    device = jax.devices()[0]
    print(f"{device.device_kind} ({device.platform}), jax {jax.__version__}, {options.mib} MiB")
    for memory in device.addressable_memories():
        print(f"{memory.kind}: bytes per second, and the ratio to the transfer alone")
        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            found = states(options.mib << 20, memory.kind)
            measure(*found, Path(folder), options.rounds)


if __name__ == "__main__":
    main()
