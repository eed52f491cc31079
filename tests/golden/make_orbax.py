"""Makes files as older versions of Orbax write them, with arrays in one file of MessagePack.

    pip install orbax-checkpoint==0.5.20 jax==0.4.30     # and 0.2.3 with jax 0.4.13
    python tests/golden/make_orbax.py 0.5.20

The files are kept, so that every later version of treepack is tested with them.
"""

from __future__ import annotations

import collections
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

Moments = collections.namedtuple("Moments", "mu nu")
Empty = collections.namedtuple("Empty", "")

TREE = {
    "a": jnp.arange(6, dtype=jnp.float32).reshape(2, 3),
    "bf": jnp.ones(2, jnp.bfloat16),
    "np": np.arange(3, dtype=np.int8),
    "npscalar": np.float32(1.5),
    "i": 7,
    "f": 2.5,
    "s": "text",
    "none": None,
    "ed": {},
    "el": [],
    "et": (),
    "list": [np.zeros(2), 1],
    "tup": (np.ones(1), np.ones(1)),
    "nt": Moments(np.ones(2), np.zeros(2)),
    "ent": Empty(),
    "c64": np.ones(1, np.complex64),
    "bool": np.array(True),
    "opt": (Empty(), Moments(np.ones(1), None)),
}


def main() -> None:
    folder = Path(__file__).parent / "orbax" / sys.argv[1]
    checkpointer = ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False))
    for name in ("all_agg", "mixed"):
        arguments = jax.tree_util.tree_map(
            lambda leaf, all=name == "all_agg": ocp.SaveArgs(
                aggregate=all or not isinstance(leaf, (np.ndarray, jax.Array))
            ),
            TREE,
        )
        checkpointer.save(folder / name, TREE, save_args=arguments, force=True)


if __name__ == "__main__":
    main()
