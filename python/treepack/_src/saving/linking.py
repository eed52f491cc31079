"""Links the files of a run's last step whose shards are unchanged: `Series(unchanged="link")`.

    shards of this process ──▶ digests ──▶ unchanged: where most of a file is, link the file
                                      └──▶ the rest: changed shards to one file, others to a second

A step is a whole directory: its manifest names linked files as it names its own. The random start
of a name is that of the save that wrote the file. Only files of the step that the same object saved
or resumed last are linked. Its digests come from memory, or after a resume from the metadata of the
files with these shards, so no array is read.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

import treepack._core as core
from treepack._src import paths as _paths
from treepack._src.checkpoint.info import totals
from treepack._src.checkpoint.reader import dtype_and_shape
from treepack._src.checkpoint.sharded import ShardedReader
from treepack._src.checkpoint.shards import about_in
from treepack._src.interop import jax as _jax
from treepack._src.printable import warn
from treepack._src.pytree.leaves import finish_transfer, host_view, start_transfer
from treepack._src.saving.directory import Directory
from treepack._src.storage.deferred import Deferred
from treepack._src.storage.place import joined, real, shown
from treepack._src.storage.stores import store_of
from treepack._src.storage.write import copy_file
from treepack.errors import TreepackError

# The maximum number of linked files of a process and step; with the two that it writes, 20.
_MOST_LINKED = 18

# By default, all files are written again after both this number of checkpoints and of seconds.
_FULL_CHECKPOINTS = 50

_FULL_S = 86_400


_DIGEST_BYTES = 16


class Part(NamedTuple):
    """A shard that this process saves.

    Attributes:
      array: The parts of the path of its array.
      cell: Its number in the array.
      keys: The keys of its leaf in a file of shards.
      data: The array.
    """

    array: list[str]
    cell: int
    keys: list[str]
    data: Any

    @property
    def path(self) -> str:
        """The path of its array."""
        return _paths.text(self.array)

    @property
    def text(self) -> str:
        """The path of its leaf in a file of shards."""
        return _paths.text(self.keys)

    @property
    def kind(self) -> tuple[str, tuple[int, ...]]:
        """Its dtype and shape."""
        return str(self.data.dtype), tuple(self.data.shape)


FileRow = tuple[str, int, int]
"""The name of a file, its size in bytes, and the CRC-32 of its record."""


class Stored(NamedTuple):
    """A shard of a saved step: its dtype and shape, its digest, and its file."""

    kind: tuple[str, tuple[int, ...]]
    digest: bytes
    file: str


class Step(NamedTuple):
    """The files of a saved step that have shards of this process.

    Attributes:
      path: Its directory.
      files: The files by name.
      sizes: The size in bytes of all shards in each file.
      shards: The shards by `Part.text`.
      full: The number of checkpoints since the last one without links, and its time.
      age: The number of steps before it in the run.
    """

    path: str
    files: dict[str, FileRow]
    sizes: dict[str, int]
    shards: dict[str, Stored]
    full: tuple[int, float]
    age: int

    def add(
        self, row: FileRow, parts: Sequence[Part], digests: Sequence[bytes], size: int | None = None
    ) -> None:
        """Adds a file and its shards; `size` is of all that it has, if there are others."""
        name = row[0]
        self.files[name] = row
        self.sizes[name] = sum(part.data.nbytes for part in parts) if size is None else size
        for part, digest in zip(parts, digests, strict=True):
            self.shards[part.text] = Stored(part.kind, digest, name)

    def unchanged(self, parts: Sequence[Part], digests: Sequence[bytes]) -> dict[int, str]:
        """Returns the files of unchanged shards by the number of the shard."""
        found = {}
        for number, (part, digest) in enumerate(zip(parts, digests, strict=True)):
            stored = self.shards.get(part.text)
            if stored is not None and stored[:2] == (part.kind, digest):
                found[number] = stored.file
        return found

    def worth_linking(self, parts: Sequence[Part], unchanged: dict[int, str]) -> list[str]:
        """Returns the files of which at least half of the bytes are unchanged shards."""
        alive = Counter[str]()
        for number, file in unchanged.items():
            alive[file] += parts[number].data.nbytes
        most = [file for file, nbytes in alive.most_common() if 2 * nbytes >= self.sizes[file] > 0]
        return most[:_MOST_LINKED]


class Linking:
    """Links the files of each step of a series to those of the step before.

    Attributes:
      step: The step that was saved or resumed last, once its files are known.
    """

    def __init__(self, full_every: int | None):
        self._full_every = full_every
        self.step: Step | None = None
        self._resumed = ""
        self._has_warned = False

    def resume(self, path: str) -> None:
        """Sets the directory of the step that was resumed."""
        self.step, self._resumed = None, path

    def previous(self, parts: Sequence[Part]) -> Step | None:
        """Returns the files of the last step, or `None` if they are unknown."""
        path, self._resumed = self._resumed, ""
        if path:
            with contextlib.suppress(OSError, TreepackError):  # removed, replaced or damaged
                self.step = _read(path, parts)
        return self.step

    def full(self, step: Step | None) -> tuple[int, float]:
        """Returns the checkpoints since the last one without links, and its time, with this one."""
        now = time.time()
        if step is None:
            return 1, now
        count, since = step.full
        is_old = count >= _FULL_CHECKPOINTS and abs(now - since) >= _FULL_S
        is_due = is_old if self._full_every is None else count >= self._full_every
        return (1, now) if is_due else (count + 1, since)

    def link(
        self,
        last: Step,
        step: Step,
        unchanged: dict[int, str],
        parts: Sequence[Part],
        directory: Directory,
        *,
        durable: bool,
    ) -> set[int]:
        """Links the files of the last step that are worth it, and adds them to the next step.

        Args:
          last: The last step.
          step: The next one.
          unchanged: The files of unchanged shards, by the number of the shard.
          parts: The shards.
          directory: The directory of the next step.
          durable: Whether the files must be on the disk.

        Returns:
          The numbers of the shards in linked files.
        """
        done: set[int] = set()
        for name in last.worth_linking(parts, unchanged):
            directory.linked.add(name)
            with contextlib.suppress(OSError, NotImplementedError):  # then it is not linked
                self._link(joined(last.path, name), directory.file(name), durable=durable)
                numbers = [number for number, file in unchanged.items() if file == name]
                done.update(numbers)
                shards = [parts[number] for number in numbers]
                digests = [last.shards[shard.text].digest for shard in shards]
                step.add(last.files[name], shards, digests, last.sizes[name])
        return done

    def _link(self, source: str, target: str, *, durable: bool) -> None:
        (store, old), (_, new) = store_of(source), store_of(target)
        if real(source) == real(target) and store.exists(old):  # the step is saved again
            return
        try:
            store.link(old, new, durable=durable)
        except FileNotFoundError:
            raise
        except OSError as error:
            if not store.is_local:
                raise
            copy_file(source, target)
            if not self._has_warned:
                self._has_warned = True
                warn(
                    f"{shown(target)} is a copy of an unchanged file, since it cannot be a hard "
                    f"link: {error.strerror}. Keep the run in a file system with hard links, or "
                    "pass unchanged='write'"
                )


def _read(path: str, parts: Sequence[Part]) -> Step | None:
    """Reads the records of the files that have these shards; `None` if they have no digests."""
    with contextlib.closing(ShardedReader(path)) as reader:
        about = about_in(reader.file(0).catalog)
        if "full" not in about:
            return None
        catalog = reader.catalog
        values: dict[str, int] = dict(catalog.leaves(0))
        saved = {
            path: None
            if values.get(path) is None
            else reader.manifest.shards(catalog, values[path])
            for path in {part.path for part in parts}
        }
        places: dict[str, int] = {}
        for part in parts:
            if (array := saved[part.path]) is None:
                continue
            shards, is_host = array
            if part.cell < len(shards) and (is_host or shards.name(part.cell) == part.keys[-1]):
                places[part.text] = shards.files[part.cell]
        needed = sorted({*places.values()})
        reader.open_files(needed)
        step = Step(path, {}, {}, {}, (about["full"][0], about["full"][1]), about["age"])
        for number in needed:
            row = reader.manifest.files[number]
            catalog = reader.file(number).catalog
            digests = about_in(catalog).get("digests", {})
            step.files[row[0]], step.sizes[row[0]] = row, totals(catalog, 0)[1]
            for text, value in catalog.leaves(0):
                if places.get(text) == number and text in digests:
                    kind = dtype_and_shape(catalog.leaf(value)[1])
                    step.shards[text] = Stored(kind, digests[text], row[0])
        return step


def held(arrays: Sequence[Any], *, snapshot: bool) -> list[Any]:
    """Returns arrays whose digests and bytes stay equal: copies of those that may change.

    With `snapshot`, JAX arrays are on the host as well, and may be donated.
    """
    if snapshot:
        for array in arrays:
            if _jax.is_array(array):
                start_transfer(array)
    return [_held(array, snapshot=snapshot) for array in arrays]


def _held(array: Any, *, snapshot: bool) -> Any:
    if isinstance(array, Deferred):
        return array
    if _jax.is_array(array):
        return _on_host(array) if snapshot else array
    return np.array(array)


def _on_host(array: Any) -> np.ndarray:
    view = host_view(array)
    return finish_transfer(start_transfer(array))[0][1] if view is None else view


def digests_of(arrays: list[Any], threads: int | None) -> list[bytes]:
    """Returns the digests of arrays."""
    joined_digests = core.digests(arrays, threads=threads)
    return [
        joined_digests[at : at + _DIGEST_BYTES]
        for at in range(0, len(joined_digests), _DIGEST_BYTES)
    ]
