"""Processes that are killed leave whole checkpoints."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

import processes
import treepack
from programs import SAVE, TREE
from treepack._src.sharded.files import MANIFEST

# Processes are killed at random while they save, again and again.

KILLED = (
    TREE
    + """
import pathlib, time
path, first = pathlib.Path(args[0]), int(args[1])
sharding = NamedSharding(mesh(2, 1), P("x"))
print("ready", flush=True)
for step in range(first, first + 10_000):
    tree = {"step": step, "w": put(np.full((256, 128), step, np.float32), sharding),
            "b": [put(np.full(1000, step), NamedSharding(mesh(2, 1), P())) for _ in range(4)]}
    saving = treepack.save(path, tree, metadata=step, background=step % 2 == 0)
    if saving is not None:
        saving.result()
    if index == 0:
        print("saved", step, flush=True)
"""
)


@pytest.mark.campaign
def test_the_last_checkpoint_is_whole_whatever_is_killed(tmp_path: Path) -> None:
    """Set TREEPACK_KILLS to kill more often."""
    path = tmp_path / "checkpoint"
    rng = random.Random(0)
    first = 0
    for _ in range(int(os.environ.get("TREEPACK_KILLS", "3"))):
        running = processes.start(KILLED, 2, path, first)
        lines = running[0].stdout
        assert lines is not None
        for _ in range(rng.randrange(1, 5)):
            line = lines.readline()
            assert line, "it has ended"
        time.sleep(rng.random() * 0.05)
        victims = running if rng.random() < 0.5 else [rng.choice(running)]
        for process in victims:
            process.kill()
        output = ""
        for process in running:
            process.kill()  # jax would end the others only after a while
            output += process.communicate()[0]
        committed = [
            int(line.split()[1])
            for line in (line + "\n" + output).split("\n")
            if line.startswith("saved")
        ]
        if not path.exists() or (not committed and not (path / MANIFEST).exists()):
            continue
        found = treepack.load(path, arrays="numpy")
        step = found["step"]
        assert step >= max(committed, default=first - 1)
        assert treepack.verify(path).ok
        assert treepack.read_metadata(path) == step
        assert (found["w"] == step).all()
        assert all((b == step).all() for b in found["b"])
        first = step + 1
    processes.run(SAVE, 2, path, "[2, 1]")
    assert len(list(path.iterdir())) == 3


@pytest.mark.campaign
def test_a_program_may_be_killed_before_its_end_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (running,) = processes.start("", 1)
    running.communicate()

    def not_yet(timeout: float | None = None) -> int:
        raise subprocess.TimeoutExpired("", timeout or 0)

    monkeypatch.setattr(running, "returncode", None)
    monkeypatch.setattr(running, "wait", not_yet)
    running.kill()


@pytest.mark.campaign
def test_training_goes_on_after_kills_with_equal_losses() -> None:
    example = Path(__file__).parents[2] / "examples" / "train_multihost.py"
    done = subprocess.run(
        [sys.executable, example, "--steps", "8", "--kills", "1"],
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "8 losses are equal" in done.stdout
