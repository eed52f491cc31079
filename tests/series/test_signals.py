"""Signal handlers that save to a run, at any bytecode of its other calls, again and again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import processes
import tiers

START = """
import faulthandler, random, signal, threading, time, warnings
faulthandler.dump_traceback_later(1800, exit=True)
kind, path, support = args[:3]
nightly = args[3:] == ["nightly"]
sys.path.insert(0, support)
from signals import at_each_step

options = dict(sharded=kind == "sharded", fast=path + "-fast" if kind == "fast" else None)
run = treepack.Series(path, keep=treepack.Keep(last=2), **options)
other = treepack.Series(path, keep=treepack.Keep(last=2), **options)

def save(run, step, value, **options):
    return run.save(step, {"w": np.full(2000, value)}, local=value, durable=False, **options)

def value():
    found = run.resume(verify="manifest")
    assert not run.skipped and (found[1]["w"] == found[1]["w"][0]).all()
    assert run.local == found[1]["w"][0]
    return run.local
"""

AT_EACH_STEP = (
    START
    + """
def work(step):
    save(run, step, step, background=kind == "background")
    if kind == "background":
        save(run, step, step, background=True)
    run.wait()
    assert value() in (step, -1)
    assert len(run.steps()) <= 2, run.steps()

now = 0
ways = [(series, background) for series in (run, other) for background in (False, True)]

def handler():
    for series, background in ways if nightly else ways[now % 4 :][:1]:
        save(series, now, -1, background=background)
        series.wait()

def works(step):
    global now
    now = step
    work(step)

files = ("series/series.py", "runs/checkpoints.py", "runs/steps.py", "saving/background.py",
         "saving/checkpoints.py", "_src/tasks.py", "claims/lease.py", "claims/directory.py")
fast = ("series/fast.py", *files)
files = {"sharded": files[:3], "fast": fast}.get(kind, files)
at_each_step(files, works, handler, 1 if nightly else 37)
print("steps", now)
"""
)


@pytest.mark.campaign
@pytest.mark.parametrize("kind", tiers.some(["file", "sharded", "fast", "background"]))
def test_a_handler_may_save_at_any_time(in_memory: Path, kind: str) -> None:
    support = Path(__file__).parents[1] / "support"
    assert "steps" in processes.run(
        AT_EACH_STEP, 1, kind, in_memory / "x", support, tiers.either("", "", "nightly")
    )


TICKS = (
    START
    + """
most = int(args[3])
rng = random.Random(kind)
ticks, step = 0, 0

def handle(number, frame):
    global ticks
    ticks += 1
    if rng.random() < 0.5:
        save(run if rng.random() < 0.5 else other, step, -ticks, background=True).result()
    else:
        save(run if rng.random() < 0.5 else other, step, -ticks)
    if ticks < most:
        signal.setitimer(signal.ITIMER_REAL, rng.choice((1e-6, 1e-5, 1e-4, 1e-3)) * rng.random())

signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 1e-4)
while ticks < most:
    step += 1
    save(run, step, step, background=rng.random() < 0.7)
    if rng.random() < 0.3:
        run.wait()
    if step % 50 == 0:
        value()
run.wait()
other.wait()
value()
found = run.steps()
assert found[-1] == step and len(found) == 2, (step, found)
assert kind == "fast" or found == [step - 1, step], (step, found)
print("ticks", ticks, "steps", step)
"""
)


@pytest.mark.campaign
@pytest.mark.parametrize("kind", ["file", "sharded", "fast"])
def test_many_signals_save_while_saves_go_on(in_memory: Path, kind: str) -> None:
    """Set TREEPACK_SIGNALS to the number of signals."""
    support = Path(__file__).parents[1] / "support"
    most = os.environ.get("TREEPACK_SIGNALS", "1000")
    assert "ticks" in processes.run(TICKS, 1, kind, in_memory / "x", support, most)
