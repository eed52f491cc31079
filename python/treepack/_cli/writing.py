"""Writes new files: `treepack convert`, `get` and `salvage`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from treepack._cli import convert as _convert
from treepack._cli import output, piped, sources
from treepack._cli.listing import ANY_FILE, FILE, MAX_SIZE, PATH, SEP, flag
from treepack._src import formats
from treepack._src import paths as _paths
from treepack._src.checkpoint.file import count_text, open, place_of, size_text, value_at
from treepack._src.checkpoint.load import listed
from treepack._src.checkpoint.reader import SALVAGE_ADVICE
from treepack._src.checkpoint.select import ends_of
from treepack._src.options import Compress, Export, Writing, float_dtype
from treepack._src.printable import either
from treepack._src.storage.content import size_of
from treepack._src.storage.entries import entries
from treepack._src.storage.naming import naming
from treepack._src.storage.place import check_suffix, has_gzip_suffix, joined, real, resolved, shown
from treepack.errors import NewerVersionError

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
    with sources.opened_any(source, sep, max_size, base) as file, sources.copying(file):
        with naming(source):
            state = sources.selected(_convert.state_of(file), select or [], skip or [])
            state = _convert.renamed(
                state, rename or [], stack or [], unstack or [], transpose or []
            )
            state = _convert.check_whole(state)
        _write(state, target, gzip, numbers, level, align, dtype, sep, max_shard_size)


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
    with sources.opened(source, max_size) as file, sources.copying(file):
        with naming(source):
            state = _convert.state_of(file, 0 if path == "." else value_at(file, path))
            state = sources.selected(state, [], skip or [])
            state = _convert.check_whole(state)
            format = formats.of_suffix(target)
            needs_name = format is not None and format.has_names
            if needs_name and not isinstance(state.tree, (dict, list)):
                state = state._replace(tree={_paths.parts(path)[-1]: state.tree})
        _write(state, target, gzip, numbers, level, align, dtype, sep)


def salvage(source: FILE, target: TARGET, sep: SEP = ".", max_size: MAX_SIZE = None) -> None:
    """Copies the undamaged leaves of a file to a new file.

    Exit status 1: the file is damaged, or has leaves that treepack cannot read.
    """
    _check_other(target, source)
    with open(source, salvage=True, max_size=max_size, unknown="dict") as file, naming(source):
        reader = place_of(file).reader
        catalog = reader.catalog
        if catalog.is_newer:
            raise NewerVersionError(str(catalog.damage))
        with output.bar("verify") as progress:
            statuses, damage = reader.verify(threads=None, progress=progress)
        unreadable = {value for value, status in statuses.items() if status == "unreadable"}
        lost = unreadable | {value for value, status in statuses.items() if status == "corrupt"}
        lost.update(*reader.lists_of(lost))
        left = [value for value in statuses if value in lost]
        count = len(statuses) - len(left)
        is_damaged = bool(left) or damage is not None
        for value in left:
            fault = "an unreadable" if value in unreadable else "a damaged"
            output.line(f"left out {fault} leaf: {catalog.path_of(value, 0)}", "yellow")
        if damage is not None:
            output.line(f"damaged: {damage.replace(SALVAGE_ADVICE, '')}", "yellow")
        if is_damaged and count == 0:
            output.line("no leaf is intact: nothing was written", "yellow")
            raise typer.Exit(1)
        marks = catalog.mark(set(range(catalog.values)) - lost) if lost else None
        state = _convert.state_of(file, marks=marks)
        if reader.damaged_record() is not None:
            state = state._replace(record=None)
        references = _convert.references(state)
        for text, paths in references.items():
            output.line(
                f"left out, as not in the file: {_convert.listed(paths)} are {text}", "yellow"
            )
        state = sources.selected(
            state, [], [path for listed in references.values() for path in listed]
        )
        if references:
            is_damaged, count = True, len(list(ends_of(state.tree)))
        _write(state, target, sep=sep)
        unchecked = min(count, sum(status == "unchecked" for status in statuses.values()))
        if is_damaged and (unverified := file.unverified):
            output.line(f"{listed(unverified)} not verified, for lack of checksums", "yellow")
        more = f", {unchecked} of them without checksums" if is_damaged and unchecked else ""
        output.line(f"saved {count_text(count)}{more}", "green")
    raise typer.Exit(int(is_damaged))


def _check_other(target: str, *read: str | None) -> None:
    """Raises a ValueError if a target is one of the files that are read."""
    for path in read:
        if path is not None and real(resolved(path)) == real(resolved(target)):
            raise ValueError(
                f"the target {shown(target)} is the file to read: pass another, then move it"
            )


def _write(
    state: _convert.State,
    target: str,
    gzip: bool | None = None,
    numbers: bool = False,
    level: int | None = None,
    align: int = 64,
    dtype: str | None = None,
    sep: str = ".",
    max_shard_size: str | None = None,
) -> None:
    """Writes a state in the format of the suffix of the target, and prints the file size."""
    if dtype is not None:
        state = state._replace(tree=_convert.with_dtype(state.tree, float_dtype(dtype)))
    path = resolved(target)
    format = formats.of_suffix(path)
    if max_shard_size is not None:
        format = _SPLIT[0]
    if format is not None:
        format.check(path, Export(max_shard_size=max_shard_size), {})
        if gzip or numbers or level is not None:
            raise ValueError(
                "--gzip, --numbers and --level apply only to msgpack, and the target is "
                f"{format.name}"
            )
    if numbers and (gzip or level is not None):
        raise ValueError("--numbers excludes --gzip and --level: pass only one kind of compression")
    if format is not None:
        with output.bar("write") as progress:
            _convert.write_arrays(state, path, format, sep, max_shard_size, progress)
    else:
        check_suffix(path)
        compress = has_gzip_suffix(path) if gzip is None else gzip
        if level is not None and not compress:
            raise ValueError("--level requires --gzip, or a target that ends with .gz")
        method: Compress = "numbers" if numbers else compress
        writing = Writing(compress=method, level=level, align=align)
        with output.bar("write") as progress:
            _convert.write_msgpack(state, path, writing, progress)
    files = [path]
    if max_shard_size is not None:
        names = [entry.name for entry in entries(path)]
        files = [joined(path, name) for name in names if name.endswith(_SPLIT[0].suffixes[0])]
    output.line(f"{shown(target)}: {size_text(sum(map(size_of, files)))}", "green")
