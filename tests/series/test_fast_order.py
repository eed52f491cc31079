"""Which of the checkpoints in two directories count, whatever others, clocks and damage do."""

from __future__ import annotations

import shutil
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import treepack
from fast_runs import Gate, check, damage, forms, run_at, save, steps_in
from treepack import InvalidCheckpointError, Keep, Series, TreepackError
from treepack._src.series import fast as fast_module
from treepack._src.storage import write
from treepack.errors import BusyError


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made = Gate(monkeypatch)
    yield made
    made.open()


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


@forms
@pytest.mark.parametrize("removed", ["all", "one"])
def test_steps_before_a_later_one_are_refused(
    tmp_path: Path, gate: Gate, sharded: bool, removed: str
) -> None:
    run = run_at(tmp_path, sharded=sharded)
    save(run, 5, 7)
    paths = [tmp_path / "fast" / "step_5"]
    for it in (run, run_at(tmp_path)):
        with pytest.raises(
            InvalidCheckpointError,
            match=f"fast: resume would load step 7, .* remove {paths[0]} and all",
        ):
            save(it, 4)
    gate.open()
    run.wait()
    paths = [tmp_path / "fast" / "step_7", tmp_path / "run" / "step_5", tmp_path / "run" / "step_7"]
    for it in (run, run_at(tmp_path)):
        with pytest.raises(
            InvalidCheckpointError, match=f"remove {paths[0]} and {paths[1]} and all"
        ):
            save(it, 4)
    if removed == "all":
        shutil.rmtree(tmp_path / "fast")
    else:
        remove(paths[0])
    for it in (run, run_at(tmp_path)):
        with pytest.raises(
            InvalidCheckpointError,
            match=f"run: resume would load step 7, .* remove {paths[1]} and all",
        ):
            save(it, 4)
    remove(paths[1])
    remove(paths[2])
    save(run, 4)
    run.wait()
    check(run, 4)
    assert Path(run.path(4)).parent == tmp_path / "run"


def test_a_save_that_another_job_has_gone_past_is_reported(tmp_path: Path, gate: Gate) -> None:
    gate.open()
    run = run_at(tmp_path)
    save(run, 1)
    run.wait()
    save(Series(tmp_path / "run"), 5)
    save(run, 2)
    with pytest.raises(InvalidCheckpointError, match=r"step 2 .*run: .*step 5"):
        run.wait()
    save(run, 6)
    run.wait()
    check(run, 6)


@pytest.mark.parametrize("is_ahead", [False, True])
def test_of_one_step_the_later_save_counts_whatever_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_ahead: bool
) -> None:
    now = time.time()
    run = run_at(tmp_path)
    for hours in (5, 3, 1):
        monkeypatch.setattr(time, "time", lambda: now + 3600 * hours)  # noqa: B023
        for it in (run, run_at(tmp_path)):
            it.save(1, {"hours": hours, "is_new": it is not run})
            expected = (1, {"hours": hours, "is_new": it is not run})
            assert run_at(tmp_path).resume() == expected
            if is_ahead:
                it.wait()
                assert Series(tmp_path / "run").resume() == expected
                shutil.rmtree(tmp_path / "fast")
                assert run_at(tmp_path).resume() == expected
    run.wait()
    assert Series(tmp_path / "run").resume() == expected
    monkeypatch.undo()


def test_a_save_counts_after_one_whose_fast_copy_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_at(tmp_path)
    save(run, 1)
    run.wait()
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 3600)
    damage(str(tmp_path / "fast" / "step_1"))
    with pytest.warns(UserWarning, match="is taken from"):
        check(run, 1)
    run.save(1, "second")
    assert run_at(tmp_path).resume() == (1, "second")
    run.wait()
    assert Series(tmp_path / "run").resume() == (1, "second")


@forms
def test_the_durable_directory_may_be_removed_during_a_drain(
    tmp_path: Path, gate: Gate, sharded: bool
) -> None:
    gate.open()
    run = run_at(tmp_path, sharded=sharded)
    save(run, 1)
    run.wait()
    again = run_at(tmp_path, sharded=sharded)
    check(again, 1)
    shutil.rmtree(tmp_path / "run")
    save(again, 2)
    again.wait()
    assert steps_in(tmp_path / "run") == [1, 2]
    check(run_at(tmp_path), 2)
    shutil.rmtree(tmp_path / "run")
    save(run_at(tmp_path / "other"), 1)
    (tmp_path / "other" / "run").rename(tmp_path / "run")  # of another run
    save(run, 3)
    with pytest.raises(TreepackError, match="another run"):
        run.wait()


@forms
def test_damaged_checkpoints_are_not_copied(tmp_path: Path, gate: Gate, sharded: bool) -> None:
    run = run_at(tmp_path, keep=Keep(last=2), sharded=sharded)
    save(run, 1)
    gate.open()
    run.wait()
    with gate.closed():
        save(run, 2)
        gate.has_come.wait()
        damage(str(tmp_path / "fast" / "step_2"))
    for _ in range(2):
        with pytest.raises(treepack.CorruptionError, match="step_2"):
            run.wait()
    assert steps_in(tmp_path / "run") == [1]
    with pytest.warns(UserWarning, match="step 2 of .* is skipped"):
        check(run_at(tmp_path), 1)
    save(run, 3)
    run.wait()
    assert steps_in(tmp_path / "run") == [1, 3]
    assert steps_in(tmp_path / "fast") == [3]


def test_a_copy_that_lost_its_lease_gets_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the process stood still, and another job took it for dead."""

    def pieces(content: Any, start: int) -> Any:
        (tmp_path / "run" / "lease.treepack").unlink()
        return original(content, start)

    original = write.pieces
    monkeypatch.setattr(write, "pieces", pieces)
    run = run_at(tmp_path)
    save(run, 1)
    with pytest.raises(BusyError, match=r"the lease of this process on .*run is gone"):
        run.wait()
    assert steps_in(tmp_path / "run") == []
    monkeypatch.undo()
    run.wait()  # which copies it again
    assert steps_in(tmp_path / "run") == [1]


def test_two_series_of_a_program_wait_for_each_other(tmp_path: Path, gate: Gate) -> None:
    """Of which one saves to the directory, and the other copies to it."""
    run, other = run_at(tmp_path), Series(tmp_path / "run", prefix="ema_")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save(run, 1)
        gate.has_come.wait()
        gate.open()
        for step in range(1, 8):
            save(run, step)
            save(other, step, background=step % 2 == 0)
            saving = threading.Thread(target=lambda: save(Series(tmp_path / "run", prefix="x_"), 1))
            saving.start()
            save(run, step)
            saving.join()
        run.wait()
        other.wait()
    check(other, 7)
    check(run, 7)


def test_a_copy_does_not_wait_for_a_save_that_a_handler_has_interrupted(
    tmp_path: Path, gate: Gate
) -> None:
    """If the handler waits for the copy."""
    run, other = run_at(tmp_path), Series(tmp_path / "run", prefix="ema_")
    save(run, 1)
    handled = []

    def handle(*_: Any) -> None:
        gate.open()
        with pytest.raises(TreepackError, match=r"process \d+ "):
            run.wait()
        handled.append(True)

    def interrupt(*_: Any) -> None:
        if not handled:
            signal.raise_signal(signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, handle)
    try:
        save(other, 1, progress=interrupt)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert handled == [True]
    run.wait()
    check(run, 1)
    assert steps_in(tmp_path / "run") == [1]


def test_reading_copies_nothing(tmp_path: Path, gate: Gate) -> None:
    gate.open()
    save(Series(tmp_path / "fast"), 2)
    (tmp_path / "run").mkdir()
    for name in ("run", "fast"):
        (tmp_path / name / fast_module.FILE).write_text("0123")
    run = run_at(tmp_path)
    check(run, 2)
    assert not run._fast._copies  # type: ignore[union-attr]
    assert steps_in(tmp_path / "run") == []
    run.wait()
    assert steps_in(tmp_path / "run") == [2]


def test_a_save_is_later_than_those_of_its_step_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    gate.open()
    run = run_at(tmp_path)
    for it in (run, run_at(tmp_path), run_at(tmp_path)):
        it.save(1, {"is_new": it is not run})
        it.wait()
    with gate.closed():
        run.save(1, {"is_new": False})
        assert run_at(tmp_path).resume() == (1, {"is_new": False})
    run.wait()
    assert Series(tmp_path / "run").resume() == (1, {"is_new": False})
