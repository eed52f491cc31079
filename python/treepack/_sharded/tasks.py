"""Work in threads that nobody waits for.

A thread can end for want of memory before it has begun anything, and `Thread.start` and executors
wait for such a one for ever. So nobody waits for a thread here, but for a task that one has begun.
"""

from __future__ import annotations

import _thread
import contextlib
from collections.abc import Callable
from threading import Event
from typing import Any


class Task:
    """Work that is done once: by a thread that comes by, or by whoever needs the result."""

    def __init__(self, work: Callable[[], Any]):
        self._work = work
        self._begun, self._done = _thread.allocate_lock(), _thread.allocate_lock()
        self._done.acquire()
        self._result: Any = None
        self._error: BaseException | None = None

    def attempt(self) -> None:
        """Does the work, unless somebody has begun it."""
        if not self._begun.acquire(blocking=False):
            return
        try:
            self._result = self._work()
        except BaseException as error:
            self._error = error
        finally:
            self._done.release()

    def result(self) -> Any:
        """Returns the result, when somebody has done the work."""
        self.attempt()
        with self._done:
            if self._error is not None:
                raise self._error
            return self._result

    def end(self) -> None:
        """Waits for whoever has begun the work. Nobody begins it any more."""
        if not self._begun.acquire(blocking=False):
            self._done.acquire()
            self._done.release()


def start(tasks: list[Task], threads: int, stopped: Event) -> None:
    """Starts threads that attempt tasks in their order until they are stopped."""
    with contextlib.suppress(RuntimeError, MemoryError):  # then there are fewer
        for _ in range(min(threads, len(tasks))):
            _thread.start_new_thread(_attempt, (tasks, stopped))


def _attempt(tasks: list[Task], stopped: Event) -> None:
    for task in tasks:
        if not stopped.is_set():
            task.attempt()
