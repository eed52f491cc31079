"""Files of other formats that are replaced whole, where the system lacks what Linux has."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from treepack._src.storage import write


def test_an_open_file_is_not_renamed_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "fcntl", None)
    replace = Path.replace

    def replace_as_windows(self: Path, target: Path) -> Path:
        assert file.closed
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", replace_as_windows)
    with write.replacing(tmp_path / "model") as file:
        file.write(b"new")
    assert (tmp_path / "model").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["model"]  # noqa: PTH208


def test_temporary_files_are_closed_when_they_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = Path.unlink

    def unlink_as_windows(self: Path, missing_ok: bool = False) -> None:
        assert file.closed
        unlink(self, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink_as_windows)
    with write.spool(tmp_path / "model") as file:
        file.write(b"spooled")
    assert not [*tmp_path.iterdir()]


def test_the_mask_of_the_process_is_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.umask(0o027)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "umask", lambda mask: pytest.fail("another thread makes files, too"))
            with write.replacing(tmp_path / "model") as file:
                file.write(b"new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "model").stat().st_mode) == 0o640
    (tmp_path / "model").chmod(0o604)
    with write.replacing(tmp_path / "model") as file:
        assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "model").stat().st_mode) == 0o604


@pytest.mark.parametrize("refused", [False, True])
def test_macos_is_asked_to_empty_the_cache_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    called: list[Any] = []

    def control(file: int, command: str) -> None:
        called.append(command)
        if refused:
            raise OSError

    macos = {**vars(fcntl), "fcntl": control, "F_FULLFSYNC": "full"}
    monkeypatch.setattr(write, "fcntl", SimpleNamespace(**macos))
    monkeypatch.setattr(os, "fsync", lambda file: called.append("fsync"))
    with write.replacing(tmp_path / "model") as file:
        file.write(b"new")
    # The file, and its directory.
    assert called == 2 * (["full", "fsync"] if refused else ["full"])
