from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from treepack import serialization
from treepack._src.options import Strict
from treepack._src.runs.steps import CheckpointEntry

ORBAX_CKPT_FILENAME = "checkpoint"
"""A file that old checkpoints of Orbax have."""

ORBAX_MANIFEST_OCDBT = "manifest.ocdbt"
"""A file that checkpoints of Orbax with OCDBT have."""

ORBAX_METADATA_FILENAME = "_METADATA"
"""A file that checkpoints of trees have in Orbax."""

_MARKS = frozenset((ORBAX_METADATA_FILENAME, ORBAX_CKPT_FILENAME, ORBAX_MANIFEST_OCDBT))


def is_of_orbax(names: Iterable[str]) -> bool:
    return not _MARKS.isdisjoint(names)


def save_by_orbax(path: str, target: Any, checkpointer: Any, *, overwrite: bool) -> bool:
    ocp = _needed("orbax_checkpointer needs Orbax")
    import jax

    is_leaf = jax.tree_util.treedef_is_leaf(jax.tree.structure(target))
    if is_leaf and not isinstance(checkpointer.handler, ocp.ArrayCheckpointHandler):
        raise ValueError(
            f"Orbax saves trees, and the target is one {type(target).__name__}: put it into a "
            "dict, or pass a checkpointer with an ArrayCheckpointHandler"
        )
    checkpointer.save(path, target, force=overwrite)
    return jax.process_index() == 0


def restore_by_orbax(
    entry: CheckpointEntry, target: Any, checkpointer: Any, transforms: Any, *, strict: Strict
) -> Any:
    ocp = _needed(f"{entry.path.shown!r} is a checkpoint of Orbax")
    checkpointer = checkpointer or ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
    options: dict[str, Any] = {}
    if target is not None:
        options["restore_args"] = _restore_args(ocp, target)
        if isinstance(checkpointer.handler, ocp.PyTreeCheckpointHandler):
            options["transforms"] = _transforms(ocp, target) if transforms is None else transforms
    state = serialization.to_state_dict(
        checkpointer.restore(entry.path.absolute(), item=target, **options)
    )
    return state if target is None else serialization.from_state_dict(target, state, strict=strict)


def _restore_args(ocp: Any, target: Any) -> Any:
    import jax

    shardings = jax.tree.map(lambda leaf: getattr(leaf, "sharding", None), target)
    if not jax.tree.leaves(shardings):
        return jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), target)
    make = ocp.checkpoint_utils.construct_restore_args
    return make(target, shardings, set_global_shape=False)


def _transforms(ocp: Any, target: Any) -> Any:
    flat = ocp.utils.to_flat_dict(target, sep="/", keep_empty_nodes=True)
    return {key: ocp.Transform(use_fallback=True) for key, leaf in flat.items() if leaf is None}


def _needed(reason: str) -> Any:
    try:
        import orbax.checkpoint as ocp  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError(f"{reason}: pip install orbax-checkpoint") from error
    return ocp
