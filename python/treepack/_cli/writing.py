"""`treepack convert`, `get` and `salvage`: new files of old ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from treepack import serialization
from treepack._cli import convert as _convert
from treepack._cli import output
from treepack._cli.listing import FILE, PATH
from treepack._src import dtypes as _dtypes
from treepack._src import paths as _paths
from treepack._src.checkpoint.file import File, Tree, open, size_text
from treepack._src.checkpoint.verify import verify
from treepack._src.options import Writing
from treepack._src.storage.content import read_whole, size_of
from treepack.errors import NoIndexError

TARGET = Annotated[str, typer.Argument(help="The new file; its suffix tells the format.")]
GZIP = Annotated[bool | None, typer.Option("--gzip/--no-gzip", help="Whether it is compressed.")]
LEVEL = Annotated[int | None, typer.Option(help="From 0 (stored) to 9 (smallest).")]
ALIGN = Annotated[int, typer.Option(help="Arrays begin at multiples of so many bytes.")]
DTYPE = Annotated[str | None, typer.Option(help="What floats become, such as bfloat16.")]
SEP = Annotated[str, typer.Option("--sep", help="What is between keys in safetensors and npz.")]


def convert(
    source: Annotated[str, typer.Argument(help="msgpack of treepack or flax, safetensors or npz.")],
    target: TARGET,
    gzip: GZIP = None,
    level: LEVEL = None,
    align: ALIGN = 64,
    dtype: DTYPE = None,
    sep: SEP = ".",
) -> None:
    """Converts a file: msgpack, safetensors, npz; compressed or not; floats to another dtype.

    Files of treepack keep all that is in them. Files may be larger than memory.
    """
    format = _convert.format_of(source)
    if format == "safetensors":
        _write(_convert.read_safetensors(source, sep), target, gzip, level, align, dtype, sep)
    elif format == "npz":
        _write(_convert.read_npz(source, sep), target, gzip, level, align, dtype, sep)
    else:
        with _opened(source) as file:
            _write(_convert.state_of(file), target, gzip, level, align, dtype, sep)


def get(
    source: FILE,
    path: PATH,
    target: TARGET,
    gzip: GZIP = None,
    level: LEVEL = None,
    align: ALIGN = 64,
    dtype: DTYPE = None,
    sep: SEP = ".",
) -> None:
    """Takes a part of a file into a new one, as plain dicts and arrays."""
    with _opened(source) as file:
        found = file if path == "." else file[path]
        state = _convert.state_of(found) if isinstance(found, Tree) else _convert.State(found, None)
        _write(state, target, gzip, level, align, dtype, sep)


def salvage(source: FILE, target: TARGET, sep: SEP = ".") -> None:
    """Saves what there is in a damaged file to a new one."""
    found = verify(source)
    corrupt = set(found.corrupt)
    with open(source, salvage=True) as file:
        state = _convert.state_of(file)
        tree = _without(state.tree, corrupt, ())
        is_whole = not corrupt and found.damage is None
        _write(_convert.State(tree, state.record if is_whole else None), target, sep=sep)
        for path in found.corrupt:
            output.line(f"left out, because it is damaged: {path}", "yellow")
        if found.damage is not None:
            output.line(f"damaged: {found.damage}", "yellow")
        output.line(f"saved {len(found.leaves) - len(corrupt)} leaves", "green")
    raise typer.Exit(int(not is_whole))


def _without(tree: Any, paths: set[str], parts: tuple[str, ...]) -> Any:
    if not isinstance(tree, dict):
        return tree
    return {
        key: _without(child, paths, (*parts, key))
        for key, child in tree.items()
        if _paths.text([*parts, key]) not in paths
    }


def _opened(source: str) -> File:
    """Opens a file; gzip of others, which cannot be read in parts, is read as a whole."""
    try:
        return open(source)
    except NoIndexError:
        with output.bar("decompress") as progress:
            return open(read_whole(source, progress=progress))


def _write(
    state: _convert.State,
    target: str,
    gzip: bool | None = None,
    level: int | None = None,
    align: int = 64,
    dtype: str | None = None,
    sep: str = ".",
) -> None:
    if dtype is not None:
        state = state._replace(tree=_convert.with_dtype(state.tree, _float(dtype)))
    format = _convert.format_of(target)
    if format != "msgpack" and (gzip or level is not None):
        raise ValueError(f"--gzip and --level are for msgpack, not for {format}")
    if format == "safetensors":
        _convert.write_safetensors(state, target, sep)
    elif format == "npz":
        _convert.write_npz(state, target, sep)
    else:
        compress = Path(target).suffix == ".gz" if gzip is None else gzip
        with output.bar("write") as progress:
            how = Writing(
                compress=compress,
                level=level,
                align=align,
                max_chunk_size=serialization.MAX_CHUNK_SIZE,
            )
            _convert.write_msgpack(state, target, how, progress)
    output.line(f"{target}: {size_text(size_of(target))}", "green")


def _float(name: str) -> np.dtype[Any]:
    found = _dtypes.resolve(name.encode())
    if found is None or not _dtypes.is_float(found):
        raise ValueError(f"{name!r} is no dtype of floats, such as float32 or bfloat16")
    return found
