"""Replaces static data that cannot be stored with placeholders, and restores them when loading.

A `TrainState` holds its optimizer, a module a lambda: code that only the program can supply. A
`Hole` is their placeholder in files; a template or `load(static=...)` supplies the value.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import treepack._core as core
from treepack._src import paths as _paths
from treepack._src.interop import equinox, flax
from treepack._src.interop.libraries import LIBRARIES
from treepack._src.pytree.containers import is_namedtuple
from treepack._src.pytree.kinds import kind_of
from treepack._src.pytree.left_out import LeftOut
from treepack._src.registry.code import holds_arrays, is_code
from treepack._src.registry.definitions import made_of, name_and_parts
from treepack._src.registry.libraries import library_of
from treepack._src.registry.names import OlderDefinitionError, default_name
from treepack.errors import DecodeError, HoleError


class Hole(NamedTuple):
    """The placeholder of a value that was not saved, or whose type is not registered.

    Attributes:
      field: The field of the value, or a path that begins with the field if the value is inside its
        data; empty for all static data of a node or for a leaf, `None` for the node itself without
        its children.
      description: A description of the value.
      name: The name of its type, if the value was saved.
      parts: The parts of the value, if it was saved; see `definitions.py`.
    """

    field: str | None
    description: str
    name: str | None = None
    parts: Any = None


# The maximum depth of a value in a file; a value that contains itself exceeds it.
_MOST_NESTED = 32

# The remedy in errors about static data that cannot be stored.
OR_SKIP = (
    ', or leave it out with static="skip" and supply it again with a template or load(static=...)'
)


def _check_has_no_arrays(value: Any) -> None:
    """Raises a TypeError if code holds arrays, which would be lost with it."""
    if holds_arrays(value):
        raise TypeError(
            f"{_described(value)} holds arrays, which would be lost if it were left out as code: "
            "make them leaves of the tree, such as arguments of a jax.tree_util.Partial, or "
            "replace it with None"
        )


def _check_has_no_data(value: Any, left_out: LeftOut) -> None:
    """Raises a TypeError if data would be lost with code that is left out."""
    _check_has_no_arrays(value)
    if left_out.static != "skip" and not is_code(value):
        raise TypeError(
            f"{_described(value)} has data, which would be lost if it were left out as code: make "
            f"them leaves of the tree, such as arguments of a jax.tree_util.Partial{OR_SKIP}"
        )


def with_holes(values: dict[str, Any], left_out: LeftOut, where: str = "") -> dict[str, Any]:
    """Replaces values that cannot be stored with placeholders, as far as they may be left out."""
    if left_out.static == "error":
        return values
    return {field: _with_holes(value, [field], left_out, where) for field, value in values.items()}


def in_place_of(field: str, code: Any, left_out: LeftOut) -> Hole:
    """Returns the placeholder for code in a field.

    Raises:
      TypeError: If code must not be left out, or has data.
    """
    if left_out.static == "error":
        raise TypeError(f"the field {field!r}: cannot save {_described(code)}{OR_SKIP}")
    _check_has_no_data(code, left_out)
    return _hole(code, [field])


def auxdata_with_holes(
    auxdata: Any,
    left_out: LeftOut,
    fields: Sequence[str] | None,
    nodetype: type | None,
    where: str,
) -> Any:
    """Replaces values in auxdata like `with_holes`."""
    if left_out.static == "error":
        return auxdata
    labels = _labels(auxdata, fields, nodetype)
    if labels is None:
        return _with_holes(auxdata, [], left_out, where)
    values = tuple(with_holes(labels.values(auxdata), left_out, where).values())
    return (*auxdata[:-1], values) if labels.nested else values


def _with_holes(value: Any, path: list[str], left_out: LeftOut, where: str) -> Any:
    try:
        core.encode_value(value)
    except OlderDefinitionError:
        return value
    except (TypeError, ValueError):
        pass
    else:
        return value
    if len(path) > _MOST_NESTED:
        return value
    if callable(value):
        try:
            _check_has_no_arrays(value)
        except TypeError as error:
            raise TypeError(f"{where}{_paths.text(path)}: {error}") from None
    if is_code(value):
        return _hole(value, path)
    if type(value) in (tuple, list):
        return type(value)(
            _with_holes(part, [*path, str(index)], left_out, where)
            for index, part in enumerate(value)
        )
    if type(value) is dict and all(type(key) is str for key in value):
        return {
            key: _with_holes(part, [*path, key], left_out, where) for key, part in value.items()
        }
    named = name_and_parts(value)
    if named is not None:
        name, parts = named
        # No repr: the repr of a set differs between processes, which may save together.
        description = type(value).__name__
        return Hole(_text(path), description, name, _with_holes(parts, path, left_out, where))
    # A bare object in a node of a library has no data: it is a marker, as in equinox's
    # `StateIndex`.
    is_mark = type(value) is object and where.partition(".")[0] in LIBRARIES
    return _hole(value, path) if is_mark or left_out.static == "skip" else value


def _hole(value: Any, path: list[str]) -> Hole:
    return Hole(_text(path), _described(value))


def _text(path: list[str]) -> str:
    return _paths.text(path) if path else ""


class Code:
    """Represents the type of leaves and nodes that are code in files."""


def hole_of(code: Any, left_out: LeftOut) -> Hole:
    """Returns the placeholder for a leaf or node that is code.

    Raises:
      TypeError: If the code has data.
    """
    _check_has_no_data(code, left_out)
    left_out.has_code = True
    return _hole(code, [])


def check_field(field: str, value: Any, where: str = "") -> None:
    """Raises a TypeError that names a field if its value cannot be stored."""
    try:
        core.encode_value(value)
    except (TypeError, ValueError) as reason:
        raise TypeError(f"{where}the field {field!r}: {reason}{OR_SKIP}") from None


def by_field(
    auxdata: Any, fields: Sequence[str] | None, nodetype: type | None = None
) -> dict[str, Any]:
    """Returns static data by field if they are a tuple of fields, as for most types."""
    labels = _labels(auxdata, fields, nodetype)
    return {} if labels is None else labels.values(auxdata)


class _Labels(NamedTuple):
    """The names of static data in a tuple, or in the tuple that is its last element."""

    names: Sequence[str]
    nested: bool

    def values(self, auxdata: Any) -> dict[str, Any]:
        values = auxdata[-1] if self.nested else auxdata
        return dict(zip(self.names, values, strict=True))


def _labels(auxdata: Any, fields: Sequence[str] | None, nodetype: type | None) -> _Labels | None:
    if type(auxdata) is not tuple:
        return None
    if not fields and nodetype is not None:
        names = flax.static_names(nodetype, auxdata)
        if names is not None:
            return _Labels(names, nested=True)
        fields = equinox.static_names(nodetype)
    if not fields or len(auxdata) != len(fields):
        return None
    return _Labels(fields, nested=False)


def _described(value: Any) -> str:
    """Describes a value, with the same text in each run of a program."""
    try:
        text = " ".join(re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value)).split())
    except Exception:  # code of the program may raise anything
        text = "?"
    return f"{type(value).__name__}: {text:.60}"


# Takes a node, returns its static data in their saved form: by field, and whole under "".
StaticOf = Callable[[Any], dict[str, Any]]


class Unfilled(NamedTuple):
    """Placeholders of a node without values: descriptions, suggestions for `static=`, and hints.

    Also the names of types that need only a registration.
    """

    lines: list[str]
    fillings: list[str]
    hints: list[str]
    names: list[str]


class Fillings:
    """The values for the placeholders of one load, and the types of its nodes.

    Attributes:
      static: Values by path, or a tree like the saved tree.
      by_path: The values, by the parts of their paths.
      types: The unregistered types in the tree by name; `None` before the first lookup.
    """

    def __init__(self, static: Any):
        self.static = static
        self.by_path: dict[tuple[str, ...], Any] = {}
        if isinstance(static, Mapping):
            items = [(key, static[key]) for key in static if isinstance(key, (str, tuple))]
            self.by_path = {tuple(_paths.parts(key)): value for key, value in items}
        self.types: dict[str, list[Any]] | None = None
        self._paths: list[str] | None = None
        self._children: dict[int, tuple[Any, dict[str, Any]]] = {}

    @classmethod
    def of(cls, static: Any) -> Fillings | None:
        return None if static is None else cls(static)

    @property
    def paths(self) -> list[str]:
        """The paths of the values."""
        if self._paths is None:
            self._paths = [_paths.text(parts) for parts in self.by_path]
        return self._paths

    def below(self, node: Any, parts: Sequence[str]) -> tuple[Any] | None:
        """Returns the node at a path below another one, in a 1-tuple; `None` if it is missing."""
        for part in parts:
            _, children = self._children.get(id(node)) or (None, None)
            if children is None:
                kind = kind_of(node)
                children = kind.children(node) if kind is not None else {}
                self._children[id(node)] = node, children
            if part not in children:
                return None
            node = children[part]
        return (node,)


# Rebuilds a value from the name of its type and its parts (as saved, and with placeholders
# replaced), in a 1-tuple; `None` for unknown names.
Known = Callable[[str, Any, Any], tuple[Any] | None]


def fill(
    value: Any,
    path: list[str],
    fillings: Fillings | None,
    ty: type,
    static_of: StaticOf,
    known: Known,
    described: int | None,
) -> tuple[Any, Unfilled | None]:
    """Replaces the placeholders in static data of a node.

    Args:
      value: The data: a placeholder, or a container with placeholders.
      path: The keys that lead to the node.
      fillings: The values for the placeholders.
      ty: The type of the node.
      static_of: Returns the static data of a node.
      known: Rebuilds values of types that the program knows.
      described: The number of placeholders that an error already describes; `None` raises without a
        description.

    Returns:
      The data, and a description of the remaining placeholders.

    Raises:
      HoleError: If placeholders remain, and `described` is `None`.
    """
    filling = _Filling(path, fillings or Fillings(None), ty, static_of, known)
    found = filling.fill(value)
    if not filling.missing:
        return found, None
    if described is None:
        raise HoleError("static data were not saved: pass a target or static= that supplies them")
    return found, filling.unfilled(described)


def hole_error(unfilled: list[Unfilled]) -> HoleError:
    """Returns the error about all placeholders without values."""
    lines = [line for node in unfilled for line in node.lines]
    fillings = [filling for node in unfilled for filling in node.fillings]
    hints = [hint for node in unfilled for hint in node.hints]
    remedies = _remedies(dict.fromkeys(name for node in unfilled for name in node.names))
    return HoleError(
        f"{_joined(lines, '; ')}: {remedies}pass a target that has them, or static= a tree that "
        f'has them, or static={{{_joined(fillings, ", ")}}}, or containers="plain" to get dicts'
        f"{''.join([*dict.fromkeys(hints)][:_MOST_SHOWN])}"
    )


def _remedies(names: Iterable[str]) -> str:
    """Returns the remedies for unregistered types, followed by `or`."""
    libraries = {name: library_of(name) if ":" in name else None for name in names}
    remedies = [f"import {name}" for name in dict.fromkeys(libraries.values()) if name is not None]
    own = [repr(name) for name, library in libraries.items() if library is None]
    if own:
        remedies.append(f"call treepack.register_auxdata on {_joined(own, ', ')}")
    return "".join(f"{remedy}, or " for remedy in remedies)


# The maximum number of placeholders in a message; more are only counted.
_MOST_SHOWN = 30


def _joined(parts: list[str], separator: str) -> str:
    more = len(parts) - _MOST_SHOWN
    return separator.join(parts[:_MOST_SHOWN]) + (f"{separator}and {more} more" if more > 0 else "")


class _Filling:
    """The arguments of `fill`, and the placeholders without a value so far, with their paths."""

    def __init__(
        self, parts: list[str], fillings: Fillings, ty: type, static_of: StaticOf, known: Known
    ):
        self.parts = parts
        self.fillings = fillings
        self.ty = ty
        self.static_of = static_of
        self.known = known
        self.missing: list[tuple[Hole, list[str]]] = []

    def fill(self, value: Any) -> Any:
        """Replaces the placeholders that have values."""
        if type(value) is Hole:
            inside = _paths.parts(value.field) if value.field else []
            parts = self.fill(value.parts)
            if value.name is not None and (known := self.known(value.name, value.parts, parts)):
                return known[0]
            found = self._by_path(value, inside)
            found = found or self._in_template(value, inside, self.fillings.static, 0)
            if found is not None:
                return self._like(found[0], value.name, parts)
            self.missing.append((value, inside))
            return value
        if isinstance(value, tuple):
            return tuple.__new__(type(value), map(self.fill, tuple.__iter__(value)))
        if type(value) is list:
            return [self.fill(part) for part in value]
        if type(value) is dict:
            return {key: self.fill(part) for key, part in value.items()}
        return value

    def _like(self, found: Any, name: str | None, parts: Any) -> Any:
        """Returns the value found; rebuilds it from saved parts if they have the same type."""
        ty = type(found)
        if default_name(ty) != name:
            return found
        try:
            return made_of(ty, parts)
        except Exception as error:  # another definition of the type may raise anything
            raise DecodeError(f"static data of type {name} cannot be restored: {error}") from error

    def _by_path(self, hole: Hole, inside: list[str]) -> tuple[Any] | None:
        """Finds the value of a placeholder in a dict, at its path or inside a parent's value."""
        whole = (*self.parts, *inside)
        by_path = self.fillings.by_path
        for count in range(len(whole), -1, -1) if by_path else ():
            if whole[:count] not in by_path:
                continue
            value = by_path[whole[:count]]
            if count > len(self.parts):
                found = _inside(value, inside[count - len(self.parts) :])
            else:
                found = self._in_template(hole, inside, value, count)
                if found is None and count == len(whole) and hole.field == "":
                    found = (value,)  # all static data of a node, or a leaf
            if found is not None:
                return found
        return None

    def _in_template(
        self, hole: Hole, inside: list[str], template: Any, count: int
    ) -> tuple[Any] | None:
        """Finds the value of a placeholder in a tree like the saved tree, below `count` keys."""
        below = self.fillings.below(template, self.parts[count:])
        if below is None or template is None:
            return None
        (node,) = below
        if self.ty is Code:
            return (node,) if kind_of(node) is None or is_code(node) else None
        return self._of_node(hole, inside, node)

    def _of_node(self, hole: Hole, inside: list[str], node: Any) -> tuple[Any] | None:
        """Returns the value of a placeholder from a node like the saved node."""
        if hole.field is None:
            return (node,) if default_name(type(node)) == hole.description else None
        # A subclass has the same fields, but may have other static data.
        if type(node) is not self.ty and not (inside and isinstance(node, self.ty)):
            return None
        # A flatten function may return a different value than the field.
        static = self.static_of(node)
        if inside and inside[0] in static:
            return _inside(static[inside[0]], inside[1:])
        found = _inside(static[""], inside) if "" in static else None
        return found or (_inside(node, inside) if inside else None)

    def unfilled(self, described: int) -> Unfilled:
        """Describes the remaining placeholders; an error already describes `described` others."""
        paths = self.fillings.paths
        found = Unfilled([], [], [], [])
        for number, (hole, inside) in enumerate(self.missing, described):
            if hole.name is None:
                reason = f"were not saved ({hole.description})"
            else:
                reason = f"are of the unregistered type {hole.name!r}"
                found.names.append(hole.name)
            if number >= _MOST_SHOWN:  # they are only counted
                found.lines.append("")
                found.fillings.append("")
                continue
            place = _paths.text([*self.parts, *inside])
            found.lines.append(f"at {place}: the static data {reason}")
            found.fillings.append(f"{place!r}: {self._text(hole)}")
            if issubclass(self.ty, functools.partial) and not hole.description.startswith("method"):
                found.hints.append("; treepack.register_function, called before the save, keeps it")
            if place in paths:
                found.hints.append(
                    f"; the value in static= for {place!r} is not {self._expected(hole)}"
                )
            else:
                near = difflib.get_close_matches(place, paths, n=1)
                found.hints.extend(f"; is {path!r} in static= meant for {place}?" for path in near)
        return found

    def _text(self, hole: Hole) -> str:
        return "..." if hole.field or self.ty is Code else f"{self._expected(hole)} like it"

    def _expected(self, hole: Hole) -> str:
        name = hole.description if hole.field is None else default_name(self.ty)
        return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _inside(value: Any, parts: Sequence[str]) -> tuple[Any] | None:
    """Returns the part of static data at a path, in a 1-tuple; `None` if it is missing."""
    for part in parts:
        if isinstance(value, Mapping):
            value = {str(key): item for key, item in value.items()}.get(part, Code)
        elif isinstance(value, (list, tuple)) and not is_namedtuple(type(value)):
            value = dict(zip(map(str, range(len(value))), value, strict=True)).get(part, Code)
        elif part.startswith("__"):  # the name comes from a file
            return None
        else:
            value = getattr(value, part, Code)
        if value is Code:
            return None
    return (value,)
