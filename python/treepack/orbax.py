"""Saves checkpoints of treepack with Orbax, whose managers keep steps, retention and metrics.

Needs `orbax-checkpoint`. `TreepackHandler` works inside `CheckpointManager`, `Composite`,
`Checkpointer` and `AsyncCheckpointer`, in any number of processes. An item is a directory as of
`treepack.save(sharded=True)`, which `treepack.load`, `treepack.open` and the command line read.

Examples:
  >>> import jax, jax.numpy as jnp, tempfile
  >>> import orbax.checkpoint as ocp
  >>> from treepack.orbax import TreepackRestore, TreepackSave
  >>> state = {"w": jnp.ones((8, 2)), "step": 3}
  >>> with ocp.CheckpointManager(tempfile.mkdtemp()) as manager:
  ...     _ = manager.save(3, args=TreepackSave(state))
  ...     manager.wait_until_finished()
  ...     manager.restore(3, args=TreepackRestore(state))["step"]
  3
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

try:
    import orbax.checkpoint as ocp  # type: ignore[import-untyped]
except ImportError as _error:
    raise ImportError(
        "treepack.orbax is for Orbax's managers: pip install orbax-checkpoint"
    ) from _error

import jax  # comes with Orbax

from treepack import (
    LoadOptions,
    Location,
    StorageOptions,
    abstract,
    load,
    serialization,
)
from treepack._src import paths as _paths
from treepack._src.leaves.references import reference_text
from treepack._src.options import Saved, WriteOptions, Writing, takes
from treepack._src.registry.code import check_is_tree
from treepack._src.saving.sharded import ShardedWrite
from treepack._src.storage.address import Address
from treepack._src.storage.naming import naming
from treepack.errors import TreepackError

__all__ = ["TreepackHandler", "TreepackRestore", "TreepackSave", "load_aggregate"]

# Type checkers do not find the types of Orbax.
if TYPE_CHECKING:
    _AsyncHandler = object
else:
    _AsyncHandler = ocp.AsyncCheckpointHandler


class TreepackHandler(_AsyncHandler):
    """Saves and restores one item of a step.

    Its name in Orbax is `treepack.orbax.TreepackHandler` in all versions. A program that restores
    without arguments must import this module first.

    Args:
      durable: Whether a step counts as saved only once its files are on the disk.
      restore: The default options of restores; see `TreepackRestore`.
      compress: See `treepack.save`, also for other options.

    Examples:
      >>> import orbax.checkpoint as ocp, tempfile
      >>> from treepack.orbax import TreepackHandler, TreepackSave
      >>> handlers = {"state": TreepackHandler(compress=True)}
      >>> with ocp.CheckpointManager(tempfile.mkdtemp(), item_handlers=handlers) as manager:
      ...     manager.save(0, args=ocp.args.Composite(state=TreepackSave({"step": 3})))
      True
    """

    @takes(WriteOptions)
    def __init__(
        self,
        *,
        restore: TreepackRestore | None = None,
        **options: Unpack[WriteOptions],
    ):
        self._writing = Writing.of(options)
        self._restore = restore or TreepackRestore()

    async def async_save(
        self, directory: Any, args: TreepackSave
    ) -> list[ocp.future.Future] | None:
        """Takes a snapshot of the tree, and starts to write it."""
        write = begun(directory, args, self._writing, snapshot=True)

        async def write_all() -> None:
            write(None)

        # The directory may not exist yet: this waits for it in a thread.
        future = ocp.future.CommitFutureAwaitingContractedSignals(write_all(), name="treepack_save")
        return [future]

    def save(self, directory: Any, args: TreepackSave) -> None:
        """Saves a tree, and returns once it is written."""
        begun(directory, args, self._writing, snapshot=False)(None)

    def restore(self, directory: Any, args: TreepackRestore | None = None) -> Any:
        """Returns the tree in a directory; see `TreepackRestore`."""
        return restored(directory, args or TreepackRestore(), self._restore)

    def metadata(self, directory: Any) -> Any:
        """Returns the tree with the shapes and dtypes of its arrays; see `treepack.abstract`."""
        return metadata_of(directory, self._restore)

    @classmethod
    def typestr(cls) -> str:
        """Returns the name that Orbax stores with an item."""
        return "treepack.orbax.TreepackHandler"


@ocp.args.register_with_handler(TreepackHandler, for_save=True)
@dataclasses.dataclass
class TreepackSave(ocp.args.CheckpointArgs):  # type: ignore[misc]
    """The tree to save, and options of `treepack.save`.

    Attributes:
      item: The tree.
      metadata: See `treepack.save`.
      static: See `treepack.save`.

    Examples:
      >>> import orbax.checkpoint as ocp, tempfile, treepack
      >>> from treepack.orbax import TreepackSave
      >>> folder = tempfile.mkdtemp()
      >>> with ocp.CheckpointManager(folder) as manager:
      ...     manager.save(0, args=TreepackSave({"step": 3}, metadata={"loss": 0.5}))
      True
      >>> treepack.read_metadata(f"{folder}/0/default")
      {'loss': 0.5}
    """

    item: Any
    metadata: Any = None
    static: Literal["skip-code", "skip", "error"] = "skip-code"


@ocp.args.register_with_handler(TreepackHandler, for_restore=True)
@dataclasses.dataclass(init=False)
class TreepackRestore(ocp.args.CheckpointArgs):  # type: ignore[misc]
    """The template to restore, and options of `treepack.load`.

    Options that are `None` use those of the handler (`TreepackHandler(restore=...)`), or else the
    defaults of `treepack.load`.

    Args:
      item: A template, whose leaves may be `jax.ShapeDtypeStruct`s with shardings; or `None` for
        the tree as it was saved. Leaves that are `...` (Orbax's `PLACEHOLDER`) or a bare `object()`
        stay unchanged, and nothing is read for them.
      strict: See `treepack.load`, also for other options. Without a template,
        `containers="plain"` returns dicts and lists, as Orbax's handlers do.

    Attributes:
      item: The template.
      options: The options that are not `None`, by their names.

    Examples:
      >>> import orbax.checkpoint as ocp, tempfile
      >>> from treepack.orbax import TreepackRestore, TreepackSave
      >>> with ocp.CheckpointManager(tempfile.mkdtemp()) as manager:
      ...     _ = manager.save(0, args=TreepackSave({"params": {"w": 1}, "step": 3}))
      ...     manager.wait_until_finished()
      ...     manager.restore(0, args=TreepackRestore(select="step"))
      {'step': 3}
    """

    item: Any
    options: dict[str, Any]

    @takes(LoadOptions, **dict.fromkeys(LoadOptions.__annotations__))
    def __init__(self, item: Any = None, **options: Unpack[LoadOptions]):
        self.item = item
        self.options = {name: value for name, value in options.items() if value is not None}


def begun(directory: Any, args: TreepackSave, writing: Writing, *, snapshot: bool) -> ShardedWrite:
    saved = Saved(metadata=args.metadata, static=args.static, step=step_of(directory))
    return ShardedWrite(Address.of(directory), args.item, saved, writing, snapshot=snapshot)


# Options of calls without a template, and with one.
_WITHOUT_ITEM = ("static", "dtype")
_WITH_ITEM = ("cast", "missing", "mismatched")


def restored(
    directory: Any,
    args: TreepackRestore,
    default: TreepackRestore,
    more: LoadOptions = {},  # noqa: B006  # it stays as it is
) -> Any:
    item = default.item if args.item is None else args.item
    options: dict[str, Any] = {**more, **default.options}
    for name in _WITHOUT_ITEM if item is not None else _WITH_ITEM:
        options.pop(name, None)
    options |= args.options
    wanted: Any = True
    with contextlib.suppress(Exception):  # `load` explains templates of another form
        wanted = _wanted(serialization.to_state_dict(item))
    if wanted is False:
        return item
    if False in jax.tree.leaves(wanted):
        options.setdefault("select", wanted)
    return load(os.fspath(directory), item, **options)


def _wanted(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: _wanted(child) for name, child in state.items()}
    return state is not ... and type(state) is not object


def metadata_of(directory: Any, default: TreepackRestore) -> Any:
    containers = default.options.get("containers", "saved")
    return abstract(os.fspath(directory), unknown="dict", containers=containers)


# The directory name of a step, perhaps with a prefix, while Orbax writes it: to be renamed, or to
# receive a commit file.
_STEP = re.compile(r"(\d+)(\.orbax-checkpoint-tmp|$)")


def step_of(directory: Any) -> int | None:
    path = Path(os.fspath(directory))
    match = _STEP.search(path.parent.name)
    if match is None or (not match[2] and ".orbax-checkpoint-tmp" in path.name):
        return None  # what is renamed is the item alone
    return int(match[1])


# Files of older versions of Orbax

# Values without leaves, which newer versions write only to the metadata.
_EMPTY: dict[str, Any] = {"None": lambda: None, "Dict": dict, "List": list}


def load_aggregate(
    path: Location, target: Any = None, *, storage_options: StorageOptions = None
) -> Any:
    """Loads the tree in a file `checkpoint` that older versions of Orbax wrote.

    The file has MessagePack in flax's format, with all leaves that were saved with
    `aggregate=True`.

    Args:
      path: The file, the directory of its item, or the URL of either.
      target: A template; see `treepack.serialization.from_state_dict`. `None` returns dicts and
        lists.
      storage_options: See `treepack.save`.

    Returns:
      The tree, with NumPy arrays.

    Raises:
      DecodeError: If the file has another format.
      TreepackError: With the paths, if leaves are in other files.

    Examples:
      >>> import numpy as np, pathlib, tempfile, treepack
      >>> from treepack.orbax import load_aggregate
      >>> folder = pathlib.Path(tempfile.mkdtemp())
      >>> data = treepack.serialization.to_bytes({"w": np.ones(2)})  # as Orbax wrote it
      >>> _ = (folder / "checkpoint").write_bytes(data)
      >>> load_aggregate(folder)
      {'w': array([1., 1.])}
    """
    check_is_tree(target)
    place = Address.of(path, storage_options)
    data, *others = place.read_files(("checkpoint", "_METADATA", "_strings.json"))
    with naming(place):
        metadata, strings = (json.loads(other or b"{}") for other in others)
        types = {
            tuple(str(key["key"]) for key in entry["key_metadata"]): (
                entry["value_metadata"]["value_type"]
            )
            for entry in metadata.get("tree_metadata", {}).values()
        }
        lost: list[str] = []

        def resolved(value: Any, parts: tuple[str, ...]) -> Any:
            if isinstance(value, dict):
                return {key: resolved(child, (*parts, key)) for key, child in value.items()}
            if isinstance(value, list):
                return [resolved(child, (*parts, str(at))) for at, child in enumerate(value)]
            if reference_text(value) is None:
                return value
            make, name = _EMPTY.get(types.get(parts, "")), ".".join(parts)
            if make is None and name not in strings:
                lost.append(_paths.text(parts))
            return strings.get(name) if make is None else make()

        state = resolved(serialization.msgpack_restore(data), ())
        if lost:
            raise TreepackError(
                f"{len(lost)} leaves are not in this file but in TensorStore files beside "
                f"it ({', '.join(lost[:5])}, ...): restore the item with Orbax, and save "
                "the result"
            )
        if target is None:
            return state
        return serialization.from_state_dict(target, serialization.to_state_dict(state))


def __dir__() -> list[str]:
    return sorted(__all__)
