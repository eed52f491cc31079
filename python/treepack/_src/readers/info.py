from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

import treepack._core as core
from treepack._src import dtypes as _dtypes
from treepack._src import paths as _paths
from treepack._src.printable import count_text, kind_text
from treepack._src.readers.reader import Reader, dtype_and_shape


class Info(NamedTuple):
    """A leaf or container of an open file, which is not read; see `Tree.infos`.

    Attributes:
      trail: Its path, relative to the container.
      kind: `"array"`, `"scalar"` of NumPy, `"prng_key"`, another type such as `"int"`, or
        `"container"`.
      dtype: The NumPy dtype of an array or scalar, or its name if NumPy lacks it; the name of the
        implementation of a PRNG key.
      shape: The shape of an array, or of the data of a PRNG key.
      nbytes: The size of the leaf, or of all leaves, in bytes; see `Tree.nbytes`.
      offset: The first byte of a leaf in a file of treepack or flax, once it is decompressed.
        `None` in directories, other formats and patches, and with `mapping=`.
      leaves: The number of leaves in a container; 1 for a leaf.

    Examples:
      >>> import numpy as np, treepack
      >>> with treepack.open(treepack.dumps({"w": np.zeros((3, 4), np.float32), "n": 7})) as file:
      ...     info = file.info("w")
      ...     print(info.kind, info.dtype, info.shape, info.nbytes)
      ...     print(info, "in", file.info())
      array float32 (3, 4) 48
      float32[3,4] in 2 leaves
    """

    trail: str | _paths.Trail
    kind: str
    dtype: np.dtype[Any] | str | None
    shape: tuple[int, ...] | None
    nbytes: int
    offset: int | None
    leaves: int

    def __str__(self) -> str:
        if self.kind == "container":
            return count_text(self.leaves)
        return kind_text((self.kind, getattr(self.dtype, "name", self.dtype), self.shape))

    @property
    def path(self) -> str:
        """Its path as text."""
        return str(self.trail)

    @classmethod
    def at(cls, reader: Reader, value: int, path: str | _paths.Trail) -> Info:
        """Describes a value of a file."""
        catalog = reader.catalog
        if catalog.children(value) is not None:
            leaves, nbytes = totals(catalog, value)
            return cls(path, "container", None, None, nbytes, None, leaves)
        _, kind, start, end, _ = catalog.leaf(value)
        name, dtype, shape = (*kind, None, None)[:3]
        if name in ("array", "scalar"):
            resolved = _dtypes.resolve(dtype.encode())
            dtype = dtype if resolved is None or _dtypes.is_packed(resolved) else resolved
        offset = start if reader.has_offsets else None
        return cls(path, name, dtype, shape, nbytes_of(kind, end - start), offset, 1)


def levels(
    reader: Reader, value: int, level: int, depth: int | None, above: _paths.Trail
) -> Iterator[tuple[int, str, Info]]:
    for key, child in (reader.catalog.children(value) or ()) if level != depth else ():
        trail = _paths.Trail(above, key)
        info = Info.at(reader, child, trail)
        yield level, key, info
        if info.kind == "container":
            yield from levels(reader, child, level + 1, depth, trail)


def nbytes_of(kind: tuple[Any, ...], encoded: int) -> int:
    if kind[0] not in ("array", "prng_key", "scalar"):
        return encoded
    name, shape = (kind[1], ()) if kind[0] == "scalar" else dtype_and_shape(kind)
    dtype = _dtypes.resolve(name.encode())
    return encoded if dtype is None else math.prod((dtype.itemsize, *shape))


def totals(catalog: core.Catalog, value: int) -> tuple[int, int]:
    count = nbytes = 0
    for kind, leaves, encoded in catalog.kinds(value):
        count += leaves
        each = nbytes_of(kind, -1)
        nbytes += encoded if each < 0 else leaves * each
    return count, nbytes
