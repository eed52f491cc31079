"""The record of the structure in a state dict."""

from __future__ import annotations

from typing import Any

import treepack._core as core
from treepack._src.options import Unknown
from treepack.errors import DecodeError


def split(state: Any) -> tuple[Any, Any]:
    """Returns the state of a tree, and what there is as the record of its structure."""
    trailer = state.get(core.TRAILER_KEY) if type(state) is dict else None
    return without_structure(state), trailer


def without_structure(state: Any) -> Any:
    """Returns the state of a tree that was saved with its structure, without that."""
    if type(state) is not dict or core.TRAILER_KEY not in state:
        return state
    if state.keys() == {core.ROOT_KEY, core.TRAILER_KEY}:
        return state[core.ROOT_KEY]
    return {key: value for key, value in state.items() if key != core.TRAILER_KEY}


def assembled(
    state: Any, *, convert: Any = None, unknown: Unknown, static: Any, placeholders: bool = False
) -> Any:
    """Returns the tree that a state with the record of its structure was made of.

    With `placeholders` its leaves are none that the code of types could work with.
    """
    state, trailer = _split(state)
    return core.assemble(
        state,
        present(trailer),
        convert=convert,
        unknown_as_dict=unknown == "dict",
        placeholders=placeholders,
        static=static,
    )


def _split(state: Any) -> tuple[Any, bytes | None]:
    """Returns the state of a tree and the record of its structure, if there is one."""
    state, trailer = split(state)
    if trailer is not None and type(trailer) is not bytes:
        raise DecodeError(f"{core.TRAILER_KEY!r} is a {type(trailer).__name__}, not bytes")
    return state, trailer


def present(trailer: bytes | None) -> bytes:
    """Returns the record of a structure, which has to be there."""
    if trailer is None:
        raise DecodeError(
            "the structure of the tree was not saved, as by flax or treepack.serialization. Give "
            "a target, or call serialization.msgpack_restore or load_from_file(None, ...) for "
            "plain dicts"
        )
    return trailer
