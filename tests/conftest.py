"""What all tests share: four CPU devices, a tier of examples, folders."""

from __future__ import annotations

import functools
import gc
import importlib.util
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

# Before jax is imported anywhere.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=4 "
    # Functions run once: a seventh of all time went into making them fast.
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)

import pytest
from hypothesis import settings

import tiers  # noqa: F401  (registers profiles)
from treepack import serialization

settings.load_profile("quick")


# Programs that make files, which register types under the names of the files; what fuzzers embed.
collect_ignore_glob = ["golden/*.py", "fuzz/*"]

# Python 3.14 has no eformer: modules that need it, or others that do, are left out there.
if importlib.util.find_spec("eformer") is None:
    needs_it = re.compile(r"^(?:from|import) (?:eformer|golden|hostile|node_types|soak)\b", re.M)
    modules = Path(__file__).parent.rglob("*.py")
    collect_ignore = [str(path) for path in modules if needs_it.search(path.read_text())]


def pytest_configure(config: pytest.Config) -> None:
    """Lets examples and killed programs leave their files where they go with the tests."""
    # A sixth of the time went into compiling the same functions of jax in every run and process.
    # What a killed process has half written is compiled again.
    if config.pluginmanager.hasplugin("cacheprovider"):
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(config.cache.mkdir("jax"))
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    warning = "ignore:Error (reading|writing) persistent compilation cache entry"
    config.addinivalue_line("filterwarnings", warning)
    # Wrong: `gc.get_referrers` skips frozen dicts, and Python 3.14 tracks, so freezes, empty ones.
    config.addinivalue_line("filterwarnings", "ignore:It looks like `register_random` was passed")
    # Texts of 70,000 bytes are in some examples.
    config.addinivalue_line("filterwarnings", "ignore:Generating overly large repr")
    if not hasattr(config, "workerinput"):  # workers inherit it
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
        folder = os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(
            prefix="treepack-tests-"
        )
        config.add_cleanup(functools.partial(shutil.rmtree, folder, ignore_errors=True))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """One more than cores in `make test-all`, whose campaigns wait for servers and disks."""
    return None if config.option.markexpr else (os.cpu_count() or 1) + 1


# The most cases of a test in `make test`, unless the marker `all_cases` lifts the limit.
_MOST_CASES = 2


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves a share of the cases of each test where all tests are collected for `make test`."""
    is_everything = config.args == config.getini("testpaths") and not config.option.keyword
    if config.option.markexpr != "not campaign" or not is_everything:
        return
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if not item.get_closest_marker("campaign") and not item.get_closest_marker("all_cases"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out = set()
    for of_test in cases.values():
        # The same ones in every run, in an order without meaning.
        by_number = sorted(of_test, key=lambda it: zlib.crc32(it.nodeid.encode()))
        left_out.update(by_number[_MOST_CASES:])
    config.hook.pytest_deselected(items=[it for it in items if it in left_out])
    items[:] = [it for it in items if it not in left_out]


def pytest_collection_finish() -> None:
    """Spares collections of garbage the million objects of libraries and tests."""
    gc.freeze()


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


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, if there is a place for it: a disk takes milliseconds for each file."""
    memory = Path("/dev/shm")
    if not memory.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="treepack-tests-", dir=memory) as name:
        yield Path(name)
