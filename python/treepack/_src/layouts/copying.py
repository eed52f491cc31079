"""Copies open files, or parts of them: `save` of a `File` or `Tree`.

    File, Tree ──▶ Copy ──▶ layout of msgpack, or arrays by their paths for another format

Arrays are read when they are written, since files may be larger than memory.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np

import treepack._core as core
from treepack._src import dtypes as _dtypes
from treepack._src import paths as _paths
from treepack._src.arrays.deferred import Computed, Deferred, elements_of
from treepack._src.checkpoint.file import File, Tree
from treepack._src.checkpoint.select import chosen, ends_of
from treepack._src.formats import Format, Leaves
from treepack._src.layouts.layout import Encoding
from treepack._src.leaves.absent import ABSENT
from treepack._src.leaves.references import reference_text
from treepack._src.options import Progress, Saved, Writing, progress_bar
from treepack._src.printable import count_text, jsonable, printable
from treepack._src.pytree.state_dict import leaves_of, map_leaves
from treepack._src.readers.reader import LazyArray, Place, Reader
from treepack._src.storage.address import Address
from treepack._src.storage.fetch import fetching_arrays
from treepack._src.storage.naming import naming
from treepack.errors import (
    SALVAGE_ADVICE,
    CorruptionError,
    DecodeError,
    NewerVersionError,
    TreepackError,
)


class Salvage(NamedTuple):
    """The intact rest of a file that is open for salvage.

    Attributes:
      unchecked: The number of intact leaves without checksums.
      texts: Descriptions of lost leaves and of those that are not verified.
    """

    leaves: int
    unchecked: int
    is_damaged: bool
    texts: list[str]

    def __str__(self) -> str:
        more = self.is_damaged and self.unchecked
        unchecked = f", {self.unchecked} of them without checksums" if more else ""
        return f"saved {count_text(self.leaves)}{unchecked}"


class Copy(NamedTuple):
    """The content of an open file, or of a part of it.

    Attributes:
      tree: The state; a damaged leaf is the error.
      record: The record with the bytes after it; `None` for a part.
      described: Whether the file has a record.
    """

    source: Tree
    reader: Reader
    tree: Any
    record: bytes | None
    described: bool
    name: str | None = None
    salvage: Salvage | None = None
    has_metadata: bool = True

    @classmethod
    def of(cls, tree: Tree, path: str = _paths.ROOT, progress: Progress = None) -> Copy:
        place = tree._at(path)
        with naming(place.reader.given):
            if place.reader.salvages and not place.value:
                return _salvaged(tree, place, progress)
            return _read(tree, place)

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        try:
            yield
        except (CorruptionError, DecodeError) as error:
            reader = self.reader.original
            with naming(reader.given):
                if isinstance(error, _dtypes.UnreadableError):
                    raise
                statuses, _ = reader.verify(threads=None, progress=None)
                corrupt = [value for value, status in statuses.items() if status == "corrupt"]
                if not corrupt:
                    raise
                raise CorruptionError(
                    f"{reader.listed(corrupt)} damaged: `treepack salvage` copies the intact leaves"
                ) from error

    def chosen(self, select: Any, exclude: Any) -> Copy:
        if select is None and exclude is None:
            return self
        with naming(self.reader.given):
            tree = chosen(self.tree, select, exclude, where="file")
        return self._replace(tree=tree, record=None)

    def check(self, place: Address) -> None:
        """Checks that all leaves are intact and not references to other files.

        Raises a ValueError for the place of the file itself, or of its base.
        """
        for read in (self.reader.given, self.reader.base):
            if isinstance(read, Address) and read.real() == place.real():
                raise ValueError(
                    f"the target {place.shown} is the file to read: pass another, then move it"
                )
        with naming(self.reader.given):
            for text, paths in self.references().items():
                raise TreepackError(
                    f"not all values are in the file: {_listed(paths)} are {text}. exclude= leaves "
                    "them out"
                )

    @staticmethod
    def check_for_flax(tree: Any) -> None:
        # A walk takes as long as a save of small arrays.
        for parts, leaf in leaves_of(tree, ()) if _dtypes.has_packed() else ():
            is_array = isinstance(leaf, (Deferred, np.ndarray))
            if is_array and _dtypes.is_packed(leaf.dtype) and leaf.dtype.metadata:
                elements_of(leaf).read_range(0, min(leaf.nbytes, 1))  # may raise why
                text = f"{printable(_paths.text(parts))}: flax cannot read dtype"
                remedy = "leave it out with exclude=, or choose .treepack"
                raise TreepackError(f"at {text} {_dtypes.shown(leaf.dtype)}: {remedy}")

    def references(self) -> dict[str, list[str]]:
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

        look(self.tree, ())
        return paths

    def cast(self, dtype: np.dtype[Any] | None) -> Copy:
        if dtype is None:
            return self
        with self.fetching(lays=True):
            return self._replace(tree=_cast(self.tree, dtype))

    def layout(self, path: Address, writing: Writing) -> core.Layout:
        """Lays out a file of msgpack in the form of its suffix.

        `.treepack` files have a record, `.msgpack` files none; others have one if the source has.
        """
        is_ours = path.has_suffix(".treepack")
        if path.has_flax_suffix:
            self.check_for_flax(self.tree)
        # Structs of flax reject unknown keys.
        is_described = not path.has_flax_suffix and (is_ours or self.described)
        if is_described and self.record is None:
            return Encoding.file(self.tree, Saved(metadata=self._metadata()), writing)
        encoding = Encoding(
            align=writing.align,
            structure=is_described,
            index=is_described,
            checksums=is_described and not writing.compress,
            record=self.record if is_described else None,
            threads=writing.threads,
        )
        return encoding.plain(self.tree)

    def fetching(self, *, lays: bool = False) -> AbstractContextManager[None]:
        return fetching_arrays((leaf for _, leaf in leaves_of(self.tree, ())), lays=lays)

    def exported(self, format: Format) -> tuple[Leaves, Mapping[str, str] | None]:
        tree = self.tree
        if format.separators and self.name is not None and not isinstance(tree, (dict, list)):
            tree = {self.name: tree}
        metadata = self._metadata()
        return _arrays(tree), None if metadata is None else _texts(metadata)

    def _metadata(self) -> Any:
        if not isinstance(self.source, File) or self.name is not None or not self.has_metadata:
            return None
        return self.source.metadata


def _read(tree: Tree, place: Place, marks: core.Marks | None = None) -> Copy:
    def leaf(value: int, parts: list[str]) -> Any:
        try:
            saved = place.reader.leaf(value, parts)
            if not isinstance(saved, LazyArray):  # which is compared when it is copied
                place.reader.compare(value, parts)
            return saved
        except (CorruptionError, DecodeError) as error:
            return error

    record = place.catalog.record
    state = place.state(leaf, marks)
    if marks is not None:
        state = map_leaves(lambda leaf: leaf, state, ABSENT)
    return Copy(
        tree,
        place.reader,
        {} if state is ABSENT else state,
        None if place.value or marks is not None else record,
        # The record of arrays with names is made while their file is opened.
        record is not None and place.reader.separator is None,
        place.parts[-1] if place.parts else None,
    )


# The most paths in a message.
_MOST_PATHS = 5


def _listed(paths: list[str]) -> str:
    more = ", ..." if len(paths) > _MOST_PATHS else ""
    return f"{', '.join(map(printable, paths[:_MOST_PATHS]))}{more}"


def _cast(tree: Any, dtype: np.dtype[Any]) -> Any:
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
            _dtypes.cast(elements, target, path, remedy="or choose a dtype= of a larger range")
            return target

        ranges: Callable[[], Iterable[Any]] = tuple
        if isinstance(leaf, Deferred):
            ranges = functools.partial(leaf._ahead, lays=False)
        return Computed(leaf.shape, dtype, flat_range, ranges)

    return below(tree, _paths.Trail())


def _texts(metadata: Any) -> dict[str, str]:
    if not isinstance(metadata, dict) or not all(isinstance(key, str) for key in metadata):
        metadata = {"metadata": metadata}
    return {
        key: value if isinstance(value, str) else json.dumps(jsonable(value))
        for key, value in metadata.items()
    }


def _arrays(tree: Any) -> Leaves:
    for parts, leaf in leaves_of(tree, ()):
        if leaf is None:
            continue
        if isinstance(leaf, (bool, int, float, complex, np.generic)):
            leaf = np.asarray(leaf)  # a 0-d array
        if not isinstance(leaf, (Deferred, np.ndarray)):
            raise TreepackError(
                f"at {printable(_paths.text(parts))}: expected an array, found "
                f"{type(leaf).__name__}: leave it out with exclude="
            )
        yield parts, leaf


def _salvaged(tree: Tree, place: Place, progress: Progress) -> Copy:
    reader, catalog = place.reader, place.catalog
    if catalog.is_newer:
        raise NewerVersionError(str(catalog.damage))
    with progress_bar(progress, "verify") as tell:
        statuses, damage = reader.verify(threads=None, progress=tell)
    unreadable = {value for value, status in statuses.items() if status == "unreadable"}
    lost = unreadable | {value for value, status in statuses.items() if status == "corrupt"}
    lost.update(*reader.lists_of(lost))
    texts = [
        f"left out {'an unreadable' if value in unreadable else 'a damaged'} leaf: "
        f"{catalog.path_of(value, 0)}"
        for value in statuses
        if value in lost
    ]
    leaves = len(statuses) - len(texts)
    if damage is not None:
        texts.insert(0, f"damaged: {damage.replace(SALVAGE_ADVICE, '')}")
    marks = catalog.mark(set(range(catalog.values)) - lost) if lost else None
    copy = _read(tree, place, marks)
    if reader.damaged_record() is not None:
        copy = copy._replace(record=None)
    try:
        copy._metadata()
    except (CorruptionError, DecodeError) as error:
        texts.append(f"left out the metadata: {error}")
        copy = copy._replace(record=None, has_metadata=False)
    if references := copy.references():
        for text, paths in references.items():
            texts.append(f"left out, as not in the file: {_listed(paths)} are {text}")
        copy = copy.chosen(None, [path for paths in references.values() for path in paths])
        leaves = len([*ends_of(copy.tree)])
    unchecked = min(leaves, sum(status == "unchecked" for status in statuses.values()))
    salvage = Salvage(leaves, unchecked, bool(texts), texts)
    unverified = [value for value in reader.unverified() if value not in lost] if texts else []
    if unverified:
        texts.append(f"{reader.listed(unverified)} not verified, for lack of checksums")
    return copy._replace(salvage=salvage)
