"""Plans boxes of sharded arrays, finds them in files, prefetches and reads them.

box ──▶ the files it needs ──opened──▶ its shards found ──▶ read, in one call of the core
"""

from __future__ import annotations

import abc
import contextlib
import functools
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from threading import Event
from typing import Any, TypeVar

import numpy as np

import treepack._core as core
from treepack._src import dtypes as _dtypes
from treepack._src import paths as _paths
from treepack._src import tasks as _tasks
from treepack._src.arrays.memory import memory_of
from treepack._src.options import Status
from treepack._src.paths import Trail
from treepack._src.readers.boxed import ALIGN, BoxedArray, aligned, blocks
from treepack._src.readers.reader import Bounds, LazyArray, Reader, bounds_of
from treepack._src.storage.fetch import RemoteRange, fetching
from treepack._src.storage.naming import naming
from treepack.errors import (
    CorruptionError,
    DecodeError,
    GzipError,
    GzipTruncatedError,
    TreepackError,
)

T = TypeVar("T")

# Errors in reading damaged data.
DAMAGE = (DecodeError, GzipError, GzipTruncatedError)


class Files(Reader, abc.ABC):
    manifest: core.Manifest
    catalogs: list[core.Catalog | None]

    @property
    @abc.abstractmethod
    def identity(self) -> str:
        """Differs between saves to the same directory."""

    @abc.abstractmethod
    def file(self, number: int) -> Reader:
        """Returns a file that matches the manifest; otherwise a CorruptionError."""

    @abc.abstractmethod
    def need_files(self, numbers: Iterable[int]) -> None: ...

    @abc.abstractmethod
    def explained(self, number: int, error: BaseException) -> BaseException: ...


class Box:
    def __init__(self, array: ShardedArray, box: Sequence[range], *, in_place: bool):
        self.array = array
        self.shards = array.shards_in(box)
        self.memory: np.ndarray | None = None
        self._box = box
        self._shape = tuple(map(len, box))
        self._is_found = False
        self._has_begun = False
        self._is_view = len(self.shards) == 1 and array.dtype == array.stored
        self.is_in_place = in_place and self._is_view
        # Files align no smaller arrays; to copy them takes less than to prefetch or view them.
        self.is_small = self.nbytes < core.ALIGN_MIN_BYTES

    def find(self) -> Box:
        if not self._is_found:
            files = self.array.reader
            files.need_files(number for number, _ in self.shards.files)
            missing = self.shards.missing(files.catalogs)
            if missing is not None:
                raise self.array.lacks(missing)
            self._is_found = True
        return self

    def places(self) -> list[tuple[int, int, Bounds]]:
        return self.find().shards.places(self.array.reader.catalogs)

    def read(
        self, threads: int | None = None, stopped: Event | None = None, *, align: int = 1
    ) -> np.ndarray:
        view = self.view() if align == 1 or not self.is_small else None
        if view is not None and view.ctypes.data % align == 0:
            return view
        if self.memory is None:
            elements = aligned(self._shape, self.array.dtype)
        else:
            elements = self.memory.view(self.array.dtype).reshape(self._shape)
        self.read_to(elements, threads, stopped)
        return elements

    def view(self) -> np.ndarray | None:
        if not (self._is_view and self.array.reader.is_local):
            return None
        [(number, value, local)] = self.places()
        try:
            whole = self.array.leaf_of(number, value).__array__(copy=False)
        except (ValueError, FileNotFoundError):  # it must be copied, is damaged or missing
            return None
        return _at(whole, [slice(at, at + count * step, step) for at, count, step in local])

    @property
    def nbytes(self) -> int:
        return math.prod(self._shape) * self.array.dtype.itemsize

    def read_to(
        self, target: np.ndarray, threads: int | None = None, stopped: Event | None = None
    ) -> None:
        if target.size == 0:
            return
        self.find().prefetch()
        array, files = self.array, self.array.reader

        def check() -> None:
            if stopped is not None and stopped.is_set():
                raise _StoppedError("stopped")

        def fill(shards: core.ShardBox, target: np.ndarray) -> None:
            memory: Any
            memory, at, strides = memory_of(target)
            shards.read_to(
                files.catalogs,
                memory,
                at,
                strides,
                threads=threads,
                explain=files.explained,
                check=check,
            )

        with contextlib.suppress(_StoppedError):
            check()
            if target.dtype == array.stored:
                fill(self.shards, target)
                return
            axis = next((axis for axis, part in enumerate(self._box) if len(part) > 1), 0)
            for block, part in blocks(self._box, target, axis):
                uncast = np.empty(part.shape, array.stored)
                fill(array.shards_in(block), uncast)
                path = functools.reduce(Trail, array.parts, Trail())
                _dtypes.cast(uncast, part, path, overflow=array.overflow)

    def prefetch(self) -> None:
        if not (self._has_begun or self.is_small):
            self._has_begun = True
            files = self.find().array.reader
            self.shards.prefetch(files.catalogs, files.explained)


class _StoppedError(TreepackError):
    """The reading of a box was stopped."""


def find(boxes: Iterable[Box]) -> None:
    boxes = [*boxes]
    needed: dict[Any, set[int]] = defaultdict(set)
    for box in boxes:
        needed[box.array.reader].update(number for number, _ in box.shards.files)
    for files, numbers in needed.items():
        files.need_files(sorted(numbers))
    for box in boxes:
        box.find()


def expect(boxes: Iterable[Box]) -> None:
    """Prepares files for the boxes that will be read, so that little else is read from disk.

    The system reads ahead in files that are needed nearly whole. In others, boxes that are used in
    place are prefetched.
    """
    boxes = [*boxes]
    in_place: dict[tuple[Any, int], list[tuple[int, Bounds]]] = defaultdict(list)
    for box in boxes:
        for number, value, local in box.places() if box.is_in_place and not box.is_small else ():
            in_place[box.array.reader, number].append((value, local))
    if not in_place:
        return
    needed: dict[tuple[Any, int], int] = defaultdict(int)
    for box in boxes:
        for number, nbytes in box.shards.files:
            needed[box.array.reader, number] += nbytes
    for (files, number), places in in_place.items():
        catalog = files.file(number).catalog
        if needed[files, number] < _NEARLY_WHOLE * catalog.totals(0)[1]:
            try:
                catalog.prefetch_only(places)
            except Exception as error:
                raise files.explained(number, error) from error


def ranges_of(boxes: Iterable[Box]) -> Iterator[RemoteRange]:
    for box in boxes:
        if not box.array.reader.is_local:
            for number, value, local in box.places():
                yield from box.array.leaf_of(number, value).ranges(local)


def _at(array: Any, index: Iterable[slice]) -> np.ndarray:
    view: np.ndarray = array[(*index, ...)]  # without the dots, a 0-d result becomes a scalar
    return view


# The fraction of its bytes from which a file counts as needed nearly whole.
_NEARLY_WHOLE = 0.95


@contextlib.contextmanager
def reading(boxes: Iterable[Box], threads: int | None) -> Iterator[Callable[[Box], np.ndarray]]:
    in_place = functools.partial(Box.read, align=ALIGN)
    copied = [box for box in boxes if not box.is_in_place]
    if not copied:
        yield in_place
        return
    for box, memory in zip(copied, core.fresh_memory([box.nbytes for box in copied]), strict=True):
        box.memory = memory
    stopped = Event()
    count = core.thread_count(threads)
    each = max(1, count // len(copied))
    works: list[Callable[[], Any]] = [functools.partial(_prefetch, copied, stopped)]
    works += [functools.partial(box.read, each, stopped) for box in copied]
    with _tasks.started(works, count + 1, stopped) as (_, *tasks):
        ahead = {id(box): task for box, task in zip(copied, tasks, strict=True)}
        yield lambda box: in_place(box) if box.is_in_place else ahead[id(box)].result()


def _prefetch(boxes: list[Box], stopped: Event) -> None:
    for box in boxes:
        if not stopped.is_set():
            box.prefetch()


class ShardedArray(BoxedArray):
    reader: Files

    def __init__(
        self,
        reader: Files,
        value: int,
        parts: list[str],
        kind: tuple[Any, ...],
        shards: tuple[core.Shards, bool],
    ):
        super().__init__(reader, value, parts, kind)
        self.stored, self.overflow = self.dtype, False
        self._shards, self.is_host = shards

    def cast(self, dtype: Any, *, overflow: bool) -> ShardedArray:
        cast = object.__new__(ShardedArray)
        cast.__dict__.update(self.__dict__)
        cast.dtype, cast.overflow = np.dtype(dtype), overflow
        return cast

    def box(self, index: Sequence[slice]) -> np.ndarray:
        return self._using(self.box_at(index), Box.read, in_place=True)

    def plan(self, index: Sequence[slice], *, in_place: bool = True) -> Box:
        return Box(self, self.box_at(index), in_place=in_place)

    def view(self) -> np.ndarray | None:
        with naming(self.reader.given):
            return self.plan([slice(None)] * self.ndim).view()

    def ranges(self, bounds: Bounds) -> Iterator[RemoteRange]:
        if not self.reader.is_local:
            box = [range(start, start + count * step, step) for start, count, step in bounds]
            yield from ranges_of([Box(self, box, in_place=False)])

    def shards_in(self, box: Sequence[range]) -> core.ShardBox:
        return self._shards.box(bounds_of(box))

    def _read(self, box: Sequence[range]) -> np.ndarray:
        def read(plan: Box) -> np.ndarray:
            elements = np.empty(tuple(map(len, box)), self.dtype)
            plan.read_to(elements)
            return elements

        return self._using(box, read)

    def _using(self, box: Sequence[range], use: Callable[[Box], T], *, in_place: bool = False) -> T:
        with naming(self.reader.given):
            # The manifest may list shards that do not exist and exceed the memory.
            plan = Box(self, box, in_place=in_place).find()
            with fetching(ranges_of([plan])):
                return use(plan)

    def read_to(
        self, box: Sequence[range], target: np.ndarray, *, threads: int | None = None
    ) -> None:
        if target.size:
            self._using(box, lambda plan: plan.read_to(target, threads))

    def files(self) -> list[int]:
        return self._shards.files

    def status(self, cell: int, number: int, statuses: Mapping[int, Status]) -> Status:
        if not statuses:
            return "corrupt"
        value = self._shards.find(cell, self.reader.file(number).catalog)
        return "corrupt" if value is None else statuses[value]

    def is_in(self, leaves: Mapping[int, Collection[int]]) -> bool:
        return any(
            leaves.get(number)
            and self._shards.find(cell, self.reader.file(number).catalog) in leaves[number]
            for cell, number in enumerate(self.files())
        )

    def lacks(self, shard: int) -> CorruptionError:
        file = self.reader.file(self.files()[shard])
        is_unnamed = self.is_host and len(self.files()) == 1
        keys = self.parts if is_unnamed else [*self.parts, self._shards.name(shard)]
        return CorruptionError(
            f"shard {_paths.text(keys)} of {file.short_name} does not match the manifest"
        )

    def leaf_of(self, number: int, value: int) -> LazyArray:
        shard: LazyArray = self.reader.file(number).leaf(value, self.parts)
        return shard

    def _read_all(self, copy: bool | None) -> np.ndarray:
        array = self.box([slice(None)] * self.ndim)
        if copy is False and array.flags.writeable:  # views of files are read-only
            why = "it lies in several shards, or its file is not mapped"
            raise ValueError(f"{self.path} must be copied: {why}. Pass copy=None")
        return np.array(array) if copy and not array.flags.writeable else array

    def compare(self) -> None:
        for cell, number in enumerate(self.files()):
            file = self.reader.file(number)
            value = self._shards.find(cell, file.catalog)
            if value is None:
                raise self.lacks(cell)
            file.compare(value, self.parts)
