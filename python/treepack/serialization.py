"""Pytrees as msgpack: a drop-in for `flax.serialization` and eformer's.

Replace `from flax import serialization` or `from eformer.pytree import
serialization` by `from treepack import serialization`. Every public name of both
is here, with its signature; further options are keyword-only. They read the files
that are written here, and the reverse.

`MAX_CHUNK_SIZE` is read at each save; set it to change the size in bytes above
which arrays are split into chunks.
"""

from __future__ import annotations

import functools
from typing import Any

import treepack._core as core
from treepack._src.interop.flax import Patch
from treepack._src.options import (
    Buffer,
    Compress,
    Opening,
    Progress,
    StorageOptions,
    Strict,
    Template,
    Writing,
    check,
    check_compress,
    progress_bar,
    restoring,
)
from treepack._src.pytree.handlers import register_serialization_state
from treepack._src.pytree.inspect import get_serialization_info, validate_serializable
from treepack._src.pytree.state_dict import is_serializable, to_state_dict
from treepack._src.restore.record import take
from treepack._src.restore.session import current_path
from treepack._src.restore.template import from_state_dict, restore_encoded
from treepack._src.saving.layout import Chunks, plain_layout, state_layout
from treepack._src.storage.content import read_whole
from treepack._src.storage.naming import naming
from treepack._src.storage.place import Location, located
from treepack._src.storage.write import save_layout

__all__ = [
    "MAX_CHUNK_SIZE",
    "compress_bytes",
    "current_path",
    "decompress_bytes",
    "from_bytes",
    "from_compressed_bytes",
    "from_state_dict",
    "get_serialization_info",
    "is_serializable",
    "load_from_file",
    "msgpack_restore",
    "msgpack_serialize",
    "patch",
    "register_serialization_state",
    "save_to_file",
    "to_bytes",
    "to_compressed_bytes",
    "to_state_dict",
    "validate_serializable",
]

MAX_CHUNK_SIZE: float = 2**30
"""The size in bytes of chunks, into which larger arrays are split."""

Chunks.max_nbytes = lambda: MAX_CHUNK_SIZE


def to_bytes(target: Any, *, align: int = 16, threads: int | None = None) -> bytes:
    """Encodes the state of a tree as msgpack.

    Args:
      target: Any tree; see `to_state_dict`.
      align: A power of two from 1 to 64: arrays of at least 1 KiB begin at multiples of
        this many bytes, so that they can be viewed in place. With 1 the result equals,
        byte for byte, that of flax.
      threads: The maximum number of threads that copy large arrays. `None` is the
        environment variable `TREEPACK_NUM_THREADS`, or else the number of cores.

    Returns:
      The encoding, which `from_bytes` reads, and that of flax as well.

    Raises:
      UnserializableLeafError: A TypeError, with the path. If a leaf has a type or
        dtype that cannot be stored.
      ValueError: If a dict has keys that are equal as strings, or a reserved key.
      OverflowError: If an integer is not in the range -2**63 to 2**64-1.

    Examples:
      >>> import numpy as np, treepack
      >>> params = {"w": np.arange(3.0)}
      >>> treepack.serialization.from_bytes(params, treepack.serialization.to_bytes(params))
      {'w': array([0., 1., 2.])}
    """
    return state_layout(target, align, joined=True).to_bytes(threads=threads)


def from_bytes(
    target: Template | None,
    encoded_bytes: Buffer,
    *,
    copy: bool | None = None,
    strict: Strict = True,
    threads: int | None = None,
) -> Template:
    """Restores a tree like the target, with leaves from encoded bytes.

    Args:
      target: The template; see `from_state_dict`. `None` returns the state dict.
      encoded_bytes: The result of `to_bytes`, also of flax's; any bytes-like object.
      copy: See `msgpack_restore`.
      strict: See `from_state_dict`.
      threads: See `to_bytes`; for arrays that are copied.

    Returns:
      The new tree. Its arrays are NumPy arrays.

    Raises:
      DecodeError: A ValueError, with the byte offset. If the bytes have another format.
      MismatchError: A ValueError. If they do not fit the template.

    Examples:
      >>> import numpy as np, treepack
      >>> encoded = treepack.serialization.to_bytes({"w": np.zeros((2, 3))})
      >>> treepack.serialization.from_bytes({"w": np.zeros((3, 2))}, encoded)
      Traceback (most recent call last):
        ...
      treepack.errors.MismatchError: 1 leaf does not match the template:
        w: expected float64[3,2], found float64[2,3]
      Pass strict=False to restore what is found regardless.
    """
    found: Template = restore_encoded(target, encoded_bytes, restoring(strict, copy, threads))
    return found


def msgpack_serialize(
    pytree: Any, in_place: bool = False, *, align: int = 16, threads: int | None = None
) -> bytes:
    """Encodes a tree of plain containers as msgpack.

    Unlike `to_bytes` this keeps lists as lists. It takes dicts, lists and tuples
    (which become lists); call `to_state_dict` first for anything else.

    Args:
      pytree: The tree. It is never changed.
      in_place: As in flax, `False` sorts the keys of dicts, `True` keeps their order.
      align: See `to_bytes`.
      threads: See `to_bytes`.

    Returns:
      The encoding, which `msgpack_restore` reads.

    Raises:
      UnserializableLeafError: A TypeError, with the path. If the tree has anything else.

    Examples:
      >>> from treepack import serialization
      >>> serialization.msgpack_restore(
      ...     serialization.msgpack_serialize({"b": [1, 2.5], "a": None}))
      {'a': None, 'b': [1, 2.5]}
    """
    layout = plain_layout(pytree, align, sort_keys=not in_place, joined=True)
    return layout.to_bytes(threads=threads)


def msgpack_restore(
    encoded_pytree: Buffer, *, copy: bool | None = None, threads: int | None = None
) -> Any:
    """Decodes a tree: dicts, lists and leaves.

    Args:
      encoded_pytree: The encoding; any bytes-like object.
      copy: As in NumPy 2. `None` returns read-only arrays that view the bytes
        (and keep them alive) wherever they are aligned for their dtype there,
        copies elsewhere. `True` returns writable arrays with memory of their own.
        `False` returns views only.
      threads: See `to_bytes`; for arrays that are copied.

    Returns:
      The tree.

    Raises:
      DecodeError: A ValueError, with the byte offset. If the bytes have another
        format; or, with `copy=False`, if an array cannot be viewed.

    Examples:
      >>> import numpy as np, treepack
      >>> encoded = treepack.serialization.msgpack_serialize({"w": np.zeros(1000)})
      >>> treepack.serialization.msgpack_restore(encoded)["w"].flags.writeable
      False
      >>> treepack.serialization.msgpack_restore(encoded, copy=True)["w"].flags.writeable
      True
    """
    return take(core.restore(encoded_pytree, copy, threads))[0]


def save_to_file(
    target: Any,
    filepath: Location,
    *,
    align: int = 64,
    compress: Compress = False,
    level: int | None = None,
    durable: bool = True,
    threads: int | None = None,
    progress: Progress = None,
    storage_options: StorageOptions = None,
) -> None:
    """Saves a tree to a file, which is replaced whole or not at all.

    The bytes go straight from the arrays to a temporary file in the same
    directory, which then takes the name. Whatever goes wrong, the file is the old one
    or the new one. Missing directories are made.

    Args:
      target: Any tree; see `to_state_dict`.
      filepath: The file. Its permissions are those of the file that it replaces, or
        follow the umask.
      align: See `to_bytes`. At 64 JAX on CPU can use the arrays of a mapped file in place.
      compress: Whether to compress with gzip, or how; see `treepack.save`.
      level: See `compress_bytes`.
      durable: Whether the file is on the disk when this returns, so that it survives
        a loss of power. Otherwise it survives a crash of the program.
      threads: See `to_bytes`; for compressing.
      progress: A callable that is called now and then with the number of bytes of the
        encoding that are done, and of all; or `True` for a bar of tqdm. An exception in
        it ends the work, and the file is the old one.
      storage_options: Options for the store of a URL; see `treepack.save`.

    Raises:
      OSError: If the file cannot be written.
      UnserializableLeafError: See `to_bytes`, as for other errors.

    Examples:
      >>> import numpy as np, tempfile, treepack
      >>> path = f"{tempfile.mkdtemp()}/model.msgpack"
      >>> treepack.serialization.save_to_file({"w": np.arange(3)}, path)
      >>> treepack.serialization.load_from_file(None, path)
      {'w': array([0, 1, 2])}
    """
    how = Writing(compress=compress, level=level, align=align, durable=durable, threads=threads)
    save_layout(state_layout(target, align), located(filepath, storage_options), how, progress)


def load_from_file(
    target: Template | None,
    filepath: Location,
    *,
    copy: bool | None = None,
    mmap: bool = True,
    strict: Strict = True,
    max_size: int | None = None,
    threads: int | None = None,
    progress: Progress = None,
    storage_options: StorageOptions = None,
) -> Template:
    """Restores a tree like the target, with leaves from a file.

    Args:
      target: The template; see `from_state_dict`. `None` returns the state dict.
      filepath: A file of `save_to_file`, or of flax. Gzip is recognised by its first bytes.
      copy: See `msgpack_restore`.
      threads: See `to_bytes`; for decompressing and copying.
      progress: See `save_to_file`; for reading and decompressing. A mapped file has no
        progress.
      mmap: Whether to map the file, so that its arrays are read from the disk when they
        are used. Meanwhile the file may be replaced or deleted, as by `save_to_file`,
        but must not be truncated or overwritten in place. `False` reads all of it now.
      strict: See `from_state_dict`.
      max_size: The maximum decompressed size in bytes.
      storage_options: See `save_to_file`.

    Returns:
      The new tree. Its arrays are NumPy arrays.

    Raises:
      OSError: If the file cannot be read.
      DecodeError: A ValueError, with the byte offset. If the file has another format.
      MismatchError: A ValueError. If it does not fit the template.
      CorruptionError: A ValueError. If it is a damaged gzip file.

    Examples:
      >>> import numpy as np, tempfile
      >>> from treepack import serialization
      >>> path = f"{tempfile.mkdtemp()}/model.msgpack"
      >>> serialization.save_to_file({"w": np.ones(3)}, path)
      >>> serialization.load_from_file({"w": np.zeros(3)}, path)
      {'w': array([1., 1., 1.])}
    """
    how = restoring(strict, copy, threads)
    opening = Opening(mmap=mmap, max_size=max_size, threads=threads, progress=progress)
    path = located(filepath, storage_options)
    with naming(path):
        try:
            content = read_whole(path, opening)
        except IsADirectoryError as error:
            error.add_note(
                "treepack.load reads directories; containers='plain' gives dicts and lists"
            )
            raise
        found: Template = restore_encoded(target, content, how)
        return found


def compress_bytes(
    data: Buffer,
    *,
    level: int | None = None,
    compress: Compress = True,
    threads: int | None = None,
    progress: Progress = None,
) -> bytes:
    """Compresses data with gzip, or as numbers.

    The result is a gzip stream that every reader of gzip takes. Its blocks are compressed, and
    by `decompress_bytes` decompressed, in parallel; an index of them follows the data, in empty
    members. Equal data give equal results: the time stamp is zero, and the number of threads
    has no influence.

    Args:
      data: Any bytes-like object.
      level: From 0 (stored) to 9 (smallest), as everywhere. `None` chooses for each block
        by its content: weights, which do not repeat, are coded by the frequency of each
        byte, which is many times as fast as a search for matches.
      compress: `"numbers"` is smaller and faster for weights, and read by treepack alone.
      threads: See `to_bytes`.
      progress: See `save_to_file`.

    Raises:
      ValueError: If there is no such level, or no such way to compress.

    Examples:
      >>> import gzip, treepack
      >>> gzip.decompress(treepack.serialization.compress_bytes(b"abc"))
      b'abc'
    """
    _check_how(compress, level)
    with progress_bar(progress, "compress") as tell:
        return core.compress(
            data, level, numbers=compress == "numbers", threads=threads, progress=tell
        )


def decompress_bytes(
    data: Buffer,
    *,
    max_size: int | None = None,
    threads: int | None = None,
    progress: Progress = None,
) -> bytes:
    """Decompresses gzip data, or data compressed as numbers.

    Args:
      data: Any bytes-like object with any number of gzip members; zero bytes after a
        member are ignored.
      max_size: The maximum number of bytes to return.
      threads: See `to_bytes`. Only streams of treepack are decompressed in parallel.
      progress: See `save_to_file`. Of streams of others, the bytes that have been read
        count, since the decompressed size is unknown.

    Raises:
      GzipTruncatedError: A ValueError and EOFError. If the data end early.
      GzipError: A ValueError and OSError. If they are damaged, or are not gzip.
      TreepackError: A ValueError. If there are more than `max_size` bytes.

    Examples:
      >>> import gzip, treepack
      >>> treepack.serialization.decompress_bytes(gzip.compress(b"abc"))
      b'abc'
    """
    check("max_size", max_size)
    with progress_bar(progress, "decompress") as tell:
        return core.decompress(data, max_size=max_size, threads=threads, progress=tell)


def _check_how(compress: Compress, level: int | None) -> None:
    check_compress(compress, level)
    if not compress:
        raise ValueError("compress must be True, 'gzip' or 'numbers' here")


def to_compressed_bytes(
    target: Any,
    *,
    align: int = 16,
    level: int | None = None,
    compress: Compress = True,
    threads: int | None = None,
    progress: Progress = None,
) -> bytes:
    """Encodes the state of a tree as msgpack, compressed with gzip or as numbers.

    Args:
      target: Any tree; see `to_state_dict`.
      align: See `to_bytes`.
      level: See `compress_bytes`.
      compress: See `compress_bytes`.
      threads: See `to_bytes`.
      progress: See `save_to_file`.

    Examples:
      >>> from treepack import serialization
      >>> serialization.from_compressed_bytes([0, 0], serialization.to_compressed_bytes([1, 2]))
      [1, 2]
    """
    _check_how(compress, level)
    layout, numbers = state_layout(target, align), compress == "numbers"
    with progress_bar(progress, "compress") as tell:
        return layout.to_gzip(level, numbers=numbers, threads=threads, progress=tell)


def from_compressed_bytes(
    target: Template | None,
    compressed_data: Buffer,
    *,
    copy: bool | None = None,
    strict: Strict = True,
    max_size: int | None = None,
    threads: int | None = None,
    progress: Progress = None,
) -> Template:
    """Restores a tree like the target, with leaves from the result of `to_compressed_bytes`.

    Takes the options of `from_bytes` and `decompress_bytes`, with the same errors.

    Examples:
      >>> import numpy as np
      >>> from treepack import serialization
      >>> data = serialization.to_compressed_bytes({"w": np.ones(3)})
      >>> serialization.from_compressed_bytes({"w": np.zeros(3)}, data)
      {'w': array([1., 1., 1.])}
    """
    how = restoring(strict, copy, threads)
    content = decompress_bytes(
        compressed_data, max_size=max_size, threads=threads, progress=progress
    )
    found: Template = restore_encoded(target, content, how)
    return found


def patch(*, strict: Strict = True) -> Patch:
    """Replaces the byte functions of flax by those here, for code of others that calls them.

    `to_bytes`, `from_bytes`, `msgpack_serialize` and `msgpack_restore` of
    `flax.serialization` are replaced, for good unless the result is used as a context manager.
    Call it before the import of modules that import the functions by name. `to_state_dict` and
    `from_state_dict` stay flax's: its own modules call them for their own purposes.

    Args:
      strict: How `flax.serialization.from_bytes` compares leaves with the template's; see
        `from_state_dict`. `False` compares neither shapes nor dtypes, as flax does, for programs
        that restore into templates of other shapes or dtypes.

    Returns:
      A context manager that restores the functions of flax; its method `undo` does so, too.

    Raises:
      ImportError: If flax is not installed.

    Examples:
      >>> import flax, treepack
      >>> with treepack.serialization.patch():
      ...     flax.serialization.to_bytes is treepack.serialization.to_bytes
      True
    """
    check("strict", strict)
    as_strict = functools.wraps(from_bytes)(functools.partial(from_bytes, strict=strict))
    return Patch(
        {
            "to_bytes": to_bytes,
            "from_bytes": from_bytes if strict is True else as_strict,
            "msgpack_serialize": msgpack_serialize,
            "msgpack_restore": msgpack_restore,
        }
    )
