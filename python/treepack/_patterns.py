"""Which leaves are meant, by their paths: `select=` and `rename=` of `load` and `File.load`.

A pattern is a path. In it `*` stands for any text inside one part, `**` for any number of parts,
and `?` for one character. What it matches is meant with all below it: `params/*/kernel`, `params`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from treepack import _paths
from treepack._placement import leaves_of

# Takes the path of a leaf, tells whether it is meant.
Selects = Callable[[str], bool]

Select = str | tuple[Any, ...] | list[Any] | Callable[[str], object] | Mapping[Any, Any] | None
"""Which leaves: a pattern or several, a predicate of paths, or a pytree of bools."""

Rename = Mapping[str, str] | Callable[[str], str] | None
"""New names: patterns and what takes the place of what they match, or a function of paths."""


def selector(select: Any) -> Selects:
    """Returns what tells whether a leaf is meant.

    Raises:
      TypeError: If `select` is nothing of the kind.
    """
    if select is None:
        return lambda _: True
    if isinstance(select, str) or is_key_path(select):
        return _any_of([select])
    if isinstance(select, (list, set, frozenset, tuple)) and all(
        isinstance(part, str) or is_key_path(part) for part in select
    ):
        return _any_of(list(select))
    tree = dict(leaves_of(select, ()))
    if all(isinstance(leaf, _BOOLS) for leaf in tree.values()) and tree:
        return lambda path: bool(_paths.at_or_above(tree, path, "bools"))
    if callable(select):
        return lambda path: bool(select(path))
    raise TypeError(
        "select is a pattern, several of them, a predicate of paths, or a pytree of bools, "
        f"not {select!r:.100}"
    )


# What a mask may have: `None` is a leaf that is not there, as in the masks of equinox.
_BOOLS = (bool, np.bool_, type(None))


def unmatched(select: Any, paths: Iterable[str]) -> list[str]:
    """Returns the patterns, if that is what `select` is, that match none of the paths."""
    one = isinstance(select, str) or is_key_path(select)
    if not one and not isinstance(select, (list, set, frozenset, tuple)):
        return []
    patterns = [select] if one else list(select)
    return [
        _text(pattern)
        for pattern in patterns
        if (isinstance(pattern, str) or is_key_path(pattern))
        and not any(_pattern(pattern).match(path) for path in paths)
    ]


def is_key_path(value: Any) -> bool:
    return (
        isinstance(value, tuple)
        and bool(value)
        and any(hasattr(entry, name) for entry in value for name in ("key", "name", "idx"))
    )


def _any_of(patterns: list[Any]) -> Selects:
    compiled = [_pattern(pattern) for pattern in patterns]
    return lambda path: any(pattern.match(path) for pattern in compiled)


def _text(pattern: Any) -> str:
    return pattern if isinstance(pattern, str) else _paths.text(_paths.parts(pattern))


def _pattern(pattern: Any) -> re.Pattern[str]:
    if isinstance(pattern, str):
        return _compiled(pattern)
    return re.compile(re.escape(_text(pattern)) + _END)  # no character of it is a wildcard


def renamer(rename: Any) -> Callable[[str], str]:
    """Returns what gives a leaf the path that it is to have.

    Raises:
      TypeError: If `rename` is nothing of the kind.
      ValueError: If something is to take the place of more than a pattern has.
    """
    if rename is None:
        return lambda path: path
    if isinstance(rename, Mapping):
        rules = [(_compiled(old), _replacement(old, new)) for old, new in rename.items()]
        return functools.partial(_renamed, rules)
    if callable(rename):
        made: Callable[[str], str] = rename
        return made
    raise TypeError(f"rename is a dict of patterns or a function of paths, not {rename!r:.100}")


Rule = tuple[re.Pattern[str], list[str | None]]


def _renamed(rules: list[Rule], path: str) -> str:
    for pattern, replacement in rules:
        found = pattern.match(path)
        if found is not None:
            groups = iter(found.groups())
            new = "".join((next(groups) or "") if part is None else part for part in replacement)
            return _joined(new, "" if path == _paths.ROOT else path[found.end() :])
    return path


def _joined(new: str, rest: str) -> str:
    """Returns a path with what follows it: either may be the root."""
    rest = rest.removeprefix("/")
    if new == _paths.ROOT:
        return rest or _paths.ROOT
    return f"{new}/{rest}" if rest else new


@functools.lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    if pattern == _paths.ROOT:
        return re.compile("")
    parts = [_EXPRESSIONS.get(part, re.escape(part)) for part in _WILDCARDS.split(pattern)]
    return re.compile("".join(parts) + _END, re.DOTALL)


# All of a path, or the parts that it begins with.
_END = r"(?=/|\Z)"

_WILDCARDS = re.compile(r"(\*\*/|\*\*|\*|\?)")
# Without backtracking into what a wildcard has taken, where that can be.
_EXPRESSIONS = {"**/": "((?:[^/]*/)*)", "**": "(.*)", "*": "([^/]*)", "?": "([^/])"}


def _replacement(old: str, new: str) -> list[str | None]:
    """Returns the parts of a new path, with `None` for what the next wildcard matches."""
    wildcards = [part for part in _WILDCARDS.split(old) if part in _EXPRESSIONS]
    parts = _WILDCARDS.split(new)
    if [part for part in parts if part in _EXPRESSIONS] not in (wildcards, []):
        raise ValueError(f"{new!r} must have the wildcards of {old!r}, in their order, or none")
    return [None if part in _EXPRESSIONS else part for part in parts]
