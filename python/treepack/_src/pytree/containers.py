from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

import treepack._core as core
from treepack._src.interop.libraries import library_of_type
from treepack._src.interop.modules import is_from

# A state of a container, by the names of its children.
_State = Mapping[str, Any]


class NodeKind(NamedTuple):
    """The functions for one kind of container.

    Attributes:
      children: Takes a container, returns its children by name; if `final`, their states.
      make: Takes a template container and new children by name, returns a new container.
      flax_message: Takes a template container, a state with other children, the names of the
        container's, and the path; returns flax's message.
      sort: Of registered types: `"struct"` of flax, `"pytree"` of JAX.
      final: Whether a handler of the program converts the whole subtree.
      open: Returns `children` and `make` of one container at once, if that saves work.
    """

    children: Callable[[Any], Any]
    make: Callable[[Any, Any], Any]
    flax_message: Callable[[Any, _State, list[str], str], str]
    sort: Literal["", "namedtuple", "dataclass", "struct", "pytree"] = ""
    names: Callable[[Any], list[str]] | None = None
    more_allowed: bool = False
    upgrade: Callable[[_State], _State] | None = None
    final: bool = False
    open: Callable[[Any], tuple[dict[str, Any], Callable[[dict[str, Any]], Any]]] | None = None

    def opened(self, value: Any) -> tuple[dict[str, Any], Callable[[dict[str, Any]], Any]]:
        if self.open is not None:
            return self.open(value)
        return self.children(value), functools.partial(self.make, value)


def namedtuple_of(ty: Any, values: Iterable[Any]) -> Any:
    """Builds a namedtuple from its elements.

    Calls `_make` only if the program overrides it: that of `collections` calls `len`, which the
    type may override, and files may name types of libraries.
    """
    make = getattr(ty, "_make", None)
    if make is not None and not is_from(make, "collections") and library_of_type(ty) is None:
        return make(values)
    node = tuple.__new__(ty, values)
    if tuple.__len__(node) != len(ty._fields):
        fields = f"{len(ty._fields)} fields"
        raise TypeError(f"{ty.__name__} has {fields}, got {tuple.__len__(node)} values")
    return node


# dict and its subclasses


def dict_children(mapping: Mapping[Any, Any]) -> dict[str, Any]:
    core.check_unique_keys(mapping)
    return {str(key): value for key, value in mapping.items()}


def _make_dict(target: Any, new: dict[str, Any]) -> Any:
    if type(target) is dict:
        return {key: new[str(key)] for key in target}
    # A copy keeps other attributes of a subclass, such as a default factory.
    container = _copied(target)
    # The methods of a subclass may do more than set items (Counter adds on update), or raise.
    ordered = isinstance(target, collections.OrderedDict)
    put: Any = collections.OrderedDict.__setitem__ if ordered else dict.__setitem__
    for key, _ in target.items():
        put(container, key, new[str(key)])
    return container


def _copied(target: Any) -> Any:
    try:
        return copy.copy(target)
    except Exception:  # code of the program may raise anything
        ty: Any = type(target)
        container = ty.__new__(ty)
        if hasattr(target, "__dict__"):
            container.__dict__.update(target.__dict__)
        return container


def dict_message(target: Any, state: _State, expected: list[str], path: str) -> str:
    return (
        "The target dict keys and state dict keys do not match, target dict"
        f" contains keys {set(expected).difference(state.keys())} which"
        f" are not present in state dict at path {path}"
    )


# list, tuple and their subclasses


def list_children(sequence: Any) -> dict[str, Any]:
    return {str(index): child for index, child in enumerate(sequence)}


def _make_list(target: Any, new: dict[str, Any]) -> Any:
    if type(target) is list:
        return list(new.values())
    container = _copied(target)
    list.__setitem__(container, slice(None), list(new.values()))
    return container


def _list_message(target: Any, state: _State, expected: list[str], path: str) -> str:
    if len(state) == len(expected):
        return children_message(target, state, expected, path)
    return (
        "The size of the list and the state dict do not match,"
        f" got {len(expected)} and {len(state)} at path {path}"
    )


def children_message(target: Any, state: _State, expected: list[str], path: str) -> str:
    return (
        f"The children of the target {type(target).__name__} and of the state do not match, got "
        f"{sorted(expected)} and {sorted(map(str, state))} at path {path}"
    )


# namedtuples


def _upgrade_namedtuple(state: _State) -> _State:
    """Converts the form in which flax wrote namedtuples before 2022."""
    if set(state) != {"name", "fields", "values"}:
        return state
    names, values = state["fields"], state["values"]
    if not isinstance(names, Mapping) or not isinstance(values, Mapping):
        return state
    return {name: values[index] for index, name in names.items() if index in values}


def _namedtuple_message(target: Any, state: _State, expected: list[str], path: str) -> str:
    return (
        "The field names of the state dict and the named tuple do not match,"
        f" got {set(state)} and {set(expected)} at path {path}"
    )


DICT = NodeKind(dict_children, _make_dict, dict_message, more_allowed=True)

LIST = NodeKind(list_children, _make_list, _list_message)

TUPLE = NodeKind(list_children, lambda _, new: tuple(new.values()), _list_message)

NAMEDTUPLE = NodeKind(
    lambda value: _attributes(value, value._fields),
    lambda target, new: namedtuple_of(type(target), (new[name] for name in target._fields)),
    _namedtuple_message,
    "namedtuple",
    upgrade=_upgrade_namedtuple,
)

BUILTIN: dict[type, NodeKind] = {
    dict: DICT,
    list: LIST,
    tuple: TUPLE,
    # JAX knows these two as well, but sorts the keys of one of them.
    collections.OrderedDict: DICT,
    collections.defaultdict: DICT,
}


# dataclasses and structs of flax


def _attributes(value: Any, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def _once_by_type(names_of: Callable[[Any], list[str]]) -> Callable[[Any], list[str]]:
    known: weakref.WeakKeyDictionary[type, list[str]] = weakref.WeakKeyDictionary()

    def names(value: Any) -> list[str]:
        ty = type(value)
        found = known.get(ty)
        if found is None:
            found = known[ty] = names_of(value)
        return found

    return names


@_once_by_type
def _struct_fields(value: Any) -> list[str]:
    fields = dataclasses.fields(value)
    return [field.name for field in fields if field.metadata.get("pytree_node", True)]


@_once_by_type
def data_fields(value: Any) -> list[str]:
    fields = dataclasses.fields(value)
    return [field.name for field in fields if not field.metadata.get("static", False)]


def _make_dataclass(target: Any, new: dict[str, Any]) -> Any:
    # Runs neither __init__ nor __post_init__: the fields were saved after these. Other attributes,
    # such as cached properties, stay with the template.
    copied = object.__new__(type(target))
    for field in dataclasses.fields(target):
        if field.name in new:
            object.__setattr__(copied, field.name, new[field.name])
        elif hasattr(target, field.name):
            object.__setattr__(copied, field.name, getattr(target, field.name))
    return copied


def _dataclass_message(target: Any, state: _State, expected: list[str], path: str) -> str:
    ty = type(target).__name__
    for name in expected:
        if name not in state:
            return (
                f"Missing field {name} in state dict while restoring"
                f" an instance of {ty}, at path {path}"
            )
    unknown = [str(name) for name in state if name not in expected]
    return (
        f'Unknown field(s) "{",".join(unknown)}" in state dict while'
        f" restoring an instance of {ty} at path {path}"
    )


DATACLASS = NodeKind(
    lambda value: _attributes(value, data_fields(value)),
    _make_dataclass,
    _dataclass_message,
    "dataclass",
    names=data_fields,
)

STRUCT = NodeKind(
    lambda value: _attributes(value, _struct_fields(value)),
    lambda target, new: target.replace(**new),
    _dataclass_message,
    "struct",
    names=_struct_fields,
)
