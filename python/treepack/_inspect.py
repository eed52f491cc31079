"""Telling what is in a tree, and whether it can be saved, without saving it."""

from __future__ import annotations

from typing import Any

import numpy as np

from treepack import _core, _leaves, _paths
from treepack._nodes import kind_of
from treepack._state_dict import is_serializable


def validate_serializable(pytree: Any) -> tuple[bool, list[str]]:
    """Tells whether a whole tree can be saved, and if not, why.

    Args:
      pytree: Any tree.

    Returns:
      Whether it can, and a list of issues, each of the form `path: reason`.

    Example:
      >>> import treepack
      >>> valid, issues = treepack.serialization.validate_serializable({"a": object()})
      >>> valid, issues[0][:34]
      (False, 'a: cannot serialize a leaf of type')
    """
    issues: list[str] = []
    _collect_issues(pytree, [], issues)
    return not issues, issues


def _collect_issues(value: Any, path: list[str], issues: list[str], depth: int = 0) -> None:
    children = None
    try:
        kind = kind_of(value)
        if kind is not None:
            children = kind.children(value)
            reason = _problem_of_node(value, children, depth)
        else:
            reason = _leaves.problem(value)
    except Exception as error:  # whatever a handler of the program raises
        reason = f"{type(error).__name__}: {error}"
    if reason is not None:
        issues.append(f"{_paths.text(path)}: {reason}")
    elif isinstance(children, dict):
        for name, child in children.items():
            _collect_issues(child, [*path, str(name)], issues, depth + 1)
    elif children is not None:
        _collect_issues(children, path, issues, depth + 1)


def _problem_of_node(value: Any, children: Any, depth: int) -> str | None:
    """Returns why a container cannot be saved, whatever is in it."""
    if depth >= _core.MAX_DEPTH:
        return f"nested more than {_core.MAX_DEPTH} levels deep, or contains itself"
    if children is value and not isinstance(value, dict):
        return f"the handler of {type(value).__name__} returns the object itself"
    if isinstance(children, dict) and _core.CHUNKED_MARKER in children:
        return f"the key {_core.CHUNKED_MARKER!r} is reserved"
    return None


def get_serialization_info(pytree: Any) -> dict[str, Any]:
    """Describes a tree.

    Args:
      pytree: Any pytree of JAX.

    Returns:
      A dict with `num_leaves`, `tree_structure` (as text), `total_elements` (a leaf
      without a shape counts as one), `memory_bytes`, `is_serializable` (of the
      outermost container) and `dtypes` (a list of names, sorted).

    Example:
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
