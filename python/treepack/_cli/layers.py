"""Renames, stacks, splits and transposes leaves: options of `treepack convert`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from treepack._cli.convert import State
from treepack._src import paths as _paths
from treepack._src.checkpoint import sources
from treepack._src.checkpoint.select import Renaming, twice, values_in
from treepack._src.pytree.state_dict import state_leaves
from treepack._src.saving.layers import Stack
from treepack._src.saving.layers import renamed as _renamed
from treepack.errors import TreepackError


def renamed(
    state: State,
    rename: Iterable[str],
    stack: Iterable[str],
    unstack: Iterable[str],
    transpose: Iterable[str],
) -> State:
    """Returns a state with other names and layers, without the record.

    Layers are stacked first, then leaves renamed, then split and transposed. `--unstack` and
    `--transpose` take the path of a leaf before or after renaming.

    Raises:
      ValueError: If an option has another form.
      TreepackError: If it matches nothing, or the arrays do not fit.
    """
    stacks, splits = _pairs("--stack", stack), _pairs("--unstack", unstack)
    turned = [_paths.text(_paths.parts(path)) for path in transpose]
    names = _pairs("--rename", rename)
    if not (stacks or splits or turned or names):
        return state
    leaves = {str(path): leaf for path, leaf in state_leaves(state.tree, _paths.Trail(), ends=True)}
    stacked: dict[str, tuple[sources.Source, list[Any]]] = {}
    for path, pattern in stacks.items():
        source = sources.stack(pattern)
        sources.check_wildcards(path, source)
        for new, (one, found) in sources.resolve(path, source, leaves).items():
            stacked[new] = one, [_array(leaves.pop(it), it) for it in found]
            if new in leaves:
                raise TreepackError(f"--stack: there is a leaf at {new} already")
            leaves[new] = stacked[new]
    new_names = Renaming(names or None, [*leaves], values=values_in(leaves))
    renaming = {path: new_names(path) for path in leaves}
    new_names.check(leaves, "file")

    def spread(path: str, source: sources.Source) -> dict[str, Any]:
        """Returns sources by new names, for a path before or after renaming."""
        sources.check_wildcards(path, source)
        found = sources.spread(path, source, renaming)
        if found:
            return {renaming[old]: one for old, one in found.items()}
        return sources.spread(path, source, {*renaming.values()}) or {path: source}

    ours: dict[str, Any] = {}
    for path in turned:
        ours |= {new: sources.transpose(new) for new in spread(path, sources.transpose(path))}
    for path, (source, arrays) in stacked.items():
        is_turned = ours.pop(renaming[path], None) is not None
        leaves[path] = Stack(dataclasses.replace(source, axes=is_turned), arrays)
    for path, pattern in splits.items():
        for new, source in spread(path, sources.unstack(pattern)).items():
            ours[new] = dataclasses.replace(source, axes=new in ours)
    parts = [(tuple(_paths.parts(renaming[path])), leaf) for path, leaf in leaves.items()]
    for at, leaf in parts:
        if (path := _paths.text(at)) in ours:
            _array(leaf, path)
    if len({at for at, _ in parts}) < len(parts):
        raise TreepackError(f"--rename: choose other names; it maps {twice(renaming.items())}")
    tree: dict[str, Any] = {}
    for at, leaf in _renamed(parts, ours or None, snapshot=False):
        _paths.put(tree, at, leaf)
    return state._replace(tree=tree, record=None)


def _pairs(option: str, given: Iterable[str]) -> dict[str, str]:
    """Parses options of the form `ONE=OTHER`."""
    found: dict[str, str] = {}
    for text in given:
        one, equals, other = text.partition("=")
        if not (one and equals and other):
            raise ValueError(f"{option} takes two paths with = between them, got {text!r}")
        found[_paths.text(_paths.parts(one))] = other
    return found


def _array(leaf: Any, path: str) -> Any:
    if not hasattr(leaf, "shape"):
        raise TreepackError(f"{path} is not an array: it has no layers and axes")
    return leaf
