"""`treepack ls` and `treepack show`: inspecting files."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

import treepack._core as core
from treepack._cli import output, values
from treepack._src import paths as _paths
from treepack._src.checkpoint.file import Tree, count_text, kind_text, open, place_of, size_text
from treepack._src.checkpoint.reader import LazyArray
from treepack._src.dtypes import is_complex

FILE = Annotated[str, typer.Argument(help="A checkpoint of treepack, flax or eformer.")]
PATH = Annotated[str, typer.Argument(help="A path in it, such as params/layers/0/kernel.")]


def ls(
    file: FILE,
    path: PATH = ".",
    flat: Annotated[
        bool, typer.Option("--flat", help="A line for each leaf, with its path.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, for programs.")] = False,
    depth: Annotated[int, typer.Option(help="The maximum number of levels.", min=0)] = 1 << 30,
) -> None:
    """Lists the content of a file: shapes, dtypes, sizes. No array is read."""
    with open(file) as opened:
        place = place_of(opened)
        catalog = place.catalog
        value = catalog.find(_paths.parts(path), 0)
        if value is None:
            raise KeyError(path)
        if as_json:
            print(json.dumps(_as_json(catalog, file, value, opened.metadata), indent=1))
        elif catalog.children(value) is None:
            output.rows([_leaf(catalog, path, value)], _SIZES)
        elif flat:
            output.rows([_leaf(catalog, *it) for it in catalog.leaves(value)], _SIZES)
        else:
            count, nbytes = catalog.totals(value)
            output.line(f"{file}: {count_text(count)}, {size_text(nbytes)}", "bold")
            output.rows(_tree(catalog, value, 0, depth), _SIZES)


_SIZES = frozenset({2})


def _leaf(catalog: core.Catalog, path: str, value: int) -> output.Row:
    _, kind, start, end, _ = catalog.leaf(value)
    return (path, kind_text(kind), size_text(end - start)), ("", "cyan", "green")


def _tree(catalog: core.Catalog, value: int, level: int, depth: int) -> list[output.Row]:
    """Returns the rows of a container, each followed by those of its children."""
    found: list[output.Row] = []
    for name, child in catalog.children(value) or ():
        indented = f"{'  ' * level}{name}"
        if catalog.children(child) is None:
            found.append(_leaf(catalog, indented, child))
            continue
        count, nbytes = catalog.totals(child)
        row = indented, count_text(count), size_text(nbytes)
        found.append((row, ("bold", "dim", "green")))
        if level + 1 <= depth:
            found.extend(_tree(catalog, child, level + 1, depth))
    return found


def _as_json(catalog: core.Catalog, name: str, value: int, metadata: Any) -> dict[str, Any]:
    leaves = []
    for path, leaf in catalog.leaves(value):
        _, kind, start, end, _ = catalog.leaf(leaf)
        entry: dict[str, Any] = {"path": path, "kind": kind[0]}
        if kind[0] in ("array", "scalar"):
            entry |= {"dtype": kind[1], "shape": list(kind[2])}
        leaves.append(entry | {"offset": start, "nbytes": end - start})
    return {"file": name, "metadata": _jsonable(metadata), "leaves": leaves}


def _jsonable(value: Any) -> Any:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return repr(value)
    return value


def show(file: FILE, path: PATH) -> None:
    """Shows a leaf: its statistics, a histogram, and its first elements."""
    with open(file) as opened:
        found = opened[path]
        if isinstance(found, Tree):
            raise ValueError(f"{path} has {len(found)} parts: treepack ls {file} {path}")
        if not isinstance(found, LazyArray):
            output.line(f"{path}: {type(found).__name__}", "bold")
            output.block(repr(found))
            return
        kind = kind_text(("array", found.dtype.name, found.shape))
        output.line(f"{path}: {kind}, {size_text(found.nbytes)}", "bold")
        known = values.statistics(found, 40) if values.is_numeric(found) else None
        if known is not None:
            what = "|x|" if is_complex(found.dtype) else "x"
            rows = [
                (f"{what} from", f"{known.minimum:.6g} to {known.maximum:.6g}"),
                ("mean", f"{known.mean:.6g} ± {known.deviation:.6g}"),
                ("zeros", f"{known.zeros} of {found.size}"),
            ]
            if known.nan or known.infinite:
                rows.append(("not finite", f"{known.nan} NaN, {known.infinite} infinite"))
            output.rows([(row, ("dim", "")) for row in rows])
            bars = values.histogram(known.counts)
            output.line(f"{known.minimum:.3g} {bars} {known.maximum:.3g}", "cyan")
        output.block(values.preview(found))
