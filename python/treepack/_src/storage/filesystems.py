"""Files of any file system of `fsspec`.

A file appears atomically where the file system allows it: object stores show complete uploads,
local and memory file systems rename. Requests have no conditions: of two concurrent writers, the
last one wins.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import functools
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from treepack._src.forks import Locked
from treepack._src.options import Buffer
from treepack._src.storage.hiding import hiding
from treepack._src.storage.store import Entry, RemoteStore, Response
from treepack._src.storage.urls import Url

# The size in bytes of the blocks in which files are written.
_PART_BYTES = 8 << 20

# File systems with real directories, which must be made. Elsewhere the first part of a path may be
# a bucket, which `makedirs` would make as well.
_HAVE_DIRECTORIES = frozenset(
    (
        *("arrow_hdfs", "box", "dbfs", "dropbox", "file", "ftp", "gdrive", "hdfs", "jlab"),
        *("jupyter", "local", "sftp", "smb", "ssh", "webdav", "webhdfs"),
    )
)


_SCHEMES = (
    "treepack reads s3://, gs://, az://, abfs://, https:// and http:// by obstore, file:// and "
    "memory://, and others, such as hf:// and sftp://, by the package that fsspec names for them"
)


def opened(url: Url) -> tuple[FileSystem, str]:
    """Returns the file system of a URL, and the path there, without cached listings of it.

    fsspec shares the object within a program, so its cache may be older than the last save.
    """
    try:
        from fsspec.core import url_to_fs  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError(
            f"{url.shown!r} is a URL, but fsspec is not installed: pip install fsspec"
        ) from error
    options = url.options if url.file_system is None else {}
    with hiding(url.text):
        try:
            fs, path = url_to_fs(url.text, **options)
        except ValueError as error:  # an unknown scheme, or a wrong option
            hint = f": {_SCHEMES}" if "Protocol not known" in str(error) else ""
            raise ValueError(f"{url.shown!r}: {error}{hint}") from error
        except ImportError as error:
            raise ImportError(f"{url.shown!r}: {error}") from error
        except IsADirectoryError as error:  # an archive without a path is the working directory
            raise ValueError(
                f"{url.shown!r} has no archive: pass its path behind the name of a file in it, as "
                "in zip://model.treepack::all.zip"
            ) from error
        fs = url.file_system or fs
        _check_options(fs, url, options)
        for layer in _layers(fs):
            _drop_listings(layer, path)
    return FileSystem(fs, url), path


def _check_options(fs: Any, url: Url, options: Mapping[str, Any]) -> None:
    """Raises a ValueError for options that memory:// ignores; other systems do not list theirs."""
    from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]

    unknown = [name for name in options if name not in _OPTIONS_OF_ALL]
    if unknown and type(fs) is MemoryFileSystem:
        raise ValueError(
            f"{url.shown!r}: memory:// has no option {unknown[0]!r}: leave out storage_options"
        )


# The options of every file system of fsspec.
_OPTIONS_OF_ALL = frozenset(
    (
        *("asynchronous", "listings_expiry_time", "loop", "max_paths"),
        *("skip_instance_cache", "use_listings_cache"),
    )
)


def _drop_listings(fs: Any, path: str) -> None:
    fs.invalidate_cache(path)
    fs.invalidate_cache(fs._parent(path))  # some drop only one listing


def _layers(fs: Any) -> Iterator[Any]:
    from fsspec.implementations.cached import CachingFileSystem  # type: ignore[import-untyped]

    yield fs
    while isinstance(fs, CachingFileSystem):
        fs = fs.fs
        yield fs


def _near(path: str, held: Any) -> str | None:
    if not isinstance(held, dict) or len(held) > _MOST_NAMES:
        return None
    folder = os.path.dirname(path)  # noqa: PTH120
    beside = [each for each in held if os.path.dirname(each) == folder]  # noqa: PTH120
    return next(iter(difflib.get_close_matches(path, beside, 1, 0.9 if beside[1:] else 0)), None)


# Limits the search, which each missing file takes.
_MOST_NAMES = 1000

Method = TypeVar("Method", bound=Callable[..., Any])


def _hiding(method: Method) -> Method:
    @functools.wraps(method)
    def call(self: FileSystem, *args: Any, **options: Any) -> Any:
        with hiding(self.url.text):
            return method(self, *args, **options)

    return call  # type: ignore[return-value]


class FileSystem(Locked, RemoteStore):
    near = 2 << 20

    def __init__(self, fs: Any, url: Url):
        super().__init__()
        self._fs = fs
        self.url = url
        # Caches of fsspec take an unfinished copy of another thread for the whole file.
        self.at_once = 1 if len(list(_layers(fs))) > 1 else 8

    @_hiding
    def head(self, path: str, count: int) -> Response:
        info = self._info(path)
        if info.get("type") == "directory":
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self.url.shown)
        return Response(info["size"], None, b"")

    def _info(self, path: str) -> Any:
        try:
            return self._fs.info(path)
        except FileNotFoundError as error:
            *_, lowest = _layers(self._fs)
            if lowest is self._fs:
                if near := _near(path, getattr(lowest, "store", None)):
                    error.add_note(f"treepack: is it '{lowest.protocol}:/{near}'?")
                raise
            return lowest.info(path)  # caches list the directory, which web servers do not

    @_hiding
    def get(self, path: str) -> Response:
        info = self._info(path)  # raises FileNotFoundError, unlike reads of some systems
        *_, lowest = _layers(self._fs)
        data = (lowest if info["size"] is None else self._fs).cat_file(path)  # caches need a size
        return Response(len(data), None, data)

    @_hiding
    def range(self, path: str, start: int, stop: int, version: Any) -> Buffer:
        with self.lock if self.at_once == 1 else contextlib.nullcontext():
            data: bytes = self._fs.cat_file(path, start=start, end=stop)
        return data

    @_hiding
    def _upload(self, path: str, parts: Iterator[bytes], nbytes: int) -> None:
        *_, lowest = _layers(self._fs)
        _check_is_written(lowest, self.url)
        # A transaction is shared by all users of the object, so this uses a new one.
        fs = type(lowest)(*lowest.storage_args, skip_instance_cache=True, **lowest.storage_options)
        _make_parent(fs, path)
        count = 0
        with fs.transaction:
            try:
                file = fs.open(path, "wb", block_size=_PART_BYTES)
            except NotImplementedError as error:
                message = f"{self.url.shown}: fsspec cannot write there"
                raise io.UnsupportedOperation(message) from error
            for part in parts:
                count += len(part)
                self._check_size(len(part), file.write(part))
            file.close()
        self._forget(path)
        _drop_listings(fs, path)  # which may be from before the upload
        size = None
        with contextlib.suppress(OSError, NotImplementedError):  # it may not be looked at
            size = fs.info(path).get("size")
        self._check_size(count, size)

    def _check_size(self, expected: int, written: Any) -> None:
        if written is not None and written < expected:
            raise OSError(
                f"{self.url.shown}: short write: expected {expected} bytes, got {written}"
            )

    @_hiding
    def put(self, path: str, data: bytes, before: Any = None, *, durable: bool = True) -> None:
        self.upload(path, iter([data]), len(data))

    @_hiding
    def link(self, source: str, target: str, *, durable: bool) -> None:
        _make_parent(self._fs, target)
        self._fs.cp_file(source, target)
        self._forget(target)

    @_hiding
    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(path)

    @_hiding
    def entries(self, path: str) -> list[Entry]:
        try:
            listed = self._fs.ls(path, detail=True)
        except FileNotFoundError:
            return []
        # Some list a directory in itself.
        inside = [info for info in listed if info["name"].strip("/") != path.strip("/")]
        if listed and not inside and listed[0]["type"] == "file":
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self.url.shown)
        return [
            Entry(info["name"].rstrip("/").rsplit("/", 1)[-1], info["type"] == "directory")
            for info in inside
        ]

    @_hiding
    def is_directory(self, path: str) -> bool:
        return bool(self._fs.isdir(path))

    @_hiding
    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm(path, recursive=True)

    def _forget(self, path: str) -> None:
        from fsspec.implementations.cached import CachingFileSystem, SimpleCacheFileSystem

        for layer in _layers(self._fs):
            _drop_listings(layer, path)
            with contextlib.suppress(OSError):  # a cache that is read-only
                if isinstance(layer, SimpleCacheFileSystem):  # it identifies files only by name
                    for storage in layer.storage:
                        Path(storage, layer._mapper(path)).unlink(missing_ok=True)
                elif isinstance(layer, CachingFileSystem):
                    layer.pop_from_cache(path)


def _check_is_written(fs: Any, url: Url) -> None:
    from fsspec.archive import AbstractArchiveFileSystem  # type: ignore[import-untyped]

    if isinstance(fs, AbstractArchiveFileSystem):  # its files have no transactions
        raise io.UnsupportedOperation(
            f"{url.shown}: archives are only read: save to a path, and add that file to the archive"
        )


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
