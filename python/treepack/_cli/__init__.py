"""The command line.

| module | commands |
|---|---|
| `listing` | `ls`, `show` |
| `checking` | `verify`, `diff` |
| `writing` | `convert`, `get`, `salvage` |
| `values` | what these compute of arrays, some at a time |
| `output` | how it is shown |
"""

from __future__ import annotations

import os
import sys

import typer

from treepack._cli import checking, listing, writing
from treepack._src.printable import printable_lines
from treepack.errors import UnserializableLeafError

app = typer.Typer(
    name="treepack",
    help="Looks into checkpoints of treepack, flax and eformer, checks and converts them.",
    epilog="Exit status: 0 if all is well, 1 if files differ or are damaged, 2 for other errors.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
for command in (
    *(listing.ls, listing.show, checking.verify, checking.diff),
    *(writing.convert, writing.get, writing.salvage),
):
    app.command()(command)


def run() -> None:
    """Runs a command; errors that people can do something about are a line, and no traceback."""
    try:
        app()
    except BrokenPipeError:
        # Whoever reads has enough. Nothing more is to be written when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except KeyError as error:
        sys.exit(_fail(f"there is nothing at {error.args[0]}"))
    except MemoryError:
        sys.exit(_fail("out of memory"))
    except (OSError, ValueError, ImportError, UnserializableLeafError) as error:
        sys.exit(_fail(str(error), getattr(error, "__notes__", [])))


def _fail(message: str, notes: list[str] | None = None) -> int:
    text = "\n".join([f"treepack: {message}", *(notes or [])])
    print(printable_lines(text), file=sys.stderr)
    return 2
