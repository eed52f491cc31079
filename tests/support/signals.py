"""Signals that come while a function of the core runs, on machines of any speed.

How long work takes is the machine's affair, so a test does not send a signal after some time and
hope that the work still goes on. A timer ticks only between the call of a function of the core
and its return, which `sys.setprofile` tells. A tick counts if the function itself answers it: the
handler runs in the frame that has called it, and it has not returned. One that Python code answers
that the core calls, or that waits until the function is over, does not count.

Work that ends before its first answer, because the machine is fast, is done again, twice as large.
"""

from __future__ import annotations

import dis
import itertools
import signal
import sys
import types
from collections.abc import Callable
from typing import Any

# Seconds; the core looks at signals more seldom.
TICK = 0.001


def answered(function: str, work: Callable[[], Any], answer: Callable[[], Any]) -> bool:
    """Does work under a timer that ticks while a function of the core of this name runs.

    Args:
      function: Its name.
      work: What calls it, in the main thread.
      answer: Called whenever the function answers a tick; what it raises ends the work.

    Returns:
      Whether the function has answered one.
    """
    callers: list[types.FrameType] = []
    answers = 0

    def handle(_: int, frame: types.FrameType | None) -> None:
        nonlocal answers
        if callers and frame is callers[-1]:
            answers += 1
            answer()

    def profile(frame: types.FrameType, event: str, called: Any) -> None:
        if not event.startswith("c_") or called.__name__ != function:
            return
        if event == "c_call":
            callers.append(frame)
            signal.setitimer(signal.ITIMER_REAL, TICK, TICK)
        else:
            # This function answers an unanswered tick, which does not count.
            signal.setitimer(signal.ITIMER_REAL, 0)
            callers.pop()

    before = signal.signal(signal.SIGALRM, handle)
    try:
        sys.setprofile(profile)
        work()
    finally:
        sys.setprofile(None)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return answers > 0


def interrupted(
    function: str, work: Callable[[], Any], error: type[BaseException] = KeyboardInterrupt
) -> bool:
    """Does work that a tick interrupts; tells whether the error came out of the function."""

    def interrupt() -> None:
        raise error

    try:
        answered(function, work, interrupt)
    except error:
        return True
    return False


def soon(attempt: Callable[[int], bool], largest: int = 32) -> bool:
    """Makes attempts with work of size 1, 2, 4 and so on, until one succeeds."""
    size = 1
    while size <= largest:
        if attempt(size):
            return True
        size *= 2
    return False


def at_each_step(
    files: tuple[str, ...],
    work: Callable[[int], Any],
    handler: Callable[[], Any],
    calls: int = 1,
) -> None:
    """Does work again and again, and calls a handler at one of its bytecodes after another.

    The interpreter calls signal handlers after calls, backward jumps and the start of a function;
    functions in C may call them while they wait. So the bytecodes that count are calls, and those
    after calls, jumps and starts.

    Args:
      files: The ends of the names of the files whose bytecodes count.
      work: Called with the number of the bytecode.
      handler: Called `calls` times each time, at bytecodes far from each other.
      calls: How often; at the end of the work, which handlers may change, there may be fewer.
    """

    def works(step: int, chosen: set[int]) -> int:
        """Does the work, with calls at the chosen bytecodes; returns how many it has."""
        count, last_chosen = 0, max(chosen, default=sys.maxsize)
        before: tuple[types.FrameType | None, str] = None, ""

        def trace(frame: types.FrameType, event: str, _: object) -> Any:
            nonlocal count, before
            if count > last_chosen or not frame.f_code.co_filename.endswith(files):
                return None
            frame.f_trace_opcodes = True
            if event == "opcode":
                name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
                other, last = before
                before = frame, name
                answers = frame is not other or "JUMP_BACKWARD" in last or last == "RESUME"
                if answers or name.startswith("CALL") or last.startswith("CALL"):
                    count += 1
                    if count - 1 in chosen:
                        handler()
                    if count > last_chosen:
                        sys.settrace(None)
            return trace

        sys.settrace(trace)
        try:
            work(step)
        finally:
            sys.settrace(None)
        return count

    apart = -(-works(0, set()) // calls) if calls > 1 else 0
    for step in itertools.count():
        # After the work's segments, what handlers have made longer.
        last = step + apart * (calls - 1)
        chosen = {*range(step, last + 1, apart)} if step < apart else {last}
        if works(step, chosen) <= last and step >= apart:
            return
