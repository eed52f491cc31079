"""A program that dies in the middle of a save leaves the checkpoint before it."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import treepack

# Dies after a third of the bytes: when they are reported, or while the leaves are made.
PROGRAM = """
import os, sys
import numpy as np, treepack

path, how = sys.argv[1:]

def progress(done, total):
    if done > total // 3:
        os.kill(os.getpid(), 9)

def leaves():
    for i in range(3):
        yield f"w/{i}", np.full(1_000_000, 2.0)
        if i == 1:
            os.kill(os.getpid(), 9)

if how == "progress":
    treepack.save(path, {"w": [np.full(1_000_000, 2.0) for _ in range(30)]}, progress=progress)
else:
    treepack.save(path, leaves())
"""


def test_the_old_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "state.treepack"
    treepack.save(path, {"w": [np.full(1_000_000, 1.0)]})
    programs = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, str(path), how], env={**os.environ})
        for how in ("progress", "leaves")
    ]
    assert [program.wait() for program in programs] == [-9, -9]
    loaded = treepack.load(path, verify=True)
    assert loaded["w"][0].sum() == 1_000_000
    treepack.save(path, {"w": [np.full(10, 3.0)]})  # removes what the others left
    assert [file.name for file in tmp_path.iterdir()] == ["state.treepack"]
