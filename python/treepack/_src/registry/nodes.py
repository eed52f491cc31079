from __future__ import annotations

import collections
from collections.abc import Callable, Iterable
from typing import Any

import treepack._core as core
from treepack._src.interop import equinox, flax, shardings
from treepack._src.interop import jax as _jax
from treepack._src.interop.modules import found_at
from treepack._src.leaves.leaves import explain, remedy
from treepack._src.pytree.containers import NodeKind
from treepack._src.pytree.handlers import handlers_of
from treepack._src.pytree.kinds import Pruned, kind_of
from treepack._src.pytree.state_dict import leaves_of, to_state_dict
from treepack._src.registry import placeholders as _placeholders
from treepack._src.registry import static as _static
from treepack._src.registry.code import is_code
from treepack._src.registry.codec import as_parts, checked_factory, exactly, is_inert_factory
from treepack._src.registry.definitions import AUXDATA
from treepack._src.registry.fields import Fields
from treepack._src.registry.inert import checked_keys
from treepack._src.registry.library_types import find
from treepack._src.registry.names import default_name
from treepack._src.registry.placeholders import LeftOut
from treepack._src.registry.types import (
    TYPES,
    NodeType,
    check_children,
)
from treepack._src.registry.unregistered import of_library, unregistered


def check_name(ty: type, name: str, aliases: Iterable[str] = ()) -> None:
    if ty in BY_JAX:
        raise ValueError(f"{default_name(ty)} needs no registration: leave out the call")
    for claimed in (name, *aliases):
        if (_own_by_name(claimed) or ty) is not ty or _static.is_own_name(claimed):
            raise ValueError(
                f"the node type name {claimed!r} is reserved for treepack: choose another name"
            )
    TYPES.check(ty, name, aliases)
    for alias in aliases:
        AUXDATA.check_alias(ty, alias)
        theirs = find(alias)
        if theirs is not None and theirs is not ty:
            raise ValueError(
                f"{alias!r} is {default_name(theirs)}: an alias is the name of a type that is "
                "gone: leave it out"
            )


class Recorder(LeftOut):
    describe_sharding = staticmethod(shardings.describe)

    def flatten(
        self, node: Any
    ) -> tuple[str, Fields | None, int, bytes, dict[str, Any], bool] | None:
        """Returns name, fields and version of the type; static data; children; if of a handler.

        Lists from handlers stay lists. `None` for a JAX array, also if the program has a handler
        for it.
        """
        ty = type(node)
        self.meet(node)
        entry = TYPES.entry_of(ty) or own(ty)
        handled = handlers_of(ty) is not None
        kind = kind_of(node) if handled or entry is None else None
        if entry is None:
            if _jax.is_array(node):
                return None
            if kind is None or flax.is_graph_definition(node):
                return _CODE, None, 0, _code_left_out(node, self), {}, False
            entry = unregistered(ty, kind)
            if entry is None:
                return _UNNAMED, None, 0, *_flatten_unnamed(node, kind), kind.final
        data, children = entry.flatten(node, self)
        if kind is not None and kind.final:
            # Like `to_bytes`, so that the same template restores both.
            state = kind.children(node)
            if type(state) is not dict or state.keys() != children.keys() or _has_lists(state):
                named = _named_by_handler(state, children)
                # Checked children have JAX's names.
                if named is not None and not (entry.checked or equinox.is_module(node)):
                    return entry.name, entry.fields, entry.version, data, named, False
                return _UNNAMED, None, 0, *_flatten_unnamed(node, kind), True
        return entry.name, entry.fields, entry.version, data, children, False


def _named_by_handler(state: Any, children: dict[str, Any]) -> dict[str, Any] | None:
    if type(state) is not dict or len(state) != len(children) or _has_lists(state):
        return None
    if not all(map(_is_state_of, state.values(), children.values())):
        return None
    return dict(zip(state, children.values(), strict=True))


def _is_state_of(state: Any, child: Any) -> bool:
    if state is child:
        return True
    if kind_of(child) is None or type(state) is not dict:
        return False
    expanded = to_state_dict(child)
    paths, expected = list(leaves_of(state, ())), list(leaves_of(expanded, ()))
    return len(paths) == len(expected) and all(
        path == other and leaf is same
        for (path, leaf), (other, same) in zip(paths, expected, strict=True)
    )


def _code_left_out(code: Any, left_out: LeftOut) -> bytes:
    static = left_out.static
    if static == "error" or not (static == "skip" or callable(code) or is_code(code)):
        raise TypeError(explain(code))
    return core.encode_value(_placeholders.placeholder_of(code, left_out))


def _has_lists(state: dict[str, Any]) -> bool:
    return any(
        type(part) in (list, tuple) or (type(part) is dict and _has_lists(part))
        for part in state.values()
    )


def type_of(ty: type, kind: NodeKind | None) -> NodeType | None:
    return TYPES.entry_of(ty) or own(ty) or (None if kind is None else unregistered(ty, kind))


def other_name(ty: type, name: str) -> str | None:
    if name == _CODE:
        is_same = flax.is_graph_definition_type(ty)  # other code is not a container
    elif name == _UNNAMED:
        is_same = ty not in BY_JAX  # the type is unknown
    else:
        entry = by_name(name)
        is_same = entry.ty is ty if entry is not None else name == default_name(ty)
    return None if is_same else TYPES.name_of(ty) or default_name(ty)


def by_name(name: str) -> NodeType | None:
    return TYPES.by_name(name) or own(_own_by_name(name)) or of_library(name)


# Types that need no registration

# JAX flattens these without a registry.
BY_JAX: frozenset[type] = frozenset({dict, list, tuple, type(None)})


def _mapping(ty: Any, name: str) -> NodeType:
    def flatten(mapping: Any, left_out: LeftOut) -> tuple[bytes, dict[str, Any]]:
        core.check_unique_keys(mapping)
        keys = None if all(type(key) is str for key in mapping) else list(mapping)
        children = {str(key): value for key, value in mapping.items()}
        factory = getattr(mapping, "default_factory", None)
        if not is_inert_factory(factory):
            factory = _placeholders.in_place_of("default_factory", factory, left_out)
        keys = _placeholders.with_placeholders({"keys": keys}, left_out)["keys"]
        return core.encode_value((keys, factory)), children

    def decode(data: bytes) -> Any:
        keys, factory = as_parts(((list, type(None)), object), core.decode_value(data))
        if type(factory) is not _placeholders.Placeholder:
            checked_factory(factory)
        # A tuple, so that nodes with the same static data share it.
        return None if keys is None else tuple(checked_keys(keys)), factory

    def unflatten(static: Any, names: list[str], children: list[Any]) -> Any:
        keys, factory = static
        if keys is not None:
            core.check_hashes(list(keys))
        items = dict(zip(names if keys is None else keys, children, strict=True))
        if len(items) != len(children):
            raise ValueError("duplicate key")
        return ty(factory, items) if issubclass(ty, collections.defaultdict) else ty(items)

    def static_of(mapping: Any) -> dict[str, Any]:
        factory = getattr(mapping, "default_factory", None)
        return {"keys": list(mapping), "default_factory": factory}

    return _own_type(ty, name, flatten, unflatten, static_of, decode)


def _own_type(
    ty: type,
    name: str,
    flatten: Any,
    unflatten: Any,
    static_of: _placeholders.StaticOf = lambda _: {},
    decode: Callable[[bytes], Any] = core.decode_value,
) -> NodeType:
    return NodeType(ty, name, flatten, unflatten, unflatten, decode, static_of=static_of)


def _flatten_partial(partial: Any, left_out: LeftOut) -> tuple[bytes, dict[str, Any]]:
    static = _placeholders.storable({"func": _jax.partial_function(partial)}, left_out)
    return core.encode_value(static["func"]), {"args": partial.args, "keywords": partial.keywords}


def _flatten_pruned(pruned: Pruned, left_out: LeftOut) -> tuple[bytes, dict[str, Any]]:
    functions = _placeholders.storable(pruned.functions(), left_out)
    kind = type(pruned.container).__name__
    return core.encode_value((kind, pruned.keys(), functions)), pruned.children()


def _decode_pruned(data: bytes) -> Any:
    kind, keys, functions = as_parts((str, list, dict), core.decode_value(data))
    return kind, checked_keys(keys), functions


def _unflatten_pruned(static: Any, names: list[str], children: list[Any]) -> Any:
    kind, keys, functions = static
    core.check_hashes(keys)
    values = functions | dict(zip(names, children, strict=True))
    if kind not in _PRUNED or [str(key) for key in keys] != [
        name for name in map(str, keys) if name in values
    ]:
        raise ValueError("expected a container with functions")
    return Pruned.join(_PRUNED[kind], keys, [values[str(key)] for key in keys])


_PRUNED: dict[str, type] = {"list": list, "tuple": tuple, "dict": dict}


# Nodes without a name: only their children are saved; a template supplies the rest.


def _flatten_unnamed(node: Any, kind: NodeKind) -> tuple[bytes, dict[str, Any]]:
    children = kind.children(node)
    if type(children) is not dict:
        raise TypeError(
            f"the handler of {default_name(type(node))} must return a dict: "
            + (remedy(node) or "save the result of serialization.to_state_dict instead of it")
        )
    return core.encode_value(_placeholders.Placeholder(None, default_name(type(node)))), children


def _decode_placeholder(data: bytes) -> Any:
    placeholder = exactly(_placeholders.Placeholder, core.decode_value(data))
    if placeholder.name is not None:
        raise ValueError("expected a placeholder without parts")
    return placeholder


def _unflatten_unnamed(template: Any, names: list[str], children: list[Any]) -> Any:
    kind = kind_of(template)
    expected = {} if kind is None else kind.children(template)
    if (kind is None or not kind.final) and expected.keys() != set(names):
        raise ValueError(
            f"the node that supplies it has the children {list(expected)}, expected {names}"
        )
    if kind is None:
        return template
    return kind.make(template, dict(zip(names, children, strict=True)))


def _unflatten_partial(function: Any, names: list[str], children: list[Any]) -> Any:
    from jax.tree_util import Partial

    check_children(["args", "keywords"], names)
    args, keywords = children
    return Partial(function, *args, **keywords)  # type: ignore[no-untyped-call]


_UNNAMED = "treepack.unnamed"


def _unflatten_code(code: Any, names: list[str], children: list[Any]) -> Any:
    check_children([], names)
    return code


# Leaves and nodes that are code, without children.
_CODE = "treepack.code"

_own: dict[type, NodeType] = {
    Pruned: _own_type(
        Pruned,
        "treepack.pruned",
        _flatten_pruned,
        _unflatten_pruned,
        Pruned.functions,
        _decode_pruned,
    ),
    # No node has one of these types.
    NodeKind: _own_type(NodeKind, _UNNAMED, None, _unflatten_unnamed, decode=_decode_placeholder),
    _placeholders.Code: _own_type(
        _placeholders.Code, _CODE, None, _unflatten_code, decode=_decode_placeholder
    ),
}


def _partial_type(ty: type, name: str) -> NodeType:
    def static_of(partial: Any) -> dict[str, Any]:
        return {"func": _jax.partial_function(partial)}

    return _own_type(ty, name, _flatten_partial, _unflatten_partial, static_of)


# Types of other modules that need no registration, by name: their modules, and functions that
# describe them.
_ELSEWHERE: dict[str, tuple[str, Callable[[Any, str], NodeType]]] = {
    "OrderedDict": ("collections", _mapping),
    "defaultdict": ("collections", _mapping),
    "FrozenDict": ("flax.core", _mapping),
    "Partial": ("jax.tree_util", _partial_type),
}


def _own_by_name(name: str) -> type | None:
    module, _, attribute = name.rpartition(".")
    if attribute in _ELSEWHERE and _ELSEWHERE[attribute][0] == module:
        return found_at(module, attribute)  # type: ignore[no-any-return]
    return next((ty for ty, entry in _own.copy().items() if entry.name == name), None)


def own(ty: Any) -> NodeType | None:
    if ty in _own:
        return _own[ty]
    name = getattr(ty, "__name__", "")
    if name not in _ELSEWHERE:
        return None
    module, describe = _ELSEWHERE[name]
    if ty is not found_at(module, name):
        return None
    return _own.setdefault(ty, describe(ty, f"{module}.{name}"))
