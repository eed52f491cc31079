"""Records whose content is hostile end in documented errors."""

from __future__ import annotations

import os
import subprocess
import sys

import hostile
import hostile_values


def test_records_that_are_hostile_are_documented_errors() -> None:
    """Set TREEPACK_HOSTILE to change more of them."""
    count = os.environ.get("TREEPACK_HOSTILE", "20")
    program = [sys.executable, hostile.__file__, "0", count]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_hostile_values_end_in_documented_errors() -> None:
    """Set TREEPACK_HOSTILE to the number of cases to try more of them."""
    count = int(os.environ.get("TREEPACK_HOSTILE", "200"))
    command = [sys.executable, hostile_values.__file__, "0", str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.endswith("done\n"), f"{done.stdout[-5000:]}\n{done.stderr[-5000:]}"
