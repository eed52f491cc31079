"""Hints for templates whose leaves are elsewhere in a file."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import treepack._core as core
from treepack._src import paths as _paths
from treepack._src.printable import printable
from treepack._src.pytree.state_dict import leaves_of
from treepack.errors import Mismatch, MismatchError


@contextlib.contextmanager
def hinting(catalog: Callable[[], core.Catalog], start: int, target: Any) -> Iterator[None]:
    """Adds a hint to a MismatchError where the file has the leaves of the target elsewhere.

    `catalog` returns the leaves of the file, and `start` is the value that is loaded.
    """
    try:
        yield
    except MismatchError as error:
        found = catalog()
        there = {it for it, value in found.ends(start) if found.children(value) is None}
        if hint := _hint(there, target, error.mismatches):
            error.args = (f"{error.args[0]}\n{hint}", *error.args[1:])
        raise


def _hint(there: Collection[str], target: Any, mismatches: Collection[Mismatch]) -> str | None:
    leaves = {_paths.text(parts): leaf for parts, leaf in leaves_of(target, ())}
    if (shape := _shape_in(leaves, mismatches)) is not None:
        return f"A tuple is a subtree: for a shape, pass jax.ShapeDtypeStruct({shape}, dtype)."
    ours, theirs = _firsts(leaves), _firsts(there)
    for name in sorted(theirs - ours) if leaves else ():
        if _below(there, name).issuperset(leaves):
            return (
                f"The file has these leaves below {printable(name)}: pass {{{name!r}: target}}, or "
                f"load them by treepack.open(path)[{name!r}].load(target)."
            )
    named = {name: below for name in theirs - ours if _has_names(below := _below(there, name))}
    pairs = [
        (old, new)
        for new in ours - theirs
        for old, below in named.items()
        if below == _below(leaves, new)
    ]
    if len(pairs) != 1:
        return None
    old, new = pairs[0]
    return (
        f"The file has the leaves of {printable(new)} below {printable(old)}: pass "
        f"rename={{{old!r}: {new!r}}}."
    )


def _firsts(paths: Collection[str]) -> set[str]:
    return {path.partition("/")[0] for path in paths}


def _below(paths: Collection[str], name: str) -> set[str]:
    return {path.removeprefix(f"{name}/") for path in paths if path.startswith(f"{name}/")}


def _has_names(paths: Collection[str]) -> bool:
    """Returns whether paths are more than the indices of a sequence."""
    return any(not part.isdecimal() for path in paths for part in path.split("/"))


def _shape_in(
    leaves: Mapping[str, Any], mismatches: Collection[Mismatch]
) -> tuple[int, ...] | None:
    """Returns the first shape that is a tuple of the template, where the file has an array."""
    for it in mismatches:
        shape = tuple(leaf for path, leaf in leaves.items() if path.startswith(f"{it.path}/"))
        text = f"[{','.join(map(str, shape))}]"
        if shape and all(type(size) is int for size in shape) and it.found.endswith(text):
            return shape
    return None
