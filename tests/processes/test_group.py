"""Messages of thousands of processes, and how many of them each process reads."""

from __future__ import annotations

import itertools
import signal
import threading
from collections import Counter
from typing import Any

import pytest

from treepack import TreepackError
from treepack._src.claims.directory import Written
from treepack._src.interop import jax as _jax
from treepack._src.processes import group as groups
from treepack._src.processes.group import Group, Message
from waiting import HANG_S


class Store:
    """The key-value store of `jax.distributed`, for processes that need not wait."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.reads: Counter[int] = Counter()
        self.reader = 0

    def key_value_set(self, key: str, value: str) -> None:
        """Sets a value, once."""
        assert key not in self.values
        self.values[key] = value

    def key_value_delete(self, key: str) -> None:
        """Deletes a folder."""
        for name in [it for it in self.values if it.startswith(key)]:
            del self.values[name]

    def blocking_key_value_get(self, key: str, patience_ms: int) -> str:
        """Returns a value; a missing one is never set."""
        self.reads[self.reader] += 1
        if key not in self.values:
            raise RuntimeError("DEADLINE_EXCEEDED")
        return self.values[key]


def members(store: Store, count: int, monkeypatch: pytest.MonkeyPatch) -> list[Group]:
    """Returns the same round of all processes."""
    found = []
    for index in range(count):
        monkeypatch.setattr(_jax, "processes", lambda index=index: (index, count, store))
        found.append(Group(timeout=1e-3, folder="7"))
    return found


def exchanged(store: Store, all_groups: list[Group], messages: dict[int, Message]) -> Any:
    """Lets all processes tell, the first of each group last; returns what process 0 gathers."""
    size = groups.group_size(len(all_groups))
    for is_first in (False, True):
        for index, message in messages.items():
            if (index % size == 0) == is_first:
                store.reader = index
                all_groups[index].tell(message, waits=not message.error)
    store.reader = 0
    return all_groups[0].gather()


@pytest.mark.parametrize("count", [2, 16, 17, 40, 2000])
def test_no_process_reads_many_messages(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    sent = {at: Message(Written(f"file-{at}", at, at, 3, [], [])) for at in range(1, count)}
    found = exchanged(store, members(store, count, monkeypatch), sent)
    assert found == sent
    assert max(store.reads.values()) <= max(16 + count // 16, 2.1 * count**0.5)


@pytest.mark.parametrize("failed", [[1], [16], [17], [32, 33, 39], [16, 20]])
def test_errors_of_all_arrive(failed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    sent = {at: Message(error="enough" if at in failed else "") for at in range(1, 40)}
    assert exchanged(store, members(store, 40, monkeypatch), sent) == sent


@pytest.mark.parametrize("missing", [[1], [16], [17], [32, 33], [38, 39]])
def test_who_does_not_come_is_named(missing: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    sent = {at: Message() for at in range(1, 40) if at not in missing}
    found = exchanged(store, members(store, 40, monkeypatch), sent)
    assert found.keys() == {*range(1, 40)}
    assert {at for at, message in found.items() if "did not call save" in message.error} == {
        *missing
    }


@pytest.mark.parametrize("is_at_once", [False, True])
@pytest.mark.parametrize(
    ("of_first", "of_second", "common"),
    [  # steps of process 0, of which all but the last three have ended, and of the other one
        ([1, 2, 3], [1, 2, 3], [0, 1, 2]),
        ([1, 2, 3], [2, 3], [1, 2]),
        ([1, 2, 3], [3], [2]),
        ([2, 3], [1, 2, 3], ["missed", 0, 1]),
        ([1, 3, 4], [2, 4], ["missed", 2]),
        ([1, 2, 2, 3], [2, 2, 3], [1, 2, 3]),
        ([None, None], [None, None], [0, 1]),
        ([1, None, 3], [1, 2, 3], [0, 1, 2]),
        ([*range(300)], [0, 299], [0, 299]),
        ([7, 8, 9, 2, 3, 4], [2, 3, 4], [3, 4, 5]),  # both have gone back
    ],
)
def test_processes_that_miss_saves_meet_at_the_next_step(
    of_first: list[int | None],
    of_second: list[int | None],
    common: list[int | str],
    is_at_once: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Store()
    monkeypatch.setattr(groups, "_rounds", itertools.count())
    monkeypatch.setattr(groups, "_others_rounds", groups._Rounds())
    monkeypatch.setattr(_jax, "processes", lambda: (0, 2, store))
    for number, step in enumerate(of_first):
        first = Group(timeout=1e-6, step=step)
        first.announce(str(number))
        first.gather()
        if number < len(of_first) - 3:
            first.end(ValueError())

    def outcome(group: Group) -> int | str:
        try:
            return int(group.announced())
        except TreepackError as error:
            return "missed" if "missed" in str(error) else str(error)

    monkeypatch.setattr(_jax, "processes", lambda: (1, 2, store))
    if is_at_once:
        second = [Group(timeout=1e-6, step=step) for step in of_second]
        found = [outcome(group) for group in reversed(second)][::-1]
    else:
        found = [outcome(Group(timeout=1e-6, step=step)) for step in of_second]
    assert found == common
    for number in {*range(len(of_first))} - {*common}:
        message = store.values.get(f"treepack/{number}/done/1", "it missed step")
        assert "it missed step" in message


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals of threads")
def test_a_signal_handler_may_wait_for_a_save_that_takes_a_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the main thread takes one."""
    store = Store()
    rounds = groups._Rounds()
    monkeypatch.setattr(groups, "_rounds", itertools.count())
    monkeypatch.setattr(groups, "_others_rounds", rounds)
    monkeypatch.setattr(_jax, "processes", lambda: (0, 2, store))
    Group(timeout=1e-6, step=1).announce("1")
    monkeypatch.setattr(_jax, "processes", lambda: (1, 2, store))
    original, main = Group.meet, threading.main_thread().ident
    has_ended = []

    def handle(*_: Any) -> None:
        save = threading.Thread(target=rounds.take, args=(7,), daemon=True)
        save.start()
        save.join(HANG_S / 10)
        has_ended.append(not save.is_alive())

    def meet(group: Group, number: int, text: str) -> None:
        signal.pthread_kill(main or 0, signal.SIGUSR1)
        original(group, number, text)

    monkeypatch.setattr(Group, "meet", meet)
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        assert Group(timeout=1e-6, step=1).announced() == "1"
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert has_ended == [True]
    assert rounds.next == 1


def test_a_save_whose_round_another_thread_receives_keeps_its_announcement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, rounds = Store(), groups._Rounds()
    monkeypatch.setattr(groups, "_rounds", itertools.count())
    monkeypatch.setattr(groups, "_others_rounds", rounds)
    monkeypatch.setattr(_jax, "processes", lambda: (0, 2, store))
    for text in ("first", "second"):
        Group().announce(text)
    monkeypatch.setattr(_jax, "processes", lambda: (1, 2, store))
    first, second = Group(), Group()
    read = store.blocking_key_value_get

    def receive(key: str, patience_ms: int) -> str:
        """Returns the first announcement after other threads have received both."""
        monkeypatch.setattr(store, "blocking_key_value_get", read)
        assert first.announced() == "first"
        rounds.announced(1, None, "second", has_ended=False)
        return read(key, patience_ms)

    monkeypatch.setattr(store, "blocking_key_value_get", receive)
    assert second.announced() == "second"


def test_an_error_without_a_text_is_its_name() -> None:
    assert groups.text_of(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert groups.text_of(ValueError("a: b")) == "ValueError: a: b"
