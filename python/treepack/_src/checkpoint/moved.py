"""Hints for templates whose leaves are elsewhere in a file."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import treepack._core as core
from treepack._src import paths as _paths
from treepack._src.printable import printable, shortened, warn
from treepack._src.pytree.state_dict import leaves_of
from treepack._src.restore.compare import NOTHING, signature
from treepack._src.restore.report import Coverage
from treepack.errors import Mismatch, MismatchError, TreepackError


def add_hint(
    error: MismatchError,
    catalog: Callable[[], core.Catalog],
    start: int,
    target: Any,
    renamed: Mapping[str, str] | None = None,
) -> None:
    """Adds a hint to an error where the file has the leaves of the target elsewhere.

    Args:
      error: The error.
      catalog: Returns the leaves of the file.
      start: The value that is loaded.
      target: The template.
      renamed: The new paths of leaves, if `rename=` is given.
    """
    with contextlib.suppress(TreepackError):  # the file is damaged, or its paths are too long
        found, ours = _leaves(catalog(), start), _leaves_of(target)
        listed, cure, cures = error.args[0].partition("\nPass ")
        if hint := _hint([*found], target, ours, error.mismatches):
            cure = cures = ""  # they mislead here
        elif moved := _moved(*_apart(found, ours, renamed), error.mismatches):
            way = _adding(moved[0], renamed)
            hint = f"The file has leaves of the template elsewhere: {way}."
            if moved[1]:
                cure = cures = ""
        elif (
            cure
            and "rename=" not in cures
            and (alone := _alone(*_unused(found, ours, renamed or {}), error.mismatches))
        ):
            way = _adding(alone, renamed)
            hint = f"An unused leaf of the file fits: {way} if this is its new name."
        elif any(map(_are_turned, error.mismatches)):
            hint = _transposed(error.mismatches, found)
        if hint:
            error.args = (f"{listed}\n{hint}{cure}{cures}", *error.args[1:])


def warn_of_moved(
    catalog: core.Catalog,
    start: int,
    target: Any,
    renamed: Mapping[str, str] | None,
    partial: Coverage,
) -> None:
    """Warns if leaves of the target stay unchanged that the file has elsewhere; see `add_hint`."""
    kept, unused = partial.wanted(), partial.unused()
    if not kept or not unused:
        return
    with contextlib.suppress(TreepackError):  # paths are too long
        found, ours = _leaves(catalog, start), _leaves_of(target)
        if moved := _moved(*_apart(found, ours, renamed), [*kept, *unused]):
            warn(
                'missing="target" keeps leaves that the file has elsewhere: '
                f"{_adding(moved[0], renamed)}, or exclude= to keep them"
            )
        elif names := partial.unlike():
            warn(
                f'missing="target" keeps all of {names[0]}, as the file has only other leaves '
                f"there: pass rename= if they have other names, or exclude={names[0]!r} to keep it"
            )


def _leaves(catalog: core.Catalog, start: int) -> dict[str, Any]:
    """Returns dtypes and shapes of leaves by path; empty beyond the limits of real trees."""
    found: dict[str, Any] = {}
    for path, value in catalog.ends(start):
        if len(found) == _MOST_LEAVES or len(path) > _MOST_TEXT:
            return {}
        if catalog.children(value) is None:
            kind = catalog.leaf(value)[1]
            is_array = kind[0] in ("array", "scalar")
            found[path] = (kind[1], tuple(kind[2])) if is_array else None
    return found


def _leaves_of(target: Any) -> dict[str, Any]:
    """Returns the leaves of a template by path, within the same limits."""
    found: dict[str, Any] = {}
    for parts, leaf in leaves_of(target, ()):
        if len(found) == _MOST_LEAVES or sum(map(len, parts)) > _MOST_TEXT:
            return {}
        found[_paths.text(parts)] = leaf
    return found


def _hint(
    there: list[str], target: Any, leaves: Mapping[str, Any], mismatches: Collection[Mismatch]
) -> str | None:
    if (shape := _shape_in(leaves, mismatches)) is not None:
        return f"A tuple is a subtree: for a shape, pass jax.ShapeDtypeStruct({shape}, dtype)."
    if (name := _holder(leaves, there)) is not None:
        whose = printable(name)
        return (
            f"The file has the leaves of {whose} at its root: pass {_child(target, name)}, or "
            f"rename=lambda path: {f'{name}/'!r} + path."
        )
    if (name := _holder(there, leaves)) is not None:
        return (
            f"The file has these leaves below {printable(name)}: pass {{{name!r}: target}}, or "
            f"load them by treepack.open(path)[{name!r}].load(target)."
        )
    return None


def _child(target: Any, name: str) -> str:
    """Returns the expression of a child of a template."""
    if isinstance(target, Mapping):
        name = next((key for key in target if str(key) == name), name)
    elif isinstance(target, (list, tuple)) and not hasattr(target, "_fields"):
        return f"target[{name}]"
    elif name.isidentifier():
        return f"target.{name}"
    return f"target[{name!r}]"


def _adding(pairs: str, renamed: Mapping[str, str] | None) -> str:
    """Returns the remedy of more pairs in `rename=`."""
    return f"pass rename={pairs}" if renamed is None else f"add {pairs} to rename="


def _apart(
    theirs: Mapping[str, Any], leaves: Mapping[str, Any], renamed: Mapping[str, str] | None
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Returns the leaves that may be moved: all, or those that `rename=` does not join."""
    return (theirs, leaves) if renamed is None else _unused(theirs, leaves, renamed)


def _unused(
    theirs: Mapping[str, Any], leaves: Mapping[str, Any], renamed: Mapping[str, str]
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Returns the leaves of the file that the template lacks, and the converse."""
    new = {path: renamed.get(path, path) for path in theirs}
    filled = {*new.values()}
    return (
        {path: kind for path, kind in theirs.items() if new[path] not in leaves},
        {path: leaf for path, leaf in leaves.items() if path not in filled},
    )


def _alone(
    theirs: Mapping[str, Any], leaves: Mapping[str, Any], mismatches: Iterable[Mismatch]
) -> str | None:
    """Returns a dict of unused arrays and missing ones that alone have their dtypes and shapes."""
    is_missing = _near([mismatch.path for mismatch in mismatches if mismatch.found == NOTHING])
    kinds: dict[Any, tuple[list[str], list[str]]] = {}
    for path, kind in theirs.items():
        kinds.setdefault(kind, ([], []))[0].append(path)
    for path, leaf in leaves.items():
        if (it := signature(leaf)) is not None:
            kind = getattr(it.dtype, "name", None), it.shape
            kinds.setdefault(kind, ([], []))[1].append(path)
    pairs = [
        f"{old[0]!r}: {new[0]!r}"
        for kind, (old, new) in kinds.items()
        if kind is not None and len(old) == len(new) == 1 and is_missing(new[0])
    ]
    return f"{{{shortened(pairs, len(pairs))}}}" if pairs else None


def _moved(
    theirs: Mapping[str, Any], leaves: Mapping[str, Any], mismatches: Collection[Mismatch]
) -> tuple[str, bool] | None:
    """Returns a dict of subtrees that have other paths in the file, and whether it is complete.

    They have the same names and shapes below.
    """
    theirs = {path: kind and kind[1] for path, kind in theirs.items()}
    ours = {path: it.shape if (it := signature(leaf)) else None for path, leaf in leaves.items()}
    old, new = _subtrees(theirs, ours), _subtrees(ours, theirs)
    differ = [mismatch for mismatch in mismatches if not _ARRAY.fullmatch(mismatch.found)]
    places = [found.path for found in differ]
    names: dict[Any, list[str]] = {}
    for name, (below, _) in old.items():
        for place in (None, name.rpartition("/")[0]):
            names.setdefault((below, place), []).append(name)
    pairs: dict[str, str | None] = {}
    is_meant = _near(places)
    for name, (below, _) in new.items():
        found = names.get((below, None), [])
        if len(found) > 1:  # a model and its moments
            found = names.get((below, name.rpartition("/")[0]), [])
        if len(found) == 1 and (is_meant(name) or is_meant(found[0])):
            pairs[found[0]] = None if found[0] in pairs else name  # ambiguous
    both = [(name, to) for name, to in pairs.items() if to is not None]
    moved = dict(_trimmed(name, to, (old[name][1], new[to][1])) for name, to in both)
    shown = shortened((f"{name!r}: {to!r}" for name, to in moved.items()), len(moved))
    lacking = [found.path for found in differ if found.expected != NOTHING] or places
    is_whole = all(map(_near([*moved, *moved.values()]), lacking))
    return (f"{{{shown}}}", is_whole) if moved else None


def _trimmed(one: str, other: str, tops: Collection[str]) -> tuple[str, str]:
    """Removes equal last parts of two paths, but not below their tops."""
    while one not in tops and other not in tops:
        (above, _, end), (above_other, _, end_other) = one.rpartition("/"), other.rpartition("/")
        if end != end_other:
            break
        one, other = above, above_other
    return one, other


def _subtrees(paths: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    """Returns the largest subtrees without a leaf of the others, by the first part of all leaves.

    For each, returns the rests of paths with shapes, and the path at its top.
    """
    ordered = sorted(others)
    tops: dict[str, list[list[str]]] = {}
    for path in paths:
        parts = path.split("/")
        starts = ["/".join(parts[:count]) for count in range(1, len(parts))]
        # Below an absent path, all are.
        at = bisect.bisect_left(starts, True, key=lambda start: not _paths.has(ordered, start))
        if at < len(starts) and (at == 0 or starts[at - 1] not in others):
            tops.setdefault(starts[at], []).append(parts)
    found = {}
    for top, below in tops.items():
        ends = [min(below)[:-1], max(below)[:-1]]
        pairs = zip(*ends, strict=False)
        common = [key for key, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)]
        rests = {"/".join(parts[len(common) :]): paths["/".join(parts)] for parts in below}
        if _has_names(rests):
            found["/".join(common)] = frozenset(rests.items()), top
    return found


def _near(paths: Collection[str]) -> Callable[[str], bool]:
    """Returns whether a path is one of some paths, or below or above one."""
    ordered, exact = sorted(paths), {*paths}

    def is_near(path: str) -> bool:
        above = itertools.accumulate(path.split("/"), "{}/{}".format)
        return _paths.has(ordered, path) or not exact.isdisjoint(above)

    return is_near


# The maximum number of leaves of a file that are compared, and of the characters of a path.
_MOST_LEAVES = 20_000
_MOST_TEXT = 400

# The dtype and shape of an array in a mismatch.
_ARRAY = re.compile(r"(\w+)\[([\d,]+)\]")


def _sizes(mismatch: Mismatch) -> tuple[list[str], list[str]]:
    """Returns the sizes of the dimensions on both sides; empty unless both are of one dtype."""
    found = [_ARRAY.fullmatch(text) for text in (mismatch.expected, mismatch.found)]
    if found[0] is None or found[1] is None or found[0][1] != found[1][1]:
        return [], []
    return found[0][2].split(","), found[1][2].split(",")


def _are_turned(mismatch: Mismatch) -> bool:
    """Returns whether the order of axes explains a mismatch."""
    ours, theirs = _sizes(mismatch)
    return ours != theirs and sorted(ours) == sorted(theirs)


def _transposed(mismatches: Iterable[Mismatch], there: Collection[str]) -> str:
    """Returns the hint for arrays whose axes have another order in the file."""
    sources, others = {}, []
    for mismatch in filter(_are_turned, mismatches):
        path, (ours, theirs) = mismatch.path, _sizes(mismatch)
        if len({*ours}) < len(ours):
            others.append(path)  # several orders have these shapes
        elif path in there:
            order = "" if len(ours) == 2 else f", {tuple(map(theirs.index, ours))}"
            sources[path] = f"{path!r}: treepack.transpose({path!r}{order})"
    shown = shortened(sources.values(), len(sources))
    if sources:
        return f"Pass rename={{{shown}}} to treepack.load if these axes are swapped."
    if others:
        return (
            f"The axes of {printable(others[0])} have another order, which the shapes do not tell: "
            "pass treepack.transpose(path, axes) in rename=."
        )
    return "Pass transpose=True to treepack.stack, or treepack.transpose(path) in rename=."


def _holder(paths: Iterable[str], others: Collection[str]) -> str | None:
    """Returns the first part of paths below which the other paths are; `None` if there is none."""
    found: dict[str, set[str]] = {}
    for path in paths:
        name, _, rest = path.partition("/")
        found.setdefault(name, set()).add(rest)
    holders = (name for name, rests in found.items() if rests.issuperset(others))
    return next(holders, None) if others else None


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
    for mismatch in mismatches:
        shape = tuple(shapes.get(mismatch.path, ()))
        are_sizes = shape and all(type(size) is int for size in shape)
        if are_sizes and mismatch.found.endswith(f"[{','.join(map(str, shape))}]"):
            return shape
    return None
