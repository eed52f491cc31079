"""Saves in the background: `save(background=True)`.

    save ──▶ a layout that does not depend on the tree ──▶ thread: write ──▶ Saving.result()

A save waits for an earlier one to the same path.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import traceback
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from treepack._src.options import Progress, progress_bar
from treepack._src.storage.place import local, shown, url_of
from treepack._src.tasks import Thread
from treepack.errors import TreepackError

# Takes a progress callable; returns when all is written.
Write = Callable[[Progress], None]


T = TypeVar("T")


class AskedFuture(Future[T]):
    """A future that knows whether somebody has asked for its error, which is logged otherwise."""

    _unasked: Any = None

    @property
    def has_unasked_error(self) -> bool:
        """Whether it has failed, and nobody knows."""
        return self._unasked is not None and bool(self._unasked.alive)

    def fail(self, what: str, error: BaseException) -> None:
        """Ends it with the error of `what`."""
        self._unasked = weakref.finalize(self, _log, what, repr(error))
        self.set_exception(error)

    def result(self, timeout: float | None = None) -> T:
        """Waits for the result."""
        try:
            return super().result(timeout)
        finally:
            self._asked()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Waits for the end, and returns the error, or `None`."""
        try:
            return super().exception(timeout)
        finally:
            self._asked()

    def _asked(self) -> None:
        if self.done() and self._unasked is not None:
            self._unasked.detach()


def _log(what: str, error: str) -> None:
    logging.getLogger("treepack").error("saving %s has failed: %s", what, error)


class Saving(AskedFuture[None]):
    """A save in the background, as `save(background=True)` returns it.

    It has the methods of a `concurrent.futures.Future`: `done()` returns whether the save has
    ended; `result()` waits for the end and raises the error of the save; `exception()` returns it.
    The program ends only after the save. An error that nobody asks for is logged.

    Attributes:
      path: The path that is saved to.
      progress: The number of bytes of the encoding that are done, and of all.

    Examples:
      >>> import jax.numpy as jnp, tempfile, treepack
      >>> path = f"{tempfile.mkdtemp()}/model.treepack"
      >>> saving = treepack.save(path, {"w": jnp.ones(3)}, background=True)
      >>> saving.result()
      >>> treepack.load(path)
      {'w': Array([1., 1., 1.], dtype=float32)}
    """

    def __init__(self, path: str):
        super().__init__()
        self.path = path
        self.progress: tuple[int, int] = (0, 0)
        self.set_running_or_notify_cancel()  # nobody can stop it any more

    def result(self, timeout: float | None = None) -> None:
        """Waits until all is written.

        Args:
          timeout: The maximum number of seconds.

        Raises:
          TimeoutError: If it takes longer.
          Exception: What `save` raises.
        """
        super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Waits until all is written, and returns the error of the save, or `None`."""
        return super().exception(timeout)

    def __repr__(self) -> str:
        if not self.done():
            done, total = self.progress
            return f"<treepack.Saving {shown(self.path)!r}: {done} of {total} bytes>"
        error = Future.exception(self)  # not asking
        return (
            f"<treepack.Saving {shown(self.path)!r}: {'saved' if error is None else repr(error)}>"
        )

    def _leave(self) -> None:
        """Ends it in a forked process, where the writing thread does not run."""
        future: Any = self
        future._condition = threading.Condition()  # the other one may be held
        future._waiters, future._done_callbacks = [], []  # those of the parent
        if not self.done():
            self.set_exception(
                TreepackError(f"the parent process goes on to save {shown(self.path)}: ask it")
            )

    def _run(self, write: Write, progress: Progress) -> None:
        try:
            with progress_bar(progress, "save") as tell:

                def told(done: int, total: int) -> None:
                    self.progress = (done, total)
                    if tell is not None:
                        tell(done, total)

                write(told)
            total = self.progress[1]
            self.progress = (total, total)
        except BaseException as error:  # which `result` raises
            del write
            traceback.clear_frames(error.__traceback__)  # they hold the arrays
            self.fail(shown(self.path), error)
        else:
            del write  # and the arrays with it, before anybody is told
            self.set_result(None)


_lock = threading.Lock()

_under_way: dict[str, Saving] = {}

_threads: list[Thread] = []


def _forget() -> None:
    """Forgets the saves of the parent in a forked process."""
    global _lock
    _lock = threading.Lock()
    savings = [*_under_way.values()]
    _under_way.clear()
    for saving in savings:
        saving._leave()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def run(
    path: str | os.PathLike[str],
    write: Write,
    progress: Progress,
    *,
    background: bool,
    abandon: Callable[[BaseException], object] | None = None,
) -> Saving | None:
    """Calls `write` now, or in a thread.

    If no thread can be started, `write` is never called, and `abandon` gets the error.
    """
    if not background:
        write(progress)
        return None
    place = _place(path)
    saving = Saving(os.fspath(path))

    def work() -> None:
        try:
            with contextlib.suppress(IndexError):  # given up before it began
                saving._run(write_once.pop(), progress)
        finally:
            _ended(place, saving)

    write_once = [write]  # so that nothing holds it after the call
    try:
        _enter(place, saving)
        thread = Thread(work)
        with _lock:
            _threads[:] = [*(it for it in _threads if not it.has_ended), thread]
    except BaseException as error:
        with contextlib.suppress(IndexError):  # an interrupt may come when it has begun
            write_once.pop()
            _ended(place, saving)
            saving.set_exception(error)  # for those who wait
            if abandon is not None:
                abandon(error)
        raise
    return saving


def _finish() -> None:
    """Waits at the end of the program for all saves."""
    while _under_way:
        for place, saving in [*_under_way.items()]:
            _wait_for(saving, place)
    while _threads:
        _threads.pop().join()


# Python waits only for threads of `threading`, whose `start` may wait for ever. The
# first hook runs where it does, also in processes of `multiprocessing`, which skip `atexit`.
with contextlib.suppress(AttributeError, RuntimeError):  # it is private; the program is ending
    threading._register_atexit(_finish)  # type: ignore[attr-defined]
atexit.register(_finish)


def _ended(place: str, saving: Saving) -> None:
    with _lock:
        if _under_way.get(place) is saving:
            del _under_way[place]


def _enter(place: str, saving: Saving) -> None:
    """Registers a save as soon as no other one to its place is under way."""
    while True:
        with _lock:
            other = _under_way.setdefault(place, saving)
        if other is saving:
            return
        _wait_for(other, place)


def wait_for(path: str | os.PathLike[str]) -> None:
    """Waits until no save to a path is under way."""
    place = _place(path)
    while (saving := _under_way.get(place)) is not None:
        _wait_for(saving, place)


def _wait_for(saving: Saving, place: str) -> None:
    Future.exception(saving)  # not that of `Saving`, which counts as asking
    _ended(place, saving)


def _place(path: str | os.PathLike[str]) -> str:
    url = url_of(path)
    return os.path.realpath(os.fspath(local(path))) if url is None else url
