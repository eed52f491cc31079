"""Makes files of every form that the format has, and knows what is in each of them.

    PYTHONPATH=python:tests:tests/support python -m golden.forms

A file that is there is kept: one of today's version gets a new name. The same version writes the
same bytes again, but for a directory, whose files have random names.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import fractions
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import flax.core
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax

import treepack
from golden.make import tree
from trees import DTYPES, example_array

FOLDER = Path(__file__).parent / "forms"


@treepack.register_dataclass(serialized_name="golden.Layer")
@dataclasses.dataclass
class Layer:
    """A type of a program, with static data of every kind."""

    w: Any
    static: Any = dataclasses.field(default=None, metadata={"static": True})


Moments = treepack.register_namedtuple(
    collections.namedtuple("Moments", "mu nu"), serialized_name="golden.Moments"
)
Unknown = collections.namedtuple("Unknown", "a b", module="golden")
"""A type that is registered nowhere."""

STATIC = (
    *(None, True, 1, 2**70, 1.5, "text", b"bytes", 1 + 2j, (1, 2), [3], frozenset({4})),
    *({"key": 5}, {6}, bytearray(b"a"), range(1, 9, 2), slice(1, None), ...),
    *(collections.OrderedDict(a=1), collections.Counter("aab"), collections.deque([1, 2], 3)),
    *(fractions.Fraction(1, 3), decimal.Decimal("1.50"), uuid.UUID(int=7)),
    *(datetime.date(2024, 2, 29), datetime.timedelta(1, 2, 3)),
    datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC),
    *(np.dtype("float32"), int, np.float32, jax.nn.relu, jax.lax.Precision.HIGH),
    *(jax.sharding.PartitionSpec("x", None), Path("a/b")),
)


def large() -> np.ndarray:
    """Returns an array that is worth aligning, and more than a block of numbers."""
    return np.sin(np.arange(1200, dtype=np.float32)).reshape(30, 40)


def typed() -> Any:
    """Returns nodes of every kind, of this module and of libraries."""
    w = np.arange(3, dtype=np.float32)
    return {
        "layers": [Layer(w, STATIC), Layer({"in": w}, "relu")],
        "moments": Moments(w, None),
        "frozen": flax.core.FrozenDict({"b": w, "a": {"c": w}}),
        "ordered": collections.OrderedDict(b=w, a=w),
        "default": collections.defaultdict(list, {"b": w, "a": w}),
        "partial": jax.tree_util.Partial(jax.nn.relu, w),
        "adam": optax.adam(1e-3).init({"w": w}),
        "keys": {0: w, 7: (w, [w])},
        "tuple": (1, (), {}),
        "bytes": [bytearray(b"a"), memoryview(b"b")],
    }


def of_jax() -> Any:
    """Returns arrays of JAX: of the usual and of weak types, and keys."""
    return {
        "array": jnp.arange(6.0).reshape(2, 3),
        "half": jnp.ones(3, jnp.bfloat16),
        "weak": jnp.asarray(0.5),
        "key": jax.random.key(7),
        "keys": jax.random.split(jax.random.key(7, impl="rbg"), 3),
        "numpy": np.arange(3),
    }


def dtypes() -> Any:
    """Returns an array of each dtype that all machines have."""
    return {dtype.name: example_array(dtype, (2, 3)) for dtype in DTYPES if dtype.char not in "gG"}


def leaves() -> Iterator[tuple[Any, Any]]:
    """Yields what is saved leaf by leaf."""
    yield ("params", "w"), large()
    yield ("params", "b"), np.ones(3, ml_dtypes.bfloat16)
    yield ("step",), 7


def of_leaves() -> Any:
    """Returns the tree of these leaves."""
    found = dict(leaves())
    return {
        "params": {"w": found["params", "w"], "b": found["params", "b"]},
        "step": 7,
    }


def packed(path: Path) -> None:
    """Writes what a buffer has that a tree was packed into."""
    buffer = bytearray(treepack.packed_size(typed(), described=True))
    treepack.pack_into(typed(), buffer, described=True)
    path.write_bytes(buffer)


def saved(make: Callable[[], Any], **options: Any) -> Callable[[Path], None]:
    """Returns what saves a tree."""
    return lambda path: treepack.save(path, make(), durable=False, **options)


def numbers() -> Any:
    """Returns arrays of which some are coded as numbers, and others stay."""
    return {"f4": large(), "bf": large().astype(ml_dtypes.bfloat16), "i": np.arange(9), "n": 1}


def with_holes() -> Any:
    """Returns a tree of which a function is left out."""
    return {"layer": Layer(large(), ("name", max_of)), "w": np.ones(2)}


def max_of(x: Any) -> Any:
    """A function that has no form in files."""
    return x


METADATA = {"step": 7, "when": datetime.date(2024, 2, 29), "name": "golden"}

# The name of a file: what is in it, and what writes it.
FORMS: dict[str, tuple[Callable[[], Any], Callable[[Path], Any]]] = {
    "plain.treepack": (tree, saved(tree)),
    "typed.treepack": (typed, saved(typed)),
    "jax.treepack": (of_jax, saved(of_jax)),
    "dtypes.treepack": (dtypes, saved(dtypes)),
    "metadata.treepack": (tree, saved(tree, metadata=METADATA)),
    "aligned-8.treepack": (numbers, saved(numbers, align=8)),
    "unaligned.treepack": (numbers, saved(numbers, align=1)),
    "leaf.treepack": (large, saved(large)),
    "holes.treepack": (with_holes, saved(with_holes)),
    "unregistered.treepack": (
        lambda: [Unknown(np.ones(2), {"x": 1})],
        saved(lambda: [Unknown(np.ones(2), {"x": 1})]),
    ),
    "iterator.treepack": (
        of_leaves,
        lambda path: treepack.save(path, leaves(), durable=False, metadata=METADATA),
    ),
    "numbers.treepack": (numbers, saved(numbers, compress="numbers")),
    "gzip.treepack.gz": (typed, saved(typed, compress=True)),
    "gzip-1.treepack.gz": (numbers, saved(numbers, compress=True, level=1)),
    "packed.treepack": (typed, packed),
    "stream.easylm": (of_leaves, lambda path: treepack.write_stream(path, leaves())),
    "state.msgpack": (
        tree,
        lambda path: path.write_bytes(treepack.serialization.to_bytes(tree(), align=64)),
    ),
    "directory": (numbers, saved(numbers, sharded=True, metadata=METADATA)),
}


def write(folder: Path) -> None:
    """Writes the files that are not there."""
    folder.mkdir(exist_ok=True)
    before = treepack.serialization.MAX_CHUNK_SIZE
    for name, (_, save) in FORMS.items():
        if not (folder / name).exists():
            save(folder / name)
    if not (folder / "chunked.treepack").exists():
        treepack.serialization.MAX_CHUNK_SIZE = 1000
        try:
            saved(numbers)(folder / "chunked.treepack")
        finally:
            treepack.serialization.MAX_CHUNK_SIZE = before


EXPECTED: dict[str, Callable[[], Any]] = {
    **{name: made for name, (made, _) in FORMS.items()},
    "chunked.treepack": numbers,
}


if __name__ == "__main__":
    write(FOLDER)
