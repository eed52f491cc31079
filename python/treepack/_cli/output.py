"""Prints in color on terminals, and plain in pipes."""

from __future__ import annotations

import codecs
import contextlib
import functools
import io
import json as _json
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from treepack._src.printable import printable

# The cells of a row and their styles.
Row = tuple[Sequence[str], Sequence[str]]

# The bars of a histogram, by height.
BARS = " ▁▂▃▄▅▆▇█"

# Replacements of characters for encodings that lack them; others are escaped.
_SPELLED = {
    "±": "+/-",
    "…": "...",
    **{bar: str(height) for height, bar in enumerate(BARS) if height},
}


def _spell(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    chars = error.object[error.start : error.end]
    return "".join(_SPELLED.get(char) or ascii(char)[1:-1] for char in chars), error.end


def print_anywhere() -> None:
    codecs.register_error("treepack", _spell)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="treepack")


def rows(lines: Iterable[Row], right: frozenset[int] = frozenset()) -> None:
    """Prints rows in columns, those in `right` right-aligned; in pipes without truncation."""
    styled = [([printable(cell) for cell in row], styles) for row, styles in lines]
    if not styled:
        return
    sizes = [[*map(_width, row)] for row, _ in styled]
    columns = [*zip(*sizes, strict=True)]
    # One long cell does not make all others as wide: many rows would take the square of its size.
    widths = [
        max((size for size in column if size <= _MOST_WIDTH), default=0) for column in columns
    ]
    is_cut = sys.stdout.isatty()
    if is_cut:
        others = sum(widths[1:]) + 2 * len(widths[1:])
        left = max(shutil.get_terminal_size().columns - others, 20)
        widths[0] = min(max(columns[0]), left)
    console = Console(soft_wrap=True, highlight=False)
    used = {style for _, styles in styled for style in styles}
    escapes = {style: _escapes(console, style) for style in used}
    texts = []
    for (row, styles), lengths in zip(styled, sizes, strict=True):
        if is_cut:
            row[0] = _end(row[0], widths[0])
            lengths[0] = _width(row[0])
        parts = []
        for at, (cell, length, style) in enumerate(zip(row, lengths, styles, strict=True)):
            room = " " * (widths[at] - length)  # none beside a longer cell
            before, after = escapes[style]
            text = f"{before}{cell}{after}"
            parts.append(room + text if at in right else text + room)
        texts.append("  ".join(parts).rstrip())
    print("\n".join(texts))


def _width(text: str) -> int:
    return len(text) if text.isascii() else cell_len(text)


def _escapes(console: Console, style: str) -> tuple[str, str]:
    """Returns the escapes of a style: `Console.print` takes 50 times as long."""
    with console.capture() as captured:
        console.print(Text("x", style), end="")
    before, _, after = captured.get().partition("x")
    return before, after


# The most characters that a column is wide for the sake of its widest cell.
_MOST_WIDTH = 200


def _end(cell: str, width: int) -> str:
    if _width(cell) <= width:
        return cell
    start = max(0, len(cell) - width)  # an upper bound: few characters have no width
    while _width(cell[start:]) > width - 1:
        start += 1
    return f"…{cell[start:]}"


def line(text: str, style: str = "") -> None:
    console = Console(soft_wrap=True, highlight=False, stderr=_on_stderr)
    console.print(Text(printable(_shown(text)), style))


def lines(text: str, file: Any = None) -> None:
    print(*map(printable, text.split("\n")), sep="\n", file=file)


def json(value: Any) -> None:
    print(_shown(_json.dumps(value, indent=1)))


def error(error: Exception | str) -> None:
    text = "\n".join([f"treepack: {error}", *getattr(error, "__notes__", [])])
    for cure, command in _CURES.items():
        text = text.replace(cure, command)
    text = _OPTIONS.sub(_flag, text)
    lines(_shown(text), sys.stderr)


def _flag(option: re.Match[str]) -> str:
    return _FLAGS.get(option[0]) or _FLAGS.get(option[1]) or f"--{option[1]}"


# Cures in messages to programs, and those in their place.
_CURES = {
    "for several patterns, pass a list": "for several patterns, repeat the option",
    "call load with base=, or run": "or run",
    "pass base=, the tree or data that it was made against, to load or loads, or --base to "
    "`treepack convert`": "run `treepack convert` with --base, the file that it was made against",
    "choose a file in it; save(..., sharded=True) writes a directory": "choose a file in it",
    "pass the tree that treepack.load returns for it as base=, or one file": (
        "pass the file that `treepack convert` writes of it, or another one"
    ),
}

# Options as messages to programs write them.
_OPTIONS = re.compile(
    r"(?<!-)\b(align|base|compress|dtype|exclude|level|mapping|max_shard_size|max_size|select|"
    r"separator)(?:=(?:True(?: \(gzip\))?)?(?=[\s:,;.)]|$)|(?=: | matches | requires | must be ))"
)

# The flags that have other names.
_FLAGS = {
    "compress": "--gzip",
    "compress=": "--gzip, --numbers",
    "exclude": "--skip",
    "mapping": "--map",
    "max_shard_size": "--max-shard-size",
    "max_size": "--max-size",
    "separator": "--sep",
}

# Paths that are shown under another name.
_names: dict[str, str] = {}

_on_stderr = False


def show_as(path: str, name: str) -> None:
    _names[path] = name


def report_to_stderr() -> None:
    global _on_stderr
    _on_stderr = True


def begin() -> None:
    global _on_stderr
    _on_stderr = False
    _names.clear()


def _shown(text: str) -> str:
    for path, name in _names.items():
        text = text.replace(path, name)
    return text


@contextlib.contextmanager
def bar(label: str) -> Iterator[Callable[[int, int], object] | None]:
    """Yields a progress callable that draws a bar on terminals, once it is called."""
    with contextlib.ExitStack() as stack:
        update: Callable[..., object] | None = None

        def tell(done: int, total: int) -> None:
            nonlocal update
            if update is None:
                from rich import progress as bars  # takes a tenth of the time of a short command

                sizes = bars.DownloadColumn(binary_units=True), bars.TransferSpeedColumn()
                columns = *bars.Progress.get_default_columns(), *sizes
                console = Console(stderr=True)
                drawn = stack.enter_context(
                    bars.Progress(*columns, console=console, transient=True)
                )
                update = functools.partial(drawn.update, drawn.add_task(label))
            update(completed=done, total=total)

        yield tell if sys.stderr.isatty() else None
