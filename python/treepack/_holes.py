"""Static data that have no name for files: left out when saved, filled in when loaded.

A `TrainState` holds its optimizer, a module a lambda: objects that only the program can make.
With `holes=True` a mark takes the place of each, and `load(static=...)` has to fill it.
"""

from __future__ import annotations

import contextlib
import difflib
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from treepack import _core, _paths
from treepack._nodes import kind_of
from treepack._nodes.code import Pruned
from treepack._nodes.pytree import flatten
from treepack.errors import TreepackError


class Hole(NamedTuple):
    """What stands for a value that was not saved.

    Attributes:
      field: The field that has it; nothing if it is all static data of a node, and `None` if it
        is the node itself, but for its children.
      what: What it was, in words.
    """

    field: str | None
    what: str


class _Local(threading.local):
    allowed: bool = False


_local = _Local()


@contextlib.contextmanager
def allowing(holes: bool) -> Iterator[None]:
    """Lets this thread leave out what cannot be written, or not."""
    outer, _local.allowed = _local.allowed, holes
    try:
        yield
    finally:
        _local.allowed = outer


def allowed() -> bool:
    """Tells whether this thread leaves out what cannot be written."""
    return _local.allowed


def left_out(values: dict[str, Any]) -> dict[str, Any]:
    """Returns values by field, with holes for what cannot be written if that is allowed."""
    if not allowed():
        return values
    return {field: _dug(value, field) for field, value in values.items()}


def dug(value: Any, fields: Sequence[str] | None) -> Any:
    """Returns static data with holes for what cannot be written; of a tuple of fields, in them."""
    if fields and isinstance(value, tuple) and len(value) == len(fields):
        return tuple(_dug(part, field) for part, field in zip(value, fields, strict=True))
    return _dug(value, "")


def _dug(value: Any, field: str) -> Any:
    try:
        _core.encode_value(value)
    except (TypeError, ValueError):
        return Hole(field, _described(value))
    return value


def _described(value: Any) -> str:
    """Returns what a value is: the same whenever the same program runs."""
    try:
        text = re.sub(r" at 0x[0-9a-f]+", "", repr(value))
    except Exception:  # whatever code of the program raises
        text = "?"
    return f"{type(value).__name__}: {text:.60}"


def filled(value: Any, path: str, static: Any) -> Any:
    """Returns static data of a node with its holes filled.

    Args:
      value: The data; holes are the whole of it, or parts of a tuple or dict.
      path: The path of the node.
      static: What the holes are filled with, by path; or a tree like the one that was saved.

    Raises:
      TreepackError: If there is nothing for a hole.
    """
    if type(value) is Hole:
        return _filling(value, path, static)
    if isinstance(value, tuple):
        parts = [filled(part, path, static) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if type(value) is list:
        return [filled(part, path, static) for part in value]
    if type(value) is dict:
        return {key: filled(part, path, static) for key, part in value.items()}
    return value


def _filling(hole: Hole, path: str, static: Any) -> Any:
    parts = _paths.parts(path)
    whole = [*parts, hole.field] if hole.field else parts
    place = _paths.text(whole)
    paths = []
    if isinstance(static, Mapping):
        for key, value in static.items():
            if isinstance(key, (str, tuple)):
                if _paths.parts(key) == whole:
                    return value
                paths.append(_paths.text(_paths.parts(key)))
    if static is not None:
        found, value = _in_template(static, parts, hole)
        if found:
            return value
    near = difflib.get_close_matches(place, paths, n=1)
    raise TreepackError(
        f"at {place}: the static data here were not saved ({hole.what}); fill them with "
        f"static={{{place!r}: ...}}, or static= a tree that has them"
        + (f"; is {near[0]!r} in static= meant for it?" if near else "")
    )


def _in_template(node: Any, parts: list[str], hole: Hole) -> tuple[bool, Any]:
    """Looks for what fills a hole in a tree like the one that was saved."""
    for part in parts:
        kind = kind_of(node)
        children = kind.children(node) if kind is not None else {}
        if part not in children:
            return False, None
        node = children[part]
    if hole.field is None:
        return True, node
    if isinstance(node, Pruned):
        functions = node.functions()
        return hole.field in functions, functions.get(hole.field)
    if hole.field:
        return hasattr(node, hole.field), getattr(node, hole.field, None)
    return True, flatten(node)[1].node_data()[1]
