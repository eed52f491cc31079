"""Writes new files: `treepack convert`, `get` and `salvage`."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

import treepack
from treepack._cli import output, piped
from treepack._cli.listing import ANY_FILE, FILE, MAX_SIZE, PATH, SEP, flag, opened
from treepack._src import formats
from treepack._src.checkpoint.info import count_text, size_text
from treepack._src.printable import either
from treepack._src.saving.copying import Copy, Salvaged
from treepack._src.storage.content import size_of
from treepack._src.storage.entries import entries
from treepack._src.storage.place import joined, real, resolved, shown

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
_SPLIT = [each for each in formats.known() if each.is_split]
SHARDS = (
    f"Write a directory of {either(each.name for each in _SPLIT)}, in files of at most this "
    "size, such as 5GB."
)
DTYPE = Annotated[
    str | None, typer.Option(help="Cast float arrays to this dtype, such as bfloat16.")
]
Texts = list[str] | None


def _repeated(metavar: str, effect: str) -> Any:
    """Declares an option that may be repeated."""
    return typer.Option(metavar=metavar, help=f"{effect} May be repeated.")


SELECT = (
    "Keep only these leaves: a path and everything below it; * matches one part, ** any number of "
    "parts."
)
STACK = "Stack the arrays of layers, such as layers/*/w (* is the number), into one at PATH."
UNSTACK = (
    "Split the array at PATH into arrays of layers: reverts --stack. PATH may be the name before "
    "or after --rename."
)
TRANSPOSE = (
    "Swap the axes of the matrix at PATH, or of its layers; above two dimensions, AXES is their "
    "order, such as conv/kernel=2,3,1,0. PATH may have wildcards, and be the name before or after "
    "--rename."
)
SKIP = Annotated[Texts, _repeated("PATTERN", "Leave out these leaves.")]


def convert(
    source: ANY_FILE,
    target: TARGET,
    select: Annotated[Texts, _repeated("PATTERN", SELECT)] = None,
    skip: SKIP = None,
    gzip: GZIP = None,
    numbers: NUMBERS = False,
    level: LEVEL = None,
    align: ALIGN = 64,
    dtype: DTYPE = None,
    max_shard_size: Annotated[str | None, typer.Option(metavar="SIZE", help=SHARDS)] = None,
    rename: Annotated[
        Texts, _repeated("FROM=TO", "Rename leaves, such as old/*/w=new/*/kernel.")
    ] = None,
    stack: Annotated[Texts, _repeated("PATH=PATTERN", STACK)] = None,
    unstack: Annotated[Texts, _repeated("PATH=PATTERN", UNSTACK)] = None,
    transpose: Annotated[Texts, _repeated("PATH[=AXES]", TRANSPOSE)] = None,
    base: Annotated[
        str | None,
        typer.Option(
            metavar="BASE",
            help="The base of FILE, a patch, if it is in another directory.",
            callback=piped.read,
        ),
    ] = None,
    sep: SEP = ".",
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
    _check_other(target, source, base)
    with opened(source, max_size, sep, base) as file:
        copy = Copy.of(file).chosen(select or None, skip or None)
        copy = copy.rearranged(
            rename=_pairs("--rename", rename),
            stack=_pairs("--stack", stack),
            unstack=_pairs("--unstack", unstack),
            transpose=dict(map(_turned, transpose or ())),
        )
        _save(target, copy, gzip, numbers, level, align, dtype, sep, max_shard_size)


def _pairs(option: str, given: Texts) -> dict[str, str]:
    """Parses options of the form `ONE=OTHER`."""
    pairs: dict[str, str] = {}
    for text in given or ():
        one, equals, other = text.partition("=")
        if not (one and equals and other):
            raise ValueError(f"{option} takes two paths with = between them, got {text!r}")
        pairs[one] = other
    return pairs


def _turned(text: str) -> tuple[str, tuple[int, ...] | None]:
    """Parses an option of the form `PATH` or `PATH=AXES`."""
    if (match := re.fullmatch(r"(.+)=(\d+(?:,\d+)*)", text)) is None:
        return text, None
    axes = tuple(map(int, match[2].split(",")))
    if sorted(axes) != [*range(len(axes))]:
        raise ValueError(f"--transpose takes a permutation of all axes, got {text!r}")
    return match[1], axes


def get(
    source: FILE,
    path: PATH,
    target: TARGET,
    skip: SKIP = None,
    gzip: GZIP = None,
    numbers: NUMBERS = False,
    level: LEVEL = None,
    align: ALIGN = 64,
    dtype: DTYPE = None,
    sep: SEP = ".",
    max_size: MAX_SIZE = None,
) -> None:
    """Copies a part of a file to a new file, as plain dicts and arrays."""
    _check_other(target, source)
    with opened(source, max_size) as file:
        copy = Copy.of(file, path).chosen(None, skip or None)
        _save(target, copy, gzip, numbers, level, align, dtype, sep)


def salvage(source: FILE, target: TARGET, sep: SEP = ".", max_size: MAX_SIZE = None) -> None:
    """Copies the undamaged leaves of a file to a new file.

    Exit status 1: the file is damaged, or has leaves that treepack cannot read.
    """
    _check_other(target, source)
    with treepack.open(source, salvage=True, max_size=max_size, unknown="dict") as file:
        with output.bar("verify") as progress:
            found = Salvaged.of(file, progress)
        for text in found.texts:
            output.line(text, "yellow")
        if found.is_damaged and found.leaves == 0:
            output.line("no leaf is intact: nothing was written", "yellow")
            raise typer.Exit(1)
        _save(target, found.copy, sep=sep)
    more = f", {found.unchecked} of them without checksums"
    more = more if found.is_damaged and found.unchecked else ""
    output.line(f"saved {count_text(found.leaves)}{more}", "green")
    raise typer.Exit(int(found.is_damaged))


def _check_other(target: str, *read: str | None) -> None:
    """Raises a ValueError if a target is one of the files that are read."""
    for path in read:
        if path is not None and real(resolved(path)) == real(resolved(target)):
            raise ValueError(
                f"the target {shown(target)} is the file to read: pass another, then move it"
            )


def _save(
    target: str,
    copy: Copy,
    gzip: bool | None = None,
    numbers: bool = False,
    level: int | None = None,
    align: int = 64,
    dtype: str | None = None,
    sep: str = ".",
    max_shard_size: str | None = None,
) -> None:
    """Saves a copy in the format of the suffix of the target, and prints the file size."""
    if numbers and (gzip or level is not None):
        raise ValueError("--numbers excludes --gzip and --level: pass only one kind of compression")
    options: dict[str, Any] = {"level": level, "dtype": dtype, "max_shard_size": max_shard_size}
    options |= {} if align == 64 else {"align": align}
    with output.bar("write") as progress:
        treepack.save(
            target,
            copy,
            compress="numbers" if numbers else gzip,
            format=None if max_shard_size is None else _SPLIT[0].name,
            separator=sep,
            progress=progress,
            **options,
        )
    path = resolved(target)
    files = [path]
    if max_shard_size is not None:
        names = [entry.name for entry in entries(path)]
        files = [joined(path, name) for name in names if name.endswith(_SPLIT[0].suffixes[0])]
    output.line(f"{shown(target)}: {size_text(sum(map(size_of, files)))}", "green")
