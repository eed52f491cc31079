"""A directory of objects that never change, and a head that names them, which is replaced."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

import treepack._core as core
from treepack._src.claims.directory import writer
from treepack._src.claims.lease import Permit
from treepack._src.options import Opening, StorageOptions, check_in_time
from treepack._src.storage.address import Address, Location
from treepack._src.storage.content import content_of
from treepack._src.storage.foreign import substitute
from treepack._src.storage.naming import naming
from treepack._src.storage.store import ConditionError
from treepack._src.storage.write import pieces
from treepack._src.tasks import Turns
from treepack.errors import BusyError, CorruptionError, TreepackError

T = TypeVar("T")


class Ledger:
    """Needs a `turn` to replace the head; in a store, `replace` raises `Changed` if another did."""

    Changed: ClassVar[type[Exception]] = ConditionError

    def __init__(self, path: Location, storage_options: StorageOptions, head: str):
        self.path = Address.of(path, storage_options).fixed()
        self._head = self.path / head
        self._permit = Permit()
        self._turns = Turns()

    def __str__(self) -> str:
        return self.path.shown

    def head(self, parse: Callable[[Any], T]) -> tuple[T | None, bytes | None, Any]:
        """Returns the parsed head and its bytes, or `None` twice, and a mark for `replace`."""
        data, mark = self._head.versioned()
        with naming(self._head):
            return None if data is None else _parsed(data, parse), data, mark

    @staticmethod
    def encoded(head: Mapping[str, Any]) -> bytes:
        return json.dumps({**head, "writer": writer()}).encode()

    def read(
        self,
        name: str,
        base: core.Content | None = None,
        max_size: int | None = None,
        check: Callable[[core.Content], None] | None = None,
    ) -> core.Content:
        path = self.path / name
        with naming(path):
            content = content_of(path, Opening(mmap=False, base=base, max_size=max_size))
            if check is not None:
                check(content)
            return content

    def write(self, name: str, content: core.Content, *, durable: bool) -> None:
        (self.path / name).write_content(content, durable=durable)

    @staticmethod
    def sum_of(content: core.Content) -> tuple[int, int]:
        """Returns the size in bytes and CRC-32."""
        crc = functools.reduce(lambda crc, piece: zlib.crc32(piece, crc), pieces(content), 0)
        return content.nbytes, crc

    @contextlib.contextmanager
    def turn(self, name: str, busy: str) -> Iterator[None]:
        """Keeps out other threads and, by the lease of a local directory, other jobs.

        `busy` is the error's text if a signal handler has interrupted a turn of this thread.
        """
        check_in_time()
        with self._turns.taken() as is_taken:
            if not is_taken:
                raise BusyError(busy)
            with Permit.taken(self.path, name) as self._permit:
                yield

    def replace(self, head: bytes, mark: Any, *, durable: bool) -> None:
        self._permit.commit(self._head, head, mark, durable=durable)

    def tidy(self, objects: str, kept: Collection[str]) -> None:
        """Removes the objects of a pattern except the kept ones, and files of killed writers."""
        if not self._permit.is_held:  # then that job does it
            return
        gone = []
        for entry in self.path.entries():
            if re.fullmatch(objects, entry.name) and entry.name not in kept:
                gone.append(entry.name)
            elif entry.is_temporary:
                (self.path / entry.name).remove_dead()
        self.path.remove_files(gone)


def _parsed(data: bytes, parse: Callable[[Any], T]) -> T:
    try:
        return parse(json.loads(data))
    except TreepackError:
        raise
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        text = f"it is {substitute(data) or f'not a head of published versions: {error}'}"
        raise CorruptionError(text) from error
