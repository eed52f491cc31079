"""Arrays of several processes in the form of flax: beside the file, written by TensorStore.

state ──▶ state with placeholders ──▶ checkpoint_1
  └─────▶ arrays ──manager of jax───▶ checkpoint_1_gda/<path>
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from treepack._src.interop import jax as _jax
from treepack._src.interop.modules import error_class
from treepack._src.pytree.state_dict import leaves_of, map_leaves
from treepack._src.series.names import MP_ARRAY_POSTFIX, TEMPORARY, Series
from treepack._src.storage.entries import exists, remove
from treepack._src.storage.foreign import FLAX_REFERENCE
from treepack._src.storage.place import joined, local, shown, url_of
from treepack._src.storage.write import sync_directory
from treepack.errors import MultiprocessArrayError

MP_ARRAY_PH = FLAX_REFERENCE
"""What stands for an array in the file, before its path."""

COMMIT_SUCCESS_FILE = "commit_success.txt"
"""The file that completes a directory of arrays in a bucket."""


class Split(NamedTuple):
    """A state without the arrays of several processes.

    Attributes:
      state: The state, with placeholders.
      arrays: The arrays, by their paths.
    """

    state: Any
    arrays: dict[str, Any]


def split(state: Any) -> Split:
    """Takes the arrays of several processes out of a state dict."""
    arrays: dict[str, Any] = {}

    def without(node: Any, path: tuple[str, ...]) -> Any:
        if isinstance(node, dict):
            return {key: without(child, (*path, key)) for key, child in node.items()}
        if not _is_of_several(node):
            return node
        name = "/".join(path)
        arrays[name] = node
        return MP_ARRAY_PH + name

    return Split(without(state, ()), arrays)


def _is_of_several(value: Any) -> bool:
    return _jax.is_array(value) and not value.is_fully_addressable


def save_arrays(
    series: Series,
    name: str,
    arrays: dict[str, Any],
    manager: Any,
    commit: Callable[[], None],
) -> None:
    """Begins to write arrays with a manager of jax, which calls `commit` in process 0 at last."""
    from jax.experimental.array_serialization.serialization import get_tensorstore_spec

    if url_of(series.directory) is not None:
        raise ValueError(
            f"gda_manager writes to local directories, and {shown(series.directory)!r} is a URL: "
            "without gda_manager, arrays of several processes are saved there, too"
        )
    temporary = series.path(series.name(TEMPORARY)) + MP_ARRAY_POSTFIX
    if _jax.processes()[0] == 0:
        remove(temporary)
        for path in arrays:
            Path(joined(temporary, path)).mkdir(parents=True)
    _jax.wait_for_all("treepack: directories of arrays")
    final = series.path(name) + MP_ARRAY_POSTFIX

    def rename_and_commit() -> None:
        remove(series.path(name))  # first, so that no file has the arrays of another save
        remove(final)
        Path(local(temporary)).rename(local(final))
        sync_directory(Path(local(series.directory)))
        commit()

    specs = [get_tensorstore_spec(joined(temporary, path)) for path in arrays]
    manager.serialize([*arrays.values()], specs, on_commit_callback=rename_and_commit)


def has_placeholders(tree: Any) -> bool:
    """Returns whether arrays of several processes belong into a tree."""
    if type(tree) is dict:
        return any(map(has_placeholders, tree.values()))
    if type(tree) is np.ndarray:
        return False
    return any(_is_placeholder(leaf) for _, leaf in leaves_of(tree, ()))


def _is_placeholder(leaf: Any) -> bool:
    return isinstance(leaf, str) and leaf.startswith(MP_ARRAY_PH)


def restore_arrays(state: Any, target: Any, path: str, manager: Any, *, partial: bool) -> Any:
    """Reads the arrays for the placeholders in a state, with the shardings of a target.

    Args:
      state: The state.
      target: The template, whose arrays are in several processes as well.
      path: The path of the checkpoint.
      manager: The `GlobalAsyncCheckpointManager` that reads them.
      partial: Whether placeholders stay where the target has no such array.

    Raises:
      MultiprocessArrayError: If there is no manager or no such array, or the arrays are incomplete.
    """
    places = {
        parts: leaf.removeprefix(MP_ARRAY_PH)
        for parts, leaf in leaves_of(state, ())
        if _is_placeholder(leaf)
    }
    if not places:
        return state
    directory = path + MP_ARRAY_POSTFIX
    if manager is None:
        counted = "1 array" if len(places) == 1 else f"{len(places)} arrays"
        raise error_class(MultiprocessArrayError, "flax.errors", "MPACheckpointingRequiredError")(
            f"it has {counted} of several processes in {Path(directory).name} beside it: "
            "pass gda_manager=GlobalAsyncCheckpointManager(), of "
            "jax.experimental.array_serialization.serialization"
        )
    templates = {} if target is None else dict(leaves_of(target, ()))
    lost = [parts for parts in places if not _is_of_several(templates.get(parts))]
    if lost and not partial:
        raise error_class(MultiprocessArrayError, "flax.errors", "MPARestoreTargetRequiredError")(
            f"it has an array of several processes at {'/'.join(lost[0])!r}, and the target "
            "has none there, whose sharding tells where it goes: pass a target with such arrays, "
            "or allow_partial_mpa_restoration=True"
        )
    for parts in lost:
        logging.getLogger("treepack").warning(
            "the array at %r of %s was not restored: the target has none", "/".join(parts), path
        )
        del places[parts]
    manager.wait_until_finished()
    if url_of(path) is not None and not exists(joined(directory, COMMIT_SUCCESS_FILE)):
        raise error_class(MultiprocessArrayError, "flax.errors", "MPARestoreDataCorruptedError")(
            f"{Path(directory).name} beside it has no {COMMIT_SUCCESS_FILE}: its save has not "
            "finished; restore another step"
        )
    names = [*places.values()]
    arrays = _read(manager, directory, names, [templates[parts] for parts in places])
    found = {MP_ARRAY_PH + name: array for name, array in zip(names, arrays, strict=True)}
    return map_leaves(lambda leaf: found.get(leaf, leaf) if _is_placeholder(leaf) else leaf, state)


def _read(manager: Any, directory: str, names: list[str], templates: list[Any]) -> list[Any]:
    if not names:
        return []
    from jax.experimental.array_serialization.serialization import get_tensorstore_spec

    specs = [get_tensorstore_spec(joined(directory, name)) for name in names]
    found: list[Any] = manager.deserialize([array.sharding for array in templates], specs)
    return found
