"""A run of several processes: one step for all, local items, saves that some have missed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

import processes
import treepack

STATE = """
import json, warnings
mesh = Mesh(np.array(jax.devices()), ("x",))
rows = NamedSharding(mesh, P("x"))

def state(step):
    w = np.full((8, 100), step, np.float32)
    put = jax.make_array_from_callback(w.shape, rows, lambda index: w[index])
    return {"w": put, "host": np.arange(3) + step, "step": step}

template = jax.tree.map(lambda leaf: leaf, state(0))

def check(found, step):
    assert found is not None and found[0] == step, found
    assert found[1]["step"] == step and found[1]["host"].tolist() == [step, step + 1, step + 2]
    for shard in found[1]["w"].addressable_shards:
        assert (np.asarray(shard.data) == step).all()
"""

SAVES = (
    STATE
    + """
run = treepack.Series(args[0], keep=treepack.Keep(last=2), timeout=60)
assert run.resume(template) is None
for step in range(5):
    metrics = {"loss": step + index}  # those of process 0 count
    local = {"seen": step, "of": index} if index < count - 1 else None
    run.save(step, state(step), metrics=metrics, local=local, metadata="m",
             background=step % 2 == 0)
run.wait()
check(run.resume(template), 4)
assert run.local == local if index < count - 1 else run.local is None
check(run.resume(template, verify="manifest", mmap=False), 4)
assert run.metrics(4) == {"loss": 4} and run.metadata(3) == "m"
assert run.steps() == [3, 4]
"""
)

RESUMES = (
    STATE
    + """
run = treepack.Series(args[0], timeout=60)
expected, skipped, items = json.loads(args[1])
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    check(run.resume(template), expected)
assert [step for step, _ in run.skipped] == skipped
assert run.local == (items if count == 1 else items[index]), run.local
texts = [str(it.message) for it in caught]
assert len([it for it in texts if "is skipped" in it]) == len(skipped), texts
assert any("processes have saved" in it for it in texts) == (count == 1), texts
print("resumed")
"""
)


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.campaign)])
def test_all_processes_resume_one_step(tmp_path: Path, count: int) -> None:
    run = tmp_path / "run"
    processes.run(SAVES, count, run, devices=4 // count)
    items = [{"seen": 4, "of": index} for index in range(count - 1)] + [None]
    processes.run(RESUMES, 1, run, json.dumps([4, [], items]))
    assert treepack.verify(run / "step_4").ok
    (file,) = (run / "step_4").glob("*-00001.treepack")
    damage(file)  # which only process 1 verifies
    items = [item and {**item, "seen": 3} for item in items]
    processes.run(RESUMES, 1, run, json.dumps([3, [4], items]))
    processes.run(RESUMES, count, run, json.dumps([3, [4], items]), devices=4 // count)


SUBSCRIBES = (
    STATE
    + """
from jax.experimental.multihost_utils import sync_global_devices
from treepack._src.placing import placement
groups, together = [], placement.together

def counted(members, timeout):
    groups.append([*members])
    return together(members, timeout)

placement.together = counted
w = np.arange(800, dtype=np.float32).reshape(8, 100)
if index == 0:
    treepack.Publisher(args[0]).push({"w": w, "step": 3}, version=3)
sync_global_devices("published")
where = NamedSharding(mesh, P())
target = {"w": jax.ShapeDtypeStruct(w.shape, w.dtype, sharding=where), "step": 0}
subscriber = treepack.Subscriber(args[0])
for options in ({}, {"select": "w"}):
    version, tree = subscriber.latest(target, replicas="broadcast", **options)
    assert version == 3 and tree["step"] == (0 if options else 3), tree
    assert tree["w"].sharding == where and (np.asarray(tree["w"]) == w).all()
assert groups == [[*range(count)]] * 2, groups
"""
)


@pytest.mark.campaign
def test_subscribers_of_all_processes_load_together(tmp_path: Path) -> None:
    processes.run(SUBSCRIBES, 2, tmp_path / "policy", devices=2)


FAILS = (
    STATE
    + """
run = treepack.Series(args[0], timeout=60)
run.save(1, state(1))
try:
    run.resume({**template, "w": template["w"][:4]} if index else template)
except treepack.TreepackError as error:
    print(error)
    kind = treepack.MismatchError if index else treepack.TreepackError
    assert type(error) is kind or "process 1" in str(error), repr(error)
else:
    raise AssertionError("no error")
check(run.resume(template), 1)
"""
)


@pytest.mark.campaign
def test_an_error_of_one_process_is_one_of_all(tmp_path: Path) -> None:
    assert "process 1" in processes.run(FAILS, 2, tmp_path / "run", devices=2)


MISSES = (
    STATE
    + """
run = treepack.Series(args[0], timeout=60)
behind = int(args[1])
for step in range(1, 8):
    if step in (2, 3, 6) and index == behind:
        continue  # it was busy
    try:
        run.save(step, state(step), background=step == 5)
        run.wait()
        error_text = ""
    except treepack.TreepackError as error:
        error_text = str(error)
    missed = "missed" in error_text
    assert missed == (step in (2, 3, 6)), (index, step, error_text)
    if missed:
        parts = f"process {behind}", f"step {step}", "next"
        assert all(part in error_text for part in parts), error_text
assert run.steps() == [1, 4, 5, 7], run.steps()
check(run.resume(template), 7)
print("healed")
"""
)


@pytest.mark.campaign
@pytest.mark.parametrize("behind", [1, pytest.param(0, marks=pytest.mark.campaign)])
def test_a_missed_save_heals_at_the_next_one(tmp_path: Path, behind: int) -> None:
    assert "healed" in processes.run(MISSES, 2, tmp_path / "run", behind, devices=2)


UNSAVED = (
    STATE
    + """
run = treepack.Series(args[0], timeout=60)
for step, options in enumerate([{"local": object()}, {"metrics": {"loss": "low"}}]):
    try:
        run.save(step, state(step), **(options if index == 1 else {}))
    except (TypeError, ValueError) as error:
        assert index == 1 or "process 1: " in str(error), error
    else:
        raise AssertionError("no error")
run.save(2, state(2))
check(run.resume(template), 2)
assert run.steps() == [2]
"""
)


@pytest.mark.campaign
def test_all_processes_report_what_one_cannot_save(tmp_path: Path) -> None:
    processes.run(UNSAVED, 2, tmp_path / "run", devices=2)


FORMS = """
run = treepack.Series(args[0], sharded=True)
run.save(1, {"w": jnp.ones(8)}, local="mine")
assert os.path.isdir(run.path(1))
plain = treepack.Series(args[0])
assert plain.resume({"w": jnp.zeros(8)})[0] == 1 and plain.local == "mine"
try:
    plain.save(1, {"w": jnp.ones(8)})
except treepack.InvalidCheckpointError as error:
    assert "is a directory, and would become a file" in str(error), error
else:
    raise AssertionError("no error")
plain.save(2, {"w": jnp.ones(8)})
open(plain.path(2), "wb").close()
os.remove(os.path.join(run.path(1), "manifest.treepack"))
open(os.path.join(run.path(1), "manifest.treepack"), "wb").close()
run.save(2, {"w": jnp.ones(8)})  # a damaged file becomes a directory
plain = treepack.Series(args[0], keep=treepack.Keep())
plain.save(3, {"w": jnp.ones(8)})
assert plain.steps() == [3] and os.listdir(args[0]) == ["step_3"], os.listdir(args[0])
"""


def test_files_and_directories_may_follow_each_other(tmp_path: Path) -> None:
    processes.run(FORMS, 1, tmp_path / "run", devices=8)


CLOCKS = (
    STATE
    + """
import time
run = treepack.Series(args[0], seconds=0.2, every=1000, timeout=60)
saved, calls = [], 0
for step in range(100_000):
    time.sleep(0.001 * index)  # processes run apart
    calls += 1
    if run.should_save(step):
        run.save(step, state(step), background=True)
        saved.append(step)
    if len(saved) == 6:
        break
run.wait()
assert saved == run.steps(), (saved, run.steps())
assert saved[0] == 0 and saved[1:] != [*range(1, 6)], saved
print(saved)
"""
)


@pytest.mark.campaign
def test_the_clock_of_process_0_is_that_of_all(tmp_path: Path) -> None:
    assert processes.run(CLOCKS, 2, tmp_path / "run", devices=2)


PREEMPTED = (
    STATE
    + """
import time
run = treepack.Series(args[0], every=10**6, timeout=60)
if args[1] == "again":
    found = run.resume(template)
    check(found, run.steps()[-1])
    print("resumed", found[0])
    sys.exit()
with run.preemption():
    for step in range(1, 100_000):
        if run.should_save(step):
            run.save(step, state(step), background=True)
        if step == 3:
            print("ready", flush=True)
        time.sleep(0.01)
"""
)


@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.campaign)])
def test_a_run_that_receives_sigterm_saves_once_more(tmp_path: Path, count: int) -> None:
    """One of several processes receives the signal."""
    running = processes.start(PREEMPTED, count, tmp_path / "run", "first", devices=2)
    for process in running:
        assert process.stdout is not None
        while "ready" not in (line := process.stdout.readline()):
            assert line, "it has ended"
    os.kill(running[-1].pid, signal.SIGTERM)
    for process in running:
        output = process.communicate(timeout=300)[0]
        assert process.returncode == 143, output
    (saved,) = treepack.Series(tmp_path / "run").steps()
    log = processes.run(PREEMPTED, count, tmp_path / "run", "again", devices=2)
    assert f"resumed {saved}" in log
