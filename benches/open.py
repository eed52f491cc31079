"""How long it takes to look into files, and how much of them is read: `make bench NAME=open`.

Each file is warm (in the page cache) or cold (dropped from it before each run). A process reads
`/proc/self/io` to tell how many bytes came from the disk. Medians of several runs.
"""

from __future__ import annotations

import argparse
import functools
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

import treepack
from treepack._src.layouts.layout import Encoding

RUNS = 7


def drop(path: Path) -> None:
    """Drops a file from the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def bytes_from_disk() -> int:
    """Returns the number of bytes that this process has read from disks."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1])
    return 0


def measure(work: Callable[[], object], path: Path, cold: bool) -> tuple[float, float]:
    """Returns the median of seconds, and of bytes from the disk."""
    seconds, read = [], []
    for _ in range(RUNS):
        if cold:
            drop(path)
        gc.collect()
        before, start = bytes_from_disk(), time.perf_counter()
        found = work()
        seconds.append(time.perf_counter() - start)
        read.append(bytes_from_disk() - before)
        del found
    return statistics.median(seconds), statistics.median(read)


def show(name: str, work: Callable[[], object], path: Path, *, cold: bool) -> float:
    """Measures, prints, and returns the seconds."""
    if not cold:
        work()
    seconds, read = measure(work, path, cold)
    from_disk = f"{read / 2**20:9.2f} MiB" if cold else ""
    print(f"  {name:42} {'cold' if cold else 'warm'} {seconds * 1e3:9.2f} ms {from_disk}")
    return seconds


def flat(tree: dict[str, Any], path: str = "") -> dict[str, np.ndarray]:
    """Returns a tree as a dict of names like `a.b`."""
    found = {}
    for key, value in tree.items():
        name = f"{path}.{key}" if path else key
        found |= flat(value, name) if isinstance(value, dict) else {name: value}
    return found


def model(leaves: int, nbytes: int) -> dict[str, Any]:
    """Returns a model with the moments of an optimizer."""
    rng = np.random.default_rng(0)
    cols = 1024 if nbytes // leaves >= 1 << 20 else 64
    rows = max(1, nbytes // leaves // 4 // cols)
    layers = leaves // 3
    make = lambda: rng.standard_normal((rows, cols), np.float32)  # noqa: E731
    params = {f"layer_{i}": {"attention": {"kernel": make()}} for i in range(layers)}
    moments = [
        {f"layer_{i}": {"attention": {"kernel": make()}} for i in range(layers)} for _ in "mv"
    ]
    return {"params": params, "opt": {"mu": moments[0], "nu": moments[1]}}


def files(folder: Path, tree: dict[str, Any]) -> dict[str, Path]:
    """Writes a tree in all formats."""
    paths = {name: folder / name for name in ("treepack", "flax", "gzip", "safetensors")}
    treepack.save(paths["treepack"], tree)
    treepack.save(paths["gzip"], tree, compress=True)
    treepack.serialization.save_to_file(tree, paths["flax"], align=1)
    safetensors.numpy.save_file(flat(tree), paths["safetensors"])
    return paths


def opened(path: Path) -> object:
    """Opens a file."""
    return treepack.open(path)


def safe(path: Path) -> object:
    """Opens a file of safetensors, and lists it."""
    return list(safetensors.safe_open(path, "np").keys())


def rows(path: Path, name: str) -> object:
    """Reads ten rows."""
    with treepack.open(path) as file:
        return file[name][100:110]


def safe_rows(path: Path, name: str) -> object:
    """Reads ten rows."""
    with safetensors.safe_open(path, "np") as file:
        return file.get_slice(name)[100:110]


def params(path: Path) -> object:
    """Loads the parameters and sums each."""
    found = treepack.load(path, select="params")
    return [leaf["attention"]["kernel"].sum() for leaf in found["params"].values()]


def safe_params(path: Path) -> object:
    """Loads the parameters and sums each."""
    with safetensors.safe_open(path, "np") as file:
        names = [name for name in file.keys() if name.startswith("params.")]  # noqa: SIM118
        return [file.get_tensor(name).sum() for name in names]


def summed(path: Path) -> object:
    """Reads a file in blocks and sums its bytes, with the threads of `verify`."""
    from concurrent.futures import ThreadPoolExecutor

    size, block = path.stat().st_size, 8 << 20
    with path.open("rb") as file, ThreadPoolExecutor(os.cpu_count()) as pool:

        def part(start: int) -> int:
            data = np.frombuffer(os.pread(file.fileno(), block, start), np.uint8)
            words = data[: len(data) // 8 * 8].view(np.uint64)
            return int(words.sum())

        return sum(pool.map(part, range(0, size, block)))


def compare(folder: Path, leaves: int, mib: int) -> None:
    """Prints all measurements of one model."""
    paths = files(folder, model(leaves, mib << 20))
    print(f"{leaves} leaves, {mib} MiB: open")
    for cold in (False, True):
        for name in ("treepack", "flax", "gzip"):
            open_it = functools.partial(opened, paths[name])
            show(f"treepack.open, a file of {name}", open_it, paths[name], cold=cold)
        path = paths["safetensors"]
        show("safetensors.safe_open", functools.partial(safe, path), path, cold=cold)
    record = treepack.open(paths["treepack"])._catalog
    print(f"  record: {len(record.record or b'') / len(record):.1f} bytes a leaf")
    if leaves > 1000:
        return
    name = "opt/mu/layer_50/attention/kernel"
    print("ten rows of one leaf")
    for kind in ("treepack", "flax", "gzip"):
        show(kind, functools.partial(rows, paths[kind], name), paths[kind], cold=True)
    path = paths["safetensors"]
    theirs = functools.partial(safe_rows, path, name.replace("/", "."))
    show("safetensors", theirs, path, cold=True)
    print("params alone, and their sums")
    for kind in ("treepack", "flax"):
        show(kind, functools.partial(params, paths[kind]), paths[kind], cold=True)
    show("safetensors", functools.partial(safe_params, path), path, cold=True)
    print("all of it")
    path = paths["treepack"]
    show("treepack.verify", functools.partial(treepack.verify, path), path, cold=False)
    show("sum of its words (numpy, threads)", functools.partial(summed, path), path, cold=False)
    show("treepack.digest", functools.partial(treepack.digest, path), path, cold=False)
    tree = treepack.load(path, arrays="numpy")
    show("treepack.digest, in memory", functools.partial(treepack.digest, tree), path, cold=False)
    target = np.empty(treepack.packed_size(tree), np.uint8)
    copy = functools.partial(treepack.pack_into, tree, target)
    show("a copy in memory (pack_into)", copy, path, cold=False)


def checksums(folder: Path, mib: int) -> None:
    """Prints the cost of checksums in a save, without waiting for the disk."""
    tree = model(300, mib << 20)
    path = folder / "sums"
    found: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(2 * RUNS):
        for summed in (True, False) if turn % 2 else (False, True):
            layout = Encoding(align=64, index=True, checksums=summed).tree(tree)
            path.unlink(missing_ok=True)
            start = time.perf_counter()
            layout.save(
                path, compress=False, level=None, durable=False, threads=None, progress=None
            )
            found[summed].append(time.perf_counter() - start)
    seconds = {summed: statistics.median(times) for summed, times in found.items()}
    print(f"save, {mib} MiB: with checksums {seconds[True]:.3f} s, without {seconds[False]:.3f} s")


def main() -> None:
    """Measures, and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024, help="size of the files")
    parser.add_argument("--folder", help="where to make them; a temporary one by default")
    options = parser.parse_args()
    for leaves, mib in ((300, options.mib), (20_000, 64)):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            compare(Path(folder), leaves, mib)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        checksums(Path(folder), options.mib // 2)


if __name__ == "__main__":
    main()
