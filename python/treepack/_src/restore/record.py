"""The record of a tree's structure, beside its state."""

from __future__ import annotations

from typing import Any

import treepack._core as core
from treepack._src.options import Unknown
from treepack._src.registry.holes import Fillings
from treepack.errors import DecodeError


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


def assembled(state: Any, *, convert: Any, unknown: Unknown, static: Any) -> Any:
    """Makes a tree of its state, which it takes apart, and the record of its structure in it."""
    record = state.pop(core.RECORD_KEY, None) if type(state) is dict else None
    if type(state) is dict and state.keys() == {core.ROOT_KEY}:
        state = state[core.ROOT_KEY]
    if record is not None and type(record) is not bytes:
        raise DecodeError(f"{core.RECORD_KEY!r} is a {type(record).__name__}, not bytes")
    return core.assemble(
        state,
        present(record),
        convert=convert,
        unknown_as_dict=unknown == "dict",
        static=Fillings.of(static),
    )


def present(record: bytes | None) -> bytes:
    """Returns the record of a structure; raises a DecodeError if there is none."""
    if record is None:
        raise DecodeError(
            "the file has no record of the tree's structure, as files of flax and of "
            "treepack.serialization: give a target, or call serialization.msgpack_restore or "
            "load_from_file(None, ...) for plain dicts"
        )
    return record
