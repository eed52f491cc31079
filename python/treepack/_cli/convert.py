"""Converts files between msgpack, safetensors and npz, one array at a time.

A source is represented by its *state*: nested dicts with string keys, whose arrays are read when
they are written. So files may be larger than memory.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

import treepack._core as core
from treepack._src import dtypes as _dtypes
from treepack._src import paths as _paths
from treepack._src.checkpoint.file import File, place_of
from treepack._src.checkpoint.npz import NpzReader
from treepack._src.checkpoint.safetensors import RepositoryReader, SafetensorsReader
from treepack._src.printable import printable
from treepack._src.pytree.state_dict import map_leaves
from treepack._src.restore.report import ABSENT
from treepack._src.storage.content import open_parts
from treepack._src.storage.deferred import Deferred, InContent, rows_cast
from treepack._src.storage.foreign import reference_text
from treepack._src.storage.npz import read_npz
from treepack._src.storage.safetensors import nested
from treepack.errors import CorruptionError, DecodeError, TreepackError

Format = Literal["msgpack", "safetensors", "npz", "npy"]

_SUFFIXES: dict[str, Format] = {".safetensors": "safetensors", ".npz": "npz", ".npy": "npy"}


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

    is_foreign = isinstance(place.reader, (NpzReader, SafetensorsReader, RepositoryReader))
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


def read_named(source: str, format: Format, separator: str, max_size: int | None = None) -> State:
    """Reads the headers of a file of safetensors, or of an archive of NumPy.

    Raises:
      DecodeError: If the file is damaged, or has another format.
      TreepackError: If the decompressed arrays are larger than `max_size`.
    """
    content = open_parts(source).content
    if format == "npz":
        return State(nested(read_npz(content, max_size), separator), None)
    header = core.Tensors.read(content)
    arrays = {}
    for name, dtype, shape, start in header.arrays():
        is_packed = dtype.endswith("_packed")
        found = _dtypes.packed(dtype) if is_packed else np.dtype(dtype)
        arrays[name] = InContent(shape, found, content, start)
    return State(nested(arrays, separator), None, header.metadata)


# Changing


def with_dtype(tree: Any, dtype: np.dtype[Any]) -> Any:
    """Returns a state with all float arrays cast to another dtype."""

    def cast(leaf: Any) -> Any:
        if not isinstance(leaf, (Deferred, np.ndarray)) or not _dtypes.is_float(leaf.dtype):
            return leaf
        return leaf.astype(dtype) if isinstance(leaf, np.ndarray) else rows_cast(leaf, dtype)

    return map_leaves(cast, tree)
