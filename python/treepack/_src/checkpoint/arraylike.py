"""Operators and conversions of arrays for an object that `np.asarray` makes an array of."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

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

    __bool__ = _unary(bool)
    __int__ = _unary(int)
    __float__ = _unary(float)
    __complex__ = _unary(complex)
    __index__ = _unary(operator.index)

    __neg__ = _unary(operator.neg)
    __pos__ = _unary(operator.pos)
    __abs__ = _unary(operator.abs)
    __invert__ = _unary(operator.invert)

    __lt__ = _binary(operator.lt)
    __le__ = _binary(operator.le)
    __eq__ = _binary(operator.eq)
    __ne__ = _binary(operator.ne)
    __gt__ = _binary(operator.gt)
    __ge__ = _binary(operator.ge)

    __add__, __radd__ = _binary(operator.add), _reflected(operator.add)
    __sub__, __rsub__ = _binary(operator.sub), _reflected(operator.sub)
    __mul__, __rmul__ = _binary(operator.mul), _reflected(operator.mul)
    __matmul__, __rmatmul__ = _binary(operator.matmul), _reflected(operator.matmul)
    __truediv__, __rtruediv__ = _binary(operator.truediv), _reflected(operator.truediv)
    __floordiv__, __rfloordiv__ = _binary(operator.floordiv), _reflected(operator.floordiv)
    __mod__, __rmod__ = _binary(operator.mod), _reflected(operator.mod)
    __divmod__, __rdivmod__ = _binary(divmod), _reflected(divmod)
    __pow__, __rpow__ = _binary(operator.pow), _reflected(operator.pow)
    __lshift__, __rlshift__ = _binary(operator.lshift), _reflected(operator.lshift)
    __rshift__, __rrshift__ = _binary(operator.rshift), _reflected(operator.rshift)
    __and__, __rand__ = _binary(operator.and_), _reflected(operator.and_)
    __or__, __ror__ = _binary(operator.or_), _reflected(operator.or_)
    __xor__, __rxor__ = _binary(operator.xor), _reflected(operator.xor)

    __hash__ = None  # type: ignore[assignment]
