"""Reads and encodes the headers of safetensors files (https://huggingface.co/docs/safetensors)."""

from __future__ import annotations

import json
import math
import os
import re
import struct
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

import treepack._core as core
from treepack._src import dtypes as _dtypes
from treepack._src import paths as _paths
from treepack._src.options import Buffer
from treepack._src.storage.deferred import InContent
from treepack.errors import DecodeError, TreepackError

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

# The bits of elements that are packed: NumPy has no arrays of them, and those of ml_dtypes have a
# byte each.
_PACKED_BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}

ORDER = {dtype: place for place, dtype in enumerate(SAFETENSORS)}

_NUMPY = {name: dtype for dtype, name in SAFETENSORS.items()}


# The separator of keys in names.
SEPARATOR = "."

# The names of files in a directory, as huggingface_hub writes them: one file, or parts and the
# index with the file of each array. The parts of a later save have a random text in their names.
WHOLE = "model.safetensors"

INDEX = "model.safetensors.index.json"

INDEX_SUFFIX = ".safetensors.index.json"

SHARD = re.compile(r"model(?:-[0-9a-f]{8})?-\d{5}-of-\d{5}\.safetensors")

_SUFFIX = ".safetensors"

# The limits of a header, from https://huggingface.co/docs/safetensors and its reader.
MAX_HEADER_BYTES = 100_000_000

_MAX_NUMBER = (1 << 64) - 1

_MAX_JSON_DEPTH = 127

# All versions of NumPy have arrays of this many dimensions.
_SURE_NDIM = 32

_FIELDS = ("dtype", "shape", "data_offsets")


class Header(NamedTuple):
    """The header of a file.

    Attributes:
      arrays: The arrays by their names, in the order of their bytes.
      metadata: The texts under `__metadata__`, or `None`.
    """

    arrays: dict[str, InContent]
    metadata: dict[str, str] | None


def has_suffix(source: Any) -> bool:
    """Returns whether the name of a file says that it is a safetensors file."""
    is_path = isinstance(source, (str, os.PathLike))
    return is_path and os.fsdecode(source).lower().endswith(_SUFFIX)


def is_safetensors(data: core.Content | Buffer) -> bool:
    """Returns whether data begin as a safetensors file does."""
    content = data if isinstance(data, core.Content) else core.Content.lent(data)
    return core.convertible(content) == "safetensors"


def read_header(content: core.Content) -> Header:
    """Reads the header of a safetensors file, and no array.

    Raises:
      DecodeError: If the reader of safetensors would refuse the file, for the same reason.
    """
    header, start = _json_header(content)
    metadata = header.pop("__metadata__", None)
    if metadata is not None and not (
        isinstance(metadata, dict) and all(isinstance(text, str) for text in metadata.values())
    ):
        raise DecodeError("invalid __metadata__: expected a map of strings to strings", offset=8)
    entries = {name: _entry(name, entry) for name, entry in header.items()}
    end = 0
    ordered = sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end))
    for name, entry in ordered:
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
        for name, entry in ordered
    }
    return Header(flat, metadata)


def encode_header(arrays: Iterable[tuple[str, Any]], metadata: Mapping[str, str] | None) -> bytes:
    """Encodes the header of a file: its length, and JSON padded to a multiple of 8 bytes.

    Args:
      arrays: The names and arrays, in the order of their bytes.
      metadata: The texts under `__metadata__`, or `None`.

    Raises:
      TreepackError: If it is longer than safetensors allows.
    """
    header: dict[str, Any] = {}
    if metadata is not None:
        header["__metadata__"] = dict(sorted(metadata.items()))
    offset = 0
    for name, array in arrays:
        end = offset + array.nbytes
        header[name] = {
            "dtype": SAFETENSORS[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    try:
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:
        raise TreepackError(
            f"names and metadata of safetensors must be valid Unicode, found {header!r:.100}"
        ) from error
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER_BYTES:
        raise TreepackError(
            f"the header of {len(header)} entries has {len(text)} bytes, but safetensors allows at "
            f"most {MAX_HEADER_BYTES}: save parts of the tree to several files"
        )
    return struct.pack("<Q", len(text)) + text


def _json_header(content: core.Content) -> tuple[dict[str, Any], int]:
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


def _entry(name: str, entry: Any) -> _Entry:
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
    if named in _PACKED_BITS:
        dtype, bits = _dtypes.packed(f"{named}_packed"), _PACKED_BITS[named]
    elif named in _NUMPY:
        dtype = np.dtype(_NUMPY[named])
        bits = 8 * dtype.itemsize
    else:
        raise wrong(f"unknown dtype {named:.100}")
    nbits = 1
    for size in (*shape, bits):
        nbits *= size
        if nbits > _MAX_NUMBER:
            raise wrong(f"invalid shape {shape!r:.100}: the array is larger than any memory")
    if nbits % 8:
        raise wrong(f"invalid shape {shape!r:.100}: {nbits} bits do not end with a byte")
    nbytes = nbits // 8
    if nbytes != end - begin:
        raise wrong(
            f"size mismatch: the dtype and shape need {nbytes} bytes, the offsets span "
            f"{end - begin}"
        )
    if nbytes == 0 or len(shape) > _SURE_NDIM:
        try:
            np.broadcast_to(np.empty((), dtype), shape)
        except ValueError as error:
            raise wrong(f"NumPy does not support this shape: {error}") from error
    return _Entry(dtype, (nbytes,) if named in _PACKED_BITS else tuple(shape), begin, end)


def nested(flat: Mapping[str, Any], separator: str) -> Any:
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
