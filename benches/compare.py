"""treepack beside flax, in time and in memory: prints one table.

    python benches/compare.py            # about a minute
    python benches/compare.py --size 64  # MiB of the large workloads

Both do the same work on the same tree, taking turns; each result is compared with
the tree once. Each workload, and each figure of memory, has a process of its own, so
that none inherits what another did to the memory allocator.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flax import serialization as flax

import measure
import treepack
import workloads

MIB = 2**20


class Row(NamedTuple):
    """One line of the table.

    Attributes:
      op: What is done.
      flax: How flax does it.
      treepack: How treepack does it.
      memory: How many bytes a call needs.
      floor: The ratio that treepack must not fall below, or `None`.
    """

    op: str
    flax: Callable[[], Any]
    treepack: Callable[[], Any]
    memory: int
    floor: float | None = None


def _large(size: int, directory: Path) -> list[Row]:
    return _in_memory(workloads.layers(size), 12, 60)


def _small_leaves(size: int, directory: Path) -> list[Row]:
    return _in_memory(workloads.many_small(), 25, 6)


def _policy(size: int, directory: Path) -> list[Row]:
    return _in_memory(workloads.policy(), 25, 15)


def _bfloat16(size: int, directory: Path) -> list[Row]:
    return _in_memory(workloads.as_jax_bfloat16(workloads.layers(size)), 10)


def _in_memory(tree: Any, encode: float | None = None, decode: float | None = None) -> list[Row]:
    """Returns the rows for encoding and decoding a tree, with their floors."""
    theirs, ours = flax.to_bytes(tree), treepack.to_bytes(tree)
    check(tree, flax.msgpack_restore(ours))
    check(tree, treepack.msgpack_restore(theirs))
    check(tree, treepack.from_bytes(tree, ours))
    memory = 2 * len(ours)
    return [
        Row("encode", lambda: flax.to_bytes(tree), lambda: treepack.to_bytes(tree), memory, encode),
        Row(
            "decode",
            lambda: flax.msgpack_restore(theirs),
            lambda: treepack.msgpack_restore(ours),
            memory,
            decode,
        ),
        Row(
            "decode into a template",
            lambda: flax.from_bytes(tree, theirs),
            lambda: treepack.from_bytes(tree, ours),
            memory,
        ),
    ]


def _files(size: int, directory: Path) -> list[Row]:
    tree = workloads.layers(size)
    theirs, ours = directory / "flax.msgpack", directory / "treepack.msgpack"
    theirs.write_bytes(flax.to_bytes(tree))
    treepack.save_to_file(tree, ours)
    check(tree, treepack.load_from_file(None, ours))

    def flax_load() -> Any:
        return flax.msgpack_restore(theirs.read_bytes())

    def treepack_load() -> Any:
        return treepack.load_from_file(None, ours)

    def total(load: Callable[[], Any]) -> float:
        return sum(float(array.sum()) for array in workloads.arrays(load()))

    memory = 2 * size
    return [
        Row(
            "save, not synced",
            lambda: theirs.write_bytes(flax.to_bytes(tree)),
            lambda: treepack.save_to_file(tree, ours, durable=False),
            memory,
            4,
        ),
        Row("load (map)", flax_load, treepack_load, memory, 100),
        Row(
            "load, sum every array",
            lambda: total(flax_load),
            lambda: total(treepack_load),
            memory,
            3,
        ),
    ]


WORKLOADS: dict[str, Callable[[int, Path], list[Row]]] = {
    "{size} MiB float32, 144 leaves": _large,
    "20,000 leaves of 64 float32": _small_leaves,
    "12 leaves, 1.2 MB": _policy,
    "{size} MiB jax bfloat16": _bfloat16,
    "{size} MiB float32 file": _files,
}


def check(tree: Any, restored: Any) -> None:
    """Raises unless two trees hold the same bits."""
    pairs = zip(workloads.arrays(tree), workloads.arrays(restored), strict=True)
    for expected, found in pairs:
        expected = np.asarray(expected)
        if expected.dtype != found.dtype or expected.shape != found.shape:
            raise AssertionError(f"{found.dtype}{found.shape} in place of {expected.dtype}")
        if expected.tobytes() != found.tobytes():
            raise AssertionError("the restored bytes differ")


def measure_memory(library: str, op: str, size: int, directory: Path) -> int:
    """Does one operation in this process and returns by how much it raised the peak."""
    tree = workloads.layers(size)
    path = directory / "memory.msgpack"
    if op == "load":
        treepack.save_to_file(tree, path, durable=False)
        del tree
    actions = {
        ("flax", "encode"): lambda: flax.to_bytes(tree),
        ("treepack", "encode"): lambda: treepack.to_bytes(tree),
        ("flax", "save"): lambda: path.write_bytes(flax.to_bytes(tree)),
        ("treepack", "save"): lambda: treepack.save_to_file(tree, path, durable=False),
        ("flax", "load"): lambda: flax.msgpack_restore(path.read_bytes()),
        ("treepack", "load"): lambda: treepack.load_from_file(None, path),
    }
    # What an operation needs whatever the size, such as imports, is not its memory.
    small = workloads.layers(MIB // 2)
    treepack.from_bytes(None, treepack.to_bytes(small))
    flax.msgpack_restore(flax.to_bytes(small))
    return measure.peak_memory(actions[library, op])


def main() -> None:
    """Measures and prints everything."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--size", type=int, default=256, help="MiB of the large workloads")
    parser.add_argument("--rounds", type=int, default=9, help="how often each is measured")
    parser.add_argument("--directory", type=Path, help="where files are written")
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        if arguments.one:
            print(json.dumps(measure_one(arguments, Path(name))))
        else:
            print_all(arguments)


def measure_one(arguments: argparse.Namespace, directory: Path) -> Any:
    """Measures one workload or one figure of memory, in this process."""
    size = arguments.size * MIB
    if arguments.one[0] == "memory":
        _, library, op = arguments.one
        return measure_memory(library, op, size, directory)
    found = []
    for row in WORKLOADS[arguments.one[1]](size, directory):
        calls = {"flax": row.flax, "treepack": row.treepack}
        seconds = measure.medians(calls, memory=row.memory, rounds=arguments.rounds)
        found.append((row.op, seconds, row.floor))
    return found


def print_all(arguments: argparse.Namespace) -> None:
    """Measures everything, each in a fresh process, and prints the table."""

    def fresh(*what: str) -> Any:
        command = [sys.executable, __file__, *sys.argv[1:], "--one", *what]
        return json.loads(subprocess.check_output(command))

    print(f"{'workload':32}{'operation':24}{'flax':>12}{'treepack':>12}{'ratio':>10}{'floor':>8}")
    for workload in WORKLOADS:
        title = workload.format(size=arguments.size)
        for op, seconds, floor in fresh("workload", workload):
            flax_ms, treepack_ms = (seconds[name] * 1e3 for name in ("flax", "treepack"))
            print(
                f"{title:32}{op:24}{flax_ms:9.2f} ms{treepack_ms:9.3f} ms"
                f"{flax_ms / treepack_ms:9.1f}x{'' if floor is None else f'{floor}x':>8}",
                flush=True,
            )
    print(f"\n{'peak extra memory':32}{'operation':24}{'flax':>12}{'treepack':>12}")
    for op in ("encode", "save", "load"):
        title = f"{arguments.size} MiB float32"
        flax_peak, peak = (fresh("memory", library, op) / MIB for library in ("flax", "treepack"))
        print(f"{title:32}{op:24}{flax_peak:8.1f} MiB{peak:8.1f} MiB")


if __name__ == "__main__":
    main()
