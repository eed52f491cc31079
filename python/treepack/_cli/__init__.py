"""The command line: a module for each group of commands."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from typing import Annotated, Any

import typer

import treepack
from treepack._cli import checking, listing, output, usage, writing
from treepack.errors import MissingPathError, UnserializableLeafError


class _Commands(usage.Commands):
    """Handles errors that click would handle in another way."""

    def invoke(self, ctx: Any) -> Any:
        output.begin()
        try:
            return super().invoke(ctx)
        except EOFError as error:  # a truncated file, not the end of user input
            sys.exit(_fail(error))
        except BrokenPipeError:
            # The reader, such as `head`, has enough. Python must not flush to it at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)


app = typer.Typer(
    name="treepack",
    cls=_Commands,
    help="Inspects, checks and converts checkpoints of treepack, flax and other libraries.",
    epilog="Exit status: 0 for success, 1 if files differ or are damaged, 2 for other errors.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"treepack {treepack.__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            "-V",
            help="Print the version of treepack.",
            callback=_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Inspects, checks and converts checkpoints of treepack, flax and other libraries."""


for command in (
    *(listing.ls, listing.show, listing.info, checking.verify, checking.diff),
    *(checking.digest, writing.convert, writing.get, writing.salvage),
):
    app.command(cls=usage.Command)(command)


def run() -> None:
    """Runs a command; prints errors that a user can fix without a traceback."""
    output.print_anywhere()
    warnings.showwarning = lambda message, *_: output.error(str(message))
    try:
        app()
    except MemoryError:
        sys.exit(_fail("out of memory"))
    except _TOLD as error:
        sys.exit(_fail(error))
    except Exception:  # a bug of treepack; Python's own status 1 would mean damage
        traceback.print_exc()
        sys.exit(2)


_TOLD = (OSError, ValueError, OverflowError, ImportError, MissingPathError, UnserializableLeafError)


def _fail(error: Exception | str) -> int:
    output.error(error)
    return 1 if isinstance(error, treepack.TreepackError) and error.means_damage else 2
