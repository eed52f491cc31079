"""Encodes pytrees as msgpack: a drop-in for `flax.serialization` and eformer's.

Replace `from flax import serialization` or `from eformer.pytree import serialization` with `from
treepack import serialization`. Every public name of both modules is here, with the same signature;
further options are keyword-only. flax and eformer read the files written here, and the reverse.

`MAX_CHUNK_SIZE`, in bytes, is read at each save: larger arrays are split into chunks.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Literal, TypedDict, Unpack, overload

import numpy as np

import treepack._core as core
from treepack._src.interop import flax
from treepack._src.layouts.layout import Encoding, state_layout
from treepack._src.options import (
    Buffer,
    Compress,
    DropInReading,
    Opening,
    Progress,
    Replicas,
    StorageOptions,
    Strict,
    Template,
    WriteOptions,
    Writing,
    check,
    check_compress,
    progress_bar,
    restoring,
    takes,
)
from treepack._src.pytree.handlers import overridden, register_serialization_state
from treepack._src.pytree.state_dict import is_serializable, to_state_dict
from treepack._src.restore.session import current_path
from treepack._src.restore.template import from_state_dict, restore_encoded
from treepack._src.saving.background import OneByOne, Saving
from treepack._src.storage.address import Address, Location
from treepack._src.storage.content import check_is_bytes, content_of
from treepack._src.storage.naming import naming
from treepack.errors import GzipError

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
"""The maximum size of a chunk in bytes; larger arrays are split into chunks."""

Encoding.chunks = sys.modules[__name__]


class FileWriteOptions(WriteOptions, total=False):
    """The options of functions that write files; see `treepack.save`."""

    progress: Progress
    storage_options: StorageOptions


class FileReadOptions(TypedDict, total=False):
    """The options of `load_from_file`."""

    strict: Strict
    copy: bool | None
    mmap: bool
    max_size: int | None
    threads: int | None
    progress: Progress
    storage_options: StorageOptions


class RestoreOptions(FileReadOptions, total=False):
    """The options of `treepack.checkpoints.restore_checkpoint` that flax lacks."""

    replicas: Replicas
    timeout: float


def to_bytes(target: Any, *, align: int = 16, threads: int | None = None) -> bytes:
    """Encodes the state of a tree as msgpack.

    Args:
      target: Any tree; see `to_state_dict`.
      align: A power of two from 1 to 64. Arrays of at least 1 KiB begin at multiples of `align`
        bytes, so that they can be viewed in place. With 1 the result equals flax's, byte for byte.
      threads: See `treepack.save`.

    Returns:
      The encoding, which this `from_bytes` and flax's read.

    Raises:
      UnserializableLeafError: A TypeError with the path, if a leaf has a type or dtype that cannot
        be stored.
      ValueError: If a dict has two keys that are equal as strings, or a reserved key.
      OverflowError: If an integer is outside of -2**63 to 2**64-1.

    Examples:
      >>> import numpy as np, treepack
      >>> params = {"w": np.arange(3.0)}
      >>> treepack.serialization.from_bytes(params, treepack.serialization.to_bytes(params))
      {'w': array([0., 1., 2.])}
    """
    return state_layout(target, align=align, joined=True).to_bytes(threads=threads)


def from_bytes(
    target: Template | None,
    encoded_bytes: Buffer,
    *,
    copy: bool | None = None,
    strict: Strict = True,
    threads: int | None = None,
) -> Template:
    """Restores a tree from bytes, in the structure of a target.

    Args:
      target: A template; see `from_state_dict`. `None` returns the state dict.
      encoded_bytes: The result of `to_bytes`, or of flax's; any bytes-like object.
      copy: See `msgpack_restore`.
      strict: See `from_state_dict`.
      threads: See `to_bytes`.

    Returns:
      The restored tree, with NumPy arrays.

    Raises:
      DecodeError: With the byte offset, if the bytes have another format.
      MismatchError: If the state does not match the template; it lists all differences.

    Examples:
      >>> import numpy as np, treepack
      >>> encoded = treepack.serialization.to_bytes({"w": np.zeros((2, 3))})
      >>> treepack.serialization.from_bytes({"w": np.zeros((3, 2))}, encoded)
      Traceback (most recent call last):
        ...
      treepack.errors.MismatchError: 1 leaf does not match the template:
        w: expected float64[3,2], found float64[2,3]
      Pass strict=False to take the shapes and dtypes of the file.
    """
    try:
        tree: Template = restore_encoded(target, encoded_bytes, restoring(strict, copy, threads))
    except TypeError:
        check_is_bytes(encoded_bytes, "; the target comes first, as in from_bytes(target, data)")
        raise
    return tree


def msgpack_serialize(
    pytree: Any, in_place: bool = False, *, align: int = 16, threads: int | None = None
) -> bytes:
    """Encodes a tree of plain containers as msgpack.

    Unlike `to_bytes`, it keeps lists as lists; tuples become lists. Call `to_state_dict` first for
    trees with other containers.

    Args:
      pytree: A tree of dicts, lists and tuples. It is never changed.
      in_place: As in flax, `False` sorts the keys of dicts, `True` keeps their order.
      align: See `to_bytes`.
      threads: See `to_bytes`.

    Raises:
      UnserializableLeafError: A TypeError with the path, if the tree has another container or a
        leaf that cannot be stored.

    Examples:
      >>> from treepack import serialization
      >>> serialization.msgpack_restore(
      ...     serialization.msgpack_serialize({"b": [1, 2.5], "a": None}))
      {'a': None, 'b': [1, 2.5]}
    """
    check("in_place", bool(in_place) if isinstance(in_place, int) else in_place)  # flax takes 1
    encoding = Encoding(align=align, sort_keys=not in_place, joined=True)
    return encoding.plain(pytree).to_bytes(threads=threads)


def msgpack_restore(
    encoded_pytree: Buffer, *, copy: bool | None = None, threads: int | None = None
) -> Any:
    """Decodes msgpack into dicts, lists and leaves.

    Args:
      encoded_pytree: The encoding; any bytes-like object.
      copy: See `treepack.load`; views keep the bytes alive.
      threads: See `to_bytes`.

    Raises:
      DecodeError: With the byte offset, if the bytes have another format; or, with `copy=False`, if
        an array cannot be viewed.

    Examples:
      >>> import numpy as np, treepack
      >>> encoded = treepack.serialization.msgpack_serialize({"w": np.zeros(1000)})
      >>> treepack.serialization.msgpack_restore(encoded)["w"].flags.writeable
      False
      >>> treepack.serialization.msgpack_restore(encoded, copy=True)["w"].flags.writeable
      True
    """
    try:
        return restore_encoded(None, encoded_pytree, restoring(False, copy, threads))
    except TypeError:
        check_is_bytes(encoded_pytree)
        raise


@overload
def save_to_file(
    target: Any,
    filepath: Location,
    *,
    background: Literal[False] = False,
    **options: Unpack[FileWriteOptions],
) -> None: ...


@overload
def save_to_file(
    target: Any,
    filepath: Location,
    *,
    background: Literal[True],
    **options: Unpack[FileWriteOptions],
) -> Saving: ...


@takes(FileWriteOptions)
def save_to_file(
    target: Any,
    filepath: Location,
    *,
    background: bool = False,
    **options: Unpack[FileWriteOptions],
) -> Saving | None:
    """Saves a tree to a file, atomically, like `treepack.save`.

    Args:
      target: Any tree; see `to_state_dict`.
      filepath: The file.
      background: Whether to write in a thread, and return a `Saving`; see `treepack.save`.
      align: See `to_bytes`.
      compress: See `treepack.save`, also for other options. flax does not read compressed files.

    Raises:
      UnserializableLeafError: See `to_bytes`, also for further errors.

    Examples:
      >>> import numpy as np, tempfile, treepack
      >>> path = f"{tempfile.mkdtemp()}/model.msgpack"
      >>> treepack.serialization.save_to_file({"w": np.arange(3)}, path)
      >>> treepack.serialization.load_from_file(None, path)
      {'w': array([0, 1, 2])}
    """
    writing = Writing.of(options)
    place = Address.of(
        filepath,
        options.get("storage_options"),
        for_file="pass its path, or write the result of to_bytes(target) to it",
    )
    check("background", background)
    saves = OneByOne(place)
    saves.wait()
    layout = state_layout(target, align=writing.align, snapshot=background)
    # The program may change its working directory during the save.
    where = place.absolute() if background else place
    write = functools.partial(where.save, layout, writing)
    del layout  # so that the traceback of an error does not hold it
    return saves.run(place, write, options.get("progress"), background=background)


@takes(FileReadOptions)
def load_from_file(
    target: Template | None,
    filepath: Location,
    **options: Unpack[FileReadOptions],
) -> Template:
    """Restores a tree from a file, in the structure of a target.

    Args:
      target: A template; see `from_state_dict`. `None` returns the state dict.
      filepath: A file of `save_to_file` or of flax. Gzip is recognised by its first bytes.
      strict: See `from_state_dict`.
      copy: See `treepack.load`, also for other options.

    Returns:
      The restored tree, with NumPy arrays.

    Raises:
      DecodeError: With the byte offset, if the file has another format.
      MismatchError: If the state does not match the template; it lists all differences.
      CorruptionError: If the file is damaged gzip.

    Examples:
      >>> import numpy as np, tempfile
      >>> from treepack import serialization
      >>> path = f"{tempfile.mkdtemp()}/model.msgpack"
      >>> serialization.save_to_file({"w": np.ones(3)}, path)
      >>> serialization.load_from_file({"w": np.zeros(3)}, path)
      {'w': array([1., 1., 1.])}
    """
    reading, opening = DropInReading.of(options), Opening.of(options)
    path = Address.of(filepath, options.get("storage_options"))
    with naming(path):
        try:
            content = content_of(path, opening)
        except IsADirectoryError as error:
            error.add_note(
                "treepack.load reads directories; containers='plain' gives dicts and lists"
            )
            raise
        tree: Template = restore_encoded(target, content, reading)
        return tree


def compress_bytes(
    data: Buffer,
    *,
    level: int | None = None,
    compress: Compress = True,
    threads: int | None = None,
    progress: Progress = None,
) -> bytes:
    """Compresses data with gzip, or as numbers.

    Every gzip reader accepts the result. Blocks are compressed and decompressed in parallel; an
    index of them follows the data, in empty members. The result is deterministic, for any number of
    threads.

    Args:
      data: Any bytes-like object.
      level: The gzip level from 0 (stored) to 9 (smallest). `None` chooses for each block by its
        content: weights, which do not repeat, are only Huffman-coded, many times faster than a
        search for matches.
      compress: `"numbers"` is smaller and faster for weights, but only treepack reads it.
      threads: See `to_bytes`.
      progress: See `treepack.save`.

    Raises:
      ValueError: If `level` or `compress` is not one of these values.

    Examples:
      >>> import gzip, treepack
      >>> gzip.decompress(treepack.serialization.compress_bytes(b"abc"))
      b'abc'
    """
    _check_is_compressed(compress, level)
    view = memoryview(data)
    if not view.c_contiguous:
        raise TypeError("the buffer must be contiguous")
    layout = core.lay_raw(b"", [np.frombuffer(view, np.uint8)], snapshot=False)
    with progress_bar(progress, "compress") as tell:
        return layout.to_gzip(level, numbers=compress == "numbers", threads=threads, progress=tell)


def decompress_bytes(
    data: Buffer,
    *,
    max_size: int | None = None,
    threads: int | None = None,
    progress: Progress = None,
) -> bytes:
    """Decompresses gzip data, or data compressed as numbers.

    Args:
      data: A bytes-like object with any number of gzip members; zero bytes after a member are
        ignored.
      max_size: The maximum number of bytes to return.
      threads: See `to_bytes`. Only streams of treepack are decompressed in parallel.
      progress: See `treepack.save`. For gzip of other programs it counts the compressed bytes,
        since the decompressed size is unknown.

    Raises:
      GzipTruncatedError: An EOFError, if the data end early.
      GzipError: An OSError, if the data are damaged or are not gzip.
      TreepackError: If the result would exceed `max_size` bytes.

    Examples:
      >>> import gzip, treepack
      >>> treepack.serialization.decompress_bytes(gzip.compress(b"abc"))
      b'abc'
    """
    check("max_size", max_size)
    try:
        with progress_bar(progress, "decompress") as tell:
            return core.decompress(data, max_size=max_size, threads=threads, progress=tell)
    except TypeError:
        check_is_bytes(data)
        raise
    except GzipError as error:
        if not core.is_compressed(data):
            error.add_note("treepack: the data are not compressed: use them as they are")
        raise


def _check_is_compressed(compress: Compress, level: int | None) -> None:
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

    Takes the options of `to_bytes` and `compress_bytes`; raises the same errors.

    Examples:
      >>> from treepack import serialization
      >>> serialization.from_compressed_bytes([0, 0], serialization.to_compressed_bytes([1, 2]))
      [1, 2]
    """
    _check_is_compressed(compress, level)
    layout, numbers = state_layout(target, align=align), compress == "numbers"
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
    """Restores a tree from the result of `to_compressed_bytes`, in the structure of a target.

    Takes the options of `from_bytes` and `decompress_bytes`; raises the same errors.

    Examples:
      >>> import numpy as np
      >>> from treepack import serialization
      >>> data = serialization.to_compressed_bytes({"w": np.ones(3)})
      >>> serialization.from_compressed_bytes({"w": np.zeros(3)}, data)
      {'w': array([1., 1., 1.])}
    """
    reading = restoring(strict, copy, threads)
    content = decompress_bytes(
        compressed_data, max_size=max_size, threads=threads, progress=progress
    )
    tree: Template = restore_encoded(target, content, reading)
    return tree


def validate_serializable(pytree: Any) -> tuple[bool, list[str]]:
    """Checks whether a tree can be saved.

    Args:
      pytree: Any tree.

    Returns:
      Whether it can be saved, and a list of issues of the form `path: reason`.

    Examples:
      >>> import treepack
      >>> valid, issues = treepack.serialization.validate_serializable({"a": object()})
      >>> valid, issues[0][:34]
      (False, 'a: cannot serialize a leaf of type')
    """
    problems = core.problems(pytree, overridden=overridden())
    return not problems, [f"{path}: {reason}" for path, reason in problems]


def get_serialization_info(pytree: Any) -> dict[str, Any]:
    """Returns statistics of a tree.

    Args:
      pytree: Any JAX pytree.

    Returns:
      A dict with `num_leaves`, `tree_structure` (a string), `total_elements` (a leaf without a
      shape counts as one), `memory_bytes`, `is_serializable` (of the outermost container) and
      `dtypes` (a sorted list of names).

    Examples:
      >>> import numpy as np, treepack
      >>> tree = {"w": np.zeros((2, 3), np.float32), "n": 1}
      >>> info = treepack.serialization.get_serialization_info(tree)
      >>> info["num_leaves"], info["total_elements"], info["dtypes"]
      (2, 7, ['float32'])
    """
    import jax

    leaves, structure = jax.tree_util.tree_flatten(pytree)
    elements = memory = 0
    dtypes = set()
    for leaf in leaves:
        elements += int(np.prod(leaf.shape)) if hasattr(leaf, "shape") else 1
        if hasattr(leaf, "nbytes"):
            memory += int(leaf.nbytes)
        elif isinstance(leaf, (bool, int, float, complex)):
            memory += np.asarray(leaf).nbytes
        if hasattr(leaf, "dtype"):
            dtypes.add(str(leaf.dtype))
    return {
        "num_leaves": len(leaves),
        "tree_structure": str(structure),
        "total_elements": elements,
        "memory_bytes": memory,
        "is_serializable": is_serializable(pytree),
        "dtypes": sorted(dtypes),
    }


def patch(*, strict: Strict = True) -> flax.Patch:
    """Replaces the byte functions of flax with treepack's, for libraries that call them.

    They are `to_bytes`, `from_bytes`, `msgpack_serialize` and `msgpack_restore` of
    `flax.serialization`. Call this before importing modules that import them by name.
    `to_state_dict` and `from_state_dict` stay flax's: modules of flax call them for other purposes.

    Args:
      strict: How `flax.serialization.from_bytes` compares leaves with the template; see
        `from_state_dict`. `False` compares neither shapes nor dtypes, as in flax.

    Returns:
      A context manager that restores the functions of flax on exit; so does its method `undo`.
      Unless it is used, the change is permanent.

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
    return flax.Patch(
        {
            "to_bytes": to_bytes,
            "from_bytes": from_bytes if strict is True else as_strict,
            "msgpack_serialize": msgpack_serialize,
            "msgpack_restore": msgpack_restore,
        }
    )


def __dir__() -> list[str]:
    return sorted(__all__)
