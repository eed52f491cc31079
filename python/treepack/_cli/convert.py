"""Converts files between msgpack and formats of other libraries, one array at a time.

A source is represented by its *state*: nested dicts with string keys, whose arrays are read when
they are written. So files may be larger than memory.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import treepack._core as core
from treepack._cli.output import jsonable
from treepack._src import dtypes as _dtypes
from treepack._src import paths as _paths
from treepack._src.checkpoint import sources
from treepack._src.checkpoint.file import File, place_of
from treepack._src.checkpoint.reader import LazyArray, Reader
from treepack._src.checkpoint.select import Renaming, twice, values_in
from treepack._src.formats import Conversion, Format, Remedies
from treepack._src.options import Progress, Saved, Writing
from treepack._src.printable import printable
from treepack._src.pytree.state_dict import leaves_of, map_leaves, state_leaves
from treepack._src.restore.report import ABSENT
from treepack._src.saving import layers
from treepack._src.saving.layout import file_layout, plain_layout
from treepack._src.storage.deferred import Computed, Deferred, elements_of
from treepack._src.storage.foreign import reference_text
from treepack._src.storage.write import save_layout
from treepack.errors import CorruptionError, DecodeError, TreepackError


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

    separator = ""


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

    # The record of arrays with names is made while their file is opened.
    record = place.catalog.record if place.reader.separator is None else None
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
    paths: dict[str, list[str]] = {}

    def look(node: Any, parts: tuple[str, ...]) -> None:
        if isinstance(node, Exception):
            raise node
        text = reference_text(node)
        if text is not None:
            paths.setdefault(text, []).append(_paths.text(parts))
        elif isinstance(node, (dict, list)):
            for key, child in node.items() if isinstance(node, dict) else enumerate(node):
                look(child, (*parts, str(key)))

    look(state.tree, ())
    return paths


def listed(paths: list[str]) -> str:
    """Returns the first of these paths as text."""
    more = ", ..." if len(paths) > _MOST_PATHS else ""
    return f"{', '.join(map(printable, paths[:_MOST_PATHS]))}{more}"


# The most paths in a message.
_MOST_PATHS = 5


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
        content, size = elements_of(leaf), leaf.dtype.itemsize

        def flat_range(start: int, stop: int) -> np.ndarray:
            elements = np.frombuffer(content.read_range(start * size, stop * size), leaf.dtype)
            target = np.empty(elements.shape, dtype)
            _dtypes.cast(elements, target, path, remedy="or choose a --dtype of a larger range")
            return target

        return Computed(leaf.shape, dtype, flat_range)

    return below(tree, _paths.Trail())


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
        for new, (stacking, paths) in sources.resolve(path, source, leaves).items():
            arrays = [_array(leaves.pop(name), name) for name in paths]
            kinds = [*dict.fromkeys(f"{array.dtype}{[*array.shape]}" for array in arrays)]
            if len(kinds) > 1:
                raise TreepackError(
                    f"{source}: the arrays have different shapes or dtypes: "
                    f"{' and '.join(kinds[:2])}"
                )
            if new in leaves:
                raise TreepackError(f"--stack: there is a leaf at {new} already")
            leaves[new] = stacked[new] = stacking, arrays
    new_names = Renaming(names or None, [*leaves], values=values_in(leaves))
    renaming = {path: new_names(path) for path in leaves}
    new_names.check(leaves, "file")

    def spread(path: str, source: sources.Source) -> dict[str, Any]:
        """Returns sources by new names, for a path before or after renaming."""
        sources.check_wildcards(path, source)
        matches = sources.spread(path, source, renaming)
        if matches:
            return {renaming[old]: match for old, match in matches.items()}
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
    pairs: dict[str, str] = {}
    for text in given:
        one, equals, other = text.partition("=")
        if not (one and equals and other):
            raise ValueError(f"{option} takes two paths with = between them, got {text!r}")
        pairs[_paths.text(_paths.parts(one))] = other
    return pairs


def _turned(text: str) -> tuple[str, tuple[int, ...] | None]:
    """Parses an option of the form `PATH` or `PATH=AXES`."""
    if (match := re.fullmatch(r"(.+)=(\d+(?:,\d+)*)", text)) is None:
        return _paths.text(_paths.parts(text)), None
    axes = tuple(map(int, match[2].split(",")))
    if sorted(axes) != [*range(len(axes))]:
        raise ValueError(f"--transpose takes a permutation of all axes, got {text!r}")
    return _paths.text(_paths.parts(match[1])), axes


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


def write_arrays(
    state: State,
    path: str,
    format: Format,
    separator: str,
    max_shard_size: str | None = None,
    progress: Progress = None,
) -> None:
    """Writes the arrays of a state in a format of another library; numbers become arrays.

    With `max_shard_size`, it writes a directory of files of at most this size.

    Raises:
      TreepackError: If two arrays have the same name, or the format cannot hold a leaf.
    """
    metadata = None if state.metadata is None else _text_map(state.metadata)
    conversion = Conversion(metadata, separator, max_shard_size, _REMEDIES)
    format.write(path, _arrays(state.tree), conversion)(progress)


_REMEDIES = Remedies("choose another one with --sep", "convert it with --dtype")


def _text_map(metadata: Any) -> dict[str, str]:
    """Returns metadata as a map of strings to strings, with other values as JSON."""
    if not isinstance(metadata, dict) or not all(isinstance(key, str) for key in metadata):
        metadata = {"metadata": metadata}
    return {
        key: value if isinstance(value, str) else json.dumps(jsonable(value))
        for key, value in metadata.items()
    }


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
