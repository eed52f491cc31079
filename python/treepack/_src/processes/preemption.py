"""Notices SIGTERM, which a program receives before its machine is taken away.

In one process, a handler only records it: the interrupted call may hold locks. Several processes
must end after the same step, which the preemption service of `jax.distributed` chooses.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from treepack._src.interop import jax as _jax
from treepack.errors import TreepackError


class Preemption:
    def __init__(self) -> None:
        """Must be called in the main thread; several processes need jax's preemption service."""
        self.number: int | None = None
        self._before: Any = None
        self._is_alone = _jax.processes()[1] == 1
        if self._is_alone:
            if threading.current_thread() is not threading.main_thread():
                raise ValueError(
                    "only the main thread receives signals: call preemption() there, around the "
                    "loop or the wait for this thread"
                )
            self._before = signal.signal(signal.SIGTERM, self._note)
        elif not _jax.has_preemption_service():
            raise TreepackError(
                "the preemption service of jax is off, by which several processes agree on their "
                "last step: set jax_enable_preemption_service before jax.distributed.initialize"
            )

    def reach(self, step: int) -> None:
        """Must be called by several processes at each step."""
        if not self._is_alone and self.number is None and _jax.is_preempted_at(step):
            self.number = signal.SIGTERM

    def end(self) -> None:
        if self._is_alone:
            # A handler that was not installed by Python cannot be restored.
            signal.signal(signal.SIGTERM, self._before or signal.SIG_DFL)

    def exit(self) -> SystemExit:
        return SystemExit(128 + (self.number or 0))

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.number = number
