"""Compares leaves with a template; the only module that decides about strictness.

| `strict=` | names of children | shapes | dtypes |
|---|---|---|---|
| `"exact"` | equal; containers of equal types, where these were saved | equal | equal |
| `True` | the template's; a mapping of the state may have more | equal | equal for JAX |
| `False` | the template's; a mapping of the state may have more | any | any |

`unexpected=` overrides the treatment of names that the template lacks. Nodes without leaves may be
missing, except with `"exact"`.

"Equal for JAX": compared with a JAX array, 64 bits count as 32 unless `jax_enable_x64` is set.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from treepack._src.interop import jax as _jax
from treepack._src.interop.modules import imported, instance_of
from treepack._src.leaves.prng import key_text
from treepack._src.options import Strict
from treepack._src.pytree.kinds import is_function

# Describes the missing side of a mismatch.
NOTHING = "nothing"

# Begins the description of a node that the file, or the template, has in another place, too.
NODE_OF = "the node of "
VALUES_OF = "the values of "

# Begin the descriptions of objects that describe arrays without their shapes.
A_DTYPE = "a dtype"
A_SHARDING = "a sharding"

# The maximum number of keys in a message.
_MOST_KEYS = 10

_NUMBERS = (bool, int, float, complex)

_PLAIN = (str, bytes, *_NUMBERS)


_PLACES = [
    *(instance_of("jax.sharding", name) for name in ("Sharding", "PartitionSpec", "Mesh")),
    instance_of("jax", "Device"),
]


def _is_dtype(value: Any) -> bool:
    is_type = isinstance(value, type) and (
        issubclass(value, np.generic) or isinstance(getattr(value, "dtype", None), np.dtype)
    )
    return is_type or isinstance(value, np.dtype)


class Signature(NamedTuple):
    shape: tuple[int, ...]
    dtype: Any

    def __str__(self) -> str:
        """Abbreviates as JAX does, such as `float32[3,4]`."""
        is_extended = _jax.is_extended(self.dtype)
        name = key_text(self.dtype) if is_extended else self.dtype.name
        return f"{name}[{','.join(map(str, self.shape))}]"

    @property
    def kind(self) -> str:
        """The kind of its elements: `bool`, `int`, `float`, `complex`, or the dtype's name."""
        name = getattr(self.dtype, "name", str(self.dtype))
        match = _KIND.match(name)
        return str(name) if match is None else match[1]


_KIND = re.compile(r"[bu]?(bool|int|float|complex)")


def signature(leaf: Any) -> Signature | None:
    shape = getattr(leaf, "shape", None)
    dtype = getattr(leaf, "dtype", None)
    if shape is None or dtype is None or isinstance(leaf, type):
        return None
    try:
        if isinstance(dtype, np.dtype) or not _jax.is_extended(dtype):
            dtype = np.dtype(dtype)
            # Files are read in native byte order.
            dtype = dtype if dtype.isnative else dtype.newbyteorder("=")
        return Signature(tuple(shape), dtype)
    except TypeError:
        return None


def described(value: Any) -> str:
    value_signature = signature(value)
    if value_signature is not None:
        return str(value_signature)
    if _is_dtype(value):
        return f"{A_DTYPE} ({getattr(value, 'name', None) or value.__name__})"
    if any(is_one(value) for is_one in _PLACES):
        return f"{A_SHARDING} ({type(value).__name__})"
    if isinstance(value, Mapping):
        if not value:
            return "nothing: an empty container or code"
        keys = sorted(map(str, value))
        more = "" if len(keys) <= _MOST_KEYS else f" and {len(keys) - _MOST_KEYS} more"
        return f"a subtree with the keys {keys[:_MOST_KEYS]}{more}"
    return "None" if value is None else type(value).__name__


def difference(
    target: Any, state: Any, strict: Strict, *, cast: bool = False
) -> tuple[str, str] | None:
    """Compares a leaf with the state in its place; see the table above. Describes both, or `None`.

    With `cast`, all float dtypes count as equal, and all integer dtypes.
    """
    if not strict or (isinstance(target, type) and not _is_dtype(target)):
        return None
    found, expected = signature(state), signature(target)
    is_alone = found is not None and expected is None
    if is_alone and (_is_dtype(target) or any(is_one(target) for is_one in _PLACES)):
        return described(target), described(state)
    if expected is not None and expected.dtype == np.dtype(object):
        return None
    if expected is not None and found is not None:
        same = expected == found or (
            expected.shape == found.shape and _same_dtype(target, expected, found, strict, cast)
        )
    elif expected is not None:
        same = _is_of_kind(state, expected)
        if same and _as_array(state, expected) is None:
            return described(target), f"{type(state).__name__} {state}, which does not fit"
    elif found is not None:
        same = _is_of_kind(target, found) or not (_is_plain(target) or is_function(target))
    elif isinstance(state, Mapping):
        same = not _is_plain(target)
    else:
        same = strict != "exact" or not _is_plain(target) or type(target) is type(state)
    return None if same else (described(target), described(state))


def like_scalar(target: Any, value: Any) -> Any:
    """Returns a 0-d array or number as the one of these that the template has.

    A Python number of another kind than the array's, or outside of its range, stays a number.
    """
    if type(value) in _NUMBERS:
        expected = None if type(target) in _NUMBERS else signature(target)
        if expected is None or not _is_of_kind(value, expected):
            return value
        array = _as_array(value, expected)
        if array is None:
            return value
        value = array
    elif isinstance(value, np.generic):
        value = value if isinstance(target, np.generic) else np.asarray(value)
    elif not isinstance(value, np.ndarray) or value.ndim > 0:
        return value
    if isinstance(target, np.generic):
        return value[()]
    return value.item() if type(target) in _NUMBERS else value


def _as_array(number: Any, like: Signature) -> np.ndarray | None:
    try:
        with np.errstate(over="ignore"):
            array = np.asarray(number, like.dtype)
    except OverflowError:
        return None
    return array if np.isfinite(array) or not np.isfinite(number) else None


def is_opaque(leaf: Any) -> bool:
    return not isinstance(leaf, type) and not _is_plain(leaf) and signature(leaf) is None


def _is_plain(leaf: Any) -> bool:
    """Returns whether a leaf is of a plain type; other objects match any state."""
    return leaf is None or type(leaf) in _PLAIN


def _is_of_kind(number: Any, array: Signature) -> bool:
    return array.shape == () and type(number) in _NUMBERS and type(number).__name__ == array.kind


def _same_dtype(
    target: Any, expected: Signature, found: Signature, strict: Strict, cast: bool
) -> bool:
    if cast and expected.kind == found.kind and expected.kind in ("float", "int"):
        return True
    if strict == "exact" or not _jax.is_abstract(target):
        return False
    if _jax.is_extended(expected.dtype) or _jax.is_extended(found.dtype):
        return False
    canonical = imported("jax").dtypes.canonicalize_dtype  # type: ignore[union-attr]
    return bool(canonical(expected.dtype) == canonical(found.dtype))
