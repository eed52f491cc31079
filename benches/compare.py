"""treepack beside flax, in time and in memory: prints one table.

    python benches/compare.py            # about a minute
    python benches/compare.py --size 64  # MiB of the large workloads

Both do the same work on the same tree, taking turns; each result is compared with
the tree once. Memory is measured in a fresh process for each figure.
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

import treepack
import workloads

MIB = 2**20


class Row(NamedTuple):
    """One line of the table.

    Attributes:
      workload: What is measured.
      op: What is done with it.
      flax: How flax does it.
      treepack: How treepack does it.
      size: The bytes of memory that a call needs.
      floor: The ratio that treepack must not fall below, or `None`.
    """

    workload: str
    op: str
    flax: Callable[[], Any]
    treepack: Callable[[], Any]
    size: int
    floor: float | None


def rows(size: int, directory: Path) -> list[Row]:
    """Returns what is compared, with large workloads of `size` bytes."""
    found = []
    large = workloads.layers(size)
    for name, tree, floors in (
        (f"{size // MIB} MiB float32, {len(workloads.arrays(large))} leaves", large, (12, 60)),
        ("20,000 leaves of 64 float32", workloads.many_small(), (25, 6)),
        ("12 leaves, 1.2 MB", workloads.policy(), (25, 15)),
    ):
        found += _encode_and_decode(name, tree, floors)
    bfloat16 = workloads.as_jax_bfloat16(workloads.layers(size // 2))
    found += _encode_and_decode(f"{size // MIB} MiB jax bfloat16", bfloat16, (10, None))
    return found + _files(f"{size // MIB} MiB float32 file", large, directory)


def _encode_and_decode(name: str, tree: Any, floors: tuple[float | None, ...]) -> list[Row]:
    theirs, ours = flax.to_bytes(tree), treepack.to_bytes(tree)
    check(tree, flax.msgpack_restore(ours))
    check(tree, treepack.msgpack_restore(theirs))
    check(tree, treepack.from_bytes(tree, ours))
    size = len(theirs)
    return [
        Row(
            name,
            "encode",
            lambda: flax.to_bytes(tree),
            lambda: treepack.to_bytes(tree),
            2 * size,
            floors[0],
        ),
        Row(
            name,
            "decode",
            lambda: flax.msgpack_restore(theirs),
            lambda: treepack.msgpack_restore(ours),
            2 * size,
            floors[1],
        ),
        Row(
            name,
            "decode with template",
            lambda: flax.from_bytes(tree, theirs),
            lambda: treepack.from_bytes(tree, ours),
            2 * size,
            None,
        ),
    ]


def _files(name: str, tree: Any, directory: Path) -> list[Row]:
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

    size = 2 * workloads.nbytes(tree)
    return [
        Row(
            name,
            "save (not synced)",
            lambda: theirs.write_bytes(flax.to_bytes(tree)),
            lambda: treepack.save_to_file(tree, ours, durable=False),
            size,
            4,
        ),
        Row(name, "load (map)", flax_load, treepack_load, size, 100),
        Row(
            name,
            "load, sum every array",
            lambda: total(flax_load),
            lambda: total(treepack_load),
            size,
            3,
        ),
    ]


def check(tree: Any, restored: Any) -> None:
    """Raises unless two trees hold the same bits."""
    pairs = zip(workloads.arrays(tree), workloads.arrays(restored), strict=True)
    for expected, found in pairs:
        expected = np.asarray(expected)
        if expected.dtype != found.dtype or expected.shape != found.shape:
            raise AssertionError(f"{found.dtype}{found.shape} in place of {expected.dtype}")
        if expected.tobytes() != found.tobytes():
            raise AssertionError("the restored bytes differ")


def peak_memory(library: str, op: str, size: int, directory: Path) -> int:
    """Returns by how many bytes an operation raises the peak of a fresh process."""
    command = [sys.executable, __file__, "--memory", library, op, str(size), str(directory)]
    return int(json.loads(subprocess.check_output(command)))


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
    # Writing 5 there sets the peak back to what is in use now.
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    result = actions[library, op]()
    del result
    return _status("VmHWM") - before


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def main() -> None:
    """Measures and prints everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=256, help="MiB of the large workloads")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--directory", type=Path, help="where files are written")
    parser.add_argument("--memory", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory:
        library, op, size, directory = arguments.memory
        print(json.dumps(measure_memory(library, op, int(size), Path(directory))))
        return
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        directory = Path(name)
        size = arguments.size * MIB
        print(f"{'workload':34} {'operation':22} {'flax':>10} {'treepack':>10} {'ratio':>8}  floor")
        for row in rows(size, directory):
            found = workloads.medians(
                {"flax": row.flax, "treepack": row.treepack},
                size=row.size,
                rounds=arguments.rounds,
            )
            ratio = found["flax"] / found["treepack"]
            floor = "" if row.floor is None else f"{row.floor:.0f} ×"
            print(
                f"{row.workload:34} {row.op:22} {found['flax'] * 1e3:7.2f} ms "
                f"{found['treepack'] * 1e3:7.3f} ms {ratio:6.1f} ×  {floor}",
                flush=True,
            )
        print(f"\n{'peak extra memory':34} {'operation':22} {'flax':>10} {'treepack':>10}")
        for op in ("encode", "save", "load"):
            flax_peak, peak = (
                peak_memory(library, op, size, directory) for library in ("flax", "treepack")
            )
            print(
                f"{arguments.size} MiB float32{'':19} {op:22} "
                f"{flax_peak / MIB:6.1f} MiB {peak / MIB:6.1f} MiB"
            )


if __name__ == "__main__":
    main()
