"""Converts files between msgpack, safetensors and npz, one array at a time.

A source is represented by its *state*: nested dicts with string keys, whose arrays are read when
they are written. So files may be larger than memory.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

import treepack._core as core
from treepack._cli.output import jsonable
from treepack._src import dtypes as _dtypes
from treepack._src import paths as _paths
from treepack._src.checkpoint import sources
from treepack._src.checkpoint.file import File, place_of
from treepack._src.checkpoint.npz import NpzReader
from treepack._src.checkpoint.reader import LazyArray, Reader
from treepack._src.checkpoint.safetensors import RepositoryReader, SafetensorsReader
from treepack._src.checkpoint.select import Renaming, twice, values_in
from treepack._src.options import Progress, Saved, Writing
from treepack._src.printable import printable
from treepack._src.pytree.state_dict import leaves_of, map_leaves, state_leaves
from treepack._src.restore.report import ABSENT
from treepack._src.saving import layers
from treepack._src.saving.layout import file_layout, plain_layout
from treepack._src.saving.safetensors import named, without_dtype, write_of
from treepack._src.storage.content import open_parts
from treepack._src.storage.deferred import Computed, Deferred, InContent
from treepack._src.storage.foreign import reference_text
from treepack._src.storage.npz import NPY, read_npz
from treepack._src.storage.safetensors import nested
from treepack._src.storage.write import pieces, replacing, save_layout
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


class Converted(Reader):
    """A file that `treepack.open` does not read, laid out anew."""


_FOREIGN = (Converted, NpzReader, SafetensorsReader, RepositoryReader)


def format_of(path: str | os.PathLike[str]) -> Format:
    """Returns the format that the suffix of a file stands for; by default msgpack."""
    return _SUFFIXES.get(Path(path).suffix.lower(), "msgpack")


# Reading


def state_of(file: File, value: int = 0, marks: core.Marks | None = None) -> State:
    """Returns the state of an open file, of a value in it, or of marked leaves.

    A part has no record. Leaves are compared with their checksums: arrays when they are copied,
    other leaves now, with the error in place of a damaged leaf.
    """
    place = place_of(file)
    if value:
        place = place.below(value, _paths.parts(place.catalog.path_of(value, 0)))

    def leaf(value: int, parts: list[str]) -> Any:
        try:
            return place.reader.undamaged_leaf(value, parts)
        except (CorruptionError, DecodeError) as error:
            return error

    # The record of a file in another format is made while the file is opened.
    record = None if isinstance(place.reader, _FOREIGN) else place.catalog.record
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
        if isinstance(node, Exception):
            raise node
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

    def below(node: Any, path: _paths.Trail) -> Any:
        if type(node) is dict:
            named = {}  # no comprehension: it would add a frame per level
            for name, child in node.items():
                named[name] = below(child, _paths.Trail(path, str(name)))
            return named
        if type(node) is list or type(node) is tuple:
            numbered = []
            for index, child in enumerate(node):
                numbered.append(below(child, _paths.Trail(path, str(index))))
            return numbered if type(node) is list else tuple(numbered)
        return cast(node, path)

    def cast(leaf: Any, path: _paths.Trail) -> Any:
        if not isinstance(leaf, (Deferred, np.ndarray)) or not _dtypes.is_float(leaf.dtype):
            return leaf
        content, size = _content(leaf), leaf.dtype.itemsize

        def flat_range(start: int, stop: int) -> np.ndarray:
            found = np.frombuffer(content.read_range(start * size, stop * size), leaf.dtype)
            made = np.empty(found.shape, dtype)
            _dtypes.cast(found, made, path, remedy="or choose a --dtype of a larger range")
            return made

        return Computed(leaf.shape, dtype, flat_range)

    return below(tree, _paths.Trail())


def _content(array: Any) -> core.Content:
    """Returns the bytes of an array in C order."""
    layout = core.lay_raw(b"", [array], snapshot=False)
    return core.Content.laid(layout, [])


def renamed(
    state: State,
    rename: Iterable[str],
    stack: Iterable[str],
    unstack: Iterable[str],
    transpose: Iterable[str],
) -> State:
    """Returns a state with other names and layers, without the record.

    Layers are stacked first, then leaves renamed, then split and transposed. `--unstack` and
    `--transpose` take the path of a leaf before or after renaming.

    Raises:
      ValueError: If an option has another form.
      TreepackError: If it matches nothing, or the arrays do not fit.
    """
    stacks, splits = _pairs("--stack", stack), _pairs("--unstack", unstack)
    turned = dict(map(_turned, transpose))
    names = _pairs("--rename", rename)
    if not (stacks or splits or turned or names):
        return state
    leaves = {str(path): leaf for path, leaf in state_leaves(state.tree, _paths.Trail(), ends=True)}
    stacked: dict[str, tuple[sources.Source, list[Any]]] = {}
    for path, pattern in stacks.items():
        source = sources.stack(pattern)
        sources.check_wildcards(path, source)
        for new, (one, found) in sources.resolve(path, source, leaves).items():
            arrays = [_array(leaves.pop(name), name) for name in found]
            kinds = [*dict.fromkeys(f"{array.dtype}{[*array.shape]}" for array in arrays)]
            if len(kinds) > 1:
                raise TreepackError(
                    f"{source}: the arrays have different shapes or dtypes: "
                    f"{' and '.join(kinds[:2])}"
                )
            if new in leaves:
                raise TreepackError(f"--stack: there is a leaf at {new} already")
            leaves[new] = stacked[new] = one, arrays
    new_names = Renaming(names or None, [*leaves], values=values_in(leaves))
    renaming = {path: new_names(path) for path in leaves}
    new_names.check(leaves, "file")

    def spread(path: str, source: sources.Source) -> dict[str, Any]:
        """Returns sources by new names, for a path before or after renaming."""
        sources.check_wildcards(path, source)
        found = sources.spread(path, source, renaming)
        if found:
            return {renaming[old]: one for old, one in found.items()}
        return sources.spread(path, source, {*renaming.values()}) or {path: source}

    ours: dict[str, Any] = {}
    orders: dict[str, Any] = {}
    for path, axes in turned.items():
        # The sources of writing revert those of reading.
        back = axes and tuple(sorted(range(len(axes)), key=axes.__getitem__))
        for new in spread(path, sources.transpose(path)):
            ours[new], orders[new] = sources.transpose(new, back), axes or True
    for path, (source, arrays) in stacked.items():
        ours.pop(renaming[path], None)
        axes = orders.get(renaming[path], False)
        leaves[path] = sources.SourceArray(dataclasses.replace(source, axes=axes), arrays)
    for path, pattern in splits.items():
        for new, source in spread(path, sources.unstack(pattern)).items():
            ours[new] = dataclasses.replace(source, axes=ours.get(new, source).axes)
    parts = [(tuple(_paths.parts(renaming[path])), leaf) for path, leaf in leaves.items()]
    for at, leaf in parts:
        if (path := _paths.text(at)) in ours:
            _array(leaf, path)
    if len({at for at, _ in parts}) < len(parts):
        raise TreepackError(f"--rename: choose other names; it maps {twice(renaming.items())}")
    tree: dict[str, Any] = {}
    for at, leaf in layers.renamed(parts, ours or None, snapshot=False):
        _paths.put(tree, at, leaf)
    return state._replace(tree=tree, record=None)


def _pairs(option: str, given: Iterable[str]) -> dict[str, str]:
    """Parses options of the form `ONE=OTHER`."""
    found: dict[str, str] = {}
    for text in given:
        one, equals, other = text.partition("=")
        if not (one and equals and other):
            raise ValueError(f"{option} takes two paths with = between them, got {text!r}")
        found[_paths.text(_paths.parts(one))] = other
    return found


def _turned(text: str) -> tuple[str, tuple[int, ...] | None]:
    """Parses an option of the form `PATH` or `PATH=AXES`."""
    if (found := re.fullmatch(r"(.+)=(\d+(?:,\d+)*)", text)) is None:
        return _paths.text(_paths.parts(text)), None
    axes = tuple(map(int, found[2].split(",")))
    if sorted(axes) != [*range(len(axes))]:
        raise ValueError(f"--transpose takes a permutation of all axes, got {text!r}")
    return _paths.text(_paths.parts(found[1])), axes


def _array(leaf: Any, path: str) -> LazyArray:
    if not isinstance(leaf, LazyArray):
        raise TreepackError(f"{path} is not an array: it has no layers and axes")
    return leaf


# Writing


def write_msgpack(
    state: State, path: str | os.PathLike[str], writing: Writing, progress: Progress = None
) -> None:
    """Writes a state in the form that the suffix of the file stands for.

    `.treepack` files have a record, a new one if necessary. `.msgpack` files have none, as flax
    writes them. Other files have a record if the source has one.
    """
    suffix = Path(Path(path).name.lower().removesuffix(".gz")).suffix
    is_plain = suffix == ".msgpack"  # structs of flax reject unknown keys
    record = None if is_plain else state.record
    if record is None and not is_plain and (suffix == ".treepack" or state.described):
        layout = file_layout(state.tree, Saved(metadata=state.metadata), writing)
    else:
        described = record is not None
        layout = plain_layout(
            state.tree,
            writing.align,
            structure=described,
            index=described,
            checksums=described and not writing.compress,
            record=record,
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
    if _dtypes.shown(array.dtype) != NPY:  # which has its header
        head = {
            "descr": np.lib.format.dtype_to_descr(array.dtype),
            "fortran_order": False,
            "shape": array.shape,
        }
        np.lib.format.write_array_header_1_0(file, head)
    file.writelines(pieces(_content(array)))


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
