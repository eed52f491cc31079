"""Arrays of open files in expressions: what NumPy's array gives, a lazy one gives."""

from __future__ import annotations

import math
import operator
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tiers
import treepack

ARRAYS = {
    "floats": np.arange(-6.0, 6.0).reshape(3, 4),
    "ints": np.arange(1, 13, dtype=np.int32).reshape(3, 4),
    "bools": np.arange(4) % 2 == 0,
    "vector": np.linspace(0.5, 2, 4, dtype=np.float32),
    "half": jnp.arange(4, dtype=jnp.bfloat16),
    "scalar": np.array(3),
    "empty": np.zeros((0, 4)),
}

BINARY = [
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod),
    *(operator.pow, operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift),
    *(operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge),
    *(divmod, operator.matmul, np.add, np.maximum, np.hypot, np.dot, np.outer, np.array_equal),
]

UNARY = [
    *(operator.neg, operator.pos, operator.abs, operator.invert, operator.index),
    *(len, list, bool, int, float, complex, math.sqrt, str.format, range),
    *(np.mean, np.sum, np.sort, np.exp, np.transpose, np.ravel, np.argmax, np.isnan, np.unique),
    *(np.shape, np.size, np.ndim, np.copy, np.cumsum, np.any, np.linalg.norm, np.atleast_2d),
    *(lambda a: a.T, lambda a: a.astype(np.float16), lambda a: a.astype("int8"), np.zeros_like),
    *(lambda a: np.concatenate([a, a]), lambda a: np.stack([a, a]), lambda a: np.reshape(a, -1)),
    *(lambda a: 3 in a, lambda a: np.where(a, a, 1), lambda a: np.einsum("i->", a)),
    *(lambda a: [1, 2, 3, 4][a], lambda a: a[np.argsort(a[0])]),
    *(lambda a: np.add.reduce(a), lambda a: np.add(a, 1, out=np.zeros((3, 4)))),
]


@pytest.fixture(params=tiers.params(["file", "sharded", "gzip"]))
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[treepack.File]:
    tree = {name: np.asarray(array) for name, array in ARRAYS.items()}
    kind = request.param
    treepack.save(tmp_path / "x", tree, compress=kind == "gzip", sharded=kind == "sharded")
    with treepack.open(tmp_path / "x") as opened:
        yield opened


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    """Returns the result of a call, or the type of its error."""
    with np.errstate(all="ignore"):
        try:
            return function(*args)
        except Exception as error:
            return type(error)


def assert_equal(found: Any, expected: Any) -> None:
    assert found is expected if isinstance(expected, type) else type(found) is type(expected)
    if isinstance(expected, (np.ndarray, np.generic)):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        if expected.dtype.kind in "fV":  # sums depend on where the memory begins
            np.testing.assert_allclose(*(np.asarray(it, float) for it in (found, expected)), 1e-5)
        else:
            np.testing.assert_array_equal(found, expected)
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other)
    else:
        assert found == expected or found != found


@pytest.mark.parametrize("function", BINARY)
def test_binary_operations_are_those_of_numpy(file: treepack.File, function: Any):
    arrays = {name: np.asarray(array) for name, array in ARRAYS.items()}
    for one, array in arrays.items():
        for two, other in arrays.items():
            expected = outcome(function, array, other)
            assert_equal(outcome(function, file[one], file[two]), expected)
            assert_equal(outcome(function, file[one], other), expected)
            assert_equal(outcome(function, array, file[two]), expected)
        for scalar in (2, 0.5, True, np.float32(3), "text", None, [1, 2, 3, 4]):
            assert_equal(outcome(function, file[one], scalar), outcome(function, array, scalar))
            assert_equal(outcome(function, scalar, file[one]), outcome(function, scalar, array))


# NumPy 2.0 tells who asks for the truth of an empty array that this ends.
@pytest.mark.filterwarnings("ignore:The truth value of an empty array")
@pytest.mark.parametrize("function", UNARY)
def test_unary_operations_are_those_of_numpy(file: treepack.File, function: Any):
    for name, array in ARRAYS.items():
        assert_equal(outcome(function, file[name]), outcome(function, np.asarray(array)))


def test_iteration_and_assertions_of_numpy(file: treepack.File):
    lazy, array = file["floats"], ARRAYS["floats"]
    for found, expected in zip(lazy, array, strict=True):
        assert_equal(found, expected)
    np.testing.assert_array_equal(np.arange(5)[file["scalar"]], 3)
    with pytest.raises(TypeError, match="iteration over a 0-d array"):
        iter(file["scalar"])
    with pytest.raises(ValueError, match="ambiguous"):
        assert lazy == array
    assert repr(lazy) == "LazyArray('floats', shape=(3, 4), dtype=float64)"


def test_lazy_arrays_do_not_change(file: treepack.File):
    lazy = file["floats"]
    lazy += 1
    assert type(lazy) is np.ndarray
    np.testing.assert_array_equal(lazy, ARRAYS["floats"] + 1)
    np.testing.assert_array_equal(file["floats"], ARRAYS["floats"])
    other: Any = file["floats"]
    other @= ARRAYS["floats"].T
    np.testing.assert_array_equal(other, ARRAYS["floats"] @ ARRAYS["floats"].T)
    for out in (file["scalar"], file["floats"]):
        with pytest.raises(TypeError, match="out= cannot be an array of an open file: pass a"):
            np.add(out, 1, out=out)
    with pytest.raises(TypeError, match="unhashable"):
        hash(file["floats"])  # as arrays are


def test_they_are_pickled(file: treepack.File):
    again = pickle.loads(pickle.dumps(file["floats"]))
    assert isinstance(again, treepack.LazyArray)
    np.testing.assert_array_equal(again * 2, ARRAYS["floats"] * 2)


def test_jax_takes_them(file: treepack.File):
    lazy, array = file["ints"], jnp.asarray(ARRAYS["ints"])
    for function in (jnp.asarray, jnp.array, jnp.reshape, jnp.concatenate):
        arguments = {jnp.reshape: ((4, 3),)}.get(function, ())
        made, expected = (function(it, *arguments) for it in (lazy, array))
        assert isinstance(made, jax.Array)
        np.testing.assert_array_equal(made, expected)
    for made in (array + lazy, lazy + array, array @ lazy.T, lazy < array, divmod(lazy, array)[1]):
        assert isinstance(made, jax.Array)
    np.testing.assert_array_equal(lazy - 2 * array, -array)
    assert jax.tree.leaves({"a": lazy})[0] is lazy
    assert jax.tree.map(jnp.asarray, {"a": lazy})["a"].shape == (3, 4)
    assert jax.device_put(jnp.asarray(lazy), jax.devices()[1]).devices() == {jax.devices()[1]}


@pytest.mark.parametrize(
    "function",
    [jax.device_put, lambda lazy: jnp.add(lazy, 1), jax.jit(lambda x: x), jax.vmap(lambda x: x)],
)
def test_functions_of_jax_that_take_only_arrays_tell_the_remedy(
    file: treepack.File, function: Callable[[Any], Any]
):
    # JAX has no way for other objects; if this fails it has got one, which docs should tell.
    with pytest.raises((TypeError, ValueError), match=r"jax\.numpy\.array"):
        function(file["floats"])
    np.testing.assert_array_equal(
        function(jnp.asarray(file["floats"])), function(jnp.asarray(ARRAYS["floats"]))
    )
