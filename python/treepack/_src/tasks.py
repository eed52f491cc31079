"""Runs work in threads, any of which may run out of memory before it begins.

`threading.Thread.start` and executors wait for such a thread forever. Here, the thread that waits
for a result runs a task that no thread has begun, and a thread that never begins is an error.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from threading import Event
from types import FrameType
from typing import ClassVar, Generic, TypeVar

T = TypeVar("T")


class Milestone:
    """An event that a signal handler may wait for, whatever call it interrupts.

    The interrupted call may hold the lock of a `threading.Event` or future, and a wait that is
    interrupted at its start misses a wake-up that the handler also waits for.
    """

    waiting: ClassVar[list[int]] = []
    """The threads that wait, once for each wait."""

    def __init__(self) -> None:
        self.is_reached = False
        # Each wait has its own: one that a handler interrupts takes nothing from the others.
        self._waits: list[SimpleQueue[None]] = []

    def reach(self) -> None:
        self.is_reached = True
        for wait in [*self._waits]:
            wait.put(None)

    def wait(self, timeout: float | None = None) -> bool:
        if not self.is_reached:
            thread, wait = _thread.get_ident(), SimpleQueue[None]()
            self.waiting.append(thread)
            try:
                self._waits.append(wait)
                if not self.is_reached:  # it may have been reached before the list had this wait
                    wait.get(timeout=None if timeout is None else max(timeout, 0))
            except Empty:
                pass
            finally:
                self.waiting.remove(thread)
                with contextlib.suppress(ValueError):  # interrupted before it was in the list
                    self._waits.remove(wait)
        return self.is_reached


class Turns:
    """The turns of threads that use one object, which signal handlers may use as well."""

    def __init__(self) -> None:
        self._now: dict[str, _Turn] = {}

    def run(self, work: Callable[[], object]) -> bool:
        """Runs work in a turn; returns false in a signal handler that has interrupted another turn.

        Not a context manager, which would keep its turn if Ctrl-C came while it is entered.
        """
        mine = _Turn()
        try:
            while (other := self._now.setdefault("now", mine)) is not mine:
                if other.is_over():
                    self._now = {}
                    other.reach()
                elif other.thread == mine.thread:
                    return False
                else:
                    other.wait()
            work()
            return True
        finally:
            if self._now.get("now") is mine:
                self._now.pop("now")
            mine.reach()
            mine.frame = None  # which holds this turn


class _Turn(Milestone):
    def __init__(self) -> None:
        super().__init__()
        self.process, self.thread = os.getpid(), _thread.get_ident()
        self.frame: FrameType | None = sys._getframe(1)

    def is_over(self) -> bool:
        """Whether it is of the parent of this forked process, or Ctrl-C came at its end."""
        if self.process != os.getpid():
            return True
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame is not self.frame:
            frame = frame.f_back
        return frame is None and self.thread == _thread.get_ident()


class Task(Generic[T]):
    """Work that is done once: by a worker, or by the first thread that needs the result."""

    _result: T

    def __init__(self, work: Callable[[], T]):
        self._work: Callable[[], T] | None = work
        self._claims: dict[str, tuple[int, int]] = {}  # the process and thread that does it
        self._is_done, self._done = False, _thread.allocate_lock()
        self._done.acquire()
        self._error: BaseException | None = None
        self.is_forgotten = False

    @property
    def is_suspended(self) -> bool:
        """Whether its thread is of the parent, or this one, interrupted by a signal handler."""
        claim = self._claims.get("first")
        if claim is None or self._is_done:
            return False
        process, thread = claim
        return process != os.getpid() or thread == _thread.get_ident()

    def attempt(self) -> None:
        if not self._claim():
            return
        try:
            assert self._work is not None, "it has not been done"
            self._result = self._work()
        except BaseException as error:
            self._error = error
        finally:
            self._work = None  # it may refer to the owner of the task
            self._is_done = True
            self._done.release()

    def _claim(self) -> bool:
        """Whether this is the first call; atomic, also for signal handlers."""
        mine = os.getpid(), _thread.get_ident()
        return self._claims.setdefault("first", mine) is mine

    def _wait(self) -> None:
        if not self._is_done:  # else a call that a signal handler has interrupted may hold the lock
            with self._done:
                pass

    def result(self) -> T:
        self.attempt()
        self._wait()
        if self._error is not None:
            raise self._error
        return self._result

    def forget_result(self) -> None:
        if self._is_done:
            self._result = None  # type: ignore[assignment]
            self.is_forgotten = True

    def end(self) -> bool:
        """Waits for the work if it has begun, and returns whether; otherwise it never begins."""
        if self._claim():
            return False
        self._wait()
        return True


@contextlib.contextmanager
def started(
    works: Iterable[Callable[[], T]], threads: int, stopped: Event | None = None
) -> Iterator[list[Task[T]]]:
    """Runs works in threads, in order; yields their tasks.

    At the end it sets `stopped` and waits for the tasks that have begun. The others never begin.
    """
    # Short: an error that passes a `finally` allocates its code offset as an integer, if that is
    # above 256. Without memory for it, CPython retries without end.
    tasks = [Task(work) for work in works]
    stopped = stopped or Event()
    process = os.getpid()
    try:
        _start(tasks, threads, stopped)
        yield tasks
    finally:
        _stop(tasks, stopped, process)


def _start(tasks: list[Task[T]], threads: int, stopped: Event) -> None:
    with contextlib.suppress(RuntimeError, MemoryError):  # then there are fewer threads
        for _ in range(min(threads, len(tasks))):
            _thread.start_new_thread(_attempt, (tasks, stopped))


def _stop(tasks: list[Task[T]], stopped: Event, process: int) -> None:
    stopped.set()
    for task in tasks if os.getpid() == process else ():  # a fork has none of the threads
        task.end()


def _attempt(tasks: list[Task[T]], stopped: Event) -> None:
    for task in tasks:
        if not stopped.is_set():
            task.attempt()


def run(works: list[Callable[[], T]], threads: int) -> list[T]:
    """Returns the results of works; the caller's thread is one of `threads`.

    After the error of one of them, some others may not have been done.
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
    """A daemon thread that has begun its work once it is constructed."""

    def __init__(self, work: Callable[[], object]):
        """Raises a MemoryError if the thread ends before the work begins."""
        if sys.is_finalizing():  # it would never run, nor drop the ticket
            raise RuntimeError("a thread cannot start while Python ends")
        if getattr(sys.flags, "thread_inherit_context", False):  # as `threading.Thread` does
            work = partial(copy_context().run, work)
        self._process = os.getpid()
        self._signals: SimpleQueue[object] = SimpleQueue()
        ticket = _Ticket()
        # However the thread ends, it drops the ticket. `put` is not Python code, which might need
        # more memory than there is.
        self._end = weakref.ref(ticket, self._signals.put)
        _thread.start_new_thread(_run, (ticket, self._signals, [work]))
        del ticket
        if self._signals.get() is self._end:
            self._signals.put(self._end)
            raise MemoryError("a thread could not start")

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, as all threads of its parent have in a forked process."""
        return not self._signals.empty() or os.getpid() != self._process

    def join(self) -> None:
        if os.getpid() == self._process:
            self._signals.put(self._signals.get())  # for other waiting threads


class _Ticket:
    """Only the thread holds it, and it ends with it."""


def _run(ticket: _Ticket, signals: SimpleQueue[object], works: list[Callable[[], object]]) -> None:
    del ticket  # which the traceback of an error would hold, and the work
    signals.put(None)
    try:
        works.pop()()
    finally:
        # Without the GIL, only the thread that made the ticket drops it, which may be in `join`.
        signals.put(None)
