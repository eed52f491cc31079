"""Exchanges shards between processes, so that each can save whole arrays in another format.

    arrays ──each process its shards──▶ hidden checkpoint ──▶ whole arrays, read by any process

The processes have two rounds of messages: for the hidden checkpoint, and for the files that are
made of it.
"""

from __future__ import annotations

import contextlib
import heapq
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import treepack._core as core
from treepack._core import Class
from treepack._src import paths as _paths
from treepack._src.checkpoint.file import File
from treepack._src.checkpoint.sharded import ShardedReader
from treepack._src.interop import jax as _jax
from treepack._src.interop.group import Group, Message, text_of
from treepack._src.options import Saved, Tell, Writing
from treepack._src.pytree.leaves import classify
from treepack._src.pytree.state_dict import leaves_of
from treepack._src.saving.sharded import ShardedWrite, is_distributed
from treepack._src.storage.address import Address
from treepack._src.storage.deferred import Deferred
from treepack.errors import BusyError, TreepackError

HIDDEN = ".shards"
"""The directory of the hidden checkpoint, which a killed save leaves."""

ARRAYS = (Class.ARRAY, Class.SCALAR, Class.JAX_ARRAY, Class.DEFERRED)
"""The classes of leaves that are arrays in files of other formats."""


class Later(Deferred):
    """An array that will be in the hidden checkpoint.

    Attributes:
      array: The array there, once it can be read.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]):
        self.shape, self.dtype = shape, dtype
        self.array: Any = None

    def _now(self) -> Any:
        """Returns the array in the hidden checkpoint."""
        return self.array

    def _deferred(self) -> tuple[core.Content, list[tuple[int, int]]]:
        pieces: tuple[core.Content, list[tuple[int, int]]] = self.array._deferred()
        return pieces


class Exchange:
    """The arrays of a tree that several processes save together.

    Attributes:
      tree: The tree, as nested dicts, with a `Later` in place of each array.
      index: The number of this process; 0 commits.
      count: The number of processes.
      nbytes: The number of bytes of shards that this process has written.
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
        """Encodes the shards of this process.

        Args:
          directory: The directory in which the hidden checkpoint is made. Process 0 must hold its
            lease from `opened` on.
          tree: The tree.
          saved: The options of the save.
          snapshot: Whether arrays may change before `opened`.
          threads: The maximum number of threads that copy.
        """
        self._path = directory.absolute() / HIDDEN
        self._later: list[Later] = []
        self.tree: Any = {}
        arrays: dict[str, Any] = {}
        for parts, leaf in leaves_of(tree, ()):
            if classify(leaf) in ARRAYS:
                arrays[str(len(arrays))] = (
                    np.asarray(leaf) if isinstance(leaf, np.generic) else leaf
                )
                leaf = Later(leaf.shape, np.dtype(leaf.dtype).newbyteorder("="))
                self._later.append(leaf)
            if parts:
                _paths.put(self.tree, [*parts], leaf)
            else:
                self.tree = leaf
        own = Saved(sharded=True, step=saved.step, timeout=saved.timeout)
        writing = Writing(durable=False, threads=threads)
        self._shards = ShardedWrite(self._path, arrays, own, writing, snapshot=snapshot)
        self._group: Group = self._shards.group
        self.index, self.count = self._group.index, self._group.count
        self.nbytes = 0
        self._has_begun = self._has_announced = False

    def abandon(self, error: BaseException) -> None:
        """Sends an error to all others, unless `opened` does: this process will not save."""
        if not self._has_begun:
            self._has_begun = True
            self._shards.abandon(error)

    @contextlib.contextmanager
    def opened(self, tell: Tell | None, after: int) -> Iterator[None]:
        """Exchanges the shards; within the block, arrays can be read.

        Args:
          tell: Called with the number of bytes that are written, and their total.
          after: The number of bytes that this process writes within the block.

        Raises:
          TreepackError: If another process fails.
        """
        self._has_begun = True

        def told(done: int, total: int) -> None:
            self.nbytes = total
            if tell is not None:
                tell(done, total + after)

        try:
            self._shards(told)
            self._group = self._shards.group.further()
            try:
                with contextlib.closing(ShardedReader(self._path)) as reader:
                    file = File(reader)
                    for number, later in enumerate(self._later):
                        later.array = file[str(number)]
                    self._files = [name for name, _, _ in reader.manifest.files]
                    yield
            except BaseException as error:
                self._fail(error)
                raise
            finally:
                for later in self._later:
                    later.array = None
            if self.index == 0:
                self._group.end()
            else:
                self._group.tell(Message())
                self._group.wait()
        finally:
            if self.index == 0:
                with contextlib.suppress(OSError):  # the next save removes it
                    self._path.remove()

    def _fail(self, error: BaseException) -> None:
        """Sends the error of the second round to all others."""
        if self.index > 0:
            self._group.tell(Message(error=text_of(error)), waits=False)
            return
        if not self._has_announced:
            self._group.announce("")
        self._group.end(error)

    def agree(self, plan: int, choice: Any = None) -> Any:
        """Returns the choice of process 0, such as names of files, in all processes.

        Args:
          plan: A checksum of the files, which must be the same in all processes.
          choice: A value for JSON; for process 0.

        Raises:
          TreepackError: If another process would save other files.
        """
        if self.index == 0:
            self._has_announced = True
            self._group.announce(json.dumps([plan, self._files, choice]))
            return choice
        text = self._group.announced()
        if not text:
            self._group.wait()  # raises the error of process 0
        its_plan, files, choice = json.loads(text)
        if files != self._files:
            raise BusyError(f"another job saves to {self._path} at the same time: save again")
        if plan != its_plan:
            raise TreepackError(
                "its files differ from those of process 0: pass the same mapping=, separator=, "
                "max_shard_size= and metadata= in all processes"
            )
        return choice

    def gather(self) -> None:
        """Waits until all others have written their files; for process 0.

        Raises:
          TreepackError: If one of them failed.
        """
        messages = sorted(self._group.gather().items())
        errors = [f"process {at}: {message.error}" for at, message in messages if message.error]
        if errors:
            raise self._group.failed(errors)


def exchange_of(
    directory: Address | None, tree: Any, saved: Saved, *, snapshot: bool, threads: int | None
) -> Exchange | None:
    """Returns the exchange of a save by several processes; `None` if this one saves alone.

    See `Exchange`; `directory` is `None` if only one process saves in a format.
    """
    if directory is None or saved.sharded is False or _jax.processes()[1] == 1:
        return None
    if saved.sharded is None and not is_distributed(tree):
        return None
    return Exchange(directory, tree, saved, snapshot=snapshot, threads=threads)


def writers_of(sizes: Sequence[int], count: int) -> list[int]:
    """Returns the process that writes each file of these sizes, so that all write about as much."""
    loads = [(0, process) for process in range(count)]
    writers = [0] * len(sizes)
    for number in sorted(range(len(sizes)), key=lambda number: (-sizes[number], number)):
        nbytes, process = heapq.heappop(loads)
        writers[number] = process
        heapq.heappush(loads, (nbytes + sizes[number], process))
    return writers
