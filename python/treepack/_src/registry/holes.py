"""Static data without a name for files: left out when saved, filled in when loaded.

A `TrainState` holds its optimizer, a module a lambda: objects that only the program can make.
With `holes=True` a `Hole` takes the place of each, and `load(static=...)` fills it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import treepack._core as core
from treepack._src import paths as _paths
from treepack._src.options import holes_allowed
from treepack._src.pytree.kinds import kind_of
from treepack._src.registry.names import default_name
from treepack.errors import HoleError


class Hole(NamedTuple):
    """The place of a value that was not saved.

    Attributes:
      field: The field that has it; empty for all static data of a node, `None` for the node
        itself without its children.
      what: A description of the value.
    """

    field: str | None
    what: str


def with_holes(values: dict[str, Any]) -> dict[str, Any]:
    """Puts holes in the place of values that cannot be written, if holes are allowed."""
    if not holes_allowed():
        return values
    return {field: _value_or_hole(value, field) for field, value in values.items()}


# The end of errors about static data without a name.
OR_HOLES = "; or leave it out with holes=True, and fill it in with static= when loading"


def check_field(field: str, value: Any, where: str = "") -> None:
    """Raises a TypeError that names a field if its value cannot be written."""
    try:
        core.encode_value(value)
    except (TypeError, ValueError) as reason:
        raise TypeError(f"{where}the field {field!r}: {reason}{OR_HOLES}") from None


def by_field(value: Any, fields: Sequence[str] | None) -> dict[str, Any]:
    """Returns static data by field if they are a tuple of fields, as those of most types are."""
    if not fields or not isinstance(value, tuple) or len(value) != len(fields):
        return {}
    return dict(zip(fields, value, strict=True))


def auxdata_with_holes(auxdata: Any, fields: Sequence[str] | None) -> Any:
    """Puts holes in fields that cannot be written, or one in the place of all auxdata."""
    parts = by_field(auxdata, fields)
    if not parts:
        return _value_or_hole(auxdata, "")
    return tuple(_value_or_hole(part, field) for field, part in parts.items())


def _value_or_hole(value: Any, field: str) -> Any:
    try:
        core.encode_value(value)
    except (TypeError, ValueError):
        return Hole(field, _described(value))
    return value


def _described(value: Any) -> str:
    """Describes a value, in the same words whenever the same program runs."""
    try:
        text = re.sub(r" at 0x[0-9a-f]+", "", repr(value))
    except Exception:  # whatever code of the program raises
        text = "?"
    return f"{type(value).__name__}: {text:.60}"


# Takes a node, returns its static data in their saved form: by field, and under "" as a whole.
StaticOf = Callable[[Any], dict[str, Any]]


def fill(
    value: Any, path: list[str], static: Any, ty: type, static_of: StaticOf, in_words: bool
) -> Any:
    """Fills the holes in static data of a node.

    Args:
      value: The data: a hole, or a container with holes in it.
      path: The keys that lead to the node.
      static: Values for the holes by path; or a tree like the saved one.
      ty: The type of the node.
      static_of: Returns the static data of a node.
      in_words: Whether somebody reads the error's message.

    Raises:
      HoleError: If there is no value for some of the holes.
    """
    filling = _Filling(path, static, ty, static_of)
    found = filling.fill(value)
    if filling.missing:
        raise filling.error() if in_words else HoleError("static data were not saved")
    return found


class _Filling:
    """The arguments of `fill`, and the holes without a value so far, with their paths."""

    def __init__(self, parts: list[str], static: Any, ty: type, static_of: StaticOf):
        self.parts = parts
        self.static = static
        self.ty = ty
        self.static_of = static_of
        self.missing: list[tuple[Hole, str]] = []

    def fill(self, value: Any) -> Any:
        """Fills the holes that there is a value for."""
        if type(value) is Hole:
            whole = [*self.parts, value.field] if value.field else self.parts
            found = self._by_path(value, whole) or self._in_template(value)
            if found is not None:
                return found[0]
            self.missing.append((value, _paths.text(whole)))
            return value
        if isinstance(value, tuple):
            return tuple.__new__(type(value), map(self.fill, tuple.__iter__(value)))
        if type(value) is list:
            return [self.fill(part) for part in value]
        if type(value) is dict:
            return {key: self.fill(part) for key, part in value.items()}
        return value

    def _by_path(self, hole: Hole, whole: list[str]) -> tuple[Any] | None:
        if not isinstance(self.static, Mapping):
            return None
        for key, value in self.static.items():
            if isinstance(key, (str, tuple)) and _paths.parts(key) == whole:
                if hole.field:
                    return (value,)
                # All static data of a node, or a node that has them.
                return self._of_node(hole, value) or ((value,) if hole.field == "" else None)
        return None

    def _in_template(self, hole: Hole) -> tuple[Any] | None:
        """Looks for the value of a hole in a tree like the saved one."""
        node = self.static
        for part in self.parts:
            kind = kind_of(node)
            children = kind.children(node) if kind is not None else {}
            if part not in children:
                return None
            node = children[part]
        return self._of_node(hole, node)

    def _of_node(self, hole: Hole, node: Any) -> tuple[Any] | None:
        """Returns the value of a hole in a node like the saved one."""
        if hole.field is None:
            return (node,) if default_name(type(node)) == hole.what else None
        # A subclass has the fields as well, but perhaps other static data as a whole.
        if type(node) is not self.ty and not (hole.field and isinstance(node, self.ty)):
            return None
        # A flatten function may return something else than the field.
        static = self.static_of(node)
        if hole.field in static:
            return (static[hole.field],)
        return (getattr(node, hole.field),) if hasattr(node, hole.field) else None

    def error(self) -> HoleError:
        """Returns the error about the holes that are left."""
        paths = []
        if isinstance(self.static, Mapping):
            keys = [key for key in self.static if isinstance(key, (str, tuple))]
            paths = [_paths.text(_paths.parts(key)) for key in keys]
        lines, hints = [], []
        for hole, place in self.missing:
            lines.append(f"at {place}: the static data here were not saved ({hole.what})")
            if place in paths:
                hints.append(f"; the value in static= for {place!r} is not {self._expected(hole)}")
            else:
                near = difflib.get_close_matches(place, paths, n=1)
                hints += [f"; is {path!r} in static= meant for {place}?" for path in near]
        fill = ", ".join(f"{place!r}: {self._like(hole)}" for hole, place in self.missing)
        return HoleError(
            f"{'; '.join(lines)}; fill them with static={{{fill}}}, or static= a tree that has "
            f"them{''.join(hints)}"
        )

    def _like(self, hole: Hole) -> str:
        return "..." if hole.field else f"{self._expected(hole)} like it"

    def _expected(self, hole: Hole) -> str:
        return f"a {hole.what if hole.field is None else default_name(self.ty)}"
