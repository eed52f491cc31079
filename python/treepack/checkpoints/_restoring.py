"""Restores a checkpoint of any form: a file of flax, a directory of treepack or of Orbax."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from treepack import serialization
from treepack._src.api.files import load
from treepack._src.interop import flax
from treepack._src.leaves.references import flax_references
from treepack._src.runs.steps import CheckpointEntry
from treepack._src.storage.address import Location
from treepack.checkpoints._orbax import is_of_orbax, restore_by_orbax
from treepack.errors import MultiprocessArrayError

MP_ARRAY_PH = "//GDAPlaceholder:"
"""The prefix of placeholders for arrays that flax keeps in TensorStore beside the file."""


def is_checkpoint(directory: CheckpointEntry) -> bool:
    return directory.is_sharded or is_of_orbax(directory.names())


@dataclasses.dataclass
class Restoring:
    """`transforms` are of Orbax; with `allow_partial`, arrays in TensorStore are placeholders."""

    target: Any
    options: dict[str, Any]
    allow_partial: bool
    checkpointer: Any
    transforms: Any

    def __call__(self, entry: CheckpointEntry) -> Any:
        return entry.read(functools.partial(self._tree, entry))

    def _tree(self, entry: CheckpointEntry, path: Location) -> Any:
        target, options = self.target, self.options
        if entry.is_sharded:
            if target is None:
                return load(path, arrays="numpy", **options)
            state = load(path, serialization.to_state_dict(target), **options)
            return serialization.from_state_dict(target, state, strict=options["strict"])
        if entry.is_directory and is_of_orbax(entry.names()):
            return restore_by_orbax(
                entry, target, self.checkpointer, self.transforms, strict=options["strict"]
            )
        for_files = {key: value for key, value in options.items() if key not in _SHARING}
        tree = serialization.load_from_file(target, path, **for_files)
        if not self.allow_partial and (found := flax_references(tree)):
            error = flax.error_type(MultiprocessArrayError, "MPACheckpointingRequiredError")
            raise error(f"arrays are missing: it has {found}")
        return tree


# Options of `load` for processes that load together.
_SHARING = ("replicas", "timeout")
