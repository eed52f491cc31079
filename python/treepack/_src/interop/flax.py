"""flax: its byte functions can be swapped for ours, and its Modules are no state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from treepack._src.interop.modules import imported, instance_of

is_linen_module = instance_of("flax.linen", "Module")
"""Tells whether a value is a linen Module: configuration, whose state are its variables."""

is_graph_definition = instance_of("flax.nnx", "GraphDef")
"""Tells whether a value is the part of an nnx module that is not its state."""


def hashable_mapping() -> Any:
    """Returns the type of mappings in the static data of nnx modules, or `None`."""
    for name in ("flax.typing", "flax.nnx.graph"):  # the latter before 0.12.3
        found = getattr(imported(name), "HashableMapping", None)
        if found is not None:
            return found
    return None


class Patch:
    """Functions in `flax.serialization` that take the place of its own.

    They do at once. As a context manager, it puts back what was there when it is left.
    """

    def __init__(self, functions: Mapping[str, Callable[..., Any]]):
        from flax import serialization

        self._module = serialization
        self._before = {name: getattr(serialization, name) for name in functions}
        for name, function in functions.items():
            setattr(serialization, name, function)

    def undo(self) -> None:
        """Puts back what was there."""
        for name, function in self._before.items():
            setattr(self._module, name, function)

    def __enter__(self) -> Patch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.undo()
