"""Inspects files: `treepack ls` and `treepack show`."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple, Protocol

import numpy as np
import typer

from treepack._cli import output, runs, sources, values
from treepack._cli.formats import jsonable
from treepack._src import paths as _paths
from treepack._src.checkpoint.file import (
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
from treepack._src.dtypes import is_complex
from treepack._src.printable import printable, safe_repr
from treepack._src.pytree.prng import is_key, unwrap
from treepack._src.saving.safetensors import bytes_of
from treepack._src.storage.place import shown
from treepack.errors import MissingPathError

KINDS = (
    "A file of treepack, flax, eformer, safetensors or NumPy (npz), or a directory of treepack, "
    "Hugging Face or Orbax"
)
FILE = Annotated[str, typer.Argument(metavar="FILE", help=f"{KINDS}.")]
ANY_FILE = Annotated[str, typer.Argument(metavar="FILE", help=f"{KINDS}, or a stream of EasyLM.")]
PATH = Annotated[
    str,
    typer.Argument(metavar="PATH", help="A path in the file, such as params/layers/0/kernel."),
]
SEP = Annotated[
    str, typer.Option("--sep", help="The separator between keys in names of safetensors and npz.")
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


def ls(
    file: ANY_FILE,
    path: PATH = ".",
    flat: Annotated[
        bool, typer.Option("--flat", help="Print one line per leaf, with its path.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all information as JSON.")] = False,
    depth: Annotated[
        int | None, typer.Option(help="The maximum number of levels to print.", min=0)
    ] = None,
    nan: Annotated[
        bool,
        typer.Option("--nan", help="List only the arrays with NaN or infinity; reads the arrays."),
    ] = False,
    sep: SEP = ".",
    max_size: MAX_SIZE = None,
    prefix: Annotated[
        str | None,
        typer.Option(
            "--prefix",
            help="The prefix of the names of a run's checkpoints.",
            show_default="step_, checkpoint_, or none for Orbax",
        ),
    ] = None,
) -> None:
    """Lists the content of a file: shapes, dtypes, sizes, and metadata, without reading arrays.

    For a run, lists its checkpoints: sizes, metrics, and whether each can be resumed.
    """
    if nan:
        _list_nan(file, path, max_size)
        return
    if path == "." and (run := runs.found_at(file, prefix)) is not None:
        runs.show(file, run, as_json=as_json)
        return
    found = sources.foreign(file, sep, max_size)
    if found is not None:
        _list(file, _Plain(found.tree), found.metadata, path, flat, as_json, depth)
        return
    with sources.opened(file, max_size) as opened:
        entries = _InFile(opened)
        _list(file, entries, opened.metadata, path, flat, as_json, depth)


def _list_nan(file: str, path: str, max_size: int | None) -> None:
    """Prints a row for each array with elements that are not finite."""
    with sources.opened(file, max_size) as opened:
        tree = opened if path == _paths.ROOT else opened[path]
        leaves = tree.leaves() if isinstance(tree, Tree) else [(path, tree)]
        rows: list[output.Row] = []
        for name, leaf in leaves:
            if isinstance(leaf, LazyArray) and (found := values.not_finite(leaf)):
                kind = kind_text(("array", leaf.dtype.name, leaf.shape))
                rows.append(((name, kind, found), ("", "cyan", "red")))
    output.rows(rows)
    output.line(f"{shown(file)}: {count_text(len(rows))} with NaN or infinity", "bold")


def info(file: FILE, max_size: MAX_SIZE = None) -> None:
    """Summarizes a file: its format, sizes, dtypes, checksums, and metadata. Reads no array."""
    with sources.opened(file, max_size) as opened:
        place = place_of(opened)
        reader, catalog = place.reader, place.catalog
        dtypes: Counter[str] = Counter()
        for kind, count, _ in catalog.kinds(0):
            dtypes[kind[1] if kind[0] == "array" else kind[0]] += count
        listed = ", ".join(f"{printable(name)} ({count})" for name, count in dtypes.most_common())
        metadata = "" if opened.metadata is None else printable(safe_repr(opened.metadata))[:_TEXT]
        rows = [
            ("format", sources.format_text(reader)),
            *([("stored", size_text(reader.nbytes))] if reader.nbytes else []),
            ("content", f"{count_text(sum(dtypes.values()))}, {size_text(opened.nbytes)}"),
            ("parameters", f"{opened.num_params:,}"),
            ("leaves of", listed),
            ("checksums", "yes" if reader.is_summed else "no"),
            ("metadata", metadata or "none"),
        ]
    output.line(shown(file), "bold")
    output.rows([(row, ("dim", "")) for row in rows])


class _Leaf(NamedTuple):
    """A leaf: its kind, its size in bytes, and its offset in the file, if known."""

    kind: tuple[Any, ...]
    nbytes: int
    offset: int | None = None


class _Entries(Protocol):
    """A listable tree, whose nodes are containers or leaves."""

    def find(self, path: str) -> Any:
        """Returns the node at a path. If it is missing: `None`, or a MissingPathError."""

    def children(self, node: Any) -> list[tuple[str, Any]] | None:
        """Returns the names and nodes in a container; `None` for a leaf."""

    def leaves(self, node: Any) -> Iterator[tuple[str, Any]]:
        """Yields the paths and nodes of the leaves below a node."""

    def leaf(self, node: Any) -> _Leaf:
        """Returns the kind and the size of a leaf."""

    def totals(self, node: Any) -> tuple[int, int]:
        """Returns the number of leaves below a node, and their size in bytes."""


class _InFile:
    """The content of a file with a catalog."""

    def __init__(self, file: Tree):
        self._file = file
        self._catalog = catalog = place_of(file).catalog
        self.children, self.leaves = catalog.children, catalog.leaves

    def find(self, path: str) -> int:
        return value_at(self._file, path)

    def leaf(self, node: int) -> _Leaf:
        _, kind, start, end, _ = self._catalog.leaf(node)
        return _Leaf(kind, nbytes_of(kind, end - start), start)

    def totals(self, node: int) -> tuple[int, int]:
        return totals(self._catalog, node)


class _Node(NamedTuple):
    """Wraps a value, to tell a missing node from the value `None`."""

    value: Any


class _Plain:
    """Dicts and lists of arrays, or of descriptions with shape and dtype."""

    def __init__(self, tree: Any):
        self._root = _Node(tree)

    def find(self, path: str) -> _Node | None:
        node = self._root
        for part in _paths.parts(path):
            children = dict(self.children(node) or ())
            if part not in children:
                found, _ = _paths.literal(path, self._root, lambda it: self.children(it) or ())
                return found[0][0] if len(found) == 1 else None
            node = children[part]
        return node

    def children(self, node: _Node) -> list[tuple[str, _Node]] | None:
        tree = node.value
        if isinstance(tree, list):
            tree = {str(index): child for index, child in enumerate(tree)}
        if not isinstance(tree, dict):
            return None
        return [(str(key), _Node(child)) for key, child in tree.items()]

    def leaves(self, node: _Node) -> Iterator[tuple[str, _Node]]:
        def below(node: _Node, parts: list[str]) -> Iterator[tuple[str, _Node]]:
            children = self.children(node)
            if children is None:
                yield _paths.text(parts), node
            for name, child in children or ():
                yield from below(child, [*parts, name])

        return below(node, [])

    def leaf(self, node: _Node) -> _Leaf:
        leaf = node.value
        if is_key(leaf):
            name, data = unwrap(leaf)
            return _Leaf(("prng_key", name, data.shape), data.nbytes)
        shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
        if shape is None or dtype is None:
            return _Leaf((type(leaf).__name__,), 0)
        dtype, shape = np.dtype(dtype), tuple(shape)
        nbytes = dtype.itemsize
        for size in shape:
            nbytes *= size
        return _Leaf(("array", dtype.name, shape), nbytes)

    def totals(self, node: _Node) -> tuple[int, int]:
        sizes = [self.leaf(leaf).nbytes for _, leaf in self.leaves(node)]
        return len(sizes), sum(sizes)


def _list(
    file: str,
    entries: _Entries,
    metadata: Any,
    path: str,
    flat: bool,
    as_json: bool,
    depth: int | None,
) -> None:
    node = entries.find(path)
    if node is None:
        raise MissingPathError(path, shown(file))
    if as_json:
        print(json.dumps(_as_json(entries, file, node, metadata), indent=1))
    elif entries.children(node) is None:
        output.rows([_row(entries, path, node)], _SIZES)
    elif flat:
        output.rows([_row(entries, *it) for it in entries.leaves(node)], _SIZES)
    else:
        count, nbytes = entries.totals(node)
        output.line(f"{shown(file)}: {count_text(count)}, {size_text(nbytes)}", "bold")
        if metadata is not None and path == _paths.ROOT:
            text = printable(safe_repr(metadata))
            output.line(f"metadata: {text[:_TEXT]}{'…' if len(text) > _TEXT else ''}", "dim")
        output.rows(_tree(entries, node, 0, depth), _SIZES)


_SIZES = frozenset({2})

# The maximum number of characters of metadata in a line; `--json` prints all.
_TEXT = 500


def _row(entries: _Entries, path: str, node: Any) -> output.Row:
    leaf = entries.leaf(node)
    return (path, _kind_text(leaf.kind), size_text(leaf.nbytes)), ("", "cyan", "green")


_kind_text = functools.lru_cache(kind_text)  # few kinds, of many leaves


def _tree(entries: _Entries, node: Any, level: int, depth: int | None) -> list[output.Row]:
    """Returns the rows of a container, each followed by the rows of its children."""
    found: list[output.Row] = []
    if level == depth:
        return found
    for name, child in entries.children(node) or ():
        indented = f"{'  ' * level}{name}"
        if entries.children(child) is None:
            found.append(_row(entries, indented, child))
            continue
        count, nbytes = entries.totals(child)
        row = indented, count_text(count), size_text(nbytes)
        found.append((row, ("bold", "dim", "green")))
        found.extend(_tree(entries, child, level + 1, depth))
    return found


def _as_json(entries: _Entries, name: str, node: Any, metadata: Any) -> dict[str, Any]:
    leaves = []
    for path, below in entries.leaves(node):
        leaf = entries.leaf(below)
        entry: dict[str, Any] = {"path": path, "kind": leaf.kind[0]}
        if leaf.kind[0] in ("array", "scalar"):
            entry |= {"dtype": leaf.kind[1], "shape": list(leaf.kind[2])}
        offset = {} if leaf.offset is None else {"offset": leaf.offset}
        leaves.append(entry | offset | {"nbytes": leaf.nbytes})
    return {"file": shown(name), "metadata": jsonable(metadata), "leaves": leaves}


def show(file: FILE, path: PATH, max_size: MAX_SIZE = None) -> None:
    """Shows a leaf: its statistics, a histogram, and its first elements."""
    with sources.opened(file, max_size) as opened:
        found = opened[path]
        if isinstance(found, Tree):
            raise ValueError(
                f"{path} is a container with {len(found)} children: list them with `treepack ls "
                f"{shown(file)} {path}`"
            )
        if not isinstance(found, LazyArray):
            output.line(f"{path}: {type(found).__name__}", "bold")
            output.block(safe_repr(found))
            return
        kind = kind_text(("array", found.dtype.name, found.shape))
        output.line(f"{path}: {kind}, {size_text(found.nbytes)}", "bold")
        known = values.statistics(found, 40) if values.is_numeric(found) else None
        if known is not None:
            symbol = "|x|" if is_complex(found.dtype) else "x"
            rows = [
                (f"{symbol} from", f"{known.minimum:.6g} to {known.maximum:.6g}"),
                ("mean", f"{known.mean:.6g} ± {known.deviation:.6g}"),
                ("zeros", f"{known.zeros} of {found.size}"),
            ]
            if known.nan or known.infinite:
                rows.append(("not finite", f"{known.nan} NaN, {known.infinite} infinite"))
            output.rows([(row, ("dim", "")) for row in rows])
            bars = values.histogram(known.counts)
            output.line(f"{known.minimum:.3g} {bars} {known.maximum:.3g}", "cyan")
        output.block(values.preview(found))
