"""Kinds of leaf, each with the names of the groups that it belongs to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from trees import DTYPES, example_array, is_key


class Kind(NamedTuple):
    """A kind of leaf.

    Attributes:
      make: Returns the leaf; called once for each cell.
      group: `"array"` for NumPy's and JAX's arrays, `"value"` for plain values and scalars that
        MessagePack or flax has, `"typed"` for those that only treepack's record tells apart.
    """

    make: Callable[[], Any]
    group: str


def _dtype(dtype: np.dtype[Any]) -> Kind:
    return Kind(lambda: example_array(dtype, (3, 5)), "array")


def _sharded() -> jax.Array:
    mesh = Mesh(np.array(jax.devices()[:4]), "x")
    return jax.device_put(np.arange(64.0).reshape(8, 8), NamedSharding(mesh, PartitionSpec("x")))


KINDS: dict[str, Kind] = {
    # Two C types may be one dtype.
    **{
        f"{np.dtype(dtype).name} array": _dtype(dtype) for dtype in DTYPES if dtype.char not in "gG"
    },
    "empty array": Kind(lambda: np.zeros((3, 0), np.float32), "array"),
    "0-d array": Kind(lambda: np.array(1.5, np.float32), "array"),
    "array in Fortran order": Kind(
        lambda: np.asfortranarray(np.arange(12.0).reshape(3, 4)), "array"
    ),
    "array of 70,000 bytes": Kind(lambda: np.arange(17_500, dtype=np.float32), "array"),
    "JAX array": Kind(lambda: jnp.arange(6.0).reshape(2, 3), "array"),
    "JAX array of bfloat16": Kind(lambda: jnp.arange(6, dtype=jnp.bfloat16), "array"),
    "sharded array": Kind(_sharded, "array"),
    "NumPy scalar": Kind(lambda: np.float32(1.5), "value"),
    "scalar of bfloat16": Kind(lambda: ml_dtypes.bfloat16(1.5), "value"),
    "weak scalar": Kind(lambda: jnp.asarray(2.5), "typed"),
    "PRNG key": Kind(lambda: jax.random.key(7), "typed"),
    "PRNG keys": Kind(lambda: jax.random.split(jax.random.key(7), 3), "typed"),
    "None": Kind(lambda: None, "value"),
    "bool": Kind(lambda: True, "value"),
    "integer": Kind(lambda: -7, "value"),
    "big integer": Kind(lambda: 2**64 - 1, "value"),
    "float": Kind(lambda: 0.1, "value"),
    "complex number": Kind(lambda: 1.5 - 2j, "value"),
    **{
        f"{what} of {size:,}": Kind(lambda make=make, size=size: make(size), "value")
        for size in (0, 64, 65, 70_000)
        for what, make in (
            ("text", lambda size: "ä" * (size // 2) + "x" * (size % 2)),
            ("bytes", bytes),
        )
    },
    "name that begins another": Kind(
        lambda: {"weight": np.arange(6.0), "weight.absmax": np.arange(3.0)}, "name"
    ),
}


def plain(leaf: Any) -> Any:
    """Returns a leaf in a form that `==` compares: type, dtype, shape and bytes.

    Arrays of NumPy and JAX are equal if their elements are, since some forms do not tell them
    apart.
    """
    if is_key(leaf):
        return "key", str(jax.random.key_impl(leaf)), plain(jax.random.key_data(leaf))
    if isinstance(leaf, np.generic):
        return "scalar", leaf.dtype.name, leaf.tobytes()
    if hasattr(leaf, "dtype"):
        weak = getattr(leaf, "weak_type", False)
        array = np.asarray(jax.device_get(leaf) if isinstance(leaf, jax.Array) else leaf)
        return "weak" if weak else "array", array.dtype.name, array.shape, array.tobytes()
    return type(leaf).__name__, leaf


def leaves_of(tree: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Returns the leaves of nested dicts by their keys, in the form of `plain`."""
    if not isinstance(tree, dict):
        return {path: plain(tree)}
    return {
        key: leaf
        for name, child in tree.items()
        for key, leaf in leaves_of(child, (*path, name)).items()
    }
