"""Inspects files: `treepack ls` and `treepack show`."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

import treepack._core as core
from treepack._cli import output, piped, runs, values
from treepack._src import dtypes as _dtypes
from treepack._src import formats
from treepack._src import paths as _paths
from treepack._src.api.anything import open_anything
from treepack._src.checkpoint.file import (
    File,
    Tree,
    count_text,
    kind_text,
    nbytes_of,
    place_of,
    size_text,
    totals,
    value_at,
)
from treepack._src.checkpoint.reader import LazyArray
from treepack._src.printable import (
    bytes_of,
    either,
    jsonable,
    printable,
    printable_lines,
    safe_repr,
)
from treepack._src.storage.place import shown
from treepack.errors import MissingPathError

_FILES = [each.kind for each in formats.known() if each.suffixes]
_NAMED = [each.name for each in formats.known() if each.has_names]
_FOLDERS = [each.directories for each in formats.known() if each.directories]
KINDS = (
    f"A file of {either(['treepack', 'flax', 'eformer', *_FILES])}, or a directory of "
    f"{either(['treepack', *_FOLDERS])}"
)
FILE = Annotated[
    str, typer.Argument(metavar="FILE", help=f"{KINDS}; - is standard input.", callback=piped.read)
]
ANY_FILE = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help=f"{KINDS}, or a stream of EasyLM; - is standard input.",
        callback=piped.read,
    ),
]
PATH = Annotated[
    str,
    typer.Argument(metavar="PATH", help="A path in the file, such as params/layers/0/kernel."),
]
SEP = Annotated[
    str,
    typer.Option("--sep", help=f"The separator between keys in names of {either(_NAMED)}."),
]
MAX_SIZE = Annotated[
    int | None,
    typer.Option(
        "--max-size",
        parser=bytes_of,
        help="The maximum decompressed size, in bytes or with a unit, such as 1GB.",
        metavar="SIZE",
    ),
]


def flag(name: str, effect: str) -> Any:
    """Declares an option without a value."""
    return typer.Option(name, help=effect)


def opened(source: str, max_size: int | None, sep: str = ".", base: str | None = None) -> File:
    """Opens a file of any format."""
    with output.bar("decompress") as progress:
        return open_anything(source, separator=sep, max_size=max_size, base=base, progress=progress)


def ls(
    file: ANY_FILE,
    path: PATH = ".",
    flat: Annotated[bool, flag("--flat", "Print one line per leaf, with its path.")] = False,
    as_json: Annotated[bool, flag("--json", "Print all information as JSON.")] = False,
    depth: Annotated[
        int | None, typer.Option(help="The maximum number of levels to print.", min=0)
    ] = None,
    nan: Annotated[
        bool, flag("--nan", "List only the arrays with NaN or infinity; reads the arrays.")
    ] = False,
    sep: SEP = ".",
    max_size: MAX_SIZE = None,
    prefix: Annotated[
        str | None,
        typer.Option(
            "--prefix",
            help="The prefix of the names of a run's checkpoints.",
            show_default="step_, checkpoint_, or none",
        ),
    ] = None,
) -> None:
    """Lists the content of a file: shapes, dtypes, sizes, and metadata, without reading arrays.

    For a run, lists its checkpoints: sizes, metrics, and whether each is complete.
    """
    if nan:
        _list_nan(file, path, max_size, as_json=as_json)
        return
    if path == "." and (run := runs.run_at(file, prefix)) is not None:
        runs.show(file, run, as_json=as_json)
        return
    with opened(file, max_size, sep) as found:
        try:
            value = value_at(found, path)
        except MissingPathError as error:
            if not error.hint and Path(path).is_file():
                error.hint = "it is another file: list one file at a time"
            raise
        catalog = place_of(found).catalog
        if as_json:
            output.json(_as_json(catalog, file, value, found.metadata))
            return
        if catalog.children(value) is None:
            output.rows([_row(catalog, path, value)], _SIZES)
        elif flat:
            leaves = _paths.Room().all(catalog.leaves(value))
            output.rows([_row(catalog, *leaf) for leaf in leaves], _SIZES)
        else:
            count, nbytes = totals(catalog, value)
            output.line(f"{shown(file)}: {count_text(count)}, {size_text(nbytes)}", "bold")
            if found.metadata is not None and path == _paths.ROOT:
                text = printable(safe_repr(found.metadata))
                output.line(f"metadata: {text[:_TEXT]}{'…' if len(text) > _TEXT else ''}", "dim")
            output.rows(_tree(catalog, value, 0, depth), _SIZES)
        if others := found.others:
            output.line(f"also there, in other formats: {', '.join(map(printable, others))}")


def _list_nan(file: str, path: str, max_size: int | None, *, as_json: bool) -> None:
    """Prints a row for each array with elements that are not finite."""
    arrays = []
    with opened(file, max_size) as found:
        tree = found if path == _paths.ROOT else found[path]
        leaves = tree.leaves() if isinstance(tree, Tree) else [(path, tree)]
        for name, leaf in leaves:
            if isinstance(leaf, LazyArray) and any(counts := values.not_finite(leaf)):
                arrays.append((name, leaf, *counts))
    if as_json:
        entries = [
            {**_array(leaf, name), "nan": nan, "infinite": inf} for name, leaf, nan, inf in arrays
        ]
        output.json({"file": shown(file), "leaves": entries})
        return
    output.rows(
        ((name, _kind_of(leaf), values.not_finite_text(nan, inf)), ("", "cyan", "red"))
        for name, leaf, nan, inf in arrays
    )
    output.line(f"{shown(file)}: {count_text(len(arrays))} with NaN or infinity", "bold")


def _kind_of(array: LazyArray) -> str:
    return kind_text(("array", _dtypes.shown(array.dtype), array.shape))


def _array(array: LazyArray, path: str) -> dict[str, Any]:
    """Returns an array as JSON, without its elements."""
    kind = {"kind": "array", "dtype": _dtypes.shown(array.dtype), "shape": list(array.shape)}
    return {"path": path, **kind, "nbytes": array.nbytes}


def info(
    file: FILE,
    as_json: Annotated[bool, flag("--json", "Print the summary as JSON.")] = False,
    max_size: MAX_SIZE = None,
) -> None:
    """Summarizes a file: its format, sizes, dtypes, checksums, and metadata. Reads no array."""
    with opened(file, max_size) as found:
        catalog = place_of(found).catalog
        dtypes: Counter[str] = Counter()
        for kind, count, _ in catalog.kinds(0):
            dtypes[kind[1] if kind[0] == "array" else kind[0]] += count
        summary = {
            "file": shown(file),
            "format": found.format,
            "stored": found.stored_nbytes or None,
            "leaves": sum(dtypes.values()),
            "nbytes": found.nbytes,
            "parameters": found.num_params,
            "leaves_of": dict(dtypes.most_common()),
            "checksums": found.has_checksums,
            "metadata": found.metadata,
        }
    if as_json:
        output.json(jsonable(summary))
        return
    listed = ", ".join(
        f"{printable(name)} ({count})" for name, count in summary["leaves_of"].items()
    )
    metadata = (
        "" if summary["metadata"] is None else printable(safe_repr(summary["metadata"]))[:_TEXT]
    )
    rows = [
        ("format", summary["format"]),
        *([("stored", size_text(summary["stored"]))] if summary["stored"] else []),
        ("content", f"{count_text(summary['leaves'])}, {size_text(summary['nbytes'])}"),
        ("parameters", f"{summary['parameters']:,}"),
        ("leaves of", listed),
        ("checksums", "yes" if summary["checksums"] else "no"),
        ("metadata", metadata or "none"),
    ]
    output.line(shown(file), "bold")
    output.rows([(row, ("dim", "")) for row in rows])


_SIZES = frozenset({2})

# The maximum number of characters of metadata in a line; `--json` prints all.
_TEXT = 500


def _row(catalog: core.Catalog, path: str, value: int) -> output.Row:
    _, kind, start, end, _ = catalog.leaf(value)
    return (path, _kind_text(kind), size_text(nbytes_of(kind, end - start))), ("", "cyan", "green")


_kind_text = functools.lru_cache(kind_text)  # few kinds, of many leaves


def _tree(catalog: core.Catalog, value: int, level: int, depth: int | None) -> list[output.Row]:
    """Returns the rows of a container, each followed by the rows of its children."""
    rows: list[output.Row] = []
    if level == depth:
        return rows
    for name, child in catalog.children(value) or ():
        indented = f"{'  ' * level}{name}"
        if catalog.children(child) is None:
            rows.append(_row(catalog, indented, child))
            continue
        count, nbytes = totals(catalog, child)
        row = indented, count_text(count), size_text(nbytes)
        rows.append((row, ("bold", "dim", "green")))
        rows.extend(_tree(catalog, child, level + 1, depth))
    return rows


def _as_json(catalog: core.Catalog, name: str, value: int, metadata: Any) -> dict[str, Any]:
    leaves = []
    for path, below in _paths.Room().all(catalog.leaves(value)):
        _, kind, start, end, _ = catalog.leaf(below)
        entry: dict[str, Any] = {"path": path, "kind": kind[0]}
        if kind[0] in ("array", "scalar"):
            entry |= {"dtype": kind[1], "shape": list(kind[2])}
        leaves.append(entry | {"offset": start, "nbytes": nbytes_of(kind, end - start)})
    return {"file": shown(name), "metadata": jsonable(metadata), "leaves": leaves}


def show(
    file: FILE,
    path: PATH,
    as_json: Annotated[bool, flag("--json", "Print the statistics as JSON.")] = False,
    max_size: MAX_SIZE = None,
) -> None:
    """Shows a leaf: its statistics, a histogram, and its first elements."""
    with opened(file, max_size) as found:
        leaf = found[path]
        if isinstance(leaf, Tree):
            raise ValueError(
                f"{path} is a container with {len(leaf)} children: list them with `treepack ls "
                f"{shown(file)} {path}`"
            )
        if not isinstance(leaf, LazyArray):
            if as_json:
                kind = {"kind": type(leaf).__name__, "value": jsonable(leaf)}
                output.json({"file": shown(file), "path": path, **kind})
                return
            output.line(f"{path}: {type(leaf).__name__}", "bold")
            print(printable_lines(safe_repr(leaf)))
            return
        stats = values.statistics(leaf, 40) if values.is_numeric(leaf) else None
        if as_json:
            statistics = None if stats is None else dataclasses.asdict(stats)
            output.json(
                {"file": shown(file), **_array(leaf, path), "statistics": jsonable(statistics)}
            )
            return
        output.line(f"{path}: {_kind_of(leaf)}, {size_text(leaf.nbytes)}", "bold")
        if stats is not None:
            output.rows([(row, ("dim", "")) for row in stats.rows()])
            output.line(stats.bars(), "cyan")
        print(printable_lines(values.preview(leaf)))
