"""Finds the remedies for mismatches."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from treepack._src.paths import Trail
from treepack._src.printable import printable, shortened
from treepack._src.restore.compare import NODE_OF, NOTHING, VALUES_OF
from treepack.errors import Mismatch

# Matches the description of an array of floats or integers: its kind and shape.
_CASTABLE = re.compile(r"b?(float)\w*(\[[\d,]*\])|u?(int)\w*(\[[\d,]*\])")

_ARRAY = re.compile(r"\w+(\[[\d,]*\])")

# Matches the description of a tuple with the numbers of a shape.
_SHAPE = re.compile(r"a subtree \((\(.*\))\)")

# Matches the length of a list or tuple.
_LENGTH = re.compile(r"(\d+) elements?")

# Hints by the beginnings of both sides: the key of one is its data on the other.
_KEYS = {
    ("key<", "uint32["): (
        "The file has the data of a key: load them in place of jax.random.key_data(key), and call "
        "jax.random.wrap_key_data on them."
    ),
    ("uint32[", "key<"): (
        "The file has a typed key: load it in place of a jax.random.key, and call "
        "jax.random.key_data on it."
    ),
}


def about_names(
    mismatches: list[Mismatch], deeper: tuple[Trail, Trail] | None, refuses_more: bool
) -> Iterator[str]:
    """Yields hints about names that differ.

    Args:
      mismatches: All mismatches.
      deeper: See `Restore`.
      refuses_more: Whether leaves that the template lacks are an error by `unexpected="error"`.
    """
    if deeper is not None:
        old, new = map(str, deeper)
        function = "a function of paths"
        if len(old) > len(new):
            end = printable(f"/{old.rpartition('/')[2]}")
            function = f"rename=lambda path: path.removesuffix({end!r})"
        yield (
            f"Pass rename={{{printable(old)!r}: {printable(new)!r}}} and so on to treepack.load, "
            f"or {function}: one side has its leaves one level deeper."
        )
    shapes = (_SHAPE.fullmatch(mismatch.expected) for mismatch in mismatches)
    for shape in filter(None, shapes):
        yield f"A tuple is a subtree: for a shape, pass jax.ShapeDtypeStruct({shape[1]}, dtype)."
        break
    for mismatch in mismatches:
        if mismatch.similar and not mismatch.expected.startswith("a subtree"):
            old, new = printable(mismatch.similar), printable(mismatch.path)
            yield f"Pass rename={{{old!r}: {new!r}}} to treepack.load if this is its new name."
            break
    else:
        if {NOTHING} <= {mismatch.found for mismatch in mismatches} & {
            mismatch.expected for mismatch in mismatches
        }:
            yield "Pass rename= to treepack.load if leaves have other names in the file."
    lengths = [
        (_LENGTH.match(mismatch.expected), _LENGTH.match(mismatch.found)) for mismatch in mismatches
    ]
    more = [int(ours[1]) - int(theirs[1]) for ours, theirs in lengths if ours and theirs]
    if max(more, default=0) > 0 or any(mismatch.found == NOTHING for mismatch in mismatches):
        yield 'Pass missing="target" to treepack.load to keep leaves that the file lacks.'
    elif any(mismatch.found == "None" for mismatch in mismatches):
        yield 'Pass missing="target" to treepack.load to keep leaves that are None in the file.'
    is_more = min(more, default=0) < 0 or any(
        mismatch.expected == NOTHING for mismatch in mismatches
    )
    if is_more and not refuses_more:
        yield (
            'Pass unexpected="ignore" to treepack.load to ignore leaves that the template lacks, '
            "or select= to load fewer leaves."
        )
    for mismatch in mismatches:
        if mismatch.expected == "None" and mismatch.found != NOTHING:
            yield (
                f"Pass exclude={printable(mismatch.path)!r} to treepack.load to keep this part of "
                "the template."
            )
            break


def about_keys(mismatches: list[Mismatch]) -> Iterator[str]:
    """Yields a hint if a key of one side is its data on the other."""
    for (ours, theirs), hint in _KEYS.items():
        if any(
            mismatch.expected.startswith(ours) and mismatch.found.startswith(theirs)
            for mismatch in mismatches
        ):
            yield hint


def about_ties(mismatches: list[Mismatch]) -> Iterator[str]:
    """Yields hints if only one side has one node in several places."""
    if any(mismatch.found.startswith(NODE_OF) for mismatch in mismatches):
        yield (
            "JAX copies shared nodes of nnx: make the template without jax.tree.map and jax.jit, "
            "or with jax.eval_shape, whose nodes are joined as in the file."
        )
    ours, theirs = (
        [mismatch.expected for mismatch in mismatches],
        [mismatch.found for mismatch in mismatches],
    )
    if any(side.startswith((NODE_OF, VALUES_OF)) for side in (*ours, *theirs)):
        yield "Pass strict=False to restore them as separate nodes."


def about_axes(mismatches: list[Mismatch], is_renamed: bool) -> Iterator[str]:
    """Yields a hint about arrays whose axes have another order in the file."""
    sources, unclear = {}, []
    for mismatch in mismatches:
        path, ours, theirs = mismatch.path, _sizes(mismatch.expected), _sizes(mismatch.found)
        if ours is None or theirs is None or ours == theirs or sorted(ours) != sorted(theirs):
            continue
        if len({*ours}) < len(ours):
            unclear.append(path)  # several orders have these shapes
        else:
            order = "" if len(ours) == 2 else f", {tuple(map(theirs.index, ours))}"
            sources[path] = f"{path!r}: treepack.transpose({path!r}{order})"
    if sources and not is_renamed:
        shown = shortened(sources.values(), len(sources))
        yield f"Pass rename={{{shown}}} to treepack.load if these axes are swapped."
    elif unclear:
        yield (
            f"The axes of {printable(unclear[0])} have another order, which the shapes do not "
            "tell: pass treepack.transpose(path, axes) in rename=."
        )
    elif sources:
        yield "Pass transpose=True to treepack.stack, or treepack.transpose(path) in rename=."


def is_reshaped(mismatch: Mismatch) -> bool:
    """Returns whether two arrays have as many elements, and dimensions of other sizes."""
    ours, theirs = _sizes(mismatch.expected), _sizes(mismatch.found)
    is_same = ours is None or theirs is None or sorted(ours) == sorted(theirs)
    return not is_same and math.prod(ours or ()) == math.prod(theirs or ())


def _sizes(text: str) -> list[int] | None:
    """Returns the shape in the description of an array; `None` for other descriptions."""
    match = _ARRAY.fullmatch(text)
    return match and [int(size) for size in match[1][1:-1].split(",") if size]


def about_leaves(mismatches: list[Mismatch]) -> Iterator[str]:
    """Yields hints about arrays of other shapes, and of another dtype of floats or integers."""
    shapes = [
        (_sizes(mismatch.expected), _sizes(mismatch.found), is_reshaped(mismatch))
        for mismatch in mismatches
    ]
    for ours, theirs, is_same_size in shapes:
        if is_same_size:
            yield (
                f"Some arrays have their elements in another shape, such as {theirs} in place of "
                f"{ours}: load them without a template, and call reshape on them."
            )
            break
    if any(
        None not in (ours, theirs) and ours != theirs and not same for ours, theirs, same in shapes
    ):
        yield (
            'Pass mismatched="target" to treepack.load to keep arrays whose shape differs in the '
            "file."
        )
    numbers = [
        (_CASTABLE.fullmatch(mismatch.expected), _CASTABLE.fullmatch(mismatch.found))
        for mismatch in mismatches
    ]
    same = [
        ours for ours, theirs in numbers if ours and theirs and ours.groups() == theirs.groups()
    ]
    kinds = [
        kind
        for group, kind in ((1, "floats"), (3, "integers"))
        if any(match[group] for match in same)
    ]
    if kinds:
        yield f"Pass cast=True to cast {' and '.join(kinds)} to the dtypes of the template."
