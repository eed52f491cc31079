"""A fork while other threads of the parent read: the child reads, too, and waits for no thread."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import tiers
import treepack

HELD = """
import os, signal, sys, threading, warnings
import numpy as np, treepack
from treepack._src.sharded import reading

warnings.simplefilter("ignore")
signal.alarm(60)  # which kills the parent if it waits for ever, and below the child
path, leaf, expected = sys.argv[1], sys.argv[2], int(sys.argv[3])
held, go_on = threading.Event(), threading.Event()

def hold():
    if threading.current_thread() is other:
        held.set()
        assert go_on.wait(60)

class Waiting:
    def __init__(self, file):
        self.read, self.tell, self._seek = file.read, file.tell, file.seek

    def seek(self, *args):
        hold()  # before: parent and child share what it changes
        return self._seek(*args)

checked = reading.ShardedReader._checked

def waiting(*args):
    hold()
    return checked(*args)

reading.ShardedReader._checked = waiting

other = threading.Thread(target=lambda: read())
is_file = os.path.isfile(path)
tree = treepack.open(Waiting(open(path, "rb", buffering=0)) if is_file else path)

def read():
    assert np.asarray(tree[leaf]).sum() == expected

other.start()
assert held.wait(60)
child = os.fork()
if child == 0:
    signal.alarm(60)
    try:
        read()
    except BaseException as error:
        print(repr(error), flush=True)
        os._exit(1)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
go_on.set()
other.join()
read()
"""


@tiers.parametrize("leaf", ["small", "large"])
@tiers.parametrize("sharded", [False, True])
def test_a_fork_reads_what_another_thread_reads(tmp_path: Path, sharded: bool, leaf: str) -> None:
    path = tmp_path / "model"
    tree = {"small": jnp.ones(300), "large": jnp.ones(1 << 18)}
    treepack.save(path, tree, sharded=sharded)
    command = [sys.executable, "-c", HELD, str(path), leaf, str(tree[leaf].size)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


HAMMERED = """
import os, signal, sys, threading, warnings
import numpy as np, treepack

warnings.simplefilter("ignore")
signal.alarm(600)  # which kills the parent if it waits for ever, and below a child
path, large = sys.argv[1], np.zeros(4 << 20, np.uint8)
shared = treepack.open(path)

def read(encoded):
    for file in (shared, treepack.open(path)):
        for leaf in ("w", "chunked"):
            assert (file[leaf][1:5] == np.arange(1, 5)).all()
    treepack.dumps(encoded, compress=True, level=1, threads=16)  # each makes a state of zlib

def work():
    while not done:
        read(large)

read(large)  # a fork may find modules half imported
done = False
others = [threading.Thread(target=work) for _ in range(3)]
for other in others:
    other.start()
for _ in range(60):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            read(large[:100])
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status:
        break
done = True
for other in others:
    other.join()
assert status == 0, status
"""


@pytest.mark.campaign
@tiers.parametrize("compress", [False, True])
def test_a_fork_waits_for_no_lock_of_the_core(
    tmp_path: Path, compress: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(treepack.serialization, "MAX_CHUNK_SIZE", 1 << 10)
    path = tmp_path / "model"
    tree = {"w": np.arange(100), "chunked": np.arange(4000)}
    treepack.save(path, tree, compress=compress, level=6 if compress else None)
    command = [sys.executable, "-c", HAMMERED, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
