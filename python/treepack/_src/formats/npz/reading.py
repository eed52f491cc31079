"""Archives of `numpy.savez` as checkpoints.

headers ──▶ nested dicts of arrays ──▶ layout ──▶ content ──▶ catalog, as of any file
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import treepack._core as core
from treepack._src import dtypes as _dtypes
from treepack._src import paths as _paths
from treepack._src.formats import SEPARATOR
from treepack._src.formats.named import nested
from treepack._src.formats.npz.archive import Refused, StoredMember, read_npz
from treepack._src.formats.npz.mending import mend
from treepack._src.formats.numpy_arrays import Encoded
from treepack._src.options import Status, Tell
from treepack._src.pytree.state_dict import leaves_of
from treepack._src.readers.reader import LazyArray, Reader, Verified
from treepack._src.readers.unchecked import layout_of
from treepack._src.storage.content import Openable, Opened
from treepack._src.storage.fetch import RemoteRange, fetching_arrays
from treepack.errors import SALVAGE_ADVICE, CorruptionError, DecodeError


def _read(opened: Opened, max_size: int | None, *, salvage: bool) -> tuple[dict[str, Any], Opened]:
    try:
        arrays = read_npz(opened, max_size)
        if not (salvage and arrays and _are_refused(arrays)):
            return arrays, opened
        mended = mend(opened.content)
        again = arrays if mended is None else read_npz(Opened(mended.content), max_size)
        if _are_refused(again):
            return arrays, opened
        damage = "its directory has wrong places of arrays"
    except DecodeError as error:
        mended = mend(opened.content) if salvage else None
        if mended is None:
            raise
        again = read_npz(Opened(mended.content), max_size)
        damage = f"{error.reason.removesuffix(SALVAGE_ADVICE)}{mended.end}"
    if opened.damage is not None:
        damage = f"{opened.damage}; {damage}"
    return again, opened._replace(damage=damage)


def _are_refused(arrays: dict[str, Any]) -> bool:
    return all(isinstance(array, Refused) for array in arrays.values())


class NpzReader(Reader):
    format = "npz of NumPy"
    has_types = False
    is_summed = True
    bytes_after = 0  # the headers around arrays are in memory

    def __init__(self, source: Openable, opened: Opened, **options: Any):
        arrays, opened = _read(opened, options["max_size"], salvage=options.get("salvage", False))
        has_paths = any("/" in name for name in arrays) and not any("." in name for name in arrays)
        self.separator = "/" if has_paths else SEPARATOR
        laid = core.Content.laid(layout_of(nested(arrays, self.separator), None), [])
        # Strings are not visited: one member may have millions.
        visited = {name: None if type(leaf) is list else leaf for name, leaf in arrays.items()}
        leaves = leaves_of(nested(visited, self.separator), ())
        self._arrays = {
            _paths.text(parts): leaf
            for parts, leaf in leaves
            if isinstance(leaf, (StoredMember, Encoded))
        }
        super().__init__(source, opened._replace(content=laid, blocks=None), **options)

    def close(self) -> None:
        super().close()
        self._arrays = {}

    def unverified(self) -> list[int]:
        """None: each member has its CRC."""
        return []

    def ahead(self, array: LazyArray, *, lays: bool) -> Iterable[RemoteRange]:
        saved = self._arrays.get(array.path)
        return () if saved is None else saved._ahead(lays=lays)

    def fetching(
        self, value: int = 0, marks: core.Marks | None = None
    ) -> AbstractContextManager[None]:
        leaves = (
            leaf for leaf in self.catalog.leaf_values(value) if marks is None or leaf in marks
        )
        saved = (self._arrays.get(self.catalog.path_of(leaf, 0)) for leaf in leaves)
        return fetching_arrays(saved)

    def unknown(self, value: int) -> list[int]:
        catalog = self.catalog
        paths = ((leaf, catalog.path_of(leaf, 0)) for leaf in catalog.leaf_values(value))
        return [leaf for leaf, path in paths if isinstance(self._arrays.get(path), Refused)]

    def verify(self, *, threads: int | None, progress: Tell | None) -> Verified:
        statuses: dict[int, Status] = {}
        done, total = 0, sum(array.nbytes for array in self._arrays.values())
        with self.fetching():
            for value in self.catalog.leaf_values(0):
                statuses[value] = "ok"
                array = self._arrays.get(self.catalog.path_of(value, 0))
                if array is None:  # a string, which was compared when it was read
                    continue
                try:
                    array.read()
                except CorruptionError:
                    statuses[value] = "corrupt"
                except _dtypes.UnreadableError:
                    statuses[value] = "unreadable"
                done += array.nbytes
                if progress is not None:
                    progress(done, total)
        return statuses, self.damage
