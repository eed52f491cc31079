"""Claims the directory of a sharded checkpoint, commits to it, and cleans it.

Only one job can commit. In a local directory it holds a lease (`lease.py`). In a store, a
conditional request replaces the manifest only if it has not changed since the save began, and the
cleanup spares files of a job that began after the commit.
"""

from __future__ import annotations

import abc
import contextlib
import errno
import hashlib
import os
import re
import secrets
import socket
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import treepack._core as core
from treepack._src.calls import repeated
from treepack._src.claims.lease import FILE as LEASE
from treepack._src.claims.lease import Lease, OwnBusyError, among_processes, make_directory
from treepack._src.printable import utc, warn
from treepack._src.registry.static import metadata_in
from treepack._src.sharded.files import MANIFEST, NAME
from treepack._src.storage.address import Address
from treepack._src.storage.content import Opened
from treepack._src.storage.naming import naming
from treepack._src.storage.store import ConditionError
from treepack._src.tasks import Milestone
from treepack.errors import BusyError, DecodeError

# The seconds between checks whether another thread still saves to a directory.
_LOOK_S = 0.005

_SHARD_FILE = re.compile(rf"{NAME}|\.({NAME}|(lease|manifest)\.treepack)\.treepack-.*\.tmp")


class Names(frozenset[str]):
    @property
    def are_unfinished(self) -> bool:
        return all(name == LEASE or _SHARD_FILE.fullmatch(name) for name in self)

    @property
    def are_sharded(self) -> bool:
        return MANIFEST in self

    @property
    def has_others(self) -> bool:
        others = (name for name in self if name != MANIFEST and ".treepack-" not in name)
        return not Names(others).are_unfinished


class Written(NamedTuple):
    """A file with shards.

    Attributes:
      others: The name, size and record of each other file with shards of its process.
      places: The file of each shard, in the order of the plan: 0 for this file, 1 for the first of
        `others`. Empty if all are in this file.
    """

    name: str
    nbytes: int
    record: int  # its CRC-32
    plan: Any
    others: Sequence[tuple[str, int, int]] = ()
    places: Sequence[int] = ()


# The claimed directories by identity. Other threads change it, so it is copied, which is one step.
_claimed: dict[int, weakref.ref[Directory]] = {}


def interrupted(path: Address) -> list[Directory]:
    """Returns the saves to a directory that a signal handler in this thread has interrupted.

    They continue after the handler's save, which spares their files, and replace its checkpoint.
    """
    mine = path.real(), threading.get_ident()
    claims = (claim() for claim in _claimed.copy().values())
    return [claim for claim in claims if claim is not None and claim.claimed == mine]


def _is_of(name: str, save: str) -> bool:
    return name.lstrip(".").startswith(f"{save}-")


class Directory(abc.ABC):
    """The directory of a checkpoint.

    Attributes:
      claimed: The place and the claiming thread.
      linked: Files that the save links from another directory.
    """

    def __init__(self, path: Address):
        self._path = path
        self.claimed: tuple[str, int] | None = None
        self.linked: set[str] = set()
        self._name = ""  # of the uncommitted save
        self._before: Any = None  # the version that a commit replaces, unless
        self._overtaken: list[Any] = []  # signal handlers have replaced it by these
        self._replaced: set[str] = set()  # the files of the replaced checkpoint
        self._interrupted: list[Directory] = []

    @staticmethod
    def at(path: Address) -> Directory:
        return LocalDirectory(path) if path.is_local else RemoteDirectory(path)

    @staticmethod
    def file_name(name: str, process: int, part: int = 0) -> str:
        number = f"{part:05}" if part else ""
        return f"{name}-{process:05}{number}.treepack"

    def __str__(self) -> str:
        return self._path.shown

    def file(self, name: str) -> Address:
        return self._path / name

    def claim(self, name: str) -> None:
        self._interrupted = interrupted(self._path)
        self._name, self.claimed = name, (self._path.real(), threading.get_ident())
        _claimed[id(self)] = weakref.ref(self)
        try:
            self._claim(name)
        except BaseException:
            self.release()
            raise

    @abc.abstractmethod
    def _claim(self, name: str) -> None: ...

    @contextlib.contextmanager
    def held(self) -> Iterator[Callable[[], None]]:
        """Keeps other jobs from saving to a local directory, or removing from it.

        Yields a check of the claim. Waits for other threads of this process, except one that itself
        waits, perhaps in a signal handler for this call.
        """
        yield self.check  # in a store the owner is unknown

    def remove(self) -> None:
        """Removes the manifest first, so that the rest is not a checkpoint."""
        self._path.remove_files([MANIFEST])
        self._path.remove()

    @abc.abstractmethod
    def remove_unfinished(self) -> None:
        """Removes the directory of a killed save if possible, unless a job saves to it."""

    @abc.abstractmethod
    def check(self) -> None:
        """Raises a BusyError if another job took this process for dead."""

    def _spares(self, name: str) -> bool:
        if self._interrupted and name.startswith(f".{LEASE}."):
            return True  # which it may not have locked yet
        return any(name in other.linked or _is_of(name, other._name) for other in self._interrupted)

    def _is_ours(self, name: str) -> bool:
        if (
            name.startswith(".")
            or name in self._replaced
            or (self._name and _is_of(name, self._name))
        ):
            return True
        with contextlib.suppress(Exception):
            return self.look(name).plan is not None
        return False

    def _has_committed(self, now: Any) -> None:
        self._name = ""
        for directory in self._interrupted:
            directory._overtaken.append(now)  # beside that of a handler which has come after this

    @abc.abstractmethod
    def commit(self, manifest: bytes, names: set[str], *, durable: bool) -> None:
        """Replaces the manifest that existed at the claim; a BusyError if another job did.

        `names` are those in the directory after all files were written.
        """

    def _warn(self, kept: Sequence[str]) -> None:
        if kept and not self._name:
            warn_of_kept([self.file(name) for name in kept])

    @abc.abstractmethod
    def clean(self) -> None:
        """Removes the files of uncommitted and replaced saves, except of jobs that may be alive."""

    def release(self) -> None:
        self.claimed = None
        _claimed.pop(id(self), None)

    def _manifest(self) -> tuple[bytes | None, Any]:
        return (self._path / MANIFEST).versioned()

    def names(self) -> set[str]:
        return {entry.name for entry in self._path.entries()}

    def look(self, name: str) -> Written:
        """Raises a DecodeError if the file is damaged or not regular."""
        return self.read(name)[0]

    def read(self, name: str) -> tuple[Written, core.Catalog]:
        with naming(self.file(name)):
            parts = Opened.of(self.file(name), regular=True)
            catalog = core.Catalog.open(parts.content, salvage=False)
            record = catalog.record
            if record is None:
                raise DecodeError("the file has no record of the tree's structure")
        about = metadata_in(record, unknown_as_dict=False)
        plan = about.get("plan") if isinstance(about, dict) else None
        return Written(name, parts.nbytes, zlib.crc32(record), plan), catalog


def _files_of(manifest: bytes | None) -> set[str] | None:
    if manifest is None:
        return set()
    try:
        return {name for name, _, _ in core.Manifest.decode(manifest).files}
    except DecodeError:  # perhaps of a newer version
        return None


def _hash_of(manifest: bytes | None) -> bytes | None:
    # A CRC would be constant: a manifest ends with its own.
    return None if manifest is None else hashlib.blake2b(manifest).digest()


class LocalDirectory(Directory):
    def __init__(self, path: Address):
        super().__init__(path)
        self._lease, self._is_shared = Lease(Path(self._path)), False

    def _claim(self, name: str) -> None:
        path = Path(self._path)
        make_directory(path)
        try:
            try:
                self._lease.take(name)
            except OwnBusyError:
                local = [each for each in self._interrupted if isinstance(each, LocalDirectory)]
                held = next((each._lease for each in local if each._lease.is_held), None)
                if held is None:
                    raise
                self._lease, self._is_shared = held, True
            data, _ = self._manifest()
            self._before, self._replaced = _hash_of(data), _files_of(data) or set()
        except OSError as error:
            naming(self._path).add_to(error)
            raise
        self.clean()

    @contextlib.contextmanager
    def held(self) -> Iterator[Callable[[], None]]:
        # The lease of a thread that waited at the last look, unless it had released it.
        waiting = ""
        while True:
            try:
                self.claim(secrets.token_hex(4))
                break
            except OwnBusyError as error:
                if error.token == waiting:
                    raise
                waiting = error.token if error.thread in Milestone.waiting else ""
            time.sleep(_LOOK_S)
        try:
            yield self.check
        finally:
            self.release()

    def remove_unfinished(self) -> None:
        with contextlib.suppress(BusyError, OSError):
            self.claim(secrets.token_hex(4))  # a claim cleans the directory
            self.release()
            repeated(os.rmdir, self._path)

    def check(self) -> None:
        self._lease.check()

    def commit(self, manifest: bytes, names: set[str], *, durable: bool) -> None:
        del names
        now = _hash_of(self._manifest()[0])
        if now != self._before and now not in self._overtaken:
            raise BusyError(f"another job saved to {self} at the same time: save again")
        self._lease.commit(self.file(MANIFEST), manifest, durable=durable)
        self._has_committed(_hash_of(manifest))

    def clean(self) -> None:
        if not self._lease.is_held:
            return
        kept: list[str] = []
        with contextlib.suppress(Exception):
            names = self.names()  # before the manifest, which a signal handler may replace
            used = _files_of(self._manifest()[0])
            if used is None:
                return
            for name in names - used:
                if not _SHARD_FILE.fullmatch(name) or self._spares(name) or not self._is_ours(name):
                    continue
                try:
                    self._remove(name)
                except PermissionError:
                    kept.append(name)
                except Exception:  # concerns one file; continue with the others
                    pass
        self._warn(kept)

    def _remove(self, name: str) -> None:
        path = Path(self.file(name))
        if name.startswith("."):
            core.remove_if_dead(path)
        else:
            repeated(path.unlink)

    def _spares(self, name: str) -> bool:
        spared = self._lease.spared
        return super()._spares(name) or (spared is not None and _is_of(name, spared))

    def release(self) -> None:
        try:
            if not self._is_shared:
                self._lease.release()
        finally:
            super().release()


class RemoteDirectory(Directory):
    def __init__(self, path: Address):
        super().__init__(path)
        self._store, self._place = path.store()
        self._leftovers: set[str] = set()

    def _claim(self, name: str) -> None:
        del name
        data, version = self._manifest()
        self._before = version, _hash_of(data)
        self._replaced = _files_of(data) or set()
        if data is None and self._path.is_object():  # it would be read instead
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(self))

    def remove_unfinished(self) -> None:
        """Does nothing: it is unknown whether a job saves to it."""

    def _at(self, name: str) -> str:
        return f"{self._place.rstrip('/')}/{name}" if self._place else name

    def check(self) -> None:
        """Does nothing: the condition in `commit` stops the later job."""

    def commit(self, manifest: bytes, names: set[str], *, durable: bool) -> None:
        del durable  # stores are always durable
        # Does not include files of a job that begins after the commit.
        listed = {name for name in names if _SHARD_FILE.fullmatch(name) and not self._spares(name)}
        if not self._store.has_conditions:
            now = _hash_of(self._manifest()[0])
            if all(now != before for _, before in (self._before, *self._overtaken)):
                raise self._busy()
        replaced = self._overtaken[-1] if self._overtaken else self._before
        # From now on the manifest may exist, regardless of the response: its files must stay.
        name, self._name = self._name, ""
        try:
            self._store.put(self._at(MANIFEST), manifest, replaced[0])
        except Exception as error:
            # If a response was lost, the repeated request may find its own manifest.
            if self._is_there(manifest):
                pass
            elif isinstance(error, ConditionError):
                self._name = name
                data, version = self._manifest()
                current = version, _hash_of(data)
                if current in self._overtaken and current != replaced:
                    self._overtaken.append(current)
                    return self.commit(manifest, names, durable=True)
                raise self._busy() from error
            else:
                raise
        files = _files_of(manifest)
        old = set() if files is None else listed - files
        self._leftovers = {name for name in old if self._is_ours(name)}
        if self._interrupted:
            now, version = self._manifest()
            if now == manifest:  # else another job committed
                self._has_committed((version, _hash_of(now)))

    def _is_there(self, manifest: bytes) -> bool:
        with contextlib.suppress(Exception):
            return self._manifest()[0] == manifest
        return False

    def _busy(self) -> BusyError:
        writer = ""
        with contextlib.suppress(Exception):  # it may be missing again
            data = self._manifest()[0]
            writer = "" if data is None else core.Manifest.decode(data).writer
        message = f"another job saved to {self} at the same time: save again"
        return BusyError((f"{message}: {writer}" if writer else message) + among_processes())

    def clean(self) -> None:
        kept: list[str] = []
        with contextlib.suppress(Exception):
            if self._name:
                linked = self.linked - self._replaced
                self._leftovers |= {
                    name
                    for name in self.names()
                    if (name in linked and not self._spares(name))
                    or (name.startswith(f"{self._name}-") and _SHARD_FILE.fullmatch(name))
                }
            try:
                self._store.delete([self._at(name) for name in sorted(self._leftovers)])
            except PermissionError:
                kept = sorted(self._leftovers)
        self._leftovers = set()
        self._warn(kept)


def warn_of_kept(paths: Sequence[Address]) -> None:
    more = f" and {len(paths) - _MOST_NAMES} more" if len(paths) > _MOST_NAMES else ""
    warn(
        "the save is complete, but there is no permission to delete the replaced files "
        f"{', '.join(path.shown for path in paths[:_MOST_NAMES])}{more}: delete them manually"
    )


# The maximum number of names in a warning.
_MOST_NAMES = 10


def writer() -> str:
    return f"process {os.getpid()} on {socket.gethostname()} at {utc(time.time())}"
