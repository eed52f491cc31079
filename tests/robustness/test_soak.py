"""Some hundred cycles of `tests/support/soak.py`, after which nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import soak
import tiers

PROGRAM = Path(soak.__file__)

pytestmark = pytest.mark.skipif(
    not hasattr(soak.LIBC, "mallinfo2"), reason="counts memory by mallinfo2 of glibc 2.33"
)


def run(seeds: int, *options: str, times: int = 12) -> subprocess.CompletedProcess[str]:
    """Runs the same cycles several times, in a process whose memory is all malloc's."""
    package = Path(soak.treepack.__file__).parents[1]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{package}:{PROGRAM.parent}",
        "PYTHONMALLOC": "malloc",
        "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0:glibc.malloc.arena_max=1",
    }
    command = [
        sys.executable,
        str(PROGRAM),
        f"--cycles={times * seeds}",
        f"--measures={times}",
        f"--seeds={seeds}",
        *options,
    ]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.mark.campaign
def test_nothing_is_left_behind() -> None:
    # Lists of free objects still fill up in the first 500 cycles, later if the machine is busy.
    times = tiers.either(0, 24, nightly=48)
    ended = run(44, times=times)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.endswith(f"{44 * times} cycles in 1 threads: 0 figures grow\n")


@pytest.mark.campaign
@pytest.mark.parametrize("cycles", tiers.either([], [], nightly=[44]))
def test_what_is_left_behind_is_found(cycles: int) -> None:
    """100 bytes in each cycle, and one of each other thing in each tenth."""
    kinds = ["bytes in use", "mappings", "handles", "threads", "files", "objects", "types"]
    ended = run(cycles, *(f"--leak={kind}" for kind in kinds))
    assert ended.returncode == 1, ended.stderr
    for kind in kinds:
        assert f"\n{kind} grow by " in ended.stdout, ended.stdout


def sample(cycles: int, number: int) -> dict[str, int]:
    return {"cycles": cycles, "bytes in use": number}


@pytest.mark.parametrize("noise", [0, 100_000])
def test_a_hundred_bytes_a_cycle_grow_and_noise_does_not(noise: int) -> None:
    flat = [sample(500 * k, noise * (k % 2)) for k in range(200)]
    assert not soak.grown(flat)
    warmed_up = [sample(500 * k, 10**9 * (k > 50) + noise * (k % 2)) for k in range(200)]
    assert not soak.grown(warmed_up)
    leaking = [sample(500 * k, 100 * 500 * k + noise * (k % 2)) for k in range(200)]
    assert soak.grown(leaking).keys() == {"bytes in use"}
