"""Describes node types that the program has not registered.

Types of known libraries have a name in files without registration (`libraries.py`). Other types are
written under their module and qualified name, and restored by a template, or by a program that
registers the name.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from treepack._src.interop.jax import is_node_type
from treepack._src.pytree.containers import (
    DATACLASS,
    NAMEDTUPLE,
    NodeKind,
    fields_of,
    with_attributes,
)
from treepack._src.pytree.kinds import is_plain_namedtuple
from treepack._src.pytree.left_out import LeftOut
from treepack._src.registry.fields import Fields, dataclass_fields
from treepack._src.registry.jax_nodes import encode_auxdata, jax_node_type, namedtuple_type
from treepack._src.registry.libraries import find, library_name
from treepack._src.registry.names import default_name
from treepack._src.registry.types import TYPES, NodeType, check_children

# Cached types of JAX nodes, which JAX keeps alive as well. Threads may add the same entry at once,
# here and in `_found`.
_known: weakref.WeakKeyDictionary[type, NodeType] = weakref.WeakKeyDictionary()


class _Found(NamedTuple):
    """A cached description of a type, valid while its kind and the registered names do not change.

    It holds no reference to the type, which the program may drop.
    """

    kind: NodeKind
    changes: int
    describe: Callable[[type], NodeType | None]


_found: weakref.WeakKeyDictionary[type, _Found] = weakref.WeakKeyDictionary()


def unregistered(ty: type, kind: NodeKind) -> NodeType | None:
    """Describes a type by the kind of its nodes.

    Returns:
      The description; `None` if only a template can rebuild such nodes, or if another type is
      registered under the name.
    """
    found = _found.get(ty)
    if found is None or found.kind is not kind or found.changes != TYPES.changes:
        changes = TYPES.changes  # read before the lookups: another thread may register a type
        older = TYPES.older(ty)
        if older is not None:
            return older[1]
        found = _Found(kind, changes, _describing(ty, kind))
        _found[ty] = found
    return found.describe(ty)


def _describing(ty: type, kind: NodeKind) -> Callable[[type], NodeType | None]:
    """Returns a function that describes a type, and holds no reference to it."""
    name = _name_of(ty)
    if TYPES.by_name(name) is not None:
        return lambda _: None
    if kind is NAMEDTUPLE:
        return functools.partial(namedtuple_type, name=name)
    if is_node_type(ty):
        return _described
    if kind is DATACLASS:  # it may be registered with JAX later
        static = [field.name for field in dataclass_fields(ty) if field.metadata.get("static")]
        names = [field.name for field in dataclass_fields(ty) if field.name not in static]
        return functools.partial(_dataclass_type, name=name, names=names, static=static)
    return lambda _: None


def _name_of(ty: type) -> str:
    return library_name(ty) or default_name(ty)


def _described(ty: type) -> NodeType:
    """Describes a node of JAX."""
    if ty not in _known:
        _known[ty] = jax_node_type(ty, _name_of(ty), Fields.of(ty))
    return _known[ty]


def of_library(name: str) -> NodeType | None:
    """Returns the entry of a known library's type by its name in a file."""
    ty = find(name)
    if ty is None:
        return None
    if (known := TYPES.entry_of(ty)) is not None:
        return known
    return namedtuple_type(ty, name) if is_plain_namedtuple(ty) else _described(ty)


def _dataclass_type(ty: type, *, name: str, names: list[str], static: list[str]) -> NodeType:
    """Describes a dataclass that is not registered with JAX, like `register_dataclass`."""

    def flatten_node(node: Any, left_out: LeftOut) -> tuple[bytes, dict[str, Any]]:
        fields = fields_of(node)
        auxdata = tuple(fields.pop(name) for name in static)
        return encode_auxdata(auxdata, left_out, ty, static), fields

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
