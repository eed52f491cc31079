"""Defines codecs of static data, and checks of the parts that they decode.

Files may be hostile: parts must have exact types and are never converted, which could take forever.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

from treepack._src.interop.modules import found_at, imported
from treepack.errors import UnregisteredTypeError


class Codec(NamedTuple):
    """Encodes and decodes values of one kind.

    Attributes:
      fits: The type of the values, or a predicate.
      encode: Takes a value, returns its parts: a value that can be stored.
      types: The type of the parts; a tuple, if the parts are a tuple; see `as_parts`.
    """

    name: str
    fits: Any
    encode: Callable[[Any], Any]
    types: Any
    make: Callable[..., Any]

    def decode(self, parts: Any) -> Any:
        """The parts may be any value of a hostile file."""
        if type(self.types) is tuple:
            return self.make(*as_parts(self.types, parts))
        return self.make(parts if self.types is object else exactly(self.types, parts))


def instance(ty: type) -> Callable[[object], bool]:
    return lambda value: isinstance(value, ty)


def exactly(ty: type, value: Any) -> Any:
    if type(value) is not ty:
        raise ValueError(f"expected a {ty.__name__}, found a {type(value).__name__}")
    return value


def as_parts(types_of_parts: tuple[Any, ...], parts: Any) -> Any:
    if len(exactly(tuple, parts)) != len(types_of_parts):
        raise ValueError(f"expected {len(types_of_parts)} parts, found {len(parts)}")
    for expected, part in zip(types_of_parts, parts, strict=True):
        if expected is object:
            continue
        if type(part) not in (expected if type(expected) is tuple else (expected,)):
            raise ValueError(f"invalid part of type {type(part).__name__}")
    return parts


def counts(parts: Any) -> tuple[int, ...]:
    for part in exactly(tuple, parts):
        if type(part) is not int or not 0 <= part < 2**63:
            raise ValueError(
                f"expected a count from 0 to 2**63 - 1, found a value of type {type(part).__name__}"
            )
    checked: tuple[int, ...] = parts
    return checked


# The default factories that a file may cause to run by naming a type: they are cheap.
_FACTORIES: tuple[Any, ...] = (
    *(None, bool, int, float, complex, str, bytes),
    *(tuple, list, dict, set, frozenset),
)


def is_inert_factory(factory: Any) -> bool:
    return any(factory is known for known in _FACTORIES)


def checked_factory(factory: Any) -> Any:
    if not is_inert_factory(factory):
        raise ValueError(
            f"a file may name only builtin types as default factories, not a "
            f"{type(factory).__name__}"
        )
    return factory


def needed_at(module: str, name: str) -> Any:
    value = found_at(module, name)
    if value is None:
        raise UnregisteredTypeError(
            f"cannot find {module}.{name}: import {module}, in a version that has it", name
        )
    return value


def codec(name: str, fits: Any, encode: Any, types: Any, make: Callable[..., Any]) -> Codec:
    if isinstance(encode, str):
        encode = operator.attrgetter(*encode.split())
    return Codec(name, fits, encode, types, make)


def of_value(name: str, ty: Any, base: type) -> Codec:
    return Codec(name, ty, base, base, ty)


def of_attributes(name: str, ty: Any, **types: Any) -> Codec:
    return codec(name, ty, " ".join(types), tuple(types.values()), ty)


def of_class(
    path: str,
    encode: Any,
    types: Any,
    make: Callable[..., Any] = lambda ty, *parts: ty(*parts),
    *,
    name: str = "",
) -> Codec:
    """The codec is for objects of the class, not of subclasses; `make` takes it and the parts."""
    module, _, attribute = path.rpartition(".")

    def fits(value: object) -> bool:
        return type(value) is getattr(imported(module), attribute, None)

    def rebuild(*parts: Any) -> Any:
        return make(needed_at(module, attribute), *parts)

    return codec(name or path, fits, encode, types, rebuild)
