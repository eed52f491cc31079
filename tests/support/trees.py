"""Trees to test with, and how they are compared."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import ml_dtypes
import numpy as np

ML_DTYPES = [
    np.dtype(found)
    for found in (getattr(ml_dtypes, name) for name in ml_dtypes.__all__)
    if isinstance(found, type) and issubclass(found, np.generic)
]
NUMPY_DTYPES = [
    *map(np.dtype, "?" + np.typecodes["AllInteger"] + np.typecodes["AllFloat"]),
    np.dtype("datetime64[ns]"),
    np.dtype("timedelta64[D]"),
]
DTYPES = NUMPY_DTYPES + ML_DTYPES
# A long double has bytes of padding, which differ from one array made of a scalar to the
# next; their scalars cannot be compared byte by byte.
SCALAR_DTYPES = [dtype for dtype in DTYPES if dtype.char not in "gG"]


def example_array(dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Returns an array of a dtype whose elements differ."""
    count = int(np.prod(shape))
    if dtype.kind in "mM":
        return np.arange(count).astype(dtype).reshape(shape)
    return (np.arange(count) % 2).astype(dtype).reshape(shape)


def assert_same(found: Any, expected: Any, path: str = ".") -> None:
    """Raises unless two trees are equal in structure, types of leaves and bits."""
    if isinstance(expected, jax.Array):
        expected = np.asarray(expected)
    if isinstance(expected, np.generic):
        # Two C types may be one dtype, such as long and long long.
        assert isinstance(found, np.generic), f"{path}: {type(found)} in place of a scalar"
    else:
        assert type(found) is type(expected), f"{path}: {type(found)} for {type(expected)}"
    if isinstance(expected, dict):
        assert list(found) == list(expected), path
        for key, value in expected.items():
            assert_same(found[key], value, f"{path}/{key}")
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected), path
        for index, value in enumerate(expected):
            assert_same(found[index], value, f"{path}/{index}")
    elif isinstance(expected, (np.ndarray, np.generic)):
        assert found.dtype == expected.dtype, path
        assert found.shape == expected.shape, path
        if expected.dtype.char in "gG":  # with bytes of padding, which have no value
            assert np.array_equal(found, expected, equal_nan=True), path
        else:
            assert found.tobytes() == expected.tobytes(), path
        if isinstance(expected, np.ndarray):
            assert found.flags.aligned, path
            assert found.flags.c_contiguous, path
    else:
        assert found == expected or (found != found and expected != expected), path


def is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def assert_equal(found: Any, expected: Any) -> None:
    """Raises unless two trees are equal: types, static data, dtypes, weak types, bits."""
    structure = jax.tree.structure
    assert structure(found) == structure(expected)
    for (path, one), other in zip(
        jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(expected), strict=True
    ):
        if is_key(other):
            assert is_key(one)
            assert jax.random.key_impl(one) == jax.random.key_impl(other)
            one, other = jax.random.key_data(one), jax.random.key_data(other)
        if isinstance(other, jax.Array):
            assert isinstance(one, jax.Array), path
            assert one.weak_type == other.weak_type, path
            one = np.asarray(one)
        assert_same(one, other, str(path))


def arrays() -> st.SearchStrategy[np.ndarray]:
    """Arrays of any dtype, order and strides; now and then one that is worth aligning."""
    shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
    shapes = shapes | st.sampled_from([(300,), (17, 33), (1, 2000), (40, 5, 8)])
    plain = st.builds(example_array, st.sampled_from(DTYPES), shapes)
    return plain.flatmap(
        lambda array: st.sampled_from([array, array.T, array[..., ::2] if array.ndim else array])
    )


# The core copies texts and bytes of up to 64 bytes, and refers to longer ones.
LENGTHS = [0, 64, 65, 70_000]


def scalars() -> st.SearchStrategy[Any]:
    """Plain Python leaves and NumPy scalars."""
    length = st.sampled_from(LENGTHS)
    return st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(),
        st.complex_numbers(),
        st.text(max_size=40),
        st.binary(max_size=300),
        length.map(lambda count: "x" * count),
        length.map(lambda count: b"x" * count),
        st.builds(lambda dtype: example_array(dtype, (2,))[1], st.sampled_from(SCALAR_DTYPES)),
    )


def leaves() -> st.SearchStrategy[Any]:
    """Leaves of every kind, those of flax and others."""
    return st.one_of(
        scalars(),
        arrays(),
        arrays().filter(_jax_has).map(jax.numpy.asarray),
        st.integers(-(2**600), 2**600),
        st.floats(width=32).map(jax.numpy.asarray),  # weakly typed
        st.integers(0, 9).map(jax.random.key),
    )


def _jax_has(array: np.ndarray) -> bool:
    return array.dtype.name in ("float32", "bfloat16", "int8", "uint32", "bool", "complex64")


KEYS = st.text(max_size=5) | st.sampled_from(["kernel", "bias", "a key of more than 31 characters"])


def raw_trees() -> st.SearchStrategy[Any]:
    """Trees that `msgpack_serialize` of flax takes: dicts and lists."""
    return st.recursive(
        scalars() | arrays(),
        lambda inner: st.lists(inner, max_size=18) | st.dictionaries(KEYS, inner, max_size=18),
        max_leaves=25,
    )


def state_trees(leaves: st.SearchStrategy[Any] | None = None) -> st.SearchStrategy[Any]:
    """Trees that `to_bytes` of flax takes: tuples and keys that are not strings as well.

    With `leaves`, those of other kinds.
    """
    return st.recursive(
        scalars() | arrays() if leaves is None else leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=18),
            st.lists(inner, max_size=4).map(tuple),
            st.dictionaries(KEYS, inner, max_size=18),
            st.dictionaries(st.integers(), inner, max_size=3),
        ),
        max_leaves=25,
    )


def sealed(record: bytes) -> bytes:
    """A record, and what comes after it in a file: here no checksums of leaves."""
    numbers = struct.pack("<QII", len(record), 0, zlib.crc32(record))
    return record + numbers + b"\x93treepk\n"


def record_of(data: bytes) -> bytes:
    """The record at the end of data."""
    length, checksums, _ = struct.unpack("<QII", data[-24:-8])
    end = len(data) - 24 - 4 * checksums
    return data[end - length : end]


def altered(data: bytes, old: bytes, new: bytes) -> bytes:
    """Data with others in their place of the same length, whose record is sealed again."""
    assert len(old) == len(new)
    data = data.replace(old, new)
    record = record_of(data)
    return data[: -24 - len(record)] + sealed(record)


def nested(flat: dict[str, np.ndarray]) -> dict[str, Any]:
    """Returns the tree whose keys are the parts of names between dots."""
    tree: dict[str, Any] = {}
    for name, array in flat.items():
        *above, last = name.split(".")
        node = tree
        for key in above:
            node = node.setdefault(key, {})
        node[last] = array
    return tree
