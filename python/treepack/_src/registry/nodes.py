"""Nodes: flattened for files, and made from them."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import treepack._core as core
from treepack._src.interop import jax as _jax
from treepack._src.interop.modules import imported
from treepack._src.options import holes_allowed
from treepack._src.pytree import handlers
from treepack._src.pytree.containers import NodeKind, check_unique_keys, is_namedtuple
from treepack._src.pytree.kinds import Pruned, joined, kind_of
from treepack._src.registry import holes as _holes
from treepack._src.registry import static as _static
from treepack._src.registry.names import default_name
from treepack._src.registry.static import remark_on_main
from treepack._src.registry.types import (
    TYPES,
    FieldNames,
    NodeType,
    check_children,
    evolved,
    registered,
)
from treepack.errors import UnregisteredTypeError


def check_name(ty: type, name: str, aliases: Iterable[str] = ()) -> None:
    """Raises a ValueError if a type cannot have a name."""
    if ty in BY_JAX:
        raise ValueError(f"{default_name(ty)} needs no registration")
    for claimed in (name, *aliases):
        if (_own_by_name(claimed) or ty) is not ty or _static.is_own_name(claimed):
            raise ValueError(f"the node type name {claimed!r} is reserved for treepack")
    TYPES.check(ty, name, aliases)


# Hooks


def reduce_node(
    node: Any,
) -> tuple[str, FieldNames | None, int, bytes, dict[str, Any], bool] | None:
    """Flattens a node.

    Returns:
      The name, fields and version of its type; its static data; its children; and whether a
      handler made these, so that lists in them stay lists. `None` for a jax array, which stays an
      array even if the program has a handler for it.

    Raises:
      TypeError: If the type has no name, or the static data cannot be written.
    """
    ty = type(node)
    found = registered(ty) or own(ty)
    if found is None and _jax.is_array(node):
        return None
    if found is None and holes_allowed():
        kind = kind_of(node)
        if kind is not None:
            return _UNNAMED, None, 0, *_reduce_unnamed(node, kind), kind.final
    if found is None:
        newer = TYPES.newer(ty)
        if newer is not None:
            raise TypeError(
                f"it is of an older definition of {newer!r}: its class was defined again since; "
                "create it again"
            )
        raise TypeError(
            f"the type {default_name(ty)} is not registered, so it could not be found again in "
            f"a file; call {_registration_for(ty, node)}, or pass holes=True and fill it in when "
            "loading"
        )
    data, children = found.reduce(node)
    kind = None if handlers.find(ty) is None else kind_of(node)
    if kind is not None and kind.final:
        # Like `to_bytes`, so that the same template takes both.
        state = kind.children(node)
        if type(state) is not dict or state.keys() != children.keys() or _has_lists(state):
            if holes_allowed():
                return _UNNAMED, None, 0, *_reduce_unnamed(node, kind), True
            raise TypeError(
                f"the handler of {default_name(ty)} makes another state of it than JAX, and needs "
                "a template to restore it: pass holes=True and fill it in when loading, or use "
                "serialization.to_bytes"
            )
    return found.name, found.fields, found.version, data, children, False


def _has_lists(state: dict[str, Any]) -> bool:
    """Returns whether the state that a handler made has lists, which stay lists there."""
    return any(
        type(part) in (list, tuple) or (type(part) is dict and _has_lists(part))
        for part in state.values()
    )


def find_node_type(
    name: str, fields: FieldNames | None, version: int, or_none: bool
) -> NodeType | None:
    """Finds a type by name that makes nodes from those saved with these fields.

    Raises:
      UnregisteredTypeError: If there is none, or nodes with these fields cannot become nodes of
        it; unless `or_none`.
    """
    found = TYPES.by_name(name) or own(_own_by_name(name))
    if found is not None and found.fields == fields and found.version == version:
        return found
    try:
        if found is None:
            remedy = "import flax" if name == "flax.core.FrozenDict" else "import or register it"
            raise UnregisteredTypeError(
                f"no type is registered with the name {name!r}; {remedy} (see "
                f"treepack.register_dataclass){remark_on_main(name)}, or pass "
                'unknown="dict" to get dicts in its place',
                name,
            )
        return evolved(found, fields, version)
    except UnregisteredTypeError:
        if or_none:
            return None
        raise


def fill_holes(static: Any, path: list[str], fillings: Any, ty: type, in_words: bool) -> Any:
    """Fills the holes in static data of a node; see `holes.fill`."""
    return _holes.fill(static, path, fillings, ty, _static_of, in_words)


def _static_of(node: Any) -> dict[str, Any]:
    found = registered(type(node)) or own(type(node))
    return {} if found is None else found.static_of(node)


def is_named(ty: type, name: str) -> bool:
    """Returns whether a name in a file stands for a type."""
    found = TYPES.by_name(name) or own(_own_by_name(name))
    return found.ty is ty if found is not None else name in (default_name(ty), _UNNAMED)


def _registration_for(ty: type, node: Any) -> str:
    if is_namedtuple(ty):
        return "treepack.register_namedtuple, or treepack.register_tree on the tree"
    if _jax.is_node(node):
        return "treepack.register_node, or treepack.register_tree on the tree"
    if dataclasses.is_dataclass(ty):
        return "treepack.register_dataclass"
    return "jax.tree_util.register_pytree_node and treepack.register_node"


# Types that need no registration

# JAX takes these apart without a registry.
BY_JAX: frozenset[type] = frozenset({dict, list, tuple, type(None)})


def _mapping(
    ty: type, name: str, make: Callable[[Any, dict[Any, Any]], Any], extra: Any
) -> NodeType:
    """Describes a type of mappings with any keys, and `extra` data besides the items."""

    def reduce(mapping: Any) -> tuple[bytes, dict[str, Any]]:
        check_unique_keys(mapping)
        keys = None if all(type(key) is str for key in mapping) else list(mapping)
        children = {str(key): value for key, value in mapping.items()}
        parts = _holes.with_holes({"keys": keys, "default_factory": extra(mapping)})
        return core.encode_value(tuple(parts.values())), children

    def rebuild(static: Any, names: list[str], children: list[Any]) -> Any:
        keys, more = static
        if keys is not None:
            core.check_hashes(keys)
        items = dict(zip(names if keys is None else keys, children, strict=True))
        if len(items) != len(children):
            raise ValueError("a key occurs twice")
        return make(more, items)

    def static_of(mapping: Any) -> dict[str, Any]:
        return {"keys": list(mapping), "default_factory": extra(mapping)}

    return _own_type(ty, name, reduce, rebuild, static_of)


def _own_type(
    ty: type, name: str, reduce: Any, rebuild: Any, static_of: _holes.StaticOf = lambda _: {}
) -> NodeType:
    return NodeType(ty, name, reduce, rebuild, build=rebuild, static_of=static_of)


def _reduce_partial(partial: Any) -> tuple[bytes, dict[str, Any]]:
    function = _holes.with_holes({"func": _jax.partial_function(partial)})["func"]
    _holes.check_field("func", function)
    return core.encode_value(function), {"args": partial.args, "keywords": partial.keywords}


def _reduce_pruned(pruned: Pruned) -> tuple[bytes, dict[str, Any]]:
    functions = _holes.with_holes(pruned.functions())
    for name, function in functions.items():
        _holes.check_field(name, function)
    kind = type(pruned.container).__name__
    return core.encode_value((kind, pruned.keys(), functions)), pruned.children()


def _rebuild_pruned(static: Any, names: list[str], children: list[Any]) -> Any:
    kind, keys, functions = static
    core.check_hashes(keys)
    found = functions | dict(zip(names, children, strict=True))
    if kind not in _PRUNED or [str(key) for key in keys] != [
        name for name in map(str, keys) if name in found
    ]:
        raise ValueError("it is not a container with functions in it")
    return joined(_PRUNED[kind], keys, [found[str(key)] for key in keys])


_PRUNED: dict[str, type] = {"list": list, "tuple": tuple, "dict": dict}


# Nodes without a name: only their children are saved, and loading fills in the rest.


def _reduce_unnamed(node: Any, kind: NodeKind) -> tuple[bytes, dict[str, Any]]:
    children = kind.children(node)
    if type(children) is not dict:
        raise TypeError(f"the handler of {default_name(type(node))} returns no dict")
    return core.encode_value(_holes.Hole(None, default_name(type(node)))), children


def _rebuild_unnamed(template: Any, names: list[str], children: list[Any]) -> Any:
    kind = kind_of(template)
    expected = {} if kind is None else kind.children(template)
    if (kind is None or not kind.final) and expected.keys() != set(names):
        raise ValueError(
            f"the node it is filled in with has the children {list(expected)}, not {names}"
        )
    if kind is None:
        return template
    return kind.make(template, dict(zip(names, children, strict=True)))


def _rebuild_partial(function: Any, names: list[str], children: list[Any]) -> Any:
    from jax.tree_util import Partial

    check_children(["args", "keywords"], names)
    args, keywords = children
    return Partial(function, *args, **keywords)  # type: ignore[no-untyped-call]


_UNNAMED = "treepack.unnamed"

_own: dict[type, NodeType] = {
    Pruned: _own_type(Pruned, "treepack.pruned", _reduce_pruned, _rebuild_pruned, Pruned.functions),
    # No node has this type.
    NodeKind: _own_type(NodeKind, _UNNAMED, None, _rebuild_unnamed),
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
}


def _own_by_name(name: str) -> type | None:
    """Finds a type of `own` by name; those of other libraries only if they are imported."""
    for ty, found in _own.items():
        if found.name == name:
            return ty
    if name == "jax.tree_util.Partial":
        try:
            from jax.tree_util import Partial
        except ImportError:
            return None
        return Partial
    flax = imported("flax.core")
    return flax.FrozenDict if flax is not None and name == "flax.core.FrozenDict" else None


def own(ty: Any) -> NodeType | None:
    """Returns the entry of a type that needs no registration."""
    if ty in _own:
        return _own[ty]
    if ty is None:
        return None
    flax = imported("flax.core")
    if _jax.is_partial_type(ty):
        name = "jax.tree_util.Partial"
        found = _own_type(
            ty,
            name,
            _reduce_partial,
            _rebuild_partial,
            lambda partial: {"func": _jax.partial_function(partial)},
        )
        return _own.setdefault(ty, found)
    if flax is not None and ty is flax.FrozenDict:
        name = "flax.core.FrozenDict"
        found = _mapping(ty, name, lambda _, items: ty(items), lambda _: None)
        return _own.setdefault(ty, found)
    return None
