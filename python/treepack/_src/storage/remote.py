"""Remote files, by URL, on any file system of `fsspec`.

    reading    a few large ranges, several at a time     Blocks ──▶ _core.Content
    writing    the output goes through a pipe            layout ──pipe──▶ fsspec

A file appears when all of it has been written, where the file system allows that: object stores
show an object when its upload is complete, local and memory file systems rename.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import treepack._core as core
from treepack._src.forks import Locked
from treepack._src.options import Progress, progress_bar
from treepack._src.storage.place import options_of
from treepack._src.tasks import Task, Thread, started

# The number of concurrent requests, and the bytes that each asks for.
_REQUESTS = 8

_PART_BYTES = 8 << 20

# File systems with real directories, which must be made. Elsewhere the first part of a path may be
# a bucket, which `makedirs` would make as well.
_HAVE_DIRECTORIES = frozenset(
    (
        *("arrow_hdfs", "box", "dbfs", "dropbox", "file", "ftp", "gdrive", "hdfs", "jlab"),
        *("jupyter", "local", "sftp", "smb", "ssh", "webdav", "webhdfs"),
    )
)


def file_system(url: str) -> tuple[Any, str]:
    """Returns the file system of a URL, and the path there, without cached listings of it.

    fsspec shares the object within a program, so its cache may be older than the last save.

    Raises:
      ImportError: If fsspec is not installed, or a package that it needs for this kind of URL.
    """
    try:
        from fsspec.core import url_to_fs  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError(
            f"{url!r} is a URL, and fsspec is not installed: pip install 'treepack[remote]'"
        ) from error
    found, path = url_to_fs(url, **options_of(url))
    for layer in _layers(found):
        layer.invalidate_cache(path)
        layer.invalidate_cache(layer._parent(path))  # some drop one listing only
    return found, path


def _layers(fs: Any) -> Iterator[Any]:
    """Yields a file system and, if it is a cache, the file systems below it."""
    from fsspec.implementations.cached import CachingFileSystem  # type: ignore[import-untyped]

    yield fs
    while isinstance(fs, CachingFileSystem):
        fs = fs.fs
        yield fs


class Blocks(Locked):
    """Reads remote data in few large blocks.

    A read near the last one fetches a block of twice its size; a jump starts again with the least.
    Large reads are requests of their own.
    """

    LEAST = 64 << 10
    MOST = 8 << 20

    # Another request takes as long as reading so many bytes.
    NEAR = 2 << 20

    # The end, with the record, is read first, and kept.
    END = 160 << 10

    def __init__(self, fetch: Callable[[int, int], bytes], length: int):
        """`fetch` takes the first byte of a range and the one after its last."""
        super().__init__()
        self._fetch = fetch
        self._length = length
        self._block = 0, b""  # where it begins, and its bytes
        self._ahead = self.LEAST
        self._end: bytes | None = None

    def read(self, start: int, length: int) -> bytes:
        """Returns a number of bytes from an offset."""
        with self.lock:
            first, block = self._block
            end = first + len(block)
            if first <= start and start + length <= end:
                return block[start - first :][:length]
        if length >= self.LEAST:
            return self._fetch(start, start + length)
        if start >= self._length - self.LEAST:
            return self._read_end(start, length)
        with self.lock:
            is_near = bool(block) and end <= start + length and start <= end + self.NEAR
            self._ahead = min(2 * self._ahead, self.MOST) if is_near else self.LEAST
            last = min(self._length, start + max(self._ahead, length))
            block = self._fetch(start, last)
            self._block = start, block
            return block[:length]

    def _read_end(self, start: int, length: int) -> bytes:
        first = max(0, self._length - self.END)
        with self.lock:
            if self._end is None:
                self._end = self._fetch(first, self._length)
            return self._end[start - first :][:length]


class _Remote(Locked):
    """A remote file that is read in ranges.

    Attributes:
      length: The number of bytes, or `None` if the server does not report it.
      at_once: The number of ranges that may be read at a time.
    """

    def __init__(self, url: str):
        super().__init__()
        self._url = url
        self._fs, self._path = file_system(url)
        info = self._fs.info(self._path)
        if info.get("type") == "directory":
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), url)
        self.length: int | None = info["size"]
        # Caches of fsspec take an unfinished copy of another thread for the whole file.
        self.at_once = 1 if len(list(_layers(self._fs))) > 1 else _REQUESTS

    def fetch(self, start: int, stop: int) -> bytes:
        """Reads a range of bytes.

        Raises:
          OSError: If the range cannot be read, or another number of bytes arrived.
        """
        asked = f"{self._url}: bytes {start} to {stop} were asked for"
        try:
            with self.lock if self.at_once == 1 else contextlib.nullcontext():
                found: bytes = self._fs.cat_file(self._path, start=start, end=stop)
        except OSError as error:
            error.add_note(asked)
            raise
        except MemoryError:
            raise
        except Exception as error:  # libraries below fsspec have classes of their own
            raise OSError(f"{asked}: {type(error).__name__}: {error}") from error
        if len(found) != stop - start:
            raise OSError(f"{asked}, and {len(found)} bytes came instead of {stop - start}")
        return found

    def all(self) -> bytearray:
        """Reads all bytes, in one request."""
        return bytearray(self._fs.cat_file(self._path))


def content(url: str) -> core.Content:
    """Returns the content of a remote file, to be read in parts."""
    file = _Remote(url)
    if file.length is None:
        raise OSError(f"{url}: the server does not report the size, so it cannot be read in parts")
    return core.Content.elsewhere(Blocks(file.fetch, file.length).read, file.length)


def downloaded(url: str, progress: Progress = None) -> bytearray:
    """Reads a whole remote file, several parts at a time."""
    file = _Remote(url)
    length = file.length
    if length is None:
        return file.all()
    data = bytearray(length)
    view = memoryview(data)
    done = 0

    def part(start: int) -> int:
        stop: int = min(length, start + _PART_BYTES)
        view[start:stop] = file.fetch(start, stop)
        return stop - start

    parts = [functools.partial(part, start) for start in range(0, length, _PART_BYTES)]
    with progress_bar(progress, "load") as tell, started(parts, file.at_once) as tasks:
        for task in tasks:
            done += task.result()
            if tell is not None:
                tell(done, length)
    view.release()
    return data


def _make_parent(fs: Any, path: str) -> None:
    """Makes the directory of a file, but never a bucket."""
    from fsspec.implementations.dirfs import DirFileSystem  # type: ignore[import-untyped]

    while isinstance(fs, DirFileSystem):
        fs, path = fs.fs, fs._join(path)
    parent = fs._parent(path)
    protocols = {fs.protocol} if isinstance(fs.protocol, str) else {*fs.protocol}
    first = parent.strip("/").split("/")[0]
    if first and (protocols & _HAVE_DIRECTORIES or fs.exists(first)):
        fs.makedirs(parent, exist_ok=True)


def _forget(url: str) -> None:
    """Drops cached listings and copies of a file from the shared file system."""
    from fsspec.implementations.cached import CachingFileSystem, SimpleCacheFileSystem

    fs, path = file_system(url)
    for layer in _layers(fs):
        with contextlib.suppress(OSError):  # a cache that is read-only
            if isinstance(layer, SimpleCacheFileSystem):  # which knows its files by name alone
                for storage in layer.storage:
                    Path(storage, layer._mapper(path)).unlink(missing_ok=True)
            elif isinstance(layer, CachingFileSystem):
                layer.pop_from_cache(path)


def write(url: str, save: Callable[[str], None]) -> None:
    """Calls `save` with the path of a pipe, and uploads its output to a URL."""
    shared, path = file_system(url)
    *_, lowest = _layers(shared)
    # A transaction is one for all users of the object, so this is a new one.
    fs = type(lowest)(*lowest.storage_args, skip_instance_cache=True, **lowest.storage_options)
    _make_parent(fs, path)
    reader, writer = os.pipe()

    def run() -> None:
        try:
            save(f"/dev/fd/{writer}")
        finally:
            os.close(writer)

    saving = Task(run)
    try:
        with os.fdopen(reader, "rb", buffering=0) as pipe, fs.transaction:
            Thread(saving.attempt)
            try:
                file = fs.open(path, "wb", block_size=_PART_BYTES)
            except NotImplementedError as error:
                raise io.UnsupportedOperation(f"{url}: fsspec cannot write there") from error
            while part := _read(pipe, _PART_BYTES):
                file.write(part)
            saving.result()
            file.close()
    finally:
        if not saving.end():  # it ends, since nobody reads the pipe any more
            os.close(writer)
    _forget(url)


def _read(pipe: Any, most: int) -> bytes:
    """Reads from a pipe until its end, at most so many bytes."""
    parts = []
    while most > 0 and (part := pipe.read(most)):
        parts.append(part)
        most -= len(part)
    return b"".join(parts)
