"""Provides locks that are safe in forked processes, which lack their parent's other threads."""

from __future__ import annotations

import os
import threading
import weakref


class Locked:
    """Has a `lock` that is free in a forked process and in a signal handler.

    So the guarded data must be valid after each step.
    """

    lock: threading.RLock

    def __init__(self) -> None:
        self.lock = threading.RLock()
        _known.add(self)


_known: weakref.WeakSet[Locked] = weakref.WeakSet()


def _free() -> None:
    for thing in [*_known]:
        thing.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free)
