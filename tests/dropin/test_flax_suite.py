"""flax's own tests of serialization and of checkpoints pass with treepack in its place.

They are in flax's source distribution, which is fetched once by pip; without it, this is skipped.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import flax
import pytest

CACHE = Path(sys.prefix) / "flax-tests"

# The tests take some private names of flax, which treepack has not: those are flax's.
STAND_IN = """
import flax.serialization as _flax
from treepack import serialization as _ours


class _StandIn:
    def __getattr__(self, name):
        return getattr(_flax if name.startswith("_") else _ours, name)

    def __setattr__(self, name, value):
        setattr(_flax, name, value)
        setattr(_ours, name, value)


serialization = _StandIn()
"""


# Where flax is configured to save with Orbax, treepack needs a checkpointer.
CHECKPOINTS = """
import orbax.checkpoint as _orbax
from flax import config as _config
from treepack import checkpoints as _ours


class _StandIn:
    def __getattr__(self, name):
        return getattr(_ours, name)

    def save_checkpoint(self, *args, **options):
        if _config.flax_use_orbax_checkpointing:
            options.setdefault("orbax_checkpointer", _orbax.PyTreeCheckpointer())
        return _ours.save_checkpoint(*args, **options)


checkpoints = _StandIn()
"""


def source(file: str) -> str:
    """Returns a file of tests of the flax that is installed."""
    version = flax.__version__
    archive = CACHE / f"flax-{version}.tar.gz"
    if not archive.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--no-binary", "flax", "--dest", str(CACHE), f"flax=={version}"]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=300)
        except subprocess.SubprocessError:
            pytest.skip("the source distribution of flax cannot be had")
    with tarfile.open(archive) as files:
        found = files.extractfile(f"flax-{version}/tests/{file}")
        assert found is not None
        return found.read().decode()


def check(name: str, replaced: str, by: str, least: int, tmp_path: Path) -> None:
    """Runs a file of flax's tests, all of which pass, with an import replaced."""
    text = source(name)
    assert replaced in text
    file = tmp_path / f"flax_{name}"
    file.write_text(text.replace(replaced, by))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-4000:]
    passed = int(done.stdout.rsplit(" passed", 1)[0].rsplit(maxsplit=1)[-1])
    assert passed > least
    assert "skipped" not in done.stdout


@pytest.mark.campaign
def test_the_tests_of_serialization(tmp_path: Path) -> None:
    replaced = "from flax import serialization, struct\n"
    by = f"from flax import struct\n{STAND_IN}"
    check("serialization_test.py", replaced, by, 80, tmp_path)


@pytest.mark.campaign
def test_the_tests_of_checkpoints(tmp_path: Path) -> None:
    replaced = "from flax.training import checkpoints\n"
    check("checkpoints_test.py", replaced, CHECKPOINTS, 25, tmp_path)
