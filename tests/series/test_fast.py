"""A run whose saves go to a fast directory first, from which a thread copies them."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tiers
import treepack
from fast_runs import Gate, check, damage, forms, run_at, save, state, steps_in
from treepack import Keep, Series, TreepackError
from treepack._src.series import fast as fast_module
from treepack._src.storage.address import Address


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made = Gate(monkeypatch)
    yield made
    made.open()


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Sets whether no durable place can be written."""

    def set_full(is_full: bool) -> None:
        def fail(_: Any, path: Any, *__: Any) -> int:
            raise OSError(28, "No space left on device", str(path))

        monkeypatch.undo()
        if is_full:
            monkeypatch.setattr(Address, "copy_to", fail)

    return set_full


@forms
def test_saves_come_to_the_durable_directory(tmp_path: Path, sharded: bool) -> None:
    run = run_at(tmp_path, keep=Keep(last=2), sharded=sharded)
    assert run.resume(state(0)) is None
    assert not (tmp_path / "fast").exists()
    assert not (tmp_path / "run").exists()
    for step in range(5):
        save(run, step, metadata={"step": step}, background=step % 2 == 0)
        check(run, step)
        assert run.metadata(step) == {"step": step}
        run.wait()
        assert Path(run.path(step)).parent == tmp_path / "run"
    assert run.steps() == [3, 4]
    assert steps_in(tmp_path / "run") == [3, 4]
    assert steps_in(tmp_path / "fast") == [4]
    names = [sorted(it.name for it in (tmp_path / it).iterdir()) for it in ("run", "fast")]
    assert names == [["fast.treepack", "step_3", "step_4"], ["fast.treepack", "step_4"]]
    for folder in (tmp_path / "run", tmp_path / "fast"):
        assert treepack.verify(folder / "step_4").ok
        check(Series(folder), 4)  # each is an ordinary directory
    shutil.rmtree(tmp_path / "fast")  # the machine was started anew
    for again in (run, run_at(tmp_path, sharded=sharded)):
        check(again, 4)
    save(run, 5)
    run_at(tmp_path, sharded=sharded).wait()
    shutil.rmtree(tmp_path / "fast")
    check(run_at(tmp_path), 5)


@forms
def test_saves_do_not_wait_for_what_only_last_keeps(
    tmp_path: Path, gate: Gate, sharded: bool
) -> None:
    run = run_at(tmp_path, keep=Keep(last=3), sharded=sharded)
    for step in range(8):
        save(run, step, background=step % 2 == 1)
        gate.has_come.wait()
        check(run, step)
        assert run.path(step) == str(tmp_path / "fast" / f"step_{step}")
        assert len(run.steps()) <= 3
    gate.open()
    run.wait()
    assert gate.copied == [0, 7]
    assert run.steps() == [0, 7]
    assert steps_in(tmp_path / "fast") == [7]


@pytest.mark.parametrize("keep", [None, Keep(every=2), Keep(best=("loss", 9, "min"))])
def test_saves_wait_for_what_a_rule_keeps(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch, keep: Keep | None
) -> None:
    run, waits = run_at(tmp_path, keep=keep), threading.Event()
    line = run._fast._line  # type: ignore[union-attr]
    original = line.wait

    def wait(until: Any = None) -> None:
        if until is None:
            waits.set()
        original(until)

    monkeypatch.setattr(line, "wait", wait)
    save(run, 0, 2, 4)
    gate.has_come.wait()
    assert not waits.is_set()
    saving = run.save(6, state(6), metrics={"loss": 0.01}, background=True)
    waits.wait()
    assert not saving.done()
    assert run.steps() == [0, 2, 4]
    gate.open()
    saving.result()
    save(run, 8)
    run.wait()
    assert steps_in(tmp_path / "run") == [0, 2, 4, 6, 8]
    assert steps_in(tmp_path / "fast") == [8]


def test_pins_are_kept_by_both_directories(tmp_path: Path, gate: Gate) -> None:
    run = run_at(tmp_path, keep=Keep())
    save(run, 1, 2)
    run.keep(2)
    save(run, 3)
    gate.open()
    save(run, 4, 5)
    run.wait()
    assert steps_in(tmp_path / "run") == [2, 5]
    assert (tmp_path / "run" / "step_2.keep").exists()
    with pytest.raises(TreepackError, match="step 3"):
        run.keep(3)


def test_errors_of_copies_are_warnings_of_later_saves(
    tmp_path: Path, full: Callable[[bool], None]
) -> None:
    run = run_at(tmp_path, keep=Keep(last=2))
    full(True)
    save(run, 1)
    with pytest.raises(OSError, match=r"No space left.*run/step_1"):
        run.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is known
        save(run, 2)
    run._fast._line.wait()  # type: ignore[union-attr]
    with pytest.warns(
        UserWarning, match=r"fast could not be copied to .*run: OSError.*later saves try again"
    ):
        save(run, 3)
    check(run, 3)
    for step in range(4, 9):
        run._fast._line.wait()  # type: ignore[union-attr]
        with pytest.warns(UserWarning, match="could not be copied"):
            save(run, step)
        assert len(steps_in(tmp_path / "fast")) <= 3
        check(run, step)
    full(False)
    run.wait()
    assert steps_in(tmp_path / "run")[-1] == 8
    check(Series(tmp_path / "run"), 8)


def test_without_a_rule_to_drop_any_a_full_directory_is_an_error(
    tmp_path: Path, full: Callable[[bool], None]
) -> None:
    run = run_at(tmp_path)
    full(True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save(run, 1, 2, 3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        save(run, 4)
    assert "fast is full: removed steps 1, 2" in "".join(str(it.message) for it in caught)
    full(False)
    run.wait()
    assert run.steps() == [3, 4]


def test_the_size_of_the_fast_directory_counts(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is space for one checkpoint, each save waits for the copy of the last."""
    run = run_at(tmp_path, keep=Keep(last=5))
    gate.open()

    def usage(path: str) -> Any:
        free = 0 if any(Path(path).glob("step_*")) else 1 << 30
        return types.SimpleNamespace(free=free, total=1 << 30)

    monkeypatch.setattr(fast_module.shutil, "disk_usage", usage)
    for step in range(4):
        save(run, step, background=True)
        saving = run._last
        assert saving is not None
        saving.result()
        assert steps_in(tmp_path / "fast") == [step]
        assert gate.copied[: step + 1] in ([*range(step)], [*range(step + 1)])
    run.wait()
    assert run.steps() == [0, 1, 2, 3]


@pytest.mark.parametrize("refuses", [False, True])
def test_a_fast_directory_of_unknown_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: bool
) -> None:
    def usage(path: str) -> Any:
        if refuses:
            raise PermissionError(1, "Operation not permitted", path)
        return types.SimpleNamespace(free=0, total=0)

    monkeypatch.setattr(fast_module.shutil, "disk_usage", usage)
    run = run_at(tmp_path)
    save(run, 1, 2)
    run.wait()
    assert run.steps() == [1, 2]


@forms
def test_resume_takes_the_last_whole_one_of_both(tmp_path: Path, gate: Gate, sharded: bool) -> None:
    run = run_at(tmp_path, sharded=sharded)
    save(run, 1)
    gate.open()
    run.wait()
    damage(str(tmp_path / "fast" / "step_1"))
    with pytest.warns(UserWarning, match="step 1 is taken from .*run/step_1: .*fast"):
        check(run, 1)
    assert run.skipped == []
    damage(str(tmp_path / "run" / "step_1"))
    with pytest.raises(treepack.CorruptionError, match=r"whole: step 1: .*fast.*; step 1: .*run"):
        run.resume()
    save(run, 2)
    run.wait()
    save(Series(tmp_path / "run", sharded=sharded), 3)  # on another machine
    check(run, 3)
    save(Series(tmp_path / "fast", sharded=sharded), 4)
    damage(str(tmp_path / "fast" / "step_4"))
    with pytest.warns(UserWarning, match="step 4 of .* is skipped"):
        check(run, 3)
    assert [step for step, _ in run.skipped] == [4]


def test_of_one_step_the_later_save_counts(tmp_path: Path) -> None:
    run = run_at(tmp_path)
    save(run, 1)
    run.wait()
    for other, where in ((Series(tmp_path / "run"), "run"), (Series(tmp_path / "fast"), "fast")):
        other.save(1, {"from": where})
        found = run_at(tmp_path).resume()
        assert found == (1, {"from": where})
    again = run_at(tmp_path)
    again.wait()
    assert again.path(1) == str(tmp_path / "run" / "step_1")
    assert treepack.load(again.path(1)) == {"from": "fast"}


def test_what_another_machine_has_gone_past_is_not_copied(tmp_path: Path, gate: Gate) -> None:
    save(run_at(tmp_path), 1, 3)
    gate.open()
    run_at(tmp_path).wait()
    save(Series(tmp_path / "fast"), 4)  # it is killed before it copies
    save(Series(tmp_path / "run"), 5)
    run = run_at(tmp_path)
    check(run, 5)
    save(run, 6)
    run.wait()
    assert steps_in(tmp_path / "run") == [1, 3, 5, 6]
    assert steps_in(tmp_path / "fast") == [6]


def test_the_fast_directory_of_another_run_is_refused(tmp_path: Path) -> None:
    run = run_at(tmp_path)
    save(run, 1)
    run.wait()
    others = [Series(tmp_path / "other", fast=tmp_path / "fast")]
    shutil.copytree(tmp_path / "run", tmp_path / "moved")
    shutil.rmtree(tmp_path / "run")
    others.append(run_at(tmp_path))
    save(Series(tmp_path / "plain"), 9)
    others.append(Series(tmp_path / "other", fast=tmp_path / "plain"))
    for run in others:
        with pytest.raises(TreepackError, match="has checkpoints of another run"):
            run.resume()
        with pytest.raises(TreepackError, match="has checkpoints of another run"):
            save(run, 2)
        with pytest.raises(TreepackError, match="has checkpoints of another run"):
            run.wait()
    assert not (tmp_path / "other").exists()
    check(Series(tmp_path / "moved", fast=tmp_path / "fast"), 1)
    run = Series(tmp_path / "moved", fast=tmp_path / "fast", prefix="ema_")
    save(run, 2)  # another series of this run
    run.wait()
    check(run, 2)


def test_arguments_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    for fast in (tmp_path, tmp_path / "link"):
        with pytest.raises(ValueError, match="another directory than path"):
            Series(tmp_path, fast=fast)
    with pytest.raises(ValueError, match="a local directory, not the URL"):
        Series(tmp_path, fast="s3://bucket/run")
    run = run_at(tmp_path)
    monkeypatch.setattr("treepack._src.interop.jax.processes", lambda: (0, 2, [0, 1]))
    for call in (lambda: run.save(1, {}), run.resume):
        with pytest.raises(TreepackError, match="for one process, and there are 2"):
            call()
    monkeypatch.undo()
    (tmp_path / "fast").write_text("in the way")
    with pytest.raises(OSError, match="fast"):
        save(run, 1)
    assert not (tmp_path / "run" / "step_1").exists()


def test_preemption_waits_for_the_copy(tmp_path: Path, gate: Gate) -> None:
    run = run_at(tmp_path)

    def train() -> None:
        with run.preemption():
            signal.raise_signal(signal.SIGTERM)
            gate.open()
            save(run, 1, background=True)

    with pytest.raises(SystemExit):
        train()
    assert steps_in(tmp_path / "run") == [1]


def python(program: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "ignore", "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


ENDS = """
import os, signal, sys
import numpy as np
import treepack
run = treepack.Series(sys.argv[1] + "/run", fast=sys.argv[1] + "/fast")
run.save(1, {"w": np.zeros(1 << 20)}, local=1)
run.wait()
if not os.fork():
    assert run.resume()[0] == run.local == 1
    run.save(2, {"w": np.zeros(1 << 20)})
    run.wait()
    sys.exit()
assert os.wait()[1] == 0
run.save(3, {"w": np.zeros(1 << 20)}, background=True)
"""


@pytest.mark.campaign
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_the_program_ends_after_the_copy_and_may_fork(tmp_path: Path) -> None:
    job = python(ENDS, tmp_path)
    job.communicate()
    assert job.returncode == 0
    assert steps_in(tmp_path / "run") == [1, 2, 3]
    assert steps_in(tmp_path / "fast") == [3]


KILLED = """
import os, sys, threading
import numpy as np
import treepack
from pathlib import Path

folder, turns, sharded = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "True"
files = ("series/fast.py", "runs/checkpoints.py", "runs/steps.py", "claims/directory.py",
         "saving/checkpoints.py", "storage/write.py", "storage/disk.py")

def state(step):
    return {"w": np.full(3000, step, np.float32), "step": step}

def series(**options):
    keep = treepack.Keep(last=2, every=50)
    return treepack.Series(folder / "run", sharded=sharded, keep=keep, **options)

def job(turn, sender):
    lines = 0
    def trace(frame, event, _):
        nonlocal lines
        if not frame.f_code.co_filename.endswith(files):
            return None
        if event == "line":
            lines += 1
            if lines == turn:
                os.kill(os.getpid(), 9)
        return trace
    from treepack._src.series.fast import Fast
    copy_all = Fast._copy_all
    def traced(*args):
        sys.settrace(trace)
        copy_all(*args)
    Fast._copy_all = traced
    sys.settrace(trace)
    run = series(fast=folder / "fast")
    found = run.resume()
    step = 1 + (found[0] if found else 0)
    for step in range(step, step + 4):
        run.save(step, state(step), local=step, durable=False)
        os.write(sender, b"%d\\n" % step)
    run.wait()
    os.write(sender, b"drained\\n")
    os._exit(0)

turn = kills = ended = 0
while ended < 3:
    turn += 1 + turn * 3 // turns
    ready, sender = os.pipe()
    child = os.fork()
    if not child:
        try:
            job(turn, sender)
        finally:
            os._exit(1)
    os.close(sender)
    with open(ready) as file:
        lines = file.read().split()
    _, status = os.waitpid(child, 0)
    assert status in (0, 9), status
    kills += status == 9
    ended += status == 0
    last = int(([0] + [it for it in lines if it != "drained"])[-1])
    run = series(fast=folder / "fast")
    found = run.resume()
    assert all("has not ended" in str(error) for _, error in run.skipped), run.skipped
    if found is None:
        assert last == 0
        continue
    step, tree = found
    assert step >= last, (turn, step, last)
    assert step == tree["step"] == run.local and (tree["w"] == step).all()
    assert step == run.steps()[-1]
    # A kill may leave a directory that was being removed, which is no checkpoint any more.
    names = [*(folder / "fast").glob("step_*")]
    assert sum(it.is_file() or (it / "manifest.treepack").exists() for it in names) <= 3, names
    run.wait()
    assert len([*(folder / "fast").glob("step_*")]) <= 3
    durable = series()
    assert durable.resume()[0] == step and run.path(step) == durable.path(step)
    assert all(treepack.verify(durable.path(it)).ok for it in durable.steps())
    assert len(durable.steps()) >= min(step, 2)
print("kills", kills)
"""


@pytest.mark.campaign
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@forms
def test_a_program_that_is_killed_at_any_line_leaves_the_last_one(
    in_memory: Path, sharded: bool
) -> None:
    """Set TREEPACK_KILLS for about as many kills."""
    turns = os.environ.get("TREEPACK_KILLS", "60")
    job = python(KILLED, in_memory, turns, sharded)
    output = job.communicate()[0]
    assert job.returncode == 0
    assert int(output.split()[-1]) > 20, output


RULES = [None, Keep(last=1), Keep(last=2, every=3), Keep(best=("loss", 1, "min"), every=5)]


@tiers.parametrize("keep", RULES)
def test_copies_that_lag_lose_nothing_that_a_rule_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: Keep | None
) -> None:
    """Whatever the drain has copied until a save."""
    turns = itertools.cycle([True, False, False, True, False, False, False])
    original = fast_module.Fast._begin

    def begin(fast: Any) -> None:
        if next(turns):
            original(fast)

    monkeypatch.setattr(fast_module.Fast, "_begin", begin)
    run = run_at(tmp_path, keep=keep)
    losses = [5, 9, 8, 4, 3, 7, 8, 2, 6, 6, 1, 9, 4, 5, 3, 2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step, loss in enumerate(losses):
            run.save(step, state(step), metrics={"loss": loss})
            assert len(steps_in(tmp_path / "fast")) <= 3
    monkeypatch.undo()
    run.wait()
    found = steps_in(tmp_path / "run")
    assert found[-1] == len(losses) - 1
    every = 1 if keep is None else keep.every
    if every is not None:
        assert {*range(0, len(losses), every)} <= {*found}
    if keep is not None and keep.best is not None:
        assert losses.index(min(losses)) in found
