"""Encoding into memory that somebody else provides or sends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treepack import _core
from treepack._described import described_layout
from treepack.serialization import state_layout

if TYPE_CHECKING:
    from typing_extensions import Buffer


def packed_size(
    tree: Any,
    *,
    align: int = 64,
    described: bool = False,
    metadata: Any = None,
    holes: bool = False,
) -> int:
    """Returns how many bytes `pack_into` writes for a tree.

    It is also the length of what `to_bytes` returns with the same alignment, or, if `described`,
    of what `dumps` returns. It depends on
    shapes and dtypes alone, so keep it where they do not change: to find it out, the tree is
    walked as for packing. Arrays on accelerators stay there.

    Args:
      tree: Any tree; see `to_state_dict`.
      align: See `pack_into`.
      described: See `pack_into`.
      metadata: See `pack_into`.
      holes: See `pack_into`.

    Raises:
      UnserializableLeafError: See `to_bytes`, as for other errors.

    Example:
      >>> import numpy as np, treepack
      >>> treepack.packed_size({"w": np.zeros(1000)}, align=1)
      8023
    """
    return _layout(tree, align, described, metadata, holes).nbytes


def _layout(tree: Any, align: int, described: bool, metadata: Any, holes: bool) -> _core.Layout:
    if described:
        return described_layout(tree, align, metadata, holes=holes)
    if metadata is not None or holes:
        raise ValueError("metadata and holes are for described=True")
    return state_layout(tree, align)


def pack_into(
    tree: Any,
    buffer: Buffer,
    *,
    offset: int = 0,
    align: int = 64,
    described: bool = False,
    metadata: Any = None,
    holes: bool = False,
    threads: int | None = None,
) -> int:
    """Encodes a tree into a buffer, such as shared memory or a mapped file.

    What is written is what `to_bytes` returns; `from_bytes` and `msgpack_restore` read
    it from `memoryview(buffer)[offset:][:size]`, and their arrays are views of the
    buffer. Nothing is written if the buffer is too small.

    Args:
      tree: Any tree; see `to_state_dict`. Arrays of it may lie in this very buffer (not in
        another mapping of the same memory).
      buffer: Any writable, contiguous buffer. Nobody else should use it meanwhile. What
        was restored from it before changes: arrays are views of it, and arrays that jax
        has made of them may be, too.
      offset: Where in the buffer to begin, in bytes. With a multiple of `align`, in a
        buffer that is itself aligned (shared memory is), arrays are aligned in memory.
      align: See `to_bytes`. With 64, jax on CPU can use the arrays in place.
      described: Whether to write what `dumps` returns, for `loads`.
      metadata: See `dumps`; if `described`.
      holes: See `dumps`; if `described`.
      threads: See `to_bytes`.

    Returns:
      How many bytes were written.

    Raises:
      ValueError: If the buffer is too small.
      BufferError: If it is not writable or not contiguous.
      UnserializableLeafError: See `to_bytes`, as for other errors.

    Example:
      >>> import numpy as np, treepack
      >>> params = {"w": np.arange(3.0)}
      >>> buffer = bytearray(treepack.packed_size(params))
      >>> size = treepack.pack_into(params, buffer)
      >>> treepack.serialization.msgpack_restore(memoryview(buffer)[:size])
      {'w': array([0., 1., 2.])}
    """
    layout = _layout(tree, align, described, metadata, holes)
    return layout.pack_into(buffer, offset=offset, threads=threads)


def buffers(
    tree: Any,
    *,
    align: int = 64,
    described: bool = False,
    metadata: Any = None,
    holes: bool = False,
) -> list[memoryview]:
    """Returns the encoding of a tree in pieces, without copying large arrays.

    Joined, the pieces are what `to_bytes` returns. Send them one by one, as a ZeroMQ
    message, or some at a time with `os.writev` or `socket.sendmsg`, which take 1024 on most
    systems and may send fewer bytes than they are given. Contiguous arrays of 4 KiB and
    more are not copied: their pieces are their memory, so they should not be changed before
    the pieces are sent. What is smaller is joined with the headers around it.

    Args:
      tree: Any tree; see `to_state_dict`.
      align: See `to_bytes`.
      described: See `pack_into`.
      metadata: See `pack_into`.
      holes: See `pack_into`.

    Returns:
      Read-only memoryviews of bytes, which keep the arrays alive.

    Raises:
      UnserializableLeafError: See `to_bytes`, as for other errors.

    Example:
      >>> import numpy as np, treepack
      >>> tree = {"w": np.zeros(1000), "b": np.zeros(10)}
      >>> [piece.nbytes for piece in treepack.buffers(tree, align=1)]
      [23, 8000, 98]
      >>> b"".join(treepack.buffers(tree, align=16)) == treepack.serialization.to_bytes(tree)
      True
    """
    return _layout(tree, align, described, metadata, holes).buffers()
