"""Splits containers into children by name, and rebuilds them with new children."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from types import MemberDescriptorType
from typing import Any, NamedTuple

from treepack._src.interop.libraries import library_of_type
from treepack._src.pytree.handlers import is_from


class Difference(NamedTuple):
    """The difference between the children of a container in a template and the children in a state.

    Attributes:
      target: The container.
      state: The state.
      expected: The names of the container's children.
      path: The path of the container, in the form of `current_path`.
    """

    target: Any
    state: Mapping[str, Any]
    expected: list[str]
    path: str


class NodeKind(NamedTuple):
    """The functions for one kind of container.

    Attributes:
      children: Takes a container, returns its children by name. If `final`, the
        values are their states rather than the children.
      make: Takes a template container and new children by name, returns a new container.
      in_words: Describes a difference in flax's words.
      more_allowed: Whether a state may have children that the template lacks.
      upgrade: Converts a state from an older form to the current one.
      final: Whether a handler of the program converts the whole subtree; `make` then takes its
        state.
      open: Returns `children` and `make` of one container at once, if that saves work.
    """

    children: Callable[[Any], Any]
    make: Callable[[Any, Any], Any]
    in_words: Callable[[Difference], str]
    more_allowed: bool = False
    upgrade: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    final: bool = False
    open: Callable[[Any], tuple[dict[str, Any], Callable[[dict[str, Any]], Any]]] | None = None

    def opened(self, value: Any) -> tuple[dict[str, Any], Callable[[dict[str, Any]], Any]]:
        """Returns the children of a template, and a function that rebuilds it with new children."""
        if self.open is not None:
            return self.open(value)
        return self.children(value), functools.partial(self.make, value)


def check_unique_keys(mapping: Mapping[Any, Any]) -> None:
    """Raises a ValueError if two keys are equal as strings."""
    # A subclass may override `len`.
    keys = list(mapping)
    strings = {str(key) for key in keys}
    if len(strings) != len(keys):
        error = ValueError(
            f"Dict keys do not have a unique string representation: {strings} vs given: {mapping}"
        )
        error.add_note("treepack: rename keys that are equal as strings")
        raise error


def is_namedtuple(ty: type) -> bool:
    return issubclass(ty, tuple) and hasattr(ty, "_fields")


def namedtuple_of(ty: Any, values: Iterable[Any]) -> Any:
    """Builds a namedtuple from its elements.

    It calls `_make` only if the program overrides it: `_make` of `collections` calls `len`, which
    the type may override, and files may name types of libraries.

    Raises:
      TypeError: If the number of elements differs from the number of fields.
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
    """Returns the items of a mapping, with keys as strings."""
    check_unique_keys(mapping)
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
    """Copies a dict or list of a subclass; without its items if copying fails."""
    try:
        return copy.copy(target)
    except Exception:  # code of the program may raise anything
        ty: Any = type(target)
        container = ty.__new__(ty)
        if hasattr(target, "__dict__"):
            container.__dict__.update(target.__dict__)
        return container


def dict_in_words(difference: Difference) -> str:
    """Describes the missing keys."""
    return (
        "The target dict keys and state dict keys do not match, target dict"
        f" contains keys {set(difference.expected).difference(difference.state.keys())} which"
        f" are not present in state dict at path {difference.path}"
    )


# list, tuple and their subclasses


def list_children(sequence: Any) -> dict[str, Any]:
    """Returns the elements of a sequence, with indices as strings."""
    return {str(index): child for index, child in enumerate(sequence)}


def _make_list(target: Any, new: dict[str, Any]) -> Any:
    if type(target) is list:
        return list(new.values())
    container = _copied(target)
    list.__setitem__(container, slice(None), list(new.values()))
    return container


def _list_in_words(difference: Difference) -> str:
    if len(difference.state) == len(difference.expected):
        return children_in_words(difference)
    return (
        "The size of the list and the state dict do not match,"
        f" got {len(difference.expected)} and {len(difference.state)} "
        f"at path {difference.path}"
    )


def children_in_words(difference: Difference) -> str:
    """Describes the names of all children."""
    return (
        f"The children of the target {type(difference.target).__name__} and of the state do not "
        f"match, got {sorted(difference.expected)} and {sorted(map(str, difference.state))} at "
        f"path {difference.path}"
    )


# namedtuples


def _upgrade_namedtuple(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Converts the form in which flax wrote namedtuples before 2022."""
    if set(state) != {"name", "fields", "values"}:
        return state
    names, values = state["fields"], state["values"]
    if not isinstance(names, Mapping) or not isinstance(values, Mapping):
        return state
    return {name: values[index] for index, name in names.items() if index in values}


def _namedtuple_in_words(difference: Difference) -> str:
    return (
        "The field names of the state dict and the named tuple do not match,"
        f" got {set(difference.state)} and {set(difference.expected)} at path {difference.path}"
    )


DICT = NodeKind(dict_children, _make_dict, dict_in_words, more_allowed=True)

LIST = NodeKind(list_children, _make_list, _list_in_words)

TUPLE = NodeKind(list_children, lambda _, new: tuple(new.values()), _list_in_words)

NAMEDTUPLE = NodeKind(
    lambda value: _attributes(value, value._fields),
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


# dataclasses and structs of flax


def _attributes(value: Any, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def struct_fields(value: Any) -> list[str]:
    """Returns the names of the fields of a flax struct that hold data."""
    fields = dataclasses.fields(value)
    return [field.name for field in fields if field.metadata.get("pytree_node", True)]


def data_fields(value: Any) -> list[str]:
    """Returns the names of the fields of a dataclass that are not marked as static for JAX."""
    fields = dataclasses.fields(value)
    return [field.name for field in fields if not field.metadata.get("static", False)]


def make_dataclass(target: Any, new: dict[str, Any]) -> Any:
    """Returns a copy of a dataclass with new values in some fields."""
    # Runs neither __init__ nor __post_init__: the fields were saved after these. Other attributes,
    # such as cached properties, stay with the template.
    copied = object.__new__(type(target))
    for field in dataclasses.fields(target):
        if field.name in new:
            object.__setattr__(copied, field.name, new[field.name])
        elif hasattr(target, field.name):
            object.__setattr__(copied, field.name, getattr(target, field.name))
    return copied


def _dataclass_in_words(difference: Difference) -> str:
    ty = type(difference.target).__name__
    for name in difference.expected:
        if name not in difference.state:
            return (
                f"Missing field {name} in state dict while restoring"
                f" an instance of {ty}, at path {difference.path}"
            )
    unknown = [str(name) for name in difference.state if name not in difference.expected]
    return (
        f'Unknown field(s) "{",".join(unknown)}" in state dict while'
        f" restoring an instance of {ty} at path {difference.path}"
    )


DATACLASS = NodeKind(
    lambda value: _attributes(value, data_fields(value)), make_dataclass, _dataclass_in_words
)

STRUCT = NodeKind(
    lambda value: _attributes(value, struct_fields(value)),
    lambda target, new: target.replace(**new),
    _dataclass_in_words,
)


def fields_of(value: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass or namedtuple, by name."""
    return _attributes(value, _field_names(type(value)))


def _field_names(ty: Any) -> list[str]:
    if issubclass(ty, tuple):
        return list(ty._fields)
    return [field.name for field in dataclasses.fields(ty)]


def from_fields(ty: Any, fields: dict[str, Any]) -> Any:
    """Builds a dataclass or namedtuple from fields; missing fields get their defaults."""
    if type(fields) is not dict:  # lookups in other types may be slow
        raise ValueError(f"expected a dict of fields, found {type(fields).__name__}")
    names = _field_names(ty)
    defaults = {name: default_of(ty, name) for name in names if name not in fields}
    if not fields.keys() <= set(names) or not all(defaults.values()):
        raise ValueError(f"expected the fields {sorted(names)}, found {sorted(fields)}")
    values = {name: fields[name] if name in fields else defaults[name][0]() for name in names}
    is_tuple = issubclass(ty, tuple)
    return namedtuple_of(ty, values.values()) if is_tuple else with_attributes(ty, values)


# The default factories that a file may cause to run by naming a type: they are cheap.
_FACTORIES: tuple[Any, ...] = (
    *(None, bool, int, float, complex, str, bytes),
    *(tuple, list, dict, set, frozenset),
)


def is_inert_factory(factory: Any) -> bool:
    """Returns whether a file may cause a default factory to run."""
    return any(factory is known for known in _FACTORIES)


def default_of(ty: Any, name: str) -> list[Callable[[], Any]]:
    """Returns the factory of a field's default in a list, which is empty if there is none.

    Factories of libraries are ignored, since a file without the field would call them.
    """
    named: dict[str, Any] = getattr(ty, "_field_defaults", {})
    if name in named:
        return [lambda: named[name]]
    for field in dataclasses.fields(ty) if dataclasses.is_dataclass(ty) else ():
        if field.name != name:
            continue
        factory = field.default_factory
        if factory is not dataclasses.MISSING:
            return [factory] if library_of_type(ty) is None or is_inert_factory(factory) else []
        if field.default is not dataclasses.MISSING:
            return [functools.partial(getattr, field, "default")]
    return []


def is_generated(function: Any) -> bool:
    """Returns whether `dataclasses` generated a function, which only stores or compares fields."""
    return getattr(getattr(function, "__code__", None), "co_filename", "") == "<string>"


def has_setter(ty: type, name: str) -> bool:
    """Returns whether setting an attribute runs code of the type; slots do not."""
    attribute = next((vars(base)[name] for base in ty.__mro__ if name in vars(base)), None)
    return hasattr(type(attribute), "__set__") and not isinstance(attribute, MemberDescriptorType)


def with_attributes(ty: type, attributes: dict[str, Any]) -> Any:
    """Creates an object with attributes, without running code of its type."""
    new: Any = object.__new__(ty)
    for name, value in attributes.items():
        object.__setattr__(new, name, value)
    return new
