"""Signal handlers that read a remote file which the interrupted call reads, too."""

from __future__ import annotations

from pathlib import Path

import pytest

import processes
import tiers

READING = """
import faulthandler
faulthandler.dump_traceback_later(300, exit=True)
kind, support, calls = args
sys.path.insert(0, support)
from signals import at_each_step

url = f"memory://handlers/{kind}"
tree = {f"w{number}": np.full(10_000, number) for number in range(3)}
treepack.save(url, tree, sharded=kind == "directory")

def read(*_):
    assert file["w1"][5:7].tolist() == [1, 1]
    assert np.array_equal(file.load(select="w2")["w2"], tree["w2"])

with treepack.open(url) as file:
    at_each_step(("storage/fetch.py", "_src/tasks.py"), read, read, int(calls))
"""


@pytest.mark.campaign
@pytest.mark.parametrize("kind", ["file", "directory"])
def test_a_signal_handler_may_read_the_same_file(kind: str) -> None:
    calls = tiers.either("4", "4", nightly="1")
    processes.run(READING, 1, kind, Path(__file__).parents[1] / "support", calls)
