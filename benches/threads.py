"""Compares calls of eight threads at once with the same calls one after the other.

    python benches/threads.py

Large trees measure copies, which use all processors for one call, too; small leaves measure work
that holds the GIL, unless the interpreter has none. Both ways take turns at going first; ratios are
medians, above 1 if threads are faster.
"""

from __future__ import annotations

import concurrent.futures
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

import treepack

THREADS = 8
ROUNDS = 9


def main() -> None:
    """Prints a line for each call and tree."""
    large = {f"w{number}": np.ones(1 << 21, np.float32) for number in range(8)}
    small = {f"w{number}": np.ones(4, np.float32) for number in range(5000)}
    with tempfile.TemporaryDirectory() as folder:
        for name, tree in (
            ("64 MiB in 8 arrays", large),
            ("5,000 NumPy arrays", small),
            ("5,000 jax arrays", jax.tree.map(jax.numpy.asarray, small)),
        ):
            for verb, call in calls(Path(folder), tree).items():
                print(f"{name:24}{verb:8}{ratio(call):6.2f}", flush=True)


def calls(folder: Path, tree: Any) -> dict[str, Callable[[int], object]]:
    """Returns calls of the verbs, each for the number of a thread."""
    data = treepack.dumps(tree)
    return {
        "save": lambda number: treepack.save(folder / f"{number}.treepack", tree, durable=False),
        "load": lambda number: treepack.load(folder / f"{number}.treepack", tree, copy=True),
        "dumps": lambda _: treepack.dumps(tree),
        "loads": lambda _: treepack.loads(data, tree, copy=True),
    }


def ratio(call: Callable[[int], object]) -> float:
    """Returns how much faster all threads are than one."""
    numbers = range(THREADS)
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        ways = [lambda: list(map(call, numbers)), lambda: list(pool.map(call, numbers))]
        found = []
        for round_number in range(ROUNDS + 1):
            times = [0.0, 0.0]
            for way in (0, 1) if round_number % 2 else (1, 0):
                start = time.perf_counter()
                ways[way]()
                times[way] = time.perf_counter() - start
            found.append(times[0] / times[1])
    return statistics.median(found[1:])


if __name__ == "__main__":
    main()
