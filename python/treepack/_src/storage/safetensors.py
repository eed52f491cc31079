"""Reads and encodes the headers of safetensors files (https://huggingface.co/docs/safetensors)."""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Iterable, Mapping
from typing import Any

import treepack._core as core
from treepack._src import paths as _paths
from treepack._src.storage.place import beside
from treepack.errors import DecodeError, TreepackError

# NumPy's dtypes to dtypes of safetensors, in the order in which its writer sorts arrays.
SAFETENSORS = dict(core.Tensors.dtypes())

ORDER = {dtype: place for place, dtype in enumerate(SAFETENSORS)}

# The separator of keys in names.
SEPARATOR = "."

# The names of files in a directory, as huggingface_hub writes them: one file, or parts and the
# index with the file of each array. The parts of a later save have a random text in their names.
WHOLE = "model.safetensors"

INDEX = "model.safetensors.index.json"

SUFFIX = ".safetensors"

INDEX_SUFFIX = ".safetensors.index.json"

SHARD = re.compile(r"model(?:-[0-9a-f]{8})?-\d{5}-of-\d{5}\.safetensors")

# The limit of a header, from https://huggingface.co/docs/safetensors.
MAX_HEADER_BYTES = 100_000_000


def has_suffix(source: Any, suffixes: tuple[str, ...] = (SUFFIX,)) -> bool:
    """Returns whether the name of a file has a suffix, by default `.safetensors`."""
    is_path = isinstance(source, (str, os.PathLike))
    return is_path and os.fsdecode(source).lower().endswith(suffixes)


def repository_of(source: Any) -> Any:
    """Returns the directory of an index of safetensors; other sources are returned unchanged."""
    if not isinstance(source, (str, os.PathLike)):
        return source
    is_index = os.fsdecode(source).endswith(INDEX_SUFFIX)
    return (beside(source, "") or os.curdir) if is_index else source


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


def nested(flat: Mapping[str, Any], separator: str) -> Any:
    """Nests values with names such as `a.b.c` in dicts."""
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        parts = name.split(separator) if separator else [name]
        if len(parts) >= core.MAX_DEPTH:
            raise DecodeError(
                f"a name has {len(parts)} parts, but trees have fewer than {core.MAX_DEPTH} "
                "levels: read it by `treepack convert` with another --sep",
                path=name[:100],
            )
        try:
            _paths.put(tree, parts, value)
        except TreepackError as error:
            raise TreepackError(
                f"{error}: read it by `treepack convert` with another --sep"
            ) from None
    return tree
