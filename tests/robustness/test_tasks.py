"""Threads that cannot start, as without memory: no other thread waits for them."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import treepack
from treepack._src import tasks as _tasks
from treepack._src.claims import lease
from treepack._src.saving import background as _background
from waiting import HANG_S, in_time


def dies(_function: Callable[..., object], _args: tuple[Any, ...]) -> int:
    """As a thread that ends before it calls anything: lets go of what it was given."""
    return 0


@pytest.fixture
def no_thread_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("_thread.start_new_thread", dies)


def test_results_are_in_order() -> None:
    assert _tasks.run([partial(pow, number, 2) for number in range(50)], 4) == [
        number**2 for number in range(50)
    ]
    assert _tasks.run([], 4) == []


def test_threads_and_the_caller_work_at_the_same_time() -> None:
    barrier = threading.Barrier(3)
    works = [partial(barrier.wait, HANG_S)] * 3
    assert sorted(_tasks.run(works, 3)) == [0, 1, 2]


def test_an_error_ends_the_others() -> None:
    done = []

    def work(number: int) -> None:
        done.append(number)
        if number == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _tasks.run([partial(work, number) for number in range(1000)], 1)
    assert done == [0, 1, 2, 3]


@pytest.mark.usefixtures("no_thread_begins")
def test_the_caller_does_what_no_thread_has_begun() -> None:
    here = _tasks.run([threading.get_ident] * 3, 8)
    assert here == [threading.get_ident()] * 3


@pytest.mark.usefixtures("no_thread_begins")
def test_a_thread_that_never_begins_is_an_error() -> None:
    with pytest.raises(MemoryError, match="could not start"):
        _tasks.Thread(lambda: None)


def test_a_thread_can_be_joined() -> None:
    go_on = threading.Event()
    thread = _tasks.Thread(partial(go_on.wait, HANG_S))
    assert not thread.has_ended
    go_on.set()
    for _ in range(2):
        thread.join()
        assert thread.has_ended


@pytest.mark.parametrize("sharded", [False, True])
def test_a_save_in_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sharded: bool
) -> None:
    path = tmp_path / "model"
    with monkeypatch.context() as patch:
        patch.setattr("_thread.start_new_thread", dies)
        with pytest.raises(MemoryError):
            treepack.save(path, {"w": jnp.ones(3)}, background=True, sharded=sharded)
    assert not path.exists()
    assert not _background._under_way
    treepack.save(path, {"w": jnp.ones(3)}, background=True, sharded=sharded).result(HANG_S)


@pytest.mark.usefixtures("no_thread_begins")
def test_a_checkpoint_of_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RENEW_S", 0.0)
    tree = {"w": jnp.arange(1000.0), "host": np.arange(10)}
    treepack.save(tmp_path, tree, sharded=True)
    assert len(list(tmp_path.iterdir())) == 2
    found = treepack.load(tmp_path)
    np.testing.assert_array_equal(found["w"], tree["w"])


@pytest.mark.usefixtures("no_thread_begins")
def test_a_load_that_casts(tmp_path: Path) -> None:
    treepack.save(tmp_path / "model", {"w": np.ones(3_000_000, np.float32)})
    found = treepack.load(tmp_path / "model", {"w": np.zeros(3_000_000, np.float16)}, cast=True)
    assert found["w"].dtype == np.float16
    assert found["w"].sum(dtype=np.float64) == 3_000_000


def open_files() -> int:
    gc.collect()  # what other tests have left
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.campaign
def test_files_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = {"w": np.arange(3_000_000.0)}  # more than one part
    url = "memory://tasks/model"
    treepack.save(url, tree)
    monkeypatch.setattr("_thread.start_new_thread", dies)
    np.testing.assert_array_equal(treepack.load(url)["w"], tree["w"])
    before = open_files()
    with pytest.raises(MemoryError):
        treepack.save(url, {"w": 1})
    assert open_files() == before
    np.testing.assert_array_equal(treepack.load(url)["w"], tree["w"])


def test_two_saves_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both find that none is under way, and only one begins."""
    path = tmp_path / "model"
    have_looked = threading.Barrier(2)
    wait_for_others = _background.OneByOne.wait

    def looking(saves: Any, until: Any = None) -> None:
        wait_for_others(saves, until)
        if until is None:  # the call that precedes the encoding
            have_looked.wait(HANG_S)

    monkeypatch.setattr(_background.OneByOne, "wait", looking)
    reached: list[int] = []
    waits = threading.Event()
    go_on = threading.Event()

    def tell(number: int, *_: int) -> None:
        if number not in reached:
            reached.append(number)
        assert go_on.wait(HANG_S)

    wait = _background.LoggedFuture.wait

    def waiting(saving: Any) -> None:
        waits.set()
        wait(saving)

    monkeypatch.setattr(_background.LoggedFuture, "wait", waiting)
    savings = []

    def save(number: int) -> None:
        tree = np.full(1 << 20, number)
        savings.append(treepack.save(path, tree, background=True, progress=partial(tell, number)))

    threads = [threading.Thread(target=save, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    assert in_time(lambda: bool(reached) and (waits.is_set() or len(reached) == 2))
    assert len(reached) == 1
    go_on.set()
    for thread in threads:
        thread.join()
    for saving in savings:
        saving.result(HANG_S)
    assert len(reached) == 2
    assert treepack.load(path)[0] == reached[1]
