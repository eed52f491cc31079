"""Dataclasses, and the structs of flax and eformer."""

from __future__ import annotations

import dataclasses
from typing import Any

from treepack._nodes.kind import Difference, NodeKind


def struct_fields(value: Any) -> list[str]:
    """Returns the fields of a flax struct that hold data."""
    fields = dataclasses.fields(value)
    return [field.name for field in fields if field.metadata.get("pytree_node", True)]


def data_fields(value: Any) -> list[str]:
    """Returns the fields of a dataclass that are not marked as static for JAX."""
    fields = dataclasses.fields(value)
    return [field.name for field in fields if not field.metadata.get("static", False)]


def _struct_children(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in struct_fields(value)}


def _dataclass_children(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in data_fields(value)}


def _make_struct(target: Any, new: dict[str, Any]) -> Any:
    return target.replace(**new)


def make_dataclass(target: Any, new: dict[str, Any]) -> Any:
    """Returns a dataclass with new values in some fields, and the template's in the others."""
    # Neither __init__ nor __post_init__ runs: the fields are what was saved, and what
    # else the template holds, such as cached properties, belongs to the template.
    made = object.__new__(type(target))
    for field in dataclasses.fields(target):
        if field.name in new:
            object.__setattr__(made, field.name, new[field.name])
        elif hasattr(target, field.name):
            object.__setattr__(made, field.name, getattr(target, field.name))
    return made


def _in_words(found: Difference) -> str:
    kind = type(found.target).__name__
    for name in found.expected:
        if name not in found.state:
            return (
                f"Missing field {name} in state dict while restoring"
                f" an instance of {kind}, at path {found.path}"
            )
    unknown = [str(name) for name in found.state if name not in found.expected]
    return (
        f'Unknown field(s) "{",".join(unknown)}" in state dict while'
        f" restoring an instance of {kind} at path {found.path}"
    )


DATACLASS = NodeKind(_dataclass_children, make_dataclass, _in_words)
STRUCT = NodeKind(_struct_children, _make_struct, _in_words)
