"""Prints in color on terminals, and plain in pipes."""

from __future__ import annotations

import codecs
import contextlib
import io
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from treepack._src.printable import printable, printable_lines

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
    found = error.object[error.start : error.end]
    return "".join(_SPELLED.get(it) or ascii(it)[1:-1] for it in found), error.end


def print_anywhere() -> None:
    """Lets standard output print any character in any encoding."""
    codecs.register_error("treepack", _spell)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="treepack")


def rows(lines: Iterable[Row], right: frozenset[int] = frozenset()) -> None:
    """Prints rows in columns, those in `right` right-aligned; in pipes without truncation."""
    found = [([printable(cell) for cell in cells], styles) for cells, styles in lines]
    if not found:
        return
    count = max(len(cells) for cells, _ in found)
    sizes = [[cell_len(cells[at]) for cells, _ in found if at < len(cells)] for at in range(count)]
    # One long cell does not make all others as wide: many rows would take the square of its size.
    widths = [max((it for it in column if it <= _MOST_WIDTH), default=0) for column in sizes]
    is_cut = sys.stdout.isatty()
    if is_cut:
        widths[0] = max(sizes[0])
        others = sum(widths[1:]) + 2 * (count - 1)
        widths[0] = min(widths[0], max(shutil.get_terminal_size().columns - others, 20))
    console = Console(soft_wrap=True, highlight=False)
    for cells, styles in found:
        parts = []
        for at, cell in enumerate(cells):
            cell = _end(cell, widths[0]) if is_cut and at == 0 else cell
            room = " " * (widths[at] - cell_len(cell))  # none beside a longer cell
            parts.append(room + cell if at in right else cell + room)
        if console.color_system is None:  # `Console.print` takes 50 times as long
            print("  ".join(parts).rstrip())
            continue
        line = Text()
        for part, style in zip(parts, styles, strict=True):
            line.append(part, style)
            line.append("  ")
        line.rstrip()
        console.print(line)


# The most characters that a column is wide for the sake of its widest cell.
_MOST_WIDTH = 200


def _end(cell: str, width: int) -> str:
    """Truncates a text to a width, keeping its end."""
    if cell_len(cell) <= width:
        return cell
    start = max(0, len(cell) - width)  # an upper bound: few characters have no width
    while cell_len(cell[start:]) > width - 1:
        start += 1
    return f"…{cell[start:]}"


def line(text: str, style: str = "") -> None:
    """Prints a line."""
    Console(soft_wrap=True, highlight=False).print(Text(printable(text), style))


def block(text: str) -> None:
    """Prints lines, such as the rows of an array."""
    Console(soft_wrap=True, highlight=False).print(Text(printable_lines(text)))


@contextlib.contextmanager
def bar(label: str) -> Iterator[Callable[[int, int], object] | None]:
    """Yields a progress callable that draws a bar on terminals."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (
        TextColumn(label),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label)
        yield lambda done, total: progress.update(task, completed=done, total=total)
