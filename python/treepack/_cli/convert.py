"""Converts files between msgpack, safetensors and npz, one array at a time.

A source is represented by its *state*: nested dicts with string keys, whose arrays are read when
they are written. So files may be larger than memory.
"""

from __future__ import annotations

import math
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import ml_dtypes
import numpy as np

import treepack._core as core
from treepack._src import dtypes as _dtypes
from treepack._src import paths as _paths
from treepack._src.checkpoint.file import File, place_of
from treepack._src.checkpoint.safetensors import RepositoryReader, SafetensorsReader
from treepack._src.printable import printable
from treepack._src.pytree.state_dict import map_leaves
from treepack._src.restore.report import ABSENT
from treepack._src.storage.deferred import Deferred, InContent, rows_cast
from treepack._src.storage.foreign import reference_text
from treepack._src.storage.safetensors import nested, read_header
from treepack.errors import CorruptionError, DecodeError, TreepackError

Format = Literal["msgpack", "safetensors", "npz"]

_SUFFIXES: dict[str, Format] = {".safetensors": "safetensors", ".npz": "npz"}


class State(NamedTuple):
    """The content of a file.

    Attributes:
      tree: Nested dicts with string keys; arrays are `Deferred`.
      record: The record of the structure with the bytes after it, or `None`.
      metadata: The metadata, or `None`. The record has them as well.
      described: Whether the file has a record, even if this part of it has none.
    """

    tree: Any
    record: bytes | None
    metadata: Any = None
    described: bool = False


class Damaged:
    """A damaged leaf. `check_whole` raises its error unless the leaf is left out before."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def format_of(path: str | os.PathLike[str]) -> Format:
    """Returns the format that the suffix of a file stands for; by default msgpack."""
    return _SUFFIXES.get(Path(path).suffix.lower(), "msgpack")


# Reading


def state_of(file: File, value: int = 0, marks: core.Marks | None = None) -> State:
    """Returns the state of an open file, of a value in it, or of marked leaves.

    A part has no record. Leaves are compared with their checksums: arrays when they are copied,
    other leaves now, with `Damaged` in place of damaged leaves.
    """
    place = place_of(file)
    if value:
        place = place.below(value, _paths.parts(place.catalog.path_of(value, 0)))

    def leaf(value: int, parts: list[str]) -> Any:
        try:
            return place.reader.undamaged_leaf(value, parts)
        except (CorruptionError, DecodeError) as error:
            return Damaged(error)

    is_foreign = isinstance(place.reader, (SafetensorsReader, RepositoryReader))
    record = None if is_foreign else place.catalog.record  # theirs is made while they are opened
    state = place.state(leaf, marks)
    if marks is not None:
        state = map_leaves(lambda leaf: leaf, state, ABSENT)
    return State(
        {} if state is ABSENT else state,
        None if value or marks is not None else record,
        None if value else file.metadata,
        record is not None,
    )


def check_whole(state: State) -> State:
    """Returns a state after checking that it has all its leaves.

    Raises:
      TreepackError: If leaves are references to other files.
      CorruptionError: If a leaf is damaged.
    """
    for text, paths in references(state).items():
        raise TreepackError(
            f"not all values are in the file: {listed(paths)} are {text}. convert --skip leaves "
            "them out"
        )
    return state


def references(state: State) -> dict[str, list[str]]:
    """Returns the paths of references to other files, grouped by a description of their kind.

    Raises:
      CorruptionError: If a leaf is damaged.
    """
    found: dict[str, list[str]] = {}

    def look(node: Any, parts: tuple[str, ...]) -> None:
        if isinstance(node, Damaged):
            raise node.error
        text = reference_text(node)
        if text is not None:
            found.setdefault(text, []).append(_paths.text(parts))
        elif isinstance(node, (dict, list)):
            for key, child in node.items() if isinstance(node, dict) else enumerate(node):
                look(child, (*parts, str(key)))

    look(state.tree, ())
    return found


def listed(paths: list[str]) -> str:
    """Returns the first of these paths as text."""
    more = ", ..." if len(paths) > _MOST_PATHS else ""
    return f"{', '.join(map(printable, paths[:_MOST_PATHS]))}{more}"


# The most paths in a message.
_MOST_PATHS = 5

# The size in bytes of the blocks in which content is read and written.
PART_BYTES = 8 << 20


def read_safetensors(path: str | os.PathLike[str], separator: str) -> State:
    """Reads a file of safetensors.

    Raises:
      DecodeError: If the reader of safetensors would reject the file.
    """
    header = read_header(core.Content.map(path))
    return State(nested(header.arrays, separator), None, header.metadata)


# The maximum compression ratio in zip files of NumPy.
_MAX_RATIO = 1032


def read_npz(path: str | os.PathLike[str], separator: str, *, max_size: int | None = None) -> State:
    """Reads a file of `numpy.savez`. Compressed arrays are read now, up to `max_size` bytes.

    Raises:
      DecodeError: If the file has another format, has other content than arrays, or is damaged.
      TreepackError: If the arrays are larger than `max_size`.
    """
    flat: dict[str, Any] = {}
    left = max_size
    name = None
    try:
        content = core.Content.map(path)
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                name = member.filename.removesuffix(".npy")
                if member.is_dir():
                    continue
                if name in flat:
                    raise ValueError("two arrays in the archive have this name")
                if left is not None and member.compress_type != zipfile.ZIP_STORED:
                    left -= member.file_size
                    if left < 0:
                        raise _TooLargeError(
                            f"the decompressed arrays exceed max_size={max_size} bytes"
                        )
                flat[name] = _zipped(content, archive, member)
    except (OSError, MemoryError, _TooLargeError):
        raise
    except Exception as error:  # zipfile and NumPy may raise any type
        raise DecodeError(f"not a readable file of numpy.savez: {error}", path=name) from error
    return State(nested(flat, separator), None)


class _TooLargeError(TreepackError):
    """Arrays are larger than `max_size` allows."""


def _zipped(content: core.Content, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Any:
    """Returns an array of an archive; a view if it is stored uncompressed."""
    is_stored = member.compress_type == zipfile.ZIP_STORED
    if not is_stored and member.compress_type != zipfile.ZIP_DEFLATED:
        raise ValueError(f"unsupported zip compression method {member.compress_type}")
    if member.file_size > member.compress_size * (1 if is_stored else _MAX_RATIO):
        raise ValueError(
            f"{member.compress_size} compressed bytes cannot expand to {member.file_size} bytes"
        )
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f"unsupported .npy version {version}")
        shape, fortran, dtype = _HEADERS[version](file)
        if dtype.hasobject:
            raise ValueError("the array has pickled objects, which are never read")
        before, nbytes = file.tell(), math.prod(shape) * dtype.itemsize
        if dtype.type is np.void and dtype.names is None and dtype.subdtype is None:
            dtype = _of_void(dtype)
        if min(shape, default=0) < 0 or before + nbytes > member.file_size:
            raise ValueError(f"short read: the file ends before an array of shape {shape}")
        lies_there = is_stored and not fortran and dtype.isnative
        data = b"" if lies_there else file.read(nbytes)
        while file.read(PART_BYTES):  # the checksum is compared at the end
            pass
    if not lies_there:
        return np.ndarray(shape, dtype, data, order="F" if fortran else "C")
    lengths = content.read_range(member.header_offset + 26, member.header_offset + 30)
    start = member.header_offset + 30 + sum(struct.unpack("<HH", lengths)) + before
    return InContent(shape, dtype, content, start)


def _of_void(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Returns the dtype of elements whose dtype NumPy stored as a size.

    NumPy writes bfloat16 as `|V2`; `recover_dtype` of big_vision reads
    it as bfloat16, too. One-byte dtypes are ambiguous.
    """
    if dtype.itemsize != 2:
        raise ValueError(
            f"unknown dtype of {dtype.itemsize} bytes: NumPy stored {dtype.str}. Load the array "
            "with numpy.load, and view it with its original dtype"
        )
    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return found


_HEADERS: dict[tuple[int, int], Callable[[Any], Any]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


# Changing


def with_dtype(tree: Any, dtype: np.dtype[Any]) -> Any:
    """Returns a state with all float arrays cast to another dtype."""

    def cast(leaf: Any) -> Any:
        if not isinstance(leaf, (Deferred, np.ndarray)) or not _dtypes.is_float(leaf.dtype):
            return leaf
        return leaf.astype(dtype) if isinstance(leaf, np.ndarray) else rows_cast(leaf, dtype)

    return map_leaves(cast, tree)
