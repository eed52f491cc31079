"""The record of a tree's structure, beside its state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import treepack._core as core
from treepack._src.options import Reading
from treepack._src.paths import Trail
from treepack._src.registry.holes import Fillings
from treepack._src.restore.report import Convert


def split(state: Any) -> tuple[Any, Any]:
    """Returns a state without the record of its structure, and the record, or `None`.

    A record that is not bytes is returned, too, and stays in the state.
    """
    is_described = type(state) is dict and type(state.get(core.RECORD_KEY)) is bytes
    return take(dict(state) if is_described else state)


def take(state: Any) -> tuple[Any, Any]:
    """Splits a state of which there is no other reference; see `split`."""
    record = state.get(core.RECORD_KEY) if type(state) is dict else None
    if type(record) is bytes:
        del state[core.RECORD_KEY]
        if state.keys() == {core.ROOT_KEY}:
            state = state[core.ROOT_KEY]
    return state, record


def assembled(
    state: Any,
    record: bytes | None,
    how: Reading,
    *,
    convert: Convert | None,
    absent: Any = None,
    at: Sequence[tuple[int, int]] = (),
) -> Any:
    """Makes a tree of its state, which it takes apart, and the record of its structure, if any.

    See `_core.assemble` for the others.
    """
    if how.everywhere and convert is not None:
        convert = converting_all(state, convert)
    tree = core.assemble(
        state,
        record,
        convert=convert,
        everywhere=how.everywhere,
        unknown_as_dict=how.unknown == "dict",
        plain=how.containers == "plain",
        static=Fillings.of(how.static),
        absent=absent,
        at=[*at],
    )
    if how.everywhere and convert is not None and isinstance(tree, np.ndarray):  # the root
        (tree,) = convert([(Trail(), None, tree, None, None)])
    return tree


def converting_all(state: Any, convert: Convert) -> Convert:
    """Returns a function that converts leaves, and in the state all other arrays of NumPy."""

    def converted(leaves: list[Any]) -> list[Any]:
        known = {id(leaf[2]) for leaf in leaves}
        others: list[Any] = []
        places: list[tuple[Any, Any]] = []

        def below(value: Any, path: Trail) -> None:
            named = value.items() if type(value) is dict else enumerate(value)
            for key, child in named:
                at = Trail(path, str(key))
                if type(child) in (dict, list):
                    below(child, at)
                elif isinstance(child, np.ndarray) and id(child) not in known:
                    others.append((at, None, child, None, None))
                    places.append((value, key))

        if type(state) in (dict, list):
            below(state, Trail())
        made = convert([*leaves, *others])
        for (container, key), leaf in zip(places, made[len(leaves) :], strict=True):
            container[key] = leaf
        return made[: len(leaves)]

    return converted
