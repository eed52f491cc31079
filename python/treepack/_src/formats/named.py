from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import treepack._core as core
from treepack._src import dtypes as _dtypes
from treepack._src import paths as _paths
from treepack._src.arrays.deferred import Deferred, elements_of
from treepack._src.formats import SEPARATOR, Leaves
from treepack._src.leaves.signature import signature
from treepack._src.printable import printable
from treepack.errors import TreepackError


def nested(flat: Mapping[str, Any], separator: str) -> Any:
    """Nests values with names such as `a.b.c` in dicts, as `foreign/safetensors/tree.rs` does."""
    most = core.MAX_DEPTH - 1 if separator else 1
    ends: dict[str | None, Any] = {}
    for name in flat:
        node = ends
        for part in _keys(name, separator, most):
            node = node.setdefault(part, {})
        node[None] = True
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        node, count = ends, 0
        for part in _keys(name, separator, most):
            node, count = node[part], count + 1
            if None in node:  # here this name ends, or one that begins it
                break
        _paths.put(tree, _keys(name, separator, count), value)
    return tree


def _keys(name: str, separator: str, most: int) -> list[str]:
    return name.split(separator, most - 1) if most > 1 else [name]


def named(leaves: Leaves, separator: str | None, remedy: str = "") -> dict[str, Any]:
    """Returns leaves by their names, the keys of their paths with a separator between them.

    A key may contain the separator; readers split it. Equal names, or names much longer than the
    keys together, are a TreepackError.
    """
    separator = SEPARATOR if separator is None else separator
    by_name: dict[str, Any] = {}
    budget = _paths.PathBudget()
    for parts, leaf in leaves:
        budget.text(_paths.text(parts))
        name = separator.join(parts)
        if name in by_name:
            raise TreepackError(
                f"at {printable(name)}: two arrays would have this name with the separator "
                f"{separator!r}: "
                + (remedy or "choose another one with separator=, or another path with mapping=")
            )
        by_name[name] = leaf
    return by_name


def without_dtype(form: str, array: Any) -> str:
    remedy = "cast it, as by array.astype(numpy.float32)"
    if isinstance(array, Deferred):  # of an open file
        remedy = "convert it with dtype=, such as float32"
    kind = signature(array)
    if kind is None or kind.kind != "float":
        is_complex = array.dtype.kind == "c"
        remedy = "save its parts .real and .imag" if is_complex else _OTHER_DTYPE
    if _dtypes.is_packed(array.dtype):
        elements_of(array).read_range(0, min(array.nbytes, 1))  # only its error helps
        remedy = _BYTES
    return f"{form} does not support dtype {_dtypes.shown(array.dtype)}: {remedy}"


_BYTES = "save its bytes, as array.view(numpy.uint8), or save to a .treepack file"

_OTHER_DTYPE = "save it with another dtype, as by array.astype"
