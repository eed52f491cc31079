"""What is known of a saved tree without its arrays: `abstract` and `read_metadata`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from treepack import _core
from treepack._content import content_of
from treepack._described import Unknown, assembled, check_unknown, present
from treepack._open import File

if TYPE_CHECKING:
    from typing_extensions import Buffer


def abstract(
    path_or_data: str | os.PathLike[str] | Buffer,
    *,
    unknown: Unknown = "error",
    static: Any = None,
    max_size: int | None = None,
) -> Any:
    """Returns a saved tree with its arrays as shapes and dtypes only.

    No array is read, however large. The result is a template for `load`, and what
    `jax.eval_shape` returns for a function that makes such a tree.

    Args:
      path_or_data: A file of `save`, or what `dumps` returned.
      unknown: See `load`.
      static: See `load`.
      max_size: See `load`.

    Returns:
      The tree, with `jax.ShapeDtypeStruct`s as arrays.

    Raises:
      DecodeError: See `load`, as for other errors.

    Example:
      >>> import numpy as np, treepack
      >>> treepack.abstract(treepack.dumps([np.zeros((2, 3)), "text"]))
      [ShapeDtypeStruct(shape=(2, 3), dtype=float64), 'text']
    """
    check_unknown(unknown)
    try:
        content = content_of(path_or_data, max_size=max_size)
    except IsADirectoryError:
        with File(path_or_data, max_size=max_size) as file:
            return file.abstract(unknown=unknown, static=static)
    state = _core.restore(content, None, None, abstract_arrays=True)
    return assembled(state, unknown=unknown, static=static, placeholders=True)


def read_metadata(
    path_or_data: str | os.PathLike[str] | Buffer, *, max_size: int | None = None
) -> Any:
    """Returns what was given to `save` as metadata, or `None`. No array is read.

    Args:
      path_or_data: A file of `save`, or what `dumps` returned.
      max_size: See `load`.

    Raises:
      DecodeError: See `load`, as for other errors.

    Example:
      >>> import treepack
      >>> treepack.read_metadata(treepack.dumps([], metadata={"step": 3, "shape": (1, 2)}))
      {'step': 3, 'shape': (1, 2)}
    """
    try:
        content = content_of(path_or_data, max_size=max_size)
    except IsADirectoryError:
        with File(path_or_data, max_size=max_size) as file:
            return file.metadata
    if not isinstance(content, _core.Content):
        content = _core.Content.lent(content)
    return _core.trailer_metadata(present(_core.Catalog.open(content, salvage=False).trailer))
