"""What containers consist of, and how they are put together again.

A `NodeKind` knows one kind of container: the named children of an object, and how to make such
an object from new children. `kind_of` finds the kind of an object, in this order:

1. handlers registered with treepack, flax or eformer (`handlers.py`)
2. dict, list, tuple and their like (`builtin.py`), `jax.tree_util.Partial`
3. namedtuples, unless JAX knows them as nodes of its registry
4. nodes of JAX's pytree registry (`pytree.py`)
5. subclasses of dict and list
6. dataclasses (`dataclass.py`)

Structs and FrozenDicts of flax have handlers that call flax on what is inside.
They are taken apart here instead, so that anything may be inside them.
"""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

from treepack._libraries import jax as _jax
from treepack._libraries.flax import is_linen_module
from treepack._nodes import handlers
from treepack._nodes.builtin import (
    BUILTIN,
    DICT,
    LIST,
    NAMEDTUPLE,
    children_in_words,
    dict_children,
    dict_in_words,
    is_namedtuple,
)
from treepack._nodes.code import PRUNED, Pruned
from treepack._nodes.dataclass import DATACLASS, STRUCT
from treepack._nodes.kind import NodeKind
from treepack._nodes.pytree import PARTIAL, PYTREE

__all__ = ["NodeKind", "is_container_type", "is_plain_namedtuple", "kind_of"]

# By the module of flax that defines a handler; see `handlers.is_from`.
_OF_FLAX: dict[str, NodeKind] = {
    "flax.struct": STRUCT,
    "flax.core.frozen_dict": NodeKind(
        dict_children,
        lambda target, new: type(target)({key: new[str(key)] for key in target}),
        dict_in_words,
        more_allowed=True,
    ),
}

# The kinds of types that will not become another one, unless they get a handler.
_known: weakref.WeakKeyDictionary[type, NodeKind] = weakref.WeakKeyDictionary()


def kind_of(value: Any) -> NodeKind | None:
    """Returns the kind of container that a value is, or `None` for a leaf."""
    ty = type(value)
    if issubclass(ty, type):
        return None
    found = handlers.find(ty)
    if found is not None:
        return _by_handlers(found)
    known = BUILTIN.get(ty) or _known.get(ty)
    if ty is Pruned:
        return PRUNED
    if known is not None:
        return known
    kind = _without_handlers(value)
    if kind in (PARTIAL, NAMEDTUPLE, PYTREE):  # JAX may be told of others later
        _known[ty] = kind
    return kind


def _by_handlers(found: handlers.Handlers) -> NodeKind:
    for module, kind in _OF_FLAX.items():
        if handlers.is_from(found.to_state, module):
            return kind
    return NodeKind(found.to_state, found.from_state, children_in_words, final=True)


def _without_handlers(value: Any) -> NodeKind | None:
    ty = type(value)
    if _jax.is_partial_type(ty):
        return PARTIAL
    if is_plain_namedtuple(ty):
        return NAMEDTUPLE
    if _jax.is_node(value):
        return PYTREE
    if isinstance(value, dict):
        return DICT
    if isinstance(value, list):
        return LIST
    if dataclasses.is_dataclass(value) and not is_linen_module(value):
        return DATACLASS
    return None


def is_plain_namedtuple(ty: type) -> bool:
    """Tells whether a type is a namedtuple that is not registered with JAX as something else."""
    return is_namedtuple(ty) and _jax.is_plain_namedtuple(ty)


def is_container_type(ty: type) -> bool:
    """Tells whether objects of a type are containers, as far as the type alone tells."""
    return (
        handlers.find(ty) is not None
        or ty in BUILTIN
        or issubclass(ty, (dict, list))
        or is_namedtuple(ty)
        or dataclasses.is_dataclass(ty)
        or (ty is not type(None) and _jax.is_node_type(ty))
    )
