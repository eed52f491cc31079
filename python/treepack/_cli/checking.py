"""Checks and compares files: `treepack verify` and `treepack diff`."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import typer

import treepack
from treepack._cli import output, values
from treepack._cli.listing import FILE, MAX_SIZE
from treepack._cli.sources import opened
from treepack._src.checkpoint.file import kind_text
from treepack._src.checkpoint.reader import LazyArray
from treepack._src.pytree.prng import is_key, unwrap
from treepack._src.storage.place import shown


def verify(
    files: Annotated[list[str], typer.Argument(help="Checkpoints.")],
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print nothing; only set the exit status.")
    ] = False,
    max_size: MAX_SIZE = None,
) -> None:
    """Compares files with their checksums.

    Exit status: 1 if a file is damaged, otherwise 2 if a newer version of
    treepack wrote a file.
    """
    damaged = newer = False
    for file in files:
        with output.bar("verify") as progress:
            found = treepack.verify(file, max_size=max_size, progress=progress)
        damaged |= found.damage is not None or bool(found.corrupt)
        newer |= found.newer is not None
        if quiet:
            continue
        if found.newer is not None:
            output.line(f"{shown(file)}: not checked: {found.newer}", "yellow")
            continue
        corrupt, unchecked = found.corrupt, found.unchecked
        for path in corrupt:
            output.rows([(("corrupt", path), ("bold red", ""))])
        if found.damage is not None:
            output.line(f"damaged: {found.damage}", "bold red")
        counts = {
            "ok": len(found.leaves) - len(corrupt) - len(unchecked),
            "corrupt": len(corrupt),
            "unchecked": len(unchecked),
        }
        text = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
        style = "green" if found.ok and not unchecked else "yellow" if found.ok else "red"
        output.line(f"{shown(file)}: {text or 'no leaves'}", style)
        if unchecked:
            output.line("  unchecked: the file has no checksums; only its headers were read", "dim")
    raise typer.Exit(1 if damaged else 2 if newer else 0)


def diff(
    one: FILE,
    other: FILE,
    rtol: Annotated[float, typer.Option(help="Relative tolerance for values.")] = 0.0,
    atol: Annotated[float, typer.Option(help="Absolute tolerance for values.")] = 0.0,
    max_size: MAX_SIZE = None,
) -> None:
    """Compares names, shapes, dtypes and values of two files. Exit status 1: they differ."""
    with opened(one, max_size) as left, opened(other, max_size) as right:
        ours, theirs = dict(left.leaves()), dict(right.leaves())
        rows: list[output.Row] = []
        for path in ours.keys() | theirs.keys():
            found = _difference(ours.get(path, _NOTHING), theirs.get(path, _NOTHING), rtol, atol)
            if found is not None:
                rows.append(((path, *found), ("", "yellow", "")))
        order = {path: number for number, path in enumerate(dict.fromkeys([*ours, *theirs]))}
        output.rows(sorted(rows, key=lambda row: order[row[0][0]]))
    count = len(ours.keys() | theirs.keys())
    output.line(f"{len(rows)} of {count} leaves differ", "yellow" if rows else "green")
    raise typer.Exit(int(bool(rows)))


_NOTHING = object()


def _difference(one: Any, other: Any, rtol: float, atol: float) -> tuple[str, str] | None:
    """Returns the kind and a description of the difference of two leaves, or `None`."""
    if one is _NOTHING or other is _NOTHING:
        return ("only in the second" if one is _NOTHING else "only in the first"), _kind(
            other if one is _NOTHING else one
        )
    if isinstance(one, LazyArray) and isinstance(other, LazyArray):
        if one.shape != other.shape:
            return "shape", f"{_kind(one)} and {_kind(other)}"
        found = values.difference(one, other)
        is_near = found.absolute <= atol or found.relative <= rtol
        if one.dtype != other.dtype:
            apart = "" if found.elements == 0 else f", {_apart(found)}"
            return "dtype", f"{one.dtype.name} and {other.dtype.name}{apart}"
        return None if found.elements == 0 or is_near else ("values", _apart(found))
    if type(one) is type(other) and _equal(one, other):
        return None
    return "value", f"{_text(one)} and {_text(other)}"


def _apart(found: values.Difference) -> str:
    return (
        f"{found.elements} elements, by {found.absolute:.3g} at most, relative {found.relative:.3g}"
    )


def _equal(one: Any, other: Any) -> bool:
    if is_key(one) and is_key(other):
        (name, one), (other_name, other) = unwrap(one), unwrap(other)
        return name == other_name and bool(np.array_equal(one, other))
    if isinstance(one, np.ndarray):  # read whole, since its header has no shape
        return one.dtype == other.dtype and bool(np.array_equal(one, other))
    return bool(one == other or (one != one and other != other))  # NaN


def _kind(leaf: Any) -> str:
    if isinstance(leaf, LazyArray):
        return kind_text(("array", leaf.dtype.name, leaf.shape))
    return type(leaf).__name__


def _text(leaf: Any) -> str:
    return _kind(leaf) if isinstance(leaf, LazyArray) else f"{leaf!r:.40}"
