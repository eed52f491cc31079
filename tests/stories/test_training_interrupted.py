"""Ctrl-C ends a training loop that saves in the background: the last checkpoint is whole."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import treepack

PROGRAM = """
import signal, sys
import numpy as np, treepack

signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background ignore it

path = sys.argv[1]
state = {"w": np.zeros(2_000_000), "step": 0}
saving = None
try:
    while True:
        state["step"] += 1
        state["w"][:] = state["step"]
        saving = treepack.save(path, state, background=True)
        print(state["step"], flush=True)
except KeyboardInterrupt:
    if saving is not None:
        saving.result()
    sys.exit(130)
"""


@pytest.mark.campaign
def test_the_file_is_one_of_the_steps(tmp_path: Path) -> None:
    path = tmp_path / "state.treepack"
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ},
    )  # fmt: skip
    assert program.stdout is not None
    for _ in range(4):
        program.stdout.readline()
    program.send_signal(signal.SIGINT)
    _, errors = program.communicate()
    assert program.returncode == 130, errors
    loaded = treepack.load(path, verify=True)
    assert loaded["step"] >= 3
    assert np.all(loaded["w"] == loaded["step"])
    assert [file.name for file in tmp_path.iterdir()] == ["state.treepack"]
