from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import IO, Any

import treepack._core as core
from treepack._src.storage.naming import naming

# The size in bytes of the parts in which data are read, copied or uploaded.
_PIECE_BYTES = 4 << 20


def copied(source: str | os.PathLike[str], target: int, nbytes: int) -> int:
    """Copies a file within the system; returns the number of bytes until this failed."""
    at = 0
    if sys.platform == "linux":
        with contextlib.suppress(OSError), open(source, "rb", buffering=0) as file:  # noqa: PTH123
            while at < nbytes:
                count = os.copy_file_range(file.fileno(), target, min(_PIECE_BYTES, nbytes - at))
                if count == 0:
                    break
                at += count
    return at


def pieces(content: core.Content, start: int = 0) -> Iterator[bytes]:
    nbytes = content.nbytes
    for at in range(start, nbytes, _PIECE_BYTES):
        yield content.read_range(at, min(at + _PIECE_BYTES, nbytes))


@contextlib.contextmanager
def temporary(
    path: str | os.PathLike[str], given: Any, *, private: bool
) -> Iterator[tuple[core.Replacement, IO[bytes]]]:
    replacement = core.Replacement(path, private=private)
    try:
        file = io.BufferedRandom(_Named(replacement, given))
        try:
            yield replacement, file
        finally:
            # Not `file.close`, which raises another error after an interrupt within it.
            file.raw.close()
    finally:
        replacement.discard()


class _Named(io.FileIO):
    def __init__(self, replacement: core.Replacement, given: Any):
        descriptor = replacement.descriptor()
        if sys.platform == "win32":
            import msvcrt

            descriptor = msvcrt.open_osfhandle(descriptor, os.O_RDWR)
        super().__init__(descriptor, "r+")
        self.name = replacement.name
        self._given = given

    def write(self, data: Any, /) -> int:
        with naming(self._given):
            return super().write(data)

    def close(self) -> None:
        with naming(self._given), contextlib.suppress(InterruptedError):  # it is closed then, too
            super().close()
