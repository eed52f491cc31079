"""Reads standard input and writes standard output where a file is named `-`.

    stdin ──▶ a temporary file ──▶ the command ──▶ a temporary file ──▶ stdout

Files are read in any order, and are replaced as a whole.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any

import typer

from treepack._cli import output

_NAME = "-"
_ELSE = "./- is a file of this name"


def read(context: typer.Context, given: Any) -> Any:
    if isinstance(given, (list, tuple)):
        return [read(context, each) for each in given]
    if given != _NAME or context.resilient_parsing:
        return given
    if context.meta.get(__name__):
        context.fail(f"- is standard input, which can be read once ({_ELSE})")
    context.meta[__name__] = True
    if sys.stdin.isatty():
        context.fail(f"- is standard input, a terminal: pipe a file into it ({_ELSE})")
    with contextlib.suppress(OSError):  # it need not have a descriptor
        if stat.S_ISCHR(os.fstat(sys.stdin.fileno()).st_mode):
            context.fail(f"- is standard input, a device: pipe a file into it ({_ELSE})")
    path = _temporary(context)
    with path.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file, 1 << 20)
    return str(path)


def written(context: typer.Context, given: str) -> str:
    if given != _NAME or context.resilient_parsing:
        return given
    if sys.stdout.isatty():
        context.fail(f"- is standard output, a terminal: pipe it into a file ({_ELSE})")
    path = _temporary(context)
    output.report_to_stderr()

    def copy() -> None:
        if path.is_dir():
            raise ValueError("- is one file, and this writes a directory: name it")
        if path.is_file():  # else the command failed
            with path.open("rb") as file:
                shutil.copyfileobj(file, sys.stdout.buffer, 1 << 20)
            sys.stdout.buffer.flush()

    context.call_on_close(copy)
    return str(path)


def _temporary(context: typer.Context) -> Path:
    root = context.find_root()  # closed even if an argument is wrong
    folder = root.with_resource(tempfile.TemporaryDirectory(prefix="treepack-"))
    path = Path(folder, "piped")
    output.show_as(str(path), _NAME)
    return path
