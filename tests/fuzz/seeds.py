"""Writes what the targets with Python begin with: `seeds.py folder`, which has one for each."""

from __future__ import annotations

import collections
import dataclasses
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import treepack
from treepack import serialization


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclasses.dataclass
class Point:
    x: Any
    y: Any
    unit: Any = None


# As the target does.
treepack.register_namedtuple(Pair, serialized_name="Pair")
treepack.register_dataclass(
    Point, serialized_name="Point", data_fields=("x", "y"), meta_fields=("unit",)
)

TREES: list[Any] = [
    {"a": np.arange(6.0).reshape(2, 3), "b": [1, 2.5, None, True, "text", b"bytes", 1j]},
    (jnp.ones(2, jnp.bfloat16), Pair(np.float32(1), {}), {1: 2, "x": (3,)}),
    collections.OrderedDict(a=jax.random.key(0), b=bytearray(b"x")),
    {"params": {"dense": {"kernel": np.zeros((4, 4), np.int8), "bias": np.zeros(4)}}},
    [[[np.zeros(0)]], jax.tree_util.Partial(jax.nn.relu, 1), np.datetime64(1, "s")],
    np.zeros((20, 20)),
    [Point(np.ones(2), Point(1, [2], "m"), {"s": (1,)}), *(Point(i, 0.5, "m") for i in range(20))],
    {"a": {"w": 1, "b": np.ones(3)}, 3: Point(1, None, frozenset({1, "x"}))},
    5,
]


GOLDEN = Path(__file__).parents[1] / "golden"
CUT = b"\xc1cut\xc1"


def trees() -> Iterator[bytes]:
    """Yields trees with their types, and without."""
    serialization.MAX_CHUNK_SIZE = 64  # arrays in chunks, too
    for tree in TREES:
        yield treepack.dumps(tree)
        yield serialization.to_bytes(tree)


def remote() -> Iterator[bytes]:
    """Yields what is done, answers, and the files that are there."""
    noise = random.Random(0)
    files = [[path.read_bytes()] for path in sorted((GOLDEN / "forms").iterdir()) if path.is_file()]
    for folder in (GOLDEN / "forms/directory", GOLDEN / "landed/2026-11-22-directory"):
        names = ["manifest.treepack", *(it.name for it in sorted(folder.glob("*-0*.treepack")))]
        files.append([(folder / name).read_bytes() for name in names])
    for number, parts in enumerate(files):
        for verb in range(9):
            answers = bytes(100)
            if verb % 2:
                answers = bytes(noise.choice((0, 0, 0, noise.randrange(256))) for _ in range(100))
            how = verb + 9 * (number % 4)
            yield CUT.join([bytes([how]) + answers, *parts])


def main() -> None:
    for seeds in (trees, remote):
        folder = Path(sys.argv[1]) / seeds.__name__
        folder.mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(seeds()):
            (folder / f"seed-{number}").write_bytes(seed)


if __name__ == "__main__":
    main()
