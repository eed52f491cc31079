"""Encodes typed PRNG keys (`jax.random.key`), which have no bytes of their own.

A key array is written as `{'__prng_key__': impl, 'data': uint32 array}`: the
name of its implementation and its `jax.random.key_data`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from treepack._src.interop import jax as _jax

if TYPE_CHECKING:
    import jax

_MARKER = "__prng_key__"


def is_key(value: object) -> bool:
    return _jax.is_array(value) and not _jax.is_tracer(value) and is_key_like(value)


def is_key_like(value: object) -> bool:
    if not _jax.is_abstract(value):
        return False
    import jax

    return bool(jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key))  # type: ignore[attr-defined]


class Key(NamedTuple):
    """A typed PRNG key array; `data` is its `jax.random.key_data`, uint32."""

    impl: str
    data: Any

    @classmethod
    def of(cls, value: Any) -> Key | None:
        """`None` for other values; a TypeError if the implementation has no name."""
        if not is_key(value):
            return None
        import jax

        impl = jax.random.key_impl(value)
        if not isinstance(impl, str):
            raise TypeError(f"cannot serialize a PRNG key of the unnamed implementation {impl!r}")
        return cls(impl, jax.random.key_data(value))

    @classmethod
    def of_state(cls, state: Any) -> Key | None:
        if not isinstance(state, Mapping) or _MARKER not in state:
            return None
        return cls(state[_MARKER], state.get("data"))

    @property
    def text(self) -> str:
        return f"key<{self.impl}>"

    def on_host(self) -> np.ndarray:
        return _jax.on_host(self.data)

    def wrapped(self) -> jax.Array | jax.ShapeDtypeStruct | None:
        impl, data = self
        if not isinstance(impl, str) or getattr(data, "dtype", None) != np.uint32:
            return None
        try:
            import jax
        except ImportError:
            return None
        if isinstance(data, jax.ShapeDtypeStruct):
            return _abstract(impl, data.shape)
        try:
            # A copy, because JAX may keep the memory, which may be a buffer of the program.
            copied = np.array(data)
            form = _implementation(impl) if _wrapped.get(impl, 0) >= _FEW else None
            with _jax.explicit():
                if form is not None and copied.shape == form[1]:
                    copied = _identity()(copied)
                key: jax.Array = jax.random.wrap_key_data(copied, impl=impl)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            return None
        _wrapped[impl] = _wrapped.get(impl, 0) + 1
        return key

    def restored(self) -> Any:
        key = self.wrapped()
        return {_MARKER: self.impl, "data": self.data} if key is None else key


def key_text(dtype: Any) -> str:
    for impl in ("threefry2x32", "rbg", "unsafe_rbg"):
        if (form := _implementation(impl)) is not None and form[0] == dtype:
            return f"key<{impl}>"
    return str(dtype)


# The number of wrapped key arrays, by implementation.
_wrapped: dict[str, int] = {}

# The number of single keys after which compiling `_identity` pays off.
_FEW = 64


@functools.cache
def _identity() -> Any:
    import jax

    return jax.jit(lambda data: data)


def _abstract(impl: str, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct | None:
    form = _implementation(impl)
    if form is None:
        return None
    import jax

    dtype, key_shape = form
    dims = len(shape) - len(key_shape)
    if dims < 0 or shape[dims:] != key_shape:
        return None
    return jax.ShapeDtypeStruct(shape[:dims], dtype)  # type: ignore[no-untyped-call]


@functools.lru_cache(maxsize=256)
def _implementation(impl: str) -> tuple[Any, tuple[int, ...]] | None:
    """Cached, since JAX is slow."""
    import jax

    try:
        # `eval_shape` is slow for unknown names. This call raises a ValueError for them, and a
        # TypeError for known names, since the seed is invalid.
        with _jax.explicit():
            jax.random.key(np.zeros(1), impl=impl)
    except ValueError:
        return None
    except TypeError:
        pass

    def key_and_data(seed: Any) -> tuple[Any, Any]:
        key = jax.random.key(seed, impl=impl)
        return key, jax.random.key_data(key)

    try:
        key, data = jax.eval_shape(key_and_data, 0)
    except (TypeError, ValueError):
        return None
    return key.dtype, data.shape
