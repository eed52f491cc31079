"""Reads the metadata of Orbax's directories, and opens their arrays by TensorStore.

Orbax stores a tree in a directory, an *item*. Its file `_METADATA` has the path and type of each
leaf (`metadata/tree.py` of Orbax). Arrays and numbers are arrays of Zarr, in one OCDBT database or
in a directory each, named by the keys of their path with dots. Strings, and the implementations of
typed PRNG keys, are in a file of JSON.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

import treepack._core as core
from treepack._src import paths as _paths
from treepack._src.formats.orbax.finding import ABOUT, DATABASE, TREE
from treepack._src.storage.address import Address
from treepack._src.storage.foreign import substitute
from treepack.errors import CorruptionError, DecodeError

T = TypeVar("T")

# The name of a database of OCDBT, of files and of a folder in an item. `AGGREGATE` has the values
# of older versions, in MessagePack.
_STRINGS = "_strings.json"
_KEYS = "array_metadatas"
AGGREGATE = "checkpoint"

# The types of leaves: `serialization/type_handlers.py` and `metadata/empty_values.py` of Orbax. It
# writes `None` for an empty namedtuple as well.
ARRAYS = ("jax.Array", "np.ndarray")
SCALAR = "scalar"
STRING = "string"
EMPTY: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "NamedTuple": lambda: None,
    "Dict": dict,
    "List": list,
    "Tuple": tuple,
}

# The key type of an element of a list or tuple; names of other nodes have another.
_SEQUENCE = 1

# The memory in bytes for the nodes of a database.
_CACHE_BYTES = 100_000_000


class Leaf(NamedTuple):
    """A leaf; its value is in the file `checkpoint` if it `is_aggregated`."""

    parts: tuple[str, ...]
    are_indices: tuple[bool, ...]
    type: str
    is_aggregated: bool

    @property
    def path(self) -> str:
        return _paths.text(self.parts)

    @property
    def name(self) -> str:
        return ".".join(self.parts)


class Item(NamedTuple):
    """The metadata of an item.

    Attributes:
      metadata: The metadata of the caller, or `None`.
      options: The driver of TensorStore, and how it reads chunks that are missing.
      keys: The implementations of typed PRNG keys, by the names of their arrays.
    """

    path: Address
    leaves: list[Leaf]
    metadata: Any
    options: dict[str, Any]
    keys: dict[str, str]


def read_item(path: Address) -> Item:
    described = _json(path, TREE)
    with _parsing(TREE):
        leaves = [_leaf(entry) for entry in described["tree_metadata"].values()]
        driver = "zarr3" if described.get("use_zarr3") else "zarr"
        fills = not described.get("store_array_data_equal_to_fill_value", False)
        in_database = described.get("use_ocdbt")
        metadata = described.get("custom_metadata")
    names = path.names()
    if metadata is None:
        metadata = _metadata_of_step(path, names)
    if in_database and DATABASE not in names and any(leaf.type in ARRAYS for leaf in leaves):
        raise CorruptionError(
            f"{DATABASE}, which lists the arrays, is missing: the save or a copy has not finished"
        )
    options = {"driver": driver, "fill_missing_data_reads": fills}
    keys: dict[str, str] = {}
    for name in (path / _KEYS).names() if _KEYS in names else ():
        file = f"{_KEYS}/{name}"
        listed = _json(path, file)
        with _parsing(file):
            for entry in listed["array_metadatas"]:
                array = entry["array_metadata"]
                impl = (array.get("ext_metadata") or {}).get("random_key_impl")
                if impl is not None:
                    keys[str(array["param_name"])] = str(impl)
    return Item(path, leaves, metadata, options, keys)


def _metadata_of_step(path: Address, names: Sequence[str]) -> Any:
    step = path if ABOUT in names else path.beside("")
    if not (step / ABOUT).exists():
        return None
    described = _json(step, ABOUT)
    with _parsing(ABOUT):
        return described.get("custom_metadata") or None


def _leaf(entry: Any) -> Leaf:
    keys, value = entry["key_metadata"], entry["value_metadata"]
    parts = tuple(str(key["key"]) for key in keys)
    if len(parts) >= core.MAX_DEPTH:
        raise ValueError(
            f"a path has {len(parts)} parts, but trees have fewer than {core.MAX_DEPTH} levels"
        )
    indices = tuple(key["key_type"] == _SEQUENCE for key in keys)
    name = str(value["value_type"])
    return Leaf(parts, indices, name, bool(value["skip_deserialize"]) and name not in EMPTY)


def strings_of(item: Item) -> Any:
    return _json(item.path, _STRINGS)


def string_at(strings: Any, leaf: Leaf) -> str:
    """Orbax used the name as a JSON pointer (RFC 6901)."""
    try:
        for part in leaf.name.split("/"):
            strings = strings[part.replace("~1", "/").replace("~0", "~")]
    except (LookupError, TypeError) as error:
        raise DecodeError("the string is missing", path=leaf.path) from error
    return str(strings)


def tree_of(leaves: Sequence[Leaf], values: Iterable[Any]) -> Any:
    tree: dict[str, Any] = {}
    containers: dict[tuple[str, ...], bool] = {}
    for leaf, value in zip(leaves, values, strict=True):
        if not leaf.parts and len(leaves) == 1:
            return value
        for level, is_index in enumerate(leaf.are_indices):
            if containers.setdefault(leaf.parts[:level], is_index) != is_index:
                raise DecodeError(f"{TREE} has a node with indices and names", path=leaf.path)
        with _parsing(TREE):
            _paths.put(tree, leaf.parts, value)
    root: dict[str, Any] = {"": tree}
    lists = [("", *parts) for parts, is_list in containers.items() if is_list]
    for *above, last in sorted(lists, key=len, reverse=True):
        node = functools.reduce(dict.__getitem__, above, root)
        if (elements := _paths.elements(node[last])) is None:
            path = _paths.text([*above, last][1:])
            raise DecodeError(f"{TREE} lacks elements of a list", path=path)
        node[last] = elements
    return root[""]


# Opening arrays


def open_arrays(item: Item, leaves: Sequence[Leaf]) -> list[Any]:
    if not leaves:
        return []
    try:
        import tensorstore
    except ImportError as error:
        raise ImportError(
            "reading checkpoints of Orbax requires TensorStore: pip install tensorstore"
        ) from error
    context = tensorstore.Context({"cache_pool#ocdbt": {"total_bytes_limit": _CACHE_BYTES}})
    is_database = (item.path / DATABASE).exists()
    opening = []
    for leaf in leaves:
        spec = {**item.options, "kvstore": _kvstore(item, leaf, is_database)}
        started = tensorstore.open(spec, open=True, read=True, context=context)
        opening.append(functools.partial(result, started, leaf.path))
    return [wait() for wait in opening]


def _kvstore(item: Item, leaf: Leaf, is_database: bool) -> dict[str, Any]:
    if is_database:
        base = {"driver": "file", "path": f"{item.path}/"}
        return {
            "driver": "ocdbt",
            "base": base,
            "path": leaf.name,
            "cache_pool": "cache_pool#ocdbt",
        }
    if leaf.name.startswith("/") or ".." in leaf.name.split("/"):
        raise DecodeError("the name of the array leads out of the directory", path=leaf.path)
    return {"driver": "file", "path": os.path.join(item.path, leaf.name)}  # noqa: PTH118


def read(store: Any) -> Any:
    """Begins to read an array; returns a future of it.

    Raises a MemoryError if it or a chunk is too large: TensorStore would end the program.
    """
    chunk = store.chunk_layout.read_chunk.shape or ()
    size = max(math.prod(store.shape), math.prod(chunk))
    try:
        np.empty(size * store.dtype.numpy_dtype.itemsize, np.uint8)
    except ValueError as error:  # more than there are addresses
        raise MemoryError(str(error)) from error
    return store.read()


def result(started: Any, path: str) -> Any:
    try:
        return started.result()
    except ValueError as error:
        text = str(error).partition(" [tensorstore_spec")[0]
        raise CorruptionError(f"at {path}: TensorStore cannot read the array: {text}") from error


def _json(path: Address, name: str) -> Any:
    try:
        data = (path / name).read_bytes()
        with _parsing(name):
            if text := substitute(data):
                raise DecodeError(f"{name} is {text}")
            return json.loads(data)
    except FileNotFoundError as error:
        raise CorruptionError(f"{name} is missing: the checkpoint is incomplete") from error


@contextlib.contextmanager
def _parsing(name: str) -> Iterator[None]:
    try:
        yield
    except DecodeError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        text = f"{type(error).__name__}: {error}"
        raise DecodeError(f"{name} is not metadata of Orbax: {text:.200}") from error
