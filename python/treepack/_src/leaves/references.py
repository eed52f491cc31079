from __future__ import annotations

from typing import Any

import numpy as np

from treepack._src.pytree.state_dict import leaves_of

# Prefixes with which Orbax and T5X refer to a value in another file.
_REFERENCES = ("PLACEHOLDER://", "AGGREGATED://")

# The prefix with which flax refers to an array in TensorStore beside the file.
_FLAX_REFERENCE = "//GDAPlaceholder:"


def reference_text(leaf: object) -> str | None:
    if isinstance(leaf, str) and leaf.startswith(_REFERENCES):
        return (
            "references of Orbax or T5X to files beside it: restore it with that library, or with "
            "treepack.orbax.load_aggregate if it has all arrays, and save the result"
        )
    if isinstance(leaf, str) and leaf.startswith(_FLAX_REFERENCE):
        return (
            "references of flax to arrays of several processes in the directory *_gda beside it: "
            "restore it with flax.training.checkpoints, and save the result"
        )
    if isinstance(leaf, dict) and "driver" in leaf and "kvstore" in leaf:
        return (
            "specifications of T5X for arrays of TensorStore beside it: restore it with T5X, or "
            "read each with tensorstore.open, and save the arrays"
        )
    return None


def flax_references(tree: Any) -> str | None:
    if type(tree) is dict:
        return next(filter(None, map(flax_references, tree.values())), None)
    if type(tree) is np.ndarray:
        return None
    texts = (leaf for _, leaf in leaves_of(tree, ()) if isinstance(leaf, str))
    return next((reference_text(text) for text in texts if text.startswith(_FLAX_REFERENCE)), None)
