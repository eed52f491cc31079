"""How text that files bring is shown to people: on terminals, in reprs, in messages.

Keys, names and messages of others may have escape sequences that change what a terminal shows, line
breaks, and characters that turn text around or cannot be seen.
"""

from __future__ import annotations

import unicodedata


def printable(text: str) -> str:
    r"""Returns text with escapes such as `\x1b` or `\u202e` for all that is not seen as it is."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def printable_lines(text: str) -> str:
    """Does the same for text of several lines."""
    return "\n".join(map(printable, text.split("\n")))


def cells(text: str) -> int:
    """Returns how many cells of a terminal printable text takes."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def _cells(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def padded(text: str, width: int) -> str:
    """Returns text with spaces up to so many cells."""
    return text + " " * (width - cells(text))
