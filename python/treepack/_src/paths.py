"""Formats and parses paths in a tree: `params/encoder/0/kernel`, and `.` for the whole tree.

The parts are dict keys, indices of elements and names of fields. In a part, `~` is written `~0` and
`/` is written `~1`, as in JSON Pointer (RFC 6901); a part that is `.` is written `~2`.
"""

from __future__ import annotations

import bisect
import difflib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from treepack._src.printable import printable
from treepack.errors import TreepackError

T = TypeVar("T")
N = TypeVar("N")

ROOT = "."


class Trail:
    """A path that is formatted only when it is shown.

    Trails share their parents: below a long key, the texts of all paths may be much longer than all
    keys of the tree.
    """

    __slots__ = ("_hash", "above", "part")

    def __init__(self, above: Trail | None = None, part: str = ""):
        self.above: Trail | None = above
        self.part: str = part
        self._hash = hash((above, part))

    @property
    def parts(self) -> list[str]:
        parts, at = [], self
        while at.above is not None:
            parts.append(at.part)
            at = at.above
        return parts[::-1]

    def __str__(self) -> str:
        return text(self.parts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trail):
            return False
        one: Trail | None = self
        two: Trail | None = other
        while one is not two:  # no recursion: trails are as deep as the tree
            if one is None or two is None or one.part != two.part:
                return False
            one, two = one.above, two.above
        return True


class PathBudget:
    """Limits the total length of formatted paths in proportion to the keys of the tree.

    The limit is 8 MiB, plus 300 bytes per path, plus 8 times the parts in which each path differs
    from the previous one.
    """

    def __init__(self) -> None:
        self._left = _MOST_TEXT
        self._before: list[str] = []

    def takes(self, path: str) -> bool:
        size = len(path) if path.isascii() else 4 * len(path)
        if size > _FREE_TEXT:
            parts = path.split("/")
            pairs = zip(parts, self._before, strict=False)
            shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
            self._left += _FREE_TEXT + 8 * sum(map(len, parts[shared:])) - size
            self._before = parts
        return self._left >= 0

    def text(self, path: str | Trail) -> str:
        formatted = str(path)
        if not self.takes(formatted):
            raise TreepackError(
                f"at {printable(formatted[:_FREE_TEXT])}...: long keys above many leaves make all "
                "paths together much longer than the file: open the container below such a key, "
                "such as treepack.open(path)[key], whose paths are relative"
            )
        return formatted

    def all(self, paths: Iterable[tuple[str, T]]) -> Iterator[tuple[str, T]]:
        for path, value in paths:
            yield self.text(path), value


_MOST_TEXT = 8 << 20
_FREE_TEXT = 300


def text(parts: Iterable[str]) -> str:
    escaped = [_escaped(part) for part in parts]
    return "/".join(escaped) if escaped else ROOT


def join(path: str, part: str) -> str:
    return _escaped(part) if path == ROOT else f"{path}/{_escaped(part)}"


def _escaped(part: str) -> str:
    return "~2" if part == ROOT else part.replace("~", "~0").replace("/", "~1")


def parts(path: Any) -> list[str]:
    if isinstance(path, str):
        if path == ROOT:
            return []
        if "~" not in path:
            return path.split("/")
        return [
            part.replace("~2", ROOT).replace("~1", "/").replace("~0", "~")
            for part in path.split("/")
        ]
    if isinstance(path, Trail):
        return path.parts
    if isinstance(path, (tuple, list)):
        return [entry if isinstance(entry, str) else key_name(entry) for entry in path]
    cure = f": pass {str(path)!r}" if isinstance(path, int) else ""
    raise TypeError(
        "a path must be a string, such as 'params/0/w', or a key path of JAX, got "
        f"{path!r:.100}{cure}"
    )


def literal(
    text: str, root: N, children: Callable[[N], Iterable[tuple[str, N]]]
) -> tuple[list[tuple[N, list[str]]], dict[str, list[str]]]:
    """Looks up a path without escapes; keys of haiku contain slashes.

    Returns the matching places with the parts of their paths; and, by path, the parts of places on
    the way whose keys contain slashes.
    """
    matches: list[tuple[N, list[str]]] = []
    near: dict[str, list[str]] = {}
    if "/" not in text and "~" not in text:
        return matches, near
    # Each place occurs at most once, since it has one path.
    left: list[tuple[N, list[str], str]] = [(root, [], text)]
    while left:
        above, parts, rest = left.pop()
        for name, place in dict(children(above)).items():
            if "/" in name and len(near) < MOST_NAMES:
                near["/".join([*parts, name])] = [*parts, name]
            if name == rest:
                matches.append((place, [*parts, name]))
            elif rest.startswith(name) and rest[len(name)] == "/":
                left.append((place, [*parts, name], rest[len(name) + 1 :]))
    return matches, near


# Limits the search for similar names, which is slow.
MOST_NAMES = 1000
MOST_LENGTH = 300


def suggest(typo: str, paths: Iterable[str]) -> str | None:
    """Returns the only path with this end, also in other separators or case, or that is its end.

    Containers above `paths` count as well.
    """
    wanted = _folded(typo)
    depths: dict[str, int] = {}
    ends: dict[int, str] = {}
    for path in itertools.islice(paths, MOST_NAMES):
        names = path.split("/") if len(path) <= MOST_LENGTH else []
        for count in range(1, len(names) + 1):
            above = "/".join(names[:count])
            if _folded(above)[-len(wanted) :] == wanted:
                depths[above] = count
            elif f"/{typo}".endswith(f"/{above}"):
                ends[count] = above
    least = min(depths.values(), default=0)
    nearest = [path for path, count in depths.items() if count == least]
    if ends and not nearest:
        return ends[max(ends)]
    return nearest[0] if len(nearest) == 1 else None


def closest(name: str, names: Iterable[str]) -> list[str]:
    return difflib.get_close_matches(name, names, n=1) if len(name) <= MOST_LENGTH else []


def similar(typo: str, paths: Iterable[str]) -> str:
    texts = {"/".join(parts(path)): path for path in itertools.islice(paths, MOST_NAMES)}
    match = suggest(typo, texts.values())
    count = typo.count("/") + 1
    starts = ([*parts(path)][:count] for path in texts.values())
    both = {"/".join(start): text(start) for start in starts} | texts
    near = [match] if match else [both[name] for name in closest(typo, both)]
    if near:
        return f"; is it {near[0]!r}?"
    levels = [[*texts.values()]]  # first the leaves, then the containers on the first levels
    for depth in _SHOWN_LEVELS:
        levels.append([*{"/".join(path.split("/", depth)[:depth]): None for path in levels[0]}])
    wide = [level for level in levels if len(level) > 1] or levels
    names = next((level for level in wide if len(level) <= _MOST_SHOWN), wide[-1])
    shown = [printable(path[:_MOST_LETTERS]) for path in names[:_MOST_SHOWN]]
    shown += ["…"] * (len(names) > _MOST_SHOWN)
    return f"; it has {', '.join(shown) or 'no leaves'}"


def listed(paths: Iterable[str], count: int) -> str:
    more = f" and {count - _MOST_LISTED} more" if count > _MOST_LISTED else ""
    first = ", ".join(itertools.islice(paths, _MOST_LISTED))
    return f"{first}{more} {'is' if count == 1 else 'are'}"


# The maximum number of leaves in a list.
_MOST_LISTED = 10

# Keys as Python and `jax.tree_util.keystr` write them.
_BRACKETS = re.compile(r"""\[['"]?([^\]'"]*)['"]?\]""")

# The maximum number of paths in an error, and of the characters of each.
_MOST_SHOWN = 5
_SHOWN_LEVELS = (3, 2, 1)
_MOST_LETTERS = 100


def _folded(path: str) -> list[str]:
    return _BRACKETS.sub(r"/\1", path).casefold().replace(".", "/").strip("/").split("/")


def has(ordered: Sequence[str], path: str) -> bool:
    below = f"{path}/"
    at, after = bisect.bisect_left(ordered, path), bisect.bisect_left(ordered, below)
    return ordered[at : at + 1] == [path] or (
        after < len(ordered) and ordered[after].startswith(below)
    )


def put(tree: dict[str, Any], parts: Sequence[str], leaf: Any) -> None:
    place: Any = tree
    for part in parts[:-1]:
        place = place.setdefault(part, {})
        if type(place) is not dict:
            raise TreepackError(
                f"cannot place {printable(text(parts))}: its parent is a leaf: give one of them "
                "another path"
            )
    if not parts or parts[-1] in place:
        raise TreepackError(
            f"cannot place {printable(text(parts))}: other leaves have this path: give each leaf a "
            "path of its own"
        )
    place[parts[-1]] = leaf


def elements(node: Mapping[str, T]) -> list[T] | None:
    keys = [str(at) for at in range(len(node))]
    return [node[key] for key in keys] if node.keys() == {*keys} else None


def at_or_above(
    tree: Mapping[tuple[str, ...], T], path: str | Trail, entries: str | None
) -> T | None:
    names = tuple(parts(path))
    for count in range(len(names), -1, -1):
        if names[:count] in tree:
            return tree[names[:count]]
    if entries is None:
        return None
    raise ValueError(
        f"at {printable(str(path))}: the tree of {entries} has no entry for this path: add one for "
        "it, or for a container above it"
    )


def key_name(entry: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(entry, attribute):
            return str(getattr(entry, attribute))
    return str(entry)
