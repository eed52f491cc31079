"""Series of checkpoints: a drop-in for `flax.training.checkpoints`.

Replace `from flax.training import checkpoints` with `from treepack import checkpoints`. Every
public name is here, with the same signature; further options are keyword-only. A checkpoint is a
file whose name is a prefix and a step, such as `checkpoint_100`. flax reads the files written here,
and the reverse. Checkpoints of Orbax in the same directory are restored as well.

A checkpoint appears once it is complete on the disk; only then are older ones removed. Directories
may be URLs of stores.

Examples:
  >>> import jax.numpy as jnp, tempfile
  >>> from treepack import checkpoints
  >>> directory, state = tempfile.mkdtemp(), {"w": jnp.ones(3)}
  >>> for step in range(5):
  ...     _ = checkpoints.save_checkpoint(directory, state, step, keep=2)
  >>> checkpoints.available_steps(directory)
  [3, 4]
  >>> checkpoints.restore_checkpoint(directory, state)
  {'w': array([1., 1., 1.], dtype=float32)}
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, Unpack

from treepack import serialization
from treepack._src.api.files import save
from treepack._src.interop import jax as _jax
from treepack._src.options import StorageOptions, takes
from treepack._src.saving.background import Saving
from treepack._src.saving.sharded import is_distributed
from treepack._src.storage.address import Location
from treepack.checkpoints._linen import MODULE_NUM_RE, convert_pre_linen
from treepack.checkpoints._manager import AsyncManager
from treepack.checkpoints._names import (
    MP_ARRAY_POSTFIX,
    SCHEME_RE,
    SIGNED_FLOAT_RE,
    UNSIGNED_FLOAT_RE,
    Steps,
    natural_sort,
    safe_normpath,
)
from treepack.checkpoints._orbax import (
    ORBAX_CKPT_FILENAME,
    ORBAX_MANIFEST_OCDBT,
    ORBAX_METADATA_FILENAME,
    save_by_orbax,
)
from treepack.checkpoints._restoring import MP_ARRAY_PH, Restoring, is_checkpoint
from treepack.checkpoints._retention import check_newest, tidy
from treepack.errors import TreepackError
from treepack.serialization import FileWriteOptions, RestoreOptions

__all__ = [
    "COMMIT_SUCCESS_FILE",
    "MODULE_NUM_RE",
    "MP_ARRAY_PH",
    "MP_ARRAY_POSTFIX",
    "ORBAX_CKPT_FILENAME",
    "ORBAX_MANIFEST_OCDBT",
    "ORBAX_METADATA_FILENAME",
    "SCHEME_RE",
    "SIGNED_FLOAT_RE",
    "UNSIGNED_FLOAT_RE",
    "AsyncManager",
    "MultiprocessArrayType",
    "PyTree",
    "available_steps",
    "convert_pre_linen",
    "latest_checkpoint",
    "natural_sort",
    "restore_checkpoint",
    "safe_normpath",
    "save_checkpoint",
    "save_checkpoint_multiprocess",
]

COMMIT_SUCCESS_FILE = "commit_success.txt"
"""The file that marks a directory of multi-process arrays in a bucket as complete."""

PyTree = Any
"""Any tree."""

MultiprocessArrayType = Any
"""A JAX array on the devices of several processes."""

for _public in (AsyncManager, convert_pre_linen, natural_sort, safe_normpath):
    _public.__module__ = __name__  # the public path, for tracebacks
del _public


@takes(FileWriteOptions)
def save_checkpoint(
    ckpt_dir: Location,
    target: PyTree,
    step: int | float,
    prefix: str = "checkpoint_",
    keep: int = 1,
    overwrite: bool = False,
    keep_every_n_steps: int | None = None,
    async_manager: AsyncManager | None = None,
    orbax_checkpointer: Any = None,
    **options: Unpack[FileWriteOptions],
) -> str:
    """Saves a tree as the checkpoint of a step, and removes older ones.

    Of several processes, each that calls this writes the file; `save_checkpoint_multiprocess`
    writes one checkpoint from all.

    Args:
      ckpt_dir: The directory or its URL. It is created if it does not exist.
      target: Any tree; see `treepack.serialization.to_state_dict`.
      step: The step, or another number.
      prefix: The prefix of the file names.
      keep: The number of newest checkpoints to keep.
      overwrite: Whether to replace the checkpoint of this step, and remove checkpoints of later
        steps. Otherwise they are an error.
      keep_every_n_steps: The minimum number of steps between older checkpoints that are also kept.
      async_manager: Saves in the background; the tree may change as soon as this returns.
      orbax_checkpointer: A checkpointer of Orbax that saves the tree instead of treepack.
      compress: See `treepack.save`, also for other options. flax does not read compressed files.

    Returns:
      The path of the checkpoint.

    Raises:
      InvalidCheckpointError: If there is a checkpoint of this step or a later one.
      UnserializableLeafError: A TypeError with the path, if a leaf cannot be stored.

    Warns:
      UserWarning: If older checkpoints cannot be removed.

    Examples:
      >>> import numpy as np, tempfile
      >>> from treepack import checkpoints
      >>> directory = tempfile.mkdtemp()
      >>> _ = checkpoints.save_checkpoint(directory, {"w": np.zeros(3)}, 2)
      >>> checkpoints.save_checkpoint(directory, {"w": np.ones(3)}, 1)
      Traceback (most recent call last):
        ...
      treepack.errors.InvalidCheckpointError: ...
    """
    if not hasattr(keep, "__index__"):
        raise TypeError(f"keep must be an integer, got {keep!r:.100}: a large one keeps all")
    _wait_for(async_manager, orbax_checkpointer)
    given = Steps.at(ckpt_dir, prefix, options.pop("storage_options", None))
    folder, name = given.fixed(), given.name(step)
    commit = functools.partial(tidy, folder, name, keep, overwrite, keep_every_n_steps)
    if orbax_checkpointer is not None:
        if save_by_orbax(folder.path(name), target, orbax_checkpointer, overwrite=overwrite):
            commit()
        return given.path(name).plain
    if not overwrite:
        check_newest(folder, name)
    how: Any = {**options, "background": async_manager is not None}
    saving = serialization.save_to_file(target, folder.path(name), **how)
    _finish(saving, commit, async_manager)
    return given.path(name).plain


def _wait_for(manager: AsyncManager | None, checkpointer: Any) -> None:
    if manager is not None and not hasattr(manager, "wait_previous_save"):
        raise TypeError(f"async_manager must be a checkpoints.AsyncManager(), got {manager!r:.100}")
    if manager is not None:
        manager.wait_previous_save()
    if hasattr(checkpointer, "wait_until_finished"):
        checkpointer.wait_until_finished()


def _finish(
    saving: Saving | None, commit: Callable[[], None], manager: AsyncManager | None
) -> None:
    def work() -> None:
        if saving is not None:
            saving.result()
        commit()

    if manager is None:
        work()
    else:
        manager.save_async(work)


@takes(FileWriteOptions)
def save_checkpoint_multiprocess(
    ckpt_dir: Location,
    target: PyTree,
    step: int | float,
    prefix: str = "checkpoint_",
    keep: int = 1,
    overwrite: bool = False,
    keep_every_n_steps: int | None = None,
    async_manager: AsyncManager | None = None,
    gda_manager: Any = None,
    orbax_checkpointer: Any = None,
    **options: Unpack[FileWriteOptions],
) -> str:
    """Saves a tree as the checkpoint of a step, together with all other processes.

    All processes must call this with the same tree. Process 0 removes older checkpoints, and writes
    a file if no array is sharded over processes. Otherwise the checkpoint is a directory of shards,
    as of `treepack.save(sharded=True)`; flax cannot read it.

    Args:
      ckpt_dir: The directory or its URL, the same for all processes.
      target: Any tree.
      step: The step, or another number.
      prefix: See `save_checkpoint`.
      keep: See `save_checkpoint`.
      overwrite: See `save_checkpoint`.
      keep_every_n_steps: See `save_checkpoint`.
      async_manager: See `save_checkpoint`. Every process must pass one.
      gda_manager: Not supported; it must be `None`.
      orbax_checkpointer: See `save_checkpoint`.
      compress: See `save_checkpoint`, also for other options.

    Returns:
      The path of the checkpoint.

    Raises:
      InvalidCheckpointError: If there is a checkpoint of this step or a later one.
      TreepackError: If another process fails or saves another tree, or if `gda_manager` is not
        `None`.
      UnserializableLeafError: See `save_checkpoint`, also for further errors.

    Examples:
      >>> import jax.numpy as jnp, tempfile
      >>> from treepack import checkpoints
      >>> directory = tempfile.mkdtemp()
      >>> path = checkpoints.save_checkpoint_multiprocess(directory, {"w": jnp.ones(2)}, 1)
      >>> checkpoints.restore_checkpoint(path, None)
      {'w': array([1., 1.], dtype=float32)}
    """
    if gda_manager is not None:
        raise TreepackError(
            "gda_manager= is not supported: leave it out. Arrays of several processes are saved "
            "in one directory per step, in the background with async_manager="
        )
    _wait_for(async_manager, orbax_checkpointer)
    is_first = _jax.wait_for_all("treepack: earlier saves") == 0
    given = Steps.at(ckpt_dir, prefix, options.pop("storage_options", None))
    folder, name = given.fixed(), given.name(step)
    path = folder.path(name)
    commit = functools.partial(tidy, folder, name, keep, overwrite, keep_every_n_steps)
    if orbax_checkpointer is not None:
        if is_first:
            commit()  # before the save: an asynchronous checkpointer has no callback
        save_by_orbax(path, target, orbax_checkpointer, overwrite=overwrite)
        return given.path(name).plain
    state = serialization.to_state_dict(target)
    if not overwrite:
        check_newest(folder, name)
        _jax.wait_for_all("treepack: no later checkpoint")
    how: Any = {**options, "background": async_manager is not None}
    if is_distributed(state):
        saving = save(path, state, sharded=True, static="error", **how)
        _finish(saving, commit if is_first else lambda: None, async_manager)
    elif is_first:
        _finish(serialization.save_to_file(state, path, **how), commit, async_manager)
    return given.path(name).plain


@takes(RestoreOptions, early=True, strict=False, mmap=False)
def restore_checkpoint(
    ckpt_dir: Location,
    target: PyTree | None,
    step: int | float | None = None,
    prefix: str = "checkpoint_",
    parallel: bool = True,
    gda_manager: Any = None,
    allow_partial_mpa_restoration: bool = False,
    orbax_checkpointer: Any = None,
    orbax_transforms: dict[str, Any] | None = None,
    **options: Unpack[RestoreOptions],
) -> PyTree:
    """Restores the checkpoint of a step, or the newest one.

    Args:
      ckpt_dir: The directory of the checkpoints or its URL; or, without `step`, the path of a
        checkpoint.
      target: A template; see `treepack.serialization.from_state_dict`. `None` returns the state
        dict.
      step: `None` restores the newest checkpoint.
      prefix: The prefix of the file names.
      parallel: Whether to decompress and copy with several threads.
      gda_manager: Ignored: arrays of several processes are read without one.
      allow_partial_mpa_restoration: Whether arrays that flax saved in TensorStore beside the file
        become placeholders (`MP_ARRAY_PH` and their path) instead of an error.
      orbax_checkpointer: A checkpointer of Orbax, for its checkpoints.
      orbax_transforms: Its transformations.
      strict: See `treepack.load`. By default shapes and dtypes are not compared, as in flax.
      mmap: Whether to map the file instead of reading it. On network file systems, another host
        must not remove a mapped file, as later saves do.
      replicas: See `treepack.load`; only for checkpoints of several processes, with a target.
      copy: See `treepack.load`, also for other options.

    Returns:
      The tree, with NumPy arrays as of flax; those of a directory have the shardings of the target.
      Or the target itself if `step` is `None` and no checkpoint exists.

    Warns:
      UserWarning: If the target is returned, and the directory has checkpoints of another prefix.

    Raises:
      ValueError: If the step has no checkpoint.
      MismatchError: If the checkpoint does not match the target; it lists all differences.
      DecodeError: With the byte offset, if a file has another format.
      MultiprocessArrayError: If flax saved arrays of several processes in TensorStore beside the
        file.
      ImportError: If the checkpoint is Orbax's and Orbax is not installed.

    Examples:
      >>> import numpy as np, tempfile
      >>> from treepack import checkpoints
      >>> directory = tempfile.mkdtemp()
      >>> _ = checkpoints.save_checkpoint(directory, [np.ones(2)], 7)
      >>> checkpoints.restore_checkpoint(directory, [np.zeros(2)])
      [array([1., 1.])]
    """
    del gda_manager
    root = Steps.at(ckpt_dir, "", options.pop("storage_options", None))
    options = {"strict": False, "mmap": False, **options}
    if not parallel:
        options["threads"] = 1
    _wait_for(None, orbax_checkpointer)
    restored = Restoring(
        target,
        {**options},
        allow_partial=allow_partial_mpa_restoration,
        checkpointer=orbax_checkpointer,
        transforms=orbax_transforms,
    )
    steps = Steps(root.directory, prefix)
    if step is not None:
        entry = steps.entry(steps.name(step))
        try:
            return restored(entry)
        except (FileNotFoundError, NotADirectoryError):
            if entry.is_directory:
                raise
            numbers: list[str] = []
            with contextlib.suppress(NotADirectoryError):
                numbers = steps.steps()
            there = (
                f"there are the steps {', '.join(numbers)}" if numbers else "there is no checkpoint"
            )
            if root.entry().path.is_local and not root.entry().is_directory and not numbers:
                there += ": pass its directory, or leave out step="
            message = f"Matching checkpoint not found: {entry.path.shown}; {there}"
            raise ValueError(message) from None
    itself = root.entry()
    if not itself.is_directory:
        try:
            return restored(itself)
        except (FileNotFoundError, NotADirectoryError):
            with contextlib.suppress(NotADirectoryError):
                steps.listing()  # an error if there is a directory that may not be listed
            return target
    if is_checkpoint(itself):
        return restored(itself)
    listing = steps.ordered(itself if steps.directory == root.directory else None)
    while (last := listing.newest()) is not None:
        try:
            return restored(last)
        except Exception:
            if last.name in steps.names():
                raise
            listing = steps.ordered()  # another process saved a newer one and removed it
    steps.warn_of_others("restore_checkpoint")
    return target


def latest_checkpoint(
    ckpt_dir: Location,
    prefix: str = "checkpoint_",
    *,
    storage_options: StorageOptions = None,
) -> str | None:
    """Returns the path of the newest checkpoint in a directory, or `None`.

    Args:
      ckpt_dir: The directory or its URL.
      prefix: The prefix of the file names.
      storage_options: See `save_checkpoint`.

    Warns:
      UserWarning: If there is none, and the directory has checkpoints of another prefix.

    Examples:
      >>> import tempfile
      >>> from treepack import checkpoints
      >>> directory = tempfile.mkdtemp()
      >>> path = checkpoints.save_checkpoint(directory, {"a": 1}, 7)
      >>> checkpoints.latest_checkpoint(directory) == path
      True
    """
    steps = Steps.given(ckpt_dir, prefix, storage_options)
    last = steps.ordered().newest()
    if last is None:
        steps.warn_of_others("latest_checkpoint")
        return None
    return last.path.plain


def available_steps(
    ckpt_dir: Location,
    prefix: str = "checkpoint_",
    step_type: Any = int,
    *,
    storage_options: StorageOptions = None,
) -> list[int | float]:
    """Returns the steps of all checkpoints in a directory, in ascending order.

    Args:
      ckpt_dir: The directory or its URL.
      prefix: The prefix of the file names.
      step_type: The type of the steps: `int` or `float`.
      storage_options: See `save_checkpoint`.

    Raises:
      ValueError: If the suffix of a name is not a number of type `step_type`.

    Examples:
      >>> import tempfile
      >>> from treepack import checkpoints
      >>> directory = tempfile.mkdtemp()
      >>> for step in (9, 10):
      ...     _ = checkpoints.save_checkpoint(directory, {"a": 1}, step, keep=2)
      >>> checkpoints.available_steps(directory)
      [9, 10]
    """
    steps = Steps.given(ckpt_dir, prefix, storage_options).steps()
    return [step_type(step) for step in steps]


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"module {__name__!r} has no attribute {name!r}: use save_checkpoint, restore_checkpoint, "
        "latest_checkpoint or available_steps, or treepack.Series"
    )


def __dir__() -> list[str]:
    return sorted(__all__)
