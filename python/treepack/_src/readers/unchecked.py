from __future__ import annotations

from typing import Any

import treepack._core as core
from treepack._src.options import Status, Tell
from treepack._src.readers.reader import Reader, Verified

# As MAX_CHUNK_SIZE of flax: longer arrays have no form in one piece.
_CHUNK_BYTES = 2**30


def layout_of(
    tree: Any, metadata: Any, *, gaps: bool = False, state_dict: bool = True
) -> core.Layout:
    return core.walk(
        tree,
        state_dict=state_dict,
        align=1,
        max_chunk_size=_CHUNK_BYTES,
        structure=True,
        metadata=None if metadata is None else core.encode_value(metadata),
        index=True,
        gaps=gaps,
    )


class UncheckedReader(Reader):
    is_summed = False

    def unverified(self) -> list[int]:
        return [] if self.damage is None else self.catalog.leaf_values(0)

    def verify(self, *, threads: int | None, progress: Tell | None) -> Verified:
        statuses: dict[int, Status] = dict.fromkeys(self.catalog.leaf_values(0), "unchecked")
        if self.damage is None:  # otherwise the name of a dtype may be damaged, too
            statuses.update(dict.fromkeys(self.without_dtype(), "unreadable"))
        return statuses, self.damage
