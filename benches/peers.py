"""The libraries that are compared, each as far as it can do the work.

The work is flax's: a nested dict of arrays becomes bytes or a file, and the same nested dict of
NumPy arrays, with shapes and dtypes, comes back. If a library lacks a step, such as names for
nested leaves, this module does it in the cheapest way known.
"""

from __future__ import annotations

import contextlib
import io
import json
import mmap
import pickle
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from flax import serialization as flax

import treepack

Tree = Any
Data = Any


@dataclass
class Library:
    """A library's function for each operation, or a string with the reason that it has none.

    Attributes:
      settings: Those that differ from the defaults, since the library is faster with them.
    """

    encode: Callable[[Tree], Data] | str
    decode: Callable[[Data], Tree] | str
    save: Callable[[Tree, Path], Any] | str
    load: Callable[[Path], Tree] | str
    settings: str = ""


def _bytes_library(encode: Callable[[Tree], Data], decode: Callable[[Data], Tree]) -> Library:
    """Returns a library that knows bytes alone; files are written as a whole, and mapped."""

    def save(tree: Tree, path: Path) -> None:
        path.write_bytes(encode(tree))

    return Library(encode, decode, save, lambda path: decode(_map(path)), "reads a mapped file")


def _flatten(tree: Tree) -> dict[str, np.ndarray]:
    flat = {}

    def visit(node: Tree, name: str) -> None:
        if isinstance(node, dict):
            for key, value in node.items():
                visit(value, f"{name}/{key}" if name else key)
        else:
            flat[name] = np.asarray(node)

    visit(tree, "")
    return flat


def _unflatten(flat: dict[str, np.ndarray]) -> Tree:
    tree: Tree = {}
    for name, value in flat.items():
        *parents, last = name.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    return tree


def _dtype(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, name))


def _map(path: Path) -> memoryview:
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _treepack() -> Library:
    return Library(
        treepack.serialization.to_bytes,
        treepack.serialization.msgpack_restore,
        lambda tree, path: treepack.serialization.save_to_file(tree, path, durable=False),
        lambda path: treepack.serialization.load_from_file(None, path),
        "save_to_file(durable=False)",
    )


def _flax() -> Library:
    return _bytes_library(flax.to_bytes, flax.msgpack_restore)


def _eformer() -> Library:
    from eformer.pytree import serialization as eformer

    return _bytes_library(eformer.to_bytes, eformer.msgpack_restore)


def _msgspec() -> Library:
    import msgspec

    encoder, decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder()
    return _bytes_library(
        lambda tree: encoder.encode(_pack(tree)), lambda data: _unpack(decoder.decode(data))
    )


def _ormsgpack() -> Library:
    import ormsgpack

    return _bytes_library(
        lambda tree: ormsgpack.packb(_pack(tree)), lambda data: _unpack(ormsgpack.unpackb(data))
    )


def _pack(node: Tree) -> Any:
    if isinstance(node, dict):
        return {key: _pack(value) for key, value in node.items()}
    array = np.ascontiguousarray(node)
    memory = memoryview(array.reshape(-1).view(np.uint8))
    return [list(array.shape), array.dtype.name, memory]


def _unpack(node: Any) -> Tree:
    if isinstance(node, dict):
        return {key: _unpack(value) for key, value in node.items()}
    shape, dtype, data = node
    return np.frombuffer(data, _dtype(dtype)).reshape(shape)


def _pickle() -> Library:
    def save(tree: Tree, path: Path) -> None:
        with path.open("wb") as file:  # large arrays go to it without a copy
            pickle.dump(jax.tree.map(np.asarray, tree), file, protocol=5)

    return Library(
        lambda tree: pickle.dumps(jax.tree.map(np.asarray, tree), protocol=5),
        pickle.loads,
        save,
        lambda path: pickle.loads(_map(path)),
        "protocol 5, dumps into the file, reads a mapped file",
    )


def _arrow() -> Library:
    import pyarrow as pa

    def batch(tree: Tree) -> Any:
        fields, columns = [], []
        for name, array in _flatten(tree).items():
            values = array.reshape(-1)
            if values.dtype == jnp.bfloat16:
                values = values.view(np.uint16)  # arrow has no bfloat16
            offsets = pa.array([0, values.size], pa.int64())
            columns.append(pa.LargeListArray.from_arrays(offsets, pa.array(values)))
            note = {"shape": json.dumps(array.shape), "dtype": array.dtype.name}
            fields.append(pa.field(name, columns[-1].type, metadata=note))
        return pa.record_batch(columns, schema=pa.schema(fields))

    def write(tree: Tree, sink: Any) -> None:
        record = batch(tree)
        with pa.ipc.new_stream(sink, record.schema) as writer:
            writer.write_batch(record)

    def encode(tree: Tree) -> Any:
        sink = pa.BufferOutputStream()
        write(tree, sink)
        return sink.getvalue()

    def decode(source: Any) -> Tree:
        with pa.ipc.open_stream(source) as reader:
            record = reader.read_next_batch()
        flat = {}
        for field, column in zip(record.schema, record.columns, strict=True):
            values = column.values.to_numpy(zero_copy_only=True)
            dtype = _dtype(field.metadata[b"dtype"].decode())
            flat[field.name] = values.view(dtype).reshape(json.loads(field.metadata[b"shape"]))
        return _unflatten(flat)

    def save(tree: Tree, path: Path) -> None:
        with pa.OSFile(str(path), "wb") as sink:
            write(tree, sink)

    return Library(encode, decode, save, lambda path: decode(pa.memory_map(str(path))))


def _safetensors() -> Library:
    from safetensors import numpy as safetensors

    def load(path: Path) -> Tree:
        return _unflatten(safetensors.load_file(path))

    return Library(
        lambda tree: safetensors.save(_flatten(tree)),
        lambda data: _unflatten(safetensors.load(data)),
        lambda tree, path: safetensors.save_file(_flatten(tree), path),
        load,
    )


def _equinox() -> Library:
    import equinox as eqx

    like: list[Tree] = [None]

    def encode(tree: Tree) -> bytes:
        like[0] = tree  # which it needs to read
        file = io.BytesIO()
        eqx.tree_serialise_leaves(file, tree)
        return file.getvalue()

    def decode(data: bytes) -> Tree:
        return eqx.tree_deserialise_leaves(io.BytesIO(data), like[0])

    def save(tree: Tree, path: Path) -> None:
        like[0] = tree
        with path.open("wb") as file:
            eqx.tree_serialise_leaves(file, tree)

    def load(path: Path) -> Tree:
        with path.open("rb") as file:
            return eqx.tree_deserialise_leaves(file, like[0])

    return Library(encode, decode, save, load)


def _orbax_defaults() -> Library:
    import orbax.checkpoint as ocp

    return _of_orbax(ocp.PyTreeCheckpointer(), contextlib.nullcontext, "")


def _orbax() -> Library:
    import orbax.checkpoint as ocp
    from orbax.checkpoint._src.serialization import tensorstore_utils

    @contextlib.contextmanager
    def without_syncs() -> Iterator[None]:
        # Orbax has no option for it. The contexts of a call are copies of these.
        base, ocdbt = (
            tensorstore_utils._BASE_TS_CONTEXT,
            tensorstore_utils._DEFAULT_OCDBT_TS_CONTEXT,
        )
        off = {"file_io_sync": False}
        with mock.patch.dict(base, off), mock.patch.dict(ocdbt, off):
            yield

    return _of_orbax(
        ocp.PyTreeCheckpointer(use_compression=False),
        without_syncs,
        "PyTreeCheckpointer(use_compression=False), and TensorStore's file_io_sync is off",
    )


def _of_orbax(checkpointer: Any, within: Any, settings: str) -> Library:
    def save(tree: Tree, path: Path) -> None:
        shutil.rmtree(path, ignore_errors=True)
        with within():
            checkpointer.save(path, tree)

    reason = "it writes directories alone"
    return Library(reason, reason, save, checkpointer.restore, settings)


LIBRARIES: dict[str, Callable[[], Library]] = {
    "flax": _flax,
    "treepack": _treepack,
    "eformer": _eformer,
    "arrow": _arrow,
    "msgspec": _msgspec,
    "safetensors": _safetensors,
    "ormsgpack": _ormsgpack,
    "pickle": _pickle,
    "equinox": _equinox,
    "orbax": _orbax,
    "orbax defaults": _orbax_defaults,
}
"""How to get each library, in the order of the table: with the settings that are fastest here."""

SHORT = ("flax", "treepack", "arrow", "msgspec", "safetensors")
"""Those of the short run: the reference, and the fastest."""
