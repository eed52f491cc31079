"""Archives of NumPy that are damaged, hostile, or none."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from commands import call, refused
from treepack import DecodeError
from treepack._cli import convert as _convert


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def archive_of(
    *members: tuple[str, bytes], method: int = zipfile.ZIP_STORED, flipped: int | None = None
) -> None:
    with zipfile.ZipFile("bad.npz", "w", method) as archive:
        for name, content in members:
            archive.writestr(name, content)
    if flipped is not None:
        data = bytearray(Path("bad.npz").read_bytes())
        data[flipped] ^= 1
        Path("bad.npz").write_bytes(data)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_archives_that_are_refused(folder: Path, method: int) -> None:
    good = npy(np.ones(20))
    longer = good.replace(b"(20,), ", b"(2000,)")
    negative = good.replace(b"(20,)", b"(-2,)")
    objects = npy(np.array([{}, 1], dtype=object))
    for members, message in (
        ([("a.npy", good[:-3])], "short read"),
        ([("a.npy", longer), ("b.npy", good)], "short read"),
        ([("a.npy", negative)], "short read"),
        ([("a.npy", good), ("a.npy", good)], "two arrays"),
        ([("a.npy", good), ("a", good)], "two arrays"),
        ([("a.txt", b"what is no array")], "magic"),
        ([("a.npy", objects)], "never read"),
        ([("a.npy", good.replace(b"(20,), ", b"((20,),"))], "not a readable file of numpy.savez"),
    ):
        archive_of(*members, method=method)
        with pytest.raises(DecodeError, match=message):
            _convert.read_npz("bad.npz", ".")
    archive_of(("a.npy", good), method=method, flipped=60)
    with pytest.raises(DecodeError):
        _convert.read_npz("bad.npz", ".")
    archive_of(("a.npy", good), method=zipfile.ZIP_LZMA)
    with pytest.raises(DecodeError, match="method 14"):
        _convert.read_npz("bad.npz", ".")
    archive_of(("folder/", b""), ("folder/a.npy", good), method=method)
    np.testing.assert_array_equal(
        np.asarray(_convert.read_npz("bad.npz", "/").tree["folder"]["a"].flat_range(0, 20))
        if method == zipfile.ZIP_STORED
        else _convert.read_npz("bad.npz", "/").tree["folder"]["a"],
        np.ones(20),
    )


def test_archives_of_many_arrays_are_opened_once(folder: Path) -> None:
    np.savez("many.npz", **{f"a{index}": np.ones(2) for index in range(50)})
    before = len(os.listdir("/dev/fd"))  # noqa: PTH208
    state = _convert.read_npz("many.npz", ".")
    assert len(os.listdir("/dev/fd")) <= before + 2  # noqa: PTH208
    assert state.tree["a49"].flat_range(0, 2).tolist() == [1, 1]


def test_files_other_than_archives(folder: Path) -> None:
    for content in (b"", b"PK", npy(np.ones(2)), b"PK\x03\x04" + bytes(40)):
        Path("bad.npz").write_bytes(content)
        with pytest.raises(DecodeError, match=r"not a readable file of numpy\.savez"):
            call("convert", "bad.npz", "new")
    np.savez("text.npz", a=np.array(["x"]))
    assert "cannot serialize" in refused("convert", "text.npz", "new")
    assert not Path("new").exists()
