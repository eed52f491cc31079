"""Exchanges shards between processes, so that each can save whole arrays, in another layout.

arrays ──each process its shards──▶ hidden checkpoint ──▶ whole arrays, read by any process
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import secrets
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import treepack._core as core
from treepack._core import Class
from treepack._src import paths as _paths
from treepack._src.arrays.deferred import Deferred
from treepack._src.checkpoint.file import File
from treepack._src.checkpoint.select import ends_of
from treepack._src.claims.directory import Names
from treepack._src.claims.lease import Permit
from treepack._src.interop import jax as _jax
from treepack._src.leaves.leaves import classify
from treepack._src.options import Progress, Saved, Tell, Writing
from treepack._src.processes.group import Group, Message
from treepack._src.pytree.state_dict import leaves_of
from treepack._src.saving.sharded import ShardedWrite, is_distributed
from treepack._src.sharded.reading import ShardedReader
from treepack._src.storage.address import Address
from treepack.errors import BusyError, TreepackError

HIDDEN = ".shards"
"""The directory of the hidden checkpoint, which a killed save leaves."""

ARRAYS = (Class.ARRAY, Class.SCALAR, Class.JAX_ARRAY, Class.DEFERRED)


class Later(Deferred):
    """An array in the future hidden checkpoint, for any process if it `is_everywhere`."""

    is_everywhere = True

    def __init__(self, path: str, shape: tuple[int, ...], dtype: np.dtype[Any]):
        self._path, self.shape, self.dtype = path, shape, dtype
        self.array: Any = None

    def __repr__(self) -> str:
        return self._path

    def _now(self) -> Any:
        return self.array

    def _deferred(self) -> tuple[core.Content, list[tuple[int, int]]]:
        pieces: tuple[core.Content, list[tuple[int, int]]] = self.array._deferred()
        return pieces


class Alone:
    """The one process of a save, which exchanges nothing.

    Attributes:
      index: The number of this process; 0 commits.
      count: The number of processes.
      nbytes: The bytes of shards that this process has written.
    """

    index, count, nbytes = 0, 1, 0

    def __init__(self, tree: Any = None):
        self.tree = tree

    def abandon(self, error: BaseException) -> None:
        """Sends an error to all others, unless `opened` does: this process will not save."""

    def sharded(
        self, path: Address, tree: Any, saved: Saved, writing: Writing, *, snapshot: bool
    ) -> ShardedWrite | Rearranged:
        return ShardedWrite(path, tree, saved, writing, snapshot=snapshot)

    def opened(self, tell: Tell | None, after: int) -> contextlib.AbstractContextManager[None]:
        """Exchanges the shards; within the block, arrays can be read.

        `tell` takes the written bytes and their total, with `after` of this process in the block.
        """
        return contextlib.nullcontext()

    def agree(self, plan: Callable[[], int], choice: Any = None) -> Any:
        """Returns the choice of process 0, such as names of files, in all processes.

        `plan` returns a checksum, which must be the same in all.
        """
        return choice

    def gather(self) -> None:
        """For process 0: waits until all others have written their files, or one failed."""


class Exchange(Alone):
    """The processes that save a tree together, which exchange its shards.

    `tree` becomes nested dicts, with a `Later` in place of each array.
    """

    def __init__(
        self,
        directory: Address,
        tree: Any,
        saved: Saved,
        *,
        snapshot: bool,
        threads: int | None,
    ):
        """Encodes the shards of this process; with `snapshot`, arrays may change afterwards.

        Process 0 must hold the lease of `directory` from `opened` on.
        """
        self._directory = directory.absolute()
        self._path = self._directory / HIDDEN
        self._later: dict[str, Later] = {}
        self.tree: Any = {}
        arrays: dict[str, Any] = {}
        empty = {parts: None for parts, is_leaf in ends_of(tree) if parts and not is_leaf}
        for parts, leaf in leaves_of(tree, ()):
            empty.pop((*parts,), None)
            if classify(leaf) in ARRAYS:
                path = _paths.text(parts)
                arrays[path] = leaf
                if not isinstance(leaf, np.generic):  # scalars are compared, and stay
                    leaf = Later(path, leaf.shape, np.dtype(leaf.dtype).newbyteorder("="))
                    self._later[path] = leaf
            if parts:
                _paths.put(self.tree, [*parts], leaf)
            else:
                self.tree = leaf
        for parts in empty:
            _paths.put(self.tree, [*parts], {})
        own = Saved(sharded=True, step=saved.step, timeout=saved.timeout)
        writing = Writing(durable=False, threads=threads)
        self._shards = ShardedWrite(self._path, arrays, own, writing, snapshot=snapshot)
        self._group: Group = self._shards.group
        self.index, self.count = self._group.index, self._group.count
        self._has_begun = self._has_announced = False

    def abandon(self, error: BaseException) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._shards.abandon(error)

    @contextlib.contextmanager
    def opened(self, tell: Tell | None, after: int) -> Iterator[None]:
        if self.index == 0 and _names_in(self._path).has_others:
            raise TreepackError(
                f"{self._path.shown} has files that are not of a save: choose another directory, "
                "or remove them"
            )
        self._has_begun = True

        def tell_all(done: int, total: int) -> None:
            self.nbytes = total
            if tell is not None:
                tell(done, total + after)

        try:
            self._shards(tell_all)
            self._group = self._shards.group.further()
            try:
                with contextlib.closing(ShardedReader(self._path)) as reader:
                    file = File(reader)
                    for path, later in self._later.items():
                        later.array = file[_paths.text([path])]
                    self._files = [name for name, _, _ in reader.manifest.files]
                    yield
            except BaseException as error:
                self._fail(error)
                raise
            finally:
                for later in self._later.values():
                    later.array = None
            if self.index == 0:
                self._group.end()
            else:
                self._group.tell(Message())
                self._group.wait()
        finally:
            if self.index == 0:
                remove_shards(self._directory)

    def sharded(
        self, path: Address, tree: Any, saved: Saved, writing: Writing, *, snapshot: bool
    ) -> Rearranged:
        return Rearranged(path, tree, saved, writing, self)

    def further(self) -> Group:
        return self._group.further()

    def _fail(self, error: BaseException) -> None:
        if self.index > 0:
            self._group.fail(error)
            return
        if not self._has_announced:
            self._group.announce("")
        self._group.end(error)

    def agree(self, plan: Callable[[], int], choice: Any = None) -> Any:
        own_plan = plan()
        if self.index == 0:
            self._has_announced = True
            self._group.announce(json.dumps([own_plan, self._files, choice]))
            return choice
        text = self._group.announced()
        if not text:
            self._group.wait()  # raises the error of process 0
        its_plan, files, choice = json.loads(text)
        if files != self._files:
            raise BusyError(f"another job saves to {self._path.shown} at the same time: save again")
        if own_plan != its_plan:
            raise TreepackError(
                "its files differ from those of process 0: pass the same mapping=, separator=, "
                "max_shard_size= and metadata= in all processes"
            )
        return choice

    def gather(self) -> None:
        messages = sorted(self._group.gather().items())
        errors = [f"process {at}: {message.error}" for at, message in messages if message.error]
        if errors:
            raise self._group.failed(errors)


class Rearranged:
    """A save of tensors that a mapping makes, to a sharded directory of several processes."""

    def __init__(
        self, path: Address, tree: Any, saved: Saved, writing: Writing, exchange: Exchange
    ):
        self._path = path.absolute()
        self._tree, self._saved, self._writing, self._exchange = tree, saved, writing, exchange
        self.abandon = exchange.abandon

    def __call__(self, progress: Progress) -> None:
        try:
            with contextlib.ExitStack() as stack:
                if self._exchange.index == 0:
                    stack.enter_context(leased_exchange_folder(self._path))
                stack.enter_context(self._exchange.opened(None, 0))
                self._write(progress)
        except BaseException as error:
            self._exchange.abandon(error)
            raise

    def _write(self, progress: Progress) -> None:
        group = self._exchange.further()
        try:
            self._exchange.agree(self._plan)
        except BaseException as error:
            group.abandon(error)
            raise
        more: Any = {"snapshot": False, "group": group}
        ShardedWrite(self._path, self._tree, self._saved, self._writing, **more)(progress)

    def _plan(self) -> int:
        leaves = (leaf for _, leaf in leaves_of(self._tree, ()) if isinstance(leaf, Deferred))
        return zlib.crc32("".join(map(repr, leaves)).encode())


def exchange_folder_of(path: Address) -> Address:
    return path.beside(f".{os.path.basename(path)}")  # noqa: PTH119


@contextlib.contextmanager
def leased_exchange_folder(path: Address) -> Iterator[Permit]:
    folder = exchange_folder_of(path)
    try:
        with Permit.taken(folder, secrets.token_hex(4)) as permit:
            yield permit
    finally:
        if folder.is_local:
            with contextlib.suppress(OSError):
                Path(folder).rmdir()


def exchange_of(
    directory: Address | None, tree: Any, saved: Saved, *, snapshot: bool, threads: int | None
) -> Alone:
    if directory is None or saved.sharded is False or _jax.processes()[1] == 1:
        return Alone(tree)
    if saved.sharded is None and not is_distributed(tree):
        return Alone(tree)
    return Exchange(directory, tree, saved, snapshot=snapshot, threads=threads)


def remove_shards(directory: Address) -> None:
    path = directory / HIDDEN
    with contextlib.suppress(OSError):  # the next save removes it
        names = _names_in(path)
        if (names or path.is_local) and not names.has_others:
            path.remove()


def _names_in(path: Address) -> Names:
    return Names([entry.name for entry in path.entries(hidden=True)])


def writers_of(sizes: Sequence[int], count: int) -> list[int]:
    """Returns the process that writes each file, so that all write about as much."""
    loads = [(0, process) for process in range(count)]
    writers = [0] * len(sizes)
    for number in sorted(range(len(sizes)), key=lambda number: (-sizes[number], number)):
        nbytes, process = heapq.heappop(loads)
        writers[number] = process
        heapq.heappush(loads, (nbytes + sizes[number], process))
    return writers
