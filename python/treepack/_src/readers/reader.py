from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

import treepack._core as core
from treepack._src import dtypes as _dtypes
from treepack._src import paths as _paths
from treepack._src.advice import Hinting, read_only
from treepack._src.arrays.deferred import Deferred, boxes_of
from treepack._src.arrays.memory import memory_of
from treepack._src.interop import jax as _jax
from treepack._src.leaves.absent import ABSENT
from treepack._src.leaves.signature import signature
from treepack._src.options import Reading, Status, Tell
from treepack._src.printable import Completing, printable
from treepack._src.readers.arraylike import ArrayLike
from treepack._src.readers.statistics import Statistics, statistics
from treepack._src.storage.address import Address
from treepack._src.storage.content import Openable, Opened
from treepack._src.storage.fetch import RemoteRange, fetching
from treepack._src.storage.naming import naming
from treepack.errors import DecodeError, MissingPathError, NewerVersionError

# NumPy's maximum.
_MOST_NDIM = 64

# After a leaf, the core reads ahead (`src/format/wire/cursor.rs`).
_AHEAD_BYTES = 64 << 10

DAMAGED_REST = "the bytes between the leaves and the record of the structure are damaged"

# The status of each leaf by its value, and a description of damage outside of leaves.
Verified = tuple[dict[int, Status], str | None]

# Takes the parts of a path, returns whether its array may stay lazy.
StayLazy = Callable[[Sequence[str]], bool]

# Reads a leaf by its value and the parts of its path.
ReadLeaf = Callable[[int, list[str]], Any]


class Reader:
    """An open file, which threads may share.

    Unless it is of a file object, it can be pickled: unpickling opens the file again.

    Attributes:
      format: The format in words; `None` for treepack's and flax's.
      may_change: Whether the source is memory that other code may change.
      linked: The sizes of files that an earlier step of a run wrote, by name.
      separator: The text between the keys in names of leaves; `None` if they have paths.
      is_mapped: Whether leaves have other paths and layouts than in the file.
      salvages: Whether it opens damaged files, and reads only their intact leaves.
    """

    format: str | None = None
    is_one_file = True
    linked: Mapping[str, int] = MappingProxyType({})
    damaged_files: Sequence[str] = ()
    is_patch: bool = False
    separator: str | None = None
    has_types = True
    is_mapped = False
    bytes_after = _AHEAD_BYTES
    base: Any = None
    is_file_object: bool = False

    def __init__(self, source: Openable, opened: Opened, *, salvage: bool = False, **options: Any):
        is_path = isinstance(source, Address)
        # The working directory may change, or differ where a pickle is loaded.
        self._source = source.absolute() if is_path else source
        self._options = {"salvage": salvage, **options}
        self.salvages: bool = salvage
        self.given = source
        is_fixed = is_path or isinstance(source, (bytes, core.Content)) or hasattr(source, "read")
        self.may_change: bool = not is_fixed
        self.inflated: int = opened.inflated
        self.nbytes: int = opened.nbytes
        self._blocks = opened.blocks
        self.is_local: bool = opened.blocks is None or hasattr(source, "read")
        self.is_file_object = self.is_local and opened.blocks is not None
        self._content = None if self.is_local else opened.content
        self._damage = opened.damage
        self.is_patch = opened.is_patch
        self._catalog: core.Catalog | None = core.Catalog.open(opened.content, salvage=salvage)

    @property
    def filename(self) -> str | None:
        return naming(self.given).filename

    @property
    def name(self) -> str:
        return "in memory" if self.filename is None else repr(self.filename)

    @property
    def short_name(self) -> str:
        return self.name if self.filename is None else os.path.basename(self.filename)  # noqa: PTH119

    @property
    def catalog(self) -> core.Catalog:
        catalog = self._catalog  # read once: another thread may close the file
        if catalog is None:
            raise ValueError(
                f"the file {self.name} is closed: open it again, and keep it open while its arrays "
                "are used (until save returns); or copy them before, as by numpy.asarray(leaf)"
            )
        return catalog

    @property
    def has_offsets(self) -> bool:
        return type(self) is Reader and not self.is_patch

    @property
    def is_closed(self) -> bool:
        return self._catalog is None

    @property
    def damage(self) -> str | None:
        return self._damage or self.catalog.damage

    @property
    def is_cut(self) -> bool:
        return self.catalog.damage is not None

    @property
    def is_summed(self) -> bool:
        return self.catalog.is_summed

    @property
    def metadata_record(self) -> bytes | None:
        return self.catalog.record

    def unverified(self) -> list[int]:
        """Returns the leaves whose checksums a damaged file has lost."""
        if self.damage is None:
            return []
        return self.catalog.leaf_values(0)[self.catalog.summed :]

    def unknown(self, value: int) -> list[int]:
        return []

    def lists_of(self, leaves: Collection[int]) -> list[range]:
        """Returns the lists that have some of these leaves: lists are read whole."""
        catalog = self.catalog
        lists: list[range] = []
        last = -1
        for value in range(catalog.values) if leaves else ():
            if value > last and catalog.is_list(value):
                inside = [end for _, end in catalog.ends(value)]
                last = max(inside, default=value)
                if any(end in leaves for end in inside):
                    lists.append(range(value, last + 1))
        return lists

    @property
    def original(self) -> Reader:
        return self

    def listed(self, values: Sequence[int]) -> str:
        budget = _paths.PathBudget()
        paths = (budget.text(self.catalog.path_of(value, 0)) for value in values)
        return _paths.listed(paths, len(values))

    def salvaging(self) -> Reader:
        if self.salvages:
            return self
        reader = object.__new__(type(self))  # `copy.copy` would open the file again
        reader.__dict__.update(self.__dict__)
        reader._options = {**self._options, "salvage": True}
        reader.salvages = True
        reader._catalog = self.catalog.salvaging()
        return reader

    def close(self) -> None:
        """Arrays that view the file stay valid."""
        self._catalog = self._content = None

    def kind(self, value: int, parts: list[str]) -> tuple[Any, ...]:
        """Raises a DecodeError if NumPy could not hold the array."""
        _, kind, start, _, _ = self.catalog.leaf(value)
        if kind[0] in ("array", "prng_key"):
            shape = kind[2]
            if len(shape) > _MOST_NDIM or max(shape, default=0) > sys.maxsize:
                raise DecodeError(
                    f"the index of the file is damaged: it has an array of {len(shape)} "
                    f"dimensions of at most {max(shape, default=0)}, and NumPy allows "
                    f"{_MOST_NDIM} dimensions of at most {sys.maxsize}",
                    start,
                    _paths.text(parts),
                )
        return kind

    def leaf(self, value: int, parts: list[str]) -> Any:
        kind = self.kind(value, parts)
        if kind[0] == "array":
            return self.array(value, parts, kind)
        if kind[0] == "prng_key":
            return self.prng_key(value, parts, kind)
        return self.catalog.read(value, copy=None, threads=None)

    def stored_digest(self, array: LazyArray) -> bytes | None:
        del array
        return None

    def compare(self, value: int, parts: list[str]) -> None:
        with naming(self.given):
            self.catalog.compare(value)

    def array(self, value: int, parts: list[str], kind: tuple[Any, ...]) -> LazyArray:
        return LazyArray(self, value, parts, kind)

    def prng_key(self, value: int, parts: list[str], kind: tuple[Any, ...]) -> Any:
        return self.catalog.read(value, copy=None, threads=None)

    def read(
        self, place: Place, reading: Reading, marks: core.Marks | None, stays: StayLazy | None
    ) -> Any:
        """Reads the state at a place, with `ABSENT` for unmarked leaves.

        Arrays may stay lazy where `stays` is true of their relative paths; without it, where they
        were saved from JAX arrays, or all become JAX arrays.
        """
        with self.fetching(place.value, marks):
            return self.catalog.read(
                place.value, copy=reading.copy, threads=reading.threads, marks=marks, absent=ABSENT
            )

    def lazily(
        self, place: Place, reading: Reading, marks: core.Marks | None, stays: StayLazy | None
    ) -> dict[int, Any] | None:
        return {} if self.is_one_file else None

    def fitted(self, state: Any, target: Any) -> Any:
        return state

    def fetching(
        self, value: int = 0, marks: core.Marks | None = None
    ) -> AbstractContextManager[None]:
        if self.is_local:
            return contextlib.nullcontext()
        catalog = self.catalog
        leaves = (leaf for leaf in catalog.leaf_values(value) if marks is None or leaf in marks)
        places = (catalog.leaf(leaf)[2:4] for leaf in leaves)
        return fetching(self.file_ranges(places))

    def ahead(self, array: LazyArray, *, lays: bool) -> Iterable[RemoteRange]:
        if self.is_local:
            return ()
        return array.ahead([range(0 if lays else size) for size in array.shape])  # with its header

    def fetched(self) -> core.Catalog | core.Content:
        catalog, content = self.catalog, self._content
        if content is None:
            return catalog
        return Opened(content, blocks=self._blocks, nbytes=self.nbytes).fetched()

    def file_ranges(self, ranges: Iterable[tuple[int, int]]) -> Iterator[RemoteRange]:
        content = self._content  # read once, as in `catalog`
        if content is not None and self._blocks is not None:
            for start, stop in ranges:
                last = min(content.nbytes, stop + self.bytes_after)
                yield self._blocks, content.stored(start, last)

    @property
    def near(self) -> int:
        return 0 if self._blocks is None else self._blocks.near

    def remember(self) -> None:
        if self._blocks is not None:
            self._blocks.remember()

    def verify(self, *, threads: int | None, progress: Tell | None) -> Verified:
        catalog = self.catalog
        content = self._content
        whole = [] if content is None else [(0, content.nbytes)]
        with fetching(self.file_ranges(whole)):
            *statuses, rest = catalog.verify(threads=threads, progress=progress)
            inner = catalog.inner_dtypes()
        damage = self.damage or catalog.stream_damage
        if damage is None and rest == "corrupt":
            damage = DAMAGED_REST
        damage = damage or self.damaged_record()
        by_value: dict[int, Status] = dict(zip(catalog.leaf_values(0), statuses, strict=True))
        found: dict[int, Status] = dict(self._other_bytes(inner))
        found.update(dict.fromkeys(self.without_dtype(), "unreadable"))
        for value, status in found.items():
            # After damage, the name of a dtype may be damaged, too.
            is_known = by_value[value] == "ok" or (by_value[value] == "unchecked" and not damage)
            if status == "corrupt" or is_known:
                by_value[value] = status
        return by_value, damage

    def _other_bytes(self, inner: list[str]) -> Iterator[tuple[int, Status]]:
        catalog = self.catalog
        unknown = lacking(inner)
        others = {*catalog.other_dtypes(inner), *unknown}
        if not others:
            return
        with_others = () if others.isdisjoint(inner) else ("prng_key", "container", "other")
        for value in catalog.leaf_values(0):
            kind = catalog.leaf(value)[1]
            is_inner = kind[0] in with_others
            if is_inner or (kind[0] in ("array", "scalar") and kind[1] in others):
                try:
                    catalog.read(value, copy=None, threads=None)
                except DecodeError:
                    yield value, "unreadable" if is_inner and unknown else "corrupt"

    def without_dtype(self) -> list[int]:
        catalog = self.catalog
        if not (unknown := {*lacking(catalog.dtypes)}):
            return []
        kinds = ((value, catalog.leaf(value)[1]) for value in catalog.leaf_values(0))
        return [it for it, kind in kinds if kind[0] in ("array", "scalar") and kind[1] in unknown]

    def damaged_record(self) -> str | None:
        try:
            self.catalog.check_record()
        except NewerVersionError:
            raise
        except DecodeError as error:
            return error.reason
        return None

    def __reduce__(self) -> Any:
        source = self._source
        if hasattr(source, "read"):
            raise TypeError(
                "cannot pickle a File that was opened from a file object: open it by its path"
            )
        if not isinstance(source, Address):
            source = bytes(source)
        return _reopened, (type(self), source, self._options, self.filename)

    @classmethod
    def open(cls, source: Openable, *, regular: bool = False, **options: Any) -> Reader:
        return cls(source, Opened.of(source, regular=regular, **options), **options)


def lacking(dtypes: Iterable[str]) -> list[str]:
    return [name for name in dtypes if _dtypes.resolve(name.encode()) is None]


def _reopened(kind: Any, source: Openable, options: dict[str, Any], filename: str | None) -> Reader:
    with naming(filename):
        is_file = kind.is_one_file
        reader: Reader = kind.open(source, **options) if is_file else kind(source, **options)
    reader.given = source if filename is None else Address.or_data(filename)
    return reader


def dtype_and_shape(kind: tuple[Any, ...]) -> tuple[str, tuple[int, ...]]:
    return kind[1] if kind[0] == "array" else "uint32", kind[2]


class Place(NamedTuple):
    reader: Reader
    value: int
    parts: list[str]

    @property
    def catalog(self) -> core.Catalog:
        return self.reader.catalog

    def below(self, value: int, parts: Iterable[str]) -> Place:
        return Place(self.reader, value, [*self.parts, *parts])

    def positions(self) -> list[tuple[int, int]]:
        positions, value = [], 0
        for part in self.parts:
            names = dict(self.catalog.children(value) or ())
            positions.append((list(names).index(part), len(names)))
            value = names[part]
        return positions

    def abstract(self, **options: Any) -> Any:
        """Takes options of `_core.assemble`."""
        return core.assemble(
            self.catalog.read(self.value, copy=None, threads=None, abstract=True),
            self.catalog.record,
            placeholders=True,
            at=self.positions(),
            parts=self.parts,
            **options,
        )

    def state(self, leaf: ReadLeaf, marks: core.Marks | None = None) -> Any:
        children = self.catalog.children(self.value)
        if not children and marks is not None and self.value not in marks:
            return ABSENT
        if children is None:
            return leaf(self.value, self.parts)
        state = {}  # no comprehension: it would add a frame per level
        for name, child in children:
            state[name] = self.below(child, [name]).state(leaf, marks)
        return list(state.values()) if self.catalog.is_list(self.value) else state


# For each dimension of a box: the first index, the count, and the step.
Bounds = list[tuple[int, int, int]]


class LazyArray(Hinting, ArrayLike, Deferred, metaclass=Completing):  # type: ignore[metaclass]
    """An array in an open file, which is read when it is used.

    Operators, functions of NumPy, `np.asarray` and `jnp.asarray` read the whole array. Integers and
    slices as an index read only the elements they need, arrays of indices or bools all of it;
    `np.stack([lazy[row] for row in rows])` reads only some rows. For functions of JAX, pass
    `jnp.asarray(lazy)`.

    Attributes:
      shape: The shape of the array.
      dtype: Its NumPy dtype.

    Examples:
      >>> import numpy as np, treepack
      >>> with treepack.open(treepack.dumps({"w": np.arange(12.0).reshape(4, 3)})) as file:
      ...     print(file["w"].shape, file["w"][1:3, 0], (2 * file["w"] - 1).max())
      (4, 3) [3. 6.] 21.0
    """

    _shown = (
        *("path", "shape", "dtype", "ndim", "size", "nbytes", "T"),
        *("astype", "numpy", "max", "mean", "min", "statistics", "std", "sum"),
    )

    def __init__(self, reader: Reader, value: int, parts: list[str], kind: tuple[Any, ...]):
        self.reader = reader
        self.number = value
        self.parts = parts
        dtype, shape = dtype_and_shape(kind)
        resolved_dtype = _dtypes.resolve(dtype.encode())
        if resolved_dtype is None:
            raise _dtypes.UnreadableError(_dtypes.unsupported(dtype), path=self.path)
        self.dtype: np.dtype[Any] = resolved_dtype
        self.shape = shape

    @property
    def path(self) -> str:
        """Its path in the file."""
        return _paths.text(self.parts)

    __setitem__: Callable[..., None] = read_only

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self._read_all(copy)
        if dtype is None or np.dtype(dtype) == array.dtype:
            return array
        if copy is False:
            raise ValueError(
                f"copy=False requires dtype {array.dtype.name}, got {np.dtype(dtype).name}: pass "
                "copy=None"
            )
        converted: np.ndarray = array.astype(dtype)
        return converted

    def _read_all(self, copy: bool | None) -> np.ndarray:
        catalog = self.reader.catalog
        try:
            with self.reader.fetching(self.number):
                array: np.ndarray = catalog.read(self.number, copy=copy, threads=None)
            same = isinstance(array, np.ndarray) and array.dtype == self.dtype
            if not same or array.shape != self.shape:
                reason = (
                    "the leaf does not match the index of the file: expected "
                    f"{signature(self)}, found {signature(array)}"
                )
                raise DecodeError(reason, path=self.path)
        except Exception as error:
            naming(self.reader.given).add_to(error)
            raise
        return array

    def __getitem__(self, index: Any) -> Any:
        """Indexes like NumPy, and returns a new array.

        Integers and slices read only the elements they need and small gaps; others the whole array.
        """
        if type(index) is str:
            raise IndexError(
                f"{printable(self.path)} is an array, which has no {index!r:.100}: index it by "
                "numbers, as in array[0]"
            )
        try:
            plan = box_of(index, self.shape)
            if plan is None:
                return np.array(self)[index]
            box, rest = plan
            return self._read(box)[rest]
        except TypeError as error:
            if not _is_traced(index):
                raise
            raise TypeError(
                f"{printable(self.path)}: a traced index cannot select the elements to read: read "
                "the array before, as jnp.asarray(array), and index the result"
            ) from error

    def _read(self, box: Sequence[range]) -> np.ndarray:
        shape = tuple(map(len, box))
        catalog = self.reader.catalog
        bounds = bounds_of(box)
        try:
            if self.reader.is_local:
                data = catalog.read_box(self.number, bounds)
            else:
                with fetching(self.ranges(bounds)):
                    data = catalog.read_box(self.number, bounds)
        except Exception as error:
            naming(self.reader.given).add_to(error)
            raise
        return data.view(self.dtype).reshape(shape)

    def ranges(self, bounds: Bounds) -> Iterator[RemoteRange]:
        """Yields the ranges of a remote file that a box and the header of the array need.

        A guess if the array is split into chunks.
        """
        if self.reader.is_local:
            return
        _, _, start, stop, _ = self.reader.catalog.leaf(self.number)
        data = max(start, stop - self.nbytes)
        # A damaged index may have a larger array than the leaf; reading the leaf raises the error.
        is_there = self.nbytes <= stop - start
        size = self.dtype.itemsize
        offsets = core.ranges_of_box(self.shape, size, bounds, self.reader.near) if is_there else []
        inside = [(data + first, min(stop, data + last)) for first, last in offsets]
        yield from self.reader.file_ranges([(start, max(data, start + 1)), *inside])

    def box_at(self, index: Sequence[slice]) -> list[range]:
        return [range(*part.indices(size)) for part, size in zip(index, self.shape, strict=True)]

    def ahead(self, box: Sequence[range]) -> Iterator[RemoteRange]:
        return self.ranges(bounds_of(box))

    def _ahead(self, *, lays: bool) -> Iterable[RemoteRange]:
        return self.reader.ahead(self, lays=lays)

    def view(self) -> np.ndarray | None:
        if not self.reader.is_local or self.reader.is_file_object:
            return None
        try:
            return self.reader.catalog.read(self.number, copy=False, threads=None)  # type: ignore[no-any-return]
        except ValueError:  # reading the leaf raises the error, if there is one
            return None

    def begin(self, box: Sequence[range]) -> None:
        """Begins to read a box in the background, if a library reads the file (Orbax)."""

    def read_to(
        self, box: Sequence[range], target: np.ndarray, *, threads: int | None = None
    ) -> None:
        """Reads a box into an array in C order, or a view of a part of one, of the same dtype."""
        if target.size == 0:
            return
        memory, at, strides = memory_of(target)
        read_to = self.reader.catalog.read_box_to
        with naming(self.reader.given):
            read_to(self.number, bounds_of(box), memory, at, strides, threads=threads)

    def flat_range(self, start: int, stop: int) -> np.ndarray:
        boxes = [*boxes_of(self.shape, start, stop)]
        elements, at = np.empty(stop - start, self.dtype), 0
        with fetching(each for box in boxes for each in self.ranges(bounds_of(box))):
            for box in boxes:
                shape = [*map(len, box)]
                part = elements[at : at + math.prod(shape)]
                self.read_to(box, part.reshape(shape))
                at += part.size
        return elements

    def statistics(self, bins: int = 40) -> Statistics | None:
        """Describes the elements, a block at a time: extremes, mean, NaNs, and a histogram.

        Args:
          bins: The number of intervals of the histogram; with 0, the array is read once.

        Returns:
          The `Statistics`; `None` for dates and packed elements.

        Examples:
          >>> import numpy as np, treepack
          >>> data = treepack.dumps({"w": np.array([1.0, 3.0, np.nan])})
          >>> with treepack.open(data) as file:
          ...     found = file["w"].statistics(bins=2)
          ...     print(found.mean, found.nan, found.histogram)
          2.0 1 [1, 1]
        """
        return statistics(self, bins) if _dtypes.has_numbers(self.dtype) else None

    def compare(self) -> None:
        self.reader.compare(self.number, self.parts)

    def _deferred(self) -> tuple[core.Content, list[tuple[int, int]]]:
        with naming(self.reader.given):
            return self.reader.catalog.pieces_to_copy(self.number, self.reader.filename)

    def _hint_for(self, name: str) -> str:
        is_of_arrays = hasattr(np.ndarray, name) and not name.startswith("_")
        return (
            f"read it first, as by array[...].{name}" if is_of_arrays else super()._hint_for(name)
        )

    def __dir__(self) -> list[str]:
        return sorted(self._shown)

    def __repr__(self) -> str:
        return f"LazyArray({self.path!r}, shape={self.shape}, dtype={_dtypes.shown(self.dtype)})"

    def __reduce__(self) -> Any:
        return _array_at, (self.reader, self.parts)


def _array_at(reader: Reader, parts: list[str]) -> Any:
    value = reader.catalog.find(parts, 0)
    if value is None:
        raise MissingPathError(_paths.text(parts), reader.filename)  # the file was replaced
    return reader.leaf(value, parts)


def bounds_of(box: Iterable[range]) -> Bounds:
    # The start of no index is arbitrary, and so is the step of a single one.
    return [
        (part.start if part else 0, len(part), part.step if len(part) > 1 else 1) for part in box
    ]


def _is_traced(index: Any) -> bool:
    if isinstance(index, tuple):
        return any(map(_is_traced, index))
    if isinstance(index, slice):
        return any(map(_jax.is_tracer, (index.start, index.stop, index.step)))
    return _jax.is_tracer(index)


def box_of(index: Any, shape: tuple[int, ...]) -> tuple[list[range], tuple[Any, ...]] | None:
    parts = [*index] if isinstance(index, tuple) else [index]
    axes = 0
    for part in parts:
        if _is_basic(part):
            axes += 1
        elif part is not None and part is not ...:
            return None
    if axes > len(shape) or parts.count(...) > 1:
        raise IndexError(
            f"too many indices for an array of {len(shape)} dimensions: {index!r:.100}"
        )
    has_dots = ... in parts
    place = parts.index(...) if has_dots else len(parts)
    parts[place : place + has_dots] = [slice(None)] * (len(shape) - axes)
    box: list[range] = []
    rest: list[Any] = []
    for part in parts:
        if part is None:
            rest.append(None)  # a new axis
            continue
        size = shape[len(box)]
        if isinstance(part, slice):
            indices = range(*part.indices(size))
            box.append(indices if indices.step > 0 else indices[::-1])
            rest.append(slice(None, None, 1 if indices.step > 0 else -1))
        elif -size <= part < size:
            at = int(part) % size
            box.append(range(at, at + 1))
            rest.append(0)
        else:
            raise IndexError(f"index {part} is out of bounds for axis {len(box)} with size {size}")
    # Without dots, a 0-d result becomes a scalar.
    return box, (*rest, ...) if has_dots else tuple(rest)


def _is_basic(part: Any) -> bool:
    if isinstance(part, slice):
        return True
    is_integer = isinstance(part, (int, np.integer))
    return is_integer and not isinstance(part, (bool, np.timedelta64))
