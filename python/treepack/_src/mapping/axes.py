"""Parses the axes of a rule, in the notation of einops: `(h d) m -> l m h d`."""

from __future__ import annotations

import re
from collections.abc import Iterator

Group = tuple[str, ...]
"""The axes that make one dimension, outermost first; a unit dimension has none."""

REST = "..."
_TOKEN = re.compile(r"\s*(->|\.\.\.|[()]|\w+|\S)")
_NAME = re.compile(r"[^\W\d]\w*")


def parse(text: str) -> tuple[tuple[Group, ...], tuple[Group, ...]]:
    """Without an arrow, both sides are the same. An error has the position."""
    sides: list[list[Group]] = [[]]
    names: set[str] = set()
    opened: list[str] | None = None
    opened_at = at = 0
    for token, at in _tokens(text):
        if token == "->":
            if opened is not None:
                break
            if len(sides) == 2:
                raise fault(text, at, "a rule has one arrow: remove the second ->")
            sides.append([])
            names = set()
        elif token == "(":
            if opened is not None:
                raise fault(text, at, "parentheses do not nest: write (a b c)")
            opened, opened_at = [], at
        elif token == ")":
            if opened is None:
                raise fault(text, at, "this ) has no (: remove it")
            sides[-1].append(tuple(opened))
            opened = None
        elif token == REST:
            if opened is not None:
                raise fault(text, at, "... stands for whole dimensions: move it out of ( )")
            if REST in names:
                raise fault(text, at, "a side has one ...: remove the second")
            names.add(REST)
            sides[-1].append((REST,))
        elif token == "1":
            if opened is None:
                sides[-1].append(())
        elif _NAME.fullmatch(token) is None:
            cure = "sizes are keywords, as Mapping(rules, h=32), and only 1 is an axis"
            if not token.isdecimal():
                cure = "axes are names, 1, ... and groups in ( ), with spaces between them, and -> "
                cure += "between the sides"
            raise fault(text, at, f"{token!r} is no axis: {cure}")
        elif token in names:
            raise fault(text, at, f"the axis {token} occurs twice on one side: rename one of them")
        else:
            names.add(token)
            if opened is None:
                sides[-1].append((token,))
            else:
                opened.append(token)
    if opened is not None:
        raise fault(text, opened_at, "this ( is not closed: add )")
    return tuple(sides[0]), tuple(sides[-1])


def _tokens(text: str) -> Iterator[tuple[str, int]]:
    at = 0
    while (match := _TOKEN.match(text, at)) is not None:
        yield match[1], match.start(1)
        at = match.end()


def fault(text: str, at: int, reason: str) -> ValueError:
    return ValueError(f"in {text!r}, at position {at}: {reason}")


def shown(groups: tuple[Group, ...]) -> str:
    texts = (names[0] if len(names) == 1 else f"({' '.join(names)})" for names in groups)
    return " ".join("1" if text == "()" else text for text in texts)
