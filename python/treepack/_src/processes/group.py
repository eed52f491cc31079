"""Exchanges messages between processes that save or load together: three short ones each.

    process 0        prepares the directory ──▶ name and identity of the save ──▶ all
    every process    writes its file ──▶ its report: success, an error or a difference
                     ──▶ the first process of its group ──▶ process 0
    process 0        commits ──▶ end, or an error ──▶ all

Processes that load agree in the same way before each batch of arrays is sent over the devices
(`placing/replicas.py`). Messages use the key-value store of `jax.distributed`, which works without
devices, so in the background.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from treepack._src.interop import jax as _jax
from treepack._src.options import TIMEOUT_S, check
from treepack._src.tasks import Task, Thread
from treepack.errors import OthersError, TreepackError

T = TypeVar("T")

# The maximum time that one request waits, in seconds.
_PATIENCE_S = 10.0

# The number of saves after which no process still waits for the end of a save.
_OLD = 100

# The number of rounds of process 0: its saves.
_rounds = itertools.count()

# The client of the parent, whose threads do not run in a forked process.
_inherited: Any = None


def _forked() -> None:
    global _inherited
    _inherited = _jax.client()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def check_not_forked(call: str) -> None:
    if _inherited is not None and _jax.client() is _inherited:
        raise TreepackError(
            f"a forked process cannot {call} together with other processes: start it with "
            f"`spawn`, or {call} in the parent"
        )


class Message(NamedTuple):
    """The report of a process to process 0.

    Attributes:
      written: The description of its file, if it wrote one, as a tuple for JSON.
      error: The text of its error, if it failed.
      differs: The identity of its save or load, if it differs from process 0's.
    """

    written: Sequence[Any] | None = None
    error: str = ""
    differs: str = ""


# The messages from the processes of a group, by their numbers.
Messages = dict[int, Message]


class _Rounds:
    """Matches the saves of another process with rounds of process 0; either may miss some.

    Concurrent saves take rounds in the order of their calls, regardless of which thread receives an
    announcement. A separate thread makes each change: a signal handler that interrupted it in the
    main thread might wait for a save that needs the lock.
    """

    def __init__(self) -> None:
        self.next = 0  # the first round not taken by this process
        self._lock = threading.Lock()
        self._calls = itertools.count()
        self._groups: dict[int, weakref.ref[Group]] = {}
        self._taken: set[int] = set()  # later ones

    def _locked(self, change: Callable[[], T]) -> T:
        def work() -> T:
            with self._lock:
                return change()

        task = Task(work)
        with contextlib.suppress(RuntimeError, MemoryError):  # then this thread makes it
            Thread(task.attempt).join()
        return task.result()

    def join(self, group: Group) -> None:
        call, groups = next(self._calls), self._groups
        groups[call] = weakref.ref(group, lambda _: groups.pop(call, None))

    def _waiting(self) -> list[tuple[int, Group]]:
        groups = ((call, group()) for call, group in sorted(self._groups.copy().items()))
        return [(call, group) for call, group in groups if group is not None]

    def leave(self, group: Group) -> int:
        """Removes a save without a round; returns the round that it should take."""
        return self._locked(lambda: self._leave(group))

    def _leave(self, group: Group) -> int:
        free = (number for number in itertools.count(self.next) if number not in self._taken)
        for call, other in self._waiting():
            number = next(free)
            if other is group:
                del self._groups[call]
                return number
        return next(free)

    def take(self, number: int) -> None:
        self._locked(lambda: self._take(number))

    def _take(self, number: int) -> None:
        self._taken.add(number)
        while self.next in self._taken:
            self._taken.remove(self.next)
            self.next += 1

    def announced(self, number: int, step: int | None, text: str, *, has_ended: bool) -> None:
        """Assigns a round to the save of its step, or to the first save if either has no step.

        Process 0 missed the saves of lower steps, unless the round `has_ended`: then it went back.
        If only saves of higher steps are left, the next round is received; without a save, the
        round waits for a later call.
        """
        self._locked(lambda: self._announced(number, step, text, has_ended=has_ended))

    def _announced(self, number: int, step: int | None, text: str, *, has_ended: bool) -> None:
        if number != self.next:
            return  # another thread received it as well
        if has_ended:
            return self._take(number)
        for call, group in self._waiting():
            is_lower = step is not None and group.step is not None and group.step < step
            if is_lower:
                group.passed = step
            elif None in (step, group.step) or group.step == step:
                group.meet(number, text)
            else:
                continue
            del self._groups[call]
            if not is_lower:
                return self._take(number)
        for _, group in self._waiting():
            group.skip(number, step)
            return self._take(number)


_others_rounds = _Rounds()


class Group:
    """The processes that write or read a checkpoint together.

    Process 0, or the first member, receives from the first process of each group, which receives
    from the rest of its group: of n processes, each receives from at most about `2 * sqrt(n)`.

    Attributes:
      step: The step of the save, or `None`.
      passed: The later step that process 0 already saves, or `None`.
    """

    def __init__(
        self,
        timeout: float = TIMEOUT_S,
        *,
        step: int | None = None,
        members: Sequence[int] | None = None,
        folder: str | None = None,
        old: str | None = None,
        call: str = "save",
    ) -> None:
        """Begins a round of messages.

        Args:
          timeout: The time in seconds that process 0 waits for the others.
          step: The step of a save: processes that missed saves meet at the next one.
          members: The processes, in order; `None` for all.
          folder: The folder of this round's messages in the store. `None` counts rounds in process
            0, and finds them in other processes.
          old: The folder of messages that are obsolete once all processes are in this round.
          call: The function that they called.
        """
        check("timeout", timeout)
        check_not_forked(call)
        index, count, self._client = _jax.processes()
        self.index: int = index if members is None else members.index(index)
        self.count: int = count if members is None else len(members)
        self.members: Sequence[int] = range(self.count) if members is None else members
        self._timeout = timeout
        self._size = group_size(self.count)
        self._call = call
        self.step = step
        self.passed: int | None = None
        self._announced: str | None = None
        self._folder, self._old = folder, old
        self._has_ended = False
        if folder is None and self.index == 0 and self.count > 1:
            number = next(_rounds)
            self._folder, self._old = str(number), str(number - _OLD)
        elif folder is None and self.count > 1:
            _others_rounds.join(self)

    def further(self) -> Group:
        return Group(self._timeout, step=self.step, folder=f"{self._folder}/more", call=self._call)

    def announce(self, text: str) -> None:
        """For process 0: sends the name and identity of the save (`""`: no save) to all others."""
        self._tell("name", json.dumps([self.step, text]))

    def announced(self) -> str:
        """Waits for process 0; raises a TreepackError if that already saves a later step."""
        given = self._folder  # another thread may let it meet a later round while this one hears
        try:
            while self._announced is None and self.passed is None:
                number = _others_rounds.next
                folder = given or str(number)
                timeout = self._timeout * (1 if given is None else _LATER)
                step, text = json.loads(self._hear("name", 0, timeout, folder))
                if given is None:
                    is_lower = step is not None and self.step is not None and self.step < step
                    has_ended = is_lower and self._has_ended_already(folder)
                    _others_rounds.announced(number, step, text, has_ended=has_ended)
                else:
                    self._announced = text
        except BaseException:
            if self._folder is None:
                number = _others_rounds.leave(self)
                if self.step is None:  # only the order of calls is known
                    _others_rounds.take(number)
            raise
        if self._announced is None:
            raise TreepackError(
                f"step {self.step} was not saved: process 0 missed it, and already saves step "
                f"{self.passed}. Save that step next"
            )
        return self._announced

    def _has_ended_already(self, folder: str) -> bool:
        try:
            self._hear("end", 0, _LEAST_S, folder)
        except TimedOutError:
            return False
        return True

    def meet(self, number: int, text: str) -> None:
        self._folder, self._announced = str(number), text

    def skip(self, number: int, step: int | None) -> None:
        error = f"it missed step {step}, and already saves step {self.step}. Save that step next"
        message = {self.index: Message(error=error)}
        self._tell(f"done/{self.index}", _encoded(message, is_all=False), str(number))

    def abandon(self, error: BaseException) -> None:
        if self.index == 0:
            self.announce("")
            self.end(error)
            return
        if self._folder is None:
            number = _others_rounds.leave(self)
            _others_rounds.take(number)
            self._folder = str(number)
        self.fail(error)

    def fail(self, error: BaseException) -> None:
        self.tell(Message(error=text_of(error)), waits=False)

    def tell(self, message: Message, *, waits: bool = True) -> None:
        """Sends the report of this process to process 0; for other processes.

        The first process of a group waits for the rest, unless process 0 must do that.
        """
        first = self.index - self.index % self._size
        if first == 0 or self.index != first:
            self._tell(f"done/{self.index}", _encoded({self.index: message}))
            return
        heard = {self.index: message}
        if waits:
            # Before process 0 times out, so that it can name the missing processes.
            heard |= self._hear_group(first, time.monotonic() + self._timeout * _EARLIER)
        self._tell(f"done/{self.index}", _encoded(heard, is_all=waits))

    def gather(self) -> Messages:
        until = time.monotonic() + self._timeout
        messages = self._hear_group(0, until)
        for first in range(self._size, self.count, self._size):
            heard, is_all = self._hear_about(first, until)
            messages |= heard
            if not is_all:
                messages |= self._hear_group(first, until)
        if self.count > 1:  # the store keeps messages in memory, and this one is obsolete
            self._client.key_value_delete(f"treepack/{self._folder}/done/")
            if self._old is not None and not any(message.error for message in messages.values()):
                self.forget(self._old)
        return messages

    def forget(self, folder: str) -> None:
        self._client.key_value_delete(f"treepack/{folder}/")

    def _hear_group(self, first: int, until: float) -> Messages:
        messages: Messages = {}
        for index in range(first + 1, min(first + self._size, self.count)):
            messages |= self._hear_about(index, until)[0]
        return messages

    def _hear_about(self, index: int, until: float) -> tuple[Messages, bool]:
        try:
            return _decoded(self._hear(f"done/{index}", index, until - time.monotonic()))
        except TimedOutError as error:
            return {index: Message(error=error.text)}, False

    def end(self, error: BaseException | None = None) -> None:
        """For process 0: sends all others success or an error. Only the first call counts."""
        if self._has_ended:
            return
        self._has_ended = True
        if error is not None and not isinstance(error, OthersError):
            error = self.failed([f"process {self.members[0]}: {text_of(error)}"])
        self._tell("end", "" if error is None else str(error))

    def failed(self, errors: Sequence[str]) -> OthersError:
        more = len(errors) - _MOST_ERRORS
        listed = [*errors[:_MOST_ERRORS], *([f"and {more} more processes"] if more > 0 else [])]
        return OthersError(f"the checkpoint was not {_DONE[self._call]}: {'; '.join(listed)}")

    def wait(self) -> None:
        # Longer than process 0, which names the missing processes.
        error = self._hear("end", 0, self._timeout * _LATER)
        if error:
            raise OthersError(error)

    def _tell(self, key: str, value: str, folder: str | None = None) -> None:
        if self.count > 1:
            place = f"treepack/{folder or self._folder}/{key}"
            self._client.key_value_set(place, value or "-")

    def _hear(self, key: str, index: int, timeout: float, folder: str | None = None) -> str:
        until = time.monotonic() + timeout
        while True:
            patience = min(_PATIENCE_S, max(until - time.monotonic(), _LEAST_S))
            try:
                value: str = self._client.blocking_key_value_get(
                    f"treepack/{folder or self._folder}/{key}", int(patience * 1000)
                )
            except Exception as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise
                if time.monotonic() > until:
                    process = self.members[index]
                    raise TimedOutError(process, self._timeout, self._call) from error
            else:
                return "" if value == "-" else value


class TimedOutError(TreepackError):
    def __init__(self, process: int, timeout: float, call: str):
        self.text = (
            f"did not call {call}, or did not finish, within {timeout:g} s: all processes must "
            "call it with the same tree (timeout= changes the limit)"
        )
        super().__init__(f"process {process} {self.text}")


# The fraction of the timeout for which the first process of a group waits for the rest; processes
# that wait for process 0, which waits for all, wait longer.
_EARLIER = 0.8
_LATER = 1.25

# Even after the timeout, messages that already arrived are received.
_LEAST_S = 0.01

# The maximum number of errors in a message.
_MOST_ERRORS = 10

# Participles for errors of calls.
_DONE = {"save": "saved", "load": "loaded", "resume": "resumed"}

# The maximum number of processes from which process 0 receives directly.
_LEAST_GROUP = 16


def group_size(count: int) -> int:
    return max(_LEAST_GROUP, math.isqrt(count))


def _encoded(messages: Messages, *, is_all: bool = True) -> str:
    return json.dumps([is_all, [[index, *message] for index, message in messages.items()]])


def _decoded(text: str) -> tuple[Messages, bool]:
    is_all, messages = json.loads(text)
    decoded = {
        index: Message(None if written is None else tuple(written), error, differs)
        for index, written, error, differs in messages
    }
    return decoded, is_all


def text_of(error: BaseException) -> str:
    public = (of for of in type(error).__mro__ if not of.__module__.startswith("treepack._src"))
    return f"{next(public).__name__}: {error}".removesuffix(": ")
