from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from treepack._src import paths as _paths
from treepack._src.leaves.prng import Key
from treepack._src.leaves.signature import signature
from treepack._src.mapping.sizes import Shape
from treepack._src.printable import printable
from treepack._src.pytree.state_dict import leaves_of
from treepack.errors import TreepackError


class Leaf(NamedTuple):
    shape: Shape
    dtype: np.dtype[Any] | None

    @staticmethod
    def of(leaf: Any) -> Leaf:
        own = signature(leaf)
        # Numbers have signatures as well, and typed PRNG keys dtypes of their own.
        if own is None or not isinstance(getattr(leaf, "dtype", None), np.dtype):
            return Leaf((), None)
        return Leaf(own.shape, np.dtype(own.dtype).newbyteorder("="))

    @staticmethod
    def by_path(target: Any) -> dict[str, Leaf] | None:
        if target is None:
            return None
        return {_paths.text(parts): Leaf.of(leaf) for parts, leaf in leaves_of(target, ())}


def check_equal(path: str, names: Sequence[str], one: Any, other: Any) -> None:
    """Raises a TreepackError if two leaves of a tree, which are one in the file, differ.

    `names` are the paths of their parts in the tree.
    """
    if _kind_and_bytes(one) != _kind_and_bytes(other):
        raise TreepackError(
            f"two leaves of the tree, {' and '.join(map(printable, names))}, are "
            f"{printable(path)} in the file, and differ: tie them, or give each a path of its own "
            "in mapping="
        )


def _kind_and_bytes(leaf: Any) -> tuple[str | None, np.dtype[Any], Shape, bytes]:
    key = Key.of(leaf)
    array = np.asarray(leaf) if key is None else key.on_host()
    return key and key.impl, array.dtype, array.shape, array.tobytes()
