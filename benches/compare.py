"""treepack beside its peers, in time and in memory.

    python benches/compare.py                 # the short run: prints a table
    python benches/compare.py --full          # all peers, larger trees; writes results/

All do the same work on the same tree, in turns; each reads its output back, once, which is compared
with the tree. Each workload, and each figure of memory, has a process of its own, so that none
inherits the state of the memory allocator.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import serialization as flax

import measure
import treepack
import workloads
from peers import LIBRARIES, SHORT, Library

MIB = 2**20
RESULTS = Path(__file__).parent / "results"

Call = Callable[[], Any]


class Row(NamedTuple):
    """One line of the table.

    Attributes:
      op: The operation.
      calls: How each library does it, or why it cannot.
      memory: How many bytes a call needs.
    """

    op: str
    calls: dict[str, Call | str]
    memory: int


class Run(NamedTuple):
    """The options of a workload.

    Attributes:
      size: The bytes of the large trees.
      libraries: Which libraries are compared.
      directory: Where files are written.
    """

    size: int
    libraries: dict[str, Library]
    directory: Path


def _large(run: Run) -> list[Row]:
    tree = workloads.layers(run.size, count=24)
    encode, decode = _in_memory(run, tree)
    ours = treepack.serialization.to_bytes(tree)
    limit = functools.partial(measure.copy_fresh, np.frombuffer(ours, np.uint8))
    reused = bytearray(treepack.packed_size(tree))
    encode.calls["copy"] = limit
    return [
        encode,
        decode,
        Row(
            "decode, copy=True",
            {
                "flax": decode.calls["flax"],
                "treepack": lambda: treepack.serialization.msgpack_restore(ours, copy=True),
                "copy": limit,
            },
            decode.memory,
        ),
        Row("decode, sum every array", _then(_total, decode.calls), decode.memory),
        Row(
            "pack_into a reused buffer",
            {
                "flax": encode.calls["flax"],
                "treepack": lambda: treepack.pack_into(tree, reused),
            },
            encode.memory,
        ),
        *_with_structure(tree)[1:],
    ]


def _files(run: Run) -> list[Row]:
    tree = workloads.layers(run.size, count=24)
    saves: dict[str, Call | str] = {}
    loads: dict[str, Call | str] = {}
    for name, library in run.libraries.items():
        if isinstance(library.save, str) or isinstance(library.load, str):
            saves[name] = loads[name] = str(library.save)
            continue
        path = run.directory / name
        library.save(tree, path)
        check(tree, library.load(path))
        saves[name] = functools.partial(library.save, tree, path)
        loads[name] = functools.partial(library.load, path)
    memory = 2 * run.size
    return [
        Row("save, not synced", saves, memory),
        Row("load", loads, memory),
        Row("load, sum every array", _then(_total, loads), memory),
        Row("load to jax arrays", _then(_to_jax, loads), memory),
    ]


def _bfloat16(run: Run) -> list[Row]:
    tree = workloads.as_jax_bfloat16(workloads.layers(run.size, count=24))
    return _in_memory(run, tree)


def _small_leaves(run: Run) -> list[Row]:
    return _in_memory(run, workloads.many_small())


def _small_leaves_in_tuples(run: Run) -> list[Row]:
    return _with_structure(workloads.in_tuples(workloads.many_small()))


def _with_structure(tree: Any) -> list[Row]:
    """Returns the rows for a tree with its structure, after that for one without."""
    flax_bytes, ours = flax.to_bytes(tree), treepack.dumps(tree)
    jax.tree.map(np.testing.assert_array_equal, treepack.loads(ours), tree)
    memory = 2 * len(ours)
    calls: dict[str, tuple[Call, Call]] = {
        "to_bytes": (lambda: flax.to_bytes(tree), lambda: treepack.serialization.to_bytes(tree)),
        "dumps": (lambda: flax.to_bytes(tree), lambda: treepack.dumps(tree)),
        "loads": (lambda: flax.from_bytes(tree, flax_bytes), lambda: treepack.loads(ours)),
    }
    return [
        Row(op, {"flax": theirs, "treepack": ours}, memory) for op, (theirs, ours) in calls.items()
    ]


def _small_jax_leaves(run: Run) -> list[Row]:
    return _in_memory(run, jax.device_put(workloads.many_small()))[:1]


def _train_state(run: Run) -> list[Row]:
    state = workloads.train_state(run.size)
    ours, theirs = treepack.serialization.to_bytes(state), flax.to_bytes(state)
    for restored in (
        flax.from_bytes(state, ours),
        treepack.serialization.from_bytes(state, theirs),
    ):
        jax.tree.map(np.testing.assert_array_equal, restored, state)
    memory = 2 * len(ours)
    return [
        Row(
            "to_bytes",
            {
                "flax": lambda: flax.to_bytes(state),
                "treepack": lambda: treepack.serialization.to_bytes(state),
            },
            memory,
        ),
        Row(
            "from_bytes",
            {
                "flax": lambda: flax.from_bytes(state, theirs),
                "treepack": lambda: treepack.serialization.from_bytes(state, ours),
            },
            memory,
        ),
    ]


def _chunked(run: Run) -> list[Row]:
    rng = np.random.default_rng(0)
    tree = {"w": rng.standard_normal(run.size * 3 // 8, dtype=np.float32)}
    if run.size < 2**30:  # in the short run the array is small, and chunks are smaller
        size = run.size
        flax.MAX_CHUNK_SIZE = treepack.serialization.MAX_CHUNK_SIZE = size
    return _in_memory(run, tree)


def _policy(run: Run) -> list[Row]:
    tree = workloads.policy()
    encode, decode = _in_memory(run, tree)
    reused = bytearray(treepack.packed_size(tree))
    targets, position = [], 0
    for array in workloads.arrays(tree):
        target = np.frombuffer(reused, np.uint8)[position : position + array.nbytes]
        targets.append((target, array.reshape(-1).view(np.uint8)))
        position += array.nbytes

    def copy() -> None:
        for target, array in targets:
            np.copyto(target, array)

    pack = {
        "flax": encode.calls["flax"],
        "treepack": lambda: treepack.pack_into(tree, reused),
        "copy": copy,
    }
    return [encode, decode, Row("pack_into a reused buffer", pack, encode.memory)]


WORKLOADS: dict[str, Callable[[Run], list[Row]]] = {
    "{size} MiB float32, 288 arrays": _large,
    "{size} MiB float32, 288 arrays, file": _files,
    "{size} MiB bfloat16, 288 jax arrays": _bfloat16,
    "20,000 arrays of 64 float32": _small_leaves,
    "20,000 arrays of 64 float32 in tuples": _small_leaves_in_tuples,
    "20,000 jax arrays of 64 float32": _small_jax_leaves,
    "TrainState with adamw, {size} MiB": _train_state,
    "one float32 array of 1.5 x {size} MiB": _chunked,
    "12 arrays, 1.2 MB": _policy,
}


def _in_memory(run: Run, tree: Any) -> list[Row]:
    """Returns the rows for encoding and decoding a tree."""
    encodes: dict[str, Call | str] = {}
    decodes: dict[str, Call | str] = {}
    for name, library in run.libraries.items():
        if isinstance(library.encode, str) or isinstance(library.decode, str):
            encodes[name] = decodes[name] = str(library.encode)
            continue
        try:
            data = library.encode(tree)
            check(tree, library.decode(data))
        except (TypeError, ValueError, NotImplementedError, KeyError, OverflowError) as error:
            lines = str(error).splitlines() or [""]
            encodes[name] = decodes[name] = f"{type(error).__name__}: {lines[0]}"
            continue
        encodes[name] = functools.partial(library.encode, tree)
        decodes[name] = functools.partial(library.decode, data)
    check(tree, flax.msgpack_restore(treepack.serialization.to_bytes(tree)))
    check(tree, treepack.serialization.msgpack_restore(flax.to_bytes(tree)))
    memory = 2 * workloads.nbytes(tree)
    return [Row("encode", encodes, memory), Row("decode", decodes, memory)]


def _then(last: Callable[[Any], Any], calls: dict[str, Call | str]) -> dict[str, Call | str]:
    """Returns calls that continue with the results of the given ones."""

    def both(first: Call) -> Any:
        return last(first())

    return {
        name: call if isinstance(call, str) else functools.partial(both, call)
        for name, call in calls.items()
    }


def _total(tree: Any) -> float:
    return sum(float(array.sum()) for array in workloads.arrays(tree))


def _to_jax(tree: Any) -> Any:
    return jax.block_until_ready(jax.device_put(tree))


def check(tree: Any, restored: Any) -> None:
    """Raises unless two trees have the same bits."""
    if isinstance(tree, dict):
        if tree.keys() != restored.keys():
            raise ValueError("returns other keys")
        for key, value in tree.items():
            check(value, restored[key])
        return
    expected, found = np.asarray(tree), np.asarray(restored)
    if expected.dtype != found.dtype or expected.shape != found.shape:
        raise TypeError(f"returns {found.dtype}{found.shape}, not {expected.dtype}")
    if not np.array_equal(expected.view(np.uint8), found.view(np.uint8)):
        raise ValueError("returns other bytes")


def measure_memory(name: str, op: str, size: int, directory: Path) -> tuple[int, int]:
    """Does one operation in this process and returns its memory: the peak, and mapped pages.

    Whoever loads reads every array, once: pages of a mapped file count, by whatever library.
    """
    library = LIBRARIES[name]()
    # Memory that an operation needs for any size, such as imports, does not count.
    small = workloads.layers(MIB // 2)
    if not isinstance(library.encode, str):
        library.decode(library.encode(small))
    library.save(small, directory / "small")
    _total(library.load(directory / "small"))
    tree = workloads.layers(size, count=24)
    path = directory / "memory"
    if op == "load":
        library.save(tree, path)
        del tree

        def load() -> Any:
            loaded = library.load(path)
            _total(loaded)
            return loaded

        return measure.peak_and_mapped(load)
    if op == "save":
        return measure.peak_and_mapped(lambda: library.save(tree, path))
    return measure.peak_and_mapped(lambda: library.encode(tree))


def main() -> None:
    """Measures and prints everything."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--full", action="store_true", help="all libraries, and write results/")
    parser.add_argument("--size", type=int, help="MiB of the large workloads")
    parser.add_argument("--rounds", type=int, default=7, help="how often each is measured")
    parser.add_argument(
        "--only",
        default="",
        help="workloads whose names contain this; with --full, the others keep their results",
    )
    parser.add_argument("--directory", type=Path, help="where files are written")
    parser.add_argument("--memory", action="store_true", help="only memory; writes it to results/")
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    # Files and messages of all libraries must fit in memory, or loads wait for the disk.
    arguments.size = arguments.size or (512 if arguments.full else 128)
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        if arguments.one:
            print(json.dumps(measure_one(arguments, Path(name))))
        elif arguments.memory:
            path = RESULTS / "results.json"
            results = json.loads(path.read_text()) | {"memory": memory(fresh)}
            path.write_text(json.dumps(results, indent=1) + "\n")
        else:
            results = run_all(arguments)
            if arguments.full:
                write(results)


def write(results: dict[str, Any]) -> None:
    """Writes results; with `--only`, other workloads keep those of equal machine and settings."""
    path = RESULTS / "results.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    same = ("machine", "python", "versions", "size_mib", "rounds", "settings")
    if all(before.get(key) == results[key] for key in same):
        rows = {each["workload"]: each for each in (*before["workloads"], *results["workloads"])}
        order = [title.format(size=results["size_mib"]) for title in WORKLOADS]
        results["workloads"] = [rows[title] for title in order if title in rows]
        results["memory"] = results["memory"] or before["memory"]
    RESULTS.mkdir(exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")


def measure_one(arguments: argparse.Namespace, directory: Path) -> Any:
    """Measures one workload or one figure of memory, in this process."""
    size = arguments.size * MIB
    if arguments.one[0] == "memory":
        _, library, op = arguments.one
        return measure_memory(library, op, size, directory)
    names = LIBRARIES if arguments.full else SHORT
    libraries = {name: LIBRARIES[name]() for name in names}
    rows = []
    for row in WORKLOADS[arguments.one[1]](Run(size, libraries, directory)):
        calls = {name: call for name, call in row.calls.items() if not isinstance(call, str)}
        seconds = measure.medians(calls, memory=row.memory, rounds=arguments.rounds)
        cannot = {name: why for name, why in row.calls.items() if isinstance(why, str)}
        rows.append({"op": row.op, "seconds": seconds, "cannot": cannot})
    return rows


def fresh(*what: str) -> Any:
    """Measures one thing in a process of its own."""
    command = [sys.executable, __file__, *sys.argv[1:], "--one", *what]
    return json.loads(subprocess.check_output(command))


def run_all(arguments: argparse.Namespace) -> Any:
    """Measures everything, each in a fresh process, prints the tables and returns all."""
    names = [name for name in (LIBRARIES if arguments.full else SHORT) if name != "flax"]
    results = about(arguments)
    print(results["machine"], "\n")
    print("ratio to the time of flax (above 1 is faster); copy: the bytes by two threads\n")
    head = "".join(f"{name:>12}" for name in [*names, "copy"])
    print(f"{'':27}{'flax':>12}{'treepack':>12}{head}")
    for workload in WORKLOADS:
        title = workload.format(size=arguments.size)
        if arguments.only not in title:
            continue
        print(title, flush=True)
        rows = fresh("workload", workload)
        results["workloads"].append({"workload": title, "rows": rows})
        for row in rows:
            print(_line(row, names), flush=True)
    if not arguments.only:
        print(f"\npeak extra memory, {arguments.size} MiB float32, in MiB (mapped pages of it)\n")
        results["memory"] = memory(fresh)
    return results


def memory(fresh: Callable[..., Any]) -> list[dict[str, Any]]:
    """Measures and prints the memory of some libraries, each in a process of its own."""
    names = (*SHORT, "orbax")
    print(f"{'':27}" + "".join(f"{name:>20}" for name in names))
    found = []
    for op in ("encode", "save", "load"):
        row = {
            name: fresh("memory", name, op) for name in names if (op, name) != ("encode", "orbax")
        }
        found.append({"op": op, "bytes": row})
        cells = {
            name: f"{peak / MIB:.1f} ({mapped / MIB:.1f})" for name, (peak, mapped) in row.items()
        }
        print(f"  {op:25}" + "".join(f"{cells.get(name, '-'):>20}" for name in names), flush=True)
    return found


def _line(row: dict[str, Any], names: list[str]) -> str:
    seconds = row["seconds"]
    ratios = "".join(
        f"{seconds['flax'] / seconds[name]:12.1f}" if name in seconds else f"{'n/a':>12}"
        for name in [*names, "copy"]
    )
    flax_ms, treepack_ms = seconds["flax"] * 1e3, seconds["treepack"] * 1e3
    return f"  {row['op']:25}{flax_ms:9.2f} ms{treepack_ms:9.3f} ms{ratios}"


def about(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the versions and hardware that the figures depend on."""
    cpu = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [line for line in cpuinfo.read_text().splitlines() if "model name" in line]
        cpu = models[0].split(":")[1].strip() if models else cpu
    packages = ("eformer", "equinox", "flax", "jax", "ml_dtypes", "msgspec", "numpy")
    packages += ("orbax-checkpoint", "ormsgpack", "pyarrow", "safetensors", "treepack")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    release = platform.release().split("-")[0]
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{cpu}, {cores} cores, {platform.system()} {release}",
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "size_mib": arguments.size,
        "rounds": arguments.rounds,
        "settings": {name: made().settings for name, made in LIBRARIES.items()},
        "workloads": [],
        "memory": [],
    }


if __name__ == "__main__":
    main()
