"""Hints for templates whose leaves are elsewhere in a file."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import treepack._core as core
from treepack._src import paths as _paths
from treepack._src.printable import printable
from treepack._src.pytree.state_dict import leaves_of
from treepack.errors import Mismatch, MismatchError, TreepackError


@contextlib.contextmanager
def hinting(catalog: Callable[[], core.Catalog], start: int, target: Any) -> Iterator[None]:
    """Adds a hint to a MismatchError where the file has the leaves of the target elsewhere.

    `catalog` returns the leaves of the file, and `start` is the value that is loaded.
    """
    try:
        yield
    except MismatchError as error:
        with contextlib.suppress(TreepackError):  # the file is damaged, or its paths are too long
            if any(map(_is_transposed, error.mismatches)):
                error.args = (f"{error.args[0]}\n{_TRANSPOSED}", *error.args[1:])
            if hint := _hint(_leaves(catalog(), start), target, error.mismatches):
                listed, _, _ = error.args[0].partition("\nPass ")  # other hints mislead here
                error.args = (f"{listed}\n{hint}", *error.args[1:])
        raise


def _leaves(catalog: core.Catalog, start: int) -> list[str]:
    """Returns the paths of leaves; none if they are more or longer than in real trees."""
    found: list[str] = []
    for path, value in catalog.ends(start):
        if len(found) == _MOST_LEAVES or len(path) > _MOST_TEXT:
            return []
        if catalog.children(value) is None:
            found.append(path)
    return found


def _leaves_of(target: Any) -> dict[str, Any]:
    """Returns the leaves of a template by path, within the same limits."""
    found: dict[str, Any] = {}
    for parts, leaf in leaves_of(target, ()):
        if len(found) == _MOST_LEAVES or sum(map(len, parts)) > _MOST_TEXT:
            return {}
        found[_paths.text(parts)] = leaf
    return found


def _hint(there: list[str], target: Any, mismatches: Collection[Mismatch]) -> str | None:
    leaves = _leaves_of(target)
    if (shape := _shape_in(leaves, mismatches)) is not None:
        return f"A tuple is a subtree: for a shape, pass jax.ShapeDtypeStruct({shape}, dtype)."
    ours, theirs = _below(leaves), _below(there)
    for name in ours.keys() - theirs.keys() if there else ():
        if ours[name].issuperset(there):
            whose = printable(name)
            return (
                f"The file has the leaves of {whose} at its root: pass target[{name!r}], or "
                f"rename=lambda path: {f'{name}/'!r} + path."
            )
    for name in theirs.keys() - ours.keys() if leaves else ():
        if theirs[name].issuperset(leaves):
            return (
                f"The file has these leaves below {printable(name)}: pass {{{name!r}: target}}, or "
                f"load them by treepack.open(path)[{name!r}].load(target)."
            )
    names: dict[frozenset[str], list[str]] = {}
    for name in theirs.keys() - ours.keys():
        names.setdefault(frozenset(theirs[name]), []).append(name)
    pairs = (
        (old, new)
        for new in ours.keys() - theirs.keys()
        if _has_names(ours[new])
        for old in names.get(frozenset(ours[new]), ())
    )
    found = next(pairs, None)
    if found is None or next(pairs, None) is not None:  # ambiguous
        return None
    old, new = found
    return (
        f"The file has the leaves of {printable(new)} below {printable(old)}: pass "
        f"rename={{{old!r}: {new!r}}}."
    )


# The maximum number of leaves of a file that are compared, and of the characters of a path.
_MOST_LEAVES = 20_000
_MOST_TEXT = 400

_TRANSPOSED = (
    "Pass rename={path: treepack.transpose(path)}, or transpose=True to treepack.stack, where axes "
    "are reversed."
)

# The dtype and shape of an array in a mismatch.
_ARRAY = re.compile(r"(\w+)\[([\d,]+)\]")


def _is_transposed(mismatch: Mismatch) -> bool:
    """Returns whether the shapes of two arrays are each other's reverse."""
    found = [_ARRAY.fullmatch(it) for it in (mismatch.expected, mismatch.found)]
    if found[0] is None or found[1] is None or found[0][1] != found[1][1]:
        return False
    one, other = (it[2].split(",") for it in found if it is not None)
    return one != other and one == other[::-1]


def _below(paths: Iterable[str]) -> dict[str, set[str]]:
    """Returns the rest of each path by its first part."""
    found: dict[str, set[str]] = {}
    for path in paths:
        name, _, rest = path.partition("/")
        found.setdefault(name, set()).add(rest)
    return found


def _has_names(paths: Collection[str]) -> bool:
    """Returns whether paths are more than the indices of a sequence, or a leaf."""
    return any(part and not part.isdecimal() for path in paths for part in path.split("/"))


def _shape_in(
    leaves: Mapping[str, Any], mismatches: Collection[Mismatch]
) -> tuple[int, ...] | None:
    """Returns the first tuple of the template that equals the shape of the file's array there."""
    shapes: dict[str, list[Any]] = {}
    for path, leaf in leaves.items():
        shapes.setdefault(path.rpartition("/")[0], []).append(leaf)
    for it in mismatches:
        shape = tuple(shapes.get(it.path, ()))
        text = f"[{','.join(map(str, shape))}]" if all(type(it) is int for it in shape) else ""
        if shape and text and it.found.endswith(text):
            return shape
    return None
