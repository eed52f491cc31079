"""Operators and conversions of arrays for an object that `np.asarray` makes an array of."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from treepack._src.interop.modules import OnUse

if TYPE_CHECKING:
    import jax
else:
    jax = OnUse("jax")


def _unary(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda self: function(np.asarray(self))


def _binary(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda self, other: function(np.asarray(self), _array(other))


def _reflected(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda self, other: function(_array(other), np.asarray(self))


def _array(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, ArrayLike) else value


class ArrayLike:
    """An object that takes part in expressions as its array does, which it reads for each.

    Results are NumPy's, or JAX's where the other operand is an array of JAX. `x += 1` gives `x`
    another value: the object does not change. Like an array it has no hash.
    """

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise NotImplementedError

    def __jax_array__(self) -> jax.Array:
        # Functions of JAX that take no other objects than arrays tell to convert it.
        return jax.numpy.asarray(np.asarray(self))

    def astype(self, dtype: Any) -> np.ndarray:
        """Returns its elements in another dtype."""
        converted: np.ndarray = np.asarray(self).astype(dtype)
        return converted

    @property
    def T(self) -> np.ndarray:  # noqa: N802 (NumPy's name)
        """Its array with the dimensions reversed."""
        return np.asarray(self).T

    def __iter__(self) -> Iterator[Any]:
        return iter(np.asarray(self))

    def __contains__(self, item: object) -> bool:
        return item in np.asarray(self)

    __bool__: ClassVar[Callable[[Any], Any]] = _unary(bool)
    __int__: ClassVar[Callable[[Any], Any]] = _unary(int)
    __float__: ClassVar[Callable[[Any], Any]] = _unary(float)
    __complex__: ClassVar[Callable[[Any], Any]] = _unary(complex)
    __index__: ClassVar[Callable[[Any], Any]] = _unary(operator.index)

    __neg__: ClassVar[Callable[[Any], Any]] = _unary(operator.neg)
    __pos__: ClassVar[Callable[[Any], Any]] = _unary(operator.pos)
    __abs__: ClassVar[Callable[[Any], Any]] = _unary(operator.abs)
    __invert__: ClassVar[Callable[[Any], Any]] = _unary(operator.invert)

    __lt__: ClassVar[Callable[[Any, Any], Any]] = _binary(operator.lt)
    __le__: ClassVar[Callable[[Any, Any], Any]] = _binary(operator.le)
    __eq__: ClassVar[Callable[[Any, Any], Any]] = _binary(operator.eq)
    __ne__: ClassVar[Callable[[Any, Any], Any]] = _binary(operator.ne)
    __gt__: ClassVar[Callable[[Any, Any], Any]] = _binary(operator.gt)
    __ge__: ClassVar[Callable[[Any, Any], Any]] = _binary(operator.ge)

    __add__: ClassVar[Callable[[Any, Any], Any]] = _binary(operator.add)
    __radd__: ClassVar[Callable[[Any, Any], Any]] = _reflected(operator.add)
    __sub__: ClassVar[Callable[[Any, Any], Any]] = _binary(operator.sub)
    __rsub__: ClassVar[Callable[[Any, Any], Any]] = _reflected(operator.sub)
    __mul__: ClassVar[Callable[[Any, Any], Any]] = _binary(operator.mul)
    __rmul__: ClassVar[Callable[[Any, Any], Any]] = _reflected(operator.mul)
    __matmul__: ClassVar[Callable[[Any, Any], Any]] = _binary(operator.matmul)
    __rmatmul__: ClassVar[Callable[[Any, Any], Any]] = _reflected(operator.matmul)
    __truediv__: ClassVar[Callable[[Any, Any], Any]] = _binary(operator.truediv)
    __rtruediv__: ClassVar[Callable[[Any, Any], Any]] = _reflected(operator.truediv)
    __floordiv__: ClassVar[Callable[[Any, Any], Any]] = _binary(operator.floordiv)
    __rfloordiv__: ClassVar[Callable[[Any, Any], Any]] = _reflected(operator.floordiv)
    __mod__: ClassVar[Callable[[Any, Any], Any]] = _binary(operator.mod)
    __rmod__: ClassVar[Callable[[Any, Any], Any]] = _reflected(operator.mod)
    __divmod__: ClassVar[Callable[[Any, Any], Any]] = _binary(divmod)
    __rdivmod__: ClassVar[Callable[[Any, Any], Any]] = _reflected(divmod)
    __pow__: ClassVar[Callable[[Any, Any], Any]] = _binary(operator.pow)
    __rpow__: ClassVar[Callable[[Any, Any], Any]] = _reflected(operator.pow)
    __lshift__: ClassVar[Callable[[Any, Any], Any]] = _binary(operator.lshift)
    __rlshift__: ClassVar[Callable[[Any, Any], Any]] = _reflected(operator.lshift)
    __rshift__: ClassVar[Callable[[Any, Any], Any]] = _binary(operator.rshift)
    __rrshift__: ClassVar[Callable[[Any, Any], Any]] = _reflected(operator.rshift)
    __and__: ClassVar[Callable[[Any, Any], Any]] = _binary(operator.and_)
    __rand__: ClassVar[Callable[[Any, Any], Any]] = _reflected(operator.and_)
    __or__: ClassVar[Callable[[Any, Any], Any]] = _binary(operator.or_)
    __ror__: ClassVar[Callable[[Any, Any], Any]] = _reflected(operator.or_)
    __xor__: ClassVar[Callable[[Any, Any], Any]] = _binary(operator.xor)
    __rxor__: ClassVar[Callable[[Any, Any], Any]] = _reflected(operator.xor)

    __hash__: ClassVar[None] = None  # type: ignore[assignment]
