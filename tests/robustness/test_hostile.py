"""Files that no writer makes end in documented errors, in all verbs, and verbs agree about them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tiers
from hostile import limits

SUPPORT = Path(__file__).parents[1] / "support"


def campaign(first: int, count: int, *options: str) -> None:
    """Uses the cases of so many seeds; each that fails is made again by its seed alone."""
    command = [sys.executable, "-m", "hostile", str(first), str(count), *options]
    path = os.pathsep.join([str(SUPPORT), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2000:]
    assert f"\n{count} cases, " in done.stdout


def test_hostile_files_are_documented_errors() -> None:
    """Set TREEPACK_HOSTILE to the number of cases to try more of them."""
    count = int(os.environ.get("TREEPACK_HOSTILE", tiers.either(8, 100, nightly=1000)))
    # Of a few cases, no other one need come before them.
    campaign(0, count, "--warm-up", str(min(count, 400)))


@pytest.mark.campaign
@pytest.mark.parametrize("seed", [501124, 510291, 702545])
def test_hostile_files_of_seeds_that_failed(seed: int) -> None:
    """Damage at the end of a base, overlapping parts of a patch, too many bytes in an index."""
    campaign(seed, 1, "--warm-up", "40")


@pytest.mark.campaign
def test_many_hostile_files_are_documented_errors() -> None:
    campaign(10_000, tiers.either(0, 1000, nightly=100_000), "--processes", "2")


LIMITED = """
import os, pathlib, sys, tempfile
from hostile import limits

folder = pathlib.Path(sys.argv[1])
if not limits.write_only_in(folder / "inside"):
    sys.exit(77)
(folder / "inside" / "file").write_text("x")
for write in (
    lambda: (folder / "outside").write_text("x"),
    lambda: (folder / "there").unlink(),
    lambda: (folder / "there").open("r+"),
    lambda: (folder / "new").mkdir(),
    lambda: (folder / "there").rename(folder / "inside" / "there"),
):
    try:
        write()
    except PermissionError:
        continue
    sys.exit("written elsewhere")
"""


def test_files_that_are_written_elsewhere_are_refused(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "there").write_text("old")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT), *sys.path])}
    command = [sys.executable, "-c", LIMITED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode == 77:
        pytest.skip("the system has no Landlock")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "there").read_text() == "old"


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="resets the peak of memory")
def test_memory_is_measured() -> None:
    measured = limits.Limits()
    for size, is_found in ((1 << 20, False), (64 << 20, True), (1 << 20, False)):
        with measured.memory("", 1000, 1 << 20) as found:
            np.ones(size, np.uint8).sum()
        assert bool(found) == is_found, size
    assert measured.largest[0] >= 60 << 20


def test_what_files_may_not_cause_is_noticed() -> None:
    code = (
        "from hostile import limits\n"
        "audit = limits.Audit()\n"
        "with audit.watching('load') as found:\n"
        "    import this, zipapp\n"
        "    eval('1')\n"
        "assert any('zipapp' in it for it in found)\n"
        "assert any('exec' in it for it in found)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT), *sys.path])}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, capture_output=True)
