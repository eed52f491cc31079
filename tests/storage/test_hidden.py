"""Hidden files, which systems and editors put beside others, are in no listing."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treepack
from commands import call
from treepack._src.storage.store import is_hidden
from waiting import in_time

TREE = {name: np.full(300, at, np.float64) for at, name in enumerate("abc")}

JUNK = b"\0\5\x16\7\0\2\0\0Mac OS X"


def repository(path: Path) -> Path:
    treepack.save(path, TREE, format="safetensors", max_shard_size="3KB")
    return path


def sharded(path: Path) -> Path:
    treepack.save(path, TREE, sharded=True)
    return path


def step(path: Path) -> Path:
    run = series(path)
    for number in range(3):
        run.save(number, TREE)
    run.wait()
    return path / "step_2"


def linked(path: Path) -> Path:
    run = treepack.Series(path, unchanged="link")
    for number in range(3):
        run.save(number, {**TREE, "a": np.full(300, float(number))})
    return path / "step_2"


def series(path: Path) -> treepack.Series:
    return treepack.Series(path, keep=treepack.Keep(last=2), sharded=True)


def orbax(path: Path) -> Path:
    checkpoint = pytest.importorskip("orbax.checkpoint")
    with checkpoint.StandardCheckpointer() as writer:
        writer.save(path, TREE)
    return path


def npz(path: Path) -> Path:
    path.mkdir()
    np.savez(path / "it.npz", **TREE)
    return path / "it.npz"


FORMS: list[Callable[[Path], Path]] = [repository, sharded, step, linked, orbax, npz]


def litter(folder: Path) -> None:
    """Puts a hidden file beside each file, and others."""
    for place in [folder, *(found for found in folder.rglob("*") if found.is_dir())]:
        for found in [*place.iterdir()]:
            (place / f"._{found.name}").write_bytes(JUNK)
        for name in (".DS_Store", ".nfs0000001", ".localized"):
            (place / name).write_bytes(JUNK)
        (place / f".#{next(place.iterdir()).name}").symlink_to("user@host.1:2")


@pytest.mark.parametrize("form", [repository, sharded])
def test_saves_beside_hidden_files(tmp_path: Path, form: Callable[[Path], Path]) -> None:
    """The table of promises has the reads."""
    path = form(tmp_path / "it")
    litter(tmp_path)
    assert form(path) == path
    assert treepack.load(path)["c"][0] == 2


def test_a_run_beside_hidden_files(tmp_path: Path) -> None:
    step(tmp_path / "it")
    litter(tmp_path)
    run = series(tmp_path / "it")
    assert run.steps() == [1, 2]
    run.save(3, TREE)
    run.wait()
    assert run.steps() == [2, 3]
    assert not (tmp_path / "it" / "step_1").exists()
    assert "step" in call("ls", str(tmp_path / "it"))


def test_hidden_files_beside_versions(tmp_path: Path) -> None:
    treepack.Publisher(tmp_path / "policy").push(TREE, version=1)
    litter(tmp_path)
    treepack.Publisher(tmp_path / "policy").push(TREE, version=2)
    version, tree = treepack.Subscriber(tmp_path / "policy").latest()
    assert (version, tree["c"][0]) == (2, 2)


def test_which_names_are_hidden() -> None:
    hidden = ["._a", ".#a", ".DS_Store", ".nfs01", ".a.swp"]
    assert all(map(is_hidden, hidden))
    shown = ["a", "_METADATA", "a._b", ".zarray", ".a.treepack-1-2.tmp"]
    assert not any(map(is_hidden, shown))


@pytest.mark.campaign
@pytest.mark.skipif(sys.platform != "linux", reason="it lists descriptors and mappings")
@pytest.mark.parametrize("form", FORMS)
def test_files_are_released(tmp_path: Path, form: Callable[[Path], Path]) -> None:
    """Without the collector of cycles, while a closed `File` lives."""
    path = form(tmp_path / "it")
    verbs: list[Callable[[], Any]] = [
        lambda: treepack.load(path, copy=True),
        lambda: treepack.load(path, TREE, copy=True),
        lambda: treepack.load(path, {"q": TREE["b"]}, mapping={"q": "b"}, copy=True),
        lambda: treepack.verify(path),
        lambda: treepack.abstract(path),
        lambda: closed(path),
        lambda: treepack.diff(path, path),
        lambda: treepack.digest(path),
        lambda: treepack.load(path, expect=treepack.digest(path), copy=True),
        lambda: treepack.open(path)["c"][...].sum(),  # never closed
        lambda: treepack.open(path, mapping={"q": "b"})["q"][...].sum(),
        lambda: treepack.save(tmp_path.with_name("copy"), treepack.open(path)),
    ]

    def held() -> list[str]:
        files = [*Path("/proc/self/fd").iterdir()]
        links = [str(file.readlink()) for file in files if file.is_symlink()]
        maps = Path("/proc/self/maps").read_text().splitlines()
        return [line for line in links + maps if str(tmp_path) in line]

    for verb in verbs:
        verb()  # imports
        gc.collect()
        gc.disable()
        try:
            kept = verb()
            # TensorStore's own threads close its files.
            assert in_time(lambda: not held()) if form is orbax else held() == []
            del kept
        finally:
            gc.enable()


def closed(path: Path) -> treepack.File:
    with treepack.open(path) as file:
        assert file["c"][...][0] == 2
    return file
