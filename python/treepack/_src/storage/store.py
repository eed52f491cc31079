"""What every kind of remote storage can do, and nothing else.

`objects.py` implements it by obstore, `filesystems.py` by fsspec. All above knows neither.
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
    """Files by their paths, in a store or a file system.

    All methods may be called by several threads. They raise FileNotFoundError for what is missing,
    OSError, with the URL, for what cannot be read or written, and BadNameError for what they cannot
    name.

    Attributes:
      near: As many bytes take as long as another request.
      at_once: The most requests at a time.
      has_conditions: Whether `put` keeps its condition.
    """

    near: int
    at_once: int
    has_conditions: bool = False

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
    def get(self, path: str) -> Stored:
        """Reads a whole file, which should be small."""

    @abc.abstractmethod
    def range(self, path: str, start: int, stop: int, version: Any) -> Buffer:
        """Reads a range of a file, which may be short.

        Raises:
          ConditionError: If the file has another version now.
        """

    @abc.abstractmethod
    def upload(self, path: str, parts: Iterator[bytes], nbytes: int | None) -> None:
        """Writes a file whole or not at all; `nbytes` is the most that it may have, if known.

        An error that `parts` raises ends the upload.
        """

    @abc.abstractmethod
    def put(self, path: str, data: bytes, before: Any = None) -> None:
        """Writes a small file whole or not at all.

        Args:
          path: The path.
          data: Its content.
          before: The version that it must replace; `ABSENT` if there must be none. `None` replaces
            any.

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
    def is_directory(self, path: str) -> bool:
        """Returns whether there is a directory."""

    @abc.abstractmethod
    def remove(self, path: str) -> None:
        """Deletes a file, or a directory with all that is in it."""
