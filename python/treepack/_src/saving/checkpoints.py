"""Writes checkpoints, claims their directories, and copies them.

A checkpoint is a file, or a directory with a manifest.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import treepack._core as core
from treepack._src.calls import repeated
from treepack._src.checkpoint.shards import MANIFEST, save_of
from treepack._src.options import Progress, Saved, Writing
from treepack._src.saving.directory import LocalDirectory, directory_at
from treepack._src.saving.layout import file_layout
from treepack._src.saving.lease import OwnBusyError
from treepack._src.saving.sharded import ShardedWrite
from treepack._src.storage.address import Address
from treepack._src.tasks import Milestone
from treepack.errors import BusyError, CorruptionError, TreepackError

# The seconds between checks whether another thread still saves to a directory.
_LOOK_S = 0.005


class FileWrite:
    """A save to a file; calling it writes the file, once.

    Attributes:
      leads: Whether this process commits.
    """

    leads = True

    def __init__(self, path: Address, tree: Any, saved: Saved, writing: Writing, *, snapshot: bool):
        self._layouts = [file_layout(tree, saved, writing, snapshot=snapshot)]
        self._path, self._writing = path, writing

    def abandon(self, error: BaseException) -> None:
        """Drops the encoding: it will not be written."""
        self._layouts.clear()

    def __call__(self, progress: Progress, check: Callable[[], None] | None = None) -> None:
        self._path.save(self._layouts.pop(), self._writing, progress, check)


def encoded(
    path: Address, tree: Any, saved: Saved, writing: Writing, *, snapshot: bool
) -> FileWrite | ShardedWrite:
    """Encodes a tree for a checkpoint; calling the result writes it."""
    kind = ShardedWrite if saved.sharded else FileWrite
    return kind(path, tree, saved, writing, snapshot=snapshot)


@contextlib.contextmanager
def claimed(path: Address) -> Iterator[Callable[[], None]]:
    """Holds the lease of a local directory, so that no other job saves to it or removes from it.

    Yields a function that checks the lease. It waits for other threads of this process, except for
    one that waits itself: perhaps in a signal handler, for this call.

    Raises:
      BusyError: If another job holds it.
    """
    directory = directory_at(path)
    if not isinstance(directory, LocalDirectory):  # in a store the owner is unknown
        yield directory.check
        return
    waiting = ""  # the lease of a thread that waited at the last look, unless it had released it
    while True:
        try:
            directory.claim(secrets.token_hex(4))
            break
        except OwnBusyError as error:
            if error.token == waiting:
                raise
            waiting = error.token if error.thread in Milestone.waiting else ""
        time.sleep(_LOOK_S)
    try:
        yield directory.check
    finally:
        directory.release()


def copy_checkpoint(
    source: Address,
    target: Address,
    check: Callable[[], None],
    *,
    is_directory: bool,
    earlier: Callable[[], Address | None] = lambda: None,
) -> None:
    """Copies a local checkpoint, in one commit.

    Args:
      source: Its path.
      target: The path or URL of the copy.
      check: Called before a file gets its name.
      is_directory: Whether it is a directory.
      earlier: Returns an earlier checkpoint in the store of the copy, or `None`; files of both are
        linked, not copied. Called only if the checkpoint has files of earlier saves.

    Raises:
      CorruptionError: If the size of a file differs from the manifest.
    """
    if not is_directory:
        source.copy_to(target, check)
        return
    data = (source / MANIFEST).read_bytes()
    files = core.Manifest.decode(data).files
    has_linked = len({save_of(name) for name, _, _ in files}) > 1
    before = earlier() if has_linked else None
    there = set() if before is None else {*_files_of(before)}
    directory = directory_at(target)
    directory.claim(save_of(files[0][0]))
    try:
        for file in files:
            name, expected, _ = file
            if before is not None and file in there:
                directory.linked.add(name)
                with contextlib.suppress(OSError, NotImplementedError):  # then it is copied
                    (before / name).link_to(directory.file(name), durable=True)
                    continue
            nbytes = (source / name).copy_to(directory.file(name))
            if nbytes != expected:
                raise CorruptionError(
                    f"{(source / name).shown} has the wrong size: expected {expected} bytes, "
                    f"found {nbytes}"
                )
        directory.commit(data, directory.names(), durable=True)
    finally:
        directory.clean()
        directory.release()


def _files_of(path: Address) -> Sequence[tuple[str, int, int]]:
    """Returns the files of a checkpoint; none if it is a file, or is missing or damaged."""
    with contextlib.suppress(OSError, TreepackError):
        files: Sequence[tuple[str, int, int]] = core.Manifest.decode(
            (path / MANIFEST).read_bytes()
        ).files
        return files
    return ()


def remove_unfinished(path: Address) -> None:
    """Removes the directory of a killed save as far as possible, unless another job saves to it.

    In a store, where the state is unknown, it stays.
    """
    directory = directory_at(path)
    if isinstance(directory, LocalDirectory):
        with contextlib.suppress(BusyError, OSError):
            directory.claim(secrets.token_hex(4))  # a claim cleans the directory
            directory.release()
            repeated(os.rmdir, path)
