"""Compares small messages with pickle, msgspec, ormsgpack and flax; a part of `small.py`.

The message of the rows beside all libraries is what an actor sends for each step of an environment:
two small arrays, a float, a bool and an integer. Each library has its fastest settings for NumPy
arrays: pickle protocol 5; msgspec and ormsgpack encode an array as an extension of its dtype, shape
and bytes, which views the message when it is decoded; flax its functions without a state dict where
a message needs none.
"""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import ormsgpack
from flax import serialization as flax
from flax import struct

import treepack
from treepack import serialization

Call = Callable[[], Any]

STEP = {
    "obs": np.arange(24, dtype=np.float32),
    "action": np.arange(6, dtype=np.float32),
    "reward": 1.5,
    "done": False,
    "step": 123_456,
}
"""The message of five leaves."""

OTHERS = {
    "1 leaf": np.arange(24, dtype=np.float32),
    "10 leaves, nested": {
        "obs": {"pos": np.arange(3.0), "vel": np.arange(3.0), "image": np.zeros((8, 8), np.uint8)},
        "info": {"id": 7, "tags": ["a", "b"], "goal": (1, 2.5)},
        "reward": np.float32(1),
        "action": [np.int32(3), None],
    },
    "5 numbers": {name: at for at, name in enumerate("abcde")},
}


class Transition(NamedTuple):
    """A step of an environment."""

    obs: Any
    action: Any
    reward: Any
    done: Any


@struct.dataclass
class State:
    """The same as a struct of flax."""

    obs: Any
    action: Any
    reward: Any
    done: Any


FIELDS = (STEP["obs"], STEP["action"], 1.5, False)
TYPED = {"a NamedTuple": Transition(*FIELDS), "a struct of flax": State(*FIELDS)}

ARRAY = 1  # the code of the extension


def peers(tree: Any) -> dict[str, tuple[Call, Call]]:
    """Returns functions of each library that encode a tree, and decode it again."""
    plain, decode_plain = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder().decode

    def coded(array: np.ndarray) -> Any:
        parts = (array.dtype.str, array.shape, array.data)
        return msgspec.msgpack.Ext(ARRAY, plain.encode(parts))

    def made(_: int, data: Any) -> np.ndarray:
        dtype, shape, memory = decode_plain(data)
        return np.ndarray(shape, dtype, memory)

    encoder = msgspec.msgpack.Encoder(enc_hook=coded)
    decoder = msgspec.msgpack.Decoder(ext_hook=made)

    def default(array: np.ndarray) -> Any:
        parts = (array.dtype.str, array.shape, array.tobytes())
        return ormsgpack.Ext(ARRAY, ormsgpack.packb(parts))

    def remade(_: int, data: bytes) -> np.ndarray:
        dtype, shape, memory = ormsgpack.unpackb(data)
        return np.ndarray(shape, dtype, memory)

    encoded = {
        "pickle": lambda: pickle.dumps(tree, 5),
        "msgspec": lambda: encoder.encode(tree),
        "ormsgpack": lambda: ormsgpack.packb(tree, default=default),
        "flax": lambda: flax.msgpack_serialize(tree, in_place=True),
    }
    data = {name: encode() for name, encode in encoded.items()}
    decoded = {
        "pickle": lambda: pickle.loads(data["pickle"]),
        "msgspec": lambda: decoder.decode(data["msgspec"]),
        "ormsgpack": lambda: ormsgpack.unpackb(data["ormsgpack"], ext_hook=remade),
        "flax": lambda: flax.msgpack_restore(data["flax"]),
    }
    for decode in decoded.values():
        found = decode()
        assert all(np.array_equal(found[name], value) for name, value in tree.items())
    return {name: (encoded[name], decoded[name]) for name in encoded}


def rows() -> Iterator[tuple[str, Call, str, Call]]:
    """Yields the rows: a name, treepack's call, the name of a peer, and its call."""
    dumped, encoded = treepack.dumps(STEP), serialization.to_bytes(STEP)
    for peer, (encode, decode) in peers(STEP).items():
        yield "dumps, 5 leaves", lambda: treepack.dumps(STEP), peer, encode
        yield "loads", lambda: treepack.loads(dumped), peer, decode
        if peer == "pickle":
            yield (
                "loads(arrays='numpy')",
                lambda: treepack.loads(dumped, arrays="numpy"),
                peer,
                decode,
            )
            yield "loads(target)", lambda: treepack.loads(dumped, STEP), peer, decode
            yield "open(...)['obs']", lambda: treepack.open(dumped)["obs"], peer, decode
        elif peer == "flax":
            encode = lambda: flax.to_bytes(STEP)  # noqa: E731
            decode = lambda: flax.from_bytes(STEP, encoded)  # noqa: E731
            yield "to_bytes", lambda: serialization.to_bytes(STEP), peer, encode
            yield "from_bytes", lambda: serialization.from_bytes(STEP, encoded), peer, decode
    for name, tree in OTHERS.items():
        yield from beside_pickle(name, tree)
    for name, tree in TYPED.items():
        yield from beside_flax(name, tree)


def beside_pickle(name: str, tree: Any) -> Iterator[tuple[str, Call, str, Call]]:
    """Yields the rows of a message beside pickle alone."""
    dumped, pickled = treepack.dumps(tree), pickle.dumps(tree, 5)
    decode = lambda: pickle.loads(pickled)  # noqa: E731
    yield f"dumps, {name}", lambda: treepack.dumps(tree), "pickle", lambda: pickle.dumps(tree, 5)
    yield "loads", lambda: treepack.loads(dumped), "pickle", decode
    yield "loads(arrays='numpy')", lambda: treepack.loads(dumped, arrays="numpy"), "pickle", decode
    yield "loads(target)", lambda: treepack.loads(dumped, tree), "pickle", decode


def beside_flax(name: str, tree: Any) -> Iterator[tuple[str, Call, str, Call]]:
    """Yields the rows of a message beside flax alone."""
    data = flax.to_bytes(tree)
    yield (
        f"to_bytes, {name}",
        lambda: serialization.to_bytes(tree),
        "flax",
        lambda: flax.to_bytes(tree),
    )
    yield (
        "from_bytes",
        lambda: serialization.from_bytes(tree, data),
        "flax",
        lambda: flax.from_bytes(tree, data),
    )


def files(folder: Path) -> Iterator[tuple[str, Call, str, Call]]:
    """Yields the rows of a small file, beside pickle: without a wait for the disk."""
    path, plain, new = folder / "step.treepack", folder / "step.pickle", folder / "new"
    treepack.save(path, STEP)

    def write() -> None:
        with new.open("wb") as file:
            pickle.dump(STEP, file, 5)
        os.replace(new, plain)  # noqa: PTH105  # faster

    def read() -> Any:
        with open(plain, "rb") as file:  # noqa: PTH123  # faster
            return pickle.load(file)

    write()
    save = lambda: treepack.save(path, STEP, durable=False)  # noqa: E731
    yield "save(durable=False), 5 leaves", save, "pickle, renamed", write
    yield "load", lambda: treepack.load(path), "pickle", read


def messages(row: Callable[..., None], rounds: int) -> None:
    """Prints the rows by `row` of `small.py`."""
    for name, ours, peer, theirs in rows():
        row(name, ours, peer, theirs, 1, rounds)
    with tempfile.TemporaryDirectory() as folder:
        for name, ours, peer, theirs in files(Path(folder)):
            row(name, ours, peer, theirs, 1, rounds)
