"""Writing the files of a sharded checkpoint, and the manifest that makes them one.

    tree ──walk──▶ encoding with holes ──▶ who writes which shard ──▶ a file of this process
                          └──────────────── process 0, when all have written ──▶ manifest

A directory without a manifest is no checkpoint. Each attempt has its own file names, so a directory
that is saved to again stays the old checkpoint until the new manifest replaces the old one. Only
one job at a time saves to a directory: the holder of its lease (`lease.py`).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import secrets
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import treepack._core as core
from treepack._src import paths as _paths
from treepack._src.checkpoint.shards import MANIFEST, plan_of, start_of
from treepack._src.interop import jax as _jax
from treepack._src.options import Progress, Static, Writing
from treepack._src.pytree.state_dict import leaves_of
from treepack._src.restore.record import present
from treepack._src.saving.group import Group, NotSavedError
from treepack._src.saving.identity import Identity, identity_of
from treepack._src.saving.layout import described_layout, file_layout
from treepack._src.saving.lease import FILE as LEASE
from treepack._src.saving.lease import BusyError, Lease
from treepack._src.storage import remote as _remote
from treepack._src.storage.content import open_parts, read_all, size_of
from treepack._src.storage.entries import entries
from treepack._src.storage.place import absolute, joined, local, url_of
from treepack._src.storage.write import remove_if_dead, save_layout, sync_directory, write
from treepack._src.tasks import run
from treepack.errors import DecodeError, TreepackError

# The names of files with shards, of their temporary files, and of those of leases.
_NAME = r"[0-9a-f]{8}-\d{5,}\.treepack"

_SHARD_FILE = re.compile(rf"{_NAME}|\.({_NAME}|lease\.treepack)\.treepack-.*\.tmp")


def is_unfinished(names: Iterable[str]) -> bool:
    """Returns whether a directory with these entries is that of a save that has not ended."""
    return all(name == LEASE or _SHARD_FILE.fullmatch(name) for name in names)


def is_distributed(tree: Any) -> bool:
    """Returns whether a tree has arrays that no single process has all of."""
    if _jax.client() is None:
        return False
    return any(
        _jax.is_array(leaf) and not (leaf.is_fully_addressable or leaf.is_fully_replicated)
        for _, leaf in leaves_of(tree, ())
    )


class ShardedWrite:
    """A save to a directory together with all other processes; a call writes it."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        tree: Any,
        metadata: Any,
        static: Static,
        how: Writing,
        *,
        snapshot: bool,
        step: int | None = None,
    ):
        self._group = Group()
        self._path = absolute(path)  # the program may go to another directory
        try:
            identify = functools.partial(identity_of, path, step, metadata, static, how)
            self._share = ProcessShare(
                tree, metadata, static, how, self._group, identify, snapshot=snapshot
            )
        except BaseException as error:
            self.abandon(error)
            raise

    def abandon(self, error: BaseException) -> None:
        """Tells all others that this process will not write, so that nobody waits for it."""
        self._group.done(error)
        if self._group.index == 0:
            self._group.announce("")
            self._group.end(error)

    def __call__(self, progress: Progress) -> None:
        """Writes it, once.

        Raises:
          TreepackError: If another process has failed, or another job saves to the same
            directory.
        """
        directory = Directory(self._path)
        if self._group.index == 0:
            _lead(self._group, directory, self._share, progress)
        else:
            _follow(self._group, directory, self._share, progress)


def _lead(group: Group, directory: Directory, share: ProcessShare, progress: Progress) -> None:
    """Writes as process 0."""
    name = secrets.token_hex(4)
    try:
        try:
            _claim(group, directory, name)
            try:
                _lead_with_lease(group, directory, share, name, progress)
            finally:
                directory.clean()
        finally:
            directory.release()
    except BaseException as error:
        group.end(error)
        raise
    group.end()


def _claim(group: Group, directory: Directory, name: str) -> None:
    try:
        directory.make()
        directory.claim(name)
    except BaseException:
        group.announce("")
        raise


def _lead_with_lease(
    group: Group, directory: Directory, share: ProcessShare, name: str, progress: Progress
) -> None:
    directory.clean()
    errors = []
    if share.identity is None:  # there are no others
        share.write(directory, name, progress)
    else:
        group.announce(json.dumps([name, share.identity.summary()]))
        share.write(directory, name, progress)
        errors = group.gather(share.identity.differences)
    if errors:  # in thousands of processes most are the same
        more = len(errors) - _MOST_ERRORS
        told = [*errors[:_MOST_ERRORS], *([f"and {more} more processes"] if more > 0 else [])]
        raise NotSavedError(f"the checkpoint was not saved: {'; '.join(told)}")
    share.commit(directory, name)


def _follow(group: Group, directory: Directory, share: ProcessShare, progress: Progress) -> None:
    """Writes as another process."""
    announced = group.announced()
    if announced and share.identity is not None:
        name, identity = json.loads(announced)
        if share.identity.is_same(identity):
            try:
                share.write(directory, name, progress)
            except BaseException as error:
                group.done(error)
                raise
            group.done()
        else:
            group.differs(share.identity.text())  # process 0 tells all in words
    group.wait()


# The most errors in a message.
_MOST_ERRORS = 10


class ProcessShare:
    """The share of one process in writing a tree; that of process 0 also commits it.

    Attributes:
      index: The number of this process.
      identity: The identity that others compare with theirs; `None` if there are no others.
    """

    def __init__(
        self,
        tree: Any,
        metadata: Any,
        static: Static,
        how: Writing,
        group: Group,
        identify: Callable[[int, core.Manifest, list[Any]], Identity],
        *,
        snapshot: bool,
    ):
        self.index = group.index
        self._how = how
        chunks = how.max_chunk_size
        whole = described_layout(
            tree, 1, metadata, max_chunk_size=chunks, static=static, index=True, hollow=True
        )
        arrays = whole.hollow
        plan = plan_of(arrays)
        self._processes = plan.processes
        # Complete but for the files, which are not written yet.
        unknown = [("", 0, 0)] * len(plan.processes)
        self._draft = core.Manifest.decode(core.Manifest.encode(whole, unknown, plan.grids))
        del whole  # it holds arrays
        paths = _array_paths(self._draft, len(arrays))
        about = [
            [path, list(array.shape), str(array.dtype)]
            for path, array in zip(paths, arrays, strict=True)
        ]
        # Differs where two processes save different trees.
        self._plan = zlib.crc32(json.dumps([plan.checksum, about]).encode())
        self.identity: Identity | None = None
        if group.count > 1:
            self.identity = identify(self._plan, self._draft, arrays)
        mine: Any = {}
        for path, array, grid, files in zip(paths, arrays, plan.grids, plan.writers, strict=True):
            for name, shard in _shards(path, array, grid, files, self.index):
                if path or name:
                    _paths.put(mine, [*path, *name], shard)
                else:
                    mine = shard  # the tree is an array of the host
        self._layout: core.Layout | None = None
        if self.index in plan.processes:
            metadata = {"process": self.index, "plan": self._plan}
            self._layout = file_layout(mine, metadata, how, snapshot=snapshot)

    def write(self, directory: Directory, name: str, progress: Progress = None) -> None:
        """Writes the file of this process, if it has one."""
        layout, self._layout = self._layout, None
        if layout is not None:
            path = directory.file(_file_name(name, self.index))
            save_layout(layout, path, self._how, progress)

    def commit(self, directory: Directory, name: str) -> None:
        """Writes the manifest after all files; for process 0.

        Raises:
          TreepackError: If a file is missing or belongs to another tree, or another job saves to
            the directory.
        """

        def look(process: int) -> tuple[str, int, int]:
            file = _file_name(name, process)
            try:
                found = directory.look(file)
            except FileNotFoundError as error:
                raise TreepackError(
                    f"the file of process {process} is not in {directory}: all processes have "
                    "to write to the same directory, and no other job may"
                ) from error
            if found.plan != self._plan:
                raise TreepackError(
                    f"process {process} has saved another tree than process 0, or arrays that are "
                    "on its devices alone"
                )
            return file, found.nbytes, found.record

        files = run([functools.partial(look, process) for process in self._processes], _LOOKING)
        directory.check()
        directory.write(MANIFEST, self._draft.with_files(files), durable=self._how.durable)


# The number of files that process 0 looks at in parallel: it only waits for them.
_LOOKING = 16


def _array_paths(manifest: core.Manifest, count: int) -> list[list[str]]:
    """Returns the parts of the paths of all arrays."""
    catalog = core.Catalog.open(manifest.content, salvage=False)
    found: list[list[str]] = [[] for _ in range(count)]
    for path, value in catalog.leaves(0):
        array = catalog.array_elsewhere(value)
        if array is not None:
            found[array] = _paths.parts(path)
    return found


def _shards(
    path: list[str],
    array: Any,
    grid: tuple[list[int], list[int], bool],
    files: list[int],
    process: int,
) -> list[tuple[list[str], Any]]:
    """Returns the shards that a process writes: their names and data."""
    counts, _, is_host = grid
    if is_host:
        return [([], array)] if process == files[0] else []
    found = {}
    cells = core.ShardGrid(array.shape, counts)
    for shard in array.addressable_shards:
        cell = cells.shard_at(start_of(shard.index))
        if files[cell] == process and cell not in found:
            found[cell] = shard.data
    wanted = {cell for cell, writer in enumerate(files) if writer == process}
    if found.keys() != wanted:  # jax was interrupted when it made them
        raise TreepackError(
            f"at {_paths.text(path)}: the array has {len(found)} of the {len(wanted)} shards that "
            f"process {process} should have: it is damaged; make it again"
        )
    return [([cells.name(cell)], data) for cell, data in found.items()]


def _file_name(name: str, process: int) -> str:
    return f"{name}-{process:05}.treepack"


class Found(NamedTuple):
    """A file with shards: its size, the CRC-32 of its record, and the checksum of its plan."""

    nbytes: int
    record: int
    plan: Any


class Directory:
    """The directory of a checkpoint: a local one, or a URL."""

    def __init__(self, path: str | os.PathLike[str]):
        self._url = url_of(path)
        self._path = local(path)
        self._lease: Lease | None = None
        self._before: bytes | None = None

    def __str__(self) -> str:
        return os.fspath(self._path)

    def file(self, name: str) -> str:
        """Returns the path or URL of a file in it."""
        return joined(self._path, name)

    def make(self) -> None:
        """Makes the directory where it is missing."""
        path = Path(self._path)
        if self._url is None and not path.is_dir():
            path.mkdir(parents=True)
            sync_directory(path.parent)

    def claim(self, name: str) -> None:
        """Keeps other jobs from saving to it until `release`; `name` is that of the save.

        URLs have no lease: there, `check` finds the saves of other jobs.

        Raises:
          BusyError: If another job saves to it now.
        """
        if self._url is None:
            self._lease = Lease(Path(self._path))
        try:
            if self._lease is not None:
                self._lease.take(name)
            self._before = self._manifest()
        except BaseException:
            self.release()
            raise

    def check(self) -> None:
        """Checks that no other job has saved to it since `claim`.

        Raises:
          BusyError: If one has, or has taken the lease.
        """
        if self._lease is not None:
            self._lease.check()
        if self._manifest() != self._before:
            raise BusyError(f"another job has saved to {self} meanwhile")

    def release(self) -> None:
        """Ends the claim: other jobs may save to it."""
        if self._lease is not None:
            self._lease.release()

    def _manifest(self) -> bytes | None:
        """Returns a hash of the manifest, if there is one.

        Its CRC is always the same, since it ends with its own.
        """
        if self._url is not None:
            _remote.file_system(self._url)[0].invalidate_cache()
        try:
            data = read_all(self.file(MANIFEST))
        except FileNotFoundError:
            return None
        return hashlib.blake2b(data).digest()

    def write(self, name: str, data: bytes, *, durable: bool) -> None:
        """Writes a file whole or not at all."""
        write(self.file(name), lambda path: core.write_file(path, data, durable=durable))

    def look(self, name: str) -> Found:
        """Reads the end of a file with shards.

        Raises:
          FileNotFoundError: If it is missing.
          DecodeError: If it is damaged, or no regular file.
        """
        file = self.file(name)
        catalog = core.Catalog.open(open_parts(file, regular=True).content, salvage=False)
        record = present(catalog.record)
        about = core.record_metadata(record, unknown_as_dict=False)
        plan = about.get("plan") if isinstance(about, dict) else None
        return Found(size_of(file), zlib.crc32(record), plan)

    def clean(self) -> None:
        """Removes the files of saves that were not committed or have been replaced.

        It is best effort. The files of a job that may be alive stay.
        """
        spared = None
        if self._lease is not None:
            if not self._lease.is_held:
                return
            spared = self._lease.spared
        with contextlib.suppress(Exception):
            used = self._used()
            if used is None:
                return
            for name, _ in entries(self._path):
                is_spared = spared is not None and name.lstrip(".").startswith(f"{spared}-")
                if _SHARD_FILE.fullmatch(name) and name not in used and not is_spared:
                    with contextlib.suppress(Exception):  # of one file; the others go on
                        self._remove(name)

    def _used(self) -> set[str] | None:
        """Returns the files of the current checkpoint; `None` if they are unknown."""
        try:
            data = read_all(self.file(MANIFEST))
        except FileNotFoundError:
            return set()
        try:
            return {name for name, _, _ in core.Manifest.decode(data).files}
        except DecodeError:  # perhaps of a later version
            return None

    def _remove(self, name: str) -> None:
        if self._url is not None:
            fs, path = _remote.file_system(self._url)
            fs.rm_file(f"{path}/{name}")
        elif name.startswith("."):
            remove_if_dead(Path(self.file(name)))
        else:
            Path(self.file(name)).unlink(missing_ok=True)


def remove_unfinished(path: str) -> None:
    """Removes the directory of a save that was killed, unless another job saves to it now.

    It is best effort.
    """
    directory = Directory(path)
    with contextlib.suppress(BusyError, OSError):
        directory.claim(secrets.token_hex(4))
        try:
            directory.clean()
        finally:
            directory.release()
        if url_of(path) is None:
            Path(local(path)).rmdir()
