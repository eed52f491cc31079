"""Extension types of msgpack that are neither flax's nor ours.

They are passed through as the objects that msgpack for Python uses for them.
Where that package is not installed, a tuple of the same fields stands in.
"""

from __future__ import annotations

import functools
import sys
import threading
from typing import Any, NamedTuple

import treepack._core as core
from treepack.errors import TreepackError

TIMESTAMP_CODE = -1

# How Orbax writes tuples: a list, encoded by itself.
ORBAX_TUPLE_CODE = 4

_MAX_NESTING = 16


class _Local(threading.local):
    nesting: int = 0


_local = _Local()


class ExtType(NamedTuple):
    """An extension value; stands in for `msgpack.ExtType` where there is no msgpack."""

    code: int
    data: bytes


def make(code: int, data: bytes) -> Any:
    """Returns the object for an extension value.

    Raises:
      ValueError: If msgpack does not allow such a value.
    """
    if code == ORBAX_TUPLE_CODE:
        found = _tuple(data)
        if found is not None:
            return found
    msgpack = _msgpack()
    if msgpack is None:
        return ExtType(code, data)
    if code == TIMESTAMP_CODE:
        return msgpack.Timestamp.from_bytes(data)
    return msgpack.ExtType(code, data)


def _tuple(data: bytes) -> tuple[Any, ...] | None:
    """Returns a tuple that Orbax has written, or `None` if it is something else."""
    if _local.nesting >= _MAX_NESTING:
        raise ValueError(f"tuples of Orbax are nested more than {_MAX_NESTING} levels deep")
    _local.nesting += 1
    try:
        found = core.restore(data, None, 1)
    except TreepackError:
        return None
    finally:
        _local.nesting -= 1
    return tuple(found) if type(found) is list else None


def _msgpack() -> Any:
    """Returns the package, or `None` if there is none."""
    return sys.modules["msgpack"] if "msgpack" in sys.modules else _search()


@functools.cache
def _search() -> Any:
    """Imports the package: once, since a search that finds nothing is slow."""
    try:
        import msgpack
    except ImportError:
        return None
    return msgpack


def is_ext(value: object) -> bool:
    """Tells whether a value is an extension value, without importing msgpack."""
    msgpack = sys.modules.get("msgpack")
    return isinstance(value, ExtType) or (
        msgpack is not None and isinstance(value, msgpack.ExtType)
    )


def is_timestamp(value: object) -> bool:
    """Tells whether a value is a msgpack time stamp, without importing msgpack."""
    msgpack = sys.modules.get("msgpack")
    return msgpack is not None and isinstance(value, msgpack.Timestamp)
