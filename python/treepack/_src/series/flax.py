"""Parts of `treepack.checkpoints` beside files: places, Linen, Orbax, saves in the background."""

from __future__ import annotations

import collections
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

import numpy as np

from treepack._src.interop.flax import is_frozen_dict
from treepack._src.interop.modules import error_class
from treepack._src.options import StorageOptions, Strict
from treepack._src.pytree.state_dict import leaves_of, to_state_dict
from treepack._src.restore.template import from_state_dict
from treepack._src.saving.background import LoggedFuture, begin, wait_at
from treepack._src.series.names import Folder, natural_sort, safe_normpath
from treepack._src.series.names import directory_of as _directory_of
from treepack._src.storage.foreign import FLAX_REFERENCE, reference_text
from treepack._src.storage.place import absolute, joined, like, shown
from treepack.errors import MultiprocessArrayError

MP_ARRAY_PH = FLAX_REFERENCE
"""The prefix of placeholders for arrays that flax keeps in TensorStore beside the file."""


def directory_of(given: Any, storage_options: StorageOptions = None) -> str:
    """Returns the path or URL of a directory as flax normalizes it: `a/../b` is `b`."""
    directory = _directory_of(given, storage_options)
    return like(directory, safe_normpath(directory))


class StepPath:
    """The path of the checkpoint of a step.

    Attributes:
      path: Its path as the program has given it.
      folder: The series that it belongs to, also after the program changes its directory.
      name: Its name there.
      absolute: Its absolute path.
    """

    def __init__(self, directory: str, step: object, prefix: str):
        self.path = joined(directory, f"{prefix}{step}")
        self.folder = Folder(absolute(directory), prefix)
        self.name = self.folder.name(step)
        self.absolute = self.folder.path(self.name)


def _has_placeholders(tree: Any) -> bool:
    """Returns whether leaves are placeholders of flax for arrays in TensorStore."""
    if type(tree) is dict:
        return any(map(_has_placeholders, tree.values()))
    if type(tree) is np.ndarray:
        return False
    return any(
        isinstance(leaf, str) and leaf.startswith(MP_ARRAY_PH) for _, leaf in leaves_of(tree, ())
    )


def check_placeholders(tree: Any) -> None:
    """Raises a MultiprocessArrayError if leaves are placeholders for arrays in TensorStore."""
    if _has_placeholders(tree):
        raise error_class(MultiprocessArrayError, "flax.errors", "MPACheckpointingRequiredError")(
            f"arrays are missing: it has {reference_text(MP_ARRAY_PH)}"
        )


# Parameters from before Linen


MODULE_NUM_RE = re.compile(r"(.*)_[0-9]+$")
"""The name of a module of flax and its number."""


def convert_pre_linen(params: Any) -> Any:
    """Renames the modules in parameters that were saved before flax had Linen.

    There, all modules of a parent were counted together (`Conv_0`, `Dense_1`); Linen counts those
    of each class (`Conv_0`, `Dense_0`). Parameters of Linen stay as they are.

    Args:
      params: The parameters: dicts or FrozenDicts of modules.

    Examples:
      >>> from treepack import checkpoints
      >>> checkpoints.convert_pre_linen({"Conv_0": {"w": 1}, "Dense_1": {"w": 2}})
      {'Conv_0': {'w': 1}, 'Dense_0': {'w': 2}}
    """
    if not isinstance(params, dict) and not is_frozen_dict(params):
        return params
    renamed: dict[str, Any] = {}
    counts: dict[str, Iterator[int]] = collections.defaultdict(itertools.count)
    for name in natural_sort(params):
        match = MODULE_NUM_RE.match(name)
        new = name if match is None else f"{match[1]}_{next(counts[match[1]])}"
        renamed[new] = convert_pre_linen(params[name])
    return type(params)(renamed) if is_frozen_dict(params) else renamed


# Checkpoints of Orbax


ORBAX_CKPT_FILENAME = "checkpoint"
"""A file that old checkpoints of Orbax have."""

ORBAX_MANIFEST_OCDBT = "manifest.ocdbt"
"""A file that checkpoints of Orbax with OCDBT have."""

ORBAX_METADATA_FILENAME = "_METADATA"
"""A file that checkpoints of trees have in Orbax."""

_MARKS = frozenset((ORBAX_METADATA_FILENAME, ORBAX_CKPT_FILENAME, ORBAX_MANIFEST_OCDBT))


def is_of_orbax(names: Iterable[str]) -> bool:
    """Returns whether a directory with these entries is a checkpoint of Orbax."""
    return not _MARKS.isdisjoint(names)


def wait_for(manager: AsyncManager | None, checkpointer: Any) -> None:
    """Waits until earlier saves in the background have ended."""
    if manager is not None:
        manager.wait_previous_save()
    if hasattr(checkpointer, "wait_until_finished"):
        checkpointer.wait_until_finished()


def save_by_orbax(path: str, target: Any, checkpointer: Any, *, overwrite: bool) -> None:
    """Saves a tree with a checkpointer.

    Raises:
      ValueError: If the tree is one leaf.
    """
    ocp = _needed("orbax_checkpointer needs Orbax")
    import jax

    is_leaf = jax.tree_util.treedef_is_leaf(jax.tree.structure(target))
    if is_leaf and not isinstance(checkpointer.handler, ocp.ArrayCheckpointHandler):
        raise ValueError(
            f"Orbax saves trees, and the target is one {type(target).__name__}: put it into a "
            "dict, or pass a checkpointer with an ArrayCheckpointHandler"
        )
    checkpointer.save(path, target, force=overwrite)


def restore_by_orbax(
    path: str, target: Any, checkpointer: Any, transforms: Any, *, strict: Strict
) -> Any:
    """Restores a tree of Orbax, with the shardings of a target."""
    ocp = _needed(f"{shown(path)!r} is a checkpoint of Orbax")
    checkpointer = checkpointer or ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
    options: dict[str, Any] = {}
    if target is not None:
        options["restore_args"] = _restore_args(ocp, target)
        if isinstance(checkpointer.handler, ocp.PyTreeCheckpointHandler):
            options["transforms"] = _transforms(ocp, target) if transforms is None else transforms
    state = to_state_dict(checkpointer.restore(path, item=target, **options))
    return state if target is None else from_state_dict(target, state, strict=strict)


def _restore_args(ocp: Any, target: Any) -> Any:
    """Returns how to restore each leaf: as NumPy arrays if no leaf has a sharding."""
    import jax

    shardings = jax.tree.map(lambda leaf: getattr(leaf, "sharding", None), target)
    if not jax.tree.leaves(shardings):
        return jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), target)
    make = ocp.checkpoint_utils.construct_restore_args
    return make(target, shardings, set_global_shape=False)


def _transforms(ocp: Any, target: Any) -> Any:
    """Returns the transformations that skip leaves where the target has `None`."""
    flat = ocp.utils.to_flat_dict(target, sep="/", keep_empty_nodes=True)
    return {key: ocp.Transform(use_fallback=True) for key, leaf in flat.items() if leaf is None}


def _needed(reason: str) -> Any:
    try:
        import orbax.checkpoint as ocp  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError(f"{reason}: pip install orbax-checkpoint") from error
    return ocp


# Saves in the background


T = TypeVar("T")


class _OneByOne(Executor):
    """Does one task after another, each in a thread; a signal handler may submit one as well."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> LoggedFuture[T]:
        """Begins a task as soon as the one before has ended."""
        work = functools.partial(fn, *args, **kwargs)
        future = LoggedFuture("a checkpoint in the background", work)
        begin(self, future)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Waits for all tasks."""
        del cancel_futures  # all have begun
        if wait:
            wait_at(self)


class AsyncManager:
    """Saves in the background: pass one to each `save_checkpoint` of a series.

    A save waits for the end of the one before. The program ends only after the last one. An error
    that is not retrieved is raised by the next save, or else logged.

    Attributes:
      executor: A `concurrent.futures.Executor`, which does one save after another.
      save_future: The last save: `result()` waits for its end and raises its error.

    Examples:
      >>> import numpy as np, tempfile
      >>> from treepack import checkpoints
      >>> directory, manager = tempfile.mkdtemp(), checkpoints.AsyncManager()
      >>> state = {"w": np.zeros(3)}
      >>> _ = checkpoints.save_checkpoint(directory, state, 1, async_manager=manager)
      >>> state["w"][:] = 1  # the save does not see this
      >>> manager.wait_previous_save()
      >>> checkpoints.restore_checkpoint(directory, None)
      {'w': array([0., 0., 0.])}
    """

    def __init__(self, max_workers: int = 1):
        self.executor: _OneByOne = _OneByOne()
        self.save_future: Future[Any] | None = None
        self._last: LoggedFuture[Any] | None = None
        del max_workers  # a save waits for the one before, as with flax

    def wait_previous_save(self) -> None:
        """Waits until the last save has ended.

        Raises:
          Exception: Its error, unless `save_future` has already raised it.
        """
        last = self._last
        if last is not None:
            last.wait()
            if last.has_unretrieved_error:
                last.result()

    def save_async(self, task: Callable[[], Any]) -> None:
        """Waits until the last save has ended, and begins another one.

        Args:
          task: The function that saves.
        """
        self.wait_previous_save()
        self.save_future = self._last = self.executor.submit(task)
