"""Typed PRNG keys (`jax.random.key`), which have no bytes of their own.

A key array is written as `{'__prng_key__': impl, 'data': uint32 array}`: the
name of its implementation and what `jax.random.key_data` gives.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from treepack._src.interop import jax as _jax

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
        copied = np.array(data)
        on_device = _quickly(copied) if _is_one(impl, copied) else copied
        key: jax.Array = jax.random.wrap_key_data(on_device, impl=impl)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    _wrapped[impl] = _wrapped.get(impl, 0) + 1
    return key


# How many keys have been wrapped one by one, by implementation: as many as are few.
_wrapped: dict[str, int] = {}

_FEW = 64


def _is_one(impl: str, data: np.ndarray) -> bool:
    """Tells whether this is the data of a single key, and that of many before it."""
    known = _implementation(impl) if _wrapped.get(impl, 0) >= _FEW else None
    return known is not None and data.shape == known[1]


@functools.cache
def _identity() -> Any:
    import jax

    return jax.jit(lambda data: data)


def _quickly(data: np.ndarray) -> Any:
    """Returns an array of jax.

    A compiled function is several times as fast as any other way to one, which pays for many.
    """
    return _identity()(data)


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
        # To find out that a name is known takes long in `eval_shape`; this is no seed.
        jax.random.key(np.zeros(1), impl=impl)
    except ValueError:
        return None
    except TypeError:
        pass
    try:
        # Exceptions that leave `eval_shape` take milliseconds.
        found = jax.eval_shape(functools.partial(_key_of, impl), 0)
    except (TypeError, ValueError):
        return None
    return None if found is None else (found[0].dtype, found[1].shape)


def _key_of(impl: str, seed: Any) -> tuple[Any, Any] | None:
    """Returns a key and its data, or `None` if there is no such implementation."""
    import jax

    try:
        key = jax.random.key(seed, impl=impl)
    except (TypeError, ValueError):
        return None
    return key, jax.random.key_data(key)
