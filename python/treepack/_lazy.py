"""Arrays in files that are read when they are used, or only in part."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from treepack import _core, _dtypes
from treepack._deferred import Deferred
from treepack.errors import DecodeError

if TYPE_CHECKING:
    from treepack._open import Tree


# For each dimension of a box its first index, how many there are, and how far apart.
Bounds = list[tuple[int, int, int]]


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
        same = isinstance(array, np.ndarray) and array.dtype == self.dtype
        if not same or array.shape != self.shape:
            reason = "the leaf is not what the index of the file has there"
            raise DecodeError(reason, path=self.path)
        if dtype is None or np.dtype(dtype) == array.dtype:
            return array
        if copy is False:
            raise ValueError("another dtype needs a copy")
        other: np.ndarray = array.astype(dtype)
        return other

    def __getitem__(self, index: Any) -> Any:
        """Returns what NumPy returns for an index, as an array of its own.

        Integers and slices read nothing that they do not need, apart from what is near it; other
        indices read all.
        """
        plan = box_of(index, self.shape)
        if plan is None:
            return np.array(self)[index]
        box, rest = plan
        return self._read(box)[rest]

    def _read(self, box: Sequence[range]) -> np.ndarray:
        """Returns the elements of a box."""
        shape = tuple(map(len, box))
        if 0 in shape:
            self._tree._catalog().pieces(self._value)  # it has as many dimensions as the index has
            return np.empty(shape, self.dtype)
        data = self._tree._catalog().read_box(self._value, bounds_of(box))
        return data.view(self.dtype).reshape(shape)

    def read_to(self, bounds: Bounds, target: np.ndarray, *, threads: int | None = None) -> None:
        """Reads the elements of a box.

        Args:
          bounds: The indices of each dimension, as `bounds_of` returns them.
          target: Where to; an array of the same dtype in C order, or a part of one.
          threads: How many threads read, at most.
        """
        if target.size == 0:
            return
        whole = target if target.base is None else target.base
        at = _address(target) - _address(whole)
        memory, strides = whole.reshape(-1).view(np.uint8), target.strides
        read_to = self._tree._catalog().read_box_to
        read_to(self._value, bounds, memory, at, strides, threads=threads)

    def flat_range(self, start: int, stop: int) -> np.ndarray:
        """Returns a range of its elements in C order, which is all that is read."""
        itemsize = self.dtype.itemsize
        read = self._tree._catalog().read_bytes
        return read(self._value, start * itemsize, stop * itemsize).view(self.dtype)

    def _deferred(self) -> tuple[_core.Content, list[tuple[int, int]]]:
        return self._tree._catalog().pieces(self._value)

    def __repr__(self) -> str:
        return f"LazyArray({self.path!r}, shape={self.shape}, dtype={self.dtype.name})"

    def __reduce__(self) -> Any:
        return operator.getitem, (self._tree._file, self.path)


def _address(array: np.ndarray) -> int:
    return array.ctypes.data  # NumPy's `__array_interface__` crashes where there is no memory


def bounds_of(box: Iterable[range]) -> Bounds:
    """Returns the indices of each dimension of a box as the core takes them."""
    # The step of a single index is any number.
    return [(it.start, len(it), it.step if len(it) > 1 else 1) for it in box]


def box_of(index: Any, shape: tuple[int, ...]) -> tuple[list[range], tuple[Any, ...]] | None:
    """Returns the box that an index needs, and the index of what is wanted in it.

    `None` if it is more than integers and slices.

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
    # Without dots, what has no dimensions becomes a scalar.
    return box, (*rest, ...) if has_dots else tuple(rest)


def _is_basic(part: Any) -> bool:
    """Tells whether a part of an index is an integer or a slice."""
    if isinstance(part, slice):
        return True
    is_integer = isinstance(part, (int, np.integer))
    return is_integer and not isinstance(part, (bool, np.timedelta64))
