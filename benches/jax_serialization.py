"""Compares with jax's experimental `pytree_serialization`: 512 MiB in 64 jax arrays.

    python benches/jax_serialization.py

Both wait for the disk, which jax has no option against; neither compresses. Loads return jax arrays
on the default device. Medians.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import jax
from jax.experimental.array_serialization import pytree_serialization

import measure
import treepack

ARRAYS = 64
SIZE = 512 << 20


def main() -> None:
    """Prints the seconds of each library to save and to load."""
    keys = jax.random.split(jax.random.key(0), ARRAYS)
    tree = {
        f"w{i}": jax.random.normal(key, (SIZE // ARRAYS // 4096, 1024))
        for i, key in enumerate(keys)
    }
    shardings = jax.tree.map(lambda leaf: leaf.sharding, tree)
    with tempfile.TemporaryDirectory() as folder:
        theirs, ours = Path(folder) / "jax", Path(folder) / "tree.treepack"

        def theirs_loaded() -> None:
            jax.block_until_ready(pytree_serialization.load(theirs, shardings))

        calls = {
            "save, jax": lambda: pytree_serialization.save(tree, theirs),
            "save, treepack": lambda: treepack.save(ours, tree),
            "load, jax": theirs_loaded,
            "load, treepack": lambda: jax.block_until_ready(treepack.load(ours, tree)),
            "load in memory of its own, treepack": lambda: jax.block_until_ready(
                treepack.load(ours, tree, mmap=False)
            ),
        }
        for name, seconds in measure.medians(calls, memory=SIZE, rounds=5).items():
            print(f"{name:36}{seconds:8.3f} s")


if __name__ == "__main__":
    main()
