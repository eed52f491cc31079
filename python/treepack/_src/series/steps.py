"""The file of a step: its place, its writing, and placeholders of flax in it."""

from __future__ import annotations

from typing import Any

import numpy as np

from treepack._src.interop.modules import error_class
from treepack._src.pytree.state_dict import leaves_of
from treepack._src.series.names import Folder
from treepack._src.storage.foreign import FLAX_REFERENCE, reference_text
from treepack._src.storage.place import absolute, joined
from treepack.errors import MultiprocessArrayError

MP_ARRAY_PH = FLAX_REFERENCE
"""The prefix of placeholders for arrays that flax keeps in TensorStore beside the file."""


class Place:
    """Where the checkpoint of a step goes.

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
