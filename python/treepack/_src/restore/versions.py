"""Nodes that were saved in an older version of their type, where a template wants today's.

Their state is marked, and upgraded once a template asks for it: the node is made as it would be
without a template, and its state takes the place of the one that was saved.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import treepack._core as core
from treepack._src.interop import jax as _jax
from treepack._src.pytree.state_dict import state_leaves, to_state_dict
from treepack._src.restore.report import ABSENT
from treepack.errors import TreepackError

# The record of a structure, and where in it a tree begins; see `_core.assemble`.
Record = tuple[bytes, list[tuple[int, int]]]


class Older(dict[str, Any]):
    """The state of a node in an older version.

    Attributes:
      record: The record of its structure.
      upgraded: Its state in the version of today, once that was asked for: some restores go
        through a tree two times, and know leaves by their identity.
    """

    record: Record
    upgraded: Any = None

    def today(self, target: Any, path: str) -> Any:
        """Returns its state in the version of today; holes are filled by the template.

        Raises:
          TreepackError: If only a part of it was read.
        """
        if self.upgraded is None:
            self.upgraded = self._upgraded(target, path)
        return self.upgraded

    def _upgraded(self, target: Any, path: str) -> Any:
        absent = [leaf is ABSENT for _, leaf in state_leaves(self, "")]
        if any(absent):
            if all(absent):
                return dict(self)
            raise TreepackError(
                f"at {path}: a node of an older version has to be loaded whole, or not at all: "
                "select all of it"
            )
        trailer, at = self.record
        node = core.assemble(
            _copied(self),
            trailer,
            convert=_as_saved,
            unknown_as_dict=True,
            placeholders=False,
            static=target,
            at=at,
        )
        return _on_host(to_state_dict(node))


def marked(state: Any, record: Record) -> Any:
    """Returns a state with nodes of older versions marked as such."""
    trailer, at = record
    if not core.has_older_types(trailer):
        return state
    return core.mark_older(state, trailer, functools.partial(_mark, trailer), at=at)


def _mark(trailer: bytes, state: Any, at: list[tuple[int, int]]) -> Older:
    older = Older(state)
    older.record = trailer, at
    return older


def _copied(state: Any) -> Any:
    """Returns a state whose dicts may become part of a tree."""
    if not isinstance(state, dict):
        return state
    return {key: _copied(value) for key, value in state.items()}


def _as_saved(leaves: list[tuple[str, Any, Any]]) -> list[Any]:
    """Returns arrays of jax, where jax has such; keys are some already."""
    return [
        found if _jax.is_array(found) else _jax.like(np.asarray(found)) for _, _, found in leaves
    ]


def _on_host(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _on_host(value) for key, value in state.items()}
    if not _jax.is_array(state) or _jax.is_extended(state.dtype):
        return state
    return np.asarray(state)
