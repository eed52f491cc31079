"""Files of other formats that are replaced whole."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

import treepack._core as core
from treepack._src.storage import write
from treepack._src.storage.address import Address


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes the ends of temporary files; Windows neither renames nor removes an open one."""
    ends: list[str] = []
    opened: list[Any] = []

    make = core.Replacement

    class Replacement:
        def __init__(self, path: Path, *, private: bool):
            self._made = make(path, private=private)

        def __getattr__(self, name: str) -> Any:
            if name in ("complete", "discard"):
                assert opened[-1].closed
                ends.append(name)
            return getattr(self._made, name)

    class Named(write._Named):
        def __init__(self, *arguments: Any):
            super().__init__(*arguments)
            opened.append(self)

    monkeypatch.setattr(write.core, "Replacement", Replacement)
    monkeypatch.setattr(write, "_Named", Named)
    return ends


def test_files_are_closed_before_they_are_renamed_or_removed(
    tmp_path: Path, closed: list[str]
) -> None:
    with Address.of(tmp_path / "model").replacing() as file:
        file.write(b"new")
    assert (tmp_path / "model").read_bytes() == b"new"
    assert closed == ["complete", "discard"]
    with Address.of(tmp_path / "model").spool() as file:
        file.write(b"spooled")
        assert len([*tmp_path.iterdir()]) == 2
    assert [*tmp_path.iterdir()] == [tmp_path / "model"]
    assert closed == ["complete", "discard", "discard"]


def test_the_mask_of_the_process_is_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.umask(0o027)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "umask", lambda mask: pytest.fail("another thread makes files, too"))
            with Address.of(tmp_path / "model").replacing() as file:
                file.write(b"new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "model").stat().st_mode) == 0o640
    (tmp_path / "model").chmod(0o604)
    with Address.of(tmp_path / "model").replacing() as file:
        assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "model").stat().st_mode) == 0o604
