"""Opens files for the command line, also those that `open` refuses.

| file | recognised |
|---|---|
| names divided by another separator | by the suffix, or by the content |
| streams of EasyLM and EasyDeL | by the first bytes |
| patches with a base elsewhere; gzip without an index | read whole |
"""

from __future__ import annotations

import contextlib
import stat
from typing import Any

import treepack._core as core
from treepack._src import formats
from treepack._src import paths as _paths
from treepack._src.api.streams import read_stream
from treepack._src.calls import mode_of
from treepack._src.checkpoint.file import File, open
from treepack._src.formats import SEPARATOR
from treepack._src.layouts.layout import base_of
from treepack._src.options import Opening, Progress
from treepack._src.readers.reader import Reader
from treepack._src.readers.unchecked import layout_of
from treepack._src.storage.address import Address
from treepack._src.storage.content import Opened, content_of
from treepack._src.storage.naming import naming
from treepack.errors import DecodeError, NoIndexError


class _Named(Reader):
    separator = ""

    def __init__(self, source: Address, layout: core.Layout, format: str):
        super().__init__(source, Opened(core.Content.laid(layout, [])))
        self.format = format


def open_anything(
    source: str,
    *,
    separator: str | None = None,
    max_size: int | None = None,
    base: str | None = None,
    mapping: Any = None,
    progress: Progress = None,
) -> File:
    file = _opened(source, separator, max_size, base, progress)
    if separator is not None and file._at().reader.separator is None:
        file.close()
        raise ValueError(
            f"separator= applies only to names in {formats.with_names()}: leave it out, or choose "
            "another suffix"
        )
    if mapping is None:
        return file
    with naming(source):
        return file._in_layout(mapping)


def _opened(
    source: str,
    separator: str | None,
    max_size: int | None,
    base: str | None,
    progress: Progress,
) -> File:
    place, base = Address.of(source), Address.further(base, None)
    with naming(place):
        if (laid := _laid_out(place, separator, max_size)) is not None:
            return File(_Named(place, *laid))
    if base is None:
        with contextlib.suppress(NoIndexError):
            return open(place, max_size=max_size, unknown="dict")
    with naming(place):
        if base is not None:
            with contextlib.suppress(NoIndexError):
                _check_is_patch(Opened.of(place, max_size=max_size, join=False).content)
        opening = Opening(
            max_size=max_size, progress=progress, base=base_of(base, max_size=max_size)
        )
        file = open(content_of(place, opening), max_size=max_size, unknown="dict")
    reader = file._at().reader
    reader.given, reader.base = place, base
    return file


def _check_is_patch(content: core.Content) -> None:
    if not core.is_patch(content):
        raise ValueError(
            "base= is for a patch, and this file is whole: leave it out (treepack.save with base= "
            "writes a patch)"
        )


def _laid_out(
    source: Address, separator: str | None, max_size: int | None
) -> tuple[core.Layout, str] | None:
    format, content = formats.of_suffix(source), None
    is_file = format is None and source.is_local and stat.S_ISREG(mode_of(source))
    if is_file and source.nbytes():
        content = core.Content.map(source)
        format = formats.of_content(content)
    if format is not None:
        # With other separators, paths differ from the reader's.
        if separator in (None, SEPARATOR) or not format.separators:
            return None
        named = format.tree_of(Opened.of(source).content, separator, max_size)
        return layout_of(*named), format.name
    if content is not None and core.convertible(content) == "stream":
        with contextlib.suppress(DecodeError):  # a list in flax's format may begin like a stream
            tree: dict[str, Any] = {}
            for key, leaf in read_stream(source):
                _paths.put(tree, key, leaf)
            return layout_of(tree, None), "stream of EasyLM"
    return None
