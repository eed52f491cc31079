"""Saves checkpoints of treepack with Orbax, whose managers keep steps, retention and metrics.

Needs `orbax-checkpoint`. `TreepackHandler` works inside `CheckpointManager`, `Composite`,
`Checkpointer` and `AsyncCheckpointer`, in any number of processes. An item is a directory in the
format of `treepack.save(sharded=True)`, which `treepack.load`, `treepack.open` and the command line
also read.

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

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

try:
    import orbax.checkpoint as ocp  # type: ignore[import-untyped]
except ImportError as _error:
    raise ImportError(
        "treepack.orbax is for Orbax's managers: pip install orbax-checkpoint"
    ) from _error

from treepack import serialization
from treepack._src import paths as _paths
from treepack._src.api.files import load
from treepack._src.api.structure import abstract
from treepack._src.options import (
    Arrays,
    Cast,
    Containers,
    Missing,
    Replicas,
    Saved,
    Static,
    StorageOptions,
    Strict,
    Unexpected,
    Unknown,
    WriteOptions,
    Writing,
    takes,
)
from treepack._src.pytree.state_dict import leaves_of
from treepack._src.registry.code import check_is_tree
from treepack._src.saving.sharded import ShardedWrite
from treepack._src.storage.content import read_all
from treepack._src.storage.entries import exists, is_directory
from treepack._src.storage.foreign import REFERENCES
from treepack._src.storage.naming import naming
from treepack._src.storage.place import Location, beside, joined, located
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
      compress: See `treepack.save`.
      level: The gzip level from 0 (stored) to 9 (smallest).
      align: The alignment of arrays in bytes; see `treepack.save`.
      durable: Whether a step counts as saved only once its files are on the disk.
      threads: The maximum number of threads that copy, compute checksums and compress.
      restore: The default options of restores; see `TreepackRestore`.

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
      metadata: Any value to store with the tree; see `treepack.save`.
      static: How to treat static data that cannot be stored; see `treepack.save`.

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
    static: Static = "skip-code"


@ocp.args.register_with_handler(TreepackHandler, for_restore=True)
@dataclasses.dataclass
class TreepackRestore(ocp.args.CheckpointArgs):  # type: ignore[misc]
    """The template to restore, and options of `treepack.load`.

    Options that are `None` use the options of the handler (`TreepackHandler(restore=...)`), or else
    the defaults of `treepack.load`.

    Attributes:
      item: A template, whose leaves may be `jax.ShapeDtypeStruct`s with shardings; or `None` for
        the tree as it was saved. Leaves that are `...` (Orbax's `PLACEHOLDER`) or a bare `object()`
        stay unchanged, and nothing is read for them.
      strict: How leaves are compared with the template; see `treepack.load`.
      cast: Whether to cast floats to the dtypes of the template, and integers where no value
        changes.
      select: The leaves to load; see `treepack.load`.
      mapping: The layout of the file, by paths of the template; see `treepack.load`.
      missing: Whether leaves that the file lacks are an error, or stay unchanged (`"target"`).
      unexpected: Whether leaves that the template lacks are an error or ignored; by default, they
        are ignored in dicts.
      verify: Whether to compare the files with their checksums first.
      arrays: The type of arrays: as saved (`"saved"`), all NumPy (`"numpy"`), or all JAX (`"jax"`).
      sharding: The sharding for all arrays, which become JAX arrays.
      replicas: Whether each process reads shards that several need (`"read"`), or one process reads
        and sends them (`"broadcast"`).
      timeout: The maximum time in seconds that processes wait for each other with `"broadcast"`.
      unknown: Whether nodes of unregistered types are an error, or become dicts (`"dict"`).
      containers: Without a template, `"plain"` returns dicts and lists, as Orbax's handlers do.
      static: The static data that were not saved; see `treepack.load`.

    Examples:
      >>> import orbax.checkpoint as ocp, tempfile
      >>> from treepack.orbax import TreepackRestore, TreepackSave
      >>> with ocp.CheckpointManager(tempfile.mkdtemp()) as manager:
      ...     _ = manager.save(0, args=TreepackSave({"params": {"w": 1}, "step": 3}))
      ...     manager.wait_until_finished()
      ...     manager.restore(0, args=TreepackRestore(select="step"))
      {'step': 3}
    """

    item: Any = None
    strict: Strict | None = None
    cast: Cast | None = None
    select: Any = None
    mapping: Any = None
    missing: Missing | None = None
    unexpected: Unexpected | None = None
    verify: bool | None = None
    arrays: Arrays | None = None
    sharding: Any = None
    replicas: Replicas | None = None
    timeout: float | None = None
    unknown: Unknown | None = None
    containers: Containers | None = None
    static: Any = None

    def given(self) -> dict[str, Any]:
        """Returns the options that are not `None`."""
        return {name: value for name, value in vars(self).items() if value is not None}


def begun(directory: Any, args: TreepackSave, writing: Writing, *, snapshot: bool) -> ShardedWrite:
    """Begins to save a tree to a directory; see `_core.walk` for `snapshot`."""
    saved = Saved(metadata=args.metadata, static=args.static, step=step_of(directory))
    return ShardedWrite(directory, args.item, saved, writing, snapshot=snapshot)


def restored(directory: Any, args: TreepackRestore, default: TreepackRestore) -> Any:
    """Returns the tree in a directory; `default` has the options that `args` leaves out."""
    own, options = args.given(), default.given()
    has_item = "item" in own or "item" in options
    for name in ("static",) if has_item else ("cast",):
        options.pop(name, None)  # not allowed in calls with a template, or without one
    options |= own
    item = options.pop("item", None)
    leaves = leaves_of(item, ())
    wanted = {parts: leaf is not ... and type(leaf) is not object for parts, leaf in leaves}
    if not all(wanted.values()):
        if () in wanted:
            return item
        selected: dict[str, Any] = {}
        for parts, is_wanted in wanted.items():
            _paths.put(selected, parts, is_wanted)
        options.setdefault("select", selected)
    return load(os.fspath(directory), item, **options)


def metadata_of(directory: Any, default: TreepackRestore) -> Any:
    """Returns the tree with the shapes and dtypes of its arrays."""
    containers = default.containers or "saved"
    return abstract(os.fspath(directory), unknown="dict", containers=containers)


# The directory name of a step, perhaps with a prefix, while Orbax writes it: to be renamed, or to
# receive a commit file.
_STEP = re.compile(r"(\d+)(\.orbax-checkpoint-tmp|$)")


def step_of(directory: Any) -> int | None:
    """Returns the step of an item from the path of its directory, or `None`."""
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
      storage_options: Options for the store of a URL; see `treepack.save`.

    Returns:
      The tree, with NumPy arrays.

    Raises:
      OSError: If the file cannot be read.
      DecodeError: A ValueError, if the file has another format.
      TreepackError: A ValueError with the paths, if leaves are in other files.

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
    place = located(path, storage_options)
    file = joined(place, "checkpoint") if is_directory(place) else place
    with naming(file):
        entries = _read_json(beside(file, "_METADATA")).get("tree_metadata", {}).values()
        types = {
            tuple(str(key["key"]) for key in entry["key_metadata"]): (
                entry["value_metadata"]["value_type"]
            )
            for entry in entries
        }
        strings = _read_json(beside(file, "_strings.json"))
        lost: list[str] = []

        def resolved(value: Any, parts: tuple[str, ...]) -> Any:
            """Returns the value at a path without references to other files."""
            if isinstance(value, dict):
                return {key: resolved(child, (*parts, key)) for key, child in value.items()}
            if isinstance(value, list):
                return [resolved(child, (*parts, str(at))) for at, child in enumerate(value)]
            if not isinstance(value, str) or not value.startswith(REFERENCES):
                return value
            make, name = _EMPTY.get(types.get(parts, "")), ".".join(parts)
            if make is None and name not in strings:
                lost.append(_paths.text(parts))
            return strings.get(name) if make is None else make()

        state = resolved(serialization.msgpack_restore(read_all(file)), ())
        if lost:
            raise TreepackError(
                f"{len(lost)} leaves are not in this file but in TensorStore files beside "
                f"it ({', '.join(lost[:5])}, ...): restore the item with Orbax, and save "
                "the result"
            )
        if target is None:
            return state
        return serialization.from_state_dict(target, serialization.to_state_dict(state))


def _read_json(file: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(read_all(file)) if exists(file) else {}
    return content


def __dir__() -> list[str]:
    return sorted(__all__)
