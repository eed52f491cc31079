"""Waiting for what the system does when it likes, such as letting another thread run."""

from __future__ import annotations

import time
from collections.abc import Callable

# Whoever waits longer waits for ever.
HANG_S = 300.0


def in_time(attempt: Callable[[], bool]) -> bool:
    """Makes attempts until one succeeds; tells whether one has before `HANG_S` are over."""
    end = time.monotonic() + HANG_S
    while time.monotonic() < end:
        if attempt():
            return True
    return False
