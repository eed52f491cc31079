"""Work in threads, of which one can end for want of memory before it has begun anything.

`threading.Thread.start` and executors wait for such a one for ever. (Executors also do nothing more
when the program is at its end.) Here, independent works are tasks, which whoever waits for them
does if no thread has begun them, and the start of a thread that never begins is an error.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from threading import Event
from typing import Generic, TypeVar

T = TypeVar("T")


class Task(Generic[T]):
    """Work that is done once: by a thread that comes by, or by whoever needs the result."""

    _result: T

    def __init__(self, work: Callable[[], T]):
        self._work = work
        self._begun, self._done = _thread.allocate_lock(), _thread.allocate_lock()
        self._done.acquire()
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

    def result(self) -> T:
        """Returns the result, when somebody has done the work."""
        self.attempt()
        with self._done:
            if self._error is not None:
                raise self._error
            return self._result

    def end(self) -> bool:
        """Waits for whoever has begun the work; nobody begins it any more.

        Returns:
          Whether somebody had.
        """
        if self._begun.acquire(blocking=False):
            return False
        with self._done:
            return True


@contextlib.contextmanager
def started(
    works: Iterable[Callable[[], T]], threads: int, stopped: Event | None = None
) -> Iterator[list[Task[T]]]:
    """Has threads do works in their order; yields the tasks.

    At the end it sets `stopped`, and waits for those that were begun. The others are never done.
    """
    tasks = [Task(work) for work in works]
    stopped = stopped or Event()
    process = os.getpid()
    try:
        with contextlib.suppress(RuntimeError, MemoryError):  # then there are fewer threads
            for _ in range(min(threads, len(tasks))):
                _thread.start_new_thread(_attempt, (tasks, stopped))
        yield tasks
    finally:
        stopped.set()
        for task in tasks if os.getpid() == process else ():  # a fork has none of the threads
            task.end()


def _attempt(tasks: list[Task[T]], stopped: Event) -> None:
    for task in tasks:
        if not stopped.is_set():
            task.attempt()


def run(works: list[Callable[[], T]], threads: int) -> list[T]:
    """Returns the results of works, which so many threads do, of which one is the caller.

    Raises:
      Exception: What one of them raises. Not all of the others are done then.
    """
    queue = iter(enumerate(works))
    results: dict[int, T] = {}
    stopped = Event()

    def some() -> None:
        try:
            for at, work in queue:  # the next of an iterator of a list is one step for all threads
                if stopped.is_set():
                    return
                results[at] = work()
        except BaseException:
            stopped.set()
            raise

    with started([some] * min(threads - 1, len(works) - 1), threads, stopped) as others:
        some()
        for other in others:
            other.result()
    return [results[at] for at in range(len(works))]


class Thread:
    """A daemon that does some work, and has begun when this returns."""

    def __init__(self, work: Callable[[], object]):
        """Starts it.

        Raises:
          RuntimeError: If there is no thread to be had.
          MemoryError: If it has ended before it has begun.
        """
        self._process = os.getpid()
        self._told: SimpleQueue[object] = SimpleQueue()
        ticket = _Ticket()
        # Whatever becomes of the thread, it lets go of the ticket at last. `put` is no code of
        # Python, which might need more memory than there is.
        self._end = weakref.ref(ticket, self._told.put)
        _thread.start_new_thread(_run, (ticket, self._told, [work]))
        del ticket
        if self._told.get() is self._end:
            self._told.put(self._end)
            raise MemoryError("a thread has ended before it has begun")

    @property
    def has_ended(self) -> bool:
        """Whether nothing is left of it, or this is a fork, which has none of its threads."""
        return not self._told.empty() or os.getpid() != self._process

    def join(self) -> None:
        """Waits until nothing is left of it."""
        if os.getpid() == self._process:
            self._told.put(self._told.get())  # for those who wait as well


class _Ticket:
    """What a thread is given, and nobody else has."""


def _run(ticket: _Ticket, told: SimpleQueue[object], works: list[Callable[[], object]]) -> None:
    del ticket  # which the traceback of an error would hold, and the work
    told.put(None)
    works.pop()()
