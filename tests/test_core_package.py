"""The package without JAX: the wheel that is made from that of treepack, installed and used."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import treepack

ROOT = Path(__file__).parents[1]
SCRIPTS = "Scripts" if sys.platform == "win32" else "bin"


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def packed(folder: Path) -> Path:
    """Packs the package that the tests run with into a wheel, and makes the other one from it."""
    package, (name, version) = Path(treepack.__file__).parent, ("treepack", treepack.__version__)
    shutil.copytree(package, folder / "files" / name, ignore=shutil.ignore_patterns("__pycache__"))
    about = folder / "files" / f"{name}-{version}.dist-info"
    about.mkdir()
    for file in importlib.metadata.files(name) or ():
        if file.parts[0] == about.name and file.name in ("METADATA", "WHEEL", "entry_points.txt"):
            shutil.copy(file.locate(), about)
    run(sys.executable, "-m", "wheel", "pack", folder / "files", "--dest-dir", folder)
    run(sys.executable, ROOT / "tools/core_wheel.py", folder)
    (wheel,) = folder.glob("treepack_core-*.whl")
    return wheel


@pytest.mark.campaign
def test_the_package_without_jax(tmp_path: Path):
    wheel = packed(tmp_path)
    run(sys.executable, "-m", "venv", tmp_path / "env")
    python = tmp_path / "env" / SCRIPTS / "python"
    pip = [python, "-I", "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "install", "--quiet", "--only-binary", ":all:", f"{wheel}[cli]")
    installed = run(*pip, "list", "--format", "freeze").casefold()
    assert "treepack-core==" in installed
    assert not {"jax", "jaxlib", "treepack"} & {it.split("==")[0] for it in installed.split()}
    printed = run(python, "-I", ROOT / "tests/smoke_core.py")
    assert str(tmp_path) in printed
    assert "works without JAX" in printed
    assert (tmp_path / "env" / SCRIPTS / "treepack").exists()


def test_it_requires_what_treepack_requires_but_jax(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    import core_wheel

    text = importlib.metadata.distribution("treepack").read_text("METADATA")
    assert text is not None
    theirs, _, readme = text.partition("\n\n")
    ours, _, same = core_wheel.core_metadata(text).partition("\n\n")
    assert same == readme
    removed, added = set(theirs.splitlines()), set(ours.splitlines())
    removed, added = removed - added, added - removed
    assert {line for line in removed if "jax>=" in line}
    assert {"Provides-Extra: export", "Provides-Extra: orbax", "Name: treepack"} <= removed
    assert "Name: treepack-core" in added
    required = [
        Requirement(line.partition(": ")[2])
        for line in ours.splitlines()
        if line.startswith("Requires-Dist: ")
    ]
    always = {it.name.replace("-", "_") for it in required if it.marker is None}
    assert always == {"ml_dtypes", "numpy"}
    extras = {it.name: it.extras for it in required if it.extras}
    assert extras == {"treepack-core": {"cli", "remote"}}
