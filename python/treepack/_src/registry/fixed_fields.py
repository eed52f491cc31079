"""Types whose nodes all consist of the same attributes: the core goes through these by itself.

They are namedtuples, structs of flax, dataclasses, what `jax.tree_util.register_dataclass` knows,
and equinox modules. Of any other type, Python takes each node apart.
"""

from __future__ import annotations

import dataclasses
import operator
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from treepack._src.interop import equinox
from treepack._src.interop import jax as _jax
from treepack._src.pytree import handlers
from treepack._src.pytree.containers import (
    DATACLASS,
    NAMEDTUPLE,
    STRUCT,
    NodeKind,
    data_fields,
    is_namedtuple,
    namedtuple_of,
    struct_fields,
)
from treepack._src.pytree.kinds import PYTREE, kind_of
from treepack._src.registry import types as _types
from treepack._src.registry.fields import Fields


class Record(NamedTuple):
    """What is recorded of all nodes of a type.

    Attributes:
      name: The name of the type.
      fields: The names of its children and static data, see `types.NodeType`.
      version: Its version.
      head: What the static data begin with.
      static: The attributes that follow.
    """

    name: str
    fields: tuple[list[str], list[str]] | None
    version: int
    head: tuple[Any, ...]
    static: list[str]


class FixedFields(NamedTuple):
    """What all nodes of a type consist of.

    Attributes:
      names: The names of the children. They are attributes.
      make: Takes a template and new children in the same order, returns a new node.
      exactly: How many attributes a node has; one that has more or fewer is taken apart by
        Python. `None` if that does not matter.
      pytree: Whether it is a node of JAX's registry. What is inside becomes a state dict even where
        a handler has made what is around it.
      code: Whether functions among the children are no state. A node that has some is taken
        apart by Python.
      record: What is recorded of such a node; `None` if Python has to be asked for each.
    """

    names: list[str]
    make: Callable[[Any, list[Any]], Any]
    exactly: int | None
    pytree: bool
    code: bool
    record: Record | None


def fixed_fields(node: Any) -> FixedFields | None:
    """Returns what all nodes of the type of this one consist of, or `None` if they differ."""
    kind = kind_of(node)
    if kind is None:
        return None
    found = _of_kind(kind, node)
    if found is None:
        return None
    make = found.make or _made_by(kind, found.names)
    record = _record(node, found)
    return FixedFields(found.names, make, found.exactly, kind is PYTREE, found.code, record)


class _Attributes(NamedTuple):
    """The attributes that are children, and those that are static data after `head`."""

    names: list[str]
    head: tuple[Any, ...] = ()
    static: list[str] | None = None
    make: Callable[[Any, list[Any]], Any] | None = None
    exactly: int | None = None
    code: bool = False


def _of_kind(kind: NodeKind, node: Any) -> _Attributes | None:
    ty = type(node)
    if kind is NAMEDTUPLE:
        if not _has_elements_as_fields(ty):
            return None
        return _Attributes(list(ty._fields), (), [], lambda _, new: namedtuple_of(ty, new))
    if kind is DATACLASS:
        return _Attributes(data_fields(node))
    if kind is STRUCT:
        names = struct_fields(node)
        known = _of_pytree(node)
        if known is None or known.static is None or known.names != names:
            return _Attributes(names)
        # As `replace` does, in fewer steps; a struct may have its own. It takes more than fields
        # if there are some that are for `__init__` alone.
        plain = handlers.is_from(node.replace, "flax.struct")
        plain = plain and len(ty.__dataclass_fields__) == len(dataclasses.fields(ty))
        return _Attributes(names, (), known.static, known.make if plain else None)
    return _of_pytree(node) if kind is PYTREE else None


def _has_elements_as_fields(ty: Any) -> bool:
    """Tells whether the fields of a namedtuple are its elements: a subclass can have others."""
    marks = [object() for _ in ty._fields]
    node: Any = tuple.__new__(ty, marks)
    try:
        found = [getattr(node, name) for name in ty._fields]
    except Exception:  # whatever code of the program raises
        return False
    same = all(map(operator.is_, found, marks))
    return same and ty.__getattribute__ is tuple.__getattribute__


def _made_by(kind: NodeKind, names: list[str]) -> Callable[[Any, list[Any]], Any]:
    make = kind.make
    return lambda target, new: make(target, dict(zip(names, new, strict=True)))


# What JAX has been told of types, which cannot change.
_known: weakref.WeakKeyDictionary[type, _Attributes | None] = weakref.WeakKeyDictionary()


def _of_pytree(node: Any) -> _Attributes | None:
    ty = type(node)
    if ty in _known:
        return _known[ty]
    functions = _jax.node_functions(ty)
    if functions is None or is_namedtuple(ty):
        found = None
    elif equinox.is_module(node):
        found = _of_module(node, *functions)
        if found is None:
            return None  # others of its type may be whole
    elif _jax.is_by_dataclass(functions[0]):
        found = _of_dataclass(ty)
    else:
        found = None
    _known[ty] = found
    return found


def _of_dataclass(ty: type) -> _Attributes | None:
    fields = Fields.of(ty)
    if fields is None:
        return None
    data, meta = fields.data, fields.meta

    def make(target: Any, new: list[Any]) -> Any:
        kept = {name: getattr(target, name) for name in meta}
        return ty(**dict(zip(data, new, strict=True)), **kept)

    return _Attributes(data, (), meta, make)


def _of_module(module: Any, flatten: Any, unflatten: Any) -> _Attributes | None:
    """Returns what modules like this one consist of, if equinox takes it apart as expected."""
    head = (equinox.missing(),)
    static = {
        field.name: field.metadata.get("static", False) for field in dataclasses.fields(module)
    }
    names = [name for name, is_static in static.items() if not is_static]
    rest = [name for name, is_static in static.items() if is_static]
    attributes = vars(module)
    if attributes.keys() != static.keys():
        return None
    children, auxdata = flatten(module)
    expected = [
        *(attributes[name] for name in names),
        *head,
        *(attributes[name] for name in rest),
    ]
    found = [*children, *auxdata]
    if len(found) != len(expected) or any(a is not b for a, b in zip(found, expected, strict=True)):
        return None

    def make(target: Any, new: list[Any]) -> Any:
        return unflatten(flatten(target)[1], tuple(new))

    return _Attributes(names, head, rest, make, exactly=len(static), code=True)


def _record(node: Any, found: _Attributes) -> Record | None:
    known = _types.registered(type(node))
    if known is None or not known.plain or found.static is None:
        return None
    if known.checked and known.fields != (found.names, found.static):
        return None
    return Record(known.name, known.fields, known.version, found.head, found.static)
