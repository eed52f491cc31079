"""Saves checkpoints of treepack with version 1 of Orbax's API.

Needs `orbax-checkpoint`. With `registry`, `save`, `load`, `metadata`, their `_checkpointables`
variants and `training.Checkpointer` of `orbax.checkpoint.experimental.v1`, or of
`orbax.checkpoint.v1` where Orbax has that, use `TreepackHandler`, in any number of processes. A
checkpointable is a directory as of `treepack.save(sharded=True)`, which `treepack.load`,
`treepack.open` and the command line read.

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
import sys
from collections.abc import Awaitable, Generator, Iterable
from typing import Any, Unpack

from treepack import LoadOptions
from treepack._src.options import WriteOptions, Writing, takes
from treepack._src.saving.sharded import ShardedWrite
from treepack._src.storage.address import Address
from treepack.errors import TreepackError
from treepack.orbax import TreepackHandler as TreepackV0Handler
from treepack.orbax import TreepackRestore, TreepackSave, begun, metadata_of, restored

try:  # the place in versions after 0.12.8
    import orbax.checkpoint.v1 as ocp  # type: ignore[import-not-found, import-untyped, unused-ignore]
except ModuleNotFoundError:
    import orbax.checkpoint.experimental.v1 as ocp  # type: ignore[import-untyped, unused-ignore]

import jax  # comes with Orbax, whose absence treepack.orbax explains

__all__ = ["TreepackHandler", "TreepackRestore", "TreepackSave", "registry"]

# Orbax treats directories with the first file as trees, calls the handler for them, and logs that
# they may be malformed without the second one. Orbax's own handler cannot read their content.
_MARKS = ("_METADATA", "manifest.ocdbt")

_MARK_TEXT = b'{"format": "treepack: load it with treepack.orbax_v1, or treepack.load"}'


class TreepackHandler:
    """Saves and loads one checkpointable; see `registry` for its use.

    That is a tree, or a `TreepackSave` with options. An abstract checkpointable, which
    `load_checkpointables` takes, is a tree, or a `TreepackRestore` with options. Its name in Orbax
    is `treepack.orbax_v1.TreepackHandler` in all versions.

    Attributes:
      writing: How files are written.
      restore: The default options of loads.
    """

    writing: Writing = Writing()
    restore: TreepackRestore = TreepackRestore()

    async def save(self, directory: Any, checkpointable: Any) -> Awaitable[None]:
        """Takes a snapshot of the tree; awaiting the result writes it."""
        args = checkpointable
        if not isinstance(args, TreepackSave):
            args = TreepackSave(args)
        _check_processes()
        _check_storage(args.item)
        write = begun(directory.path, args, self.writing, snapshot=True)
        return _Write(directory, write, self.writing)

    async def load(self, directory: Any, abstract_checkpointable: Any = None) -> Awaitable[Any]:
        """Loads the tree in a directory.

        Not in the background: Orbax waits anyway, and hides errors there.
        """
        args = abstract_checkpointable
        if not isinstance(args, TreepackRestore):
            args = TreepackRestore(args)
        if _option("array.loading.enable_padding_and_truncation"):
            raise TreepackError(
                "treepack neither pads nor truncates arrays: load without "
                "enable_padding_and_truncation, then pad or truncate with jax.numpy"
            )
        more: LoadOptions = {}
        if _option("pytree.loading.partial_load"):
            more["unexpected"] = "ignore"
        if _option("array.loading.use_load_and_broadcast"):
            more["replicas"] = "broadcast"
        loaded = asyncio.get_running_loop().create_future()
        loaded.set_result(restored(directory, args, self.restore, more))
        return loaded

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
    option = sys.modules[ocp.Context.__module__].get_context()  # has no public name
    for name in path.split("."):
        option = getattr(option, name, None)
    return option


def _check_processes() -> None:
    """Raises a TreepackError if options leave out processes, or let another one lead."""
    options, number = _option("multiprocessing"), jax.process_count()
    active = getattr(options, "active_processes", None)
    is_usual = getattr(options, "primary_host", 0) == 0 and (not active or len(active) == number)
    if number > 1 and not is_usual:
        raise TreepackError(
            "treepack saves in all processes together, and process 0 leads: leave "
            "multiprocessing.active_processes and primary_host unset"
        )


def _check_storage(tree: Any) -> None:
    named_options = [("storage_options", _option("array.saving.storage_options"))]
    scoped = _option("array.saving.scoped_storage_options_creator")
    if scoped is not None:
        leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
        named_options += [("scoped_storage_options_creator", scoped(*leaf)) for leaf in leaves]
    for name, options in named_options:
        if getattr(options, "dtype", None) is not None:
            raise TreepackError(
                "treepack saves arrays with their own dtypes: cast them before saving, and leave "
                f"the dtype of array.saving.{name} unset"
            )


def _has_arrays(tree: Any) -> bool:
    return any(hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in jax.tree.leaves(tree))


class _Write:
    def __init__(self, directory: Any, write: ShardedWrite, writing: Writing):
        self._directory = directory
        self._write: ShardedWrite | None = write
        self._writing = writing

    def __await__(self) -> Generator[Any, None, None]:
        return self._written().__await__()

    async def _written(self) -> None:
        path = await self._directory.await_creation()
        write, self._write = self._write, None
        assert write is not None
        # In a thread, since other saves of this process may wait for saves of other processes.
        await asyncio.to_thread(write, None)
        if jax.process_index() == 0:
            for mark in _MARKS:
                (Address.of(path) / mark).write_bytes(_MARK_TEXT, durable=self._writing.durable)

    def __del__(self) -> None:
        if self._write is not None:
            self._write.abandon(TreepackError("Orbax abandoned the save"))


@takes(WriteOptions)
def registry(
    names: Iterable[str] = ("state",),
    *,
    restore: TreepackRestore | None = None,
    **options: Unpack[WriteOptions],
) -> Any:
    """Returns a registry of Orbax that handles trees with arrays by treepack.

    Its handler also loads checkpoints of `treepack.orbax.TreepackHandler`. The registry includes
    all other handlers of the global registry. Set it as `checkpointables.registry` of a `Context`.

    Args:
      names: The names of checkpointables that treepack always handles. Orbax has its own handler
        for the name `state`, which `save` and `load` use.
      durable: Whether a checkpoint counts as saved only once its files are on the disk.
      restore: The default options of loads; see `TreepackRestore`.
      compress: See `treepack.save`, also for other options.

    Examples:
      >>> import jax.numpy as jnp, orbax.checkpoint.experimental.v1 as ocp, tempfile
      >>> from treepack.orbax_v1 import registry
      >>> context = ocp.Context()
      >>> context.checkpointables.registry = registry(compress=True)
      >>> with context:
      ...     ocp.save(f"{tempfile.mkdtemp()}/5", {"w": jnp.ones((8, 2))})
    """
    own = {
        "writing": Writing.of(options),
        "restore": restore or TreepackRestore(),
        "__module__": __name__,
        "__qualname__": "TreepackHandler",
    }
    # Orbax instantiates it without arguments.
    handler = type("TreepackHandler", (TreepackHandler,), own)
    names = {*names}
    registry = ocp.handlers.local_registry(include_global_registry=False)
    others = ocp.handlers.global_registry()
    for other, name in others.get_all_entries():
        if name not in names:
            aliases = others.get_secondary_typestrs(other)
            registry.add(other, checkpointable_name=name, secondary_typestrs=aliases)
    registry.add(handler, secondary_typestrs=[TreepackV0Handler.typestr()])
    for name in sorted(names):
        registry.add(handler, checkpointable_name=name)
    return registry


def __dir__() -> list[str]:
    return sorted(__all__)
