"""Assembles arrays of sharded checkpoints from their shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

import treepack._core as core
from treepack._src import paths as _paths
from treepack._src.checkpoint.boxes import Box, Files, ranges_of
from treepack._src.checkpoint.reader import Bounds, LazyArray, bounds_of
from treepack._src.options import Status
from treepack._src.storage.deferred import Computed
from treepack._src.storage.fetch import fetching
from treepack._src.storage.naming import naming
from treepack.errors import CorruptionError, DecodeError

T = TypeVar("T")


class ShardedArray(LazyArray):
    """An array whose shards are in several files; each shard is read when it is needed."""

    def __init__(
        self,
        reader: Files,
        value: int,
        parts: list[str],
        dtype: str,
        shape: tuple[int, ...],
        number: int,
    ):
        super().__init__(reader, value, parts, dtype, shape)
        self.checkpoint = reader
        self.stored = self.dtype
        counts, self.is_host = reader.manifest.grid(number)
        try:
            self._shards = reader.manifest.shards(
                number, reader.catalog, value, dtype, self.dtype.itemsize, [*shape]
            )
        except ValueError:
            raise DecodeError(
                f"the manifest is damaged: it splits the shape {shape} into {counts} shards",
                path=self.path,
            ) from None

    def cast(self, dtype: Any) -> ShardedArray:
        """Returns the same array, cast when it is read."""
        cast = object.__new__(ShardedArray)
        cast.__dict__.update(self.__dict__)
        cast.dtype = np.dtype(dtype)
        return cast

    def box(self, index: Sequence[slice]) -> np.ndarray:
        """Reads only the elements of a box.

        Args:
          index: A slice with a step of 1 for each dimension.

        Returns:
          A view of a file if the box lies in one shard, otherwise a new array.
        """
        return self._using(self._indices(index), Box.read, in_place=True)

    def plan(self, index: Sequence[slice], *, in_place: bool = True) -> Box:
        """Plans a box to be read later; with `in_place`, as a view of its file if possible."""
        return self._plan(self._indices(index), in_place=in_place)

    def _plan(self, indices: Sequence[range], *, in_place: bool = False) -> Box:
        bounds = bounds_of(indices)
        return Box(self, bounds, self._shards.box(bounds), in_place=in_place)

    def _read(self, box: Sequence[range]) -> np.ndarray:
        """Returns the elements of a box."""

        def read(plan: Box) -> np.ndarray:
            made = np.empty(tuple(map(len, box)), self.dtype)
            plan.read_to(made)
            return made

        return self._using(box, read)

    def _using(
        self, indices: Sequence[range], use: Callable[[Box], T], *, in_place: bool = False
    ) -> T:
        """Plans a box, and calls `use` with it while its ranges of remote files are fetched."""
        with naming(self.reader.given):
            # The manifest may list shards that do not exist and exceed the memory.
            plan = self._plan(indices, in_place=in_place).find()
            with fetching(ranges_of([plan])):
                return use(plan)

    def read_to(self, bounds: Bounds, target: np.ndarray, *, threads: int | None = None) -> None:
        """Reads the elements of a box to a part of an array."""
        if target.size == 0:
            return
        with naming(self.reader.given):
            plan = Box(self, bounds, self._shards.box(bounds), in_place=False).find()
            with fetching(ranges_of([plan])):
                plan.read_to(target, threads)

    def files(self) -> list[int]:
        """Returns the number of the file of each shard."""
        return self._shards.files

    def status(self, cell: int, number: int, statuses: Mapping[int, Status]) -> Status:
        """Returns the status of a shard from the statuses of the leaves of its file."""
        if not statuses:
            return "corrupt"
        found = self._shards.find(cell, self.checkpoint.file(number).catalog)
        return "corrupt" if found is None else statuses[found]

    def lacks(self, shard: int) -> CorruptionError:
        """Returns the error for a shard that is missing from its file."""
        file = self.checkpoint.file(self.files()[shard])
        keys = self.parts if self.is_host else [*self.parts, self._shards.name(shard)]
        return CorruptionError(
            f"shard {_paths.text(keys)} of {file.short_name} does not match the manifest"
        )

    def leaf_of(self, number: int, value: int) -> LazyArray:
        """Returns a shard by the numbers of its file and leaf."""
        shard: LazyArray = self.checkpoint.file(number).leaf(value, self.parts)
        return shard

    def _indices(self, index: Sequence[slice]) -> list[range]:
        return [range(*part.indices(n)) for part, n in zip(index, self.shape, strict=True)]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        found = self.box([slice(None)] * self.ndim)
        if dtype is not None and np.dtype(dtype) != found.dtype:
            if copy is False:
                raise ValueError("another dtype needs a copy")
            return found.astype(dtype)
        if copy is False and found.flags.writeable:  # views of files are read-only
            why = "it lies in several shards, or its file is not mapped"
            raise ValueError(f"{self.path} must be copied: {why}. Pass copy=None")
        return np.array(found) if copy and not found.flags.writeable else found

    def flat_range(self, start: int, stop: int) -> np.ndarray:
        """Reads only a range of elements, counted in C order."""
        found = core.boxes_of_range(self.shape, start, min(stop, self.size))
        boxes = [self.box([slice(*it) for it in box]).reshape(-1) for box in found]
        return boxes[0] if len(boxes) == 1 else np.concatenate([np.empty(0, self.dtype), *boxes])

    def compare(self) -> None:
        """Compares its shards with their checksums.

        Raises:
          CorruptionError: If a shard is damaged or missing.
        """
        for cell, number in enumerate(self.files()):
            file = self.checkpoint.file(number)
            value = self._shards.find(cell, file.catalog)
            if value is None:
                raise self.lacks(cell)
            file.compare(value, self.parts)

    def _deferred(self) -> tuple[core.Content, list[tuple[int, int]]]:
        self.compare()
        return Computed(self.shape, self.dtype, self.flat_range)._deferred()
