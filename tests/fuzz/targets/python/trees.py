"""Any bytes are a tree, or an error of treepack; a tree as its own template comes back as it is."""

from __future__ import annotations

import dataclasses
import functools
import io
from typing import Any, NamedTuple

import numpy as np
from prelude import ERRORS, core, is_error, outcome, text

import treepack
from treepack import serialization


class Pair(NamedTuple):
    """A type that is registered."""

    a: object
    b: object


treepack.register_namedtuple(
    Pair,
    serialized_name="Pair",
    version=2,
    upgrade=lambda static, fields, _version: (static, fields),
)


@treepack.register_dataclass(serialized_name="Point", data_fields=("x", "y"), meta_fields=("unit",))
@dataclasses.dataclass
class Point:
    """Another one, which is made by its class."""

    x: object
    y: object
    unit: object = None


def by_template(template: Any, data: bytes) -> None:
    """Restores to a template, which is built while data are read, or after that."""
    # A template may be wrong by itself, as with the keys 0 and '0'.
    found = outcome(lambda: serialization.from_bytes(template, data), (ValueError,))
    encoded, core.restore_encoded = core.restore_encoded, lambda *_: None
    try:
        expected = outcome(lambda: serialization.from_bytes(template, data), (ValueError,))
    finally:
        core.restore_encoded = encoded
    assert text(found) == text(expected), (found, expected)


def has_other_keys(state: Any) -> bool:
    """Returns whether a map of the data has keys that are no text, which no writer leaves there."""
    if isinstance(state, dict):
        return any(type(key) is not str or has_other_keys(child) for key, child in state.items())
    return isinstance(state, (list, tuple)) and any(map(has_other_keys, state))


def by_text(tree: Any) -> Any:
    """Returns a tree whose dicts have the texts of their keys; of equal ones the last counts."""
    if isinstance(tree, dict):
        return {str(key): by_text(child) for key, child in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(map(by_text, tree))
    return tree


def loaded(data: bytes, target: Any, select: Any, **options: Any) -> Any:
    """Loads what is selected, as arrays of NumPy."""
    file = io.BytesIO(data)
    read = functools.partial(treepack.load, file, target, select=select, arrays="numpy")
    return outcome(lambda: read(unknown="dict", **options), (ValueError, OSError))


def selected(tree: Any, state: Any, data: bytes) -> None:
    """Reads parts: all of them together are the whole, and none is the template."""
    load = functools.partial(loaded, data)
    whole = load(None, None)
    everything = load(None, "**")
    if not is_error(everything) and not is_error(whole):
        if has_other_keys(state):
            everything, whole = by_text(everything), by_text(whole)
        assert text(everything) == text(whole), (everything, whole)
    if isinstance(tree, tuple | list | dict):
        load(tree, "*", missing="keep", unexpected="error")
    paths = outcome(lambda: [path for path, _ in treepack.open(data, unknown="dict").leaves()])
    for path in paths[:1] if isinstance(paths, list) else ():
        load(None, path)
        load(tree, ["**", f"!{path}"], missing="keep")
        load(tree, lambda given: given != path, strict=False)  # noqa: B023


def exactly(tree: Any, data: bytes) -> None:
    """Restores to a template whose containers have to be what they were saved as."""
    read = functools.partial(treepack.loads, data, tree, unknown="dict", arrays="numpy")
    plain = outcome(lambda: read(strict=True), (ValueError,))
    exact = outcome(lambda: read(strict="exact"), (ValueError,))
    assert is_error(exact) or text(exact) == text(plain), (exact, plain)
    loaded(data, tree, "**", strict="exact")


def renamed(data: bytes) -> None:
    """Gives leaves other names."""
    for names in ({"x/{i}": "{i}"}, {"{i}": "a/{i}", "b/{i}": "{i}/b"}):
        loaded(data, None, "**", mapping=names)


def opened(data: bytes) -> None:
    """Looks into a file: leaves are found by their paths, unless keys of one text hide them."""
    with treepack.open(data, unknown="dict") as file:
        text(file._repr_html_() + repr(file))
        assert len(file) == len(list(file))
        for path, leaf in list(file.leaves())[:20]:
            found = outcome(lambda path=path: file[path], (KeyError, *ERRORS))
            is_missing = is_error(found) and issubclass(found[0], KeyError)
            assert (path in file) != is_missing
            if isinstance(leaf, treepack.LazyArray) and leaf.shape:
                rows = outcome(lambda leaf=leaf: leaf[::2])
                assert is_error(rows) or isinstance(rows, np.ndarray)


def check(data: bytes) -> None:
    """Reads all that can be read."""
    state = outcome(lambda: serialization.msgpack_restore(data))
    outcome(lambda: opened(data))
    outcome(lambda: treepack.abstract(data))
    outcome(lambda: serialization.msgpack_restore(data, copy=True))
    for unknown in ("error", "dict"):
        tree = outcome(lambda: treepack.loads(data, unknown=unknown, arrays="numpy"))  # noqa: B023
        by_template(tree, data)
    for target in (tree, [tree, state], Pair(tree, 1), Point(tree, 1)):
        exactly(target, data)
        outcome(lambda: treepack.loads(data, target, unknown="dict"), (ValueError,))  # noqa: B023
        outcome(lambda: treepack.loads(data, target, strict=False), (ValueError,))  # noqa: B023
    selected(tree, state, data)
    renamed(data)
    by_template(state, data)
    by_template([state, Pair(1, {})], data)
