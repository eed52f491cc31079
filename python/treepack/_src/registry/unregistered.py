"""Types of nodes that the program has not registered.

Those of well-known libraries have a name in files all the same (`libraries.py`). Others are written
under their module and qualified name: a template restores them, and so does a program that has
registered the name.
"""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any, NamedTuple

from treepack._src.interop.jax import is_node_type
from treepack._src.pytree.containers import (
    DATACLASS,
    NAMEDTUPLE,
    NodeKind,
    fields_of,
    with_attributes,
)
from treepack._src.pytree.kinds import PYTREE, is_plain_namedtuple
from treepack._src.registry.fields import Fields
from treepack._src.registry.jax_nodes import encode_auxdata, jax_node_type, namedtuple_type
from treepack._src.registry.libraries import find, library_name
from treepack._src.registry.names import default_name
from treepack._src.registry.types import TYPES, NodeType, check_children

# Types by their registration with JAX, which cannot change. Threads may find the same at once, here
# and in `_found`.
_known: weakref.WeakKeyDictionary[type, NodeType] = weakref.WeakKeyDictionary()


class _Found(NamedTuple):
    """The description of a type, as long as its kind and the registered names are the same."""

    kind: NodeKind
    changes: int
    node_type: NodeType | None


_found: weakref.WeakKeyDictionary[type, _Found] = weakref.WeakKeyDictionary()


def unregistered(ty: type, kind: NodeKind) -> NodeType | None:
    """Describes a type by the kind of its nodes.

    Returns:
      The description; `None` if only a template can make such nodes, or the name is that of
      another type, which would take them.
    """
    found = _found.get(ty)
    if found is not None and found.kind is kind and found.changes == TYPES.changes:
        return found.node_type
    changes = TYPES.changes  # before anything is looked up: others may register meanwhile
    older = TYPES.older(ty)
    node_type = _describe(ty, kind) if older is None else older[1]
    if older is None and node_type is not None and TYPES.by_name(node_type.name) is not None:
        node_type = None
    _found[ty] = _Found(kind, changes, node_type)
    return node_type


def _describe(ty: Any, kind: NodeKind) -> NodeType | None:
    if ty in _known:
        return _known[ty]
    name = library_name(ty) or default_name(ty)
    if kind is NAMEDTUPLE:
        _known[ty] = namedtuple_type(ty, name)
    elif is_node_type(ty):
        _known[ty] = jax_node_type(ty, name, Fields.of(ty))
    elif kind is DATACLASS:
        return _dataclass_type(ty, name)  # JAX may know it later
    return _known.get(ty)


def of_library(name: str) -> NodeType | None:
    """Returns the entry of a well-known library's type by its name in a file."""
    ty = find(name)
    if ty is None:
        return None
    return TYPES.entry_of(ty) or _describe(ty, NAMEDTUPLE if is_plain_namedtuple(ty) else PYTREE)


def _dataclass_type(ty: Any, name: str) -> NodeType:
    """Describes a dataclass that JAX does not know, as `register_dataclass` would."""
    static = [field.name for field in dataclasses.fields(ty) if field.metadata.get("static")]
    names = [field.name for field in dataclasses.fields(ty) if field.name not in static]

    def flatten_node(node: Any) -> tuple[bytes, dict[str, Any]]:
        fields = fields_of(node)
        auxdata = tuple(fields.pop(name) for name in static)
        return encode_auxdata(auxdata, ty, static), fields

    def unflatten(auxdata: Any, found: list[str], children: list[Any]) -> Any:
        check_children(names, found)
        values = [*children, *auxdata]
        return with_attributes(ty, dict(zip([*names, *static], values, strict=True)))

    return NodeType(
        ty,
        name,
        flatten_node,
        unflatten,
        unflatten_abstract=unflatten,
        fields=(names, static),
        checked=True,
        writes_auxdata=True,
        static_of=lambda node: {field: getattr(node, field) for field in static},
    )
