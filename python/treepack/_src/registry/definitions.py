"""Describes static data by registered types, and by the definitions of their types.

Members of enums are stored by name, dataclasses and namedtuples by field, other subclasses of tuple
by item. They are rebuilt without running code of their types.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import operator
from collections.abc import Callable, Iterable
from types import MemberDescriptorType
from typing import Any, NamedTuple

from treepack._src.interop import flax
from treepack._src.interop import jax as _jax
from treepack._src.leaves.leaves import as_plain
from treepack._src.registry.fields import field_names, fields_of, from_fields
from treepack._src.registry.library_types import library_name
from treepack._src.registry.names import Names, default_name, reads_nothing


class Auxdata(NamedTuple):
    """A registered type of static data.

    Attributes:
      by_program: Whether the program registered it as static data.
      by_code: Whether `decode` is a function of the program.
    """

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]
    by_program: bool = True
    by_code: bool = False


AUXDATA: Names[Auxdata] = Names("auxdata", lambda entry: entry._replace(decode=reads_nothing))

FUNCTIONS: Names[Any] = Names("function", lambda _: None)

# Values of these types have data besides attributes.
_BUILTIN = (tuple, list, dict, set, frozenset, str, bytes, bytearray, int, float, complex)

# Only their own `__new__` makes values of these types.
MADE_BY_NEW = (*_BUILTIN, BaseException)


def is_definition(ty: type) -> bool:
    if issubclass(ty, enum.Enum) or (issubclass(ty, tuple) and ty is not tuple):
        return True
    return (
        dataclasses.is_dataclass(ty)
        and not issubclass(ty, _BUILTIN)
        # Callables are code. `__del__` and setters of fields would run on values that are created
        # without `__init__`.
        and not any({"__call__", "__del__"} & vars(base).keys() for base in ty.__mro__)
        and not any(has_setter(ty, field.name) for field in dataclasses.fields(ty))
        and not flax.is_graph_definition_type(ty)
        and not flax.is_linen_module_type(ty)
    )


def has_setter(ty: type, name: str) -> bool:
    attribute = next((vars(base)[name] for base in ty.__mro__ if name in vars(base)), None)
    return hasattr(type(attribute), "__set__") and not isinstance(attribute, MemberDescriptorType)


def name_and_parts(value: Any) -> tuple[str, Any] | None:
    ty = type(value)
    named = AUXDATA.named(ty)
    if named is not None:
        is_whole = named[1].by_code or not more_attributes(value)
        return (named[0], named[1].encode(value)) if is_whole else None
    parts = parts_of(value)
    if parts is None:
        return None
    return library_name(ty, is_definition) or default_name(ty), parts


def parts_of(value: Any) -> Any:
    ty = type(value)
    if not is_definition(ty):
        return None
    if isinstance(value, enum.Enum):
        return member_name(value)
    if more_attributes(value):
        return None
    if isinstance(value, tuple) and not _jax.is_namedtuple(ty):
        return tuple(tuple.__iter__(value))
    return fields_of(value) if all(hasattr(value, name) for name in field_names(ty)) else None


def more_attributes(value: Any) -> list[str]:
    """Returns the attributes that are not fields, which a value of the definition would lose."""
    if isinstance(value, enum.Enum):
        return []
    fields = {*field_names(type(value))}
    return [name for name in attributes(value) if name not in fields]


def part_of(value: Any, name: str) -> tuple[Any] | None:
    named = AUXDATA.named(type(value))
    value = value if named is None else named[1].encode(value)
    ty: Any = type(value)
    if ty is dict:
        return (value[name],) if name in value else None
    if _jax.is_namedtuple(ty):
        name = str(ty._fields.index(name)) if name in ty._fields else ""
    if ty is list or issubclass(ty, tuple):
        base: Any = list if ty is list else tuple  # whose methods a subclass may replace
        index = int(name) if name.isdecimal() and len(name) < _MOST_DIGITS else -1
        is_item = 0 <= index < base.__len__(value) and str(index) == name
        return (base.__getitem__(value, index),) if is_item else None
    if not is_definition(ty) or name not in field_names(ty):
        return None
    return (getattr(value, name),) if hasattr(value, name) else None


# The digits of an index, with room to spare.
_MOST_DIGITS = 20


def plain_parts(value: Any) -> Any:
    if AUXDATA.named(type(value)) is not None:
        return None
    if isinstance(value, enum.Enum):
        return value.value if type(value.value) in (str, int, float, bool) else value.name
    parts = parts_of(value)
    plain = as_plain(value)
    return parts if plain is None else plain[1](value)


def attributes(value: Any) -> Iterable[str]:
    ty = type(value)
    slots = (name for name in slots_of(ty) if hasattr(value, name))
    for name in [*getattr(value, "__dict__", {}), *slots]:
        is_cached = isinstance(getattr(ty, name, None), functools.cached_property)  # noqa: TID251  # of programs
        if not is_cached and name not in ("__dict__", "__weakref__", "__orig_class__"):
            yield name


def slots_of(ty: type) -> list[str]:
    slots = ((base, vars(base).get("__slots__", ())) for base in ty.__mro__)
    return [
        _mangled(base, name)
        for base, some in slots
        for name in ((some,) if isinstance(some, str) else some)
    ]


def _mangled(owner: type, name: str) -> str:
    is_private = name.startswith("__") and not name.endswith("__")
    return f"_{owner.__name__.lstrip('_')}{name}" if is_private else name


def made_of(ty: Any, parts: Any) -> Any:
    """Runs no code of the type."""
    if issubclass(ty, enum.Enum):
        return member(ty, parts)
    if _jax.is_namedtuple(ty) or not issubclass(ty, tuple):
        return from_fields(ty, parts)
    if type(parts) is not tuple:
        raise ValueError(f"expected a tuple, found a {type(parts).__name__}")
    return tuple.__new__(ty, parts)


def member_name(member: enum.Enum) -> str | int:
    # Combinations of flags have no name.
    value = member.value
    if isinstance(member, enum.Flag) and isinstance(value, int):
        if value & ~_bits(type(member)):
            raise TypeError(
                f"{member!r:.100} has bits that no member of its enum has: call "
                "treepack.register_auxdata on the enum, with encode= and decode="
            )
        return value
    return member.name


def member(ty: type[enum.Enum], name: str | int) -> enum.Enum:
    if type(name) is str and name in ty.__members__:
        return ty.__members__[name]
    if type(name) is int and issubclass(ty, enum.Flag) and not name & ~_bits(ty):
        return ty(name)
    text = repr(name)[:100] if type(name) in (str, int) else f"a {type(name).__name__}"
    raise ValueError(f"{text} is not a member of {ty.__qualname__}")


def _bits(ty: type[enum.Flag]) -> int:
    """Returns all bits that members have. Enums cache each new combination forever."""
    return functools.reduce(operator.or_, (member.value for member in ty.__members__.values()), 0)
