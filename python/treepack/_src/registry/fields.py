from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from treepack._src.interop import jax as _jax
from treepack._src.interop.libraries import library_of_type
from treepack._src.pytree.containers import namedtuple_of
from treepack._src.pytree.kinds import flatten
from treepack._src.registry.codec import is_inert_factory


class Fields(NamedTuple):
    data: list[str]
    meta: list[str]

    @classmethod
    def marked(cls, fields: Iterable[dataclasses.Field[Any]]) -> Fields:
        by_mark = cls([], [])
        for field in fields:
            (by_mark.meta if field.metadata.get("static", False) else by_mark.data).append(
                field.name
            )
        return by_mark

    @classmethod
    def of(cls, nodetype: type) -> Fields | None:
        """Finds out how JAX flattens a type, by flattening an object with marks in its fields.

        `None` unless JAX flattens it by its fields, with a tuple as static data.
        """
        marks = {field.name: object() for field in dataclass_fields(nodetype)}
        while True:
            probe = None
            try:
                probe = with_attributes(nodetype, marks)
                children, *_, treedef = flatten(probe)
                break
            except AttributeError as error:
                # A class that is not a dataclass: its flatten function reads one field after the
                # other.
                if not error.name or error.name in marks:
                    return None
                marks[error.name] = object()
            except Exception:  # a flatten function may raise any error on unexpected values
                return None
            finally:
                _jax.retire(probe)
        static = treedef.node_data()[1]
        if type(static) is not tuple or any(
            marks.get(name) is not child for name, child in children.items()
        ):
            return None
        name_of = {id(mark): name for name, mark in marks.items()}
        meta = [name_of.get(id(value)) for value in static]
        if not children and not meta:
            return None
        known = [name for name in meta if name is not None]
        return cls(list(children), known) if len(known) == len(meta) else None

    def make(self, ty: type, auxdata: Any, children: Sequence[Any]) -> Any:
        """Calls no `__init__`, which might reject placeholders."""
        if issubclass(ty, tuple):
            return namedtuple_of(ty, children)
        attributes = zip([*self.data, *self.meta], [*children, *auxdata], strict=True)
        return with_attributes(ty, dict(attributes))


def dataclass_fields(nodetype: Any) -> Sequence[dataclasses.Field[Any]]:
    return dataclasses.fields(nodetype) if dataclasses.is_dataclass(nodetype) else ()


def fields_of(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in field_names(type(value))}


def field_names(ty: Any) -> list[str]:
    if issubclass(ty, tuple):
        return list(getattr(ty, "_fields", ()))
    return [field.name for field in dataclass_fields(ty)]


def from_fields(ty: Any, fields: dict[str, Any]) -> Any:
    if type(fields) is not dict:  # lookups in other types may be slow
        raise ValueError(f"expected a dict of fields, found {type(fields).__name__}")
    names = field_names(ty)
    defaults = {name: default_of(ty, name) for name in names if name not in fields}
    if not fields.keys() <= set(names) or not all(defaults.values()):
        raise ValueError(f"expected the fields {sorted(names)}, found {sorted(fields)}")
    values = {name: fields[name] if name in fields else defaults[name][0]() for name in names}
    is_tuple = issubclass(ty, tuple)
    return namedtuple_of(ty, values.values()) if is_tuple else with_attributes(ty, values)


def default_of(ty: Any, name: str) -> list[Callable[[], Any]]:
    """Returns the factory of a field's default in a list, which is empty if there is none.

    Factories of libraries are ignored, since a file without the field would call them.
    """
    named: dict[str, Any] = getattr(ty, "_field_defaults", {})
    if name in named:
        return [lambda: named[name]]
    for field in dataclass_fields(ty):
        if field.name != name:
            continue
        factory = field.default_factory
        if factory is not dataclasses.MISSING:
            return [factory] if library_of_type(ty) is None or is_inert_factory(factory) else []
        if field.default is not dataclasses.MISSING:
            return [functools.partial(getattr, field, "default")]
    return []


def with_attributes(ty: type, attributes: dict[str, Any]) -> Any:
    """Runs no code of the type."""
    new: Any = object.__new__(ty)
    for name, value in attributes.items():
        object.__setattr__(new, name, value)
    return new
