"""Layouts that stand for files of other formats, whose arrays are read where they lie."""

from __future__ import annotations

from typing import Any

import treepack._core as core
from treepack._src import dtypes as _dtypes
from treepack._src.checkpoint.reader import Reader
from treepack._src.options import Status

# As MAX_CHUNK_SIZE of flax: longer arrays have no form in one piece.
_CHUNK_BYTES = 2**30


def layout_of(tree: Any, metadata: Any) -> core.Layout:
    """Lays out a tree of arrays that are read where they lie."""
    return core.walk(
        tree,
        state_dict=True,
        align=1,
        max_chunk_size=_CHUNK_BYTES,
        structure=True,
        metadata=None if metadata is None else core.encode_value(metadata),
        index=True,
    )


def unchecked(reader: Reader) -> tuple[dict[int, Status], str | None]:
    """Returns the result of `Reader.verify` for a file without checksums: all are unchecked."""
    lacking = (it for it in reader.catalog.dtypes if _dtypes.resolve(it.encode()) is None)
    damage = reader.damage or next(map(_dtypes.unsupported, lacking), None)
    return dict.fromkeys(reader.catalog.leaf_values(0), "unchecked"), damage
