"""Orbax's manager with treepack's handler, killed after each change to its directory."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import pytest

import tiers
import treepack
from traced import Disk, ask, is_traced, run, write_state
from treepack.orbax import TreepackRestore, TreepackSave

KEPT = 2


def state(step: int) -> dict[str, Any]:
    return {"w": np.arange(3000.0) + step, "n": step}


def manager_of(folder: Path, mode: str, background: bool) -> ocp.CheckpointManager:
    options = ocp.CheckpointManagerOptions(
        max_to_keep=KEPT,
        cleanup_tmp_directories=True,
        enable_async_checkpointing=background,
        atomicity_options=ocp.options.AtomicityOptions(mode=ocp.options.AtomicityMode(mode)),
    )
    return ocp.CheckpointManager(folder, options=options)


def save(manager: ocp.CheckpointManager, step: int) -> None:
    assert manager.save(step, args=TreepackSave(state(step)))
    manager.wait_until_finished()


def check(manager: ocp.CheckpointManager, step: int) -> None:
    assert manager.latest_step() == step
    restored = manager.restore(step, args=TreepackRestore())
    assert treepack.dumps(restored) == treepack.dumps(state(step))


def log_saves(folder: Path, mode: str, background: bool) -> None:
    inside = folder / "inside"
    with manager_of(inside, mode, background) as manager:
        save(manager, 0)
        shutil.copytree(inside, folder / "before")
        ask(f"log{inside}")
        for step in range(1, KEPT + 2):
            save(manager, step)
            ask(f"say/{step}")
        ask("log/nothing")


@pytest.mark.campaign
@is_traced
@pytest.mark.skipif(not hasattr(ocp.options, "AtomicityMode"), reason="Orbax has no modes yet")
@pytest.mark.parametrize(
    ("mode", "background"),
    tiers.some(itertools.product(["atomic_rename", "commit_file"], [False, True]), 3),
)
def test_the_latest_step_is_whole_whenever_the_manager_is_killed(
    mode: str, background: bool, in_memory: Path
) -> None:
    call = f"log_saves(pathlib.Path(sys.argv[1]), {mode!r}, {background})"
    _, log = run(__name__, call, in_memory)
    inside = in_memory / "inside"
    disk = Disk(str(inside), in_memory / "before")
    crashed = in_memory / "crashed"
    saved, latest = 0, 0
    for line in log:
        disk.apply(line)
        if line.startswith("say "):
            saved = int(line.split()[1])
        now = disk.now()
        write_state(now, disk, crashed)
        problem = line[:200]
        with manager_of(crashed, mode, background) as manager:
            found = manager.latest_step()
            assert found in (max(saved, latest), saved + 1), problem
            latest = found
            assert treepack.verify(crashed / str(latest) / "default").ok, problem
            check(manager, latest)
            save(manager, latest + 1)
            check(manager, latest + 1)
    assert saved == KEPT + 1
    files = {str(path): path.read_bytes() for path in inside.rglob("*") if path.is_file()}
    assert files == {name: content for name, content in now.items() if content is not None}
    print(mode, background, "kills:", len(log))
