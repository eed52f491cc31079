"""Measures the overhead of sharded checkpoints of up to 10,000 hosts.

    python benches/scale.py

Everything that grows with hosts or shards is measured by itself, with simulated devices: the
computation of each process, the work of process 0 alone, the size of the manifest, and the work of
a loading process. docs/sharded.md has the figures.
"""

from __future__ import annotations

import itertools
import os
import socket
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import treepack
import treepack._core as core
from treepack._src.claims.directory import LocalDirectory
from treepack._src.layouts.layout import Encoding
from treepack._src.sharded.files import MANIFEST
from treepack._src.sharded.plan import _split

LEAVES = 500
DEVICES_PER_HOST = 4


class Device:
    """A device of a simulated process."""

    def __init__(self, number: int):
        self.process_index = number // DEVICES_PER_HOST


class Rows:
    """A sharding that splits the first dimension over all devices, or `replicas` groups of them."""

    def __init__(self, devices: list[Device], replicas: int):
        self._devices, self._replicas = devices, replicas

    def devices_indices_map(self, shape: tuple[int, ...]) -> dict[Device, tuple[slice, ...]]:
        """Returns where the part of each device is, as shardings of jax do."""
        parts = len(self._devices) // self._replicas
        step = shape[0] // parts
        return {
            device: (slice(at % parts * step, (at % parts + 1) * step), slice(None))
            for at, device in enumerate(self._devices)
        }

    def shard_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape of the part of a device."""
        return (shape[0] * self._replicas // len(self._devices), shape[1])


def seconds(work: Callable[[], Any], runs: int = 3) -> tuple[float, Any]:
    """Returns the median time of some work, and its result."""
    times = []
    for _ in range(runs):
        _split.cache_clear()
        start = time.perf_counter()
        result = work()
        times.append(time.perf_counter() - start)
    return statistics.median(times), result


def plan(hosts: int, replicas: int) -> tuple[float, core.ShardPlan]:
    """Returns the time of a process to plan the writers, and the plan."""
    devices = [Device(number) for number in range(hosts * DEVICES_PER_HOST)]
    sharding = Rows(devices, replicas)
    shape = (len(devices), 1024)

    def work() -> core.ShardPlan:
        counts, holders = _split(sharding, shape)
        made = core.ShardPlan([(counts, 0, 4096, False)] * LEAVES, [holders])
        assert made.checksum >= 0
        return made

    return seconds(work, 1 if hosts > 1000 else 3)


def manifest(hosts: int, plan: core.ShardPlan) -> tuple[float, float, int]:
    """Returns how long the manifest takes to be made and to be read, and its size."""
    tree = {f"layer_{at}": {"kernel": np.zeros((100, 100))} for at in range(LEAVES)}
    layout = Encoding(align=1, index=True, gaps=True).tree(tree)
    files = [(f"0123abcd-{host:05}.treepack", 1 << 30, 12345678) for host in plan.processes]
    made, data = seconds(lambda: core.Manifest.planned(layout, plan).with_files(files))
    read, _ = seconds(lambda: core.Catalog.open(core.Manifest.decode(data).content, salvage=False))
    return made, read, len(data)


def look(folder: Path) -> float:
    """Returns how long process 0 looks at the end of a file with shards, which is in the cache."""
    tree = {f"layer_{at}": {"kernel": {"[0:1,0:8]": np.zeros((1, 300))}} for at in range(LEAVES)}
    treepack.save(folder / "file.treepack", tree, metadata={"process": 1, "plan": 5})
    return seconds(lambda: LocalDirectory(folder).look("file.treepack"), 20)[0]


def reading_all(folder: Path, files: int = 8, leaves: int = 10) -> tuple[int, float, float]:
    """Returns the shards of a checkpoint, and how long finding and reading each of them takes."""
    rows = 1000 * files
    per_file = 1000
    whole = np.arange(rows * 8, dtype=np.float32).reshape(rows, 8)
    written = []
    folder.mkdir()
    for at in range(files):
        own = range(at * per_file, (at + 1) * per_file)
        parts = {f"[{row}:{row + 1},0:8]": whole[row : row + 1] for row in own}
        place = folder / f"0123abcd-{at:05}.treepack"
        treepack.save(place, {f"w{leaf}": parts for leaf in range(leaves)}, durable=False)
        with treepack.open(place) as file:
            record = zlib.crc32(file._catalog.record or b"")
        written.append((place.name, place.stat().st_size, record))
    tree = {f"w{leaf}": whole for leaf in range(leaves)}
    layout = Encoding(align=1, index=True, gaps=True).tree(tree)
    holders = [[row // per_file] for row in range(rows)]
    plan = core.ShardPlan([([rows, 1], 0, 32, False)] * leaves, [holders])
    data = core.Manifest.planned(layout, plan).with_files(written)
    (folder / MANIFEST).write_bytes(data)

    def find() -> None:
        with treepack.open(folder) as file:
            for name in tree:
                file[name].plan((slice(None), slice(None))).find()

    def load() -> Any:
        return treepack.load(folder, arrays="numpy")

    found = seconds(find)[0]
    loaded, result = seconds(load)
    assert np.array_equal(result["w3"], whole)
    count = rows * leaves
    return count, found / count, loaded / count


def message() -> float:
    """Returns how long a message to the store of `jax.distributed` and its answer take."""
    import jax
    from jax._src.distributed import global_state

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    jax.distributed.initialize(address, num_processes=1, process_id=0)
    client: Any = global_state.client

    def tell(at: int) -> None:
        client.key_value_set(f"bench/{at}", "done")
        client.blocking_key_value_get(f"bench/{at}", 1000)

    numbers = itertools.count()
    return seconds(lambda: [tell(next(numbers)) for _ in range(1000)])[0] / 1000


def main() -> None:
    """Measures, and prints."""
    print(f"{LEAVES} leaves, {DEVICES_PER_HOST} devices a host; seconds, medians\n")
    head = (
        "hosts",
        "replicas",
        "shards",
        "who writes what",
        "manifest made",
        "read",
        "bytes a shard",
    )
    print("".join(f"{name:>16}" for name in head))
    for hosts in (10, 100, 1000, 10_000):
        for replicas in (1, 10):
            time_taken, found = plan(hosts, replicas)
            count = hosts * DEVICES_PER_HOST // replicas * LEAVES
            made, read, size = manifest(hosts, found)
            row = (hosts, replicas, count, time_taken, made, read, size / count)
            print(
                "".join(
                    f"{cell:16.3f}" if isinstance(cell, float) else f"{cell:16,}" for cell in row
                ),
                flush=True,
            )
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        print(f"\nlooking at the end of one file: {1000 * look(Path(folder)):.2f} ms")
        count, found, loaded = reading_all(Path(folder) / "all")
        times = f"{1e6 * found:.2f} us to find each, {1e6 * loaded:.2f} us to find and read it"
        print(f"one process reads all {count:,} shards: {times}")
    print(f"telling something, and hearing it: {1000 * message():.2f} ms")


if __name__ == "__main__":
    main()
