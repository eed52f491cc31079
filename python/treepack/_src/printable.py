"""Formats texts for terminals, reprs, messages and warnings, and escapes text from files.

Escape sequences in keys, names and messages control terminals; other characters reverse text.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
import sys
import time
import unicodedata
import warnings
from collections.abc import Collection, Iterable
from typing import Any


def printable(text: str) -> str:
    r"""Returns text with escapes such as `\x1b` or `\u202e` for unprintable characters."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


class Completing(type):
    """The type of classes whose prompts and `help` show only some of the public names.

    A prompt completes `dir(value)` and `dir(type(value))`.
    """

    _shown: Collection[str]

    def __dir__(cls) -> list[str]:
        return [name for name in super().__dir__() if name[0] == "_" or name in cls._shown]


# The maximum number of rows or elements in a repr, which has at most 20 lines.
MOST_ROWS = 18


def shortened(parts: Iterable[str], count: int, most: int = MOST_ROWS) -> str:
    more = f", … and {count - most} more" if count > most else ""
    return ", ".join(itertools.islice(parts, most)) + more


# The maximum number of characters of a path in a repr, whose rows fit in 120 columns.
_MOST_PATH = 76


def path_end(path: str, most: int = _MOST_PATH) -> str:
    return path if len(path) <= most else f"…{path[1 - most :]}"


def printable_lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))


def safe_repr(value: object) -> str:
    try:
        return repr(value)
    except Exception:
        return f"<{type(value).__name__}>"


def jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key if isinstance(key, str) else safe_repr(key): jsonable(child)
            for key, child in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [jsonable(child) for child in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value if value is None or isinstance(value, (int, str)) else safe_repr(value)


def short_repr(value: object) -> str:
    return safe_repr(value)[:100]


def either(texts: Iterable[str]) -> str:
    listed = [*texts]
    return " or ".join(filter(None, [", ".join(listed[:-1]), *listed[-1:]]))


def utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def cells(text: str) -> int:
    return len(text) if text.isascii() else sum(map(_cells, text))


def _cells(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def padded(text: str, width: int) -> str:
    return text + " " * (width - cells(text))


def _is_ours(names: dict[str, Any]) -> bool:
    return str(names.get("__name__", "")).startswith("treepack.")  # code that is run may have none


def warn(text: str) -> None:
    """Warns with the location of the caller of treepack."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_ours(frame.f_globals):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, UserWarning, stacklevel=level)


_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]?B)", re.IGNORECASE)


def bytes_of(size: str) -> int:
    """Returns a size such as `1GB` in bytes; units are powers of 1000."""
    match = _SIZE.fullmatch(size.strip())
    if match:
        return int(float(match[1]) * _UNITS[match[2].upper()])
    if size.strip().isdecimal():
        return int(size)
    raise ValueError(f"expected a number of bytes, or a text such as '1GB', got {size!r:.100}")


@functools.lru_cache  # few kinds, of many leaves
def kind_text(kind: tuple[Any, ...]) -> str:
    if kind[0] == "array":
        return f"{printable(kind[1])}[{','.join(map(str, kind[2]))}]"
    if kind[0] == "prng_key":
        return f"key<{printable(kind[1])}>"
    return f"{printable(kind[1])}[]" if kind[0] == "scalar" else str(kind[0])


def count_text(leaves: int) -> str:
    return f"{leaves} {'leaf' if leaves == 1 else 'leaves'}"


def size_text(nbytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        number = f"{nbytes:.0f}" if unit == "B" else f"{nbytes:.1f}"
        if float(number) < 1024:
            return f"{number} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} TiB"
