"""Arrays in files that are read when they are used, or only in part."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from treepack import _core, _dtypes
from treepack._deferred import Deferred
from treepack.errors import DecodeError

if TYPE_CHECKING:
    from treepack._open import Tree

# Rows that lie further apart are read one by one.
_FAR_BYTES = 64 << 10


class LazyArray(Deferred):
    """An array in a file that `open` has opened: it is read when it is used.

    `np.asarray` and `jnp.asarray` read all of it, an index only what it needs.

    Attributes:
      path: Where it is in the file.
      shape: Its dimensions.
      dtype: Its dtype, of NumPy.

    Example:
      >>> import io, numpy as np, treepack
      >>> with treepack.open(treepack.dumps({"w": np.arange(12.0).reshape(4, 3)})) as file:
      ...     print(file["w"].shape, file["w"][1:3, 0])
      (4, 3) [3. 6.]
    """

    def __init__(self, tree: Tree, value: int, path: str, dtype: str, shape: tuple[int, ...]):
        found = _dtypes.resolve(dtype.encode())
        if found is None:
            raise DecodeError(f"{dtype!r} is no dtype that an array can have", path=path)
        self._tree = tree
        self._value = value
        self.path = path
        self.dtype: np.dtype[Any] = found
        self.shape = shape

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if not self.shape:
            raise TypeError("iteration over a 0-d array")
        return iter([self[index] for index in range(len(self))])

    def __bool__(self) -> bool:
        return bool(np.asarray(self))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        catalog = self._tree._catalog()
        array: np.ndarray = catalog.read(self._value, copy=copy, threads=None)
        if dtype is None or np.dtype(dtype) == array.dtype:
            return array
        if copy is False:
            raise ValueError("another dtype needs a copy")
        other: np.ndarray = array.astype(dtype)
        return other

    def box(self, index: Sequence[slice]) -> np.ndarray:
        """Returns the elements of a box: a view where that can be."""
        found: np.ndarray = np.asarray(self)[tuple(index)]
        return found

    def prefetch(self, index: Sequence[slice]) -> None:
        """Begins to read a box, where that makes a difference."""

    def __getitem__(self, index: Any) -> Any:
        """Returns what NumPy returns for an index, as an array of its own.

        Integers and slices read no rows that they do not need; other indices read all.
        """
        plan = _plan(index, self.shape)
        if plan is None:
            return np.array(self)[index]
        rows = plan.rows
        is_far = abs(rows.step) * plan.row_size * self.dtype.itemsize >= _FAR_BYTES
        if len(rows) > 1 < abs(rows.step) and is_far:
            data = self._read(plan, [range(row, row + 1) for row in rows])
        elif rows:
            first, last = min(rows[0], rows[-1]), max(rows[0], rows[-1])
            data = self._read(plan, [range(first, last + 1)])[:: rows.step]
        else:
            data = self._read(plan, [])
        found = data[plan.rest]
        # A few elements do not keep all that was read.
        if isinstance(found, np.ndarray) and found.size * found.itemsize < data_bytes(data):
            return np.array(found)
        return found

    def _read(self, plan: _Plan, runs: list[range]) -> np.ndarray:
        """Returns runs of rows, one after the other."""
        start, width = plan.offset, plan.row_size
        ranges = [(start + run.start * width, start + run.stop * width) for run in runs]
        return self._ranges(ranges).reshape(sum(map(len, runs)), *plan.row_shape)

    def flat_range(self, start: int, stop: int) -> np.ndarray:
        """Returns a range of its elements in C order, which is all that is read."""
        return self._ranges([(start, stop)])

    def _ranges(self, ranges: list[tuple[int, int]]) -> np.ndarray:
        """Returns ranges of its elements, one after the other."""
        itemsize = self.dtype.itemsize
        in_bytes = [(start * itemsize, stop * itemsize) for start, stop in ranges]
        return self._tree._catalog().read_bytes(self._value, in_bytes).view(self.dtype)

    def _deferred(self) -> tuple[_core.Content, list[tuple[int, int]]]:
        return self._tree._catalog().pieces(self._value)

    def __repr__(self) -> str:
        return f"LazyArray({self.path!r}, shape={self.shape}, dtype={self.dtype.name})"

    def __reduce__(self) -> Any:
        return operator.getitem, (self._tree._file, self.path)


def data_bytes(array: np.ndarray) -> int:
    """Returns how many bytes an array keeps in memory."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array.nbytes


class _Plan(NamedTuple):
    """What an index needs: rows along one axis, after integers for all axes before it.

    Attributes:
      offset: How many elements lie before the first of these rows.
      rows: Which rows.
      row_shape: The shape of a row.
      rest: The index of the rows that were read.
    """

    offset: int
    rows: range
    row_shape: tuple[int, ...]
    rest: tuple[Any, ...]

    @property
    def row_size(self) -> int:
        """How many elements a row has."""
        return math.prod(self.row_shape)


def _plan(index: Any, shape: tuple[int, ...]) -> _Plan | None:
    """Returns what to read for an index; `None` if it is more than integers and slices.

    Raises:
      IndexError: If there is nothing at the index.
    """
    basic = basic_index(index, shape)
    if basic is None:
        return None
    parts, keeps_array = basic
    axis, offset, new_axes = 0, 0, 0
    for place, part in enumerate(parts):
        size = math.prod(shape[axis + 1 :])
        if part is None:
            new_axes += 1
        elif isinstance(part, slice):
            rows = range(*part.indices(shape[axis]))
            rest = (*[None] * new_axes, slice(None), *parts[place + 1 :])
            return _Plan(offset, rows, shape[axis + 1 :], rest)
        else:
            offset += part * size
            axis += 1
    # One element: a scalar, unless the index asks for an array.
    rest = (0, *[None] * new_axes, *([...] if keeps_array else []))
    return _Plan(offset, range(1), (), rest)


def basic_index(index: Any, shape: tuple[int, ...]) -> tuple[list[Any], bool] | None:
    """Returns an index as a part for each axis: an integer from 0 on, or a slice.

    `None` among them makes a new axis.

    Returns:
      The parts, and whether there were dots. `None` if it is more than integers and slices.

    Raises:
      IndexError: If there is nothing at the index.
    """
    parts = [*index] if isinstance(index, tuple) else [index]
    if not all(part is None or part is ... or _is_basic(part) for part in parts):
        return None
    axes = sum(map(_is_basic, parts))
    if axes > len(shape) or parts.count(...) > 1:
        raise IndexError(
            f"too many indices for an array of {len(shape)} dimensions: {index!r:.100}"
        )
    has_dots = ... in parts
    place = parts.index(...) if has_dots else len(parts)
    parts[place : place + has_dots] = [slice(None)] * (len(shape) - axes)
    axes_left = iter(enumerate(shape))
    return [None if part is None else _on_axis(part, *next(axes_left)) for part in parts], has_dots


def _on_axis(part: Any, axis: int, size: int) -> Any:
    if isinstance(part, slice):
        return part
    if not -size <= part < size:
        raise IndexError(f"index {part} is out of bounds for axis {axis} with size {size}")
    return int(part) % size


def _is_basic(part: Any) -> bool:
    """Tells whether a part of an index is an integer or a slice."""
    if isinstance(part, slice):
        return True
    return isinstance(part, (int, np.integer)) and not isinstance(part, bool)
