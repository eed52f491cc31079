"""Paths with indices in braces: `model.layers.{l}.up.weight`, `h.{l:0..24:2}.w`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping

from treepack._src import paths as _paths
from treepack._src.mapping.axes import fault
from treepack.errors import TreepackError

_INDEX = re.compile(r"\{([^\W\d]\w*)(?::(\d{1,9})\.\.(\d{1,9})?(?::(\d{1,9}))?)?\}")
_DIGITS = re.compile(r"\d+")

FAR = 10**9
"""Ends of ranges from here on are open."""

# The maximum length of names that patterns match in quadratic time: a file may have longer ones.
_MOST_LETTERS = 300

# The end of the plain path of the value in a variable of nnx.
_VALUE = ".value"


def plain(parts: Iterable[str]) -> str:
    """Dots and slashes are the same when both sides are compared."""
    return ".".join(parts).replace("/", ".")


class Pattern:
    """A path with indices, each of which is any text within one key.

    Attributes:
      text: The path as the caller wrote it.
      indices: The names of its indices.
      ranges: The numbers of the indices that have a range, by name; an open one ends late.
    """

    def __init__(self, text: str, *, is_literal: bool = False):
        """With `is_literal`, braces are a part of the path.

        Indices are `{l}`, `{l:0..12}`, `{l:0..24:2}` or `{l:1..}`; others a ValueError.
        """
        self.text = text
        self.ranges: dict[str, range] = {}
        self._pieces: list[tuple[str, str | None]] = []
        at = 0
        for match in () if is_literal else _INDEX.finditer(text):
            name, start, stop, step = match.groups()
            self._pieces.append((text[at : match.start()], name))
            at = match.end()
            if start is not None:
                numbers = range(int(start), int(stop or sys.maxsize), int(step or 1) or 1)
                if step is not None and int(step) == 0:
                    raise fault(text, match.start(), f"the step of {name} is 0: leave it out")
                if not numbers or self.ranges.setdefault(name, numbers) != numbers:
                    reason = "is empty: the end is excluded" if not numbers else "occurs twice"
                    raise fault(text, match.start(), f"the range of {name} {reason}")
        self._pieces.append((text[at:], None))
        for literal, _ in () if is_literal else self._pieces:
            if (brace := re.search(r"[{}]", literal)) is not None:
                reason = "indices are {l}, {l:0..12}, {l:0..24:2} or {l:1..}"
                raise fault(text, text.index(literal) + brace.start(), reason)
        self.indices = tuple(dict.fromkeys(name for _, name in self._pieces if name is not None))
        pieces: list[tuple[str, str | None]] = []
        for literal, name in self._pieces:
            key = literal if literal in ("", ".") else plain(_paths.parts(literal))
            pieces.append(("" if text == _paths.ROOT else key, name))
        self._keyed = pieces
        # Of the paths of leaves, as in a flat dict, neither is needed.
        self._expressions: tuple[re.Pattern[str], re.Pattern[str]] | None = None
        self._plain = "".join(key for key, _ in pieces)
        # Else a number in a name may be a part of a text, or several indices.
        gaps = "{}".join(literal for literal, _ in self._pieces)
        self._has_skeleton = re.search(r"\d\{\}|\{\}\d|\{\}\{\}", gaps) is None
        # The text of an index in another key may decide between several texts.
        names = [name for _, name in self._pieces if name is not None]
        keys = "".join(key if name is None else f"{key}{{}}" for key, name in pieces).split(".")
        self._is_quadratic = len(names) > len(self.indices) and any(
            key.count("{}") > 1 for key in keys
        )
        self._is_root = not self.indices and self._plain == ""
        self._keys = self._plain.count(".") + 1

    def _compiled(self) -> tuple[re.Pattern[str], re.Pattern[str]]:
        if self._expressions is None:
            unnamed = [
                (_DIGITS.sub("#", key), name if name is None else "") for key, name in self._keyed
            ]
            self._expressions = _backward(self._keyed), _backward(unnamed)
        return self._expressions

    def fill(self, values: Mapping[str, str]) -> str:
        return "".join(
            literal + ("" if name is None else values[name]) for literal, name in self._pieces
        )

    def matches(
        self, names: LeafNames, *, above: bool = False
    ) -> Iterator[tuple[dict[str, str], str, int]]:
        """Yields the texts of the indices, the path and the length of the match of each leaf.

        With `above`, the pattern may also be the path of a container. A name too long for an index
        that occurs twice is a TreepackError.
        """
        ways = (self._plain, self._plain.removesuffix(_VALUE))
        if not self.indices and (leaves := names.leaves(self.text, *ways)):
            for path in leaves:  # nothing is below a leaf
                yield {}, path, len(plain(_paths.parts(path)))
            return
        finds = self._has_skeleton and not self._is_root
        expression, form = self._compiled()
        for skeleton, members in names.by_skeleton.items():
            if finds and not any(map(form.fullmatch, self._ends(skeleton, above))):
                continue
            for name, path in members:
                if self._is_root and above:
                    yield {}, path, 0
                    continue
                for end in self._ends(name, above):
                    self._check_length(end)
                    if (match := expression.fullmatch(end)) is not None:
                        values = {index: match[index][::-1] for index in self.indices}
                        yield values, path, len(end)
                        break

    def _check_length(self, name: str) -> None:
        is_long = self._is_quadratic and len(name) > _MOST_LETTERS
        if is_long and name.count(".") + 1 == self._keys:
            raise TreepackError(
                f"{self.text} has an index twice, beside another in a key, so a name of its form "
                f"has at most {_MOST_LETTERS} letters, found {len(name)}: use each index once"
            )

    def _ends(self, name: str, above: bool) -> list[str]:
        if above:
            return [".".join(name.split(".", self._keys)[: self._keys])[::-1]]
        # A variable of nnx means its value.
        return [name[::-1], name.removesuffix(_VALUE)[::-1]]


def _backward(pieces: list[tuple[str, str | None]]) -> re.Pattern[str]:
    """Returns the expression of a reversed path.

    From the end, each index ends at the nearest text that may precede it, and an atomic group tries
    no other: matching is linear, unless an index occurs twice.
    """
    names = [name for _, name in pieces if name]
    is_atomic = len({*names}) == len(names)
    expression = ""
    seen: set[str] = set()
    for at, (text, name) in reversed([*enumerate(pieces)]):
        before = re.escape(text[::-1])
        if name is None:
            expression += before
            continue
        begins_key = at == 0 or "." in text
        index = "[^.]+" if begins_key else "[^.]+?"
        if name in seen:
            index = f"(?P={name})"
        elif name:
            index = f"(?P<{name}>{index})"
            seen.add(name)
        expression += f"(?>{index}{before})" if is_atomic and not begins_key else index + before
    return re.compile(expression)


class LeafNames:
    """The paths of the leaves on one side, by the form in which patterns find them.

    In `by_skeleton`, `#` is in place of numbers.
    """

    def __init__(self, paths: Iterable[str]):
        self._paths = {*paths}
        self._by_plain: dict[str, list[str]] = {}
        self.by_skeleton: dict[str, list[tuple[str, str]]] = {}
        for path in paths:
            name = plain(_paths.parts(path))
            self._by_plain.setdefault(name, []).append(path)
            self.by_skeleton.setdefault(_DIGITS.sub("#", name), []).append((name, path))

    def leaves(self, path: str, *ways: str) -> list[str]:
        """Returns the leaf at a path; if there is none, those at the first plain form that has."""
        if path in self._paths:
            return [path]
        return next((self._by_plain[way] for way in ways if way in self._by_plain), [])

    def find(self, path: str) -> str | None:
        name = plain(_paths.parts(path))
        leaves = self.leaves(path, name, f"{name}{_VALUE}", name.removesuffix(_VALUE))
        return leaves[0] if len(leaves) == 1 else None
