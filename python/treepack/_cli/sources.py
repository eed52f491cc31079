"""Reads files and directories of any supported format as states.

| format | how it is recognised |
|---|---|
| those of the folders of `formats` | by the suffix, or by the content |
| streams of EasyLM and EasyDeL | by the first bytes |
| everything that `treepack.open` reads | by default |
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import treepack._core as core
from treepack import read_stream
from treepack._cli import convert as _convert
from treepack._cli import output
from treepack._cli.convert import State
from treepack._src import formats
from treepack._src import paths as _paths
from treepack._src.checkpoint.file import File, open, place_of
from treepack._src.checkpoint.laid import layout_of
from treepack._src.checkpoint.load import listed
from treepack._src.checkpoint.reader import Reader
from treepack._src.checkpoint.select import chosen, compiled, ends_of
from treepack._src.formats import SEPARATOR
from treepack._src.options import Opening
from treepack._src.printable import printable
from treepack._src.saving.layout import base_of
from treepack._src.storage.content import Opened, open_parts, read_whole
from treepack._src.storage.entries import entries, is_directory
from treepack._src.storage.naming import naming
from treepack._src.storage.place import check_name, local, resolved
from treepack._src.storage.stores import store_of
from treepack.errors import CorruptionError, DecodeError, NoIndexError


def opened(source: str, max_size: int | None, base: str | None = None) -> File:
    """Opens a file of treepack or flax; with a base, or gzip without an index, it is read whole."""
    if base is None:
        with contextlib.suppress(NoIndexError):
            return open(source, max_size=max_size, unknown="dict")
    source = resolved(source)
    with output.bar("decompress") as progress, naming(source):
        opening = Opening(
            max_size=max_size, progress=progress, base=base_of(base, max_size=max_size)
        )
        file = open(read_whole(source, opening), max_size=max_size, unknown="dict")
    place_of(file).reader.given = source
    return file


def opened_any(source: str, separator: str, max_size: int | None, base: str | None = None) -> File:
    """Opens a file of any format; a patch with its `base`."""
    with naming(source):
        check_name(source)
        state = _converted(resolved(source), separator, max_size)
    if state is None:
        return opened(source, max_size, base)
    layout = layout_of(state.tree, state.metadata)
    content = core.Content.laid(layout, [])
    return File(_convert.Converted(source, Opened(content), salvage=False))


def format_text(reader: Reader) -> str:
    """Returns the format of an open file in words."""
    if reader.format is not None:
        return reader.format
    name = "msgpack, as of flax" if reader.catalog.record is None else "treepack"
    if not reader.inflated:
        return name
    if not reader.is_patch:
        return f"{name}, compressed"
    content = open_parts(reader.given, join=False).content
    return f"{name}, a patch of {printable(core.patch_parts(content)[0])}"


def others_in(file: File) -> list[str]:
    """Returns the checkpoints of other formats in a directory of files with named arrays."""
    reader = place_of(file).reader
    if reader.is_one_file or reader.separator is None or not is_directory(reader.given):
        return []
    names = sorted(entry.name for entry in entries(reader.given) if not entry.is_directory)

    def is_other(name: str) -> bool:
        name = name.lower().removesuffix(".gz")
        format = formats.of_suffix(name)
        is_own = format is not None and format.name == reader.format
        return name.endswith(formats.readable_suffixes()) and not is_own

    return [*filter(is_other, names)]


@contextlib.contextmanager
def copying(file: File) -> Iterator[None]:
    """Raises an error with all damaged leaves of a file if one of them interrupts the copying.

    Raises:
      CorruptionError: If leaves are damaged.
    """
    reader = place_of(file).reader
    try:
        yield
    except (CorruptionError, DecodeError) as error:
        with naming(reader.given):
            statuses, _ = reader.verify(threads=None, progress=None)
            corrupt = [value for value, status in statuses.items() if status == "corrupt"]
            if not corrupt:
                raise
            paths = [reader.catalog.path_of(value, 0) for value in corrupt]
            raise CorruptionError(
                f"{listed(paths)} damaged: `treepack salvage` copies the intact leaves"
            ) from error


def _converted(source: str, separator: str, max_size: int | None) -> State | None:
    """Returns the state of a file of a format that `treepack.open` does not read, or `None`."""
    format, content = formats.of_suffix(source), None
    if format is None and store_of(source)[0].is_local:
        place = Path(local(source))
        if place.is_file() and place.stat().st_size:
            content = core.Content.map(place)
            format = formats.of_content(content)
    if format is not None:
        # With other separators, paths differ from the reader's.
        if separator == SEPARATOR or not format.has_names:
            return None
        named, metadata = format.tree_of(open_parts(source).content, separator, max_size)
        return State(named, None, metadata)
    if content is not None and core.convertible(content) == "stream":
        with contextlib.suppress(DecodeError):  # a list in flax's format may begin like a stream
            tree: dict[str, Any] = {}
            for key, leaf in read_stream(source):
                _paths.put(tree, key, leaf)
            return State(tree, None)
    return None


def selected(state: State, select: list[str], skip: list[str]) -> State:
    """Returns the selected leaves of a state that are not skipped, without the record.

    Raises:
      TreepackError: If a pattern matches nothing.
    """
    if not select and not skip:
        return state
    there = [_paths.text(parts) for parts, _ in ends_of(state.tree)]
    selector = compiled(select or None, "file", there, "--select")
    if skip:
        selector = selector.without(compiled(skip, "file", there, "--skip"))
    return state._replace(tree=chosen(state.tree, selector.means), record=None)
