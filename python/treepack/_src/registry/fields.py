"""Splits the fields of a node type into children and static data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from treepack._src.interop.jax import retire
from treepack._src.pytree.containers import namedtuple_of, with_attributes
from treepack._src.pytree.kinds import flatten


class Fields(NamedTuple):
    """The names of the children of a type, and of its static data, in order."""

    data: list[str]
    meta: list[str]

    @classmethod
    def marked(cls, fields: Iterable[dataclasses.Field[Any]]) -> Fields:
        """Splits fields of a dataclass by their marks for JAX."""
        by_mark = cls([], [])
        for field in fields:
            (by_mark.meta if field.metadata.get("static", False) else by_mark.data).append(
                field.name
            )
        return by_mark

    @classmethod
    def of(cls, nodetype: type) -> Fields | None:
        """Finds out how JAX flattens a type, by flattening an object with marks in its fields.

        Returns:
          The fields; `None` unless JAX flattens the type by its fields, with a tuple as static
          data.
        """
        marks = {field.name: object() for field in dataclass_fields(nodetype)}
        while True:
            probe = None
            try:
                probe = with_attributes(nodetype, marks)
                children, treedef = flatten(probe)
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
                retire(probe)
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
        """Creates a node without calling its `__init__`, which might reject placeholders."""
        if issubclass(ty, tuple):
            return namedtuple_of(ty, children)
        attributes = zip([*self.data, *self.meta], [*children, *auxdata], strict=True)
        return with_attributes(ty, dict(attributes))


def dataclass_fields(nodetype: Any) -> Sequence[dataclasses.Field[Any]]:
    """Returns the fields of a dataclass; an empty sequence for other types."""
    return dataclasses.fields(nodetype) if dataclasses.is_dataclass(nodetype) else ()
