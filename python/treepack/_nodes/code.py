"""Functions in equinox modules: they are code, and no state.

A function that is a child of a module, or lies in its lists, tuples and dicts, is not saved as a
leaf; it comes from the template, or is static data. `split` takes them out.
"""

from __future__ import annotations

from typing import Any

from treepack._libraries import equinox
from treepack._nodes.builtin import check_unique_keys, children_in_words
from treepack._nodes.kind import NodeKind


class Pruned:
    """A list, tuple or dict without the functions in it."""

    __slots__ = ("container",)

    def __init__(self, container: Any):
        self.container = container

    def children(self) -> dict[str, Any]:
        """Returns what is left, by name."""
        return _split(_items(self.container))[0]

    def functions(self) -> dict[str, Any]:
        """Returns what was taken out, by name."""
        return _split(_items(self.container))[1]

    def keys(self) -> list[Any]:
        """Returns the keys of a dict, or the names of elements, in order."""
        return list(self.container if type(self.container) is dict else _items(self.container))

    def make(self, new: dict[str, Any]) -> Any:
        """Returns such a container with other children, and its own functions."""
        found = self.functions() | new
        values = [found[name] for name in _items(self.container)]
        return joined(type(self.container), self.keys(), values)


def joined(ty: type, keys: list[Any], values: list[Any]) -> Any:
    """Returns a list, tuple or dict."""
    return dict(zip(keys, values, strict=True)) if ty is dict else ty(values)


def split(module: Any, children: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the children of a node that are state, and those that are functions.

    Only equinox modules have the latter.
    """
    return _split(children) if equinox.is_module(module) else (children, {})


def _split(children: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    functions = {name: child for name, child in children.items() if _is_function(child)}
    rest = {
        name: Pruned(child) if _has_functions(child) else child
        for name, child in children.items()
        if name not in functions
    }
    return rest, functions


def _items(container: Any) -> dict[str, Any]:
    if type(container) is dict:
        check_unique_keys(container)
        return {str(key): value for key, value in container.items()}
    return {str(index): value for index, value in enumerate(container)}


def _is_function(value: Any) -> bool:
    from treepack._nodes import kind_of

    return callable(value) and kind_of(value) is None and not hasattr(value, "shape")


def _has_functions(value: Any) -> bool:
    if type(value) not in (list, tuple, dict):
        return False
    values = value.values() if type(value) is dict else value
    return any(_is_function(child) or _has_functions(child) for child in values)


PRUNED = NodeKind(Pruned.children, Pruned.make, children_in_words)
