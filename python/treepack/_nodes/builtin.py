"""Dicts, lists, tuples, namedtuples, and classes derived from them."""

from __future__ import annotations

import collections
import copy
from collections.abc import Iterable, Mapping
from typing import Any

from treepack._nodes.handlers import is_from
from treepack._nodes.kind import Difference, NodeKind


def check_unique_keys(mapping: Mapping[Any, Any]) -> None:
    """Raises a ValueError unless the keys are still distinct as strings."""
    # A subclass may have a `len` of its own.
    keys = list(mapping)
    strings = {str(key) for key in keys}
    if len(strings) != len(keys):
        raise ValueError(
            f"Dict keys do not have a unique string representation: {strings} vs given: {mapping}"
        )


def is_namedtuple(ty: type) -> bool:
    """Tells whether a type is a namedtuple."""
    return issubclass(ty, tuple) and hasattr(ty, "_fields")


def namedtuple_of(ty: Any, values: Iterable[Any]) -> Any:
    """Returns a namedtuple of these elements.

    The `_make` of `collections` asks `len`, which may be a method of the type that counts
    something else; one that the program has written is called.

    Raises:
      TypeError: If there are not as many as it has fields.
    """
    make = getattr(ty, "_make", None)
    if make is not None and not is_from(make, "collections"):
        return make(values)
    made = tuple.__new__(ty, values)
    if tuple.__len__(made) != len(ty._fields):
        fields = f"{len(ty._fields)} fields"
        raise TypeError(f"{ty.__name__} has {fields}, and there are {tuple.__len__(made)} values")
    return made


# dict and its subclasses


def dict_children(mapping: Mapping[Any, Any]) -> dict[str, Any]:
    """Returns the items of a mapping by the text of their keys."""
    check_unique_keys(mapping)
    return {str(key): value for key, value in mapping.items()}


def _make_dict(target: Any, new: dict[str, Any]) -> Any:
    if type(target) is dict:
        return {key: new[str(key)] for key in target}
    # A copy keeps what a subclass has beside its items, such as a default factory.
    made = _copied(target)
    # The methods of a subclass may do more than set (Counter adds on update), or refuse it.
    ordered = isinstance(target, collections.OrderedDict)
    put: Any = collections.OrderedDict.__setitem__ if ordered else dict.__setitem__
    for key, _ in target.items():
        put(made, key, new[str(key)])
    return made


def _copied(target: Any) -> Any:
    """Returns a copy of a dict or list of some class; an empty one if that refuses items."""
    try:
        return copy.copy(target)
    except Exception:  # whatever code of the program raises
        ty: Any = type(target)
        made = ty.__new__(ty)
        if hasattr(target, "__dict__"):
            made.__dict__.update(target.__dict__)
        return made


def dict_in_words(found: Difference) -> str:
    """Tells which keys are missing."""
    return (
        "The target dict keys and state dict keys do not match, target dict"
        f" contains keys {set(found.expected).difference(found.state.keys())} which are not"
        f" present in state dict at path {found.path}"
    )


# list, tuple and their subclasses


def _list_children(sequence: Any) -> dict[str, Any]:
    return {str(index): child for index, child in enumerate(sequence)}


def _make_list(target: Any, new: dict[str, Any]) -> Any:
    if type(target) is list:
        return list(new.values())
    made = _copied(target)
    list.__setitem__(made, slice(None), list(new.values()))
    return made


def _list_in_words(found: Difference) -> str:
    if len(found.state) == len(found.expected):
        return children_in_words(found)
    return (
        "The size of the list and the state dict do not match,"
        f" got {len(found.expected)} and {len(found.state)} "
        f"at path {found.path}"
    )


def children_in_words(found: Difference) -> str:
    """Tells the names of all children."""
    return (
        f"The children of the target {type(found.target).__name__} and of the state do not "
        f"match, got {sorted(found.expected)} and {sorted(map(str, found.state))} at path "
        f"{found.path}"
    )


# namedtuples


def _namedtuple_children(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value._fields}


def _upgrade_namedtuple(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Reads how flax wrote namedtuples before 2022."""
    if set(state) != {"name", "fields", "values"}:
        return state
    names, values = state["fields"], state["values"]
    if not isinstance(names, Mapping) or not isinstance(values, Mapping):
        return state
    return {name: values[index] for index, name in names.items() if index in values}


def _namedtuple_in_words(found: Difference) -> str:
    return (
        "The field names of the state dict and the named tuple do not match,"
        f" got {set(found.state)} and {set(found.expected)} at path {found.path}"
    )


DICT = NodeKind(dict_children, _make_dict, dict_in_words, more_allowed=True)
LIST = NodeKind(_list_children, _make_list, _list_in_words)
TUPLE = NodeKind(_list_children, lambda _, new: tuple(new.values()), _list_in_words)
NAMEDTUPLE = NodeKind(
    _namedtuple_children,
    lambda target, new: namedtuple_of(type(target), (new[name] for name in target._fields)),
    _namedtuple_in_words,
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
