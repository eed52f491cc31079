"""Writes files and URLs, whole or not at all."""

from __future__ import annotations

import contextlib
import glob
import io
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import treepack._core as core
from treepack._src.options import Progress, Writing, progress_bar
from treepack._src.storage import remote as _remote
from treepack._src.storage.naming import naming
from treepack._src.storage.place import local, shown, url_of

try:
    import fcntl
except ImportError:  # as on Windows
    fcntl = None  # type: ignore[assignment]


def save_layout(
    layout: core.Layout, path: str | os.PathLike[str], how: Writing, progress: Progress = None
) -> None:
    """Writes an encoding to a file, which is replaced whole or not at all.

    Missing directories are made.
    """
    nbytes = layout.nbytes + (layout.nbytes >> 10) + 1024  # compressed, it may need a little more
    layouts = [layout]  # the traceback of an error must not keep the arrays alive
    del layout
    with progress_bar(progress, "save") as tell:

        def save(place: str | os.PathLike[str] | core.Pipe) -> int:
            layout = layouts.pop()
            if how.compress:
                return layout.save_gzip(
                    place,
                    how.level,
                    numbers=how.compress == "numbers",
                    durable=how.durable,
                    threads=how.threads,
                    progress=tell,
                )
            return layout.save(place, durable=how.durable, threads=how.threads, progress=tell)

        url = url_of(path)
        if url is None:
            save(local(path))
        else:
            _remote.write(url, save, nbytes)


def write_small(path: str | os.PathLike[str], data: bytes, *, durable: bool) -> None:
    """Writes a small file whole or not at all, local or remote."""
    url = url_of(path)
    if url is None:
        core.write_file(local(path), data, durable=durable)
    else:
        store, place = _remote.file_at(url)
        store.put(place, data)


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Yields a file that replaces `path` at the end, unless there was an error.

    Missing directories are made. The core does the same for its files, with more care for
    permissions (`src/sink/replace.rs`); this is for other formats.
    """
    if url_of(path) is not None:
        raise ValueError(
            f"{shown(path)!r} is a URL, to which only treepack.save writes: write a local "
            "file, and copy it there"
        )
    target = Path(local(path))
    make_directories(target.parent)
    with spool(target, private=target.exists()) as file:
        yield file
        with naming(target):
            file.flush()
            _sync(file.fileno())
        with contextlib.suppress(OSError):  # there is no old mode, or the file system keeps none
            Path(file.name).chmod(target.stat().st_mode & 0o777)
        if fcntl is None:
            file.close()  # Windows renames no file that Python has open
        Path(file.name).replace(target)
    sync_directory(target.parent)


@contextlib.contextmanager
def spool(path: Path, *, name: Any = None, private: bool = True) -> Iterator[IO[bytes]]:
    """Yields a temporary file in the directory of a path, and removes it at the end.

    Errors in writing name the path, or what is given as `name` (see `naming`). Nobody else can open
    the file if it is `private`; otherwise its mode is that of any new file.

    It is named and locked as those of the core (`src/sink/temporary.rs`), so that the next save to
    the path removes it if this process is killed.
    """
    prefix = os.fsdecode(b".%b.treepack-" % os.fsencode(path.name)[:_MAX_NAME])
    for leftover in path.parent.glob(f"{glob.escape(prefix)}*.tmp"):
        with contextlib.suppress(OSError):
            remove_if_dead(leftover)
    mode = 0o600 if private else 0o666
    while True:
        temporary = path.parent / f"{prefix}{os.getpid():x}-{secrets.token_hex(8)}.tmp"
        try:
            file = io.BufferedRandom(_Written(temporary, mode, path if name is None else name))
            try:
                with naming(path):
                    is_locked = _is_locked(file)
                if is_locked:
                    yield file
                    return
            finally:
                with naming(path):
                    file.close()
        finally:
            temporary.unlink(missing_ok=True)


class _Written(io.FileIO):
    """A new file whose errors in writing name what it is for."""

    def __init__(self, path: Path, mode: int, source: Any):
        super().__init__(path, "x+", opener=lambda path, how: os.open(path, how, mode))
        self._source = source

    def write(self, data: Any, /) -> int:
        with naming(self._source):
            return super().write(data)


# Names of files have 255 bytes on most systems; so many are left of that of the target.
_MAX_NAME = 200


def _is_locked(file: IO[bytes]) -> bool:
    """Locks a new file; returns whether nobody has taken it for a leftover meanwhile."""
    if fcntl is not None:
        with contextlib.suppress(OSError):  # without locks nobody removes it
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return os.fstat(file.fileno()).st_nlink > 0


def _sync(file: int) -> None:
    """Syncs a file to the disk, and macOS lets the disk empty its cache as well."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        with contextlib.suppress(OSError):  # not all file systems have it
            fcntl.fcntl(file, full)
            return
    os.fsync(file)


def make_directories(path: Path) -> None:
    """Makes a directory and those above it that are missing; their names are on the disk then."""
    missing = [it for it in (path, *path.parents) if not it.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for made in missing:
        sync_directory(made.parent)


def sync_directory(path: Path) -> None:
    """Syncs the entries of a directory to the disk, where the system can do that."""
    with contextlib.suppress(OSError):
        directory = os.open(path, os.O_RDONLY)
        try:
            _sync(directory)
        finally:
            os.close(directory)


def remove_if_dead(path: Path) -> None:
    """Removes a temporary file of the core, unless its writer, which locks it, is alive.

    The file is removed while it is locked here, so that nobody can take it over meanwhile, and only
    if the name still is that of the locked file.
    """
    if fcntl is None:
        return  # there is no way to find out
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = os.fstat(file)
        if stat.S_ISREG(found.st_mode) and os.path.samestat(found, path.lstat()):
            path.unlink()
    finally:
        os.close(file)
