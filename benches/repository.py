"""Loads a repository of safetensors onto a mesh, beside safetensors and Orbax.

    python benches/repository.py               # 1 GiB of bfloat16 in 8 files, 4 devices on CPU
    python benches/repository.py --mib 256
    python benches/repository.py --many 10000  # small tensors in one file, into NumPy arrays

A time is CPU time (user and system) and wall time until all arrays are on their devices; medians
of calls that take turns, also at going first, with the files in the page cache and memory that was
used before. *rows* and *columns* divide each array between the devices, *stacked* makes one
transposed array of all layers. Bytes read are those that the system reads from the disk for the
result, divided by its size, after the page cache was dropped. Memory is the peak of a process, by
samples, beyond what it had before and beyond the result, without pages of files; where `-` stands,
the library lacks the operation.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy
from jax.sharding import NamedSharding, PartitionSpec

import treepack

FILES, LAYERS = 8, 32


def write(folder: Path, mib: int) -> None:
    """Writes the files and their index."""
    side = int((mib * (1 << 20) / LAYERS / 2) ** 0.5)
    random = np.random.default_rng(0)
    files = {}
    for file in range(FILES):
        name = f"model-{file + 1:05}-of-{FILES:05}.safetensors"
        layers = range(file * LAYERS // FILES, (file + 1) * LAYERS // FILES)
        flat = {
            f"layers.{at}.w": random.integers(0, 1 << 16, (side, side), np.uint16).view(
                ml_dtypes.bfloat16
            )
            for at in layers
        }
        safetensors.numpy.save_file(flat, folder / name)
        with (folder / name).open("rb") as written:  # only clean pages can be dropped
            os.fsync(written.fileno())
        files |= dict.fromkeys(flat, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))


def place(*axes: str | None) -> NamedSharding:
    """Returns a sharding over all devices."""
    return NamedSharding(jax.make_mesh((4,), ("x",)), PartitionSpec(*axes))


def shape_of(folder: Path) -> tuple[int, ...]:
    """Returns the shape of an array."""
    with treepack.open(folder) as file:
        return tuple(file["layers/0/w"].shape)


def ours(folder: Path, sharding: NamedSharding) -> Any:
    """Loads all arrays with treepack."""
    struct = jax.ShapeDtypeStruct(shape_of(folder), jnp.bfloat16, sharding=sharding)
    return treepack.load(folder, {"layers": {str(at): {"w": struct} for at in range(LAYERS)}})


def theirs(folder: Path, sharding: NamedSharding) -> Any:
    """Loads all arrays with safetensors and `device_put`."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safetensors.safe_open(path, "flax") as file:
            for name in file.keys():  # noqa: SIM118
                found[name] = jax.device_put(file.get_tensor(name), sharding)
    return found


def orbax(folder: Path, sharding: NamedSharding) -> Any:
    """Loads all arrays by Orbax's layout of safetensors."""
    import orbax.checkpoint.experimental.v1 as ocp

    struct = jax.ShapeDtypeStruct(shape_of(folder), jnp.bfloat16, sharding=sharding)
    template = {f"layers.{at}.w": struct for at in range(LAYERS)}
    layout = ocp.options.CheckpointLayout.SAFETENSORS
    with ocp.Context(checkpoint_layout=layout):
        return ocp.load_pytree(folder, template)


def stacked(folder: Path, sharding: NamedSharding) -> Any:
    """Stacks the transposed layers on the devices."""
    shape = (LAYERS, *shape_of(folder)[::-1])
    template = {"w": jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=sharding)}
    rules = {"w": ("layers/{l}/w", "o i -> l i o")}
    return treepack.load(folder, template, mapping=rules)


def stacked_on_host(folder: Path, _: Any) -> Any:
    """Stacks the transposed layers in memory."""
    shape = (LAYERS, *shape_of(folder)[::-1])
    template = {"w": np.broadcast_to(np.zeros((), ml_dtypes.bfloat16), shape)}
    rules = {"w": ("layers/{l}/w", "o i -> l i o")}
    return treepack.load(folder, template, mapping=rules)


def stacked_by_numpy(folder: Path, _: Any) -> Any:
    """Does it with safetensors and NumPy; `np.stack` would keep the order of the file in memory."""
    stacked = np.empty((LAYERS, *shape_of(folder)[::-1]), ml_dtypes.bfloat16)
    for path in sorted(folder.glob("*.safetensors")):
        with safetensors.safe_open(path, "np") as file:
            for name in file.keys():  # noqa: SIM118
                stacked[int(name.split(".")[1])] = file.get_tensor(name).T
    return stacked


def stacked_by_numpy_on_devices(folder: Path, sharding: NamedSharding) -> Any:
    """Does it with safetensors, NumPy and `device_put`."""
    return jax.device_put(stacked_by_numpy(folder, sharding), sharding)


Rows = dict[str, tuple[tuple[str | None, ...], dict[str, Callable[[Path, Any], Any]]]]
"""Axes of the mesh for each dimension, and loads by library."""

ROWS: Rows = {
    "rows": (("x", None), {"treepack": ours, "safetensors": theirs, "Orbax v1": orbax}),
    "columns": ((None, "x"), {"treepack": ours, "safetensors": theirs, "Orbax v1": orbax}),
    "stacked": (
        ("x", None, None),
        {"treepack": stacked, "NumPy": stacked_by_numpy_on_devices},
    ),
    "stacked, NumPy": ((), {"treepack": stacked_on_host, "NumPy": stacked_by_numpy}),
}


def timed(call: Callable[[], Any]) -> tuple[float, float]:
    """Returns the CPU time and the wall time of a call."""
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    made = call()
    jax.block_until_ready(made)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def touch(nbytes: int) -> None:
    """Writes to fresh memory and frees it, since a virtual machine may have to get it first."""
    np.ones(nbytes, np.uint8)


def status(name: str) -> int:
    """Returns a size of this process in bytes, such as `RssAnon`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    raise LookupError(name)


def bytes_read() -> int:
    """Returns the number of bytes that this process read from disks."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("read_bytes")).split()[1])


def once(rows: Rows, folder: Path, row: str, library: str, *, cold: bool) -> None:
    """Prints the bytes read, or the peak of memory beyond what was there before, of one load."""
    axes, calls = rows[row]
    sharding = place(*axes)
    treepack.open(next(folder.rglob("*.safetensors"))).close()
    jax.block_until_ready(jax.device_put(np.zeros(8, np.float32), jax.devices()[0]))
    if cold:
        for path in folder.rglob("*.safetensors"):
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        before = bytes_read()
        made = calls[library](folder, sharding)
        jax.block_until_ready(made)
        for leaf in jax.tree.leaves(made):  # views of the file are read when they are used
            for shard in getattr(leaf, "addressable_shards", ()):
                np.asarray(shard.data).view(np.uint16).max()
        print(bytes_read() - before)
        return
    before, peak, done = status("RssAnon"), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.001):
            peak = max(peak, status("RssAnon") - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    made = calls[library](folder, sharding)
    jax.block_until_ready(made)
    done.set()
    watcher.join()
    print(peak)


def apart(script: str, folder: Path, row: str, library: str, mode: str) -> list[int]:
    """Runs `once` of a script in a process of its own; returns its output."""
    command = [sys.executable, script, "--once", str(folder), row, library, mode]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [*map(int, done.stdout.split())]


def many(count: int, rounds: int) -> None:
    """Prints wall times of loads of one file with many tensors of 4 KiB; the median of rounds."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        path = Path(name) / "model.safetensors"
        flat = {f"layers.{at}.w": np.full(1024, at, np.float32) for at in range(count)}
        safetensors.numpy.save_file(flat, path)
        template = {"layers": {str(at): {"w": np.zeros(1024, np.float32)} for at in range(count)}}
        calls = {
            "safetensors": lambda: safetensors.numpy.load_file(path),
            "treepack": lambda: treepack.load(path, arrays="numpy"),
            "treepack, template": lambda: treepack.load(path, template),
        }
        times: dict[str, list[float]] = {library: [] for library in calls}
        for _ in range(rounds + 1):
            for library, call in calls.items():
                times[library].append(timed(call)[1])
        for library, found in times.items():
            print(f"{count} tensors, {library:20} {statistics.median(found[1:]):7.4f}s")


def table(
    script: str,
    rows: Rows,
    folder: Path,
    sizes: Callable[[str], tuple[int, int]],
    options: argparse.Namespace,
) -> None:
    """Prints a line for each row and library; `sizes` are the bytes of the file and the result."""
    print(f"{'':15} {'':12} {'CPU':>7} {'wall':>8} {'read':>6} {'memory':>9}")
    for row in options.row or rows:
        axes, known = rows[row]
        wanted = options.library or known
        calls = {library: call for library, call in known.items() if library in wanted}
        times: dict[str, list[tuple[float, float]]] = {library: [] for library in calls}
        run = {
            library: functools.partial(call, folder, place(*axes))
            for library, call in calls.items()
        }
        needed, result = sizes(row)
        for number in range(options.rounds + 1):
            first = number % len(run)
            for library in [*run][first:] + [*run][:first]:
                touch(2 * result)
                found = timed(run[library])
                if number:
                    times[library].append(found)
        for library in calls:
            cpu, wall = (statistics.median(it) for it in zip(*times[library], strict=True))
            [read] = apart(script, folder, row, library, "cold")
            [peak] = apart(script, folder, row, library, "warm")
            print(
                f"{row:15} {library:12} {cpu:6.2f}s {wall:7.2f}s {read / needed:6.3f} "
                f"{(peak - result) / (1 << 20):5.0f} MiB",
                flush=True,
            )


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Returns a parser of the options of a table."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--row", action="append", help="measures only these; may be repeated")
    parser.add_argument("--library", action="append", help="measures only these; may be repeated")
    parser.add_argument("--once", nargs=4)
    return parser


def main() -> None:
    """Prints a table."""
    parser = arguments(__doc__)
    parser.add_argument("--many", type=int, help="measures so many small tensors")
    options = parser.parse_args()
    if options.many:
        many(options.many, options.rounds)
        return
    if options.once:
        folder, row, library, mode = options.once
        once(ROWS, Path(folder), row, library, cold=mode == "cold")
        return
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        folder = Path(name)
        write(folder, options.mib)
        table(__file__, ROWS, folder, lambda _: (options.mib << 20,) * 2, options)


if __name__ == "__main__":
    main()
