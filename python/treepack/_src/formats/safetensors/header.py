"""Reads and encodes the headers of safetensors files (https://huggingface.co/docs/safetensors)."""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Iterable, Mapping
from typing import Any

import treepack._core as core
from treepack._src.formats import file_name
from treepack.errors import TreepackError

# NumPy's dtypes to dtypes of safetensors, in the order in which its writer sorts arrays.
SAFETENSORS = dict(core.Tensors.dtypes())

ORDER = {dtype: place for place, dtype in enumerate(SAFETENSORS)}

# The names of files in a directory, as huggingface_hub writes them: one file, or parts and the
# index with the file of each array. The parts of a later save have a random text in their names.
WHOLE = "model.safetensors"

INDEX = "model.safetensors.index.json"

SUFFIX = ".safetensors"

INDEX_SUFFIX = ".safetensors.index.json"

# Files by whose paths safetensors are read.
SUFFIXES = (SUFFIX, INDEX_SUFFIX)

SHARD = re.compile(r"model(?:-[0-9a-f]{8})?-\d{5}-of-\d{5}\.safetensors")

# The limit of a header, from https://huggingface.co/docs/safetensors.
MAX_HEADER_BYTES = 100_000_000


def has_suffix(source: Any, suffixes: tuple[str, ...] = (SUFFIX,)) -> bool:
    is_path = isinstance(source, (str, os.PathLike))
    return is_path and file_name(os.fsdecode(source)).lower().endswith(suffixes)


def encode_header(arrays: Iterable[tuple[str, Any]], metadata: Mapping[str, str] | None) -> bytes:
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
