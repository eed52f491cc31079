"""Which fields of a type are children of its nodes, and which are static data."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from treepack._src.pytree.containers import with_attributes
from treepack._src.pytree.kinds import flatten


class Fields(NamedTuple):
    """Which fields of a type are its children, and which its static data, in order."""

    ty: type
    data: list[str]
    meta: list[str]

    @classmethod
    def marked(cls, nodetype: Any, dropped: Sequence[str]) -> Fields:
        """Returns the fields of a dataclass as they are marked for JAX, but for dropped ones.

        Those that `__init__` does not take are dropped as well: it makes them.
        """
        static = {
            field.name: field.metadata.get("static", False)
            for field in dataclass_fields(nodetype)
            if field.init and field.name not in dropped
        }
        return cls(
            nodetype,
            [name for name, is_static in static.items() if not is_static],
            [name for name, is_static in static.items() if is_static],
        )

    @classmethod
    def of(cls, nodetype: type) -> Fields | None:
        """Finds out how JAX takes a type apart, from an object with marks in its fields.

        `None` if it is not by its fields, and a tuple of them as static data.
        """
        marks = {field.name: object() for field in dataclass_fields(nodetype)}
        while True:
            try:
                children, treedef = flatten(with_attributes(nodetype, marks))
                break
            except AttributeError as error:
                # A class that is no dataclass: it asks for its fields one after the other.
                if not error.name or error.name in marks:
                    return None
                marks[error.name] = object()
            except Exception:  # whatever a flatten function does with what it does not expect
                return None
        static = treedef.node_data()[1]
        if type(static) is not tuple or any(
            marks.get(name) is not child for name, child in children.items()
        ):
            return None
        name_of = {id(mark): name for name, mark in marks.items()}
        meta = [name_of.get(id(value)) for value in static]
        if not children and not meta:
            return None
        found = [name for name in meta if name is not None]
        return cls(nodetype, list(children), found) if len(found) == len(meta) else None

    def build(self, auxdata: Any, children: Sequence[Any]) -> Any:
        """Makes a node without a call to its `__init__`, which might not like placeholders."""
        attributes = zip([*self.data, *self.meta], [*children, *auxdata], strict=True)
        return with_attributes(self.ty, dict(attributes))


def dataclass_fields(nodetype: Any) -> Sequence[dataclasses.Field[Any]]:
    """Returns the fields of a dataclass; none of another type."""
    return dataclasses.fields(nodetype) if dataclasses.is_dataclass(nodetype) else ()
