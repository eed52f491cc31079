"""Saves and reads leaves one by one: trees larger than memory, streams of EasyLM and EasyDeL.

A *stream* is a sequence of msgpack values `(key, value)`: the key is a list of strings, the value
the bytes that `flax.serialization.to_bytes` makes of a leaf
(https://github.com/young-geng/EasyLM, `checkpoint.py`).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

import treepack._core as core
from treepack._src import paths as _paths
from treepack._src.advice import advised
from treepack._src.arrays.deferred import Deferred, InContent
from treepack._src.interop import jax as _jax
from treepack._src.layouts.layout import Encoding, state_layout
from treepack._src.leaves.signature import signature
from treepack._src.options import Opening, StorageOptions
from treepack._src.printable import warn
from treepack._src.storage.address import Address, Location
from treepack._src.storage.content import content_of
from treepack._src.storage.naming import naming
from treepack.errors import TreepackError


@advised
def read_stream(
    path: Location, *, max_size: int | None = None, storage_options: StorageOptions = None
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields the leaves of an EasyLM or EasyDeL stream, one by one.

    Args:
      path: The file.
      max_size: The maximum decompressed size of gzip in bytes.
      storage_options: See `save`.

    Yields:
      Pairs of the path of a leaf, as a tuple of keys, and the leaf. Arrays are read when used.

    Raises:
      DecodeError: If the file has another format.

    Examples:
      >>> import numpy as np, tempfile, treepack
      >>> path = f"{tempfile.mkdtemp()}/stream"
      >>> treepack.write_stream(path, [(("params", "w"), np.ones(2)), (("step",), 3)])
      >>> dict(treepack.read_stream(path))
      {('params', 'w'): array([1., 1.]), ('step',): 3}
    """
    source = Address.of(path, storage_options)
    with naming(source):
        content = content_of(source, Opening(max_size=max_size), may_be_empty=True)
        items = core.stream_items(content)
    for key, start, end in items:
        with naming(source):
            leaf = core.restore(content, None, None, part=(start, end))
        yield tuple(key), leaf


@advised
def write_stream(
    path: Location,
    leaves: Iterable[tuple[Any, Any]],
    *,
    storage_options: StorageOptions = None,
) -> None:
    """Writes leaves to an EasyLM or EasyDeL stream, and replaces the file atomically.

    A stream of one leaf is a MessagePack value as well: `load` returns its key and bytes.

    Args:
      path: The file, or its URL: a stream is uploaded when its last leaf is written.
      leaves: Pairs of a path (a tuple of keys, a key path of JAX, or a string such as `params/w`)
        and a leaf, such as `tree.items()`. From an iterator, only one leaf is in memory at a time.
      storage_options: See `save`.

    Raises:
      UnserializableLeafError: If a leaf cannot be stored.
      TypeError: If `leaves` has something other than pairs.
      ValueError: If the suffix of `path` is of another format, or an iterator yields nothing.

    Examples:
      >>> import numpy as np, tempfile, treepack
      >>> path = f"{tempfile.mkdtemp()}/stream"
      >>> treepack.write_stream(path, ((f"layers/{i}", np.full(2, i)) for i in range(100)))
      >>> next(treepack.read_stream(path))
      (('layers', '0'), array([0, 0]))
    """
    place = Address.of(path, storage_options)
    place.compression()
    with place.replacing() as file:
        for key, leaf in _pairs(leaves):
            value = state_layout(leaf, align=16).to_bytes(threads=None)
            file.write(Encoding(align=16).plain([_paths.parts(key), value]).to_bytes(threads=None))


def spooled(tree: Any, path: Address) -> contextlib.AbstractContextManager[Any]:
    """Makes a tree of an iterator, with large arrays in a temporary file inside the block."""
    return _spooled(tree, path) if isinstance(tree, Iterator) else contextlib.nullcontext(tree)


@contextlib.contextmanager
def _spooled(leaves: Iterator[tuple[Any, Any]], path: Address) -> Iterator[Any]:
    with path.spool() as file:
        yield _collected(leaves, file, path)


# A key path as JAX prints it, with a key in brackets.
_KEYSTR = re.compile(r"(\.\w+)*\[('[^'/]*'|\d+)\](\[('[^'/]*'|\d+)\]|\.\w+)*")


def _pairs(leaves: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    is_used, has_warned = isinstance(leaves, Iterator), False
    for pair in leaves:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(
                "leaves must be pairs of a path and a leaf, such as ('params/w', array), got "
                f"{pair!r:.100}: of a dict, pass iter(tree.items())"
            )
        is_used = False
        if not has_warned and type(pair[0]) is str and _KEYSTR.fullmatch(pair[0]):
            has_warned = True
            warn(
                f"{pair[0]!r:.100} looks like jax.tree_util.keystr(path), and becomes one key: "
                "pass the key path itself, or keystr(path, simple=True, separator='/')"
            )
        yield pair[0], pair[1]
    if is_used:
        raise TreepackError(
            "the iterator yields nothing, as one that was used before: make a new one; for an "
            "empty tree, pass {}"
        )


def _collected(leaves: Iterable[tuple[Any, Any]], file: Any, path: Any) -> Any:
    rows: list[tuple[list[str], Any, int | None]] = []
    for key, leaf in _pairs(leaves):
        if isinstance(leaf, Deferred) or not _is_large(leaf):
            rows.append((_paths.parts(key), leaf, None))
            continue
        array = np.ascontiguousarray(leaf)
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        rows.append((_paths.parts(key), signature(array), file.tell()))
        file.write(array.reshape(-1).view(np.uint8).data)
    with naming(path):
        file.flush()
        content = core.Content.map(file.name) if file.tell() else None
    tree: dict[str, Any] = {}
    for parts, leaf, start in rows:
        if start is not None and content is not None:
            leaf = InContent(leaf.shape, leaf.dtype, content, start)
        if not parts and len(rows) == 1:
            return leaf
        _paths.put(tree, parts, leaf)
    return tree


# Smaller arrays stay in memory.
_SPOOL_BYTES = 64 << 10


def _is_large(leaf: Any) -> bool:
    is_array = isinstance(leaf, np.ndarray) or _jax.is_array(leaf)
    return is_array and not _jax.is_extended(leaf.dtype) and leaf.nbytes >= _SPOOL_BYTES
