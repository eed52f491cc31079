"""Writes files and URLs atomically."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import IO, Any

import treepack._core as core
from treepack._src.options import Progress, Writing, progress_bar
from treepack._src.storage import remote as _remote
from treepack._src.storage.naming import naming
from treepack._src.storage.place import url_of
from treepack._src.storage.stores import file_at, store_of

# The size in bytes of the parts in which data are read, copied or uploaded.
_PIECE_BYTES = 4 << 20


# Raises an error if a file must not get its name; called when its bytes are written.
Check = Callable[[], None]


def save_layout(
    layout: core.Layout,
    path: str | os.PathLike[str],
    writing: Writing,
    progress: Progress = None,
    check: Check | None = None,
) -> None:
    """Writes an encoding to a file, atomically.

    Missing directories are created.
    """
    nbytes = layout.nbytes + (layout.nbytes >> 10) + 1024  # compression may add a little
    layouts = [layout]  # the traceback of an error must not keep the arrays alive
    del layout
    with progress_bar(progress, "save") as tell:

        def each(done: int, total: int) -> None:
            if check is not None and done == total:
                check()
            if tell is not None:
                tell(done, total)

        def save(place: str | os.PathLike[str] | core.Pipe) -> int:
            return layouts.pop().save(
                place,
                compress=writing.compress,
                level=writing.level,
                durable=writing.durable,
                threads=writing.threads,
                progress=tell if check is None else each,
            )

        url = url_of(path)
        if url is None:
            try:
                save(path)
            except (IsADirectoryError, NotADirectoryError) as error:
                is_inside = isinstance(error, NotADirectoryError) and os.path.basename(path)  # noqa: PTH119
                error.add_note(
                    "a folder above it is a file: choose another folder"
                    if is_inside
                    else "choose a file in it; save(..., sharded=True) writes a directory"
                )
                raise
        else:
            _remote.write(url, save, nbytes)


def write_small(path: str | os.PathLike[str], data: bytes, *, durable: bool) -> None:
    """Writes a small file atomically, local or remote."""
    store, place = store_of(path)
    store.put(place, data, durable=durable)


def copy_file(
    source: str | os.PathLike[str], path: str | os.PathLike[str], check: Check | None = None
) -> int:
    """Copies a local file to a path or URL, atomically; returns its number of bytes.

    To a local path the system copies, which shares the blocks on disk where the file system can.
    """
    content = core.Content.map(source)
    if url_of(path) is not None:
        write_content(path, content, durable=True, check=check)
        return content.nbytes
    with replacing(path) as file:
        copied = _copied(source, file.fileno(), content.nbytes)
        file.seek(copied)
        file.writelines(pieces(content, copied))
        if check is not None:
            check()
    return content.nbytes


def _copied(source: str | os.PathLike[str], target: int, nbytes: int) -> int:
    """Copies a file within the system; returns the number of bytes until this failed."""
    at = 0
    if sys.platform == "linux":
        with contextlib.suppress(OSError), open(source, "rb", buffering=0) as file:  # noqa: PTH123
            while at < nbytes:
                count = os.copy_file_range(file.fileno(), target, min(_PIECE_BYTES, nbytes - at))
                if count == 0:
                    break
                at += count
    return at


def write_content(
    path: str | os.PathLike[str],
    content: core.Content,
    *,
    durable: bool,
    check: Check | None = None,
) -> None:
    """Writes a file of any size atomically, local or remote."""

    def parts() -> Iterator[bytes]:
        yield from pieces(content)
        if check is not None:
            check()

    url = url_of(path)
    if url is None:
        with replacing(path, durable=durable) as file:
            file.writelines(parts())
    else:
        store, place = file_at(url)
        store.upload(place, parts(), content.nbytes)


def pieces(content: core.Content, start: int = 0) -> Iterator[bytes]:
    """Yields the bytes of a content from a start on, a few MiB at a time."""
    nbytes = content.nbytes
    for at in range(start, nbytes, _PIECE_BYTES):
        yield content.read_range(at, min(at + _PIECE_BYTES, nbytes))


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], *, durable: bool = True) -> Iterator[IO[bytes]]:
    """Yields a file of another format that replaces `path`, or is uploaded to it, on success.

    Missing directories are created.
    """
    if url_of(path) is not None:
        with spool(path) as file:
            yield file
            file.flush()
            content = core.Content.map(file.name) if file.tell() else core.Content.lent(b"")
            write_content(path, content, durable=durable)
        return
    with _temporary(path, path, private=False) as (replacement, file):
        yield file
        with naming(path):
            file.close()
            replacement.complete(durable=durable)


@contextlib.contextmanager
def spool(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Yields a private temporary file, and removes it afterwards.

    It is in the directory of a local path, or, for URLs, in the default directory for temporary
    files. Errors in writing name the path.
    """
    place = path if url_of(path) is None else f"{tempfile.gettempdir()}/treepack"
    with _temporary(place, path, private=True) as (_, file):
        yield file


@contextlib.contextmanager
def _temporary(
    path: str | os.PathLike[str], given: Any, *, private: bool
) -> Iterator[tuple[core.Replacement, IO[bytes]]]:
    replacement = core.Replacement(path, private=private)
    try:
        file = io.BufferedRandom(_Named(replacement, given))
        try:
            yield replacement, file
        finally:
            # Not `file.close`, which raises another error after an interrupt within it.
            file.raw.close()
    finally:
        replacement.discard()


class _Named(io.FileIO):
    """A temporary file whose errors in writing name the final path."""

    def __init__(self, replacement: core.Replacement, given: Any):
        descriptor = replacement.descriptor()
        if sys.platform == "win32":
            import msvcrt

            descriptor = msvcrt.open_osfhandle(descriptor, os.O_RDWR)
        super().__init__(descriptor, "r+")
        self.name = replacement.name
        self._given = given

    def write(self, data: Any, /) -> int:
        with naming(self._given):
            return super().write(data)

    def close(self) -> None:
        with naming(self._given), contextlib.suppress(InterruptedError):  # it is closed then, too
            super().close()
