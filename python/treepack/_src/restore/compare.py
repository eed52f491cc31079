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

from collections.abc import Mapping
from typing import Any

import numpy as np

from treepack._src.interop import jax as _jax
from treepack._src.interop.modules import imported, instance_of
from treepack._src.leaves.absent import ABSENT
from treepack._src.leaves.signature import Signature, signature
from treepack._src.options import Strict
from treepack._src.pytree.kinds import is_function

# Describes the missing side of a mismatch.
NOTHING = "nothing"
EMPTY = "nothing: an empty container or code"

# Begins the description of a node that the file, or the template, has in another place, too.
NODE_OF = "the node of "
VALUES_OF = "the values of "

# Begin the descriptions of objects that describe arrays without their shapes.
A_DTYPE = "a dtype"
A_SHARDING = "a sharding"

# The maximum number of keys in a message.
_MOST_KEYS = 10

_PLAIN = (str, bytes, bool, int, float, complex)


_PLACES = [
    *(instance_of("jax.sharding", name) for name in ("Sharding", "PartitionSpec", "Mesh")),
    instance_of("jax", "Device"),
]


def _is_dtype(value: Any) -> bool:
    is_type = isinstance(value, type) and (
        issubclass(value, np.generic) or isinstance(getattr(value, "dtype", None), np.dtype)
    )
    return is_type or isinstance(value, np.dtype)


def described(value: Any) -> str:
    value_signature = signature(value)
    if value_signature is not None:
        return str(value_signature)
    if _is_dtype(value):
        return f"{A_DTYPE} ({getattr(value, 'name', None) or value.__name__})"
    if any(is_one(value) for is_one in _PLACES):
        return f"{A_SHARDING} ({type(value).__name__})"
    if isinstance(value, Mapping):
        keys = sorted(str(key) for key, child in value.items() if child is not ABSENT)
        if not keys:
            return EMPTY
        more = "" if len(keys) <= _MOST_KEYS else f" and {len(keys) - _MOST_KEYS} more"
        return f"a subtree with the keys {keys[:_MOST_KEYS]}{more}"
    return "None" if value is None else type(value).__name__


def difference(
    target: Any, state: Any, strict: Strict, *, cast: bool = False
) -> tuple[str, str] | None:
    """Describes a leaf and the state in its place, or returns `None`; see the table above.

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
        same = expected.is_like(state)
        if same and expected.holding(state) is None:
            return described(target), f"{type(state).__name__} {state}, which does not fit"
    elif found is not None:
        same = found.is_like(target) or not (_is_plain(target) or is_function(target))
    elif isinstance(state, Mapping):
        same = not _is_plain(target)
    else:
        same = strict != "exact" or not _is_plain(target) or type(target) is type(state)
    return None if same else (described(target), described(state))


def is_opaque(leaf: Any) -> bool:
    return not isinstance(leaf, type) and not _is_plain(leaf) and signature(leaf) is None


def _is_plain(leaf: Any) -> bool:
    return leaf is None or type(leaf) in _PLAIN


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
