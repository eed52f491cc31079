"""Saves in a background thread, after an earlier save to the same path: `save(background=True)`.

save ──▶ a layout that does not depend on the tree ──▶ thread: write ──▶ Saving.result()
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Generator, Hashable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

from treepack._src.advice import Hinting
from treepack._src.claims.directory import interrupted
from treepack._src.options import Progress, progress_bar
from treepack._src.printable import Completing
from treepack._src.storage.address import Address
from treepack._src.tasks import Milestone, Thread
from treepack.errors import TreepackError

# Takes a progress callable, returns when everything is written.
Write = Callable[[Progress], None]


T = TypeVar("T")


class LoggedFuture(Future[T], metaclass=Completing):
    """The future of work that runs once, in a thread; logs an error that is never retrieved.

    Signal handlers may wait for it: it avoids the lock of futures, which an interrupted call may
    hold.
    """

    _value: T
    _shown = (
        *("path", "progress", "done", "result", "exception", "running"),
        *("add_done_callback", "cancel", "cancelled"),
    )

    def __init__(self, name: str, work: Callable[[], T]):
        super().__init__()
        self.set_running_or_notify_cancel()  # it cannot be cancelled
        self.name = name
        self._works = [work]  # popped, so that it is not kept alive afterwards
        self._claims: dict[str, tuple[int]] = {}  # the thread that runs it
        self._end = Milestone()
        self._error: BaseException | None = None
        self._unretrieved: Any = None

    @property
    def has_begun(self) -> bool:
        return bool(self._claims)

    @property
    def is_suspended(self) -> bool:
        """Whether a signal handler in this thread has interrupted the work, which resumes later."""
        return self._claims.get("first") == (threading.get_ident(),) and not self.done()

    @property
    def has_unretrieved_error(self) -> bool:
        return self._unretrieved is not None and bool(self._unretrieved.alive)

    def attempt(self) -> None:
        if not self._claim():
            return
        work = self._works.pop()
        try:
            self._value = work()
        except BaseException as error:  # `result` raises it
            del work
            traceback.clear_frames(error.__traceback__)  # they hold the arrays
            if _ends:  # `finalize` has ended, too
                _log(self.name, repr(error))
            else:
                self._unretrieved = weakref.finalize(self, _log, self.name, repr(error))
            self._fail(error)
        else:
            del work  # and the arrays with it, before any wait ends
            self._end.reach()
            self.set_result(self._value)
        finally:
            _under_way.pop(self, None)

    def give_up(self, error: BaseException) -> bool:
        if not self._claim():
            return False
        self._works.clear()
        _under_way.pop(self, None)
        self._fail(error)
        return True

    def _claim(self) -> bool:
        mine = (threading.get_ident(),)
        return self._claims.setdefault("first", mine) is mine

    def _fail(self, error: BaseException) -> None:
        self._error = error
        self._end.reach()
        self.set_exception(error)

    def wait(self) -> None:
        """Waits for the end, without retrieving the error, unless it `is_suspended`.

        Begins the work if no thread has: a signal handler may have interrupted that thread.
        """
        if not self.has_begun:
            _start(self)
        if not self.is_suspended:
            self._end.wait()

    def done(self) -> bool:
        return self._end.is_reached

    def result(self, timeout: float | None = None) -> T:
        error = self.exception(timeout)
        if error is None:
            return self._value
        try:
            raise error
        finally:
            del self, error  # the traceback holds this frame

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not isinstance(timeout, int | float | None):
            raise TypeError(f"timeout must be a number of seconds or None, got {timeout!r:.100}")
        if not self._end.wait(timeout):
            raise TimeoutError
        if self._unretrieved is not None:
            self._unretrieved.detach()
        return self._error

    def _leave(self) -> None:
        future: Any = self
        future._condition = threading.Condition()  # the old lock may be held
        future._waiters, future._done_callbacks = [], []  # the old ones are the parent's
        self._claim()
        self._works.clear()
        if not self.done():
            self._fail(
                TreepackError(
                    f"the parent process continues to save {self.name}: wait for it there"
                )
            )


def _log(name: str, error: str) -> None:
    logging.getLogger("treepack").error("saving %s failed: %s", name, error)


class Saving(Hinting, LoggedFuture[None]):
    """A save in the background, the result of `save(background=True)`.

    It is a `concurrent.futures.Future`: `done()` returns whether the save has ended; `result()`
    waits for it and raises its error; `exception()` returns the error. `await saving` does as
    `result()`. The program exits only after the save. An error that is never retrieved is logged.

    Attributes:
      path: The path of the save.
      progress: The number of encoded bytes done, and their total.

    Examples:
      >>> import jax.numpy as jnp, tempfile, treepack
      >>> path = f"{tempfile.mkdtemp()}/model.treepack"
      >>> saving = treepack.save(path, {"w": jnp.ones(3)}, background=True)
      >>> saving.result()
      >>> treepack.load(path)
      {'w': Array([1., 1., 1.], dtype=float32)}
    """

    def __init__(self, path: Address, write: Write, progress: Progress):
        super().__init__(path.shown, functools.partial(self._write, write, progress))
        self.path: str = path.plain
        self.progress: tuple[int, int] = (0, 0)

    def result(self, timeout: float | None = None) -> None:
        """Waits for the end.

        Args:
          timeout: The maximum time in seconds; `None` is unlimited.

        Raises:
          TimeoutError: If the save takes longer.
          Exception: The error of the save; see `save`.
        """
        super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        return super().exception(timeout)

    def __await__(self) -> Generator[Any, None, None]:
        import asyncio  # takes longer to import than treepack

        return asyncio.wrap_future(self).__await__()

    def __dir__(self) -> list[str]:
        return sorted(self._shown)

    def __repr__(self) -> str:
        if not self.done():
            done, total = self.progress
            progress = f"{done} of {total} bytes" if total else "waits for earlier saves"
            return f"<treepack.Saving {self.name!r}: {progress}>"
        outcome = "saved" if self._error is None else repr(self._error)
        return f"<treepack.Saving {self.name!r}: {outcome}>"

    def _write(self, write: Write, progress: Progress) -> None:
        with progress_bar(progress, "save") as tell:

            def set_progress(done: int, total: int) -> None:
                self.progress = (done, total)
                if tell is not None:
                    tell(done, total)

            write(set_progress)
        total = self.progress[1]
        self.progress = (total, total)


# The unfinished work in order, with its place. Each change is atomic, as signal handlers require.
_under_way: dict[LoggedFuture[Any], Hashable] = {}

_threads: list[Thread] = []

# Not empty once the program has waited for the last time. What begins then is done at once.
_ends: list[None] = []


def _forget() -> None:
    futures = [*_under_way]
    _under_way.clear()
    for future in futures:
        future._leave()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


class OneByOne(Executor):
    """Saves to one path one after another; a signal handler may begin one as well."""

    def __init__(self, path: Address | None = None, kind: str = ""):
        self._path, self._kind = None if path is None else path.absolute(), kind
        self._place: Hashable = self if path is None else None

    def _resolved(self) -> Hashable:
        """Resolving links takes as long as a small save."""
        if self._path is not None and self._place is None:
            self._place = self._kind, self._path.real()
        return self._place

    def run(
        self,
        path: Address,
        write: Write,
        progress: Progress,
        *,
        background: bool,
        claims: Address | None = None,
        abandon: Callable[[BaseException], object] | None = None,
    ) -> Saving | None:
        """Calls `write` after earlier work: now, or with `background` in a thread.

        Now, too, if this thread has interrupted a save in the directory that `write` `claims`. If
        no thread can be started, calls `abandon` with the error.
        """
        if not background:
            self.wait()  # for saves that a signal handler began since the call of `save`
            write(progress)
            return None
        saving = Saving(path, write, progress)
        del write  # so that no reference remains after the call
        at_once = claims is not None and bool(interrupted(claims))
        self._begin(saving, at_once=at_once, abandon=abandon)
        return saving

    def later(self, path: Address, work: Callable[[Saving], None]) -> Saving:
        def write(_: Progress) -> None:
            self.wait(saving)
            work(saving)

        saving = Saving(path, write, None)
        self._begin(saving, waits=False)
        return saving

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> LoggedFuture[T]:
        future = LoggedFuture("a checkpoint in the background", lambda: fn(*args, **kwargs))
        self._begin(future)
        return future

    def _begin(
        self,
        future: LoggedFuture[Any],
        *,
        at_once: bool = False,
        waits: bool = True,
        abandon: Callable[[BaseException], object] | None = None,
    ) -> None:
        try:
            _under_way[future] = self._place or self._resolved()
            if waits:
                self.wait(future)
            if at_once:
                future.attempt()
            else:
                _start(future)
        except BaseException as error:
            # An interrupt may arrive after it has begun.
            if future.give_up(error) and abandon is not None:
                abandon(error)
            raise

    def wait(self, until: LoggedFuture[Any] | None = None) -> None:
        if not _under_way:
            return
        place = self._place or self._resolved()
        for future, its_place in _under_way.copy().items():
            if future is until:
                break
            if its_place == place:
                future.wait()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        del cancel_futures  # all have begun
        if wait:
            self.wait()


def _start(future: LoggedFuture[Any]) -> None:
    if _ends or sys.is_finalizing():  # nothing would wait for the thread, if it started at all
        future.attempt()
        return
    thread = Thread(future.attempt)
    for other in [*_threads]:
        if other.has_ended:
            with contextlib.suppress(ValueError):  # another thread removed it
                _threads.remove(other)
    _threads.append(thread)


def _finish() -> None:
    while _under_way:
        for future in [*_under_way]:
            future.wait()
            _under_way.pop(future, None)
    while _threads:
        _threads.pop().join()


def _end() -> None:
    """Waits for all saves, before handlers of `atexit` that are older than this module."""
    _ends.append(None)
    _finish()


# Python waits only for threads of `threading`, whose `start` may block forever. The first hook runs
# at the same time, also in processes of `multiprocessing`, which skip `atexit`.
with contextlib.suppress(
    AttributeError, RuntimeError
):  # a private name; the program may be exiting
    threading._register_atexit(_finish)  # type: ignore[attr-defined]
atexit.register(_end)
