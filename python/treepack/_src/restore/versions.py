"""Upgrades nodes of an older version of their type for templates of the current version.

When a template needs their state, which is marked, the node is rebuilt without a template.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import treepack._core as core
from treepack._src.interop import jax as _jax
from treepack._src.leaves.absent import ABSENT
from treepack._src.paths import Trail
from treepack._src.pytree.state_dict import map_leaves, to_state_dict
from treepack._src.restore.report import state_leaves
from treepack.errors import TreepackError

# The record of a structure, and the position of a tree in it; see `_core.assemble`.
RecordAt = tuple[bytes, list[tuple[int, int]]]


class Older(dict[str, Any]):
    """The state of a node in an older version, with its record.

    `upgraded` caches the current one: restores may walk twice, and compare leaves by identity.
    """

    record: RecordAt
    upgraded: Any = None

    def upgrade(self, target: Any, path: Trail, *, keeps_missing: bool) -> Any:
        if self.upgraded is None:
            with ABSENT.as_default(keeps_missing):
                self.upgraded = self._upgraded(target, path)
        return self.upgraded

    def _upgraded(self, target: Any, path: Trail) -> Any:
        absent = [leaf is ABSENT for _, leaf in state_leaves(self, Trail())]
        if any(absent):
            if all(absent):
                return dict(self)
            raise TreepackError(
                f"at {path}: a node of an older version must be loaded completely, or not at all: "
                "select all of it"
            )
        record, at = self.record
        node = core.assemble(
            # A copy, since its dicts may become part of the tree.
            map_leaves(lambda leaf: leaf, dict(self)),
            record,
            convert=_as_saved,
            unknown_as_dict=True,
            static=target,
            at=at,
        )
        return map_leaves(_jax.fetched, to_state_dict(node))


def mark_older(state: Any, record: RecordAt) -> tuple[Any, dict[int, str]]:
    whole, at = record

    def mark(state: Any, at: list[tuple[int, int]]) -> Older:
        older = Older(state)
        older.record = whole, at
        return older

    return core.mark_older(state, whole, mark, at=at)


def _as_saved(leaves: list[tuple[str, None, Any, bool, Any]]) -> list[Any]:
    return [
        leaf if _jax.is_array(leaf) else _jax.as_jax(np.asarray(leaf)) for _, _, leaf, *_ in leaves
    ]
