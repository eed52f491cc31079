"""Replaces static data that cannot be stored with placeholders; `lookups.py` restores them.

A `TrainState` holds its optimizer, a module a lambda: code that only the program can supply.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import treepack._core as core
from treepack._src import paths as _paths
from treepack._src.interop import equinox, flax
from treepack._src.interop.libraries import library_at
from treepack._src.options import Static, check
from treepack._src.pytree.ties import ties_of
from treepack._src.registry.code import holds_arrays, is_code
from treepack._src.registry.definitions import name_and_parts
from treepack._src.registry.names import OlderDefinitionError


class LeftOut:
    """Which static data and code one save leaves out, and which nodes it meets again.

    `Recorder` (`nodes.py`) is the form for the core, which calls `ties` after its walk.
    """

    def __init__(self, static: Static = "error"):
        check("static", static)
        self.static = static
        self.has_code = False
        self._met: set[int] = set()
        self._has_ties = False

    def meet(self, node: Any) -> None:
        if flax.is_graph_node_type(type(node)):
            self._has_ties |= id(node) in self._met
            self._met.add(id(node))

    def ties(self, tree: Any) -> list[tuple[str, str]]:
        return ties_of(tree) if self._has_ties else []


KEEPS_ALL = LeftOut()


class Placeholder(NamedTuple):
    """The placeholder of a value that was not saved, or whose type is not registered.

    Attributes:
      field: The field of the value, or a path that begins with it if the value is inside its data;
        empty for all static data of a node or for a leaf, `None` for the node itself without its
        children.
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
    if holds_arrays(value):
        raise TypeError(
            f"{_text_of(value)} holds arrays, which would be lost if it were left out as code: "
            "make them leaves of the tree, such as arguments of a jax.tree_util.Partial, or "
            "replace it with None"
        )


def _check_has_no_data(value: Any, left_out: LeftOut) -> None:
    _check_has_no_arrays(value)
    if left_out.static != "skip" and not is_code(value):
        raise TypeError(
            f"{_text_of(value)} has data, which would be lost if it were left out as code: make "
            f"them leaves of the tree, such as arguments of a jax.tree_util.Partial{OR_SKIP}"
        )


def with_placeholders(values: dict[str, Any], left_out: LeftOut, where: str = "") -> dict[str, Any]:
    if left_out.static == "error":
        return values
    return {
        field: _with_placeholders(value, [field], left_out, where)
        for field, value in values.items()
    }


def storable(values: dict[str, Any], left_out: LeftOut, where: str = "") -> dict[str, Any]:
    held = with_placeholders(values, left_out, where)
    for field, value in held.items():
        check_field(field, value, where)
    return held


def in_place_of(field: str, code: Any, left_out: LeftOut) -> Placeholder:
    if left_out.static == "error":
        raise TypeError(f"the field {field!r}: cannot save {_text_of(code)}{OR_SKIP}")
    _check_has_no_data(code, left_out)
    return _placeholder(code, [field])


def auxdata_with_placeholders(
    auxdata: Any,
    left_out: LeftOut,
    fields: Sequence[str] | None,
    nodetype: type | None,
    where: str,
) -> Any:
    if left_out.static == "error":
        return auxdata
    named = _named(auxdata, fields, nodetype)
    if named is None:
        return _with_placeholders(auxdata, [], left_out, where)
    by_name, is_nested = named
    values = tuple(with_placeholders(by_name, left_out, where).values())
    return (*auxdata[:-1], values) if is_nested else values


def _with_placeholders(value: Any, path: list[str], left_out: LeftOut, where: str) -> Any:
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
        return _placeholder(value, path)
    if type(value) in (tuple, list):
        return type(value)(
            _with_placeholders(part, [*path, str(index)], left_out, where)
            for index, part in enumerate(value)
        )
    if type(value) is dict and all(type(key) is str for key in value):
        return {
            key: _with_placeholders(part, [*path, key], left_out, where)
            for key, part in value.items()
        }
    named = name_and_parts(value)
    if named is not None:
        name, parts = named
        # No repr: the repr of a set differs between processes, which may save together.
        description = type(value).__name__
        return Placeholder(
            _text(path), description, name, _with_placeholders(parts, path, left_out, where)
        )
    # A bare object in a node of a library has no data: it is a marker, as in equinox's
    # `StateIndex`.
    is_mark = type(value) is object and library_at(where) is not None
    return _placeholder(value, path) if is_mark or left_out.static == "skip" else value


def _placeholder(value: Any, path: list[str]) -> Placeholder:
    return Placeholder(_text(path), _text_of(value))


def _text(path: list[str]) -> str:
    return _paths.text(path) if path else ""


class Code:
    """Represents the type of leaves and nodes that are code in files."""


def placeholder_of(code: Any, left_out: LeftOut) -> Placeholder:
    _check_has_no_data(code, left_out)
    left_out.has_code = True
    return _placeholder(code, [])


def check_field(field: str, value: Any, where: str) -> None:
    try:
        core.encode_value(value)
    except (TypeError, ValueError) as reason:
        raise TypeError(f"{where}the field {field!r}: {reason}{OR_SKIP}") from None


def by_field(auxdata: Any, fields: Sequence[str] | None, nodetype: type | None) -> dict[str, Any]:
    named = _named(auxdata, fields, nodetype)
    return {} if named is None else named[0]


def _named(
    auxdata: Any, fields: Sequence[str] | None, nodetype: type | None
) -> tuple[dict[str, Any], bool] | None:
    """Returns static data by name, and whether they are only the last part of the auxdata."""
    if type(auxdata) is not tuple:
        return None
    if not fields and nodetype is not None:
        names = flax.static_names(nodetype, auxdata)
        if names is not None:
            return dict(zip(names, auxdata[-1], strict=True)), True
        fields = equinox.static_names(nodetype)
    if not fields or len(auxdata) != len(fields):
        return None
    return dict(zip(fields, auxdata, strict=True)), False


def _text_of(value: Any) -> str:
    """Describes a value, with the same text in each run of a program."""
    try:
        text = " ".join(re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value)).split())
    except Exception:  # code of the program may raise anything
        text = "?"
    return f"{type(value).__name__}: {text:.60}"


# Takes a node, returns its static data in their saved form: by field, and whole under "".
StaticOf = Callable[[Any], dict[str, Any]]
