"""Runs with a fast directory, and a gate before the copies of their checkpoints."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treepack
from treepack import Series
from treepack._src.series import fast as fast_module

forms = pytest.mark.parametrize("sharded", [False, True])


def state(step: int) -> dict[str, Any]:
    return {"w": np.full(3000, step, np.float32), "step": step}


def run_at(folder: Path, **options: Any) -> Series:
    return Series(folder / "run", fast=folder / "fast", **options)


def save(run: Series, *steps: int, **options: Any) -> None:
    for step in steps:
        run.save(step, state(step), metrics={"loss": 1 / (step + 1)}, local=step, **options)


def check(run: Series, step: int) -> None:
    found = run.resume(state(0))
    assert found is not None
    assert found[0] == found[1]["step"] == run.local == step
    assert (found[1]["w"] == step).all()
    assert treepack.load(run.path(step))["step"] == step
    assert run.metrics(step) == {"loss": 1 / (step + 1)}


def steps_in(folder: Path) -> list[int]:
    return Series(folder).steps()


class Gate:
    """Holds drains before they copy, until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.copied: list[int] = []
        self.has_come = threading.Event()
        self._opened = threading.Event()
        original = fast_module.Fast._copy

        def copy(fast: Any, summary: Any) -> None:
            self.has_come.set()
            self._opened.wait()
            original(fast, summary)
            self.copied.append(summary.step)

        monkeypatch.setattr(fast_module.Fast, "_copy", copy)

    def open(self) -> None:
        self._opened.set()

    @contextlib.contextmanager
    def closed(self) -> Iterator[None]:
        self._opened.clear()
        self.has_come.clear()
        try:
            yield
        finally:
            self._opened.set()


def damage(path: str) -> None:
    if Path(path).is_dir():
        path = str(next(it for it in Path(path).iterdir() if "manifest" not in it.name))
    data = bytearray(Path(path).read_bytes())
    data[2000] ^= 1
    Path(path).write_bytes(data)
