"""Lets all processes attempt the same, which process 0 chooses, until an attempt succeeds.

process 0     a task ──▶ all     attempts ──▶ success, damage, or an error ──▶ the next task,
all others              ──▶ attempt, tell process 0                           or the end ──▶ all
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from treepack._src import options as _options
from treepack._src.interop import jax as _jax
from treepack._src.processes.group import Group, Message, text_of
from treepack._src.processes.preemption import Preemption
from treepack.errors import CorruptionError, OthersError

T = TypeVar("T")
IsError = Callable[[BaseException], bool]

# The numbers of meetings by call; all processes begin the meetings of a call in one order.
_meetings: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)

# The messages of a round that all processes have finished.
_left: list[str] = []


class Meeting:
    """The messages of all processes about one call, as values for JSON.

    `preemption` notices SIGTERM, which ends all processes; `None` before `listen`.
    """

    TIMEOUT_S = _options.TIMEOUT_S

    def __init__(self, call: str, timeout: float, is_damage: IsError = lambda _: False):
        self._call, self._timeout, self._is_damage = call, timeout, is_damage
        self._place, self._rounds = "", itertools.count()
        self.preemption: Preemption | None = None

    @staticmethod
    def processes() -> tuple[int, int]:
        index, count, _ = _jax.processes()
        return index, count

    def listen(self) -> Preemption:
        self.preemption = Preemption()
        return self.preemption

    def _folder(self, name: object) -> str:
        self._place = self._place or f"{self._call}/{next(_meetings[self._call])}"
        return f"{self._place}/{name}"

    def _group(self, folder: str, old: str | None = None) -> Group:
        return Group(self._timeout, folder=folder, old=old, call=self._call)

    def _round(self) -> Group:
        folder = self._folder(next(self._rounds))
        old = _left.pop() if _left else None
        _left.append(folder)
        return self._group(folder, old)

    def share(self, name: str, value: Callable[[], T]) -> T:
        group = self._group(self._folder(name))
        if group.index:
            return json.loads(group.announced())  # type: ignore[no-any-return]
        shared = value()
        group.announce(json.dumps(shared))
        return shared

    def forget(self, name: str) -> None:
        folder = self._folder(name)
        self._group(folder).forget(folder)

    def attempt(self, task: Any, work: Callable[[], T]) -> T:
        group = self._round()
        group.announce(json.dumps({"task": task}))
        mine = _outcome(work)
        messages = sorted(group.gather().items())
        errors = [f"process {at}: {message.error}" for at, message in messages if message.error]
        if errors and not self._message(mine).error:
            raise group.failed(errors)
        damage = [f"process {at}: {message.differs}" for at, message in messages if message.differs]
        if isinstance(mine, Exception):
            raise mine
        if damage:
            raise CorruptionError("; ".join(damage))
        return mine

    def lead(self, search: Callable[[], T], text: Callable[[T], Any]) -> T:
        try:
            result = search()
        except BaseException as error:
            self._round().announce(json.dumps({"error": text_of(error)}))
            raise
        self._round().announce(json.dumps({"end": text(result)}))
        return result

    def follow(self, work: Callable[[Any], T]) -> tuple[T | None, Any]:
        mine: T | Exception | None = None
        while True:
            group = self._round()
            message = json.loads(group.announced())
            if "task" in message:
                mine = _outcome(lambda: work(message["task"]))  # noqa: B023
                group.tell(self._message(mine))
                continue
            if isinstance(mine, Exception):
                if self._message(mine).error:
                    raise mine
                mine = None
            if "error" in message:
                raise OthersError(f"process 0 cannot {self._call}: {message['error']}")
            return mine, message["end"]

    def _message(self, outcome: object) -> Message:
        """Returns the message to process 0.

        An error of another process counts as damage: that process sends it.
        """
        if not isinstance(outcome, Exception):
            return Message()
        text = text_of(outcome)
        if self._is_damage(outcome) or isinstance(outcome, OthersError):
            return Message(differs=text)
        return Message(error=text)


def _outcome(work: Callable[[], T]) -> T | Exception:
    try:
        return work()
    except Exception as error:
        return error
