"""Files that are elsewhere: whatever `fsspec` has a file system for, by URL.

    reading    a few large ranges, some at a time        Ranges ──▶ _core.Content
    writing    the output goes through a pipe            layout ──pipe──▶ fsspec

A file is there when all of it has been written, where the file system allows that: object stores
show an object when its upload is complete, local and memory file systems rename.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from treepack import _core
from treepack._options import Progress, telling

# Requests that are under way at a time, and how much each asks for.
_REQUESTS = 8
_PART_BYTES = 8 << 20


def file_system(url: str, **options: Any) -> tuple[Any, str]:
    """Returns the file system of a URL, and the path there.

    Raises:
      ImportError: If fsspec is not installed, or what it needs for this kind of URL.
    """
    try:
        from fsspec.core import url_to_fs  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError(
            f"{url!r} is a URL, and fsspec is not installed: pip install 'treepack[remote]'"
        ) from error
    found, path = url_to_fs(url, **options)
    return found, path


class Blocks:
    """Reads from far away, in few and large pieces.

    What is near to what was read last is read in a piece that is twice as large; a jump begins
    anew. Pieces of some size are read by themselves.
    """

    LEAST = 64 << 10
    MOST = 8 << 20

    # To wait for another answer costs as much as to read so many bytes.
    NEAR = 2 << 20

    # The end has the record. It is read first, and kept.
    END = 160 << 10

    def __init__(self, fetch: Callable[[int, int], bytes], length: int):
        """`fetch` takes the first byte and the one after the last."""
        self._fetch = fetch
        self._length = length
        self._lock = threading.Lock()
        self._start = 0
        self._block = b""
        self._ahead = self.LEAST
        self._end: bytes | None = None

    def read(self, start: int, length: int) -> bytes:
        """Returns so many bytes from an offset on."""
        with self._lock:
            end = self._start + len(self._block)
            if self._start <= start and start + length <= end:
                return self._block[start - self._start :][:length]
        if length >= self.LEAST:
            return self._fetch(start, start + length)
        if start >= self._length - self.LEAST:
            return self._read_end(start, length)
        with self._lock:
            is_near = bool(self._block) and end <= start + length and start <= end + self.NEAR
            self._ahead = min(2 * self._ahead, self.MOST) if is_near else self.LEAST
            last = min(self._length, start + max(self._ahead, length))
            self._block = self._fetch(start, last)
            self._start = start
            return self._block[:length]

    def _read_end(self, start: int, length: int) -> bytes:
        first = max(0, self._length - self.END)
        with self._lock:
            if self._end is None:
                self._end = self._fetch(first, self._length)
            return self._end[start - first :][:length]


def _size(url: str, fs: Any, path: str) -> int | None:
    """Returns how many bytes a file has, if the server tells."""
    info = fs.info(path)
    if info.get("type") == "directory":
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), url)
    size: int | None = info["size"]
    return size


def content(url: str) -> _core.Content:
    """Returns what is in a file, which is read in parts."""
    fs, path = file_system(url)
    length = _size(url, fs, path)
    if length is None:
        raise OSError(f"{url}: the server does not tell the size, so it cannot be read in parts")

    def fetch(start: int, stop: int) -> bytes:
        found: bytes = fs.cat_file(path, start=start, end=stop)
        return found

    return _core.Content.elsewhere(Blocks(fetch, length).read, length)


def downloaded(url: str, progress: Progress = None) -> bytearray:
    """Returns all of a file, read in several parts at a time."""
    fs, path = file_system(url)
    length = _size(url, fs, path)
    if length is None:
        return bytearray(fs.cat_file(path))
    data = bytearray(length)
    view = memoryview(data)
    done = 0

    def part(start: int) -> int:
        stop: int = min(length, start + _PART_BYTES)
        found = fs.cat_file(path, start=start, end=stop)
        if len(found) != stop - start:
            raise OSError(f"{url}: {len(found)} bytes were read of {stop - start}")
        view[start:stop] = found
        return stop - start

    starts = range(0, length, _PART_BYTES)
    with telling(progress, "load") as tell, ThreadPoolExecutor(_REQUESTS) as pool:
        for size in pool.map(part, starts):
            done += size
            if tell is not None:
                tell(done, length)
    view.release()
    return data


def write(url: str, save: Callable[[str], None]) -> None:
    """Writes to a URL what `save` writes to a path."""
    # A transaction is of all who have the same object, so this one is nobody else's.
    fs, path = file_system(url, skip_instance_cache=True)
    parent = fs._parent(path)
    if parent and parent != path:
        fs.makedirs(parent, exist_ok=True)
    reader, writer = os.pipe()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            save(f"/dev/fd/{writer}")
        except BaseException as error:  # which is raised where somebody waits
            failed.append(error)
        finally:
            os.close(writer)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        with fs.transaction, os.fdopen(reader, "rb", buffering=0) as pipe:
            file = fs.open(path, "wb", block_size=_PART_BYTES)
            while part := _read(pipe, _PART_BYTES):
                file.write(part)
            thread.join()
            if failed:
                raise failed[0]
            file.close()
    finally:
        thread.join()  # it ends when nobody reads any more


def _read(pipe: Any, most: int) -> bytes:
    """Returns bytes of a pipe: as many as there can be at a time."""
    parts = []
    while most > 0 and (part := pipe.read(most)):
        parts.append(part)
        most -= len(part)
    return b"".join(parts)
