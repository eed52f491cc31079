"""Finds the kind of a container, which splits it into children by name and rebuilds it.

`kind_of` searches in this order:

1. handlers registered with treepack, flax or eformer (`handlers.py`)
2. dict, list, tuple and the like (`containers.py`), `jax.tree_util.Partial`
3. namedtuples, unless they are registered with JAX
4. nodes of JAX's pytree registry
5. subclasses of dict and list
6. dataclasses, except those that describe an array

flax's handlers for structs and FrozenDicts are bypassed, so that children of any type work.

A function that is a child of an equinox module, or in its lists, tuples and dicts, is code, not
state: it is static data, or comes from the template. `flatten` separates them.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from treepack._src import paths as _paths
from treepack._src.interop import equinox, flax
from treepack._src.interop import jax as _jax
from treepack._src.interop.modules import is_from
from treepack._src.pytree.containers import (
    BUILTIN,
    DATACLASS,
    DICT,
    LIST,
    NAMEDTUPLE,
    STRUCT,
    NodeKind,
    children_message,
    data_fields,
    dict_children,
    dict_message,
    list_children,
)
from treepack._src.pytree.handlers import WALKED_NATIVELY, Handlers, handlers_of, overridden

if TYPE_CHECKING:
    import jax


# Children by name.
_Children = dict[str, Any]


def flatten(value: Any) -> tuple[_Children, _Children, _Children, jax.tree_util.PyTreeDef]:
    from jax.tree_util import tree_flatten_with_path

    flat, treedef = tree_flatten_with_path(value, is_leaf=lambda x: x is not value)
    children = {_paths.key_name(path[0]): child for path, child in flat}
    if len(children) != len(flat):
        children = {str(index): child for index, (_, child) in enumerate(flat)}
    values = children.values()
    # Only modules of equinox have functions that are not state, and most have none.
    is_plain = _PRUNED.isdisjoint(map(type, values)) and not any(map(callable, values))
    if is_plain or not equinox.is_module(value):
        return children, children, {}, treedef
    return children, *_split(children), treedef


# Containers that may have functions as elements.
_PRUNED = frozenset({list, tuple, dict})


def _open(target: Any) -> tuple[_Children, Callable[[_Children], Any]]:
    children, state, _, treedef = flatten(target)

    def make(new: dict[str, Any]) -> Any:
        return treedef.unflatten([new.get(name, child) for name, child in children.items()])

    return state, make


PYTREE = NodeKind(
    lambda value: flatten(value)[1],
    lambda target, new: _open(target)[1](new),
    children_message,
    "pytree",
    open=_open,
)

# Only a template has the type and the metadata of such variables.
_HIJAX = NodeKind(
    lambda variable: {"value": variable.get_value()},
    lambda variable, new: variable.replace(new["value"]),
    children_message,
)

# `jax.tree_util.Partial`, with flax's names for its children.
PARTIAL = NodeKind(
    lambda partial: {"args": partial.args, "keywords": partial.keywords},
    lambda partial, new: type(partial)(partial.func, *new["args"], **new["keywords"]),
    children_message,
    more_allowed=True,
)


class Pruned:
    """A list, tuple or dict without its functions, which are code."""

    __slots__ = ("container",)

    def __init__(self, container: Any):
        self.container = container

    def children(self) -> dict[str, Any]:
        return _split(_items(self.container))[0]

    def functions(self) -> dict[str, Any]:
        return _split(_items(self.container))[1]

    def keys(self) -> list[Any]:
        return list(self.container if type(self.container) is dict else _items(self.container))

    def make(self, new: dict[str, Any]) -> Any:
        items = self.functions() | new
        values = [items[name] for name in _items(self.container)]
        return self.join(type(self.container), self.keys(), values)

    @staticmethod
    def join(ty: type, keys: list[Any], values: list[Any]) -> Any:
        return dict(zip(keys, values, strict=True)) if ty is dict else ty(values)


def _split(children: _Children) -> tuple[_Children, _Children]:
    functions = {name: child for name, child in children.items() if is_function(child)}
    rest = {
        name: Pruned(child) if _has_functions(child) else child
        for name, child in children.items()
        if name not in functions
    }
    return rest, functions


def _items(container: Any) -> dict[str, Any]:
    return dict_children(container) if type(container) is dict else list_children(container)


def is_function(value: Any) -> bool:
    return callable(value) and kind_of(value) is None and not hasattr(value, "shape")


def _has_functions(value: Any) -> bool:
    if type(value) not in _PRUNED:
        return False
    values = value.values() if type(value) is dict else value
    return any(is_function(child) or _has_functions(child) for child in values)


PRUNED = NodeKind(Pruned.children, Pruned.make, children_message)

# By the module of flax that defines a handler; see `modules.is_from`.
_OF_FLAX: dict[str, NodeKind] = {
    "flax.struct": STRUCT,
    "flax.core.frozen_dict": NodeKind(
        dict_children,
        lambda target, new: type(target)({key: new[str(key)] for key in target}),
        dict_message,
        more_allowed=True,
    ),
}

# The kinds of types, which change only with handlers. Threads may add the same entry at once.
_known: weakref.WeakKeyDictionary[type, NodeKind] = weakref.WeakKeyDictionary()


def kind_of(value: Any) -> NodeKind | None:
    ty = type(value)
    if issubclass(ty, type):
        return None
    functions = handlers_of(ty)
    if functions is not None:
        return _by_handlers(functions)
    if ty is Pruned:
        return PRUNED
    kind = BUILTIN.get(ty) or _known.get(ty)
    if kind is not None or ty.__module__ == "numpy":  # arrays and scalars, which are leaves
        return kind
    kind = _without_handlers(value)
    if kind in (PARTIAL, NAMEDTUPLE, PYTREE):  # other types may be registered with JAX later
        _known[ty] = kind
    return kind


_NATIVE: dict[type, NodeKind | None] = {ty: BUILTIN.get(ty) for ty in WALKED_NATIVELY}


class Kinds:
    """Finds the kinds of many values, once for each type; for one call, since kinds may change."""

    def __init__(self) -> None:
        self._by_type: dict[type, NodeKind | None] = {} if overridden() else _NATIVE.copy()

    def of(self, value: Any) -> NodeKind | None:
        ty = type(value)
        try:
            return self._by_type[ty]
        except KeyError:
            kind = kind_of(value)
            # Objects of one dataclass may describe arrays, or not.
            if not (dataclasses.is_dataclass(ty) and (kind is None or kind is DATACLASS)):
                self._by_type[ty] = kind
            return kind


def _by_handlers(functions: Handlers) -> NodeKind:
    for module, kind in _OF_FLAX.items():
        if is_from(functions.to_state, module):
            return kind
    return NodeKind(functions.to_state, functions.from_state, children_message, final=True)


def _without_handlers(value: Any) -> NodeKind | None:
    ty = type(value)
    if _jax.is_partial_type(ty):
        return PARTIAL
    if _jax.is_plain_namedtuple(ty):
        return NAMEDTUPLE
    if _jax.is_node(value):
        return PYTREE
    if flax.is_hijax_variable_type(ty):
        return _HIJAX
    if isinstance(value, dict):
        return DICT
    if isinstance(value, list):
        return LIST
    if dataclasses.is_dataclass(value) and not flax.is_linen_module(value):
        return None if describes_array(value) else DATACLASS
    return None


def describes_array(value: Any) -> bool:
    """Whether a dataclass has a shape and a dtype, such as Orbax's; a string may be a setting."""
    if not dataclasses.is_dataclass(value) or not {"shape", "dtype"} <= {*data_fields(value)}:
        return False
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    return isinstance(shape, (tuple, list)) and isinstance(dtype, (np.dtype, type))


def is_container_type(ty: type) -> bool:
    return (
        handlers_of(ty) is not None
        or ty in BUILTIN
        or issubclass(ty, (dict, list))
        or _jax.is_namedtuple(ty)
        or dataclasses.is_dataclass(ty)
        or (ty is not type(None) and _jax.is_node_type(ty))
        or flax.is_hijax_variable_type(ty)
    )
