"""Supports flax: replaces its functions with treepack's, and recognises its types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from treepack._src.interop.modules import error_class, imported, instance_of, subclass_of

is_linen_module = instance_of("flax.linen", "Module")
"""Returns whether a value is a linen Module: configuration, whose variables are the state."""


is_linen_module_type = subclass_of("flax.linen", "Module")
is_graph_definition_type = subclass_of("flax.nnx", "GraphDef")
"""Returns whether a type is the type of the static parts of nnx modules."""


is_graph_definition = instance_of("flax.nnx", "GraphDef")


def static_names(nodetype: type, auxdata: tuple[Any, ...]) -> tuple[str, ...] | None:
    if not _is_nnx_type(nodetype):
        return None
    match auxdata:
        case (tuple(), tuple(names), tuple(values)) if len({*names}) == len(values):
            return names
    return None


def is_graph_node_type(ty: type) -> bool:
    """Whether a type is of modules or variables, which the graph of nnx may share."""
    return _is_nnx_type(ty) or _is_variable_type(ty) or is_hijax_variable_type(ty)


_is_nnx_type = subclass_of("flax.nnx", "Pytree")

_is_variable_type = subclass_of("flax.nnx", "Variable")

is_hijax_variable_type = subclass_of("flax.nnx.variablelib", "HijaxVariable")
"""Returns whether a type is of variables of nnx that are leaves for JAX, not nodes."""


is_frozen_dict = instance_of("flax.core", "FrozenDict")


def hashable_mapping() -> Any:
    for name in ("flax.typing", "flax.nnx.graph"):  # the second before 0.12.3
        mapping = getattr(imported(name), "HashableMapping", None)
        if mapping is not None:
            return mapping
    return None


def is_mapping_type(ty: type) -> bool:
    frozen = getattr(imported("flax.core"), "FrozenDict", None)
    return ty is not type(None) and ty in (frozen, hashable_mapping())


def error_type(ours: type[Exception], name: str) -> type[Exception]:
    return error_class(ours, "flax.errors", name)


class Patch:
    """Replaces functions of `flax.serialization` on construction, until `undo` or the exit."""

    def __init__(self, functions: Mapping[str, Callable[..., Any]]):
        from flax import serialization

        self._module = serialization
        self._before = {name: getattr(serialization, name) for name in functions}
        for name, function in functions.items():
            setattr(serialization, name, function)

    def undo(self) -> None:
        for name, function in self._before.items():
            setattr(self._module, name, function)

    def __enter__(self) -> Patch:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()
