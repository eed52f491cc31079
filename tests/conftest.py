"""What all tests share: four CPU devices, and a profile of hypothesis without clocks."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import tempfile
from pathlib import Path

# Before jax is imported anywhere.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import hypothesis
import pytest

from treepack import serialization

# No test depends on how fast the machine is, nor on how fast examples are made.
hypothesis.settings.register_profile(
    "default",
    deadline=None,
    derandomize=True,
    max_examples=150,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("default")


# Programs that make files, which register types under the names of the files; what fuzzers embed.
collect_ignore_glob = ["golden/*.py", "fuzz/*"]

# Python 3.14 has no eformer: modules that need it, or others that do, are left out there.
if importlib.util.find_spec("eformer") is None:
    needs_it = re.compile(r"^(?:from|import) (?:eformer|golden|hostile|node_types)\b", re.M)
    modules = Path(__file__).parent.rglob("*.py")
    collect_ignore = [str(path) for path in modules if needs_it.search(path.read_text())]


def pytest_configure(config: pytest.Config) -> None:
    """Lets examples and killed programs leave their files where they go with the tests."""
    if not hasattr(config, "workerinput"):  # workers inherit it
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
        os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="treepack-tests-")


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)


@pytest.fixture
def chunk_size(monkeypatch: pytest.MonkeyPatch):
    """A function that sets MAX_CHUNK_SIZE of flax, eformer and treepack for one test."""
    eformer = pytest.importorskip("eformer.pytree.serialization")
    from flax import serialization as flax

    def set_size(size: float) -> None:
        for module in (flax, eformer, serialization):
            monkeypatch.setattr(module, "MAX_CHUNK_SIZE", size)

    return set_size


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files to run commands on."""
    from commands import write_files

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    write_files()
    return tmp_path
