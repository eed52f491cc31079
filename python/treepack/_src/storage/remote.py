"""Reads and writes remote files at URLs of any store.

    reading    the end of a file, then few large ranges    Blocks ──▶ _core.Content
    writing    the output is piped, in parts               layout ──pipe──▶ store

`fetch.py` fetches ranges that will be read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator

import treepack._core as core
from treepack._src.options import Buffer, Progress, Tell, progress_bar
from treepack._src.storage.fetch import Blocks, fetching
from treepack._src.storage.store import BadNameError
from treepack._src.storage.stores import file_at, remote_store
from treepack._src.storage.urls import Url
from treepack._src.tasks import Task, Thread
from treepack.errors import TreepackError

# The maximum size in bytes of the parts that go from the pipe to the store.
_PIECE_BYTES = 4 << 20


def remote(url: Url) -> tuple[core.Content, Blocks]:
    """Opens a remote file to read it in parts; later reads fail if the file was replaced."""
    store, path = file_at(url)
    with _reading(url, "the last bytes"):
        stored = store.head(path, Blocks.END)
        if stored.nbytes is None:
            stored = store.get(path)
    version, near, at_once = stored.version, store.near, store.at_once
    length = memoryview(stored.data).nbytes if stored.nbytes is None else stored.nbytes

    def fetch(start: int, stop: int) -> Buffer:
        part = f"bytes {start} to {stop}"
        with _reading(url, part):
            data = store.range(path, start, stop, version)
        count = memoryview(data).nbytes
        if count != stop - start:
            raise OSError(
                f"{url.shown}: wrong response for {part}: expected {stop - start} bytes, got "
                f"{count}" + "; the server ignores ranges: load the file whole" * (count == length)
            )
        return data

    blocks = Blocks(fetch, length, near=near, at_once=at_once, end=stored.data)
    return core.Content.elsewhere(blocks.read, length, near), blocks


@contextlib.contextmanager
def _reading(url: Url, part: str) -> Iterator[None]:
    """Adds the part of a file to errors of a store; converts other errors to OSErrors."""
    name = url.shown
    text = f"{name}: cannot read {part}"
    try:
        yield
    except FileNotFoundError as error:
        cause = error.__cause__
        is_other = isinstance(cause, (OSError, TypeError))
        if is_other and not isinstance(cause, FileNotFoundError):
            # fsspec raises this for HTTP, also for unreachable hosts and invalid options.
            raise OSError(f"{text}: {type(cause).__name__}: {cause}") from error
        missing = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        for note in getattr(error, "__notes__", ()):
            missing.add_note(note)
        raise missing from error
    except OSError as error:
        if error.errno is None and str(error).startswith(name):
            error.add_note(text)
        elif error.errno is None:
            error.args = (f"{text}: {error}",)
        elif error.filename is None:
            error.filename = text
        raise
    except (MemoryError, ImportError, TreepackError, BadNameError):
        raise
    except Exception as error:  # libraries below fsspec have their own classes
        raise OSError(f"{text}: {type(error).__name__}: {error}") from error


def downloaded(url: Url, progress: Progress = None) -> core.Content:
    content, blocks = remote(url)
    with progress_bar(progress, "load") as tell:
        return in_memory(content, blocks, tell)


def in_memory(content: core.Content, blocks: Blocks, tell: Tell | None = None) -> core.Content:
    with fetching([(blocks, (0, blocks.length))]):
        return content.in_memory(progress=tell)


def read_small(url: Url) -> bytes:
    store, path = remote_store(url)
    with _reading(url, "all bytes"):
        return bytes(store.get(path).data)


def write(url: Url, save: Callable[[core.Pipe], int], nbytes: int) -> None:
    store, path = file_at(url)
    reader, writer = core.Pipe.pair()

    def run() -> int:
        try:
            return save(writer)
        finally:
            writer.close()

    saving = Task(run)
    stopped = threading.Event()

    def parts() -> Iterator[bytes]:
        Thread(saving.attempt)
        count = 0
        while part := reader.read(_PIECE_BYTES):
            if stopped.is_set():
                raise InterruptedError("the upload was stopped")
            count += len(part)
            yield part
        written = saving.result()  # its error ends the upload
        if count != written:
            raise OSError(
                f"{url.shown}: short read from the pipe: expected {written} bytes, got {count}"
            )

    try:
        uploading = Task(lambda: store.upload(path, parts(), nbytes))
        try:
            with contextlib.suppress(RuntimeError, MemoryError):
                Thread(uploading.attempt)  # so that this thread can be interrupted
            uploading.result()
        finally:
            stopped.set()
            uploading.end()
    finally:
        reader.close()
        saving.end()  # it ends, since the pipe is no longer read
