"""Checkpoints that are saved in the background, one after another."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from treepack._src.saving.background import AskedFuture


class AsyncManager:
    """Saves in the background: pass one to each `save_checkpoint` of a series.

    A save waits for the end of the one before. The program ends only after the last one. An error
    that nobody asks for is raised by the next save, or else logged.

    Attributes:
      executor: The thread that saves.
      save_future: The last save: `result()` waits for its end and raises its error.

    Examples:
      >>> import numpy as np, tempfile
      >>> from treepack import checkpoints
      >>> directory, manager = tempfile.mkdtemp(), checkpoints.AsyncManager()
      >>> state = {"w": np.zeros(3)}
      >>> _ = checkpoints.save_checkpoint(directory, state, 1, async_manager=manager)
      >>> state["w"][:] = 1  # the save does not see this
      >>> manager.wait_previous_save()
      >>> checkpoints.restore_checkpoint(directory, None)
      {'w': array([0., 0., 0.])}
    """

    def __init__(self, max_workers: int = 1):
        self.executor: ThreadPoolExecutor = ThreadPoolExecutor(max_workers)
        self.save_future: Future[Any] | None = None
        self._last: AskedFuture[Any] | None = None

    def wait_previous_save(self) -> None:
        """Waits until the last save has ended.

        Raises:
          Exception: Its error, unless `save_future` has already told it.
        """
        last = self._last
        if last is not None:
            Future.exception(last)  # this waits, and does not count as asking
            if last.has_unasked_error:
                last.result()

    def save_async(self, task: Callable[[], Any]) -> None:
        """Waits until the last save has ended, and begins another one.

        Args:
          task: What saves.
        """
        self.wait_previous_save()
        future: AskedFuture[Any] = AskedFuture()
        self.executor.submit(_run, future, task)
        self.save_future = self._last = future


def _run(future: AskedFuture[Any], task: Callable[[], Any]) -> None:
    try:
        result = task()
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)  # they hold the arrays
        future.fail("a checkpoint in the background", error)
    else:
        future.set_result(result)
    finally:
        del future, task  # which the traceback would hold as well
