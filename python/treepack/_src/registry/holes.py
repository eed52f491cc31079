"""Static data without a form in files: left out when saved, filled in when loaded.

A `TrainState` holds its optimizer, a module a lambda: code that only the program can make. A
`Hole` takes its place, and a template or `load(static=...)` fills it.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import treepack._core as core
from treepack._src import paths as _paths
from treepack._src.interop import equinox, flax
from treepack._src.interop.jax import is_array
from treepack._src.options import left_out
from treepack._src.pytree.containers import fields_of, is_namedtuple
from treepack._src.pytree.kinds import kind_of
from treepack._src.pytree.state_dict import leaves_of
from treepack._src.registry.names import OlderDefinitionError, default_name
from treepack.errors import HoleError


class Hole(NamedTuple):
    """The place of a value that was not saved.

    Attributes:
      field: The field that has it, or the path that begins with the field, if the value lies inside
        its data; empty for all static data of a node or for a leaf, `None` for the node itself
        without its children.
      what: A description of the value.
    """

    field: str | None
    what: str


# The end of errors about static data without a form.
OR_SKIP = '; or leave it out with static="skip"; a template, or load(static=...), brings it back'


def is_code(value: Any) -> bool:
    """Returns whether a value is code: only the program can make it, and it has no data to lose.

    Functions, classes and other callables are, definitions of models, and namedtuples and
    dataclasses of nothing else, such as the optimizers of optax.
    """
    if callable(value) or flax.is_graph_definition(value) or flax.is_linen_module(value):
        return True
    if not is_namedtuple(type(value)) and not dataclasses.is_dataclass(value):
        return False
    parts = [part for part in fields_of(value).values() if part is not None]
    return bool(parts) and all(map(is_code, parts))


def check_has_no_arrays(value: Any) -> None:
    """Raises a TypeError if code holds arrays, which would be lost with it."""
    if any(isinstance(leaf, np.ndarray) or is_array(leaf) for leaf in _held(value)):
        raise TypeError(
            f"{_described(value)} holds arrays, which would be lost if it were left out as code; "
            "use jax.tree_util.Partial, or make them leaves of the tree"
        )


def _held(value: Any) -> Iterator[Any]:
    """Yields the leaves of the data that code is bound to."""
    if isinstance(value, functools.partial):
        yield from _held(value.func)
        for part in (*value.args, *value.keywords.values()):
            yield from _held(part) if is_code(part) else _leaves(part)
    elif isinstance(value, types.MethodType):
        # Arrays in an object that is no pytree are none of the tree's.
        yield from _leaves(value.__self__) if kind_of(value.__self__) is not None else ()
    elif not isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        for part in getattr(value, "__dict__", {}).values():
            yield from () if is_code(part) else _leaves(part)


def _leaves(tree: Any) -> Iterator[Any]:
    return (leaf for _, leaf in leaves_of(tree, ()))


def with_holes(values: dict[str, Any], where: str = "") -> dict[str, Any]:
    """Puts holes in the place of values that have no form, as far as they may be left out."""
    if left_out() == "error":
        return values
    return {field: _with_holes(value, [field], where) for field, value in values.items()}


def auxdata_with_holes(
    auxdata: Any, fields: Sequence[str] | None, nodetype: type | None, where: str
) -> Any:
    """Puts holes in auxdata as `with_holes` does."""
    if left_out() == "error":
        return auxdata
    labels = _labels(auxdata, fields, nodetype)
    if labels is None:
        return _with_holes(auxdata, [], where)
    if labels.nested:
        return *auxdata[:-1], tuple(with_holes(labels.values(auxdata), where).values())
    return tuple(with_holes(labels.values(auxdata), where).values())


def _with_holes(value: Any, path: list[str], where: str) -> Any:
    try:
        core.encode_value(value)
    except OlderDefinitionError:
        return value
    except (TypeError, ValueError):
        pass
    else:
        return value
    if is_code(value):
        try:
            check_has_no_arrays(value)
        except TypeError as error:
            raise TypeError(f"{where}{_paths.text(path)}: {error}") from None
        return _hole(value, path)
    if type(value) in (tuple, list):
        return type(value)(
            _with_holes(part, [*path, str(index)], where) for index, part in enumerate(value)
        )
    if type(value) is dict and all(type(key) is str for key in value):
        return {key: _with_holes(part, [*path, key], where) for key, part in value.items()}
    return _hole(value, path) if left_out() == "skip" else value


def _hole(value: Any, path: list[str]) -> Hole:
    return Hole(_paths.text(path) if path else "", _described(value))


class Code:
    """The type, in files, of leaves and nodes that are code."""


def hole_of(code: Any) -> Hole:
    """Returns the hole in the place of a leaf, or of a node, that is code.

    Raises:
      TypeError: If it holds arrays.
    """
    check_has_no_arrays(code)
    return _hole(code, [])


def check_field(field: str, value: Any, where: str = "") -> None:
    """Raises a TypeError that names a field if its value cannot be written."""
    try:
        core.encode_value(value)
    except (TypeError, ValueError) as reason:
        raise TypeError(f"{where}the field {field!r}: {reason}{OR_SKIP}") from None


def by_field(
    auxdata: Any, fields: Sequence[str] | None, nodetype: type | None = None
) -> dict[str, Any]:
    """Returns static data by field if they are a tuple of fields, as those of most types are."""
    labels = _labels(auxdata, fields, nodetype)
    return {} if labels is None else labels.values(auxdata)


class _Labels(NamedTuple):
    """The names of the static data in a tuple, or in the tuple that is its last part."""

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
    """Describes a value, in the same words whenever the same program runs."""
    try:
        text = " ".join(re.sub(r" at 0x[0-9a-f]+", "", repr(value)).split())
    except Exception:  # whatever code of the program raises
        text = "?"
    return f"{type(value).__name__}: {text:.60}"


# Takes a node, returns its static data in their saved form: by field, and under "" as a whole.
StaticOf = Callable[[Any], dict[str, Any]]


class Unfilled(NamedTuple):
    """Holes of a node that nothing fills: where they are, what would fill them, and hints."""

    lines: list[str]
    fillings: list[str]
    hints: list[str]


def fill(
    value: Any, path: list[str], static: Any, ty: type, static_of: StaticOf, in_words: bool
) -> tuple[Any, Unfilled | None]:
    """Fills the holes in static data of a node.

    Args:
      value: The data: a hole, or a container with holes in it.
      path: The keys that lead to the node.
      static: Values for the holes by path; or a tree like the saved one.
      ty: The type of the node.
      static_of: Returns the static data of a node.
      in_words: Whether somebody reads about holes that are left.

    Returns:
      The data, and the holes that are left, in words.

    Raises:
      HoleError: If some are left, unless `in_words`.
    """
    filling = _Filling(path, static, ty, static_of)
    found = filling.fill(value)
    if filling.missing and not in_words:
        raise HoleError("static data were not saved")
    return found, filling.unfilled() if filling.missing else None


def hole_error(unfilled: list[Unfilled]) -> HoleError:
    """Returns the error about all holes that nothing fills."""
    lines = [line for node in unfilled for line in node.lines]
    fillings = [filling for node in unfilled for filling in node.fillings]
    hints = [hint for node in unfilled for hint in node.hints]
    return HoleError(
        f"{_joined(lines, '; ')}; pass a target that has them, or static= such a tree, or "
        f"static={{{_joined(fillings, ', ')}}}{''.join(hints[:_MOST_TOLD])}"
    )


# Of more holes, only the number is told.
_MOST_TOLD = 30


def _joined(parts: list[str], separator: str) -> str:
    more = len(parts) - _MOST_TOLD
    return separator.join(parts[:_MOST_TOLD]) + (f"{separator}and {more} more" if more > 0 else "")


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
            inside = _paths.parts(value.field) if value.field else []
            found = self._by_path(value, inside) or self._in_template(value, inside, self.static, 0)
            if found is not None:
                return found[0]
            self.missing.append((value, _paths.text([*self.parts, *inside])))
            return value
        if isinstance(value, tuple):
            return tuple.__new__(type(value), map(self.fill, tuple.__iter__(value)))
        if type(value) is list:
            return [self.fill(part) for part in value]
        if type(value) is dict:
            return {key: self.fill(part) for key, part in value.items()}
        return value

    def _by_path(self, hole: Hole, inside: list[str]) -> tuple[Any] | None:
        """Looks for the value of a hole at its path in a dict, or in what is at a path above."""
        if not isinstance(self.static, Mapping):
            return None
        whole = [*self.parts, *inside]
        above: dict[int, Any] = {}
        for key, value in self.static.items():
            if isinstance(key, (str, tuple)):
                parts = _paths.parts(key)
                if parts == whole[: len(parts)]:
                    above[len(parts)] = value
        for count in sorted(above, reverse=True):
            value = above[count]
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
        """Looks for the value of a hole in a tree like the saved one, below `count` keys."""
        node = template
        for part in self.parts[count:]:
            kind = kind_of(node)
            children = kind.children(node) if kind is not None else {}
            if part not in children:
                return None
            node = children[part]
        if self.ty is Code:
            return (node,) if kind_of(node) is None or is_code(node) else None
        return self._of_node(hole, inside, node)

    def _of_node(self, hole: Hole, inside: list[str], node: Any) -> tuple[Any] | None:
        """Returns the value of a hole in a node like the saved one."""
        if hole.field is None:
            return (node,) if default_name(type(node)) == hole.what else None
        # A subclass has the fields as well, but perhaps other static data as a whole.
        if type(node) is not self.ty and not (inside and isinstance(node, self.ty)):
            return None
        # A flatten function may return something else than the field.
        static = self.static_of(node)
        if inside and inside[0] in static:
            return _inside(static[inside[0]], inside[1:])
        found = _inside(static[""], inside) if "" in static else None
        return found or (_inside(node, inside) if inside else None)

    def unfilled(self) -> Unfilled:
        """Returns the holes that are left, in words."""
        paths = []
        if isinstance(self.static, Mapping):
            keys = [key for key in self.static if isinstance(key, (str, tuple))]
            paths = [_paths.text(_paths.parts(key)) for key in keys]
        told = Unfilled([], [], [])
        for hole, place in self.missing:
            told.lines.append(f"at {place}: the static data here were not saved ({hole.what})")
            told.fillings.append(f"{place!r}: {self._like(hole)}")
            if place in paths:
                told.hints.append(
                    f"; the value in static= for {place!r} is not {self._expected(hole)}"
                )
            else:
                near = difflib.get_close_matches(place, paths, n=1)
                told.hints.extend(f"; is {path!r} in static= meant for {place}?" for path in near)
        return told

    def _like(self, hole: Hole) -> str:
        return "..." if hole.field or self.ty is Code else f"{self._expected(hole)} like it"

    def _expected(self, hole: Hole) -> str:
        name = hole.what if hole.field is None else default_name(self.ty)
        return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _inside(value: Any, parts: Sequence[str]) -> tuple[Any] | None:
    """Returns the part of static data at a path, in a tuple; `None` if there is none."""
    for part in parts:
        if isinstance(value, Mapping):
            value = {str(key): item for key, item in value.items()}.get(part, Code)
        elif type(value) in (list, tuple):
            value = dict(zip(map(str, range(len(value))), value, strict=True)).get(part, Code)
        else:
            value = getattr(value, part, Code)
        if value is Code:
            return None
    return (value,)
