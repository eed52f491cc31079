"""Supports equinox: functions in its modules, such as an activation, are code, not state."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from treepack._src.interop.modules import imported, instance_of, subclass_of

is_module = instance_of("equinox", "Module")

_is_module_type = subclass_of("equinox", "Module")


def static_names(nodetype: type) -> list[str] | None:
    """The first name is not a field: it marks fields without a value."""
    if not _is_module_type(nodetype):
        return None
    fields = dataclasses.fields(nodetype)
    return ["", *(field.name for field in fields if field.metadata.get("static", False))]


def missing() -> Any:
    equinox = imported("equinox")
    return None if equinox is None else _missing(equinox)


@functools.cache
def _missing(equinox: Any) -> Any:
    import jax

    treedef: Any = jax.tree_util.tree_structure(equinox.nn.Identity())
    auxdata = treedef.node_data()[1]
    if type(auxdata) is not tuple:  # before version 0.13.3
        return None
    markers = [value for value in auxdata if type(value).__name__ == "_Missing"]
    return markers[0] if markers else None
