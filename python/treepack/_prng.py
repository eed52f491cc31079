"""Typed PRNG keys (`jax.random.key`), which have no bytes of their own.

A key array is written as `{'__prng_key__': impl, 'data': uint32 array}`: the
name of its implementation and what `jax.random.key_data` gives.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from treepack._libraries import jax as _jax

if TYPE_CHECKING:
    import jax

MARKER = "__prng_key__"


def is_key(value: object) -> bool:
    """Tells whether a value is a typed PRNG key array (and not being traced)."""
    return _jax.is_array(value) and not _jax.is_tracer(value) and is_key_like(value)


def is_key_like(value: object) -> bool:
    """Tells whether a value is a typed PRNG key array, or stands for one in a template."""
    if not _jax.is_abstract(value):
        return False
    import jax

    return bool(jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key))  # type: ignore[attr-defined]


def unwrap(key: jax.Array) -> tuple[str, jax.Array]:
    """Returns the name of the implementation of a key array, and its data.

    Raises:
      TypeError: If the implementation has no name, so it could not be found again.
    """
    import jax

    impl = jax.random.key_impl(key)
    if not isinstance(impl, str):
        raise TypeError(f"cannot serialize a PRNG key of the unnamed implementation {impl!r}")
    return impl, jax.random.key_data(key)


def wrap(impl: Any, data: Any) -> jax.Array | jax.ShapeDtypeStruct | None:
    """Returns the key array of what `unwrap` gave, or `None` if these are no such parts.

    Without JAX they stay what they are.
    """
    if not isinstance(impl, str) or getattr(data, "dtype", None) != np.uint32:
        return None
    try:
        import jax
    except ImportError:
        return None
    if isinstance(data, jax.ShapeDtypeStruct):
        return _abstract(impl, data.shape)
    try:
        # A copy, because jax may take the memory as its own, and it may be somebody's buffer.
        key: jax.Array = jax.random.wrap_key_data(np.array(data), impl=impl)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return key


def _abstract(impl: str, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct | None:
    """Returns what stands for a key array whose data has a shape."""
    known = _implementation(impl)
    if known is None:
        return None
    import jax

    dtype, one = known
    dims = len(shape) - len(one)
    if dims < 0 or shape[dims:] != one:
        return None
    return jax.ShapeDtypeStruct(shape[:dims], dtype)  # type: ignore[no-untyped-call]


@functools.lru_cache(maxsize=256)
def _implementation(impl: str) -> tuple[Any, tuple[int, ...]] | None:
    """Returns the dtype of keys, and the shape of the data of one; JAX takes a while to tell."""
    import jax

    try:
        key = jax.eval_shape(functools.partial(jax.random.key, impl=impl), 0)
        return key.dtype, jax.eval_shape(jax.random.key_data, key).shape
    except (TypeError, ValueError):
        return None
