"""What make does where little is installed: Rust is fetched, and the last line has the reason."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tiers
import toolchains

ROOT = Path(__file__).parents[1]
JOBS = ROOT / "tools" / "jobs.py"


def fetched(tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs `tools/rust.py` with an empty home, and a Rust on PATH that is too old."""
    pytest.importorskip("puccinialin")
    old = tmp_path / "old"
    old.mkdir()
    for name in ("rustc", "cargo"):
        (old / name).write_text("#!/bin/sh\necho cargo 1.65.0")
        (old / name).chmod(0o755)
    home = {"HOME": str(tmp_path / "home"), "PATH": f"{old}:/usr/bin:/bin"}
    home["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, ROOT / "tools" / "rust.py", tmp_path / "rust"]
    return subprocess.run(command, env=home | environment, capture_output=True, text=True)


@pytest.mark.campaign
@pytest.mark.skipif(sys.platform != "linux", reason="a stand-in for the toolchain of Linux")
def test_rust_is_fetched_with_its_linters_where_it_is_too_old(tmp_path: Path):
    sysroot = subprocess.check_output(["rustc", "--print", "sysroot"], text=True).strip()
    with toolchains.served(sysroot) as server:
        run = fetched(tmp_path, **server)
        assert run.returncode == 0, run.stderr
        assert "no Rust 1.93 or newer" in run.stdout
    programs = "cargo --version && cargo fmt --version && cargo clippy --version"
    line = f". {tmp_path / 'rust'} && {programs} && command -v cargo"
    lines = subprocess.check_output(["sh", "-c", line], text=True).splitlines()
    assert [it.split()[0] for it in lines[:3]] == ["cargo", "rustfmt", "clippy"]
    assert lines[3].startswith(str(tmp_path / "home"))


@pytest.mark.campaign
def test_the_last_line_says_why_rust_cannot_be_fetched(tmp_path: Path):
    run = fetched(tmp_path, RUSTUP_UPDATE_ROOT="http://127.0.0.1:9")
    assert run.returncode == 1
    assert "install Rust 1.93 or newer from https://rustup.rs" in run.stderr.splitlines()[-1]
    assert not (tmp_path / "rust").exists()


def test_jobs_show_the_lines_of_one_and_end_with_the_reason(tmp_path: Path):
    (tmp_path / ".venv").mkdir()
    makefile = "good:\n\t@printf 'one\\ntwo'\n"
    makefile += "bad:\n\t@echo noise; echo 'skipped: a part'; echo the reason >&2; exit 1\n"
    (tmp_path / "Makefile").write_text(makefile)
    command = [sys.executable, JOBS, "good", "bad"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    lines = run.stdout.splitlines()
    assert run.returncode == 1
    assert {"one", "two", "good: done, 0 s", "bad: skipped: a part"} <= {*lines}
    assert lines[-1] == "bad failed: the reason"
    assert lines.index("--- bad ---") < lines.index("noise")


def test_a_command_is_quiet_unless_it_fails(tmp_path: Path):
    (tmp_path / ".venv").mkdir()

    def run(script: str) -> list[str]:
        command = [sys.executable, JOBS, "--say", "Builds.", "built", "sh", "-c", script]
        outside = {name: it for name, it in os.environ.items() if name != "TREEPACK_JOB"}
        done = subprocess.run(command, cwd=tmp_path, env=outside, capture_output=True, text=True)
        return done.stdout.splitlines()

    assert run("echo noise") == ["Builds."]
    assert run("echo noise; exit 3") == ["Builds.", "--- built ---", "noise", "built failed: noise"]


@pytest.mark.campaign
def test_demo_and_tests_on_a_bare_machine():
    """Without TOOLCHAIN, a folder of rustup, the toolchain is downloaded."""
    if tiers.either(True, True, False):
        pytest.skip("runs each night: half an hour")
    if not hasattr(os, "getuid") or os.getuid() or not shutil.which("debootstrap"):
        pytest.skip("needs root and debootstrap")
    environment = {**os.environ, "PYTHON": sys.executable}
    subprocess.run(["sh", ROOT / "tools" / "bare.sh"], check=True, env=environment)
