"""Decides when a run saves: at intervals of steps, or of seconds by the clock of process 0.

    process 0    at a step ──▶ whether to save, and the step of the next message ──▶ all

There is about one message a second. Messages belong to a generation, which ends with each save that
the clock starts; those long before a save of all processes are deleted.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

from treepack._src.processes.meeting import Meeting

# The seconds between looks of process 0 at its clock, about.
_LOOK_S = 1.0

# The number of old generations whose messages a process that missed saves may still read.
_KEPT = 16


class Intervals:
    def __init__(self, every: int | None, seconds: float | None, meeting: Meeting):
        self._every, self._seconds, self._meeting = every, seconds, meeting
        self._generation = self._number = self._forgotten = 0
        self._last = self._looked = time.monotonic()
        self._step = self._next = -1  # the steps of the last message and of the next one
        self._is_due = False

    def is_due(self, step: int) -> bool:
        """Is the same in all processes."""
        is_due = self._seconds is None if self._every is None else step % self._every == 0
        if self._seconds is None:
            return is_due
        if self._meeting.processes()[1] == 1:
            return is_due or time.monotonic() - self._last >= self._seconds
        # A process that missed the step of a save saves at once: process 0 waits for it.
        is_due |= self._is_due and step == self._step
        while step >= self._next:
            if self._is_due:
                self._generation, self._number = self._generation + 1, 0
            name = f"{self._generation}/{self._number}"
            self._number += 1
            look = functools.partial(self._look, step, self._seconds)
            self._step, self._next, self._is_due = self._meeting.share(name, look)
            is_due |= self._is_due
        return is_due

    def _look(self, step: int, seconds: float) -> tuple[int, int, bool]:
        now = time.monotonic()
        done = max(step - self._step, 1) if self._step >= 0 else 1
        ahead = int(done * min(_LOOK_S, seconds) / max(now - self._looked, 1e-6))
        self._looked = now
        return step, step + min(max(ahead, 1), 2 * done), now - self._last >= seconds

    def restart(self) -> Callable[[], None]:
        self._last = time.monotonic()
        return functools.partial(self._forget, self._generation - _KEPT)

    def _forget(self, now: int) -> None:
        for generation in range(self._forgotten, now):
            self._meeting.forget(str(generation))
        self._forgotten = max(self._forgotten, now)
