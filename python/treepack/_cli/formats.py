"""Writes states as msgpack, safetensors and npz."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from treepack._cli.convert import PART_BYTES, State
from treepack._cli.output import jsonable
from treepack._src import paths as _paths
from treepack._src.options import Progress, Saved, Writing
from treepack._src.printable import printable
from treepack._src.pytree.state_dict import leaves_of
from treepack._src.saving.layout import file_layout, plain_layout
from treepack._src.saving.safetensors import named, without_dtype, write_of
from treepack._src.storage.deferred import Deferred
from treepack._src.storage.write import replacing, save_layout
from treepack.errors import TreepackError


def write_msgpack(
    state: State, path: str | os.PathLike[str], writing: Writing, progress: Progress = None
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
            file_layout(state.tree, Saved(metadata=state.metadata), writing),
            path,
            writing,
            progress,
        )
        return
    described = state.record is not None
    layout = plain_layout(
        state.tree,
        writing.align,
        structure=described,
        index=described,
        checksums=described and not writing.compress,
        record=state.record,
    )
    save_layout(layout, path, writing, progress)


def write_safetensors(
    state: State,
    path: str | os.PathLike[str],
    separator: str,
    max_shard_size: int | None = None,
    progress: Progress = None,
) -> None:
    """Writes the arrays of a state as safetensors, byte for byte as its own writer.

    With `max_shard_size`, it writes a directory of files of at most this many bytes.
    """
    write = write_of(
        path,
        _named(state.tree, separator),
        None if state.metadata is None else _text_map(state.metadata),
        Writing(),
        max_shard_size,
        remedy=_FLOAT_REMEDY,
    )
    write(progress)


# The remedy for floats of a dtype that a format lacks.
_FLOAT_REMEDY = "convert it with --dtype"


def _text_map(metadata: Any) -> dict[str, str]:
    """Returns metadata as a map of strings to strings, with other values as JSON."""
    if not isinstance(metadata, dict) or not all(isinstance(key, str) for key in metadata):
        metadata = {"metadata": metadata}
    return {
        key: value if isinstance(value, str) else json.dumps(jsonable(value))
        for key, value in metadata.items()
    }


_MAX_ZIP_NAME = (1 << 16) - 1 - len(".npy")


def write_npz(state: State, path: str | os.PathLike[str], separator: str) -> None:
    """Writes the arrays of a state to a file that `numpy.load` reads."""
    with replacing(path) as file, zipfile.ZipFile(file, "w", allowZip64=True) as archive:
        for name, array in _named(state.tree, separator).items():
            if "\0" in name or len(name.encode()) > _MAX_ZIP_NAME:
                raise TreepackError(
                    f"at {printable(name[:100])}: invalid name: npz allows no NUL and at most "
                    f"{_MAX_ZIP_NAME} bytes"
                )
            _check_dtype(array, name, "npz")
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                _write_array(member, array)


def write_npy(state: State, path: str | os.PathLike[str]) -> None:
    """Writes an array to a file that `numpy.load` reads."""
    if isinstance(state.tree, (dict, list)):
        raise TreepackError(
            "a .npy file has one array: get one by its path, or choose .npz for several"
        )
    [(_, array)] = _arrays(state.tree)
    _check_dtype(array, _paths.ROOT, "npy")
    with replacing(path) as file:
        _write_array(file, array)


def _check_dtype(array: Any, name: str, format: str) -> None:
    if array.dtype.isbuiltin == 2:
        # Of ml_dtypes: NumPy would read it as another dtype, or not at all.
        text = without_dtype(format, array, _FLOAT_REMEDY)
        raise TreepackError(f"at {printable(name)}: {text}")


def _write_array(file: Any, array: Any) -> None:
    head = {
        "descr": np.lib.format.dtype_to_descr(array.dtype),
        "fortran_order": False,
        "shape": array.shape,
    }
    np.lib.format.write_array_header_1_0(file, head)
    for part in _parts(array):
        file.write(part)


def _named(tree: Any, separator: str) -> dict[str, Any]:
    """Returns the arrays of a state by their names; numbers become arrays.

    Raises:
      TreepackError: If two arrays have the same name, or a leaf is not an array.
    """
    return named(_arrays(tree), separator, "choose another one with --sep")


def _arrays(tree: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    for parts, leaf in leaves_of(tree, ()):
        if leaf is None:
            continue
        if isinstance(leaf, (bool, int, float, complex, np.generic)):
            leaf = np.asarray(leaf)  # a 0-d array
        if not isinstance(leaf, (Deferred, np.ndarray)):
            raise TreepackError(
                f"at {printable(_paths.text(parts))}: expected an array, found "
                f"{type(leaf).__name__}: leave it out with --skip"
            )
        yield parts, leaf


def _parts(array: Any) -> Iterator[bytes]:
    """Yields the bytes of an array block by block."""
    if isinstance(array, np.ndarray):
        yield np.ascontiguousarray(array).tobytes()
        return
    content, pieces = array._deferred()
    for start, end in pieces:
        for first in range(start, end, PART_BYTES):
            yield content.read_range(first, min(end, first + PART_BYTES))
