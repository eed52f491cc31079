"""Describes trees and checks whether they can be saved, without saving them."""

from __future__ import annotations

from typing import Any

import numpy as np

import treepack._core as core
from treepack._src.pytree import handlers
from treepack._src.pytree.state_dict import is_serializable


def validate_serializable(pytree: Any) -> tuple[bool, list[str]]:
    """Checks whether a tree can be saved, and lists the reasons if it cannot.

    Args:
      pytree: Any tree.

    Returns:
      Whether the tree can be saved, and a list of issues of the form `path: reason`.

    Examples:
      >>> import treepack
      >>> valid, issues = treepack.serialization.validate_serializable({"a": object()})
      >>> valid, issues[0][:34]
      (False, 'a: cannot serialize a leaf of type')
    """
    problems = core.problems(pytree, overridden=handlers.overridden())
    return not problems, [f"{path}: {reason}" for path, reason in problems]


def get_serialization_info(pytree: Any) -> dict[str, Any]:
    """Returns statistics of a tree.

    Args:
      pytree: Any JAX pytree.

    Returns:
      A dict with `num_leaves`, `tree_structure` (a string), `total_elements` (a leaf without a
      shape counts as one), `memory_bytes`, `is_serializable` (of the outermost container) and
      `dtypes` (a sorted list of names).

    Examples:
      >>> import numpy as np, treepack
      >>> tree = {"w": np.zeros((2, 3), np.float32), "n": 1}
      >>> info = treepack.serialization.get_serialization_info(tree)
      >>> info["num_leaves"], info["total_elements"], info["dtypes"]
      (2, 7, ['float32'])
    """
    import jax

    leaves, structure = jax.tree_util.tree_flatten(pytree)
    elements = memory = 0
    dtypes = set()
    for leaf in leaves:
        elements += int(np.prod(leaf.shape)) if hasattr(leaf, "shape") else 1
        if hasattr(leaf, "nbytes"):
            memory += int(leaf.nbytes)
        elif isinstance(leaf, (bool, int, float, complex)):
            memory += np.asarray(leaf).nbytes
        if hasattr(leaf, "dtype"):
            dtypes.add(str(leaf.dtype))
    return {
        "num_leaves": len(leaves),
        "tree_structure": str(structure),
        "total_elements": elements,
        "memory_bytes": memory,
        "is_serializable": is_serializable(pytree),
        "dtypes": sorted(dtypes),
    }
