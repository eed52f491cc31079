"""What processes that save together tell each other: three short messages each.

    process 0        prepares the directory ──▶ name, and what is saved ──▶ all
    every process    writes its file ──▶ done, or what has gone wrong or differs ──▶ process 0
    process 0        commits ──▶ end, or what has gone wrong ──▶ all

They go through the key-value store of `jax.distributed`, which may be used in the background: it
needs no devices.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from typing import Any

from treepack._src.interop import jax as _jax
from treepack.errors import TreepackError

# How long a process waits for another one, in seconds.
TIMEOUT_S = 3600.0

# How long one request waits.
_PATIENCE_S = 10.0

# Nobody waits any more for the end of what was saved so many times before.
_OLD = 100

_rounds = itertools.count()

# What a message begins with that tells what differs.
_DIFFERS = "differs:"

# The client of the parent, whose threads do not run in a forked process.
_inherited: Any = None


def _forked() -> None:
    global _inherited
    _inherited = _jax.client()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class NotSavedError(TreepackError):
    """Something has gone wrong in another process."""


class Group:
    """The processes that write a checkpoint.

    Attributes:
      index: The number of this process.
      count: How many there are.
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

    def announce(self, what: str) -> None:
        """Tells all others what is written now, or nothing if nothing is; for process 0."""
        self._tell("name", what)

    def announced(self) -> str:
        """Returns what process 0 has announced."""
        return self._hear("name", 0)

    def differs(self, what: str) -> None:
        """Tells process 0 that this one saves something else, and what."""
        self._tell(f"done/{self.index}", _DIFFERS + what)

    def done(self, error: BaseException | None = None) -> None:
        """Tells process 0 that this one has written, or that it could not."""
        self._tell(f"done/{self.index}", _text(error))

    def gather(self, differences: Callable[[int, str], str]) -> list[str]:
        """Waits for all others, and returns what has gone wrong in them; for process 0.

        Args:
          differences: Takes the number of a process that saves something else, and what that is,
            and tells in words how it differs.
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
        """Tells all others that the checkpoint is whole, or that it will not be; for process 0."""
        if error is not None and not isinstance(error, NotSavedError):
            error = NotSavedError(f"the checkpoint was not saved: process 0: {_text(error)}")
        self._tell("end", "" if error is None else str(error))

    def wait(self) -> None:
        """Waits for the end.

        Raises:
          TreepackError: If something has gone wrong in another process.
        """
        error = self._hear("end", 0)
        if error:
            raise NotSavedError(error)

    def _tell(self, key: str, value: str) -> None:
        if self.count > 1:
            self._client.key_value_set(f"treepack/{self._round}/{key}", value or "-")

    def _hear(self, key: str, index: int) -> str:
        """Returns what another process tells."""
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
                        f"process {index} has not come to save after {TIMEOUT_S:.0f} s; all "
                        "processes have to call save with the same tree"
                    ) from error
            else:
                return "" if value == "-" else value


def _text(error: Any) -> str:
    return "" if error is None else f"{type(error).__name__}: {error}"
