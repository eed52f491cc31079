"""Chooses the reader of a file or directory."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Literal

from treepack._src.checkpoint.alone import ShardsReader
from treepack._src.checkpoint.npz import NpzReader
from treepack._src.checkpoint.orbax import OrbaxReader
from treepack._src.checkpoint.reader import DamagedFileError, Reader
from treepack._src.checkpoint.safetensors import RepositoryReader, SafetensorsReader
from treepack._src.checkpoint.sharded import ShardedReader
from treepack._src.checkpoint.shards import FILE, MANIFEST
from treepack._src.options import check
from treepack._src.storage.content import Openable, Opened, open_parts
from treepack._src.storage.entries import exists
from treepack._src.storage.foreign import ORBAX_STEP, other_format
from treepack._src.storage.orbax import item_in
from treepack._src.storage.place import joined
from treepack._src.storage.safetensors import SUFFIXES, has_suffix
from treepack.errors import (
    CorruptionError,
    DecodeError,
    NewerVersionError,
    NoManifestError,
    TreepackError,
)


def open_reader(
    source: Openable,
    *,
    is_directory: bool = False,
    salvage: bool | Literal["alone"] = False,
    max_size: int | None = None,
    base: Any = None,
    place: Openable | None = None,
    **options: Any,
) -> Reader:
    """Opens a file, or the directory of a sharded checkpoint, of safetensors or of Orbax.

    See `treepack.open`. With `is_directory` the source is known to be a directory. For `base`
    and `place` see `open_parts`. With `salvage`, shards whose manifest is damaged are opened;
    with `"alone"`, also shards without one.
    """
    check("max_size", max_size)
    options |= {"salvage": bool(salvage), "max_size": max_size}
    if not is_directory:
        with contextlib.suppress(IsADirectoryError):
            # A file of treepack is first read at its end.
            if has_suffix(source, SUFFIXES):
                return RepositoryReader(source, **options)
            found = open_parts(source, base=base, place=place, **options)
            other = _other(found) if salvage else None
            if other is None:
                try:
                    return Reader(source, found, **options)
                except DecodeError:
                    if (other := _other(found)) is None:
                        raise
            return other(source, found, **options)
    try:
        return ShardedReader(source, **options)
    except NewerVersionError:
        raise
    except NoManifestError as error:
        if any(has_suffix(name, SUFFIXES) for name in error.names):
            return RepositoryReader(source, **options)
        if error.is_above:
            if (path := _only_item(source, error.names)) is None:
                raise
            return ShardedReader(path, **options)
        item = item_in(source)
        if item is None:
            if salvage == "alone" and any(map(FILE.fullmatch, error.names)):
                return ShardsReader(source, lost=f"{MANIFEST} is missing", **options)
            raise
    except DecodeError as error:
        if not salvage:
            raise
        with contextlib.suppress(CorruptionError):
            return ShardsReader(source, lost=error.reason, **options)
        raise DamagedFileError(error.reason, error.offset) from error
    return OrbaxReader(item, **options)


def _only_item(source: Any, names: Sequence[str]) -> str | None:
    """Returns the item of `treepack.orbax` in a step of Orbax's manager, if it is the only one."""
    if ORBAX_STEP.isdisjoint(names):
        return None
    paths = [joined(source, name) for name in names]
    found = [path for path in paths if exists(joined(path, MANIFEST))]
    return found[0] if len(found) == 1 else None


def _other(found: Opened) -> type[Reader] | None:
    """Returns the reader of data in another format, or `None`."""
    with contextlib.suppress(TreepackError):
        return _READERS.get(other_format(found.content))
    return None


_READERS: dict[str | None, type[Reader]] = {"safetensors": SafetensorsReader, "npz": NpzReader}
