"""Messages of thousands of processes, and how many of them each process reads."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from treepack._src.interop import group as groups
from treepack._src.interop import jax as _jax
from treepack._src.interop.group import Group, Message
from treepack._src.saving.directory import Written


class Store:
    """The key-value store of `jax.distributed`, as long as nobody has to wait."""

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

    def blocking_key_value_get(self, key: str, patience_ms: int) -> str:
        """Returns a value; nobody will set a missing one."""
        self.reads[self.reader] += 1
        if key not in self.values:
            raise RuntimeError("DEADLINE_EXCEEDED")
        return self.values[key]


def members(store: Store, count: int, monkeypatch: pytest.MonkeyPatch) -> list[Group]:
    """Returns the same round of all processes."""
    found = []
    for index in range(count):
        monkeypatch.setattr(_jax, "processes", lambda index=index: (index, count, store))
        monkeypatch.setattr(groups, "_rounds", iter([7]))
        found.append(Group(timeout=1e-3))
    return found


def told(store: Store, all_groups: list[Group], messages: dict[int, Message]) -> Any:
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
def test_nobody_reads_many_messages(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    sent = {at: Message(Written(f"file-{at}", at, at, 3)) for at in range(1, count)}
    found = told(store, members(store, count, monkeypatch), sent)
    assert found == sent
    assert max(store.reads.values()) <= max(16 + count // 16, 2.1 * count**0.5)


@pytest.mark.parametrize("failed", [[1], [16], [17], [32, 33, 39], [16, 20]])
def test_errors_of_all_arrive(failed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    sent = {at: Message(error="enough" if at in failed else "") for at in range(1, 40)}
    assert told(store, members(store, 40, monkeypatch), sent) == sent


@pytest.mark.parametrize("missing", [[1], [16], [17], [32, 33], [38, 39]])
def test_who_does_not_come_is_named(missing: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    sent = {at: Message() for at in range(1, 40) if at not in missing}
    found = told(store, members(store, 40, monkeypatch), sent)
    assert found.keys() == {*range(1, 40)}
    assert {at for at, message in found.items() if "has not called save" in message.error} == {
        *missing
    }
