"""How a place in a tree is written: `params/encoder/0/kernel`, and `.` for the whole tree.

The parts are the keys of dicts, the numbers of elements, the names of fields. In a part, `~` is
written `~0` and `/` is written `~1`, as in JSON Pointer (RFC 6901); a part that is `.` is written
`~2`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from treepack._src.printable import printable
from treepack.errors import TreepackError

T = TypeVar("T")
N = TypeVar("N")

ROOT = "."


def text(parts: Iterable[str]) -> str:
    """Returns the path of these parts."""
    escaped = [_escaped(part) for part in parts]
    return "/".join(escaped) if escaped else ROOT


def join(path: str, part: str) -> str:
    """Appends a part to a path."""
    return _escaped(part) if path == ROOT else f"{path}/{_escaped(part)}"


def _escaped(part: str) -> str:
    return "~2" if part == ROOT else part.replace("~", "~0").replace("/", "~1")


def parts(path: Any) -> list[str]:
    """Returns the parts of a path, which is text or a key path of JAX.

    Raises:
      TypeError: If it is neither.
    """
    if isinstance(path, str):
        if path == ROOT:
            return []
        if "~" not in path:
            return path.split("/")
        return [
            part.replace("~2", ROOT).replace("~1", "/").replace("~0", "~")
            for part in path.split("/")
        ]
    if isinstance(path, (tuple, list)):
        return [entry if isinstance(entry, str) else key_name(entry) for entry in path]
    raise TypeError(f"a path is a string or a key path of JAX, not {path!r:.100}")


def literal(
    text: str, root: N, children: Callable[[N], Iterable[tuple[str, N]]]
) -> tuple[list[tuple[N, list[str]]], dict[str, list[str]]]:
    """Looks for places at a text in which nothing is escaped, as keys of haiku have slashes.

    Args:
      text: The text.
      root: Where it begins.
      children: Returns the names and places in a container; nothing of a leaf.

    Returns:
      The places and the parts of their paths; and the parts that lead to places on the way whose
      keys have slashes, by their text.
    """
    found: list[tuple[N, list[str]]] = []
    near: dict[str, list[str]] = {}
    if "/" not in text and "~" not in text:
        return found, near
    # Each place is here once at most: its path is one text.
    left: list[tuple[N, list[str], str]] = [(root, [], text)]
    while left:
        above, parts, rest = left.pop()
        for name, place in dict(children(above)).items():
            if "/" in name and len(near) < _MOST_NAMES:
                near["/".join([*parts, name])] = [*parts, name]
            if name == rest:
                found.append((place, [*parts, name]))
            elif rest.startswith(name) and rest[len(name)] == "/":
                left.append((place, [*parts, name], rest[len(name) + 1 :]))
    return found, near


# A search for similar names among more than these takes long.
_MOST_NAMES = 1000


def put(tree: dict[str, Any], parts: Sequence[str], leaf: Any) -> None:
    """Puts a leaf into nested dicts.

    Raises:
      TreepackError: A ValueError. If another leaf is above it, or in its place.
    """
    place: Any = tree
    for part in parts[:-1]:
        place = place.setdefault(part, {})
        if type(place) is not dict:
            raise TreepackError(f"a leaf would be at {printable(text(parts))}, below a leaf")
    if not parts or parts[-1] in place:
        raise TreepackError(f"a leaf would be at {printable(text(parts))}, where others are")
    place[parts[-1]] = leaf


def at_or_above(tree: Mapping[tuple[str, ...], T], path: str, entries: str | None) -> T | None:
    """Returns the entry for a path, or for the nearest place above it.

    Args:
      tree: The entries by the parts of their paths.
      path: The path.
      entries: The name of the entries in errors; with `None`, a missing entry is `None`.

    Raises:
      ValueError: If there is none.
    """
    names = tuple(parts(path))
    for count in range(len(names), -1, -1):
        if names[:count] in tree:
            return tree[names[:count]]
    if entries is None:
        return None
    raise ValueError(f"at {printable(path)}: the tree of {entries} has none for it")


def key_name(entry: Any) -> str:
    """Returns the name in an entry of a key path of any kind."""
    for attribute in ("key", "name", "idx"):
        if hasattr(entry, attribute):
            return str(getattr(entry, attribute))
    return str(entry)
