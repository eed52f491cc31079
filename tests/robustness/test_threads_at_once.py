"""Threads that save, load, open, register and change trees at once."""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treepack

ROUNDS = 20


@pytest.fixture(autouse=True)
def often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_nothing_is_lost_or_mixed_up(tmp_path: Path) -> None:
    shared: dict[str, Any] = {f"leaf{i}": np.full(7, i) for i in range(50)}
    path = tmp_path / "shared"
    treepack.save(path, shared, durable=False)
    errors: list[BaseException] = []
    start = threading.Barrier(8)

    def save(number: int) -> None:
        treepack.save(path, shared, durable=False)

    def load(number: int) -> None:
        for name, leaf in treepack.load(path).items():
            if name.startswith("leaf"):
                np.testing.assert_array_equal(leaf, int(name[4:]))

    def look(number: int) -> None:
        with treepack.open(path) as file:
            np.testing.assert_array_equal(file["leaf3"], 3)
            assert treepack.verify(path).ok

    def register(number: int) -> None:
        name = f"Kind{threading.get_ident()}_{number}"
        kind = dataclasses.make_dataclass(name, ["x"])
        treepack.register_dataclass(kind, serialized_name=name)
        found = treepack.loads(treepack.dumps({"node": kind(np.arange(number))}))
        assert type(found["node"]) is kind
        assert len(found["node"].x) == number

    def mutate(number: int) -> None:
        shared[f"other{number}"] = np.ones(3)
        treepack.dumps({**shared})
        shared.pop(f"other{number}", None)

    def run(work: Callable[[int], None]) -> None:
        try:
            start.wait()
            for number in range(ROUNDS):
                work(number)
        except BaseException as error:
            errors.append(error)

    works = [save, save, load, load, look, register, register, mutate]
    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
