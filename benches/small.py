"""Compares small messages and leaves, cold files and numbers: `make bench NAME=small`.

    python benches/small.py
    python benches/small.py --rounds 21 --folder /somewhere/on/a/disk

A C program for such dicts alone (`small.c`, built here by the compiler `CC`) is the lower bound of
an encoder. Small messages (`messages.py`) stand beside pickle, msgspec, ormsgpack and flax;
decoders beside flax, pickle and the plain restore; parts of cold files beside a plain read of as
many bytes; weights coded as numbers beside a copy, and beside ZipNN if it is installed (`pip
install zipnn torch`). All take turns at going first; times are medians of rounds, ratios medians of
the ratios of each round.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import importlib.util
import os
import pickle
import random
import shlex
import statistics
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import serialization as flax

import treepack
from measure import seconds, touch
from messages import messages
from open import drop
from treepack import serialization

Call = Callable[[], Any]


@treepack.register_dataclass(serialized_name="benches.small.Node")
@dataclasses.dataclass
class Node:
    """A node of three scalars."""

    count: int
    mean: float
    scale: float


def main() -> None:
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--mib", type=int, default=1088, help="size of the file that is cold")
    parser.add_argument("--folder", help="where to make files; a temporary one by default")
    options = parser.parse_args()
    print(f"{'':44}{'treepack':>10}{'peer':>12}{'ratio':>8}")
    messages(row, options.rounds)
    with tempfile.TemporaryDirectory() as folder:
        encoding(compiled(Path(folder)), options.rounds)
    decoding(options.rounds)
    numbers(options.rounds)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        files(Path(folder), options.mib << 20, options.rounds)


def row(
    name: str,
    ours: Call,
    peer: str,
    theirs: Call,
    count: int,
    rounds: int,
    memory: int = 256 << 20,
    before: Call = lambda: None,
) -> None:
    """Prints the time of a call per leaf, and of its peer.

    If they take long, each needs up to `memory` bytes of fresh memory or page cache. `before` is
    called before each round.
    """
    calls = (ours, theirs)
    # Calls of less than 50 ms are measured in a row, as they occur.
    rows = [max(1, int(0.05 / seconds(call, 1))) for call in calls]
    times: list[list[float]] = [[], []]
    for turn in range(rounds):
        before()
        for at in (0, 1) if turn % 2 else (1, 0):
            if rows[at] == 1:
                touch(memory)
            times[at].append(seconds(calls[at], rows[at]) / count)
    ratio = statistics.median(a / b for a, b in zip(*times, strict=True))
    shown = [shown_time(statistics.median(found)) for found in times]
    print(f"{name:44}{shown[0]:>10}{shown[1]:>12}{ratio:8.2f}  x {peer}", flush=True)


def shown_time(time: float) -> str:
    """Returns a time in words."""
    return f"{time * 1e9:.0f} ns" if time < 1e-3 else f"{time * 1e3:.0f} ms"


def compiled(folder: Path) -> Any:
    """Builds the C program, and imports it."""
    source = Path(__file__).with_name("small.c")
    target = folder / f"small{sysconfig.get_config_var('EXT_SUFFIX')}"
    command = [*shlex.split(os.environ.get("CC", "cc")), "-O3", "-march=native", "-shared", "-fPIC"]
    command += ["-I", sysconfig.get_path("include"), "-I", np.get_include()]
    subprocess.run([*command, str(source), "-o", str(target)], check=True)
    spec = importlib.util.spec_from_file_location("small", target)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def arrays(count: int, nbytes: int) -> dict[str, np.ndarray]:
    """Returns arrays of floats of `nbytes` bytes each."""
    values = np.random.default_rng(0).standard_normal((count, nbytes // 4), np.float32)
    return {f"layer_{at}": value.copy() for at, value in enumerate(values)}


def move(tree: dict[str, np.ndarray]) -> None:
    """Puts arrays elsewhere in memory: where they lie matters as much as how they are copied."""
    space = bytearray(random.randrange(1 << 16))
    tree.update({name: value.copy() for name, value in tree.items()})
    del space


def encoding(small: Any, rounds: int) -> None:
    """Compares `to_bytes` with the C program, and with views that jaxlib makes of its arrays."""
    for count, nbytes in ((20_000, 256), (20_000, 1020), (20_000, 1028), (60_000, 512)):
        tree = arrays(count, nbytes)
        encode = lambda tree=tree: small.encode(tree, "float32")  # noqa: E731
        assert encode() == serialization.to_bytes(tree, align=1)
        ours = lambda tree=tree: serialization.to_bytes(tree)  # noqa: E731
        moved = lambda tree=tree: move(tree)  # noqa: E731
        name = f"encode {count:,} arrays of {nbytes:,} B"
        row(name, ours, "C", encode, count, rounds, before=moved)
    count = 5000
    tree = {name: jnp.asarray(value) for name, value in arrays(count, 256).items()}
    jax.block_until_ready(tree)
    found = [*tree.values()]
    ours = lambda: serialization.to_bytes(tree)  # noqa: E731
    views = lambda: [memoryview(it) for it in found]  # noqa: E731
    row(f"encode {count:,} arrays of jax", ours, "memoryview(x)", views, count, rounds)


def decoding(rounds: int) -> None:
    """Compares decoding into templates with flax, and nodes with `pickle`."""
    tree = arrays(20_000, 256)
    data = serialization.to_bytes(tree)
    ours = lambda: serialization.from_bytes(tree, data)  # noqa: E731
    row(
        "into a template, 20,000 arrays",
        ours,
        "flax",
        lambda: flax.from_bytes(tree, data),
        20_000,
        rounds,
    )
    plain = lambda: serialization.msgpack_restore(data)  # noqa: E731
    row("the same", ours, "the plain restore", plain, 20_000, rounds)
    few = arrays(12, 100_000)
    encoded = serialization.to_bytes(few)

    ours = lambda: serialization.from_bytes(few, encoded)  # noqa: E731
    theirs = lambda: flax.from_bytes(few, encoded)  # noqa: E731
    row("into a template, 12 arrays of 100 kB: a call", ours, "flax", theirs, 1, rounds)
    count = 50_000
    nodes = [Node(at, at / 2, at / 3) for at in range(count)]
    dumped, pickled = treepack.dumps(nodes), pickle.dumps(nodes, pickle.HIGHEST_PROTOCOL)
    assert treepack.loads(dumped) == nodes
    ours = lambda: treepack.loads(dumped)  # noqa: E731
    row(
        f"loads of {count:,} dataclasses",
        ours,
        "pickle",
        lambda: pickle.loads(pickled),
        count,
        rounds,
    )


def numbers(rounds: int) -> None:
    """Compares `compress="numbers"` both ways with a copy of the weights to fresh memory."""
    mib = 128
    values = np.random.default_rng(0).standard_normal(mib << 19, np.float32)
    weights = (0.02 * values).astype(jnp.bfloat16)
    coded = treepack.dumps(weights, compress="numbers")
    assert treepack.loads(coded).tobytes() == weights.tobytes()
    name = f"{mib} MiB of bfloat16 as numbers"
    copy = lambda: weights.copy()  # noqa: E731
    encode = lambda: treepack.dumps(weights, compress="numbers")  # noqa: E731
    row(f"{name}, {weights.nbytes / len(coded):.2f}: dumps", encode, "a copy", copy, 1, rounds)
    decode = lambda: treepack.loads(coded)  # noqa: E731
    row(f"{name}: loads", decode, "a copy", copy, 1, rounds)
    if importlib.util.find_spec("zipnn") is None:
        return
    zipnn = importlib.import_module("zipnn").ZipNN(bytearray_dtype="bfloat16", threads=2)
    given = weights.tobytes()  # whose bytes it turns where they are
    theirs = bytes(zipnn.compress(given))
    assert bytes(zipnn.decompress(theirs)) == weights.tobytes()
    their_name = f"ZipNN, {weights.nbytes / len(theirs):.2f}"
    row(f"{name}: dumps", encode, their_name, lambda: zipnn.compress(given), 1, rounds)
    row(f"{name}: loads", decode, their_name, lambda: zipnn.decompress(theirs), 1, rounds)


# The bytes summed at a time, which a core's cache holds.
BLOCK = 1 << 20


def files(folder: Path, nbytes: int, rounds: int) -> None:
    """Compares a file that is not in the page cache with plain reads, and a durable save."""
    parts, layers = ("params", "mu", "nu"), 60
    side = nbytes // len(parts) // layers // 4096
    values = np.random.default_rng(0).standard_normal((side, 1024), np.float32)
    tree = {part: {f"layer_{at}": values + at for at in range(layers)} for part in parts}
    path, plain, new = folder / "state.treepack", folder / "plain", folder / "plain.new"
    treepack.save(path, tree)
    size = path.stat().st_size
    third = size // len(parts)
    params = lambda: sums(treepack.load(path, select="params"))  # noqa: E731
    cold("cold: params of a TrainState, summed", path, params, lambda: read(path, third), rounds)
    whole = lambda: sums(treepack.load(path))  # noqa: E731
    cold("cold: all of it, mapped, summed", path, whole, lambda: read(path, size), rounds)
    leaves = [leaf for part in tree.values() for leaf in part.values()]

    def write() -> None:
        """Writes the same bytes to a new file with early write-back, syncs, and renames it."""
        with new.open("wb", buffering=0) as file:
            done = 0
            for leaf in leaves:
                file.write(leaf.data)
                start, done = done, done + leaf.nbytes
                write_back(file.fileno(), start, done - start)
            os.fsync(file.fileno())
        new.replace(plain)

    save = lambda: treepack.save(path, tree)  # noqa: E731
    row("durable save", save, "write, fsync, rename", write, 1, rounds, 2 * size)


def write_back(file: int, start: int, nbytes: int) -> None:
    """Begins to write pages to the disk."""
    begins = 2  # SYNC_FILE_RANGE_WRITE
    LIBC.sync_file_range(file, ctypes.c_int64(start), ctypes.c_int64(nbytes), begins)


LIBC = ctypes.CDLL(None)


def cold(name: str, path: Path, ours: Call, theirs: Call, rounds: int) -> None:
    """Prints the times of calls that read a file from the disk."""

    def dropped(call: Call) -> Call:
        return lambda: (drop(path), call())[1]

    row(name, dropped(ours), "a plain read", dropped(theirs), 1, rounds)


def sums(tree: dict[str, Any]) -> int:
    """Reads every byte of a tree of arrays."""
    leaves = [leaf for part in tree.values() for leaf in part.values()]
    return sum(summed(leaf) for leaf in leaves)


def summed(array: np.ndarray) -> int:
    """Returns the sum of the words of an array."""
    words = array.reshape(-1).view(np.uint64)
    step = BLOCK // 8
    return sum(int(words[at : at + step].sum()) for at in range(0, words.size, step))


def read(path: Path, nbytes: int) -> int:
    """Reads `nbytes` bytes to the same memory, and sums them."""
    memory = np.zeros(BLOCK, np.uint8)
    total = 0
    with path.open("rb", buffering=0) as file:
        for _ in range(0, nbytes, BLOCK):
            file.readinto(memory)
            total += summed(memory)
    return total


if __name__ == "__main__":
    main()
