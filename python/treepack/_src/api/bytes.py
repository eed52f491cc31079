"""Trees in bytes: `dumps`, `loads`, encodings in buffers, and patches."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Never, Unpack

import treepack._core as core
from treepack._src.advice import advised, unknown_option
from treepack._src.checkpoint.select import chosen
from treepack._src.checkpoint.whole import restore_described, restore_message
from treepack._src.layouts.layout import Encoding, base_of, state_layout
from treepack._src.options import (
    SMALL,
    Buffer,
    BytesOptions,
    BytesReading,
    Compress,
    Progress,
    Static,
    Template,
    check,
    check_compress,
    progress_bar,
    takes,
)
from treepack._src.storage.content import check_is_bytes, content_of
from treepack.errors import TreepackError


@takes()
def dumps(
    tree: Any,
    *_more: Never,
    metadata: Any = None,
    static: Static = "skip-code",
    select: Any = None,
    exclude: Any = None,
    compress: Compress = False,
    level: int | None = None,
    align: int = 16,
    base: Any = None,
    threads: int | None = None,
    progress: Progress = None,
    **_unknown: Never,
) -> bytes:
    """Encodes a tree and its structure as msgpack, as `save` writes it to a file.

    Args:
      tree: See `save`.
      metadata: See `save`.
      static: See `save`.
      select: See `save`.
      exclude: See `save`.
      compress: See `save`.
      level: See `save`.
      align: See `save`. Memory of `bytes` objects is aligned to 16.
      base: The receiver's data: a tree, encoded bytes, frames, or an open `File`. The result is a
        patch, which `loads` reads with the same base: arrays of the same path, dtype and shape are
        differences. Arrays on accelerators are fetched, the base's too.
      threads: See `save`.
      progress: See `save`; for compressing.

    Raises:
      UnserializableLeafError: See `save`, also for further errors.

    Examples:
      >>> import numpy as np, treepack
      >>> tree = {"layers": [(np.zeros(2), 1), None], 7: "seven"}
      >>> treepack.loads(treepack.dumps(tree))
      {'layers': [(array([0., 0.]), 1), None], 7: 'seven'}

      Only the changes:

      >>> held = {"w": np.ones(1000, np.float32)}
      >>> policy = {"w": held["w"].copy()}
      >>> policy["w"][::100] += 0.5
      >>> len(treepack.dumps(policy, base=held)) < 300
      True
    """
    if _more:
        raise TypeError(
            "dumps() takes a tree, and returns bytes: treepack.save(path, tree) writes files; name "
            "the rest, as in metadata={'step': 1}"
        )
    if _unknown:
        raise unknown_option(dumps, min(_unknown))
    check_compress(compress, level)
    if type(tree) is not dict:  # as of most small messages
        Encoding.check(tree)
    tree = chosen(tree, select, exclude)
    held = None if base is None else base_of(base, static)
    joined = not compress and base is None
    layout = Encoding(align=align, joined=joined, base=held, threads=threads).tree(
        tree, metadata, static
    )
    if not compress:
        return layout.to_bytes(threads=threads)
    with progress_bar(progress, "compress") as tell:
        return layout.to_gzip(level, numbers=compress == "numbers", threads=threads, progress=tell)


@takes(BytesOptions)
def loads(
    data: Buffer | list[Any], target: Template | None = None, **options: Unpack[BytesOptions]
) -> Template:
    """Decodes a tree from bytes: as it was saved, or in the structure of a target.

    Takes options of `load`, and raises the same errors. Arrays that are views view `data`.

    Args:
      data: The result of `dumps`, or the content of a file of `save`; any bytes-like object, or a
        list of them, such as the frames of `buffers`, which are joined. Without a target, encodings
        of flax and of `treepack.serialization` become dicts and lists.
      target: A template.
      base: The tree, encoded bytes or open `File` that a patch was made against; ignored for other
        data. The result shares unchanged JAX arrays of a base tree, unless they are tiny, or other
        devices or dtypes are requested; NumPy arrays are always new.
      max_size: The maximum bytes of decompressed data, or of the encoding of a patch and its base.
      progress: A callable of the bytes done and their total, or `True` for a bar; for
        decompressing.
      strict: See `load`, also for other options.

    Raises:
      BaseMismatchError: If a patch was made against another base; it lists the leaves.

    Examples:
      >>> import jax.numpy as jnp, treepack
      >>> saved = treepack.dumps((jnp.arange(3), {"n": 1}))
      >>> treepack.loads(saved)
      (Array([0, 1, 2], dtype=int32), {'n': 1})
      >>> treepack.loads(saved, arrays="numpy")
      (array([0, 1, 2], dtype=int32), {'n': 1})
    """
    tree: Template
    if type(data) is bytes and SMALL.issuperset(options):
        tree = restore_message(data, target, options)
        return tree
    reading = BytesReading.of(options)
    base = reading.base
    if base is not None:
        reading.base = base_of(base, max_size=reading.max_size)
    data = _joined(data) if isinstance(data, list) else data
    encoded = content_of(data, reading, is_bytes=True)
    tree = restore_described(encoded, target, reading, base=base)
    return tree


def _joined(frames: list[Any]) -> bytes:
    try:
        return b"".join(frames)
    except TypeError:
        for at, frame in enumerate(frames):
            check_is_bytes(frame, name=f"item {at}: ")
        raise


@advised
def packed_size(
    tree: Any,
    *,
    align: int = 64,
    described: bool = False,
    metadata: Any = None,
    static: Static = "skip-code",
    base: Any = None,
) -> int:
    """Returns the number of bytes that `pack_into` writes for a tree with the same options.

    It depends only on structure, shapes and dtypes, so compute it once: it takes a walk of the
    tree, and no transfers. With `base=`, it depends on the content, and this makes the patch. With
    `align=1`, it is the length of `to_bytes`, or of `dumps` if `described`.

    Raises:
      UnserializableLeafError: See `treepack.serialization.to_bytes`, also for further errors.

    Examples:
      >>> import numpy as np, treepack
      >>> treepack.packed_size({"w": np.zeros(1000)}, align=1)
      8023
    """
    return _layout(tree, align, described, metadata, static, base).nbytes


def _layout(
    tree: Any,
    align: int,
    described: bool,
    metadata: Any,
    static: Static,
    base: Any,
    threads: int | None = None,
) -> core.Layout:
    check("described", described)
    Encoding.check(tree)
    if not described and (metadata is not None or static != "skip-code"):
        raise ValueError(
            "metadata= and static= require described=True, since the encoding of flax cannot "
            "store them"
        )
    held = base_of(base, static)
    if not described:
        return state_layout(tree, align=align, align_all=True, base=held, threads=threads)
    encoding = Encoding(align=align, align_all=True, base=held, threads=threads)
    return encoding.tree(tree, metadata, static)


def _check_buffer(
    name: str, buffer: Any, cure: str = "pass a bytearray of packed_size(tree) bytes"
) -> None:
    try:
        memoryview(buffer)
    except TypeError:
        if hasattr(buffer, "buf"):
            cure = "pass its buf"
        elif isinstance(buffer, (str, os.PathLike)) and name == "patch":
            cure = "pass the bytes of the file"
        elif isinstance(buffer, (str, os.PathLike)) or hasattr(buffer, "write"):
            cure = "treepack.save(path, tree) writes a file"
        elif isinstance(buffer, (list, tuple)):
            cure = 'pass b"".join(...) of the pieces'
        kind = type(buffer).__name__
        raise TypeError(f"{name} must be a bytes-like object, got {kind}: {cure}") from None


@advised
def pack_into(
    tree: Any,
    buffer: Buffer,
    *,
    offset: int = 0,
    align: int = 64,
    described: bool = False,
    metadata: Any = None,
    static: Static = "skip-code",
    base: Any = None,
    threads: int | None = None,
) -> int:
    """Encodes a tree into a buffer, such as shared memory or a mapped file.

    Writes the encoding of `to_bytes`, with all arrays aligned. `from_bytes` and `msgpack_restore`
    (`loads` if `described`) read it from `memoryview(buffer)[offset:][:size]` and return views of
    the buffer. Writes nothing if the buffer is too small.

    Args:
      tree: Any tree. Its arrays may lie in `buffer`, but not in another mapping of the same memory.
      buffer: Any writable, contiguous buffer, which other threads and processes must not use during
        the call. Trees that were restored from it before change: their arrays view the buffer, and
        so may JAX arrays made from these.
      offset: The offset in bytes at which to write. If it is a multiple of `align` and the buffer
        is aligned (shared memory is), arrays are aligned in memory.
      align: A power of two from 1 to 64. Arrays begin at its multiples; an array below 1 KiB that
        wider headers cannot move far enough is aligned for its dtype. With 64, JAX on CPU can use
        arrays in place.
      described: Whether to write the encoding of `dumps`, which `loads` reads.
      metadata: See `dumps`; only with `described=True`.
      static: See `dumps`; only with `described=True`.
      base: The receiver's data, as for `dumps`. The result is then a patch, for `apply_delta`, or
        for `loads` if `described`.
      threads: See `save`.

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
    if isinstance(buffer, Mapping):
        raise TypeError(
            "the tree comes first, as in pack_into(tree, buffer), got a buffer of the type "
            f"{type(buffer).__name__}"
        )
    check("offset", offset)
    layout = _layout(tree, align, described, metadata, static, base, threads)
    try:
        return layout.pack_into(buffer, offset=offset, threads=threads)
    except TypeError:
        _check_buffer("buffer", buffer)
        raise


@advised
def buffers(
    tree: Any,
    *,
    align: int = 64,
    described: bool = False,
    metadata: Any = None,
    static: Static = "skip-code",
    base: Any = None,
) -> list[memoryview]:
    """Returns the encoding of a tree as a list of buffers, without copying large arrays.

    Joined, they equal the output of `pack_into` with the same options. Send them one by one, as a
    multipart ZeroMQ message, or in batches with `os.writev` or `socket.sendmsg`, which take up to
    1024 buffers on most systems and may write only a part. Buffers of contiguous arrays of at least
    4 KiB view their memory, so do not change these arrays before they are sent.

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
    return _layout(tree, align, described, metadata, static, base).buffers()


def apply_delta(
    patch: Buffer, buffer: Buffer, *, offset: int = 0, threads: int | None = None
) -> int:
    """Applies a patch to the tree in a buffer.

    The patch must have the buffer's tree as `base=`, and keys in the same order. If the buffer has
    an encoding of `pack_into`, the patch must be of `pack_into` or `buffers` with the same options;
    if it has one of `dumps`, of `dumps`. Afterwards, the buffer has the bytes that this function
    would have written for the new tree. Only changed elements are written.

    Each block is compared with its checksum while it changes. An error undoes all changes; where
    most floats change, that takes a byte of memory for each. A killed process undoes nothing, so
    let readers use another buffer.

    Args:
      patch: Any bytes-like object.
      buffer: See `pack_into`.
      offset: The first byte of the encoding in the buffer.
      threads: See `save`.

    Returns:
      The number of bytes of the new encoding.

    Raises:
      BaseMismatchError: If the buffer has another tree than the base; it lists the leaves.
      ValueError: If the new encoding is larger than the buffer, or moves an array, as after an
        integer that became longer: keep counters as arrays, or pack the whole tree.
      DecodeError: If the patch is damaged, or the buffer has no tree.
      BufferError: If the buffer is not writable or not contiguous.

    Examples:
      >>> import numpy as np, treepack
      >>> held, policy = {"w": np.zeros(1000)}, {"w": np.arange(1000.0) // 100}
      >>> buffer = bytearray(treepack.packed_size(held))
      >>> treepack.pack_into(held, buffer)
      8128
      >>> patch = b"".join(treepack.buffers(policy, base=held))
      >>> treepack.apply_delta(patch, buffer)
      8128
      >>> treepack.serialization.msgpack_restore(buffer)["w"][-1]
      np.float64(9.0)
    """
    check("offset", offset)
    try:
        return core.apply_delta(patch, buffer, offset=offset, threads=threads)
    except TypeError:
        _check_buffer("patch", patch, 'pass b"".join(buffers(tree, base=held))')
        of_tree = (
            "treepack.loads(patch, base=tree) makes a new tree; or pack the old one into a "
            "bytearray of packed_size(tree) bytes"
        )
        _check_buffer("buffer", buffer, of_tree)
        raise
    except BufferError as error:
        if "writable" not in str(error):  # it is about the patch
            raise
        raise BufferError(
            "the patch comes first, as in apply_delta(patch, buffer), and the buffer must be "
            "writable and contiguous: pass bytearray(data); treepack.loads(patch, base=data) "
            "leaves data as it is"
        ) from None
    except ValueError as error:
        if not isinstance(error, TreepackError):
            error.add_note(
                "treepack: make the patch by buffers or pack_into with the buffer's align= and "
                "described=, or by dumps if it has the result of dumps, and keep counters as "
                "arrays, or pack the whole tree"
            )
        raise
