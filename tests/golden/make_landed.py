"""Makes the files of `landed/` with an older version of treepack, built from its commit.

    PYTHONPATH=OLDER/python:tests python tests/golden/make_landed.py DATE

2026-11-21 is 6c00062, which had no format yet but a state with a structure; 2026-11-22 is be8b8c7,
of version 1. The files are kept, so that every later version is tested with them.
"""

from __future__ import annotations

import collections
import sys
from pathlib import Path
from typing import Any

import flax.core
import jax.numpy as jnp
import numpy as np
import optax

import treepack
from golden.make import tree

W = np.arange(3, dtype=np.float32)
LARGE = np.sin(np.arange(1200, dtype=np.float32))


def typed() -> Any:
    """Returns nodes and arrays of JAX that all of these versions know."""
    return {
        "frozen": flax.core.FrozenDict({"b": W, "a": {"c": W}}),
        "ordered": collections.OrderedDict(b=W, a=W),
        "adam": optax.adam(1e-3).init({"w": W}),
        "keys": {0: W, 7: (W, [W])},
        "tuple": (1, (), {}),
        "jax": jnp.arange(6.0).reshape(2, 3),
        "half": jnp.ones(3, jnp.bfloat16),
        "large": LARGE,
    }


def sharded() -> Any:
    """Returns what is in the directory."""
    return {"large": LARGE, "half": jnp.ones(3, jnp.bfloat16)}


def main() -> None:
    date = sys.argv[1]
    folder = Path(__file__).parent / "landed"
    old: Any = treepack
    old.register_tree(typed()["adam"], prefix="optax")
    (folder / f"{date}-plain.treepack").write_bytes(old.dumps(tree()))
    (folder / f"{date}-typed.treepack").write_bytes(old.dumps(typed()))
    if hasattr(old, "save"):
        old.save(folder / f"{date}-metadata.treepack", tree(), metadata={"step": 7})
        old.save(folder / f"{date}-gzip.treepack.gz", tree(), compress=True)
        old.save(folder / f"{date}-directory", sharded(), sharded=True)
    else:
        (folder / f"{date}-gzip.treepack.gz").write_bytes(old.compress_bytes(old.dumps(tree())))
        (folder / f"{date}-state.msgpack").write_bytes(old.to_bytes(tree()))


if __name__ == "__main__":
    main()
