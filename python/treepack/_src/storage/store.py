"""The interface of stores: the disk (`disk.py`), obstore (`objects.py`), fsspec (`filesystems.py`).

Modules above know none of them.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from treepack._src.options import Buffer
from treepack.errors import TreepackError


class Entry(NamedTuple):
    """The name of a file or directory."""

    name: str
    is_directory: bool


class Stored(NamedTuple):
    """What a request tells of a file.

    Attributes:
      nbytes: The size of the file in bytes; `None` if the server does not report it.
      version: The version of the file, for conditions; `None` if it has none.
      data: Some of its last bytes, or all.
    """

    nbytes: int | None
    version: Any
    data: Buffer


class ConditionError(TreepackError):
    """A file is not, or no more, as it was when it was read."""


class BadNameError(ValueError):
    """A store can have no file of this name."""


# Instead of a version: there must be no such file.
ABSENT = object()


class Store(abc.ABC):
    """Files by their paths: of the system, of an object store, or of a file system of fsspec.

    All methods may be called by several threads. They raise FileNotFoundError for missing files,
    OSError, with the path, for files that cannot be read or written, and BadNameError for names
    that the store cannot have.

    Attributes:
      is_local: Whether it is the system's: files are mapped, and a directory is locked.
      has_conditions: Whether `put` keeps its condition.
    """

    is_local: bool = False
    has_conditions: bool = False

    @abc.abstractmethod
    def get(self, path: str) -> Stored:
        """Reads a whole file, which should be small."""

    @abc.abstractmethod
    def put(self, path: str, data: bytes, before: Any = None, *, durable: bool = True) -> None:
        """Writes a small file atomically.

        Args:
          path: The path.
          data: Its content.
          before: The version that it must replace; `ABSENT` if there must be none. `None` replaces
            any.
          durable: Whether to wait for the disk of the system; stores always are durable.

        Raises:
          ConditionError: If another one is there.
        """

    @abc.abstractmethod
    def delete(self, paths: Sequence[str]) -> None:
        """Deletes files, at once where possible. Missing ones are deleted already."""

    @abc.abstractmethod
    def entries(self, path: str) -> list[Entry]:
        """Lists a directory; a missing one has no entries."""

    def listed(self, path: str) -> list[Entry] | None:
        """Lists a directory; `None` if there is none, or it may not be listed."""
        return self.entries(path) if self.is_directory(path) else None

    @abc.abstractmethod
    def exists(self, path: str) -> bool:
        """Returns whether there is a file or directory."""

    @abc.abstractmethod
    def is_directory(self, path: str) -> bool:
        """Returns whether there is a directory."""

    @abc.abstractmethod
    def remove(self, path: str) -> None:
        """Deletes a file, or a directory with all that is in it, unless it is missing."""


class RemoteStore(Store):
    """Files that are read by requests for ranges.

    Attributes:
      near: The number of bytes that take as long as another request.
      at_once: The most requests at a time.
    """

    near: int
    at_once: int

    @abc.abstractmethod
    def head(self, path: str, count: int) -> Stored:
        """Looks at a file.

        Args:
          path: The path.
          count: The number of its last bytes to read in the same request, where a store can.

        Raises:
          IsADirectoryError: If it is a directory.
        """

    @abc.abstractmethod
    def range(self, path: str, start: int, stop: int, version: Any) -> Buffer:
        """Reads a range of a file, which may be short.

        Raises:
          ConditionError: If the file has another version now.
        """

    @abc.abstractmethod
    def upload(self, path: str, parts: Iterator[bytes], nbytes: int | None) -> None:
        """Writes a file atomically; `nbytes` is the most that it may have, if known.

        An error that `parts` raises ends the upload.
        """

    def exists(self, path: str) -> bool:
        """Returns whether there is a file or directory."""
        try:
            self.head(path, 1)
        except FileNotFoundError:
            return False
        except IsADirectoryError:
            pass
        return True
