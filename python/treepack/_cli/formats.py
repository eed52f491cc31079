"""Writes states as msgpack, safetensors and npz."""

from __future__ import annotations

import json
import os
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from treepack._cli.convert import PART_BYTES, State
from treepack._src import paths as _paths
from treepack._src.options import Progress, Saved, Writing
from treepack._src.printable import printable, safe_repr
from treepack._src.pytree.state_dict import leaves_of
from treepack._src.restore.compare import signature
from treepack._src.saving.layout import file_layout, plain_layout
from treepack._src.storage.deferred import Deferred
from treepack._src.storage.safetensors import MAX_HEADER_BYTES, ORDER, SAFETENSORS
from treepack._src.storage.write import replacing, save_layout
from treepack.errors import TreepackError


def write_msgpack(
    state: State, path: str | os.PathLike[str], how: Writing, progress: Progress = None
) -> None:
    """Writes a state in the form that the suffix of the file stands for.

    `.treepack` files have a record, a new one if necessary. `.msgpack` files have none, as flax
    writes them. Other files have a record if the source has one.
    """
    suffix = Path(Path(path).name.lower().removesuffix(".gz")).suffix
    if suffix == ".msgpack":
        state = state._replace(record=None)  # structs of flax reject unknown keys
    elif state.record is None and (suffix == ".treepack" or state.described):
        save_layout(
            file_layout(state.tree, Saved(metadata=state.metadata), how), path, how, progress
        )
        return
    described = state.record is not None
    layout = plain_layout(
        state.tree,
        how.align,
        structure=described,
        index=described,
        checksums=described and not how.compress,
        record=state.record,
    )
    save_layout(layout, path, how, progress)


def _at(name: str) -> str:
    return f"at {printable(name)}"


def _without(form: str, name: str, array: np.ndarray) -> TreepackError:
    """Returns the error for an array whose dtype a format lacks."""
    kind = signature(array)
    remedy = (
        "convert it with --dtype"
        if kind is not None and kind.kind == "float"
        else "save its parts .real and .imag"
        if array.dtype.kind == "c"
        else "save it with another dtype, as by array.astype"
    )
    return TreepackError(f"{_at(name)}: {form} does not support dtype {array.dtype.name}: {remedy}")


def write_safetensors(state: State, path: str | os.PathLike[str], separator: str) -> None:
    """Writes the arrays of a state to a safetensors file, byte for byte as its own writer."""
    leaves = list(_named(state.tree, separator))
    header: dict[str, Any] = {}
    if state.metadata is not None:
        header["__metadata__"] = dict(sorted(_text_map(state.metadata).items()))
    for name, array in leaves:
        if name == "__metadata__":
            raise TreepackError(
                f"{_at(name)}: safetensors reserves this name: rename the leaf, or leave it out "
                "with --skip"
            )
        if array.dtype.name not in SAFETENSORS:
            raise _without("safetensors", name, array)
    leaves.sort(key=lambda leaf: (ORDER[leaf[1].dtype.name], leaf[0]))
    offset = 0
    for name, array in leaves:
        end = offset + array.nbytes
        header[name] = {
            "dtype": SAFETENSORS[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER_BYTES:
        raise TreepackError(
            f"the header of {len(leaves)} arrays has {len(text)} bytes, but safetensors allows at "
            f"most {MAX_HEADER_BYTES}: extract parts of the file with `treepack get`, and convert "
            "these"
        )
    with replacing(path) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, array in leaves:
            for part in _parts(array):
                file.write(part)


def _text_map(metadata: Any) -> dict[str, str]:
    """Returns metadata as a map of strings to strings, with other values as JSON."""
    if not isinstance(metadata, dict) or not all(isinstance(key, str) for key in metadata):
        metadata = {"metadata": metadata}
    return {
        key: value if isinstance(value, str) else json.dumps(jsonable(value))
        for key, value in metadata.items()
    }


def jsonable(value: Any) -> Any:
    """Returns a value in types of JSON; values of other types become strings."""
    if isinstance(value, dict):
        return {
            key if isinstance(key, str) else safe_repr(key): jsonable(it)
            for key, it in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [jsonable(it) for it in value]
    is_plain = value is None or isinstance(value, (bool, int, float, str))
    return value if is_plain else safe_repr(value)


_MAX_ZIP_NAME = (1 << 16) - 1 - len(".npy")


def write_npz(state: State, path: str | os.PathLike[str], separator: str) -> None:
    """Writes the arrays of a state to a file that `numpy.load` reads."""
    with replacing(path) as file, zipfile.ZipFile(file, "w", allowZip64=True) as archive:
        for name, array in _named(state.tree, separator):
            if "\0" in name or len(name.encode()) > _MAX_ZIP_NAME:
                raise TreepackError(
                    f"{_at(name[:100])}: invalid name: npz allows no NUL and at most "
                    f"{_MAX_ZIP_NAME} bytes"
                )
            if (
                array.dtype.isbuiltin == 2
            ):  # of ml_dtypes: NumPy would read it as another dtype, or not at all
                raise _without("npz", name, array)
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                head = {
                    "descr": np.lib.format.dtype_to_descr(array.dtype),
                    "fortran_order": False,
                    "shape": array.shape,
                }
                np.lib.format.write_array_header_1_0(member, head)
                for part in _parts(array):
                    member.write(part)


def _named(tree: Any, separator: str) -> Iterator[tuple[str, Any]]:
    """Yields the arrays of a state with unique names.

    Raises:
      TreepackError: If two arrays have the same name, which may happen without a separator.
    """
    seen = set()
    for parts, leaf in leaves_of(tree, ()):
        for count, key in enumerate(parts, 1):
            if separator and separator in key:
                raise TreepackError(
                    f"{_at(_paths.text(parts[:count]))}: the key contains the separator "
                    f"{separator!r}: choose another one with --sep"
                )
        name = separator.join(parts)
        if leaf is None:
            continue
        if isinstance(leaf, (bool, int, float, complex, np.generic)):
            leaf = np.asarray(leaf)  # a 0-d array
        if not isinstance(leaf, (Deferred, np.ndarray)):
            raise TreepackError(
                f"{_at(_paths.text(parts))}: expected an array, found {type(leaf).__name__}: "
                "leave it out with --skip"
            )
        if name in seen:
            raise TreepackError(
                f"{_at(name)}: two arrays would have this name: choose another separator with --sep"
            )
        seen.add(name)
        yield name, leaf


def _parts(array: Any) -> Iterator[bytes]:
    """Yields the bytes of an array block by block."""
    if isinstance(array, np.ndarray):
        yield np.ascontiguousarray(array).tobytes()
        return
    content, pieces = array._deferred()
    for start, end in pieces:
        for first in range(start, end, PART_BYTES):
            yield content.read_range(first, min(end, first + PART_BYTES))
