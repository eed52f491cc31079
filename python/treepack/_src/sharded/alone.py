"""Reads the arrays of a sharded checkpoint whose manifest is lost.

records of the files ──▶ shards of each array, by path ──▶ another manifest ──▶ `ShardedReader`
"""

from __future__ import annotations

import contextlib
import math
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

import treepack._core as core
from treepack._src import dtypes as _dtypes
from treepack._src import paths as _paths
from treepack._src.arrays.deferred import Computed
from treepack._src.readers.reader import LazyArray, Reader
from treepack._src.readers.shard_boxes import ShardedArray
from treepack._src.readers.unchecked import layout_of
from treepack._src.sharded.files import FILE, MANIFEST, ShardFile, save_of
from treepack._src.sharded.reading import ShardedReader
from treepack._src.storage.content import Openable
from treepack.errors import CorruptionError, DecodeError, TreepackError

# The last key of a shard, such as `[0:32,0:8]`.
_PLACE = re.compile(r"\[(\d+:\d+(?:,\d+:\d+)*)?\]")


class _Shard(NamedTuple):
    file: int
    value: int
    dtype: str
    shape: tuple[int, ...]
    place: tuple[tuple[int, int], ...] | None

    def is_cell(self, part: tuple[int, ...], shape: tuple[int, ...]) -> bool:
        if self.place is None:
            return self.shape == shape
        return len(self.place) == len(shape) and all(
            start % max(1, size) == 0 and stop == min(start + size, length)
            for (start, stop), size, length in zip(self.place, part, shape, strict=True)
        )

    def fits(self, other: _Shard) -> bool:
        if self.dtype != other.dtype or len(self.place or ()) != len(other.place or ()):
            return False
        if self.place is None or other.place is None:
            return self.place is other.place and self.shape == other.shape
        return all(
            mine == its or (start if mine < its else its_start) % max(mine, its) == 0
            for (start, _), (its_start, _), mine, its in zip(
                self.place, other.place, self.shape, other.shape, strict=True
            )
        )


class _Array(Computed):
    def __init__(self, files: list[Reader], parts: tuple[str, ...], shards: list[_Shard]):
        """`shards` are in C order; some missing, or of different arrays, are a CorruptionError."""
        first, last = shards[0], shards[-1]
        shape = first.shape if last.place is None else tuple(stop for _, stop in last.place)
        dtype = _dtypes.resolve(first.dtype.encode())
        places = {shard.place for shard in shards}
        is_grid = all(
            shard.dtype == first.dtype and shard.is_cell(first.shape, shape) for shard in shards
        )
        if dtype is None or len(places) < len(shards) or not is_grid:
            raise CorruptionError(f"{_paths.text(parts)} has shards of different arrays")
        self.counts = [
            math.ceil(size / max(1, part)) for size, part in zip(shape, first.shape, strict=True)
        ]
        if math.prod(self.counts) != len(shards):
            raise CorruptionError(f"{_paths.text(parts)} lacks shards")
        self.parts, self.shards, self._files = parts, shards, files
        super().__init__(shape, dtype, self._range)

    def _range(self, start: int, stop: int) -> np.ndarray:
        array = np.empty(self.shape, self.dtype)
        for shard in self.shards:
            index: Any = tuple(slice(*part) for part in shard.place or ())
            file = self._files[shard.file]
            file.compare(shard.value, [*self.parts])
            array[(*index, ...)] = file.leaf(shard.value, [*self.parts])
        return array.reshape(-1)[start:stop]


class ShardsReader(ShardedReader):
    """Without the manifest, which has types and other leaves, a checkpoint only has arrays."""

    format = "treepack, a sharded directory without its manifest"
    has_types = False

    def __init__(self, source: Openable, *, lost: str, **options: Any):
        self._lost = [f"{lost}; with the manifest, types and leaves other than arrays are lost"]
        super().__init__(source, lost=lost, **options)
        self._damage = "; ".join(self._lost)

    def _read_manifest(self, source: Openable) -> tuple[bytes, core.Manifest]:
        self._opened: dict[str, Reader] = {}
        for name in self._names():
            try:
                self._opened[name] = self._open(name)
            except TreepackError as error:
                self._missing.append(name)
                self._lost.append(f"{name}: {error}")
        files = [*self._opened.values()]
        shards: dict[tuple[str, ...], list[_Shard]] = defaultdict(list)
        by_save = self._ages()
        ages = [by_save.get(save_of(name), 0) for name in self._opened]
        first = self._first_certain(by_save)
        left_out = [file for file, age in zip(files, ages, strict=True) if age < first]
        self._lost += [f"{file.short_name}: {file.damage}" for file in left_out if file.damage]
        if left_out:
            self._lost.append("of files of earlier saves, it is unknown which leaves are current")
        for number, file in enumerate(files):
            for parts, shard in _shards_in(number, file) if ages[number] >= first else ():
                shards[parts].append(shard)
        tree: dict[str, Any] = {}
        for parts, all_shards in shards.items():
            array_shards = _newest(all_shards, ages)
            try:
                array = _Array(
                    files, parts, sorted(array_shards, key=lambda shard: shard.place or ())
                )
                _paths.put(tree, parts or ("",), array)
            except CorruptionError as error:
                self._lost.append(str(error))
            except TreepackError:  # an array has this path, or one above
                self._lost.append(f"{_paths.text(parts)} has shards of different arrays")
        if () in shards and isinstance(tree.get(""), _Array):
            tree = tree[""]  # the tree is an array
        if not tree:
            raise CorruptionError("; ".join([*self._lost, "no shard is intact"]))
        self._lost.append("if files are lost, too, arrays may lack their last shards")
        layout = layout_of(tree, None, gaps=True)
        splits: list[tuple[list[int], int, int, bool]] = []
        holders: list[list[list[int]]] = []
        for array in layout.gaps:
            nbytes = array.nbytes // len(array.shards)
            splits.append((array.counts, len(holders), nbytes, array.shards[0].place is None))
            holders.append([[shard.file] for shard in array.shards])
        plan = core.ShardPlan(splits, holders)
        rows = [
            (name, file.nbytes, zlib.crc32(file.catalog.record or b""))
            for name, file in self._opened.items()
        ]
        data = core.Manifest.planned(layout, plan).with_files([rows[at] for at in plan.processes])
        return data, core.Manifest.decode(data)

    def _ages(self) -> dict[str, int]:
        """Returns the numbers of the saves; of a save whose records are damaged, it is unknown."""
        found = {
            save_of(name): age
            for name, file in self._opened.items()
            if (age := ShardFile(file.catalog).about.get("age")) is not None
        }
        saves = {*map(save_of, self._opened)}
        return found if len(saves) > 2 else dict.fromkeys(saves, 0) | found

    def _first_certain(self, ages: dict[str, int]) -> int:
        """Returns the number of the first save whose shards no lost shard of a later one replaced.

        `ages` has the numbers of the saves of the open files.
        """
        last = max(ages.values(), default=0)
        damaged = [name for name, file in self._opened.items() if file.damage is not None]
        doubted = [ages.get(save_of(name), last) for name in (*self._missing, *damaged)]
        return max(doubted, default=0)

    def _names(self) -> list[str]:
        try:
            data = self._place(MANIFEST).read_bytes().decode("latin-1")
        except FileNotFoundError:
            data = ""
        named = list(dict.fromkeys(FILE.findall(data)))
        # Web servers list nothing.
        there = [name for name in self._path.names() if FILE.fullmatch(name)] or named
        saves = {save_of(name) for name in there}
        # The files that each save took from earlier ones.
        links: dict[str, set[str]] = defaultdict(set)
        for name in there if len(saves) > 1 else ():
            links[save_of(name)] |= self._links(name)
        saves -= {save_of(name) for names in links.values() for name in names}
        named_saves = [save for name in named if (save := save_of(name)) in saves]
        if len(saves) > 1 and not named_saves:
            raise CorruptionError(
                f"{self._lost[0]}, and the directory has files of {len(saves)} saves: move those "
                "of other saves away"
            )
        save = Counter(named_saves).most_common(1)[0][0] if named_saves else "".join(saves)
        expected = {name for name in named if name.startswith(save)} | links[save]
        self._missing = sorted(expected.difference(there))
        self._lost += [f"{name} is missing" for name in self._missing]
        return [name for name in there if name.startswith(save) or name in links[save]]

    def _links(self, name: str) -> set[str]:
        with contextlib.suppress(TreepackError), contextlib.closing(self._open(name)) as file:
            return {*ShardFile(file.catalog).about.get("links", ())}
        return set()

    def _open(self, name: str) -> Reader:
        left = None
        if self._max_size is not None:
            left = max(0, self._max_size - sum(file.inflated for file in self._opened.values()))
        return Reader.open(
            self._place(name), regular=True, salvage=True, mmap=self._mmap, max_size=left
        )

    def array(self, value: int, parts: list[str], kind: tuple[Any, ...]) -> LazyArray:
        """Arrays load as NumPy's: shards have no type of arrays."""
        array = super().array(value, parts, kind)
        if isinstance(array, ShardedArray):
            array.is_host = True
        return array

    def _checked(self, name: str, nbytes: int, record: int) -> Reader:
        return self._opened[name]


def _newest(shards: list[_Shard], ages: list[int]) -> list[_Shard]:
    last = max(ages[shard.file] for shard in shards)
    latest = next(shard for shard in shards if ages[shard.file] == last)
    newest: dict[Any, int] = defaultdict(int)
    for shard in shards:
        newest[shard.place] = max(newest[shard.place], ages[shard.file])
    return [
        shard for shard in shards if shard.fits(latest) and ages[shard.file] == newest[shard.place]
    ]


def _shards_in(number: int, file: Reader) -> Iterator[tuple[tuple[str, ...], _Shard]]:
    for path, value in file.catalog.leaves(0):
        parts = _paths.parts(path)
        try:
            kind = file.kind(value, parts)
        except DecodeError:
            continue
        if kind[0] != "array":
            continue
        _, dtype, shape = kind
        place = None
        if parts and (match := _PLACE.fullmatch(parts[-1])):
            ranges = [part.split(":") for part in (match[1] or "").split(",") if part]
            place = tuple((int(start), int(stop)) for start, stop in ranges)
            if tuple(stop - start for start, stop in place) == shape:
                parts = parts[:-1]
            else:
                place = None
        yield tuple(parts), _Shard(number, value, dtype, tuple(shape), place)
