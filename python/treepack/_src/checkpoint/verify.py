from __future__ import annotations

import contextlib
import os
from collections import abc
from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from typing import TYPE_CHECKING, Any, NamedTuple

import treepack._core as core
from treepack._src import paths as _paths
from treepack._src.advice import advised, hint_for, unknown_attribute
from treepack._src.checkpoint.opening import open_reader
from treepack._src.options import Progress, Status, StorageOptions, progress_bar
from treepack._src.paths import PathBudget
from treepack._src.printable import path_end, shortened
from treepack._src.sharded.reading import unless_replaced
from treepack._src.storage.address import Address
from treepack._src.storage.content import Openable, Opened
from treepack._src.storage.naming import naming
from treepack.errors import (
    MissingPathError,
    NewerVersionError,
    TreepackError,
)


class Statuses(Mapping[str, Status]):
    """Maps paths, computed on demand, since together they may be much larger than the file."""

    def __init__(self, catalog: core.Catalog, statuses: dict[int, Status]):
        self._catalog = catalog
        self._statuses = statuses

    def __getitem__(self, path: str) -> Status:
        if isinstance(path, str):
            value = self._catalog.find(_paths.parts(path), 0)
            if value is not None and value in self._statuses:
                return self._statuses[value]
            for leaf_path, status in self.items():  # lookups do not find the first of equal keys
                if leaf_path == path:
                    return status
            near = _paths.suggest(path, self)
            raise MissingPathError(path, hint="" if near is None else f"is it {near!r}?")
        raise KeyError(path)

    def __iter__(self) -> Iterator[str]:
        return (path for path, _ in PathBudget().all(self._catalog.leaves(0)))

    def __len__(self) -> int:
        return len(self._statuses)

    def values(self) -> ValuesView[Status]:
        return self._statuses.values()

    def items(self) -> ItemsView[str, Status]:
        return _Items(self)

    def with_status(self, status: Status) -> list[str]:
        values = [value for value, leaf_status in self._statuses.items() if leaf_status == status]
        budget = PathBudget()
        return [budget.text(self._catalog.path_of(value, 0)) for value in values]

    def __repr__(self) -> str:
        parts = (f"{path_end(path)!r}: {status!r}" for path, status in self.items())
        return f"{{{shortened(parts, len(self))}}}"

    def __reduce__(self) -> tuple[type[dict[str, Status]], tuple[dict[str, Status]]]:
        return dict, (dict(self.items()),)


class _Items(ItemsView[str, Status]):
    _mapping: Statuses

    def __iter__(self) -> Iterator[tuple[str, Status]]:
        statuses = self._mapping
        for path, value in PathBudget().all(statuses._catalog.leaves(0)):
            yield path, statuses._statuses[value]


class Verification(NamedTuple):
    """The result of `verify`.

    Attributes:
      leaves: The status of each leaf by path: `"ok"`, `"corrupt"`, `"unchecked"`, or
        `"unreadable"` for unsupported leaves, such as pickled objects in npz.
      damage: A description of damage outside of leaves, or `None`: a truncated file, or damage to
        its record, to the bytes before it, or to the gzip stream. For a file of another format, its
        format; for a patch, the problem with its base.
      newer: Why only a newer version of treepack can read the file, which need not be damaged.

    Examples:
      >>> import tempfile, treepack
      >>> path = f"{tempfile.mkdtemp()}/state.treepack"
      >>> treepack.save(path, {"step": 7})
      >>> result = treepack.verify(path)
      >>> result.ok, dict(result.leaves), result.damage
      (True, {'step': 'ok'}, None)
    """

    leaves: abc.Mapping[str, Status]  # `treepack.Mapping` hides the name in the public module
    damage: str | None
    newer: str | None = None

    def __repr__(self) -> str:
        fields = (f"{name}={getattr(self, name)!r}" for name in ("ok", *self._fields))
        return f"Verification({', '.join(fields)})"

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str):
            raise TypeError(f"{index!r} is no index: use leaves[path]")
        return tuple.__getitem__(self, index)

    def __bool__(self) -> bool:
        """Returns `ok`."""
        return self.ok

    @property
    def ok(self) -> bool:
        """Whether the whole file could be read, and no damage was found.

        Leaves without checksums, as in files of other libraries, are `"unchecked"`.
        """
        is_known = self.damage is None and self.newer is None
        return is_known and {"corrupt", "unreadable"}.isdisjoint(self.leaves.values())

    @property
    def corrupt(self) -> list[str]:
        """The paths of the damaged leaves."""
        return _with_status(self.leaves, "corrupt")

    @property
    def unreadable(self) -> list[str]:
        """The paths of the leaves that treepack does not support; they may be undamaged."""
        return _with_status(self.leaves, "unreadable")

    @property
    def unchecked(self) -> list[str]:
        """The paths of the leaves without checksums."""
        return _with_status(self.leaves, "unchecked")


def _unknown(verification: Verification, name: str) -> Any:
    raise unknown_attribute(verification, name, hint_for(Verification, name))


if not TYPE_CHECKING:  # type checkers would accept any attribute; a named tuple has no other base
    Verification.__getattr__ = _unknown


def _with_status(leaves: Mapping[str, Status], status: Status) -> list[str]:
    if isinstance(leaves, Statuses):
        return leaves.with_status(status)
    return [path for path, leaf_status in leaves.items() if leaf_status == status]


@advised
def verify(
    source: Openable | os.PathLike[str],
    *,
    max_size: int | None = None,
    threads: int | None = None,
    progress: Progress = None,
    storage_options: StorageOptions = None,
) -> Verification:
    """Compares a file with its checksums.

    Files of `save` have a checksum for each leaf, also within sharded checkpoints. Gzip files of
    treepack have one for each block, other gzip files one in total, npz one for each array. Of
    files without checksums, such as flax's and results of `dumps`, the headers are read, and leaves
    are `"unchecked"`.

    Args:
      source: See `open`.
      max_size: See `open`.
      threads: See `save`.
      progress: See `save`.
      storage_options: See `save`.

    Returns:
      The status of each leaf. Damage is reported, not raised; so is a file of a newer version of
      treepack. Without damage, `load`, `open`, and gzip for a gzip file, can read the whole file,
      provided that the types in it accept their static data.

    Raises:
      OSError: If the file cannot be read.
      DecodeError: If a directory is not a checkpoint, or of several.
      TreepackError: If gzip decompresses to more than `max_size` bytes.

    Examples:
      >>> import numpy as np, tempfile, treepack
      >>> path = f"{tempfile.mkdtemp()}/model.treepack"
      >>> treepack.save(path, {"w": np.zeros(1000), "b": np.zeros(10)})
      >>> treepack.verify(path).leaves
      {'w': 'ok', 'b': 'ok'}
      >>> with open(path, "r+b") as file:
      ...     _ = file.seek(5000), file.write(b"?")
      >>> treepack.verify(path).corrupt
      ['w']
    """
    source = Address.or_data(source, storage_options)

    def attempt() -> Verification:
        with (
            contextlib.closing(open_reader(source, salvage=True, max_size=max_size)) as reader,
            progress_bar(progress, "verify") as tell,
        ):
            catalog = reader.catalog
            newer = catalog.damage if catalog.is_newer else None
            if newer is None:
                statuses, damage = reader.verify(threads=threads, progress=tell)
            else:
                statuses, damage = dict.fromkeys(catalog.leaf_values(0), "unchecked"), None
            return Verification(Statuses(catalog.without_content(), statuses), damage, newer)

    try:
        with naming(source):
            return unless_replaced(attempt)
    except NewerVersionError as error:  # raised for a manifest
        return Verification({}, None, error.reason)
    except (TreepackError, FileNotFoundError) as error:
        if isinstance(error, TreepackError):
            if error.means_damage:
                return Verification({}, error.reason)
        elif Opened.record_of_patch(source, max_size) is not None:  # without its base
            return Verification({}, f"{error.strerror}: {error.filename!r}")
        raise
