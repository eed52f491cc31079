"""Containers: their named children, and how they are made again from new ones."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from treepack._src.pytree.handlers import is_from


class Difference(NamedTuple):
    """How the children of a template's container differ from those of a state.

    Attributes:
      target: The container.
      state: The state.
      expected: The names of the container's children.
      path: Where it is, as `current_path` tells it.
    """

    target: Any
    state: Mapping[str, Any]
    expected: list[str]
    path: str


class NodeKind(NamedTuple):
    """What can be done with one kind of container.

    Attributes:
      children: Takes a container, returns its children by name. If `final`, the
        values are not children but their state already.
      make: Takes a template container and new children by name, returns a new container.
      in_words: Tells a difference as flax does.
      more_allowed: Whether a state may have children that a template lacks.
      upgrade: Takes a state that may be of an older form, returns it in today's.
      final: Whether handlers of the program do the whole subtree by themselves; `make` takes
        the state then.
      open: `children` and `make` of one container at once, where that saves work.
    """

    children: Callable[[Any], Any]
    make: Callable[[Any, Any], Any]
    in_words: Callable[[Difference], str]
    more_allowed: bool = False
    upgrade: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    final: bool = False
    open: Callable[[Any], tuple[dict[str, Any], Callable[[dict[str, Any]], Any]]] | None = None

    def opened(self, value: Any) -> tuple[dict[str, Any], Callable[[dict[str, Any]], Any]]:
        """Returns the children of a template, and what makes a container of new ones."""
        if self.open is not None:
            return self.open(value)
        return self.children(value), functools.partial(self.make, value)


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


def struct_fields(value: Any) -> list[str]:
    """Returns the fields of a flax struct that hold data."""
    fields = dataclasses.fields(value)
    return [field.name for field in fields if field.metadata.get("pytree_node", True)]


def data_fields(value: Any) -> list[str]:
    """Returns the fields of a dataclass that are not marked as static for JAX."""
    fields = dataclasses.fields(value)
    return [field.name for field in fields if not field.metadata.get("static", False)]


def _struct_children(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in struct_fields(value)}


def _dataclass_children(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in data_fields(value)}


def _make_struct(target: Any, new: dict[str, Any]) -> Any:
    return target.replace(**new)


def make_dataclass(target: Any, new: dict[str, Any]) -> Any:
    """Returns a dataclass with new values in some fields, and the template's in the others."""
    # Neither __init__ nor __post_init__ runs: the fields are what was saved, and what
    # else the template holds, such as cached properties, belongs to the template.
    made = object.__new__(type(target))
    for field in dataclasses.fields(target):
        if field.name in new:
            object.__setattr__(made, field.name, new[field.name])
        elif hasattr(target, field.name):
            object.__setattr__(made, field.name, getattr(target, field.name))
    return made


def _dataclass_in_words(found: Difference) -> str:
    kind = type(found.target).__name__
    for name in found.expected:
        if name not in found.state:
            return (
                f"Missing field {name} in state dict while restoring"
                f" an instance of {kind}, at path {found.path}"
            )
    unknown = [str(name) for name in found.state if name not in found.expected]
    return (
        f'Unknown field(s) "{",".join(unknown)}" in state dict while'
        f" restoring an instance of {kind} at path {found.path}"
    )


DATACLASS = NodeKind(_dataclass_children, make_dataclass, _dataclass_in_words)

STRUCT = NodeKind(_struct_children, _make_struct, _dataclass_in_words)


def fields_of(value: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass or namedtuple, by name."""
    if isinstance(value, tuple):
        return {name: getattr(value, name) for name in value._fields}  # type: ignore[attr-defined]
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def from_fields(ty: Any, fields: dict[str, Any]) -> Any:
    """Returns a dataclass or namedtuple with these fields; those that are new have defaults."""
    if type(fields) is not dict:  # in others it might take long to look for a name
        raise ValueError(f"fields by name are needed, not a {type(fields).__name__}")
    is_tuple = issubclass(ty, tuple)
    names = ty._fields if is_tuple else [field.name for field in dataclasses.fields(ty)]
    defaults = {name: default_of(ty, name) for name in names if name not in fields}
    if not fields.keys() <= set(names) or not all(defaults.values()):
        raise ValueError(f"it has the fields {sorted(names)}, not {sorted(fields)}")
    found = {name: fields[name] if name in fields else defaults[name][0]() for name in names}
    return namedtuple_of(ty, found.values()) if is_tuple else with_attributes(ty, found)


def default_of(ty: Any, name: str) -> list[Callable[[], Any]]:
    """Returns what makes the default of a field of a dataclass or namedtuple, if it has one."""
    named: dict[str, Any] = getattr(ty, "_field_defaults", {})
    if name in named:
        return [lambda: named[name]]
    for field in dataclasses.fields(ty) if dataclasses.is_dataclass(ty) else ():
        if field.name != name:
            continue
        if field.default_factory is not dataclasses.MISSING:
            return [field.default_factory]
        if field.default is not dataclasses.MISSING:
            return [functools.partial(getattr, field, "default")]
    return []


def with_attributes(ty: type, attributes: dict[str, Any]) -> Any:
    """Returns an object with these attributes, of which no code of its type has run."""
    new: Any = object.__new__(ty)
    for name, value in attributes.items():
        object.__setattr__(new, name, value)
    return new
