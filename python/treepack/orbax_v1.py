"""treepack's checkpoints in Orbax's API of version 1, `orbax.checkpoint.experimental.v1`.

`pip install treepack[orbax]`. `registry` makes Orbax save and load trees with `TreepackHandler`: by
`save`, `load` and `metadata`, by those of several checkpointables, and by `training.Checkpointer`,
in any number of processes. A checkpointable is a directory, as `treepack.save(sharded=True)` writes
it. `treepack.load`, `treepack.open` and the command line read it as well.

Examples:
  >>> import jax.numpy as jnp, tempfile
  >>> import orbax.checkpoint.experimental.v1 as ocp
  >>> from treepack.orbax_v1 import registry
  >>> path = f"{tempfile.mkdtemp()}/5"
  >>> context = ocp.Context()
  >>> context.checkpointables.registry = registry()
  >>> with context:
  ...     ocp.save(path, {"w": jnp.ones((8, 2)), "opt": (jnp.zeros(3), 0)})
  ...     ocp.load(path)["opt"]
  (Array([0., 0., 0.], dtype=float32), 0)
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Generator, Iterable
from typing import Any

import jax
import orbax.checkpoint.experimental.v1 as ocp  # type: ignore[import-untyped]
from orbax.checkpoint.experimental.v1._src.context.context import (  # type: ignore[import-untyped]
    get_context,
)

from treepack._src.options import Compress, Saved, Writing
from treepack._src.saving.sharded import ShardedWrite
from treepack._src.storage.place import joined
from treepack._src.storage.write import write_small
from treepack.errors import TreepackError
from treepack.orbax import TreepackHandler as TreepackV0Handler
from treepack.orbax import TreepackRestore, TreepackSave, metadata_of, restored, step_of

__all__ = ["TreepackHandler", "TreepackRestore", "TreepackSave", "registry"]

# Orbax takes directories with this file for trees, and asks the handler for them. Its own handler
# does not understand what is in it.
_MARK = "_METADATA"

_MARK_TEXT = b'{"format": "treepack: load it with treepack.orbax_v1, or treepack.load"}'


class TreepackHandler:
    """Saves and loads one checkpointable.

    A checkpointable is a tree, or a `TreepackSave` with options. An abstract one is a tree, or a
    `TreepackRestore` with options; `load_checkpointables` takes it.

    Its name in Orbax is `treepack.orbax_v1.TreepackHandler` in all versions. `registry` makes Orbax
    use it.
    """

    how: Writing = Writing()
    """How files are written."""

    restore: TreepackRestore = TreepackRestore()
    """How trees are loaded where a call says nothing else."""

    async def save(self, directory: Any, checkpointable: Any) -> Awaitable[None]:
        """Takes a snapshot of the tree; the result writes it."""
        args = checkpointable
        if not isinstance(args, TreepackSave):
            args = TreepackSave(args)
        if _option("array.saving.storage_options.dtype") is not None:
            raise TreepackError(
                "treepack saves arrays with their dtypes: cast them before, and leave "
                "array.saving.storage_options.dtype as it is"
            )
        path = directory.path
        saved = Saved(metadata=args.metadata, static=args.static, step=step_of(path))
        write = ShardedWrite(path, args.item, saved, self.how, snapshot=True)
        return _Write(directory, write, self.how)

    async def load(self, directory: Any, abstract_checkpointable: Any = None) -> Awaitable[Any]:
        """Loads the tree in a directory.

        Not in the background: Orbax waits for it anyway, and hides the errors that come there.
        """
        args = abstract_checkpointable
        if not isinstance(args, TreepackRestore):
            args = TreepackRestore(args)
        if _option("array.loading.enable_padding_and_truncation"):
            raise TreepackError(
                "treepack neither pads nor truncates arrays: load them as they are, without "
                "enable_padding_and_truncation, and do so with jax.numpy"
            )
        default = self.restore
        if _option("pytree.loading.partial_load") and default.unexpected is None:
            default = dataclasses.replace(default, unexpected="ignore")
        if _option("array.loading.use_load_and_broadcast") and default.replicas is None:
            default = dataclasses.replace(default, replicas="broadcast")
        return _Loaded(restored(directory, args, default))

    async def metadata(self, directory: Any) -> Any:
        """Returns the tree with the shapes and dtypes of its arrays; see `treepack.abstract`."""
        return metadata_of(directory, self.restore)

    def is_handleable(self, checkpointable: Any) -> bool:
        """Returns whether a checkpointable is a tree with arrays."""
        return isinstance(checkpointable, TreepackSave) or _has_arrays(checkpointable)

    def is_abstract_handleable(self, abstract_checkpointable: Any) -> bool:
        """Returns whether an abstract checkpointable is a tree with arrays."""
        is_ours = isinstance(abstract_checkpointable, TreepackRestore)
        return is_ours or _has_arrays(abstract_checkpointable)


def _option(path: str) -> Any:
    """Returns an option of Orbax's context, or `None` where this version of Orbax has no such."""
    found = get_context()
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def _has_arrays(tree: Any) -> bool:
    return any(hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in jax.tree.leaves(tree))


class _Loaded:
    """A tree to be awaited."""

    def __init__(self, tree: Any):
        self._tree = tree

    def __await__(self) -> Generator[Any, None, Any]:
        return self._tree
        yield  # this is a generator


class _Write:
    """A save that is written when it is awaited; otherwise all others are told."""

    def __init__(self, directory: Any, write: ShardedWrite, how: Writing):
        self._directory = directory
        self._write: ShardedWrite | None = write
        self._how = how

    def __await__(self) -> Generator[Any, None, None]:
        return self._written().__await__()

    async def _written(self) -> None:
        path = await self._directory.await_creation()
        write, self._write = self._write, None
        assert write is not None
        # In a thread, since others that this process saves may wait for those of other processes.
        await asyncio.to_thread(write, None)
        if jax.process_index() == 0:
            write_small(joined(path, _MARK), _MARK_TEXT, durable=self._how.durable)

    def __del__(self) -> None:
        if self._write is not None:
            self._write.abandon(TreepackError("Orbax has given up the save"))


def registry(
    names: Iterable[str] = ("state",),
    *,
    compress: Compress = False,
    level: int | None = None,
    align: int = 64,
    durable: bool = True,
    threads: int | None = None,
    restore: TreepackRestore | None = None,
) -> Any:
    """Returns a registry of handlers, in which treepack's is the one for trees with arrays.

    It loads what that of version 0 has saved. All others of the global registry are there, too.
    Set it as `checkpointables.registry` of a `Context`.

    Args:
      names: The names of checkpointables that treepack saves and loads whatever they are. Orbax
        has its own handler for the name `state`, which `save` and `load` use.
      compress: See `treepack.save`, as for all others.
      level: From 0 (stored) to 9 (smallest).
      align: The alignment of arrays.
      durable: Whether files are on the disk when a checkpoint counts as saved.
      threads: The maximum number of threads that copy, sum and compress.
      restore: How trees are loaded where a `TreepackRestore`, if any, says nothing else.

    Returns:
      A registry of Orbax.

    Examples:
      >>> import jax.numpy as jnp, orbax.checkpoint.experimental.v1 as ocp, tempfile
      >>> from treepack.orbax_v1 import registry
      >>> context = ocp.Context()
      >>> context.checkpointables.registry = registry(compress=True)
      >>> with context:
      ...     ocp.save(f"{tempfile.mkdtemp()}/5", {"w": jnp.ones((8, 2))})
    """
    own = {
        "how": Writing(
            compress=compress, level=level, align=align, durable=durable, threads=threads
        ),
        "restore": restore or TreepackRestore(),
        "__module__": __name__,
        "__qualname__": "TreepackHandler",
    }
    handler = type("TreepackHandler", (TreepackHandler,), own)  # Orbax makes it without arguments
    names = {*names}
    made = ocp.handlers.local_registry(include_global_registry=False)
    others = ocp.handlers.global_registry()
    for other, name in others.get_all_entries():
        if name not in names:
            aliases = others.get_secondary_typestrs(other)
            made.add(other, checkpointable_name=name, secondary_typestrs=aliases)
    made.add(handler, secondary_typestrs=[TreepackV0Handler.typestr()])
    for name in sorted(names):
        made.add(handler, checkpointable_name=name)
    return made
