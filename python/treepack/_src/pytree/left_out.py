"""Holds the option `static` of the save under way in each thread.

The core calls the hooks that need it, and does not know the option.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from treepack._src.options import Static, check


class LeavingOut:
    """Which static data and code one save leaves out.

    Attributes:
      static: Which static data that cannot be stored are left out.
      has_code: Whether leaves that are code have been left out.
    """

    def __init__(self, static: Static = "error"):
        self.static = static
        self.has_code = False


class _Local(threading.local):
    current = LeavingOut()


_local = _Local()


@contextlib.contextmanager
def leaving_out(static: Static) -> Iterator[LeavingOut]:
    """Sets which static data this thread leaves out when it saves."""
    check("static", static)
    outer, _local.current = _local.current, LeavingOut(static)
    try:
        yield _local.current
    finally:
        _local.current = outer


def left_out() -> Static:
    """Returns which static data this thread leaves out."""
    return _local.current.static


def leave_out_code() -> None:
    """Records that the save of this thread leaves out a leaf that is code."""
    _local.current.has_code = True
