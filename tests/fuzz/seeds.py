"""Writes encoded trees into a folder, for the target `trees` to begin with: `seeds.py folder`."""

from __future__ import annotations

import collections
import sys
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


treepack.register_namedtuple(Pair, serialized_name="Pair")  # as the target does

TREES: list[Any] = [
    {"a": np.arange(6.0).reshape(2, 3), "b": [1, 2.5, None, True, "text", b"bytes", 1j]},
    (jnp.ones(2, jnp.bfloat16), Pair(np.float32(1), {}), {1: 2, "x": (3,)}),
    collections.OrderedDict(a=jax.random.key(0), b=bytearray(b"x")),
    {"params": {"dense": {"kernel": np.zeros((4, 4), np.int8), "bias": np.zeros(4)}}},
    [[[np.zeros(0)]], jax.tree_util.Partial(jax.nn.relu, 1), np.datetime64(1, "s")],
    np.zeros((20, 20)),
    5,
]


def main() -> None:
    folder = Path(sys.argv[1])
    serialization.MAX_CHUNK_SIZE = 64  # arrays in chunks, too
    for number, tree in enumerate(TREES):
        (folder / f"described-{number}").write_bytes(treepack.dumps(tree))
        (folder / f"plain-{number}").write_bytes(serialization.to_bytes(tree))


if __name__ == "__main__":
    main()
