"""flax's own tests of serialization pass with treepack in its place.

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


def source() -> str:
    """Returns the tests of the flax that is installed."""
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
        found = files.extractfile(f"flax-{version}/tests/serialization_test.py")
        assert found is not None
        return found.read().decode()


@pytest.mark.campaign
def test_the_tests_of_flax(tmp_path: Path) -> None:
    text = source()
    imported = "from flax import serialization, struct\n"
    assert imported in text
    file = tmp_path / "flax_serialization_test.py"
    file.write_text(text.replace(imported, f"from flax import struct\n{STAND_IN}"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-4000:]
    passed = int(done.stdout.rsplit(" passed", 1)[0].rsplit(maxsplit=1)[-1])
    assert passed > 80
