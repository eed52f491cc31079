"""Writing the files of a sharded checkpoint, and the manifest that makes them one.

    tree ──walk──▶ encoding with holes ──▶ who writes which shard ──▶ a file of this process
                          └──────────────── process 0, when all have written ──▶ manifest

A directory without a manifest is no checkpoint. The files of another attempt have another name, so
a directory that is written again is the old checkpoint until the new manifest replaces the old one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from treepack import _core, _paths, _remote
from treepack._content import check_level, joined, local, opened, read_all, size_of, url_of, write
from treepack._described import Writing, described_layout, present
from treepack._libraries import imported
from treepack._libraries import jax as _jax
from treepack._options import Progress
from treepack._placement import leaves_of
from treepack._replacing import is_locked, sync_directory
from treepack._sharded.group import Group, NotSavedError
from treepack._sharded.shards import MANIFEST, bounds, cell_of, name_of, plan_of, start_of
from treepack.errors import DecodeError, TreepackError

T = TypeVar("T")

# What files with shards are called, and temporary files of theirs.
_NAME = r"[0-9a-f]{8}-\d{5,}\.treepack"
_SHARD_FILE = re.compile(rf"{_NAME}|\.{_NAME}\.treepack-.*\.tmp")


def is_distributed(tree: Any) -> bool:
    """Tells whether a tree has arrays that no process has all of."""
    if imported("jax") is None or _jax.processes()[1] == 1:
        return False
    return any(
        _jax.is_array(leaf) and not (leaf.is_fully_addressable or leaf.is_fully_replicated)
        for _, leaf in leaves_of(tree, ())
    )


def sharded_write(
    path: str | os.PathLike[str],
    tree: Any,
    metadata: Any,
    holes: bool,
    how: Writing,
    *,
    snapshot: bool,
) -> Callable[[Progress], None]:
    """Returns what writes a tree to a directory, together with all other processes."""
    group = Group()
    try:
        check_level(how.level, how.compress)
        part = Part(tree, metadata, holes, how, group, snapshot=snapshot)
    except BaseException as error:
        group.done(error)  # nobody shall wait for this process
        if group.index == 0:
            group.announce("")
            group.end(error)
        raise

    def write(progress: Progress) -> None:
        directory = Directory(path)
        if group.index == 0:
            _lead(group, directory, part, progress)
        else:
            _follow(group, directory, part, progress)

    return write


def _lead(group: Group, directory: Directory, part: Part, progress: Progress) -> None:
    """Writes as process 0."""
    try:
        directory.make()
        directory.clean()
        name = secrets.token_hex(4)
    except BaseException as error:
        group.announce("")
        group.end(error)
        raise
    group.announce(name)
    try:
        part.write(directory, name, progress)
        errors = group.gather()
        if errors:
            raise NotSavedError(f"the checkpoint was not saved: {'; '.join(errors)}")
        part.commit(directory, name)
    except BaseException as error:
        directory.clean()
        group.end(error)
        raise
    directory.clean()
    group.end()


def _follow(group: Group, directory: Directory, part: Part, progress: Progress) -> None:
    """Writes as another process."""
    name = group.name()
    if name:
        try:
            part.write(directory, name, progress)
        except BaseException as error:
            group.done(error)
            raise
        group.done()
    group.wait()


class Part:
    """What one process writes of a tree, and what process 0 knows of all.

    Attributes:
      index: The number of this process.
    """

    def __init__(
        self,
        tree: Any,
        metadata: Any,
        holes: bool,
        how: Writing,
        group: Group,
        *,
        snapshot: bool,
    ):
        self.index = group.index
        self._how = how
        whole = described_layout(tree, 1, metadata, holes=holes, index=True, hollow=True)
        arrays = whole.hollow
        plan = plan_of(arrays)
        self._processes = plan.processes
        # All but what is known of the files when they are there.
        unknown = [("", 0, 0)] * len(plan.processes)
        self._draft = _core.Manifest.decode(_core.Manifest.encode(whole, unknown, plan.grids))
        del whole  # and with it what it holds of the arrays
        paths = _array_paths(self._draft, len(arrays))
        about = [
            [path, list(array.shape), str(array.dtype)]
            for path, array in zip(paths, arrays, strict=True)
        ]
        # What differs where two processes save something else.
        self._plan = zlib.crc32(json.dumps([plan.checksum, about]).encode())
        mine: Any = {}
        for path, array, grid, files in zip(paths, arrays, plan.grids, plan.writers, strict=True):
            for name, shard in _shards(path, array, grid, files, self.index):
                if path or name:
                    _paths.put(mine, [*path, *name], shard)
                else:
                    mine = shard  # the tree is an array of the host
        self._layout: _core.Layout | None = None
        if self.index in plan.processes:
            metadata = {"process": self.index, "plan": self._plan}
            self._layout = how.layout(mine, metadata, snapshot=snapshot)

    def write(self, directory: Directory, name: str, progress: Progress = None) -> None:
        """Writes the file of this process, if it has something to write."""
        layout, self._layout = self._layout, None
        if layout is not None:
            self._how.save(layout, directory.file(_file_name(name, self.index)), progress)

    def commit(self, directory: Directory, name: str) -> None:
        """Writes the manifest, when all files are there; for process 0.

        Raises:
          TreepackError: If a file is not there, or is of another tree.
        """

        def look(process: int) -> tuple[str, int, int]:
            file = _file_name(name, process)
            try:
                found = directory.look(file)
            except FileNotFoundError as error:
                raise TreepackError(
                    f"the file of process {process} is not in {directory}: all processes have "
                    "to write to the same directory"
                ) from error
            if found.plan != self._plan:
                raise TreepackError(
                    f"process {process} has saved another tree than process 0, or arrays that are "
                    "on its devices alone"
                )
            return file, found.nbytes, found.record

        files = _in_threads(look, self._processes)
        directory.write(MANIFEST, self._draft.with_files(files), durable=self._how.durable)


def _in_threads(work: Callable[[int], T], items: list[int]) -> list[T]:
    """Returns what `work` returns for each item, with some of them under way at a time.

    No executor of `concurrent.futures`, which does nothing more when the program is at its end.
    """
    queue = iter(enumerate(items))
    results: dict[int, T] = {}
    failed: list[BaseException] = []

    def run() -> None:
        for at, item in queue:  # `next` of an iterator of a list is one step for all threads
            try:
                results[at] = work(item)
            except BaseException as error:
                failed.append(error)
                return

    threads = [threading.Thread(target=run) for _ in range(min(_LOOKING, len(items)) - 1)]
    for thread in threads:
        thread.start()
    run()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return [results[at] for at in range(len(items))]


# How many files process 0 looks at at a time: it only waits for them.
_LOOKING = 16


def _array_paths(manifest: _core.Manifest, count: int) -> list[list[str]]:
    """Returns the parts of the paths of all arrays."""
    catalog = _core.Catalog.open(manifest.content, salvage=False)
    found: list[list[str]] = [[] for _ in range(count)]
    for path, value in catalog.leaves(0):
        _, _, start, stop, _ = catalog.leaf(value)
        array = manifest.array_in(start, stop)
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
    """Returns the names of the shards that a process writes, and their data."""
    counts, _, is_host = grid
    if is_host:
        return [([], array)] if process == files[0] else []
    found = {}
    for shard in array.addressable_shards:
        cell = cell_of(start_of(shard.index), array.shape, counts)
        if files[cell] == process and cell not in found:
            found[cell] = shard.data
    wanted = {cell for cell, writer in enumerate(files) if writer == process}
    if found.keys() != wanted:  # jax was interrupted when it made them
        raise TreepackError(
            f"at {_paths.text(path)}: the array has {len(found)} of the {len(wanted)} shards that "
            f"process {process} should have: it is damaged, and has to be made again"
        )
    return [([name_of(bounds(cell, array.shape, counts))], data) for cell, data in found.items()]


def _file_name(name: str, process: int) -> str:
    return f"{name}-{process:05}.treepack"


class Found(NamedTuple):
    """What is known of a file with shards: its size, the CRC-32 of its record, and of what plan."""

    nbytes: int
    record: int
    plan: Any


class Directory:
    """Where a checkpoint is written: here, or elsewhere by URL."""

    def __init__(self, path: str | os.PathLike[str]):
        self._url = url_of(path)
        self._path = local(path)

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

    def write(self, name: str, data: bytes, *, durable: bool) -> None:
        """Writes a file whole or not at all."""
        write(self.file(name), lambda path: _core.write_file(path, data, durable=durable))

    def look(self, name: str) -> Found:
        """Returns what the end of a file with shards tells.

        Raises:
          FileNotFoundError: If it is not there.
        """
        file = self.file(name)
        catalog = _core.Catalog.open(opened(file).content, salvage=False)
        record = present(catalog.trailer)
        about = _core.trailer_metadata(record)
        plan = about.get("plan") if isinstance(about, dict) else None
        return Found(size_of(file), zlib.crc32(record), plan)

    def clean(self) -> None:
        """Removes files of saves that were not committed, or that another one has replaced."""
        with contextlib.suppress(OSError):
            used = self._used()
            if used is None:
                return
            for name in self._names():
                if _SHARD_FILE.fullmatch(name) and name not in used:
                    self._remove(name)

    def _used(self) -> set[str] | None:
        """Returns the files of the checkpoint that is there; `None` if that cannot be known."""
        try:
            data = read_all(self.file(MANIFEST))
        except FileNotFoundError:
            return set()
        try:
            return {name for name, _, _ in _core.Manifest.decode(data).files}
        except DecodeError:  # perhaps of a later version
            return None

    def _names(self) -> list[str]:
        if self._url is None:
            return [entry.name for entry in os.scandir(self._path)]
        fs, path = _remote.file_system(self._url)
        return [found.rsplit("/", 1)[-1] for found in fs.ls(path, detail=False)]

    def _remove(self, name: str) -> None:
        if self._url is not None:
            fs, path = _remote.file_system(self._url)
            fs.rm_file(f"{path}/{name}")
        elif not name.startswith(".") or not is_locked(Path(self.file(name))):
            Path(self.file(name)).unlink(missing_ok=True)
