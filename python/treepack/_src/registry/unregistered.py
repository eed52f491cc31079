"""Describes node types that the program has not registered.

Types that are not of known libraries (`library_types.py`) are written under their module and
qualified name, and restored by a template, or by a program that registers the name.
"""

from __future__ import annotations

import weakref
from typing import Any

from treepack._src.interop import jax as _jax
from treepack._src.pytree.containers import NodeKind
from treepack._src.registry.fields import Fields, dataclass_fields
from treepack._src.registry.jax_nodes import jax_node_type, plain_type
from treepack._src.registry.library_types import find, library_name
from treepack._src.registry.names import default_name
from treepack._src.registry.types import TYPES, NodeType

# Cached types of JAX nodes, which JAX keeps alive as well. Threads may add the same entry at once,
# here and in `_rows`.
_known: weakref.WeakKeyDictionary[type, NodeType] = weakref.WeakKeyDictionary()

# The names of types, `None` if another type is registered under the name, and their fields; with
# the number of changes of the registered names for which they are valid.
_rows: weakref.WeakKeyDictionary[type, tuple[int, str | None, Fields]] = weakref.WeakKeyDictionary()


def unregistered(ty: type, kind: NodeKind) -> NodeType | None:
    row = _rows.get(ty)
    if row is None or row[0] != TYPES.changes:
        changes = TYPES.changes  # read before the lookups: another thread may register a type
        older = TYPES.older(ty)
        if older is not None:
            return older[1]
        name = library_name(ty) or default_name(ty)
        is_taken = TYPES.by_name(name) is not None
        row = _rows[ty] = changes, None if is_taken else name, _fields(ty)
    _, free_name, fields = row
    if free_name is None:
        return None
    if kind.sort in ("namedtuple", "dataclass"):  # a dataclass may be registered with JAX later
        return plain_type(ty, free_name, fields)
    return _jax_type(ty, free_name) if _jax.is_node_type(ty) else None


def _fields(ty: Any) -> Fields:
    return (
        Fields([*ty._fields], []) if _jax.is_namedtuple(ty) else Fields.marked(dataclass_fields(ty))
    )


def _jax_type(ty: type, name: str) -> NodeType:
    if ty not in _known:
        _known[ty] = jax_node_type(ty, name, Fields.of(ty))
    return _known[ty]


def of_library(name: str) -> NodeType | None:
    ty = find(name)
    if ty is None:
        return None
    if (entry := TYPES.entry_of(ty)) is not None:
        return entry
    if _jax.is_plain_namedtuple(ty):
        return plain_type(ty, name, _fields(ty))
    return _jax_type(ty, library_name(ty) or default_name(ty))
