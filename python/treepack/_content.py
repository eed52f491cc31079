"""Files: what is written to them, and what is in them."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treepack import _core
from treepack._options import Progress, telling
from treepack.errors import GzipError

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Gzip of so many bytes is inflated as a whole rather than refused.
_SMALL_BYTES = 1 << 20

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


Openable = str | os.PathLike[str] | Any
"""What can be opened: a path, a bytes-like object, or a file object that can seek."""


def opened(source: Openable, *, mmap: bool = True) -> _core.Content:
    """Returns what is in a file or buffer, to be read in parts, decompressed where it is gzip.

    Raises:
      GzipError: If it is gzip that can only be read as a whole.
    """
    if isinstance(source, (str, os.PathLike)):
        _check_path(source)
        file = Path(source)
        mappable = mmap and file.is_file() and file.stat().st_size > 0
        map_file, read = _core.Content.map, _core.Content.read
        content = map_file(source) if mappable else read(source, progress=None)
    elif hasattr(source, "read"):
        content = _of_file_object(source)
    else:
        content = _core.Content.lent(source)
    if not content.is_gzip():
        return content
    found = content.indexed()
    if found is None and content.nbytes <= _SMALL_BYTES:
        return content.inflate(threads=None, progress=None)
    if found is None:
        raise GzipError(
            "this gzip file has no index, so it cannot be read in parts: load it as a whole, or "
            "convert it with `treepack convert` or gunzip"
        )
    return found


def _of_file_object(file: Any) -> _core.Content:
    """Returns what is in a file object, which is read in blocks that are kept for a while."""
    lock = threading.Lock()
    with lock:
        length = file.seek(0, os.SEEK_END)

    def read(start: int, stop: int) -> bytes:
        with lock:
            file.seek(start)
            found: bytes = file.read(stop - start)
        return found

    return _core.Content.elsewhere(Blocks(read, length).read, length)


class Blocks:
    """Reads from far away, in few and large pieces.

    Reading on doubles what is read ahead; a jump begins anew.
    """

    LEAST = 64 << 10
    MOST = 8 << 20

    def __init__(self, fetch: Callable[[int, int], bytes], length: int):
        self._fetch = fetch
        self._length = length
        self._lock = threading.Lock()
        self._start = 0
        self._block = b""
        self._ahead = self.LEAST

    def read(self, start: int, length: int) -> bytes:
        """Returns so many bytes from an offset on."""
        if length >= self.LEAST:
            return self._fetch(start, start + length)
        with self._lock:
            end = self._start + len(self._block)
            if not self._start <= start <= start + length <= end:
                goes_on = end <= start + length and start <= end + self._ahead and self._block
                self._ahead = min(2 * self._ahead, self.MOST) if goes_on else self.LEAST
                first = start
                if self._length - start < self.LEAST:
                    first = max(0, self._length - self.LEAST)  # the end: its record is before it
                self._block = self._fetch(first, min(self._length, start + self._ahead))
                self._start = first
            return self._block[start - self._start :][:length]


def _check_path(path: str | os.PathLike[str]) -> None:
    """Raises for URLs, which would be taken for local directories."""
    text = os.fspath(path)
    if isinstance(text, str) and _URL.match(text):
        raise ValueError(
            f"{text!r} is a URL, and files are local paths: copy it with fsspec, or open it there "
            "and use dumps and loads"
        )
