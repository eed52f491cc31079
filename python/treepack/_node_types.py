"""Types of nodes by name: taking nodes apart, and making them again.

Trees that are saved with their structure (`dumps`) name the types of their nodes, and only
what the program has registered (see `_registration`) is ever made from a file. Types of the
standard library, of JAX and of flax that are no business of the program are known by
themselves: OrderedDict, defaultdict, FrozenDict and `jax.tree_util.Partial`.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from treepack import _auxdata, _core
from treepack._auxdata import default_name
from treepack._nodes import check_unique_keys
from treepack.errors import UnregisteredTypeError

# The names of children and of static data.
FieldNames = tuple[list[str], list[str]]


class NodeType(NamedTuple):
    """One type of nodes, and what becomes of them.

    Attributes:
      ty: The type.
      name: What it is written as.
      fields: The names of its children and of its static data, if all nodes have the same:
        nodes that were saved with others cannot be made.
      checked: Whether nodes have exactly these children and static data; otherwise these are
        just the fields of a dataclass.
      reduce: Takes a node, returns its encoded static data and its children by name.
      decode: Takes encoded static data, returns the data.
      rebuild: Takes static data, names and children, returns a node.
      build: Does so with placeholders as children, which code of the type might not like.
    """

    ty: type
    name: str
    fields: FieldNames | None
    checked: bool
    reduce: Callable[[Any], tuple[bytes, dict[str, Any]]]
    decode: Callable[[bytes], Any]
    rebuild: Callable[[Any, list[str], list[Any]], Any]
    build: Callable[[Any, list[str], list[Any]], Any]


_by_name: dict[str, NodeType] = {}
_names: dict[type, str] = {}


def registered_types() -> dict[str, type]:
    """Returns the types of nodes that are registered with treepack, by name.

    Example:
      >>> import treepack
      >>> from typing import NamedTuple
      >>> class Point(NamedTuple):
      ...     x: float
      >>> _ = treepack.register_namedtuple(Point, serialized_name="doc.Point")
      >>> treepack.registered_types()["doc.Point"] is Point
      True
    """
    return {name: found.ty for name, found in _by_name.copy().items()}


def add(found: NodeType) -> None:
    """Adds a type, or puts it in the place of its older self."""
    known = _by_name.get(found.name)
    _by_name[found.name] = found
    _auxdata.rename(found.ty, found.name, _names, None if known is None else known.ty)


def registered(ty: type) -> NodeType | None:
    """Returns a type that the program has registered."""
    return _by_name.get(_names.get(ty, ""))


def check_claim(ty: type, name: str) -> None:
    """Raises a ValueError if a type cannot have a name."""
    if ty in BY_JAX:
        raise ValueError(f"{default_name(ty)} is known by itself")
    own_name = name in _OWN_NAMES and _OWN_NAMES[name]() is not ty
    if own_name or _auxdata.is_own_name(name):
        raise ValueError(f"the node type name {name!r} is treepack's own")
    known = _by_name.get(name)
    _auxdata.check_claim(ty, name, _names, None if known is None else known.ty, "node type")


def is_namedtuple(ty: type) -> bool:
    """Tells whether a type is a namedtuple."""
    return issubclass(ty, tuple) and hasattr(ty, "_fields")


def check_children(expected: list[str], names: list[str]) -> None:
    """Raises unless a node has the children that those of its type have."""
    if names != expected:
        raise ValueError(f"it has the children {expected}, not {names}")


def fields_text(fields: FieldNames | None) -> str:
    """Returns what fields a type has, in words."""
    if fields is None:
        return "no fixed fields"
    return f"the fields {fields[0]}" + (f" and the static fields {fields[1]}" if fields[1] else "")


# What the core calls


def reduce(node: Any) -> tuple[str, FieldNames | None, bytes, dict[str, Any]]:
    """Returns the name of the type of a node, its fields, its static data and its children.

    Raises:
      TypeError: If the type has no name, or the static data cannot be written.
    """
    ty = type(node)
    found = registered(ty) or own(ty)
    if found is None:
        raise TypeError(
            f"the type {default_name(ty)} is not registered, so it could not be found again in "
            f"a file; call {_how_to_register(ty, node)}"
        )
    data, children = found.reduce(node)
    return found.name, found.fields, data, children


def find(name: str, fields: FieldNames | None, or_none: bool) -> NodeType | None:
    """Returns the type with a name.

    Raises:
      UnregisteredTypeError: If there is none, or it has other fields now; unless `or_none`.
    """
    found = _by_name.get(name)
    if found is None and name in _OWN_NAMES:
        found = own(_OWN_NAMES[name]())
    if found is not None and found.fields == fields:
        return found
    if or_none:
        return None
    if found is None:
        raise UnregisteredTypeError(
            f"no type is registered with the name {name!r}; import or register it (see "
            'treepack.register_dataclass), or pass unknown="dict" to get dicts in its place',
            name,
        )
    raise UnregisteredTypeError(
        f"the type {name!r} was saved with {fields_text(fields)}, and has "
        f"{fields_text(found.fields)} now; "
        'restore it into a template with loads(data, target), or pass unknown="dict"',
        name,
    )


def _how_to_register(ty: type, node: Any) -> str:
    if is_namedtuple(ty):
        return "treepack.register_namedtuple, or treepack.register_tree on the tree"
    if not jax.tree_util.all_leaves([node]):
        return "treepack.register_node, or treepack.register_tree on the tree"
    if dataclasses.is_dataclass(ty):
        return "treepack.register_dataclass"
    return "jax.tree_util.register_pytree_node and treepack.register_node"


# Types that are known by themselves

# JAX takes these apart without a registry.
BY_JAX: frozenset[type] = frozenset({dict, list, tuple, type(None)})


def _mapping(
    ty: type, name: str, make: Callable[[Any, dict[Any, Any]], Any], extra: Any
) -> NodeType:
    """A mapping with any keys, and something besides its items."""

    def reduce(mapping: Any) -> tuple[bytes, dict[str, Any]]:
        check_unique_keys(mapping)
        keys = None if all(type(key) is str for key in mapping) else list(mapping)
        children = {str(key): value for key, value in mapping.items()}
        return _core.encode_value((keys, extra(mapping))), children

    def rebuild(static: Any, names: list[str], children: list[Any]) -> Any:
        keys, more = static
        items = dict(zip(names if keys is None else keys, children, strict=True))
        if len(items) != len(children):
            raise ValueError("a key occurs twice")
        return make(more, items)

    return NodeType(ty, name, None, False, reduce, _core.decode_value, rebuild, rebuild)


def _reduce_partial(partial: Any) -> tuple[bytes, dict[str, Any]]:
    return _core.encode_value(partial.func), {"args": partial.args, "keywords": partial.keywords}


def _rebuild_partial(function: Any, names: list[str], children: list[Any]) -> Any:
    check_children(["args", "keywords"], names)
    args, keywords = children
    return jax.tree_util.Partial(function, *args, **keywords)  # type: ignore[no-untyped-call]


def _frozen_dict() -> Any:
    flax = sys.modules.get("flax.core")
    return None if flax is None else flax.FrozenDict


_OWN: dict[type, NodeType] = {
    collections.OrderedDict: _mapping(
        collections.OrderedDict,
        "collections.OrderedDict",
        lambda _, items: collections.OrderedDict(items),
        lambda _: None,
    ),
    collections.defaultdict: _mapping(
        collections.defaultdict,
        "collections.defaultdict",
        collections.defaultdict,
        lambda mapping: mapping.default_factory,
    ),
    jax.tree_util.Partial: NodeType(
        jax.tree_util.Partial,
        "jax.tree_util.Partial",
        None,
        False,
        _reduce_partial,
        _core.decode_value,
        _rebuild_partial,
        _rebuild_partial,
    ),
}

_OWN_NAMES: dict[str, Callable[[], Any]] = {
    **{known.name: functools.partial(lambda ty: ty, ty) for ty, known in _OWN.items()},
    "flax.core.FrozenDict": _frozen_dict,
}


def own(ty: Any) -> NodeType | None:
    """Returns what is known of a type by itself; of flax's only if flax is imported."""
    if ty is not None and ty is _frozen_dict():
        _OWN.setdefault(
            ty, _mapping(ty, "flax.core.FrozenDict", lambda _, items: ty(items), lambda _: None)
        )
    return _OWN.get(ty)
