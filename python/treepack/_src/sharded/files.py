from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import treepack._core as core
from treepack._src.printable import printable, warn
from treepack._src.readers.info import totals
from treepack._src.readers.reader import dtype_and_shape
from treepack._src.registry.static import metadata_in
from treepack._src.storage.address import Address

# The name of the manifest, which makes a directory a checkpoint.
MANIFEST = "manifest.treepack"

DIGEST_BYTES = 16

# The names of files with shards.
NAME = r"[0-9a-f]{8}-\d{5,}\.treepack"
FILE = re.compile(NAME)

# The name of the first file of a process, with its number; further files have longer names.
_FILE_OF = re.compile(r"[0-9a-f]{8}-(\d{5,9})\.treepack")


def save_of(name: str) -> str:
    return name.partition("-")[0]


def process_of(name: str) -> int:
    match = _FILE_OF.fullmatch(name)
    return -1 if match is None else int(match[1])


class ShardFile:
    def __init__(self, catalog: core.Catalog):
        self._catalog = catalog
        about = metadata_in(catalog.record)
        self.about: dict[str, Any] = about if isinstance(about, dict) else {}

    @property
    def nbytes(self) -> int:
        return totals(self._catalog, 0)[1]

    def digests(self) -> dict[str, bytes]:
        record = self._catalog.record
        leaves = [path for path, _ in self._catalog.leaves(0)]
        stored = None if record is None else core.record_digests(record)
        if stored is None or len(stored) != DIGEST_BYTES * len(leaves):
            return {}
        return dict(zip(leaves, self.split(stored), strict=True))

    @staticmethod
    def split(digests: bytes) -> list[bytes]:
        starts = range(0, len(digests), DIGEST_BYTES)
        return [digests[at : at + DIGEST_BYTES] for at in starts]

    def shards(self) -> Iterator[tuple[str, tuple[str, tuple[int, ...]], bytes]]:
        digests = self.digests()
        for path, value in self._catalog.leaves(0) if digests else ():
            yield path, dtype_and_shape(self._catalog.leaf(value)[1]), digests[path]


def warn_of_part(source: Any) -> None:
    if isinstance(source, Address) and FILE.fullmatch(os.path.basename(source)):  # noqa: PTH119
        warn(
            f"{printable(source.shown)!r} is one file of a sharded checkpoint, with parts of its "
            "arrays: pass its directory, or if the manifest is lost treepack.open(directory, "
            "salvage=True)"
        )
