"""Files: what is written to them, and what is in them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from treepack import _core
from treepack._options import Progress, telling

if TYPE_CHECKING:
    from typing_extensions import Buffer

_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:/")


def save_layout(
    layout: _core.Layout,
    path: str | os.PathLike[str],
    *,
    compress: bool,
    level: int | None,
    durable: bool,
    threads: int | None,
    progress: Progress,
) -> None:
    """Writes an encoding to a file, which is replaced whole or not at all.

    Missing directories are made.
    """
    _check_path(path)
    check_level(level, compress)
    with telling(progress, "save") as tell:
        if compress:
            layout.save_gzip(path, level, durable=durable, threads=threads, progress=tell)
        else:
            layout.save(path, durable=durable, threads=threads, progress=tell)


def check_level(level: int | None, compress: bool) -> None:
    """Raises if there is a level for nothing."""
    if level is not None and not compress:
        raise ValueError("level is for compress=True")


def open_content(
    path: str | os.PathLike[str],
    *,
    mmap: bool = True,
    threads: int | None = None,
    progress: Progress = None,
) -> _core.Content:
    """Returns what is in a file, decompressed if it is gzip."""
    _check_path(path)
    file = Path(path)
    mappable = mmap and file.is_file() and file.stat().st_size > 0  # not so in /proc
    with telling(progress, "load") as tell:
        content = _core.Content.map(path) if mappable else _core.Content.read(path, progress=tell)
        if content.is_gzip():
            content = content.inflate(threads=threads, progress=tell)
    return content


def content_of(path_or_data: str | os.PathLike[str] | Buffer) -> _core.Content | Buffer:
    """Returns what is in a file, or data as they are, decompressed if they are gzip."""
    if isinstance(path_or_data, (str, os.PathLike)):
        return open_content(path_or_data)
    return inflated(path_or_data)


def inflated(
    data: Buffer,
    *,
    max_size: int | None = None,
    threads: int | None = None,
    progress: Progress = None,
) -> Buffer:
    """Returns data, decompressed if they are gzip."""
    view = memoryview(data)
    if not view.contiguous or bytes(view.cast("B")[:2]) != b"\x1f\x8b":
        return data
    with telling(progress, "load") as tell:
        return _core.decompress(data, max_size=max_size, threads=threads, progress=tell)


def _check_path(path: str | os.PathLike[str]) -> None:
    """Raises for URLs, which would be taken for local directories."""
    text = os.fspath(path)
    if isinstance(text, str) and _URL.match(text):
        raise ValueError(
            f"{text!r} is a URL, and files are local paths: copy it with fsspec, or open it there "
            "and use dumps and loads"
        )
