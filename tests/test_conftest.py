"""The tests leave the folders of other programs alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.campaign
def test_a_run_without_the_cache_removes_only_its_own_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-m", "", "-p", "no:cacheprovider"]
    kept = tmp_path / "kept"
    kept.touch()
    done = subprocess.run(
        [*command, f"{Path(__file__)}"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == [kept]
