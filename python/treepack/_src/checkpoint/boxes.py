"""Boxes of sharded arrays: planned, prefetched, and read shard by shard."""

from __future__ import annotations

import contextlib
import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from threading import Event
from typing import Any, NamedTuple

import numpy as np

import treepack._core as core
from treepack._src import dtypes as _dtypes
from treepack._src import tasks as _tasks
from treepack._src.checkpoint.reader import Bounds, LazyArray, Reader
from treepack._src.storage.fetch import Blocks, Range
from treepack.errors import CorruptionError, DecodeError, GzipError, GzipTruncatedError

# The errors of reading damaged data.
DAMAGE = (DecodeError, GzipError, GzipTruncatedError)

# The alignment of memory that jax on CPU uses in place.
_ALIGN = 64


class Part(NamedTuple):
    """The part of a box that lies in one shard.

    Attributes:
      gone: Makes the error for a missing file, by its name.
      shard: The shard.
      local: The indices in the shard.
      target: The indices in the box.
    """

    gone: Callable[[str], CorruptionError]
    shard: LazyArray
    local: Bounds
    target: tuple[slice, ...]

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return math.prod(count for _, count, _ in self.local) * self.shard.dtype.itemsize

    @property
    def place(self) -> tuple[int, Bounds]:
        """Its place in its file, in the form of the core."""
        return self.shard.value, self.local

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Adds the name of the file to read errors."""
        reader = self.shard.reader
        try:
            yield
        except FileNotFoundError as error:
            raise self.gone(reader.short_name) from error
        except DAMAGE as error:
            raise CorruptionError(f"{reader.short_name} is damaged: {error.reason}") from error

    def prefetch(self) -> None:
        """Starts to read it from the disk."""
        with self.explained():
            self.shard.reader.catalog.prefetch(*self.place)

    def view(self) -> np.ndarray | None:
        """Returns a view of it where it lies, if possible."""
        try:
            whole: Any = self.shard.__array__(copy=False)
        except (ValueError, FileNotFoundError):  # remote, compressed, or damaged
            return None
        return _at(whole, [slice(at, at + count * step, step) for at, count, step in self.local])

    def read_to(self, target: np.ndarray, threads: int | None) -> None:
        """Reads it to a part of an array in C order, which may have another dtype."""
        stored = target
        if target.dtype != self.shard.dtype:
            stored = np.empty(target.shape, self.shard.dtype)
        with self.explained():
            self.shard.read_to(self.local, stored, threads=threads)
        if stored is not target:
            _dtypes.cast(stored, target)


class Box:
    """A box of an array that is read later.

    Attributes:
      parts: Its parts in the shards.
      is_in_place: Whether it will be used where it lies in its file.
      memory: Bytes that it is read to, unless it brings its own.
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], parts: list[Part], *, in_place: bool
    ):
        """With `in_place` it is used where it lies if one shard has all of it."""
        self._shape = shape
        self._dtype = dtype
        self.parts = parts
        self.memory: np.ndarray | None = None
        self._has_begun = False
        self._is_view = len(parts) == 1 and parts[0].shard.dtype == dtype
        self.is_in_place = in_place and self._is_view

    def read(self, threads: int | None = None, stopped: Event | None = None) -> np.ndarray:
        """Returns its elements: a view of a file where possible."""
        view = self.parts[0].view() if self._is_view else None
        if view is not None:
            return view
        if self.memory is None:
            made = aligned(self._shape, self._dtype)
        else:
            made = self.memory.view(self._dtype).reshape(self._shape)
        self.read_to(made, threads, stopped)
        return made

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return math.prod(self._shape) * self._dtype.itemsize

    def read_to(
        self, target: np.ndarray, threads: int | None = None, stopped: Event | None = None
    ) -> None:
        """Reads its elements to an array in C order, until it is stopped."""
        self.prefetch()
        for part in self.parts:
            if stopped is not None and stopped.is_set():
                return
            part.read_to(_at(target, part.target), threads)

    def prefetch(self) -> None:
        """Starts to read it from the disk, once."""
        if not self._has_begun:
            self._has_begun = True
            for part in self.parts:
                part.prefetch()


def expect(boxes: Iterable[Box]) -> None:
    """Prepares files for the boxes that will be read, so that little else is read from disk.

    The system reads ahead in a file that is needed nearly whole. In others it would read bytes that
    nobody needs: there, boxes that are used in place are prefetched while the load goes on.
    """
    needed: dict[Reader, int] = defaultdict(int)
    in_place: dict[Reader, list[Part]] = defaultdict(list)
    for box in boxes:
        for part in box.parts:
            file = part.shard.reader
            needed[file] += part.nbytes
            if box.is_in_place:
                in_place[file].append(part)
    for file, parts in in_place.items():
        if needed[file] < _NEARLY_WHOLE * file.catalog.totals(0)[1]:
            with parts[0].explained():
                file.catalog.prefetch_only([part.place for part in parts])


def ranges_of(boxes: Iterable[Box]) -> Iterator[tuple[Blocks, Range]]:
    """Yields the ranges of remote files that boxes need, in order; see `fetching`."""
    for box in boxes:
        for part in box.parts:
            yield from part.shard.ranges(part.local)


def _at(array: Any, index: Iterable[slice]) -> np.ndarray:
    """Returns a view of a part of an array."""
    view: np.ndarray = array[(*index, ...)]  # without the dots no dimensions become a scalar
    return view


# A file is needed nearly whole from this part of its bytes on.
_NEARLY_WHOLE = 0.95


@contextlib.contextmanager
def reading(boxes: Iterable[Box], threads: int) -> Iterator[Callable[[Box], np.ndarray]]:
    """Prefetches boxes in threads; yields a function that waits for one."""
    copied = [box for box in boxes if not box.is_in_place]
    if not copied:
        yield Box.read
        return
    for box, memory in zip(copied, core.fresh_memory([box.nbytes for box in copied]), strict=True):
        box.memory = memory
    stopped = Event()
    each = max(1, threads // len(copied))
    works: list[Callable[[], Any]] = [functools.partial(_prefetch, copied, stopped)]
    works += [functools.partial(box.read, each, stopped) for box in copied]
    with _tasks.started(works, threads + 1, stopped) as (_, *tasks):
        ahead = {id(box): task for box, task in zip(copied, tasks, strict=True)}
        yield lambda box: box.read() if box.is_in_place else ahead[id(box)].result()


def _prefetch(boxes: list[Box], stopped: Event) -> None:
    for box in boxes:
        if not stopped.is_set():
            box.prefetch()


def aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Allocates an array that jax on CPU can use in place."""
    nbytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(nbytes + _ALIGN, np.uint8)
    start = -memory.ctypes.data % _ALIGN
    return memory[start : start + nbytes].view(dtype).reshape(shape)
