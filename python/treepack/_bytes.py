"""Trees in bytes: `dumps` and `loads`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

from treepack._content import check_level, inflated
from treepack._described import Reading, Unknown, described_layout, restore_described
from treepack._options import Progress, Strict, telling
from treepack._placement import Arrays

if TYPE_CHECKING:
    import jax
    from typing_extensions import Buffer


def dumps(
    tree: Any,
    *,
    metadata: Any = None,
    holes: bool = False,
    compress: bool = False,
    level: int | None = None,
    align: int = 16,
    threads: int | None = None,
    progress: Progress = None,
) -> bytes:
    """Returns what `save` writes to a file: a tree with its structure, encoded as msgpack.

    Args:
      tree: See `save`.
      metadata: See `save`.
      holes: See `save`.
      compress: See `save`.
      level: See `save`.
      align: See `save`. `bytes` objects are aligned to 16 in memory.
      threads: By how many threads large arrays are copied or compressed, at most.
      progress: See `save`; for compressing.

    Raises:
      UnserializableLeafError: See `save`, as for other errors.

    Example:
      >>> import numpy as np, treepack
      >>> tree = {"layers": [(np.zeros(2), 1), None], 7: "seven"}
      >>> treepack.loads(treepack.dumps(tree))
      {'layers': [(array([0., 0.]), 1), None], 7: 'seven'}
    """
    layout = described_layout(tree, align, metadata, holes=holes)
    check_level(level, compress)
    if not compress:
        return layout.to_bytes(threads=threads)
    with telling(progress, "compress") as tell:
        return layout.to_gzip(level, threads=threads, progress=tell)


T = TypeVar("T")


@overload
def loads(
    data: Buffer,
    target: None = None,
    *,
    strict: Strict = True,
    cast: bool = False,
    arrays: Arrays = "saved",
    device: jax.Device | None = None,
    sharding: Any = None,
    copy: bool | None = None,
    unknown: Unknown = "error",
    static: Any = None,
    max_size: int | None = None,
    threads: int | None = None,
    progress: Progress = None,
) -> Any: ...


@overload
def loads(
    data: Buffer,
    target: T,
    *,
    strict: Strict = True,
    cast: bool = False,
    arrays: Arrays = "saved",
    device: jax.Device | None = None,
    sharding: Any = None,
    copy: bool | None = None,
    unknown: Unknown = "error",
    static: Any = None,
    max_size: int | None = None,
    threads: int | None = None,
    progress: Progress = None,
) -> T: ...


def loads(
    data: Buffer,
    target: Any = None,
    *,
    strict: Strict = True,
    cast: bool = False,
    arrays: Arrays = "saved",
    device: jax.Device | None = None,
    sharding: Any = None,
    copy: bool | None = None,
    unknown: Unknown = "error",
    static: Any = None,
    max_size: int | None = None,
    threads: int | None = None,
    progress: Progress = None,
) -> Any:
    """Returns the tree in bytes: as it was, or in the shape of a target. See `load`.

    Args:
      data: What `dumps` returned, or what a file of `save` has; any bytes-like object.
        With a target also what flax, or `treepack.serialization`, has encoded.
      target: See `load`.
      strict: See `load`.
      cast: See `load`.
      arrays: See `load`.
      device: See `load`.
      sharding: See `load`.
      copy: See `load`; views are of the bytes.
      unknown: See `load`.
      static: See `load`.
      max_size: The most bytes that compressed data may become.
      threads: See `load`.
      progress: See `load`; for decompressing.

    Raises:
      DecodeError: See `load`, as for other errors.

    Example:
      >>> import jax.numpy as jnp, treepack
      >>> saved = treepack.dumps((jnp.arange(3), {"n": 1}))
      >>> treepack.loads(saved)
      (Array([0, 1, 2], dtype=int32), {'n': 1})
      >>> treepack.loads(saved, arrays="numpy")
      (array([0, 1, 2], dtype=int32), {'n': 1})
    """
    how = Reading(strict, cast, arrays, device, sharding, copy, unknown, static, threads)
    data = inflated(data, max_size=max_size, threads=threads, progress=progress)
    return restore_described(data, target, how)
