"""Writes new files: `treepack convert`, `get` and `salvage`."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Any

import typer

import treepack
from treepack._cli import output, piped
from treepack._cli.listing import ANY_FILE, FILE, MAX_SIZE, PATH, SEP, flag, opened
from treepack._cli.maps import MAP
from treepack._src import formats
from treepack._src.layouts.copying import Copy
from treepack._src.printable import size_text
from treepack._src.storage.urls import shown

TARGET = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="The new file, which replaces an existing one; its suffix selects the format. - is "
        "standard output, in the format of the source or msgpack.",
        callback=piped.written,
    ),
]
GZIP = Annotated[
    bool | None, typer.Option("--gzip/--no-gzip", help="Whether to compress with gzip.")
]
NUMBERS = Annotated[
    bool, flag("--numbers", "Compress the exponents of floats; only treepack reads the file.")
]
LEVEL = Annotated[int | None, typer.Option(help="The gzip level from 0 (stored) to 9 (smallest).")]
ALIGN = Annotated[int, typer.Option(help="The alignment of arrays in bytes.")]
_SPLIT = [each.name for each in formats.known() if each.is_split]
_NAMED = tuple(end for each in formats.known() if each.separators for end in each.suffixes)
SHARDS = f"Write a directory of {' or '.join(_SPLIT)}, in files of at most this size, such as 5GB."
DTYPE = Annotated[
    str | None, typer.Option(help="Cast float arrays to this dtype, such as bfloat16.")
]
Texts = list[str] | None


def _patterns(effect: str) -> Any:
    return typer.Option(metavar="PATTERN", help=f"{effect} May be repeated.")


SELECT = (
    "Keep only these leaves: a path and everything below it; * matches one part, ** any number of "
    "parts."
)
SKIP = Annotated[Texts, _patterns("Leave out these leaves.")]


def convert(
    source: ANY_FILE,
    target: TARGET,
    select: Annotated[Texts, _patterns(SELECT)] = None,
    skip: SKIP = None,
    gzip: GZIP = None,
    numbers: NUMBERS = False,
    level: LEVEL = None,
    align: ALIGN = 64,
    dtype: DTYPE = None,
    max_shard_size: Annotated[str | None, typer.Option(metavar="SIZE", help=SHARDS)] = None,
    mapping: MAP = None,
    base: Annotated[
        str | None,
        typer.Option(
            metavar="BASE",
            help="The base of FILE, a patch, if it is in another directory.",
            callback=piped.read,
        ),
    ] = None,
    sep: SEP = None,
    max_size: MAX_SIZE = None,
) -> None:
    """Converts the format, compression or float dtype of a file; all leaves or some.

    The suffix of TARGET selects the format: .safetensors, .npz, .treepack
    with an index and checksums, or .msgpack as flax writes it. .gz compresses
    the file.

    From .treepack to .treepack, types are kept unless leaves are selected.
    .treepack and .safetensors keep the metadata. Files may be larger than
    memory.
    """
    is_named = target.lower().endswith(_NAMED) or max_shard_size is not None
    read, written = (None, sep) if is_named else (sep, None)
    with opened(source, max_size, read, base, mapping) as file:
        copy = Copy.of(file).chosen(select or None, skip or None)
        _save(target, copy, written, gzip, numbers, level, align, dtype, max_shard_size)


def get(
    source: ANY_FILE,
    path: PATH,
    target: TARGET,
    skip: SKIP = None,
    gzip: GZIP = None,
    numbers: NUMBERS = False,
    level: LEVEL = None,
    align: ALIGN = 64,
    dtype: DTYPE = None,
    sep: SEP = None,
    max_size: MAX_SIZE = None,
) -> None:
    """Copies a part of a file to a new file, as plain dicts and arrays."""
    with opened(source, max_size) as file:
        try:
            copy = Copy.of(file, path).chosen(None, skip or None)
        except treepack.MissingPathError as error:
            if target in file:
                error.hint = "it comes before the new file, as in `treepack get FILE PATH TARGET`"
            raise
        _save(target, copy, sep, gzip, numbers, level, align, dtype)


def salvage(source: FILE, target: TARGET, sep: SEP = None, max_size: MAX_SIZE = None) -> None:
    """Copies the undamaged leaves of a file to a new file.

    Exit status 1: the file is damaged, or has leaves that treepack cannot read.
    """
    with _salvaging(source, max_size) as file:
        with output.bar("verify") as progress:
            copy = Copy.of(file, progress=progress)
        found = copy.salvage
        assert found is not None
        for text in found.texts:
            output.line(text, "yellow")
        if found.is_damaged and found.leaves == 0:
            raise _nothing_left()
        _save(target, copy, sep)
    output.line(str(found), "green")
    raise typer.Exit(int(found.is_damaged))


def _salvaging(source: str, max_size: int | None) -> treepack.File:
    """Ends the command if the file has no leaf."""
    try:
        return treepack.open(source, salvage=True, max_size=max_size, unknown="dict")
    except (treepack.TreepackError, FileNotFoundError) as error:
        damage = treepack.verify(source, max_size=max_size).damage
        if damage is None:
            raise
        output.line(f"damaged: {damage}", "yellow")
        raise _nothing_left() from error


def _nothing_left() -> typer.Exit:
    output.line("no leaf is intact: nothing was written", "yellow")
    return typer.Exit(1)


def _save(
    target: str,
    copy: Copy,
    sep: str | None,
    gzip: bool | None = None,
    numbers: bool = False,
    level: int | None = None,
    align: int = 64,
    dtype: str | None = None,
    max_shard_size: str | None = None,
) -> None:
    if numbers and (gzip or level is not None):
        raise ValueError("--numbers excludes --gzip and --level: pass only one kind of compression")
    options: dict[str, Any] = {"level": level, "dtype": dtype, "max_shard_size": max_shard_size}
    options |= {} if align == 64 else {"align": align}
    with output.bar("write") as progress:
        treepack.save(
            target,
            copy,
            compress="numbers" if numbers else gzip,
            format=None if max_shard_size is None else _SPLIT[0],
            separator=sep,
            progress=progress,
            **options,
        )
    output.line(f"{shown(target)}: {size_text(_size_of(target))}", "green")


def _size_of(target: str) -> int:
    path = Path(target).expanduser()
    with contextlib.suppress(InterruptedError):  # by a signal: then it is opened
        if path.is_file():
            return path.stat().st_size
    with treepack.open(target) as file:
        return file.stored_nbytes
