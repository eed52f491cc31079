"""Converts files between msgpack, safetensors and npz, one array at a time.

A source is represented by its *state*: nested dicts with string keys, whose arrays are read when
they are written. So files may be larger than memory.
"""

from __future__ import annotations

import json
import math
import os
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import ml_dtypes
import numpy as np

import treepack._core as core
from treepack._src import dtypes as _dtypes
from treepack._src import paths as _paths
from treepack._src.checkpoint.file import File, place_of
from treepack._src.printable import printable
from treepack._src.pytree.state_dict import map_leaves
from treepack._src.restore.report import ABSENT
from treepack._src.storage.deferred import Deferred, InContent, rows_cast
from treepack._src.storage.foreign import reference_text
from treepack.errors import CorruptionError, DecodeError, TreepackError

Format = Literal["msgpack", "safetensors", "npz"]

_SUFFIXES: dict[str, Format] = {".safetensors": "safetensors", ".npz": "npz"}

# NumPy's dtypes to dtypes of safetensors, in the order in which its writer sorts arrays: the
# largest elements first, so that all are aligned.
SAFETENSORS = {
    "uint64": "U64",
    "int64": "I64",
    "float64": "F64",
    "complex64": "C64",
    "float32": "F32",
    "uint32": "U32",
    "int32": "I32",
    "bfloat16": "BF16",
    "float16": "F16",
    "uint16": "U16",
    "int16": "I16",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}

ORDER = {dtype: place for place, dtype in enumerate(SAFETENSORS)}

_NUMPY = {name: dtype for dtype, name in SAFETENSORS.items()}


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

    record = place.catalog.record
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
    for text, paths in found.items():
        more = ", ..." if len(paths) > _MOST_PATHS else ""
        listed = ", ".join(map(printable, paths[:_MOST_PATHS]))
        raise TreepackError(
            f"values of {listed}{more} are not in the file: they are {text}. convert --skip "
            "leaves them out"
        )
    return state


# The maximum number of paths in an error.
_MOST_PATHS = 5

# The limits of a header, from https://huggingface.co/docs/safetensors and its reader.
MAX_HEADER_BYTES = 100_000_000

# The size in bytes of the blocks in which content is read and written.
PART_BYTES = 8 << 20

_MAX_NUMBER = (1 << 64) - 1

_MAX_JSON_DEPTH = 127

_FIELDS = ("dtype", "shape", "data_offsets")


def read_safetensors(path: str | os.PathLike[str], separator: str) -> State:
    """Reads a safetensors file (https://huggingface.co/docs/safetensors).

    Raises:
      DecodeError: If the reader of safetensors would reject the file.
    """
    content = core.Content.map(path)
    header, start = _safetensors_header(content)
    metadata = header.pop("__metadata__", None)
    if metadata is not None and not (
        isinstance(metadata, dict) and all(isinstance(text, str) for text in metadata.values())
    ):
        raise DecodeError("invalid __metadata__: expected a map of strings to strings", offset=8)
    entries = {name: _safetensors_entry(name, entry) for name, entry in header.items()}
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != end:
            raise DecodeError(
                f"the array begins at byte {entry.begin} of the data, expected {end}, where the "
                "previous array ends: arrays must not overlap or leave gaps",
                path=name,
            )
        end = entry.end
    if start + end != content.nbytes:
        raise DecodeError(
            f"the arrays end at byte {start + end}, but the file at byte {content.nbytes}"
        )
    flat = {
        name: InContent(entry.shape, entry.dtype, content, start + entry.begin)
        for name, entry in entries.items()
    }
    return State(_nested(flat, separator), None, metadata)


def _safetensors_header(content: core.Content) -> tuple[dict[str, Any], int]:
    """Returns the header of a safetensors file, and the offset of the data."""
    size = content.nbytes
    if size < 8:
        raise DecodeError("not a safetensors file: it ends before the size of its header")
    length = int.from_bytes(content.read_range(0, 8), "little")
    if length > size - 8:
        raise DecodeError(
            f"not a safetensors file: its header of {length} bytes does not fit into "
            f"{content.nbytes} bytes",
            offset=0,
        )
    if length > MAX_HEADER_BYTES:
        raise DecodeError(
            f"the header has {length} bytes, but safetensors allows at most {MAX_HEADER_BYTES}",
            offset=0,
        )
    text = content.read_range(8, 8 + length)
    if not text.startswith(b"{"):
        raise DecodeError(
            "not a safetensors file: its header does not begin with a brace", offset=8
        )
    try:
        header: dict[str, Any] = json.loads(
            text.decode(),
            object_pairs_hook=_without_duplicates,
            parse_int=_json_number,
            parse_float=_json_number,
            parse_constant=_json_number,
        )
        if b"\\ud" in text.lower():
            json.dumps(header, ensure_ascii=False).encode()  # raises for a lone surrogate
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"not a safetensors file: invalid header: {error}", offset=8) from error
    return header, 8 + length


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r:.100} appears twice")
        found[key] = value
    return found


def _json_number(text: str) -> int | float:
    """Returns an int only where safetensors accepts a count: not for `-0` or `1.0`."""
    if text.removeprefix("-").isdecimal() and len(text) <= 20 and text != "-0":
        return int(text)
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text:.100} is out of range")
    return number


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MAX_NUMBER


def _is_deep(value: Any, levels: int) -> bool:
    """Returns whether JSON has more than `levels` nested levels."""
    if not isinstance(value, (dict, list)):
        return False
    children = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deep(child, levels - 1) for child in children)


class _Entry(NamedTuple):
    """The entry of an array in the header; offsets count from the start of the data."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    begin: int
    end: int


def _safetensors_entry(name: str, entry: Any) -> _Entry:
    """Checks the entry of an array in the header, except its position among the others."""

    def wrong(reason: str) -> DecodeError:
        return DecodeError(reason, path=name)

    if not isinstance(entry, dict) or not all(field in entry for field in _FIELDS):
        raise wrong(f"invalid header entry: expected the keys {', '.join(_FIELDS)}")
    if any(_is_deep(entry[field], _MAX_JSON_DEPTH - 2) for field in entry if field not in _FIELDS):
        raise wrong(f"the header is nested more than {_MAX_JSON_DEPTH} levels deep")
    named, shape, offsets = (entry[field] for field in _FIELDS)
    if not isinstance(named, str):
        raise wrong("invalid dtype: expected a string")
    if not isinstance(shape, list) or not all(map(_is_count, shape)):
        raise wrong(f"invalid shape {shape!r:.100}: expected a list of counts")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_count, offsets)):
        raise wrong(f"invalid data_offsets {offsets!r:.100}: expected two byte offsets")
    begin, end = offsets
    dtype = _dtypes.resolve(_NUMPY.get(named, "").encode())
    if dtype is None:
        raise wrong(f"unsupported dtype {named:.100}: NumPy lacks it")
    nbytes = 1
    for size in (*shape, dtype.itemsize):
        nbytes *= size
        if nbytes > _MAX_NUMBER:
            raise wrong(f"invalid shape {shape!r:.100}: the array is larger than any memory")
    if nbytes != end - begin:
        raise wrong(
            f"size mismatch: the dtype and shape need {nbytes} bytes, the offsets span "
            f"{end - begin}"
        )
    try:
        np.broadcast_to(np.empty((), dtype), shape)
    except ValueError as error:
        raise wrong(f"NumPy does not support this shape: {error}") from error
    return _Entry(dtype, tuple(shape), begin, end)


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
    return State(_nested(flat, separator), None)


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


def _nested(flat: Mapping[str, Any], separator: str) -> Any:
    """Nests values with names such as `a.b.c` in dicts."""
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        parts = name.split(separator) if separator else [name]
        if len(parts) >= core.MAX_DEPTH:
            raise DecodeError(
                f"a name has {len(parts)} parts, but trees have less than {core.MAX_DEPTH} "
                "levels: choose another separator with --sep",
                path=name[:100],
            )
        try:
            _paths.put(tree, parts, value)
        except TreepackError as error:
            raise TreepackError(f"{error}: choose another separator with --sep") from None
    return tree


# Changing


def with_dtype(tree: Any, dtype: np.dtype[Any]) -> Any:
    """Returns a state with all float arrays cast to another dtype."""

    def cast(leaf: Any) -> Any:
        if not isinstance(leaf, (Deferred, np.ndarray)) or not _dtypes.is_float(leaf.dtype):
            return leaf
        return leaf.astype(dtype) if isinstance(leaf, np.ndarray) else rows_cast(leaf, dtype)

    return map_leaves(cast, tree)
