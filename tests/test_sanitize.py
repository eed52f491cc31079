"""`tools/sanitize.sh` leaves out existing tests, and reports its run only without findings."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tiers

ROOT = Path(__file__).parents[1]
SCRIPT = (ROOT / "tools" / "sanitize.sh").read_text(encoding="utf-8")
PROGRAM = [sys.executable, str(ROOT / "tools" / "sanitize.py"), "--reports", "reports"]


def variable(name: str) -> str:
    found = re.search(rf"^{name}='([^']*)'$", SCRIPT, re.MULTILINE)
    assert found is not None
    return " ".join(found[1].split())


def test_what_is_left_out_is_there() -> None:
    for name in variable("left_out_files").split():
        assert (ROOT / "tests" / name).is_file(), name
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    files = " ".join(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    for name in variable("left_out").split(" or "):
        assert re.search(rf"\bdef test_\w*{name.strip()}", tests) or name.strip() in files, name


@pytest.mark.skipif(sys.platform == "win32", reason="starts a shell")
@pytest.mark.parametrize(
    ("script", "status", "line"),
    [
        ("echo 'test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured'", 0, "3 tests, 1 left"),
        ("echo '5 passed, 2 skipped in 3s'", 0, "5 tests, 2 left out; 0 reports"),
        ("echo 'test result: ok. 0 passed; 0 failed; 0 ignored;'", 1, "0 tests, 0 reports"),
        ("echo '5 passed'; exit 3", 1, "status 3, 5 tests"),
        ("echo '2 failed, 5 passed, 1 skipped in 3s'; exit 1", 1, "status 1, 5 tests"),
        ("echo 'test result: FAILED. 3 passed; 1 failed; 0 ignored;'; exit 101", 1, "3 tests"),
        ("echo '5 passed'; echo 'SUMMARY: ThreadSanitizer: data race' > reports/1", 1, "1 reports"),
        ("echo '5 passed'; echo 'error: Undefined Behavior: reading'", 1, "1 reports"),
        ("echo '5 passed'; echo 'WARNING: AddressSanitizer failed to allocate' > reports/1", 0, ""),
    ],
)
def test_the_run_tests_are_reported_if_nothing_was_found(
    tmp_path: Path, script: str, status: int, line: str
) -> None:
    ended = subprocess.run(
        [*PROGRAM, "name", "sh", "-c", script], cwd=tmp_path, capture_output=True, text=True
    )
    assert ended.returncode == status, ended.stdout + ended.stderr
    assert line in ended.stdout.split("\n")[-2]


@pytest.mark.campaign
@pytest.mark.skipif(not shutil.which("valgrind"), reason="needs valgrind")
@pytest.mark.parametrize("option", tiers.either([], [], nightly=["--uninitialized"]))
def test_uninitialised_bytes_are_reported_when_they_are_written(
    option: str, tmp_path: Path
) -> None:
    """Only those of the array that was never set, which another process writes."""
    about = ["--about", r"_core\.abi3|points to uninitialised"]
    valgrind = ["valgrind", "--quiet", "--log-file=reports/%p", sys.executable]
    written = [str(ROOT / "tests" / "support" / "written.py"), option]
    environment = {**os.environ, "PYTHONMALLOC": "malloc", "PYTHONPATH": str(ROOT / "python")}
    ended = subprocess.run(
        [*PROGRAM, *about, "name", *valgrind, *written],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    logs = [path.read_text() for path in (tmp_path / "reports").iterdir()]
    assert sorted("Syscall param write(buf) points to uninitialised" in it for it in logs) == [
        False,
        True,
    ]
    assert any(not re.search(about[1], it) for it in logs)
