"""Directories of objects that never change, with a head: a small file that names some of them."""

from __future__ import annotations

import contextlib
import functools
import re
import zlib
from collections.abc import Callable, Collection, Iterator
from typing import Any, ClassVar, TypeVar

import treepack._core as core
from treepack._src.options import Opening, StorageOptions
from treepack._src.saving.lease import FILE as LEASE
from treepack._src.saving.lease import Permit, leased
from treepack._src.storage.address import Address, Location
from treepack._src.storage.content import content_of
from treepack._src.storage.naming import naming
from treepack._src.storage.store import ConditionError
from treepack._src.storage.write import pieces
from treepack.errors import CorruptionError

T = TypeVar("T")


class Objects:
    """The objects and the head of a directory.

    Attributes:
      Changed: The error of `replace_head` if another writer has replaced it since.
    """

    Changed: ClassVar[type[Exception]] = ConditionError

    def __init__(self, path: Location, head: str, names: str, storage_options: StorageOptions):
        """Takes the name of the head, and a pattern of the names of objects."""
        self._path = Address.of(path, storage_options).fixed()
        self._head, self._name, self._names = self._path / head, head, names
        self._permit = Permit()

    def __str__(self) -> str:
        return self._path.shown

    def head(self, parse: Callable[[bytes], T]) -> tuple[T | None, bytes | None, Any]:
        """Reads the head; errors of `parse` name it.

        Returns:
          The result of `parse` and the bytes, or `None`, and their version in the store.
        """
        data, version = self._head.versioned()
        with naming(self._head):
            return None if data is None else parse(data), data, version

    @contextlib.contextmanager
    def leased(self, name: str) -> Iterator[None]:
        """Keeps other jobs from writing to a local directory; see `leased`."""
        with leased(self._path, name) as self._permit:
            yield

    @property
    def is_leased(self) -> bool:
        """Whether no other job took this process for dead."""
        return self._permit.is_held

    def replace_head(self, data: bytes, version: Any, *, durable: bool) -> None:
        """Replaces the head if it still has a version; within `leased`."""
        self._permit.commit(self._head, data, version, durable=durable)

    def read(
        self,
        name: str,
        max_size: int | None,
        base: core.Content | None = None,
        expected: tuple[int, int] | None = None,
    ) -> core.Content:
        """Reads an object.

        Args:
          name: Its name.
          max_size: The maximum size in bytes.
          base: Its base if it is a patch.
          expected: Its size and CRC-32.

        Raises:
          CorruptionError: If it differs from `expected`.
        """
        path = self._path / name
        with naming(path):
            content = content_of(path, Opening(mmap=False, base=base, max_size=max_size))
            if expected is not None and expected != (content.nbytes, sum_of(content)):
                raise CorruptionError(
                    f"the anchor is damaged: expected the size and CRC-32 {expected}, found "
                    f"{content.nbytes} bytes; wait for the next one"
                )
        return content

    def write(self, name: str, content: core.Content, *, durable: bool) -> None:
        """Writes an object."""
        (self._path / name).write_content(content, durable=durable)

    def remove_others(self, kept: Collection[str]) -> None:
        """Removes all objects except some, and the temporary files of killed writers."""
        others = "|".join((self._names, *map(re.escape, (self._name, LEASE))))
        temporary = re.compile(rf"\.(?:{others})\.treepack-.*\.tmp")
        gone = []
        for name in (entry.name for entry in self._path.entries()):
            if re.fullmatch(self._names, name) and name not in kept:
                gone.append(name)
            elif temporary.fullmatch(name):
                (self._path / name).remove_dead()
        self._path.remove_files(gone)


def sum_of(content: core.Content) -> int:
    """Returns the CRC-32 of a content."""
    return functools.reduce(lambda crc, piece: zlib.crc32(piece, crc), pieces(content), 0)
