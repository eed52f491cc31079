from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from treepack._src.options import LazyModule

if TYPE_CHECKING:
    import jax
else:
    jax = LazyModule("jax")

_OPERATORS: dict[np.ufunc, Callable[..., Any]] = {
    getattr(np, ufunc): getattr(operator, name, divmod)
    for ufunc, name in zip(
        (
            *("less", "less_equal", "equal", "not_equal", "greater", "greater_equal"),
            *("add", "subtract", "multiply", "matmul", "true_divide", "floor_divide"),
            *("remainder", "divmod", "power", "left_shift", "right_shift"),
            *("bitwise_and", "bitwise_or", "bitwise_xor"),
        ),
        (
            *("lt", "le", "eq", "ne", "gt", "ge", "add", "sub", "mul", "matmul", "truediv"),
            *("floordiv", "mod", "divmod", "pow", "lshift", "rshift", "and_", "or_", "xor"),
        ),
        strict=True,
    )
}


class ArrayLike(NDArrayOperatorsMixin):
    """An object that replaces its array in expressions, each of which reads the array.

    Results are NumPy arrays, or JAX arrays if the other operand is one. `x += 1` rebinds `x`. Like
    an array, it is not hashable.
    """

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise NotImplementedError

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        arrays = [np.asarray(value) if isinstance(value, ArrayLike) else value for value in inputs]
        if any(isinstance(value, ArrayLike) for value in options.get("out", ())):
            raise TypeError("out= cannot be an array of an open file: pass a NumPy array")
        if method == "__call__" and not options and ufunc in _OPERATORS:
            # JAX arrays overload operators but not ufuncs, and `==` takes more types.
            return _OPERATORS[ufunc](*arrays)
        return getattr(ufunc, method)(*arrays, **options)

    def __jax_array__(self) -> jax.Array:
        # Errors of JAX functions that take only arrays mention this conversion.
        return jax.numpy.asarray(np.asarray(self))

    def astype(self, dtype: Any) -> np.ndarray:
        """Returns the array cast to another dtype."""
        converted: np.ndarray = np.asarray(self).astype(dtype)
        return converted

    def numpy(self) -> np.ndarray:
        """Returns the array."""
        return np.asarray(self)

    def max(self, *args: Any, **options: Any) -> Any:
        """Returns the maximum, like `numpy.ndarray.max`."""
        return np.asarray(self).max(*args, **options)

    def mean(self, *args: Any, **options: Any) -> Any:
        """Returns the mean, like `numpy.ndarray.mean`."""
        return np.asarray(self).mean(*args, **options)

    def min(self, *args: Any, **options: Any) -> Any:
        """Returns the minimum, like `numpy.ndarray.min`."""
        return np.asarray(self).min(*args, **options)

    def std(self, *args: Any, **options: Any) -> Any:
        """Returns the standard deviation, like `numpy.ndarray.std`."""
        return np.asarray(self).std(*args, **options)

    def sum(self, *args: Any, **options: Any) -> Any:
        """Returns the sum, like `numpy.ndarray.sum`."""
        return np.asarray(self).sum(*args, **options)

    @property
    def T(self) -> np.ndarray:  # noqa: N802 (NumPy's name)
        """The array with reversed dimensions."""
        return np.asarray(self).T

    def __iter__(self) -> Iterator[Any]:
        return iter(np.asarray(self))

    def __contains__(self, item: object) -> bool:
        return item in np.asarray(self)

    def __bool__(self) -> bool:
        return bool(np.asarray(self))

    def __int__(self) -> int:
        return int(np.asarray(self))

    def __float__(self) -> float:
        return float(np.asarray(self))

    def __complex__(self) -> complex:
        return complex(np.asarray(self))

    def __index__(self) -> int:
        return operator.index(np.asarray(self))


# `x += 1` rebinds `x`, since an array of a file cannot change.
for _name in (
    *("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow"),
    *("lshift", "rshift", "and", "or", "xor"),
):
    setattr(ArrayLike, f"__i{_name}__", getattr(ArrayLike, f"__{_name}__"))
