from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import treepack._core as core
from treepack._src.options import Reading
from treepack._src.restore.report import Convert


def split(state: Any) -> tuple[Any, Any]:
    """A record that is not bytes is also returned, but stays in the state."""
    is_described = type(state) is dict and type(state.get(core.RECORD_KEY)) is bytes
    return take(dict(state) if is_described else state)


def take(state: Any) -> tuple[Any, Any]:
    """Like `split`, in place, for a state without other references."""
    record = state.get(core.RECORD_KEY) if type(state) is dict else None
    if type(record) is bytes:
        del state[core.RECORD_KEY]
        if state.keys() == {core.ROOT_KEY}:
            state = state[core.ROOT_KEY]
    return state, record


def assembled(
    state: Any,
    record: bytes | None,
    reading: Reading,
    *,
    convert: Convert | None,
    absent: Any = None,
    at: Sequence[tuple[int, int]] = (),
    parts: Sequence[str] = (),
) -> Any:
    """Consumes the state; see `_core.assemble`."""
    return core.assemble(
        state,
        record,
        convert=convert,
        absent=absent,
        at=[*at],
        parts=parts,
        everywhere=reading.everywhere,
        unknown_as_dict=reading.unknown == "dict",
        plain=reading.containers == "plain",
        static=reading.static,
    )
