"""Reading a sharded checkpoint: arrays are put together from shards, as far as they are needed.

manifest ──▶ encoding with holes ──▶ catalog, as of a file
    └──────▶ which file has which shard ──▶ ShardedArray.box ──▶ a device, or memory
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from treepack import _core, _paths
from treepack._content import joined, read_all, size_of
from treepack._deferred import rows_cast
from treepack._lazy import LazyArray, basic_index
from treepack._sharded.shards import MANIFEST, bounds, name_of
from treepack.errors import CorruptionError, DecodeError

if TYPE_CHECKING:
    from treepack._open import File, Status, Tree

# Where jax on CPU uses memory in place.
_ALIGN = 64


class ReplacedError(CorruptionError):
    """The files of a checkpoint are gone, because it has been saved again."""


class Checkpoint:
    """The files of a sharded checkpoint, which are opened when they are needed.

    Attributes:
      manifest: What the files are, and which of them has which shard.
    """

    def __init__(self, path: str | os.PathLike[str], open_file: Callable[[Any], File]):
        """`open_file` opens one of them."""
        self._path = path
        self._open_file = open_file
        self._lock = threading.Lock()
        try:
            data = read_all(joined(self._path, MANIFEST))
        except FileNotFoundError:
            raise DecodeError(
                f"{os.fspath(path)!r} has no {MANIFEST}: it is no checkpoint, or one whose saving "
                "has not come to its end"
            ) from None
        self._data = data
        self.manifest = _core.Manifest.decode(data)
        self._expected = self.manifest.files
        for name, _, _ in self._expected:
            if name in ("", ".", "..") or os.path.basename(name) != name:  # noqa: PTH119
                raise DecodeError(f"the manifest is damaged: {name!r} is no file beside it")
        self._files: list[File | None] = [None] * len(self._expected)

    def file(self, number: int) -> File:
        """Returns a file, if it is the one that the manifest means.

        Raises:
          CorruptionError: If it is missing, or another one.
        """
        with self._lock:
            found = self._files[number]
            if found is None:
                found = self._files[number] = self._checked(*self._expected[number])
        return found

    def _checked(self, name: str, nbytes: int, record: int) -> File:
        place = joined(self._path, name)
        try:
            if size_of(place) != nbytes:
                raise CorruptionError(f"{place} has {size_of(place)} bytes, and had {nbytes}")
            file = self._open_file(place)
        except FileNotFoundError:
            if read_all(joined(self._path, MANIFEST)) != self._data:
                raise ReplacedError(
                    f"{os.fspath(self._path)!r} has been saved again meanwhile: open it again"
                ) from None
            raise CorruptionError(f"{place} is missing: the checkpoint is not whole") from None
        except DecodeError as error:
            raise CorruptionError(f"{place} is damaged: {error}") from error
        if zlib.crc32(file._catalog().trailer or b"") != record:
            raise CorruptionError(f"{place} is not the file that was saved: it has another record")
        return file

    def close(self) -> None:
        """Lets go of the files."""
        with self._lock:
            for number, file in enumerate(self._files):
                if file is not None:
                    file.close()
                    self._files[number] = None

    def array(self, tree: Tree, value: int, path: str, dtype: str, shape: Any) -> Any:
        """Returns the array at a value; `None` if its bytes are in the manifest itself."""
        _, _, start, stop, _ = tree._catalog().leaf(value)
        array = self.manifest.array_in(start, stop)
        if array is None:
            return None
        return ShardedArray(tree, value, path, dtype, shape, self, array)

    def verify(
        self, arrays: dict[int, Any], *, threads: int | None, progress: Callable[[int, int], object]
    ) -> tuple[dict[int, Status], str | None]:
        """Compares all files with their checksums.

        Args:
          arrays: What `array` returns, by numbers of the caller's.
          threads: See `Catalog.verify`.
          progress: See `Catalog.verify`.

        Returns:
          What is known of each array, and what is wrong with files in words.
        """
        total = sum(nbytes for _, nbytes, _ in self._expected)
        done = 0
        statuses: list[dict[str, Status]] = []
        damage = []
        for number, (_, nbytes, _) in enumerate(self._expected):
            try:
                file = self.file(number)
            except CorruptionError as error:
                damage.append(str(error))
                statuses.append({})
            else:
                tell = functools.partial(_told, progress, done, total)
                found, wrong = file._verified(threads=threads, progress=tell)
                leaves = file._catalog().leaves(0)
                statuses.append({path: found[value] for path, value in leaves})
                damage.extend([] if wrong is None else [f"{file._name}: {wrong}"])
            done += nbytes
        worst = {
            key: max(
                (statuses[file].get(path, "corrupt") for file, path in array.shards()),
                key=_BADNESS.index,
            )
            for key, array in arrays.items()
        }
        return worst, "; ".join(damage) or None


_BADNESS = ["ok", "unchecked", "corrupt"]


def _told(
    progress: Callable[[int, int], object], before: int, total: int, done: int, _: int
) -> None:
    progress(before + done, total)


class ShardedArray(LazyArray):
    """An array whose shards are in several files, each read when it is needed."""

    def __init__(
        self,
        tree: Tree,
        value: int,
        path: str,
        dtype: str,
        shape: tuple[int, ...],
        checkpoint: Checkpoint,
        number: int,
    ):
        super().__init__(tree, value, path, dtype, shape)
        counts, self.is_host = checkpoint.manifest.grid(number)
        sizes = [1] * len(shape) if self.is_host else counts
        if len(sizes) != len(shape) or any(
            size % count for size, count in zip(shape, sizes, strict=True)
        ):
            raise DecodeError(f"the manifest splits {shape} by {counts}", path=path)
        self._checkpoint = checkpoint
        self._counts = sizes
        self._number = number
        self._stored = self.dtype
        self._keys = _paths.parts(path)
        self._known: dict[int, LazyArray] = {}
        self._begun: set[tuple[range, ...]] = set()

    def astype(self, dtype: Any) -> ShardedArray:
        """Returns the same array, which is cast when it is read."""
        cast = object.__new__(ShardedArray)
        cast.__dict__.update(self.__dict__)
        cast.dtype = np.dtype(dtype)
        return cast

    def box(self, index: Sequence[slice]) -> np.ndarray:
        """Returns the elements of a box, of which nothing else is read.

        Args:
          index: A slice with a step of 1 for each dimension.

        Returns:
          A view of a file where the box lies in one shard, otherwise memory of its own.
        """
        spans = [range(*part.indices(size)) for part, size in zip(index, self.shape, strict=True)]
        self._begin(spans)
        self._begun.discard(tuple(spans))  # the next time it may have to be read again
        shape = tuple(map(len, spans))
        if 0 in shape:
            return np.empty(shape, self.dtype)
        parts = list(self._parts(spans))
        if len(parts) == 1 and self.dtype == self._stored:
            return _elements(self._shard(parts[0].cell), parts[0].local)
        made = aligned(shape, self.dtype)
        for part in parts:
            found = _elements(self._shard(part.cell), part.local)
            with np.errstate(over="ignore"):  # too large a number becomes infinite, as in JAX
                np.copyto(made[part.target], found, casting="unsafe")
        return made

    def prefetch(self, index: Sequence[slice]) -> None:
        """Begins to read a box from the disk, and nothing else."""
        self._begin(
            [range(*part.indices(size)) for part, size in zip(index, self.shape, strict=True)]
        )

    def _begin(self, spans: list[range]) -> None:
        if 0 in map(len, spans) or tuple(spans) in self._begun:
            return
        self._begun.add(tuple(spans))
        for part in self._parts(spans):
            shard = self._shard(part.cell)
            ranges = _ranges(part.local, shard.shape, shard.dtype.itemsize)
            shard._tree._catalog().prefetch(shard._value, ranges)

    def _parts(self, spans: list[range]) -> Iterator[_Part]:
        """Yields what shards have of a box."""
        steps = [size // count for size, count in zip(self.shape, self._counts, strict=True)]
        places = (
            range(span.start // step, (span.stop - 1) // step + 1)
            for span, step in zip(spans, steps, strict=True)
        )
        for place in itertools.product(*places):
            cell, local, target = 0, [], []
            for at, count, span, step in zip(place, self._counts, spans, steps, strict=True):
                cell = cell * count + at
                first, last = max(span.start, at * step), min(span.stop, (at + 1) * step)
                local.append(slice(first - at * step, last - at * step))
                target.append(slice(first - span.start, last - span.start))
            yield _Part(cell, tuple(local), tuple(target))

    def shards(self) -> Iterator[tuple[int, str]]:
        """Yields for each shard the number of its file, and its path there."""
        for cell in range(math.prod(self._counts)):
            file = self._checkpoint.manifest.file_of(self._number, cell)
            yield file, self._path_of(bounds(cell, self.shape, self._counts))

    def _path_of(self, index: tuple[slice, ...]) -> str:
        return _paths.text(self._keys_of(index))

    def _keys_of(self, index: tuple[slice, ...]) -> list[str]:
        """Returns the keys that lead to a shard in its file."""
        return self._keys if self.is_host else [*self._keys, name_of(index)]

    def _shard(self, cell: int) -> LazyArray:
        found = self._known.get(cell)
        if found is None:
            found = self._known[cell] = self._find(cell)
        return found

    def _find(self, cell: int) -> LazyArray:
        number = self._checkpoint.manifest.file_of(self._number, cell)
        file = self._checkpoint.file(number)
        index = bounds(cell, self.shape, self._counts)
        keys = self._keys_of(index)
        value = file._catalog().find(keys, 0)
        shard = None if value is None else file._at(value, keys)
        shape = tuple(part.stop - part.start for part in index)
        if not isinstance(shard, LazyArray) or (shard.shape, shard.dtype) != (shape, self._stored):
            path = _paths.text(keys)
            raise CorruptionError(f"{path} is not in {file._name} as the manifest has it")
        return shard

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        found = self.box([slice(None)] * self.ndim)
        if dtype is not None and np.dtype(dtype) != found.dtype:
            if copy is False:
                raise ValueError("another dtype needs a copy")
            return found.astype(dtype)
        if copy is False and found.flags.writeable:  # views of files are not
            raise ValueError(f"{self.path} lies in several shards, and has to be copied")
        return np.array(found) if copy and not found.flags.writeable else found

    def __getitem__(self, index: Any) -> Any:
        plan = _plan(index, self.shape)
        if plan is None:
            return np.array(self)[index]
        box, rest = plan
        found = self.box(box)[rest]
        return np.array(found) if isinstance(found, np.ndarray) else found

    def flat_range(self, start: int, stop: int) -> np.ndarray:
        """Returns a range of its elements in C order, which is all that is read."""
        boxes = [self.box(box).reshape(-1) for box in _boxes(start, stop, self.shape)]
        return boxes[0] if len(boxes) == 1 else np.concatenate([np.empty(0, self.dtype), *boxes])

    def _deferred(self) -> tuple[_core.Content, list[tuple[int, int]]]:
        return rows_cast(self, self.dtype)._deferred()


class _Part(NamedTuple):
    """What a shard has of a box.

    Attributes:
      cell: The number of the shard.
      local: Where it is there.
      target: Where it is in the box.
    """

    cell: int
    local: tuple[slice, ...]
    target: tuple[slice, ...]


def _elements(shard: LazyArray, index: tuple[slice, ...]) -> np.ndarray:
    """Returns a box of a shard: a view where that can be."""
    whole: Any = shard
    with contextlib.suppress(ValueError):  # it is elsewhere, or compressed
        whole = shard.__array__(copy=False)
    found: np.ndarray = whole[(*index, ...)]  # without the dots no dimensions become a scalar
    return found


# What lies less than this apart is read together.
_NEAR_BYTES = 32 << 10


def _ranges(index: Sequence[slice], shape: Sequence[int], itemsize: int) -> list[tuple[int, int]]:
    """Returns where the bytes of a box are among those of an array, with little between them."""
    size = itemsize
    axis = len(shape)
    # All axes from this one on are whole, or the first of them is a part that lies together.
    while axis > 0 and size == itemsize * math.prod(shape[axis:]):
        axis -= 1
        size *= index[axis].stop - index[axis].start
    strides = [itemsize * math.prod(shape[at + 1 :]) for at in range(len(shape))]
    first = sum(part.start * stride for part, stride in zip(index, strides, strict=True))
    if axis > 0 and strides[axis - 1] - size <= _NEAR_BYTES:
        # The rows of the last of the other axes are near each other: all of it is one range.
        axis -= 1
        size += (index[axis].stop - index[axis].start - 1) * strides[axis]
    outer = [range(part.stop - part.start) for part in index[:axis]]
    starts = (
        first + sum(at * stride for at, stride in zip(place, strides, strict=False))
        for place in itertools.product(*outer)
    )
    return [(start, start + size) for start in starts]


def aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Returns memory that jax on CPU can use in place."""
    nbytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(nbytes + _ALIGN, np.uint8)
    start = -memory.ctypes.data % _ALIGN
    return memory[start : start + nbytes].view(dtype).reshape(shape)


def _boxes(start: int, stop: int, shape: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    """Yields boxes that are a range of the elements of an array, one after the other."""
    if start >= stop:
        return
    if not shape:
        yield ()
        return
    size = math.prod(shape[1:])
    rest = [slice(None)] * (len(shape) - 1)
    first, last = -(-start // size), stop // size
    if first > last:  # inside of one row
        row = start // size
        for box in _boxes(start - row * size, stop - row * size, shape[1:]):
            yield (slice(row, row + 1), *box)
        return
    if start < first * size:
        for box in _boxes(start - (first - 1) * size, size, shape[1:]):
            yield (slice(first - 1, first), *box)
    if first < last:
        yield (slice(first, last), *rest)
    if last * size < stop:
        for box in _boxes(0, stop - last * size, shape[1:]):
            yield (slice(last, last + 1), *box)


def _plan(index: Any, shape: tuple[int, ...]) -> tuple[list[slice], tuple[Any, ...]] | None:
    """Returns the box that an index needs, and the index of what is wanted in it.

    `None` if it is more than integers and slices.

    Raises:
      IndexError: If there is nothing at the index.
    """
    basic = basic_index(index, shape)
    if basic is None:
        return None
    parts, keeps_array = basic
    box: list[slice] = []
    rest: list[Any] = []
    for part in parts:
        if part is None:
            rest.append(None)
            continue
        axis = len(box)
        if isinstance(part, slice):
            span = range(*part.indices(shape[axis]))
            first, last = (min(span[0], span[-1]), max(span[0], span[-1])) if span else (0, -1)
            box.append(slice(first, last + 1))
            rest.append(slice(None, None, span.step))
        else:
            box.append(slice(part, part + 1))
            rest.append(0)
    return box, (*rest, ...) if keeps_array else tuple(rest)
