"""Files of one format to another, one array at a time: msgpack, safetensors, npz.

A source becomes its *state*: nested dicts with string keys, whose arrays are read when they are
written. So files may be larger than memory.
"""

from __future__ import annotations

import json
import math
import os
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from treepack import _core, _dtypes, _paths, serialization
from treepack._deferred import Deferred, InContent, rows_cast
from treepack._described import Writing
from treepack._open import Tree
from treepack._options import Progress
from treepack._replacing import replacing
from treepack.errors import DecodeError, TreepackError

Format = Literal["msgpack", "safetensors", "npz"]

_SUFFIXES: dict[str, Format] = {".safetensors": "safetensors", ".npz": "npz"}

# The dtypes of safetensors by those of NumPy.
_SAFETENSORS = {
    "bool": "BOOL",
    **{
        f"{sign}int{bits}": f"{sign.upper()}{bits}" if sign else f"I{bits}"
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "complex64": "C64",
}


class State(NamedTuple):
    """What is in a file.

    Attributes:
      tree: Nested dicts with string keys; arrays are `Deferred`.
      record: The record of a structure, with what stands after it, or `None`.
    """

    tree: Any
    record: bytes | None


def format_of(path: str | os.PathLike[str]) -> Format:
    """Returns the format that the name of a file tells: msgpack unless it is another one."""
    return _SUFFIXES.get(Path(path).suffix.lower(), "msgpack")


# Reading


def state_of(tree: Tree) -> State:
    """Returns what is in an open file; of a part of it without a record."""
    catalog = tree._catalog()
    whole = not tree._parts
    return State(tree._state(tree._at), catalog.trailer if whole else None)


def read_safetensors(path: str | os.PathLike[str], separator: str) -> State:
    """Returns what is in a file of safetensors (https://huggingface.co/docs/safetensors).

    Raises:
      DecodeError: If it is no such file.
    """
    content = _core.Content.map(path)
    size = content.nbytes
    with Path(path).open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if length > size - 8:
            raise DecodeError("the file is not of safetensors: its header does not fit in it")
        try:
            header = json.loads(file.read(length))
        except ValueError as error:
            raise DecodeError(f"the file is not of safetensors: {error}") from error
    dtypes = {name: dtype for dtype, name in _SAFETENSORS.items()}
    flat: dict[str, Any] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtype = _dtypes.resolve(dtypes.get(entry["dtype"], "").encode())
        if dtype is None:
            raise DecodeError(f"the dtype {entry['dtype']} has no equal in NumPy", path=name)
        begin, end = entry["data_offsets"]
        shape = tuple(entry["shape"])
        if math.prod(shape) * dtype.itemsize != end - begin or 8 + length + end > size:
            raise DecodeError("the array does not lie in the file", path=name)
        flat[name] = InContent(shape, dtype, content, 8 + length + begin)
    return State(_nested(flat, separator), None)


def read_npz(path: str | os.PathLike[str], separator: str) -> State:
    """Returns what is in a file of `numpy.savez`. Compressed arrays are read now."""
    flat: dict[str, Any] = {}
    with np.load(path, allow_pickle=False) as archive:
        for name in archive.files:
            flat[name] = _zipped(path, archive, name)
    return State(_nested(flat, separator), None)


def _zipped(path: Any, archive: Any, name: str) -> Any:
    """Returns an array of an archive: where it lies, if it is stored as it is."""
    member = next(it for it in archive.zip.infolist() if it.filename in (name, f"{name}.npy"))
    if member.compress_type != zipfile.ZIP_STORED:
        return archive[name]
    with archive.zip.open(member) as file:
        version = np.lib.format.read_magic(file)
        if version not in _HEADERS:
            return archive[name]
        shape, fortran, dtype = _HEADERS[version](file)
        if fortran or dtype.hasobject or not dtype.isnative:
            return archive[name]
        before = file.tell()
    with Path(path).open("rb") as file:
        file.seek(member.header_offset + 26)
        name_length, extra = struct.unpack("<HH", file.read(4))
    start = member.header_offset + 30 + name_length + extra + before
    return InContent(shape, dtype, _core.Content.map(path), start)


_HEADERS: dict[tuple[int, int], Callable[[Any], Any]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def _nested(flat: Mapping[str, Any], separator: str) -> Any:
    """Returns nested dicts of what has names like `a.b.c`."""
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        try:
            _paths.put(tree, name.split(separator) if separator else [name], value)
        except TreepackError as error:
            raise TreepackError(f"{error}: choose another separator with --sep") from None
    return tree


# Changing


def with_dtype(tree: Any, dtype: np.dtype[Any]) -> Any:
    """Returns a state with all floats in another dtype."""
    if isinstance(tree, dict):
        return {key: with_dtype(child, dtype) for key, child in tree.items()}
    if not isinstance(tree, (Deferred, np.ndarray)) or not _dtypes.is_float(tree.dtype):
        return tree
    if isinstance(tree, np.ndarray):
        return tree.astype(dtype)
    return rows_cast(tree, dtype)


# Writing


def write_msgpack(
    state: State, path: str | os.PathLike[str], how: Writing, progress: Progress = None
) -> None:
    """Writes a state, with its record if it has one; otherwise as flax does."""
    described = state.record is not None
    layout = _core.walk(
        state.tree,
        state_dict=False,
        sort_keys=False,
        align=how.align,
        max_chunk_size=serialization.MAX_CHUNK_SIZE,
        overridden=[],
        structure=described,
        index=described,
        checksums=described and not how.compress,
        record=state.record,
    )
    how.save(layout, path, progress)


def write_safetensors(state: State, path: str | os.PathLike[str], separator: str) -> None:
    """Writes the arrays of a state to a file of safetensors."""
    leaves = dict(_arrays(state.tree, separator))
    header: dict[str, Any] = {}
    offset = 0
    for name, array in leaves.items():
        known = _SAFETENSORS.get(array.dtype.name)
        if known is None:
            raise TreepackError(
                f"at {name}: safetensors has no dtype {array.dtype.name}; convert it with --dtype"
            )
        end = offset + array.nbytes
        header[name] = {"dtype": known, "shape": list(array.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with replacing(path) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in leaves.values():
            for part in _parts(array):
                file.write(part)


def write_npz(state: State, path: str | os.PathLike[str], separator: str) -> None:
    """Writes the arrays of a state to a file that `numpy.load` reads."""
    with replacing(path) as file, zipfile.ZipFile(file, "w", allowZip64=True) as archive:
        for name, array in _arrays(state.tree, separator):
            if array.dtype.kind == "V":  # as which NumPy would read it again
                raise TreepackError(
                    f"at {name}: npz has no dtype {array.dtype.name}; convert it with --dtype"
                )
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                head = {
                    "descr": np.lib.format.dtype_to_descr(array.dtype),
                    "fortran_order": False,
                    "shape": array.shape,
                }
                np.lib.format.write_array_header_1_0(member, head)
                for part in _parts(array):
                    member.write(part)


def _arrays(tree: Any, separator: str, parts: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yields the arrays of a state with their names; numbers become arrays without dimensions."""
    if isinstance(tree, list):
        tree = {str(index): child for index, child in enumerate(tree)}
    if isinstance(tree, dict):
        for key, child in tree.items():
            if separator and separator in key:
                raise TreepackError(
                    f"at {_paths.text([*parts, key])}: the key has {separator!r} in it, which "
                    "separates keys; choose another one with --sep"
                )
            yield from _arrays(child, separator, (*parts, key))
        return
    name = separator.join(parts)
    if isinstance(tree, (Deferred, np.ndarray)):
        yield name, tree
    elif isinstance(tree, (bool, int, float, complex, np.generic)):
        yield name, np.asarray(tree)
    elif tree is not None:
        raise TreepackError(
            f"at {_paths.text(parts)}: a {type(tree).__name__} is no array; take the others with "
            "`treepack get`"
        )


_PART_BYTES = 8 << 20


def _parts(array: Any) -> Iterator[bytes]:
    """Yields the bytes of an array, some at a time."""
    if isinstance(array, np.ndarray):
        yield np.ascontiguousarray(array).tobytes()
        return
    content, pieces = array._deferred()
    for start, end in pieces:
        for first in range(start, end, _PART_BYTES):
            yield content.read_range(first, min(end, first + _PART_BYTES))
