from __future__ import annotations

import abc
import contextlib
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from treepack._src.options import Buffer
from treepack.errors import TreepackError


class Entry(NamedTuple):
    name: str
    is_directory: bool

    @property
    def is_temporary(self) -> bool:
        return _TEMPORARY.fullmatch(self.name) is not None


_TEMPORARY = re.compile(r"\..*\.treepack-.*\.tmp", re.DOTALL)


def is_hidden(name: str) -> bool:
    """Returns whether a name is of a hidden file, which systems and editors put beside others.

    Such as `._model` of macOS, `.#model` of Emacs, `.nfs01`, and `.DS_Store`; not temporary files
    of treepack, which the next save removes, and files of Zarr.
    """
    return name.startswith(".") and ".treepack-" not in name and not name.startswith(".z")


class Response(NamedTuple):
    """The response to a request for a file: size and version, if known, and some last bytes."""

    nbytes: int | None
    version: Any
    data: Buffer


class ConditionError(TreepackError):
    """A file does not have the expected version."""


class BadNameError(ValueError):
    """A store does not allow this file name."""


# Instead of a version: the file must not exist.
NO_FILE = object()


class Store(abc.ABC):
    """Files by their paths: of the system, of an object store, or of a file system of fsspec.

    All methods are thread-safe. They raise FileNotFoundError for missing files, OSError with the
    path for files that cannot be read or written, and BadNameError for invalid names.

    Attributes:
      has_conditions: Whether `put` checks its condition.
    """

    has_conditions: bool = False

    @abc.abstractmethod
    def get(self, path: str) -> Response: ...

    @abc.abstractmethod
    def put(self, path: str, data: bytes, before: Any = None, *, durable: bool = True) -> None:
        """Writes a small file atomically.

        It must replace the version `before`, or be missing (`NO_FILE`): otherwise a ConditionError.
        `None` replaces any. `durable` waits for the local disk.
        """

    @abc.abstractmethod
    def link(self, source: str, target: str, *, durable: bool) -> None:
        """Gives a file a second name in an existing directory, or copies it inside the store.

        `durable` waits for the local disk. Raises an OSError if the store cannot link this file, a
        NotImplementedError if it cannot link any.
        """

    @abc.abstractmethod
    def delete(self, paths: Sequence[str]) -> None:
        """Deletes files, in one request where possible. Some may be missing."""

    @abc.abstractmethod
    def entries(self, path: str) -> list[Entry]: ...

    def listed(self, path: str) -> list[Entry] | None:
        """Lists a directory; `None` if it does not exist, or may not be listed."""
        return self.entries(path) if self.is_directory(path) else None

    @abc.abstractmethod
    def exists(self, path: str) -> bool: ...

    @abc.abstractmethod
    def is_directory(self, path: str) -> bool: ...

    @abc.abstractmethod
    def remove(self, path: str) -> None:
        """Deletes a file, or a directory with its content, if it exists."""


# The number of bytes to read at a time from a file that was sent.
_READ_BYTES = 16 << 20


class _Sent:
    def __init__(self, parts: Iterator[bytes]):
        self._parts = parts
        self.nbytes = self.crc = 0
        self.is_whole = False

    def __iter__(self) -> Iterator[bytes]:
        for part in self._parts:
            self.nbytes += len(part)
            self.crc = zlib.crc32(part, self.crc)
            yield part
        self.is_whole = True


class RemoteStore(Store):
    """Files that are read by requests for ranges.

    Attributes:
      near: The number of bytes that take as long to transfer as a request.
      at_once: The maximum number of requests at a time.
    """

    near: int
    at_once: int

    @abc.abstractmethod
    def head(self, path: str, count: int) -> Response:
        """Returns size and version of a file, with its last `count` bytes if the store can."""

    @abc.abstractmethod
    def range(self, path: str, start: int, stop: int, version: Any) -> Buffer:
        """Reads a range of a file, which may be short; a ConditionError if `version` changed."""

    def upload(self, path: str, parts: Iterator[bytes], nbytes: int) -> None:
        """Writes a file of at most `nbytes` atomically.

        An error in `parts` aborts the upload. A later error, such as of a repeated request, is
        ignored if the file is there.
        """
        sent = _Sent(parts)
        try:
            self._upload(path, iter(sent), nbytes)
        except Exception:
            if not sent.is_whole or not self._holds(path, sent):
                raise

    @abc.abstractmethod
    def _upload(self, path: str, parts: Iterator[bytes], nbytes: int) -> None: ...

    def _holds(self, path: str, sent: _Sent) -> bool:
        with contextlib.suppress(Exception):
            stored = self.head(path, 1)
            if stored.nbytes != sent.nbytes:
                return False
            crc = 0
            for start in range(0, sent.nbytes, _READ_BYTES):
                stop = min(start + _READ_BYTES, sent.nbytes)
                crc = zlib.crc32(self.range(path, start, stop, stored.version), crc)
            return crc == sent.crc
        return False

    def exists(self, path: str) -> bool:
        try:
            self.head(path, 1)
        except FileNotFoundError:
            return False
        except IsADirectoryError:
            pass
        return True
