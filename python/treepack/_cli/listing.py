"""Inspects files: `treepack ls` and `treepack show`."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

import treepack
from treepack._cli import maps, output, piped, values
from treepack._cli.maps import MAP
from treepack._src import formats
from treepack._src.api.anything import open_anything
from treepack._src.printable import (
    bytes_of,
    jsonable,
    printable,
    safe_repr,
    size_text,
)
from treepack._src.runs.listing import run_at
from treepack._src.storage.urls import shown

_FILES = [each.kind for each in formats.known() if each.suffixes]
_NAMED = [each.name for each in formats.known() if each.separators]
_FOLDERS = [each.directories for each in formats.known() if each.directories]
KINDS = (
    f"A file ({', '.join(['treepack', 'flax', 'eformer', *_FILES])}) or a directory "
    f"({', '.join(['treepack', *_FOLDERS])})"
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
    str | None,
    typer.Option(
        "--sep",
        help=f"The separator between keys in names of {' or '.join(_NAMED)}.",
        show_default="that of the source, or a dot",
    ),
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


_ROOT = "."
"""The path of the whole tree."""


def flag(name: str, effect: str) -> Any:
    return typer.Option(name, help=effect)


def opened(
    source: str,
    max_size: int | None,
    sep: str | None = None,
    base: str | None = None,
    mapping: list[str] | None = None,
) -> treepack.File:
    rules = maps.rules_of(mapping) if mapping else None
    with output.bar("decompress") as progress:
        return open_anything(
            source,
            separator=sep,
            max_size=max_size,
            base=base,
            mapping=rules,
            progress=progress,
        )


def ls(
    file: ANY_FILE,
    path: PATH = _ROOT,
    flat: Annotated[bool, flag("--flat", "Print one line per leaf, with its path.")] = False,
    as_json: Annotated[bool, flag("--json", "Print all information as JSON.")] = False,
    depth: Annotated[
        int | None, typer.Option(help="The maximum number of levels to print.", min=0)
    ] = None,
    nan: Annotated[
        bool, flag("--nan", "List only the arrays with NaN or infinity; reads the arrays.")
    ] = False,
    sep: SEP = None,
    max_size: MAX_SIZE = None,
    mapping: MAP = None,
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
    if path == _ROOT and not mapping and (run := run_at(file, prefix)) is not None:
        _list_run(file, run, as_json=as_json)
        return
    if path.isdecimal() and (run := run_at(file, prefix)) is not None and run.paths:
        step = run.steps.get(int(path), run.paths[-1])
        raise ValueError(f"a step is a path of its own: `treepack ls {step.shown}`")
    if prefix is not None and Path(file).is_file():
        raise ValueError("--prefix is for a run, and this is a file: leave it out")
    with opened(file, max_size, sep, mapping=mapping) as found:
        try:
            info = found.info(path)
        except treepack.MissingPathError as error:
            if Path(path).is_file():
                error.hint = "it is another file: list one file at a time"
            raise
        is_leaf = info.kind != "container"
        part = found if path == _ROOT or is_leaf else found[path]
        if as_json:
            leaves = [info] if is_leaf else part.infos()
            content = {"metadata": jsonable(found.metadata), "leaves": [*map(_entry, leaves)]}
            output.json({"file": found.path, **content})
            return
        if is_leaf:
            output.rows([_row(info, path)], _SIZES)
        elif flat:
            output.rows((_row(leaf, leaf.path) for leaf in part.infos()), _SIZES)
        else:
            output.line(f"{found.path}: {info}, {size_text(info.nbytes)}", "bold")
            if found.metadata is not None and path == _ROOT:
                text = printable(safe_repr(found.metadata))
                output.line(f"metadata: {text[:_TEXT]}{'…' if len(text) > _TEXT else ''}", "dim")
            rows = (_row(info, f"{'  ' * at}{key}") for at, key, info in part.levels(depth))
            output.rows(rows, _SIZES)
        if others := found.others:
            output.line(f"also there, in other formats: {', '.join(map(printable, others))}")


def _list_run(name: str, run: Any, *, as_json: bool) -> None:
    checkpoints = run.checkpoints()
    if as_json:
        rows = jsonable([checkpoint._asdict() for checkpoint in checkpoints])
        output.json({"run": shown(name), "checkpoints": rows})
        return
    complete = sum(checkpoint.damage is None for checkpoint in checkpoints)
    nbytes = sum(checkpoint.added or 0 for checkpoint in checkpoints)
    summary = f"{complete} of {len(checkpoints)} checkpoints are complete, {size_text(nbytes)}"
    output.line(f"{shown(name)}: {summary} (leaves not verified)", "bold")
    output.rows(map(_checkpoint_row, checkpoints), frozenset({1}))


def _checkpoint_row(checkpoint: Any) -> output.Row:
    _, name, nbytes, added, saved, metrics, pinned, damage = checkpoint
    text = " ".join(f"{printable(name)}={value:.6g}" for name, value in metrics.items())
    if damage is not None:
        text = f"not whole: {damage}"
    size = "" if nbytes is None else size_text(nbytes)
    if added != nbytes:
        size += f", {size_text(added)} added"
    cells = name, size, saved or "", "pinned" if pinned else "", text
    return cells, ("bold", "green", "dim", "cyan", "" if damage is None else "red")


def _list_nan(file: str, path: str, max_size: int | None, *, as_json: bool) -> None:
    arrays = []
    with opened(file, max_size) as found:
        tree = found if path == _ROOT else found[path]
        leaves = tree.leaves() if isinstance(tree, treepack.Tree) else [(path, tree)]
        for name, leaf in leaves:
            if not isinstance(leaf, treepack.LazyArray) or leaf.dtype.kind in "biumM":
                continue
            stats = leaf.statistics(bins=0)
            if stats is not None and (stats.nan or stats.infinite):
                arrays.append((found.info(leaf.path)._replace(trail=name), stats))
        if as_json:
            entries = [
                {**_entry(leaf), "nan": stats.nan, "infinite": stats.infinite}
                for leaf, stats in arrays
            ]
            output.json({"file": found.path, "leaves": entries})
            return
        output.rows(
            ((leaf.path, str(leaf), values.not_finite(stats)), ("", "cyan", "red"))
            for leaf, stats in arrays
        )
        output.line(f"{found.path}: arrays with NaN or infinity: {len(arrays)}", "bold")


def info(
    file: ANY_FILE,
    as_json: Annotated[bool, flag("--json", "Print the summary as JSON.")] = False,
    max_size: MAX_SIZE = None,
) -> None:
    """Summarizes a file: its format, sizes, dtypes, checksums, and metadata. Reads no array."""
    with opened(file, max_size) as found:
        leaves = (str(it.dtype) if it.kind == "array" else it.kind for it in found.infos())
        content = found.info()
        summary = {
            "file": found.path,
            "format": found.format,
            "stored": found.stored_nbytes or None,
            "leaves": content.leaves,
            "nbytes": content.nbytes,
            "parameters": found.num_params,
            "leaves_of": dict(Counter(leaves).most_common()),
            "linked": found.linked,
            "checksums": found.has_checksums,
            "metadata": found.metadata,
        }
    if as_json:
        output.json(jsonable(summary))
        return
    listed = ", ".join(
        f"{printable(name)} ({count})" for name, count in summary["leaves_of"].items()
    )
    metadata = summary["metadata"]
    rows = [
        ("format", summary["format"]),
        *([("stored", size_text(summary["stored"]))] if summary["stored"] else []),
        *([("linked", _linked(summary["linked"]))] if summary["linked"] else []),
        ("content", f"{content}, {size_text(content.nbytes)}"),
        ("parameters", f"{summary['parameters']:,}"),
        ("leaves of", listed),
        ("checksums", "yes" if summary["checksums"] else "no"),
        ("metadata", "none" if metadata is None else printable(safe_repr(metadata))[:_TEXT]),
    ]
    output.line(summary["file"], "bold")
    output.rows([(row, ("dim", "")) for row in rows])


def _linked(files: dict[str, int]) -> str:
    names = ", ".join(map(printable, files))
    return f"{size_text(sum(files.values()))} of earlier steps: {names}"


_SIZES = frozenset({2})

# The maximum number of characters of metadata in a line; `--json` prints all.
_TEXT = 500


def _row(info: treepack.Info, name: str) -> output.Row:
    style = "cyan" if info.kind != "container" else "dim"
    cells = name, str(info), size_text(info.nbytes)
    return cells, ("bold" if style == "dim" else "", style, "green")


def _entry(info: treepack.Info) -> dict[str, Any]:
    entry: dict[str, Any] = {"path": info.path, "kind": info.kind}
    if info.kind in ("array", "scalar"):
        entry |= {"dtype": str(info.dtype), "shape": info.shape}
    return entry | {"offset": info.offset, "nbytes": info.nbytes}


def show(
    file: ANY_FILE,
    path: PATH,
    as_json: Annotated[bool, flag("--json", "Print the statistics as JSON.")] = False,
    max_size: MAX_SIZE = None,
) -> None:
    """Shows a leaf: its statistics, a histogram, and its first elements."""
    with opened(file, max_size) as found:
        leaf = found[path]
        if isinstance(leaf, treepack.Tree):
            raise ValueError(
                f"{path} is a container: list its children with `treepack ls {found.path} {path}`"
            )
        if not isinstance(leaf, treepack.LazyArray):
            if as_json:
                kind = {"kind": type(leaf).__name__, "value": jsonable(leaf)}
                output.json({"file": found.path, "path": path, **kind})
                return
            output.line(f"{path}: {type(leaf).__name__}", "bold")
            output.lines(safe_repr(leaf))
            return
        info = found.info(path)
        stats = leaf.statistics()
        if as_json:
            statistics = None if stats is None else dataclasses.asdict(stats)
            output.json({"file": found.path, **_entry(info), "statistics": jsonable(statistics)})
            return
        output.line(f"{path}: {info}, {size_text(info.nbytes)}", "bold")
        if stats is not None and any(stats.histogram):
            output.rows([(row, ("dim", "")) for row in values.rows(stats)])
            output.line(values.bars(stats), "cyan")
        output.lines(values.preview(leaf))
