"""Encodes trees as bytes and decodes them: `dumps`, `loads`, and encoding into buffers."""

from __future__ import annotations

from typing import Any, Unpack

import treepack._core as core
from treepack._src.checkpoint.load import restore_described
from treepack._src.checkpoint.select import chosen
from treepack._src.options import (
    Buffer,
    BytesOptions,
    Compress,
    Opening,
    Progress,
    Reading,
    Static,
    Template,
    check_compress,
    check_described,
    check_known,
    progress_bar,
    takes,
)
from treepack._src.saving.layout import described_layout, state_layout
from treepack._src.storage.content import inflated


def dumps(
    tree: Any,
    *,
    metadata: Any = None,
    static: Static = "skip-code",
    select: Any = None,
    compress: Compress = False,
    level: int | None = None,
    align: int = 16,
    threads: int | None = None,
    progress: Progress = None,
) -> bytes:
    """Encodes a tree and its structure as msgpack, as `save` writes it to a file.

    Takes the options of `save`, and raises the same errors.

    Args:
      tree: Any tree of dicts, lists, tuples, registered nodes and leaves.
      metadata: Any value to store with the tree.
      static: How to treat static data that cannot be stored; see `save`.
      select: The leaves to encode; see `save`.
      compress: `True` compresses with gzip, `"numbers"` by the exponents of floats; see `save`.
      level: The gzip level from 0 (stored) to 9 (smallest).
      align: The alignment of arrays in bytes; see `save`. Memory of `bytes` objects is aligned to
        16.
      threads: The maximum number of threads that copy or compress large arrays.
      progress: A callable of the bytes done and their total, or `True` for a bar; for compressing.

    Examples:
      >>> import numpy as np, treepack
      >>> tree = {"layers": [(np.zeros(2), 1), None], 7: "seven"}
      >>> treepack.loads(treepack.dumps(tree))
      {'layers': [(array([0., 0.]), 1), None], 7: 'seven'}
    """
    check_compress(compress, level)
    tree = chosen(tree, select)
    layout = described_layout(
        tree,
        align,
        metadata,
        static=static,
        joined=not compress,
    )
    if not compress:
        return layout.to_bytes(threads=threads)
    with progress_bar(progress, "compress") as tell:
        return layout.to_gzip(level, numbers=compress == "numbers", threads=threads, progress=tell)


@takes(BytesOptions, Reading)
def loads(
    data: Buffer, target: Template | None = None, **options: Unpack[BytesOptions]
) -> Template:
    """Decodes a tree from bytes: as it was saved, or in the structure of a target.

    Takes the options of `load`, and raises the same errors. Arrays that are views view `data`.

    Args:
      data: The result of `dumps`, or the content of a file of `save`; any bytes-like object.
        Without a target, encodings of flax and of `treepack.serialization` become dicts and lists.
      target: A template.
      strict: How leaves are compared with the target: `True`, `"exact"` or `False`; see `load`.
      cast: Whether to cast floats to the dtypes of the target, and integers where no value changes.
      dtype: Without a target, the dtype to which all float arrays are cast.
      arrays: The type of arrays: as saved (`"saved"`), all NumPy arrays (`"numpy"`), or all JAX
        arrays (`"jax"`).
      device: The device for all arrays, which become JAX arrays.
      sharding: The sharding for all arrays, which become JAX arrays; or a pytree or function of
        shardings.
      copy: Whether NumPy arrays are copies; `None` returns views where possible.
      unknown: Whether nodes of unregistered types are an error, or become dicts (`"dict"`).
      containers: Whether containers keep their saved types, or become dicts and lists (`"plain"`).
      static: The static data that were not saved; see `load`.
      max_size: The maximum decompressed size in bytes.
      threads: The maximum number of threads.
      progress: A callable of the bytes done and their total, or `True` for a bar; for
        decompressing.

    Examples:
      >>> import jax.numpy as jnp, treepack
      >>> saved = treepack.dumps((jnp.arange(3), {"n": 1}))
      >>> treepack.loads(saved)
      (Array([0, 1, 2], dtype=int32), {'n': 1})
      >>> treepack.loads(saved, arrays="numpy")
      (array([0, 1, 2], dtype=int32), {'n': 1})
    """
    check_known(loads, options)
    how, opening = Reading.of(options), Opening.of(options)
    found: Template = restore_described(inflated(data, opening), target, how)
    return found


def packed_size(
    tree: Any,
    *,
    align: int = 64,
    described: bool = False,
    metadata: Any = None,
    static: Static = "skip-code",
) -> int:
    """Returns the number of bytes that `pack_into` writes for a tree with the same options.

    The size depends only on structure, shapes and dtypes, so compute it once and keep it: it takes
    a walk of the tree. Arrays on accelerators are not transferred. With `align=1`, it equals the
    length of the result of `to_bytes`, or of `dumps` if `described`.

    Args:
      tree: Any tree; see `treepack.serialization.to_state_dict`.
      align: See `pack_into`.
      described: Whether to use the encoding of `dumps`.
      metadata: See `dumps`; only with `described=True`.
      static: See `dumps`; only with `described=True`.

    Raises:
      UnserializableLeafError: See `treepack.serialization.to_bytes`, also for further errors.

    Examples:
      >>> import numpy as np, treepack
      >>> treepack.packed_size({"w": np.zeros(1000)}, align=1)
      8023
    """
    return _layout(tree, align, described, metadata, static).nbytes


def _layout(tree: Any, align: int, described: bool, metadata: Any, static: Static) -> core.Layout:
    check_described(described, metadata, static)
    if not described:
        return state_layout(tree, align, align_all=True)
    return described_layout(tree, align, metadata, static=static, align_all=True)


def pack_into(
    tree: Any,
    buffer: Buffer,
    *,
    offset: int = 0,
    align: int = 64,
    described: bool = False,
    metadata: Any = None,
    static: Static = "skip-code",
    threads: int | None = None,
) -> int:
    """Encodes a tree into a buffer, such as shared memory or a mapped file.

    Writes the encoding of `to_bytes`, with all arrays aligned. `from_bytes` and `msgpack_restore`
    (`loads` if `described`) read it from `memoryview(buffer)[offset:][:size]` and return views of
    the buffer. Writes nothing if the buffer is too small.

    Args:
      tree: Any tree; see `treepack.serialization.to_state_dict`. Its arrays may lie in `buffer`
        itself, but not in another mapping of the same memory.
      buffer: Any writable, contiguous buffer. Other threads and processes must not use it during
        the call. Trees that were restored from it before change: their arrays view the buffer, and
        JAX arrays made from these may view it, too.
      offset: The offset in bytes at which to write. If it is a multiple of `align` and the buffer
        is aligned (shared memory is), arrays are aligned in memory.
      align: A power of two from 1 to 64. Arrays begin at multiples of `align` bytes. An array below
        1 KiB that wider headers cannot move far enough is aligned for its dtype. With 64, JAX on
        CPU can use arrays in place.
      described: Whether to write the encoding of `dumps`, which `loads` reads.
      metadata: See `dumps`; only with `described=True`.
      static: See `dumps`; only with `described=True`.
      threads: See `treepack.serialization.to_bytes`.

    Returns:
      The number of bytes written.

    Raises:
      ValueError: If the buffer is too small.
      BufferError: If the buffer is not writable or not contiguous.
      UnserializableLeafError: See `treepack.serialization.to_bytes`, also for further errors.

    Examples:
      >>> import numpy as np, treepack
      >>> params = {"w": np.arange(3.0)}
      >>> buffer = bytearray(treepack.packed_size(params))
      >>> size = treepack.pack_into(params, buffer)
      >>> treepack.serialization.msgpack_restore(memoryview(buffer)[:size])
      {'w': array([0., 1., 2.])}
    """
    layout = _layout(tree, align, described, metadata, static)
    return layout.pack_into(buffer, offset=offset, threads=threads)


def buffers(
    tree: Any,
    *,
    align: int = 64,
    described: bool = False,
    metadata: Any = None,
    static: Static = "skip-code",
) -> list[memoryview]:
    """Returns the encoding of a tree as a list of buffers, without copying large arrays.

    The joined buffers equal the output of `pack_into`, with the same options. Send them one by one,
    as a multipart ZeroMQ message, or in batches with `os.writev` or `socket.sendmsg`, which take up
    to 1024 buffers on most systems and may write fewer bytes than they got. Contiguous arrays of at
    least 4 KiB are not copied: their buffers view their memory, so do not change the arrays before
    the buffers are sent. Smaller arrays are joined with the headers around them.

    Args:
      tree: Any tree; see `treepack.serialization.to_state_dict`.
      align: See `pack_into`.
      described: Whether to use the encoding of `dumps`.
      metadata: See `dumps`; only with `described=True`.
      static: See `dumps`; only with `described=True`.

    Returns:
      Read-only memoryviews of bytes. They keep the arrays alive.

    Raises:
      UnserializableLeafError: See `treepack.serialization.to_bytes`, also for further errors.

    Examples:
      >>> import flax.serialization, numpy as np, treepack
      >>> tree = {"w": np.zeros(1000), "b": np.zeros(10)}
      >>> [piece.nbytes for piece in treepack.buffers(tree, align=1)]
      [23, 8000, 98]
      >>> b"".join(treepack.buffers(tree, align=1)) == flax.serialization.to_bytes(tree)
      True
    """
    return _layout(tree, align, described, metadata, static).buffers()
