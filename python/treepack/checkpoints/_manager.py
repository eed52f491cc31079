"""Saves checkpoints in the background, one after another."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from treepack._src.saving.background import OneByOne


class AsyncManager:
    """Saves in the background: pass one to each `save_checkpoint` of a series.

    A save waits for the one before. The program ends only after the last one. An error that is not
    retrieved is raised by the next save, or else logged.

    Attributes:
      executor: A `concurrent.futures.Executor`, which does one save after another.
      save_future: The last save: `result()` waits for its end and raises its error.

    Examples:
      >>> import tempfile
      >>> from treepack import checkpoints
      >>> directory, manager = tempfile.mkdtemp(), checkpoints.AsyncManager()
      >>> _ = checkpoints.save_checkpoint(directory, {"step": 1}, 1, async_manager=manager)
      >>> manager.wait_previous_save()
      >>> checkpoints.available_steps(directory)
      [1]
    """

    def __init__(self, max_workers: int = 1):
        self.executor: OneByOne = OneByOne()
        self.save_future: Future[Any] | None = None
        self._last: Any = None
        del max_workers  # a save waits for the one before, as with flax

    def wait_previous_save(self) -> None:
        """Waits until the last save has ended.

        Raises:
          Exception: Its error, unless `save_future` has already raised it.
        """
        last = self._last
        if last is not None:
            last.wait()
            if last.has_unretrieved_error:
                last.result()

    def save_async(self, task: Callable[[], Any]) -> None:
        """Waits until the last save has ended, and begins another one.

        Args:
          task: The function that saves.
        """
        self.wait_previous_save()
        self.save_future = self._last = self.executor.submit(task)
