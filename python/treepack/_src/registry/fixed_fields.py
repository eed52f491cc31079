"""Describes types whose nodes all have the same attributes: the core walks these without Python.

They are namedtuples, structs of flax, dataclasses, types registered with
`jax.tree_util.register_dataclass`, and equinox modules.
"""

from __future__ import annotations

import dataclasses
import operator
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from treepack._src.interop import equinox
from treepack._src.interop import jax as _jax
from treepack._src.interop.modules import is_from
from treepack._src.pytree.containers import NodeKind, namedtuple_of
from treepack._src.pytree.kinds import kind_of
from treepack._src.registry.fields import Fields
from treepack._src.registry.types import TYPES
from treepack._src.registry.unregistered import unregistered


class RecordedType(NamedTuple):
    name: str
    fields: Fields | None
    version: int


class FixedFields(NamedTuple):
    """The attributes that all nodes of a type have.

    Attributes:
      static: The names of the static data; `None` if unknown.
      head: The static data before these.
      exactly: The number of attributes, if known; other nodes are flattened in Python.
      code: Whether functions among the children are not state. Nodes with functions are flattened
        in Python.
      pytree: Whether JAX's registry has the type. Its children become state dicts even inside a
        state from a handler.
      type: The type in records; `None` if Python records each node.
    """

    names: list[str]
    static: list[str] | None = None
    make: Callable[[Any, list[Any]], Any] | None = None
    head: tuple[Any, ...] = ()
    exactly: int | None = None
    code: bool = False
    pytree: bool = False
    type: RecordedType | None = None


# Cached by type, with the kind and the number of changes of the registered names for which they are
# valid. They refer to no type that JAX does not keep anyway.
_answers: weakref.WeakKeyDictionary[type, tuple[NodeKind, int, FixedFields]] = (
    weakref.WeakKeyDictionary()
)


def fixed_fields(node: Any) -> FixedFields | None:
    kind = kind_of(node)
    if kind is None:
        return None
    ty, changes = type(node), TYPES.changes  # read before the lookups
    answer = _answers.get(ty)
    if answer is not None and answer[0] is kind and answer[1] == changes:
        return answer[2]
    fields = _of_kind(kind, node)
    if fields is None:
        return None
    names = fields.names

    def make(target: Any, new: list[Any]) -> Any:
        return kind.make(target, dict(zip(names, new, strict=True)))

    entry, recorded = TYPES.entry_of(ty) or unregistered(ty, kind), None
    if entry is not None and fields.static is not None:
        fits = not entry.checked or entry.fields == (names, fields.static)
        if fits and entry.writes_auxdata:
            recorded = RecordedType(entry.name, entry.fields, entry.version)
    fields = fields._replace(make=fields.make or make, pytree=kind.sort == "pytree", type=recorded)
    _answers[ty] = kind, changes, fields
    return fields


def _of_kind(kind: NodeKind, node: Any) -> FixedFields | None:
    ty = type(node)
    if kind.sort == "namedtuple":
        if not _has_elements_as_fields(ty):
            return None
        return FixedFields(list(ty._fields), [], lambda node, new: namedtuple_of(type(node), new))
    if kind.names is None:
        return _of_pytree(node) if kind.sort == "pytree" else None
    names = kind.names(node)
    if kind.sort == "struct":
        fields = _of_pytree(node)
        if fields is None or fields.static is None or fields.names != names:
            return FixedFields(names)
        # Like `replace`, in fewer steps. A struct may override `replace`, and `__init__` may take
        # parameters that are not fields.
        has_only_fields = len(ty.__dataclass_fields__) == len(dataclasses.fields(ty))
        by_fields = has_only_fields and is_from(node.replace, "flax.struct")
        return FixedFields(names, fields.static, fields.make if by_fields else None)
    return FixedFields(names)


def _has_elements_as_fields(ty: Any) -> bool:
    """False where a subclass changes the fields of a namedtuple."""
    marks = [object() for _ in ty._fields]
    node: Any = tuple.__new__(ty, marks)
    try:
        elements = [getattr(node, name) for name in ty._fields]
    except Exception:  # code of the program may raise anything
        return False
    finally:
        _jax.retire(node)
    same = all(map(operator.is_, elements, marks))
    return same and ty.__getattribute__ is tuple.__getattribute__


# Cached by type, since registrations with JAX cannot change. Threads may add the same entry at
# once.
_known: weakref.WeakKeyDictionary[type, FixedFields | None] = weakref.WeakKeyDictionary()


def _of_pytree(node: Any) -> FixedFields | None:
    ty = type(node)
    if ty in _known:
        return _known[ty]
    registered = _jax.Registration.of(ty)
    if registered is None or _jax.is_namedtuple(ty):
        fields = None
    elif equinox.is_module(node):
        fields = _of_module(node, registered.flatten, registered.unflatten)
        if fields is None:
            return None  # other nodes of its type may be complete
    elif registered.is_by_dataclass:
        fields = _of_dataclass(ty)
    else:
        fields = None
    _known[ty] = fields
    return fields


def _of_dataclass(ty: type) -> FixedFields | None:
    fields = Fields.of(ty)
    if fields is None:
        return None
    data, meta = fields.data, fields.meta

    def make(target: Any, new: list[Any]) -> Any:
        kept = {name: getattr(target, name) for name in meta}
        return ty(**dict(zip(data, new, strict=True)), **kept)

    return FixedFields(data, meta, make)


def _of_module(module: Any, flatten: Any, unflatten: Any) -> FixedFields | None:
    head = (equinox.missing(),)
    names, rest = Fields.marked(dataclasses.fields(module))
    attributes = vars(module)
    if attributes.keys() != {*names, *rest}:
        return None
    children, auxdata = flatten(module)
    expected = [
        *(attributes[name] for name in names),
        *head,
        *(attributes[name] for name in rest),
    ]
    parts = [*children, *auxdata]
    if len(parts) != len(expected) or any(a is not b for a, b in zip(parts, expected, strict=True)):
        return None

    def make(target: Any, new: list[Any]) -> Any:
        return unflatten(flatten(target)[1], tuple(new))

    return FixedFields(names, rest, make, head, exactly=len(attributes), code=True)
