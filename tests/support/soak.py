"""Saves, loads, opens, selects and verifies random trees for long, and watches what stays behind.

    CYCLES=100000 THREADS=24 MINUTES=20 sh tools/soak.sh

Each cycle makes a tree from its number, saves it in the next of `FORMS`, and compares all that
comes back with the tree. After each round, when no cycle runs, `measure` counts what the process
has. A figure grows if its slope in the second half of the run (Theil-Sen: the median of the slopes
between any two samples), times the cycles of that half, is more than `ALLOWED`. So a cache that is
filled once and the noise of the allocator do not matter, and what each cycle leaves behind does:
100 bytes, for example. `--leak` shows it.

With `PYTHONMALLOC=malloc` and without malloc's caches of threads (`GLIBC_TUNABLES`), all memory of
Python and of the core is counted to the byte, but for mapped pages, which are resident memory. All
threads share one heap then, so that free places of one are not out of reach for the others.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import functools
import gc
import io
import itertools
import json
import mmap
import os
import random
import statistics
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import treepack
from node_types import NODES
from treepack import checkpoints, serialization
from treepack._src.saving import background
from trees import DTYPES, SCALAR_DTYPES, assert_equal, assert_same, example_array

# Random trees.

KEYS = ["kernel", "bias", "", "a/b", "~", ".", "ä", "a key of more than 31 characters", *"0123456"]
SHAPES = [(), (0,), (1,), (7,), (3, 5), (2, 0, 3), (300,), (17, 33), (40, 5, 8), (64, 64)]
LARGE = [(300_000,), (700, 500)]
SHARDED = NamedSharding(Mesh(np.array(jax.devices()), "x"), PartitionSpec("x"))


def array(rng: random.Random) -> np.ndarray:
    dtype = rng.choice(DTYPES)
    found = example_array(dtype, rng.choice(LARGE if rng.random() < 0.01 else SHAPES))
    if dtype.kind in "iuf" and dtype.itemsize <= 8 and rng.random() < 0.5:
        found = np.frombuffer(rng.randbytes(found.nbytes), dtype).reshape(found.shape)
    return rng.choice([found, found.T, found[..., ::2] if found.ndim else found])


def jax_array(rng: random.Random) -> jax.Array:
    """An array of jax. Of few kinds: jax keeps something for each."""
    found = jax.numpy.asarray(
        np.full(rng.choice([(), (8,), (8, 300)]), rng.randrange(100)),
        rng.choice([np.float32, np.int32, jax.numpy.bfloat16]),
    )
    return jax.device_put(found, SHARDED) if found.ndim and rng.random() < 0.3 else found


def scalar(rng: random.Random) -> Any:
    return rng.choice(
        [
            rng.random() < 0.5,
            rng.randrange(-(2**63), 2**64),
            rng.gauss(),
            complex(rng.random(), 1),
            "text" * rng.randrange(20),
            rng.randbytes(rng.choice([0, 3, 300])),
            example_array(rng.choice(SCALAR_DTYPES), (2,))[1],
        ]
    )


def state(rng: random.Random, depth: int = 0) -> Any:
    """A state dict of NumPy's arrays and scalars, which every form takes and gives back."""
    if depth and rng.random() < 0.6:
        return (scalar if rng.random() < 0.4 else array)(rng)
    count = rng.randrange(1, 5) if depth < 4 else 1
    return {key: state(rng, depth + 1) for key in sorted(rng.sample(KEYS, count))}


def tree(rng: random.Random, depth: int = 0) -> Any:
    """A tree of containers of all kinds, which files with a structure give back."""
    if depth and (depth > 3 or rng.random() < 0.5):
        leaf = rng.choice([array, array, scalar, jax_array, lambda _: None])
        return leaf(rng)
    items = [tree(rng, depth + 1) for _ in range(rng.randrange(1 if depth else 3, 6))]
    match rng.randrange(6):
        case 0:
            return items
        case 1:
            return tuple(items)
        case 2:
            return {rng.randrange(-9, 2**40): item for item in items}
        case 3:
            return {"node": NODES[rng.choice(list(NODES))], "key": jax.random.key(depth)}
        case _:
            return dict(zip(rng.sample(KEYS, len(items)), items, strict=True))


def leaves(state: Any, *keys: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(state, dict):
        for key, value in state.items():
            yield from leaves(value, *keys, key)
    else:
        yield keys, state


# What a cycle does.


def blank(leaf: Any) -> Any:
    """A leaf of the same kind with another value, if it is an array."""
    if isinstance(leaf, jax.Array) and not jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.device_put(np.zeros(leaf.shape, leaf.dtype), leaf.sharding)
    return np.zeros(leaf.shape, leaf.dtype) if isinstance(leaf, np.ndarray) else leaf


def is_none(leaf: Any) -> bool:
    return leaf is None


def check_part(path: Path, saved: Any, rng: random.Random) -> None:
    """Loads some leaves into a target, which keeps the others."""
    mask = jax.tree.map(lambda _: np.bool_(rng.random() < 0.5), saved, is_leaf=is_none)
    if not any(jax.tree.leaves(mask)):
        return
    target = jax.tree.map(blank, saved)
    expected = jax.tree.map(
        lambda is_read, new, old: new if is_read else old, mask, saved, target, is_leaf=is_none
    )
    assert_equal(treepack.load(path, target, select=mask, strict="exact"), expected)


def check_damaged(path: Path, rng: random.Random) -> None:
    """Reads a file that is cut short or has another byte: it is read, or there is an error."""
    if path.is_dir():
        path = rng.choice(sorted(path.iterdir()))
    data = bytearray(path.read_bytes())
    place = rng.randrange(len(data))
    if rng.random() < 0.5:
        del data[place:]
    else:
        data[place] ^= 1 << rng.randrange(8)
    damaged = path.with_name("damaged")
    damaged.write_bytes(data)
    reads: list[Callable[[Path], Any]] = [
        functools.partial(treepack.load, verify=True),
        functools.partial(treepack.load, on_corrupt="skip", mmap=False),
        functools.partial(treepack.open, salvage=True),
        treepack.verify,
        treepack.abstract,
        treepack.is_checkpoint,
        functools.partial(serialization.load_from_file, None),
    ]
    for read in reads:
        with warnings.catch_warnings(), contextlib.suppress(treepack.TreepackError):
            warnings.simplefilter("ignore")
            found = read(damaged)
            if isinstance(found, treepack.File):
                found.close()
    damaged.unlink()


def check(path: Path, saved: Any, rng: random.Random) -> None:
    """Compares all that reads a file of `save` with the tree that was saved."""
    found = treepack.load(path, copy=rng.choice([None, True]), mmap=rng.random() < 0.5)
    assert_equal(found, saved)
    verified = treepack.verify(path, threads=rng.randrange(1, 4))
    assert verified.ok, verified
    assert treepack.read_metadata(path) == {"step": 3}
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(saved)]
    assert [np.shape(leaf) for leaf in jax.tree.leaves(treepack.abstract(path))] == shapes
    with treepack.open(path, mmap=rng.random() < 0.5) as file:
        assert_equal(file.load(), saved)
        assert repr(file).startswith("<treepack.File")
        for place, leaf in file.leaves():
            assert place in file
            if isinstance(leaf, treepack.LazyArray):
                assert leaf[...].shape == leaf.shape
    check_part(path, saved, rng)
    if rng.random() < 0.2:
        check_damaged(path, rng)


class StoppedError(Exception):
    """Raised by a program amid a save."""


def stop(done: int, total: int) -> None:
    raise StoppedError


def save(path: Path, rng: random.Random, saved: Any = None, **options: Any) -> None:
    """Saves a tree and reads it; now and then the program ends the save."""
    saved = tree(rng) if saved is None else saved
    options["durable"] = rng.random() < 0.01
    options["metadata"] = {"step": 3}
    options["threads"] = rng.choice([None, 1, 2, 3])

    def written(**others: Any) -> None:
        what = leaves(saved) if path.name == "iterator" else saved
        saving = treepack.save(path, what, **options, **others)
        if saving is not None:
            saving.result()

    written()
    check(path, saved, rng)
    if rng.random() < 0.1:
        with contextlib.suppress(StoppedError):
            written(progress=stop)
        check(path, saved, rng)


def save_bytes(path: Path, rng: random.Random) -> None:
    saved = tree(rng)
    data = treepack.dumps(saved, metadata={"step": 3}, align=rng.choice([1, 16, 64]))
    assert_equal(treepack.loads(data, copy=rng.choice([None, True])), saved)
    with treepack.open(io.BytesIO(data)) as file:
        assert_equal(file.load(), saved)
    buffer = bytearray(treepack.packed_size(saved, described=True))
    treepack.pack_into(saved, buffer, described=True)
    assert_equal(treepack.loads(buffer, copy=True), saved)


def save_state(path: Path, rng: random.Random) -> None:
    """The functions of the drop-in."""
    saved = state(rng)
    target = jax.tree.map(blank, saved)
    assert_same(serialization.from_bytes(target, serialization.to_bytes(saved)), saved)
    assert_same(serialization.msgpack_restore(serialization.msgpack_serialize(saved)), saved)
    compress = rng.choice([False, True, "numbers"])
    serialization.save_to_file(saved, path, compress=compress, durable=False)
    how: Any = {"copy": rng.choice([None, True]), "mmap": rng.random() < 0.5}
    assert_same(serialization.load_from_file(target, path, **how), saved)
    assert_same(serialization.load_from_file(None, path, **how), saved)
    with contextlib.suppress(treepack.MismatchError):
        serialization.load_from_file({"other": np.zeros(3)}, path)
        raise AssertionError("a target with another leaf is restored")


def save_stream(path: Path, rng: random.Random) -> None:
    saved = state(rng)
    treepack.write_stream(path, leaves(saved))
    for (keys, leaf), (expected_keys, expected) in zip(
        treepack.read_stream(path), leaves(saved), strict=True
    ):
        assert keys == expected_keys
        assert_same(leaf, expected)


def save_series(path: Path, rng: random.Random) -> None:
    saved = state(rng)
    step = max(checkpoints.available_steps(path), default=0) + 1
    checkpoints.save_checkpoint(path, saved, step, keep=2, durable=False)
    assert checkpoints.available_steps(path)[-1] == step
    assert_same(checkpoints.restore_checkpoint(path, jax.tree.map(blank, saved)), saved)


FORMS: dict[str, Callable[[Path, random.Random], None]] = {
    "file": save,
    "gzip": functools.partial(save, compress=True),
    "numbers": functools.partial(save, compress="numbers"),
    "directory": functools.partial(save, sharded=True),
    "background": functools.partial(save, background=True),
    "directory in the background": functools.partial(save, sharded=True, background=True),
    "iterator": lambda path, rng: save(path, rng, state(rng)),
    "bytes": save_bytes,
    "state": save_state,
    "stream": save_stream,
    "series": save_series,
}


def cycle(folder: Path, number: int) -> None:
    """Does all with one tree, which the number decides."""
    name = list(FORMS)[number % len(FORMS)]
    try:
        FORMS[name](folder / name, random.Random(number))
    except BaseException as error:
        error.add_note(f"in cycle {number}: {name}")
        raise


# What is measured.


class _Mallinfo2(ctypes.Structure):
    """`struct mallinfo2` of glibc: ten numbers, of which some have a name here."""

    _fields_ = (
        ("_before", ctypes.c_size_t * 4),
        ("mapped", ctypes.c_size_t),
        ("_between", ctypes.c_size_t * 2),
        ("in_heaps", ctypes.c_size_t),
        ("_after", ctypes.c_size_t * 2),
    )


LIBC = ctypes.CDLL(None)

# How much a figure may grow in half a run: in a cycle, or in all, whichever is more. All others may
# grow by one.
ALLOWED = {
    "bytes in use": (25, 8 << 10),  # lists of free objects fill up for some thousand cycles
    "bytes of the heap": (50, 1 << 20),
    "bytes elsewhere": (50, 1 << 20),
    "mappings": (0, 8),
    "objects": (0.02, 1),  # noise of some tens
}

# A dict of numbers, which the garbage collector does not count among its objects.
Samples = list[dict[str, int]]


def bytes_in_use() -> int:
    """Returns what `malloc` has given out: with `PYTHONMALLOC=malloc` objects of Python as well."""
    LIBC.mallinfo2.restype = _Mallinfo2
    info = LIBC.mallinfo2()
    return info.mapped + info.in_heaps


def entries(folder: str | Path) -> int:
    return len(list(os.scandir(folder)))


def resident_bytes() -> tuple[int, int]:
    """Returns the resident memory of malloc's heap, free places in it included, and of all else."""
    heap = rest = 0
    is_heap = False
    for line in Path("/proc/self/smaps").read_text().split("\n"):
        if line.startswith("Rss:"):
            nbytes = int(line.split()[1]) * 1024
            heap, rest = (heap + nbytes, rest) if is_heap else (heap, rest + nbytes)
        elif not line.split(" ", 1)[0].endswith(":"):  # where a mapping begins
            is_heap = line.endswith("[heap]")
    return heap, rest


def measure(folder: Path, cycles: int) -> dict[str, int]:
    """Returns what the process has, once all that is not in use is given back."""
    gc.collect()
    LIBC.malloc_trim(0)
    heap, rest = resident_bytes()
    return {
        "cycles": cycles,
        "bytes in use": bytes_in_use(),
        "bytes of the heap": heap,
        "bytes elsewhere": rest,
        "mappings": Path("/proc/self/maps").read_text().count("\n"),
        "handles": entries("/proc/self/fd"),
        "threads": entries("/proc/self/task"),
        "files": sum(len(files) for _, _, files in os.walk(folder)),
        "objects": len(gc.get_objects()),
        "types": len(treepack.registered_types()),
        "saves": len(background._under_way),
    }


def growth(samples: Samples, name: str) -> tuple[float, int]:
    """Returns the slope of a figure in the second half of the samples, and the cycles of it."""
    half = samples[len(samples) // 2 :]
    slopes = [
        (b[name] - a[name]) / (b["cycles"] - a["cycles"])
        for a, b in itertools.combinations(half, 2)
    ]
    return statistics.median(slopes), half[-1]["cycles"] - half[0]["cycles"]


def grown(samples: Samples) -> dict[str, str]:
    """Returns which figures grow, and how."""
    found = {}
    for name in samples[0].keys() - {"cycles"}:
        slope, cycles = growth(samples, name)
        per_cycle, in_all = ALLOWED.get(name, (0, 1))
        if slope * cycles > max(per_cycle * cycles, in_all):
            found[name] = f"{name} grow by {slope:.6g} a cycle"
    return found


# The run.


def leak(kind: str, number: int, folder: Path, kept: list[Any]) -> None:
    """Leaves something behind, as a bug would."""
    if kind == "bytes in use":
        kept.append(bytes(67))  # 100 bytes
    elif number % 10 == 0:
        match kind:
            case "mappings":
                kept.append(mmap.mmap(-1, 4096, prot=number // 10 % 2))  # others lie apart
            case "handles":
                kept.append(os.dup(0))
            case "threads":
                threading.Thread(target=threading.Event().wait, daemon=True).start()
            case "files":
                (folder / f"left{number}").touch()
            case "objects":
                kept.append([])
            case "types":
                name = f"soak.Left{number}"
                kind_of_node = dataclasses.make_dataclass(name.replace(".", ""), ["x"])
                treepack.register_dataclass(kind_of_node, serialized_name=name)


def run(
    folder: Path,
    *,
    cycles: int = 0,
    seconds: float = 0.0,
    threads: int = 1,
    seeds: int = sys.maxsize,
    measures: int = 200,
    leaks: Sequence[str] = (),
    say: Callable[[str], object] = print,
) -> Samples:
    """Runs so many cycles, and for so long; returns what was measured after each round.

    So many `seeds` are different, then they come again. All cycles are in so many rounds
    (`measures`). `leaks` are figures of which each cycle, or each tenth, leaves something behind.
    """
    each = max(1, cycles // measures // threads) if cycles else len(FORMS)
    folders = [folder / str(index) for index in range(threads)]
    for its_own in folders:
        its_own.mkdir()
    done = 0
    kept: list[Any] = []
    samples: Samples = []

    def work(index: int) -> None:
        first = done + index * each
        for number in range(first, first + each):
            cycle(folders[index], number % seeds)
            for kind in leaks:
                leak(kind, number, folder, kept)

    with ThreadPoolExecutor(threads) as pool:
        do = map if threads == 1 else pool.map
        end = time.monotonic() + seconds
        while done < cycles or time.monotonic() < end:
            list(do(work, range(threads)))
            done += each * threads
            samples.append(measure(folder, done))
            say(json.dumps(samples[-1]))
    return samples


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cycles", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=sys.maxsize)
    parser.add_argument("--measures", type=int, default=200)
    parser.add_argument("--leak", action="append", default=[])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="treepack-soak-") as folder:
        tempfile.tempdir = folder  # where files of others count, too
        samples = run(
            Path(folder),
            cycles=args.cycles,
            seconds=60 * args.minutes,
            threads=args.threads,
            seeds=args.seeds,
            measures=args.measures,
            leaks=args.leak,
        )
    found = grown(samples)
    shown = {"start": 0, "middle": len(samples) // 2, "end": -1}
    for when, index in shown.items():
        print(when, json.dumps(samples[index]))
    for text in found.values():
        print(text)
    print(f"{samples[-1]['cycles']} cycles in {args.threads} threads: {len(found)} figures grow")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
