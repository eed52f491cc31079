"""Files of `numpy.save`: one array, which is the tree."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import treepack._core as core
from treepack._src import paths as _paths
from treepack._src.arrays.deferred import InContent
from treepack._src.formats import Format, Leaves, Write
from treepack._src.formats import numpy_arrays as _arrays
from treepack._src.options import Progress
from treepack._src.readers.unchecked import UncheckedReader, layout_of
from treepack._src.storage.address import Address
from treepack._src.storage.content import Openable, Opened
from treepack.errors import DecodeError, TreepackError

_MAGIC = np.lib.format.MAGIC_PREFIX


class NpyReader(UncheckedReader):
    """The array is read where it lies if NumPy stored it in C order."""

    format = "npy of NumPy"
    has_types = False
    bytes_after = 0  # the header is in memory

    def __init__(self, source: Openable, opened: Opened, **options: Any):
        laid = core.Content.laid(layout_of(_tree_in(opened), None), [])
        super().__init__(source, opened._replace(content=laid, blocks=None), **options)


def _tree_in(opened: Opened) -> Any:
    content = opened.content

    def read(start: int, nbytes: int) -> bytes:
        return content.read_range(start, start + nbytes)

    try:
        header = _arrays.read_header(opened.file(), content.nbytes)
        stop = header.nbytes + math.prod(header.shape) * header.dtype.itemsize
        if stop < content.nbytes:
            more = "bytes follow the array; equinox.tree_deserialise_leaves reads several arrays"
            raise ValueError(f"{content.nbytes - stop} {more}")
        if header.is_plain:
            return InContent(header.shape, header.dtype, content, header.nbytes)
        return _arrays.encoded(header, read, _arrays.Strings(opened.nbytes))
    except (OSError, MemoryError):
        raise
    except Exception as error:  # of NumPy
        raise DecodeError(f"the .npy file cannot be read: {error}") from error


class Npy(Format):
    name = "npy"
    library = "NumPy"
    title = "a .npy file of NumPy"
    suffixes = (".npy",)

    def recognizes(self, content: core.Content) -> bool:
        return content.read_range(0, min(len(_MAGIC), content.nbytes)) == _MAGIC

    def open(self, source: Openable, opened: Opened, **options: Any) -> NpyReader:
        return NpyReader(source, opened, **options)

    def write(self, path: Address, leaves: Leaves, *_: Any, **__: Any) -> Write:
        arrays = dict(leaves)
        if [*arrays] != [()]:
            raise TreepackError(
                "a .npy file has one array: get one, by `treepack get` or numpy.save(name, "
                "file[path]), or choose .npz"
            )
        _arrays.check_dtype(arrays[()], _paths.ROOT, self.name)

        def write(_: Progress) -> None:
            with path.replacing() as file:
                _arrays.write_array(file, arrays[()])

        return write


FORMAT = Npy()
