from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import treepack._core as core
from treepack._src.claims.directory import Directory
from treepack._src.layouts.layout import Encoding
from treepack._src.options import Progress, Saved, Writing
from treepack._src.saving.linking import LinkErrors
from treepack._src.saving.sharded import ShardedWrite
from treepack._src.sharded.files import MANIFEST, save_of
from treepack._src.storage.address import Address
from treepack.errors import TreepackError


class FileWrite:
    leads = True

    def __init__(self, path: Address, tree: Any, saved: Saved, writing: Writing, *, snapshot: bool):
        self._layouts = [Encoding.file(tree, saved, writing, snapshot=snapshot)]
        self._path, self._writing = path, writing

    def abandon(self, error: BaseException) -> None:
        self._layouts.clear()

    def __call__(self, progress: Progress, check: Callable[[], None] | None = None) -> None:
        self._path.save(self._layouts.pop(), self._writing, progress, check)


def encoded(
    path: Address, tree: Any, saved: Saved, writing: Writing, *, snapshot: bool
) -> FileWrite | ShardedWrite:
    Encoding.check(tree)
    kind = ShardedWrite if saved.sharded else FileWrite
    return kind(path, tree, saved, writing, snapshot=snapshot)


def copy_checkpoint(
    source: Address,
    target: Address,
    check: Callable[[], None],
    *,
    is_directory: bool,
    earlier: Callable[[], Address | None] = lambda: None,
) -> None:
    """Copies a local checkpoint, in one commit.

    `check` is called before a file gets its name. `earlier` returns an earlier checkpoint in the
    store of the copy, to link files of both. A file of another size than in the manifest is a
    CorruptionError.
    """
    if not is_directory:
        source.copy_to(target, check)
        return
    data = (source / MANIFEST).read_bytes()
    files = core.Manifest.decode(data).files
    has_linked = len({save_of(name) for name, _, _ in files}) > 1
    before = earlier() if has_linked else None
    there = set() if before is None else {*_files_of(before)}
    directory = Directory.at(target)
    directory.claim(save_of(files[0][0]))
    try:
        for file in files:
            name, expected, _ = file
            if before is not None and file in there:
                directory.linked.add(name)
                with LinkErrors():  # then it is copied
                    (before / name).link_to(directory.file(name), expected, durable=True)
                    continue
            nbytes = (source / name).copy_to(directory.file(name))
            (source / name).check_nbytes(nbytes, expected)
        directory.commit(data, directory.names(), durable=True)
    finally:
        directory.clean()
        directory.release()


def _files_of(path: Address) -> Sequence[tuple[str, int, int]]:
    with contextlib.suppress(OSError, TreepackError):
        files: Sequence[tuple[str, int, int]] = core.Manifest.decode(
            (path / MANIFEST).read_bytes()
        ).files
        return files
    return ()
