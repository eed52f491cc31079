"""The record of a tree's structure, beside its state."""

from __future__ import annotations

from typing import Any

import treepack._core as core


def split(state: Any) -> tuple[Any, Any]:
    """Splits off the record of the structure, which may be of any type, or `None`."""
    record = state.get(core.RECORD_KEY) if type(state) is dict else None
    return without_structure(state), record


def without_structure(state: Any) -> Any:
    """Returns the state of a tree without the record of its structure, which is bytes."""
    if type(state) is not dict or type(state.get(core.RECORD_KEY)) is not bytes:
        return state
    if state.keys() == {core.ROOT_KEY, core.RECORD_KEY}:
        return state[core.ROOT_KEY]
    return {key: value for key, value in state.items() if key != core.RECORD_KEY}
