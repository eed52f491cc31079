"""Nodes of JAX's pytree registry, whose children are named by their key paths."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from treepack import _paths
from treepack._nodes import code
from treepack._nodes.builtin import children_in_words
from treepack._nodes.kind import NodeKind

if TYPE_CHECKING:
    import jax


def flatten(value: Any) -> tuple[dict[str, Any], jax.tree_util.PyTreeDef]:
    """Returns the children of a pytree node by name, and its treedef."""
    from jax.tree_util import tree_flatten_with_path

    flat, treedef = tree_flatten_with_path(value, is_leaf=lambda x: x is not value)
    children = {_paths.key_name(path[0]): child for path, child in flat}
    if len(children) != len(flat):
        raise ValueError(
            f"The children of a {type(value).__name__} do not have unique names: "
            f"{[_paths.key_name(path[0]) for path, _ in flat]}"
        )
    return children, treedef


def _children(value: Any) -> dict[str, Any]:
    return code.split(value, flatten(value)[0])[0]


def _make(target: Any, new: dict[str, Any]) -> Any:
    return _open(target)[1](new)


def _open(target: Any) -> tuple[dict[str, Any], Callable[[dict[str, Any]], Any]]:
    children, treedef = flatten(target)

    def make(new: dict[str, Any]) -> Any:
        return treedef.unflatten([new.get(name, child) for name, child in children.items()])

    return code.split(target, children)[0], make


PYTREE = NodeKind(_children, _make, children_in_words, open=_open)

# `jax.tree_util.Partial`, as flax names its children.
PARTIAL = NodeKind(
    lambda partial: {"args": partial.args, "keywords": partial.keywords},
    lambda partial, new: type(partial)(partial.func, *new["args"], **new["keywords"]),
    children_in_words,
    more_allowed=True,
)
