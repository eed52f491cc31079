"""Renames, stacks, splits and transposes the leaves of an open file that is copied."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from treepack._src import paths as _paths
from treepack._src.checkpoint import sources
from treepack._src.checkpoint.reader import LazyArray
from treepack._src.checkpoint.select import Renaming, twice, values_in
from treepack._src.pytree.state_dict import state_leaves
from treepack._src.saving.layers import renamed
from treepack.errors import TreepackError


def rearranged(
    state: Any,
    rename: Mapping[str, Any],
    stack: Mapping[str, Any],
    unstack: Mapping[str, Any],
    transpose: Mapping[str, Any],
) -> Any:
    """Returns the state of an open file with other names and layers.

    Layers are stacked first, then leaves renamed, then split and transposed.

    Args:
      state: Nested dicts and lists.
      rename: New paths by patterns.
      stack: Patterns of layers by the paths of their stacks.
      unstack: The same of what is split, whose paths are those before or after renaming.
      transpose: The orders of axes by such paths; `None` swaps those of matrices.

    Raises:
      TreepackError: If an option matches nothing, or the arrays do not fit.
    """
    rename, stack, unstack, transpose = (
        {_paths.text(_paths.parts(path)): given for path, given in option.items()}
        for option in (rename, stack, unstack, transpose)
    )
    leaves = {str(path): leaf for path, leaf in state_leaves(state, _paths.Trail(), ends=True)}
    stacked: dict[str, tuple[sources.Source, list[Any]]] = {}
    for path, pattern in stack.items():
        source = sources.stack(pattern)
        sources.check_wildcards(path, source)
        for new, (stacking, paths) in sources.resolve(path, source, leaves).items():
            arrays = [_array(leaves.pop(name), name) for name in paths]
            kinds = [*dict.fromkeys(f"{array.dtype}{[*array.shape]}" for array in arrays)]
            if len(kinds) > 1:
                raise TreepackError(
                    f"{source}: the arrays have different shapes or dtypes: "
                    f"{' and '.join(kinds[:2])}"
                )
            if new in leaves:
                raise TreepackError(f"stack: there is a leaf at {new} already")
            leaves[new] = stacked[new] = stacking, arrays
    new_names = Renaming(rename or None, [*leaves], values=values_in(leaves))
    renaming = {path: new_names(path) for path in leaves}
    new_names.check(leaves, "file")

    def spread(path: str, source: sources.Source) -> dict[str, Any]:
        """Returns sources by new names, for a path before or after renaming."""
        sources.check_wildcards(path, source)
        matches = sources.spread(path, source, renaming)
        if matches:
            return {renaming[old]: match for old, match in matches.items()}
        return sources.spread(path, source, {*renaming.values()}) or {path: source}

    ours: dict[str, Any] = {}
    orders: dict[str, Any] = {}
    for path, axes in transpose.items():
        # The sources of writing revert those of reading.
        back = axes and tuple(sorted(range(len(axes)), key=axes.__getitem__))
        for new in spread(path, sources.transpose(path)):
            ours[new], orders[new] = sources.transpose(new, back), axes or True
    for path, (source, arrays) in stacked.items():
        ours.pop(renaming[path], None)
        axes = orders.get(renaming[path], False)
        leaves[path] = sources.SourceArray(dataclasses.replace(source, axes=axes), arrays)
    for path, pattern in unstack.items():
        for new, source in spread(path, sources.unstack(pattern)).items():
            ours[new] = dataclasses.replace(source, axes=ours.get(new, source).axes)
    parts = [(tuple(_paths.parts(renaming[path])), leaf) for path, leaf in leaves.items()]
    for at, leaf in parts:
        if (path := _paths.text(at)) in ours:
            _array(leaf, path)
    if len({at for at, _ in parts}) < len(parts):
        raise TreepackError(f"rename: choose other names; it maps {twice(renaming.items())}")
    tree: dict[str, Any] = {}
    for at, leaf in renamed(parts, ours or None, snapshot=False):
        _paths.put(tree, at, leaf)
    return tree


def _array(leaf: Any, path: str) -> LazyArray:
    if not isinstance(leaf, LazyArray):
        raise TreepackError(f"{path} is not an array: it has no layers and axes")
    return leaf
