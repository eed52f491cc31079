"""Supports large integers and types of other programs as msgpack extension types.

The latter become objects of msgpack for Python, or tuples if that package is not installed.
"""

from __future__ import annotations

import functools
import sys
import threading
from typing import Any, NamedTuple

import treepack._core as core
from treepack._src.interop.modules import error_class, instance_of
from treepack.errors import DecodeError, TreepackError

TIMESTAMP_CODE = -1

# Orbax writes a tuple as a list, which is encoded separately.
ORBAX_TUPLE_CODE = 4

LARGE_INT_CODE = 73

_MAX_NESTING = 16


class _Local(threading.local):
    nesting: int = 0


_local = _Local()


class ExtType(NamedTuple):
    code: int
    data: bytes


def make(code: int, data: bytes) -> Any:
    if code == ORBAX_TUPLE_CODE:
        items = _tuple(data)
        if items is not None:
            return items
    if code == LARGE_INT_CODE:
        return int.from_bytes(data, "big", signed=True)
    msgpack = sys.modules["msgpack"] if "msgpack" in sys.modules else _search()
    if msgpack is None:
        return ExtType(code, data)
    if code == TIMESTAMP_CODE:
        return msgpack.Timestamp.from_bytes(data)
    return msgpack.ExtType(code, data)


def decode_error(theirs: str, *arguments: Any) -> DecodeError:
    return error_class(DecodeError, "msgpack.exceptions", theirs)(*arguments)


def _tuple(data: bytes) -> tuple[Any, ...] | None:
    if _local.nesting >= _MAX_NESTING:
        raise ValueError(f"tuples of Orbax exceed {_MAX_NESTING} nested levels")
    _local.nesting += 1
    try:
        items = core.restore(data, None, 1)
    except TreepackError:
        return None
    finally:
        _local.nesting -= 1
    return tuple(items) if type(items) is list else None


@functools.cache
def _search() -> Any:
    """Done once: a search without result is slow."""
    try:
        import msgpack
    except ImportError:
        return None
    return msgpack


is_timestamp = instance_of("msgpack", "Timestamp")
_is_ext_type = instance_of("msgpack", "ExtType")


def is_ext(value: object) -> bool:
    return isinstance(value, ExtType) or _is_ext_type(value)
