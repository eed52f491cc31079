"""The messages between processes that save together: three short ones each.

    process 0        prepares the directory ──▶ name and identity of the save ──▶ all
    every process    writes its file ──▶ done, or an error or a difference ──▶ process 0
    process 0        commits ──▶ end, or an error ──▶ all

They go through the key-value store of `jax.distributed`, which needs no devices, so that it may be
used in the background.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from typing import Any

from treepack._src.interop import jax as _jax
from treepack.errors import TreepackError

# The longest that a process waits for another one, in seconds.
TIMEOUT_S = 3600.0

# The longest that one request waits, in seconds.
_PATIENCE_S = 10.0

# Nobody waits any more for the end of a save this many saves ago.
_OLD = 100

_rounds = itertools.count()

# The prefix of a message about differences.
_DIFFERS = "differs:"

# The client of the parent, whose threads do not run in a forked process.
_inherited: Any = None


def _forked() -> None:
    global _inherited
    _inherited = _jax.client()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class NotSavedError(TreepackError):
    """Another process has failed."""


class Group:
    """The processes that write a checkpoint.

    Attributes:
      index: The number of this process.
      count: The number of processes.
    """

    def __init__(self) -> None:
        # Before jax is asked, which would wait for others.
        if _inherited is not None and _jax.client() is _inherited:
            raise TreepackError(
                "this process is a fork of one that saves together with others, and cannot do so "
                "itself: start it with `spawn`, or save in the parent"
            )
        self.index, self.count, self._client = _jax.processes()
        # All processes save in the same order.
        self._round = next(_rounds) if self.count > 1 else -1

    def announce(self, text: str) -> None:
        """Tells all others the name and identity of the save, or `""` for none; for process 0."""
        self._tell("name", text)

    def announced(self) -> str:
        """Waits for the announcement of process 0."""
        return self._hear("name", 0)

    def differs(self, identity: str) -> None:
        """Tells process 0 that this one saves something else."""
        self._tell(f"done/{self.index}", _DIFFERS + identity)

    def done(self, error: BaseException | None = None) -> None:
        """Tells process 0 that this one has written its file, or has failed."""
        self._tell(f"done/{self.index}", _text(error))

    def gather(self, differences: Callable[[int, str], str]) -> list[str]:
        """Waits for all others, and returns their errors; for process 0.

        Args:
          differences: Takes the number and the identity of a process that saves something else,
            and returns the difference in words.
        """
        others = [(index, self._hear(f"done/{index}", index)) for index in range(1, self.count)]
        if self.count > 1:  # the store keeps all in memory, and nobody will read this any more
            self._client.key_value_delete(f"treepack/{self._round}/done/")
            self._client.key_value_delete(f"treepack/{self._round - _OLD}/")
        return [
            differences(index, error.removeprefix(_DIFFERS))
            if error.startswith(_DIFFERS)
            else f"process {index}: {error}"
            for index, error in others
            if error
        ]

    def end(self, error: BaseException | None = None) -> None:
        """Tells all others that the checkpoint is committed, or has failed; for process 0."""
        if error is not None and not isinstance(error, NotSavedError):
            error = NotSavedError(f"the checkpoint was not saved: process 0: {_text(error)}")
        self._tell("end", "" if error is None else str(error))

    def wait(self) -> None:
        """Waits for the end.

        Raises:
          TreepackError: If another process has failed.
        """
        error = self._hear("end", 0)
        if error:
            raise NotSavedError(error)

    def _tell(self, key: str, value: str) -> None:
        if self.count > 1:
            self._client.key_value_set(f"treepack/{self._round}/{key}", value or "-")

    def _hear(self, key: str, index: int) -> str:
        """Waits for a message of another process."""
        until = time.monotonic() + TIMEOUT_S
        while True:
            try:
                value: str = self._client.blocking_key_value_get(
                    f"treepack/{self._round}/{key}", int(_PATIENCE_S * 1000)
                )
            except Exception as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise
                if time.monotonic() > until:
                    raise TreepackError(
                        f"process {index} has not called save within {TIMEOUT_S:.0f} s; all "
                        "processes have to call it with the same tree"
                    ) from error
            else:
                return "" if value == "-" else value


def _text(error: Any) -> str:
    return "" if error is None else f"{type(error).__name__}: {error}"
