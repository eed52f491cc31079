from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import treepack._core as core
from treepack._src.calls import close, mode_of, repeated, unlink
from treepack._src.storage.store import Entry, Response, Store

# Other threads may remove a directory at the same time, or claim it, which makes its lease.
_CHANGES = {errno.ENOENT, errno.ENOTEMPTY, errno.EISDIR, errno.ENOTDIR}

_ATTEMPTS = 20


class Disk(Store):
    def get(self, path: str) -> Response:
        content = core.Content.read(path, progress=None, regular=True)
        return Response(content.nbytes, None, content.read_range(0, content.nbytes))

    def put(self, path: str, data: bytes, before: Any = None, *, durable: bool = True) -> None:
        layout = core.lay_raw(data, [], snapshot=False)
        layout.save(path, compress=False, level=None, durable=durable, threads=1, progress=None)

    def link(self, source: str, target: str, *, durable: bool) -> None:
        if durable:
            # Windows flushes only files that are open for writing.
            file = os.open(source, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
            try:
                os.fsync(file)
            finally:
                close(file)
        try:
            repeated(os.link, source, target)
        except FileExistsError:
            if repeated(os.path.samefile, source, target):  # another process has linked it, too
                return
            # It is of a damaged checkpoint, which is saved again.
            path = Path(target)
            temporary = path.with_name(f".{path.name}.treepack-{secrets.token_hex(8)}.tmp")
            repeated(os.link, source, temporary)
            try:
                repeated(os.replace, temporary, target)
            finally:
                unlink(temporary)  # which stays if the target has become this file

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            unlink(path)

    def entries(self, path: str) -> list[Entry]:
        try:
            return repeated(_entries, path)
        except FileNotFoundError:
            return []

    def exists(self, path: str) -> bool:
        return mode_of(path) != 0

    def is_directory(self, path: str) -> bool:
        return stat.S_ISDIR(mode_of(path))

    def remove(self, path: str) -> None:
        for left in reversed(range(_ATTEMPTS)):
            try:
                if stat.S_ISDIR(mode_of(path, follow_symlinks=False)):
                    repeated(shutil.rmtree, path)
                else:
                    unlink(path)
                return
            except OSError as error:
                if error.errno not in _CHANGES or left == 0:
                    raise


def _entries(path: str) -> list[Entry]:
    with os.scandir(path) as listing:
        return [Entry(os.fsdecode(entry.name), _is_directory(entry)) for entry in listing]


def _is_directory(entry: os.DirEntry[Any]) -> bool:
    try:
        return repeated(entry.is_dir)
    except OSError:  # a link to itself
        return False
