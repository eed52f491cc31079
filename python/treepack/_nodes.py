"""What containers consist of, and how they are put together again.

A `NodeKind` knows one kind of container (dict, namedtuple, registered pytree,
...): the named children of an object, and how to make such an object from
new children. `kind_of` finds the kind of an object, in this order:

1. handlers registered with treepack, flax or eformer (see `_registry`)
2. dict, list, tuple, `jax.tree_util.Partial`
3. namedtuples
4. nodes of JAX's pytree registry, named by their key paths
5. subclasses of dict and list
6. dataclasses

Structs and FrozenDicts of flax have handlers that call flax on what is inside.
They are taken apart here instead, so that anything may be inside them.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from treepack import _registry
from treepack._context import current_path, mismatch

# Restores one child: takes the child of the template, its state and its name.
RestoreChild = Callable[[Any, Any, str], Any]


class NodeKind(NamedTuple):
    """What can be done with one kind of container.

    Attributes:
      children: Takes a container, returns its children by name. If `final`, the
        values are not children but their state already.
      restore: Takes a template container, the state (by name, as `children` has
        it), and the function that restores a child; returns a new container.
      final: Whether handlers of the program do the whole subtree by themselves.
    """

    children: Callable[[Any], Any]
    restore: Callable[[Any, Any, RestoreChild], Any]
    final: bool = False


def kind_of(value: Any) -> NodeKind | None:
    """Returns the kind of container that a value is, or `None` for a leaf."""
    ty = type(value)
    if issubclass(ty, type):
        return None
    handlers = _registry.find(ty)
    if handlers is not None:
        for module, kind in _FROM_FLAX.items():
            if _registry.is_from(handlers.to_state, module):
                return kind
        return NodeKind(
            handlers.to_state,
            lambda target, state, _: handlers.from_state(target, state),
            final=True,
        )
    builtin = _BUILTIN.get(ty)
    if builtin is not None:
        return builtin
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return _NAMEDTUPLE
    if value is not None and not jax.tree_util.all_leaves([value]):
        return _PYTREE
    if isinstance(value, dict):
        return _DICT
    if isinstance(value, list):
        return _LIST
    if dataclasses.is_dataclass(value):
        return _DATACLASS
    return None


def fixed_fields(value: Any) -> tuple[list[str], Callable[[Any, list[Any]], Any]] | None:
    """Returns what the core needs to go through all containers of a type by itself.

    Returns:
      The names of the children, which are attributes; and a function that takes a template and
      new children, and returns a new container. `None` for types of which that is not all.
    """
    kind = kind_of(value)
    if kind is _STRUCT:
        names = _struct_fields(value)
        return names, lambda target, new: target.replace(**dict(zip(names, new, strict=True)))
    if kind is _NAMEDTUPLE:
        names = list(value._fields)
        return names, lambda target, new: type(target)(**dict(zip(names, new, strict=True)))
    if kind is _DATACLASS:
        names = _data_fields(value)
        return names, lambda target, new: _new_dataclass(target, dict(zip(names, new, strict=True)))
    return None


def is_container_type(ty: type) -> bool:
    """Tells whether objects of a type are containers, as far as the type alone tells."""
    return (
        _registry.find(ty) is not None
        or ty in _BUILTIN
        or issubclass(ty, (dict, list))
        or (issubclass(ty, tuple) and hasattr(ty, "_fields"))
        or dataclasses.is_dataclass(ty)
        or (ty is not type(None) and is_known_to_jax(ty))
    )


def check_unique_keys(mapping: Mapping[Any, Any]) -> None:
    """Raises a ValueError unless the keys are still distinct as strings."""
    strings = {str(key) for key in mapping}
    if len(strings) != len(mapping):
        raise ValueError(
            f"Dict keys do not have a unique string representation: {strings} vs given: {mapping}"
        )


def _expect_mapping(target: Any, state: Any) -> Mapping[str, Any]:
    """Returns the state if it has children at all."""
    if isinstance(state, Mapping):
        return state
    raise mismatch(
        f"a subtree ({type(target).__name__})",
        f"a leaf ({type(state).__name__})",
        f"The target has a subtree ({type(target).__name__}) where the state has a leaf "
        f"({type(state).__name__}) at path {current_path()}",
    )


def _attributes(value: Any, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


# dict and its subclasses


def _dict_children(mapping: Mapping[Any, Any]) -> dict[str, Any]:
    check_unique_keys(mapping)
    return {str(key): value for key, value in mapping.items()}


def _restore_items(target: Any, state: Any, restore: RestoreChild) -> dict[Any, Any]:
    state = _expect_mapping(target, state)
    names = {key: str(key) for key in target}
    missing = set(names.values()).difference(state.keys())
    if missing:
        raise mismatch(
            f"the keys {sorted(names.values())}",
            f"the keys {sorted(map(str, state))}",
            "The target dict keys and state dict keys do not match, target dict"
            f" contains keys {missing} which are not present in state dict at path"
            f" {current_path()}",
        )
    return {key: restore(target[key], state[name], name) for key, name in names.items()}


def _restore_dict(target: Any, state: Any, restore: RestoreChild) -> Any:
    items = _restore_items(target, state, restore)
    if type(target) is dict:
        return items
    # A copy keeps what a subclass has beside its items, such as a default factory.
    restored = copy.copy(target)
    for key, value in items.items():
        # The methods of a subclass may do more than set (Counter adds on update).
        dict.__setitem__(restored, key, value)
    return restored


# list, tuple and their subclasses


def _list_children(sequence: Any) -> dict[str, Any]:
    return {str(index): child for index, child in enumerate(sequence)}


def _restore_elements(target: Any, state: Any, restore: RestoreChild) -> list[Any]:
    state = _expect_mapping(target, state)
    names = [str(index) for index in range(len(target))]
    if len(state) != len(names):
        raise mismatch(
            f"{len(names)} elements",
            f"{len(state)} elements",
            "The size of the list and the state dict do not match,"
            f" got {len(target)} and {len(state)} "
            f"at path {current_path()}",
        )
    _expect_names(target, state, names)
    return [restore(child, state[name], name) for child, name in zip(target, names, strict=True)]


def _restore_list(target: Any, state: Any, restore: RestoreChild) -> Any:
    elements = _restore_elements(target, state, restore)
    if type(target) is list:
        return elements
    restored = copy.copy(target)
    restored[:] = elements
    return restored


def _restore_tuple(target: Any, state: Any, restore: RestoreChild) -> tuple[Any, ...]:
    return tuple(_restore_elements(target, state, restore))


# namedtuples


def _namedtuple_children(value: Any) -> dict[str, Any]:
    return _attributes(value, value._fields)


def _restore_namedtuple(target: Any, state: Any, restore: RestoreChild) -> Any:
    state = _expect_mapping(target, state)
    if set(state) == {"name", "fields", "values"} and isinstance(state["fields"], Mapping):
        # How flax wrote namedtuples before 2022.
        names, values = state["fields"], _expect_mapping(target, state["values"])
        state = {name: values[index] for index, name in names.items() if index in values}
    if set(state) != set(target._fields):
        raise mismatch(
            f"the fields {sorted(target._fields)}",
            f"the fields {sorted(map(str, state))}",
            "The field names of the state dict and the named tuple do not match,"
            f" got {set(state)} and {set(target._fields)} at path {current_path()}",
        )
    children = {name: restore(getattr(target, name), state[name], name) for name in state}
    return type(target)(**children)


# nodes of JAX's pytree registry

# The function leaves of an equinox module, such as an activation, are code and not
# state: they are not saved, and come from the template.


def is_code(node: Any, child: Any) -> bool:
    """Tells whether a child of a node is code, and no state."""
    equinox = sys.modules.get("equinox")
    return (
        equinox is not None
        and isinstance(node, equinox.Module)
        and callable(child)
        and kind_of(child) is None
        and not hasattr(child, "shape")
    )


def _without_code(node: Any, children: dict[str, Any]) -> dict[str, Any]:
    return {name: child for name, child in children.items() if not is_code(node, child)}


def _pytree_children(value: Any) -> dict[str, Any]:
    children, _ = flatten(value)
    return _without_code(value, children)


def flatten(value: Any) -> tuple[dict[str, Any], Any]:
    """Returns the children of a pytree node by name, and its treedef."""
    flat, treedef = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda x: x is not value)
    children = {_key_name(path[0]): child for path, child in flat}
    if len(children) != len(flat):
        raise ValueError(
            f"The children of a {type(value).__name__} do not have unique names: "
            f"{[_key_name(path[0]) for path, _ in flat]}"
        )
    return children, treedef


def unflatten(ty: type, auxdata: Any, children: Sequence[Any]) -> Any:
    """Returns a node of JAX's registry with these children, as JAX makes it."""
    treedef = _treedef_of(jax.tree_util.default_registry, (ty, auxdata), [_LEAF] * len(children))
    return treedef.unflatten(children)


def is_known_to_jax(ty: type) -> bool:
    """Tells whether JAX has a type in its registry of pytree nodes."""
    try:
        _treedef_of(jax.tree_util.default_registry, (ty, None), [])
    except (RuntimeError, ValueError, TypeError):
        return False
    return True


_LEAF = jax.tree_util.tree_structure(0)

# Older versions of JAX call it by another name.
_treedef_of = getattr(jax.tree_util.PyTreeDef, "from_node_data_and_children", None) or (
    jax.tree_util.PyTreeDef.make_from_node_data_and_children
)


def _key_name(entry: Any) -> str:
    """Returns the name in an entry of a key path, whatever its kind."""
    for attribute in ("key", "name", "idx"):
        if hasattr(entry, attribute):
            return str(getattr(entry, attribute))
    return str(entry)


def _restore_pytree(target: Any, state: Any, restore: RestoreChild) -> Any:
    children, treedef = flatten(target)
    state = _expect_mapping(target, state)
    saved = _without_code(target, children)
    _expect_names(target, state, saved)
    return treedef.unflatten(
        restore(child, state[name], name) if name in saved else child
        for name, child in children.items()
    )


def _expect_names(target: Any, state: Mapping[str, Any], names: Any) -> None:
    """Raises unless a state has exactly the children with these names."""
    names = list(names)
    if set(names) != set(state):
        raise mismatch(
            f"the children {sorted(names)}",
            f"the children {sorted(map(str, state))}",
            f"The children of the target {type(target).__name__} and of the state do not match, "
            f"got {sorted(names)} and {sorted(map(str, state))} at path {current_path()}",
        )


# dataclasses


def _struct_fields(value: Any) -> list[str]:
    """Returns the fields of a flax struct that hold data."""
    fields = dataclasses.fields(value)
    return [field.name for field in fields if field.metadata.get("pytree_node", True)]


def _data_fields(value: Any) -> list[str]:
    """Returns the fields of a dataclass that are not marked as static for JAX."""
    fields = dataclasses.fields(value)
    return [field.name for field in fields if not field.metadata.get("static", False)]


def _struct_children(value: Any) -> dict[str, Any]:
    return _attributes(value, _struct_fields(value))


def _dataclass_children(value: Any) -> dict[str, Any]:
    return _attributes(value, _data_fields(value))


def _restore_fields(
    target: Any, state: Any, restore: RestoreChild, names: list[str]
) -> dict[str, Any]:
    state = _expect_mapping(target, state)
    kind = type(target).__name__
    for name in names:
        if name not in state:
            raise mismatch(
                f"a field {name!r}",
                "none",
                f"Missing field {name} in state dict while restoring"
                f" an instance of {kind}, at path {current_path()}",
            )
    unknown = [str(name) for name in state if name not in names]
    if unknown:
        raise mismatch(
            f"the fields {names}",
            f"also the fields {unknown}",
            f'Unknown field(s) "{",".join(unknown)}" in state dict while'
            f" restoring an instance of {kind} at path {current_path()}",
        )
    return {name: restore(getattr(target, name), state[name], name) for name in names}


def _restore_struct(target: Any, state: Any, restore: RestoreChild) -> Any:
    return target.replace(**_restore_fields(target, state, restore, _struct_fields(target)))


def _restore_dataclass(target: Any, state: Any, restore: RestoreChild) -> Any:
    return _new_dataclass(target, _restore_fields(target, state, restore, _data_fields(target)))


def _new_dataclass(target: Any, restored: dict[str, Any]) -> Any:
    # Neither __init__ nor __post_init__ runs: the fields are what was saved, and what
    # else the template holds, such as cached properties, belongs to the template.
    new = object.__new__(type(target))
    for field in dataclasses.fields(target):
        if field.name in restored:
            object.__setattr__(new, field.name, restored[field.name])
        elif hasattr(target, field.name):
            object.__setattr__(new, field.name, getattr(target, field.name))
    return new


# jax.tree_util.Partial


def _partial_children(value: Any) -> dict[str, Any]:
    return {"args": value.args, "keywords": value.keywords}


def _restore_partial(target: Any, state: Any, restore: RestoreChild) -> Any:
    state = _expect_mapping(target, state)
    if not {"args", "keywords"}.issubset(state):
        _expect_names(target, state, ("args", "keywords"))
    args = restore(target.args, state["args"], "args")
    keywords = restore(target.keywords, state["keywords"], "keywords")
    return type(target)(target.func, *args, **keywords)


# flax's own types


def _restore_frozen_dict(target: Any, state: Any, restore: RestoreChild) -> Any:
    return type(target)(_restore_items(target, state, restore))


_DICT = NodeKind(_dict_children, _restore_dict)
_LIST = NodeKind(_list_children, _restore_list)
_NAMEDTUPLE = NodeKind(_namedtuple_children, _restore_namedtuple)
_PYTREE = NodeKind(_pytree_children, _restore_pytree)
_DATACLASS = NodeKind(_dataclass_children, _restore_dataclass)
_STRUCT = NodeKind(_struct_children, _restore_struct)

_BUILTIN: dict[type, NodeKind] = {
    dict: _DICT,
    list: _LIST,
    tuple: NodeKind(_list_children, _restore_tuple),
    jax.tree_util.Partial: NodeKind(_partial_children, _restore_partial),
    # JAX knows these two as well, but sorts the keys of one of them.
    collections.OrderedDict: _DICT,
    collections.defaultdict: _DICT,
}

# By the module that defines a handler; see `_registry.is_from`.
_FROM_FLAX: dict[str, NodeKind] = {
    "flax.struct": _STRUCT,
    "flax.core.frozen_dict": NodeKind(_dict_children, _restore_frozen_dict),
}
