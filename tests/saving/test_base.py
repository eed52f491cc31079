"""Files that were saved with `base=`."""

from __future__ import annotations

import gzip
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treepack
from trees import assert_same


def trees() -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns a tree, and the same after a step."""
    rng = np.random.default_rng(0)
    held = {
        "params": {"w": rng.standard_normal((100, 200)).astype(np.float32), "b": np.ones(300)},
        "step": 3,
    }
    w = held["params"]["w"].copy()
    w[::10] *= np.float32(1.001)
    return held, {"params": {**held["params"], "w": w}, "step": 4}


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Returns a file, and one that was saved with it as its base."""
    held, tree = trees()
    treepack.save(tmp_path / "held.treepack", held)
    treepack.save(tmp_path / "new.treepack", tree, base=tmp_path / "held.treepack", metadata="new")
    return tmp_path / "held.treepack", tmp_path / "new.treepack"


def test_a_base_is_found_beside_its_patch(files: tuple[Path, Path], tmp_path: Path):
    held, tree = trees()
    base, path = files
    assert path.stat().st_size < base.stat().st_size / 10
    assert_same(treepack.load(path), tree)
    assert_same(treepack.load(path, held), tree)
    assert_same(treepack.load(path, select="params/w"), {"params": {"w": tree["params"]["w"]}})
    assert treepack.read_metadata(path) == "new"
    assert treepack.abstract(path)["params"]["w"].shape == (100, 200)
    assert treepack.verify(path).ok
    assert treepack.is_checkpoint(path)
    with treepack.open(path) as file:
        assert_same(file["params/w"][3:5], tree["params"]["w"][3:5])
        treepack.save(tmp_path / "whole.treepack", file.load())
    (tmp_path / "elsewhere").mkdir()
    moved = shutil.move(tmp_path / "whole.treepack", tmp_path / "elsewhere")
    assert_same(treepack.load(moved), tree)
    # Both move together.
    for it in files:
        shutil.move(it, tmp_path / "elsewhere")
    assert_same(treepack.load(tmp_path / "elsewhere" / "new.treepack"), tree)


@pytest.mark.parametrize("compress", ["gzip", "numbers"])
def test_patches_are_compressed_files(compress: Any, tmp_path: Path):
    held, tree = trees()
    treepack.save(tmp_path / "held.gz", held)
    treepack.save(tmp_path / "new.gz", tree, base=tmp_path / "held.gz", compress=compress)
    assert_same(treepack.load(tmp_path / "new.gz"), tree)
    with treepack.open(tmp_path / "new.gz") as file:
        assert file["step"] == 4


def test_a_base_elsewhere_is_given(files: tuple[Path, Path], tmp_path: Path):
    held, tree = trees()
    (tmp_path / "far").mkdir()
    path = tmp_path / "far" / "new.treepack"
    treepack.save(path, tree, base=files[0])
    with pytest.raises(treepack.TreepackError, match=r"new\.treepack': .*base="):
        treepack.load(path)
    with treepack.open(files[0]) as file:
        for base in (files[0], str(files[0]), file, held, files[0].read_bytes()):
            assert_same(treepack.load(path, base=base), tree)
            assert_same(treepack.load(path, held, base=base, select="**"), tree)
            treepack.save(tmp_path / "again", tree, base=base, background=True).result()
            assert_same(treepack.load(tmp_path / "again", base=base), tree)
    with pytest.raises(treepack.TreepackError, match="max_size=100 "):
        treepack.load(path, base=held, max_size=100)


def test_there_are_no_chains(files: tuple[Path, Path], tmp_path: Path):
    _, tree = trees()
    with pytest.raises(treepack.TreepackError, match="the base is a patch itself"):
        treepack.save(tmp_path / "third", tree, base=files[1])
    with (
        treepack.open(files[1]) as file,
        pytest.raises(treepack.TreepackError, match="the base is a patch itself"),
    ):
        treepack.save(tmp_path / "third", tree, base=file)
    shutil.copy(files[1], files[0])  # a patch of itself
    with pytest.raises(treepack.TreepackError, match="the base is a patch itself"):
        treepack.load(files[1])


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("cut", "ends early"),
        ("empty", "is empty"),
        ("gzip", "ended before"),
        ("patch", "a patch itself"),
        ("sharded", "Is a directory"),
    ],
)
def test_errors_name_a_base_that_cannot_be_used(files: tuple[Path, Path], kind: str, message: str):
    held, tree = trees()
    data = files[0].read_bytes()
    files[0].unlink()
    if kind == "sharded":
        treepack.save(files[0], held, sharded=True)
    else:
        cut = {"cut": data[:9000], "empty": b"", "gzip": gzip.compress(data)[:-500]}
        files[0].write_bytes(cut.get(kind) or (files[1].read_bytes() if kind == "patch" else b""))
    expected = rf"the base cannot be used: (?=.*held\.treepack).*{message}"
    for read in (treepack.load, treepack.open, treepack.abstract):
        with pytest.raises(treepack.BaseMismatchError, match=rf"new\.treepack': {expected}"):
            read(files[1])
    damage = treepack.verify(files[1]).damage
    assert damage is not None
    assert re.match(expected, damage)
    assert_same(treepack.load(files[1], base=held), tree)


def test_a_patch_does_not_replace_its_base(files: tuple[Path, Path], tmp_path: Path):
    base = files[0]
    link = tmp_path / "link"
    link.symlink_to(base)
    with treepack.open(base) as file:
        for given in (base, link, file, base.as_uri()):
            for place in (base, link, f"{base.parent}/./{base.name}"):
                with pytest.raises(ValueError, match="is the file of base=, which the patch would"):
                    treepack.save(place, trees()[1], base=given)
    assert_same(treepack.load(base), trees()[0])


def test_a_base_that_has_changed_is_another_one(files: tuple[Path, Path]):
    held, tree = trees()
    treepack.save(files[0], tree)
    with pytest.raises(treepack.BaseMismatchError, match=r"new.treepack.*differ: ") as error:
        treepack.load(files[1])
    assert error.value.paths == ["params/w"]
    with pytest.raises(treepack.BaseMismatchError):
        treepack.open(files[1])
    assert_same(treepack.load(files[1], base=held), tree)
    files[0].unlink()
    with pytest.raises(FileNotFoundError, match=r"held.treepack"):
        treepack.load(files[1])


def test_sharded_saves_have_no_base(files: tuple[Path, Path], tmp_path: Path):
    held, tree = trees()
    with pytest.raises(ValueError, match="base="):
        treepack.save(tmp_path / "sharded", tree, base=held, sharded=True)
    treepack.save(tmp_path / "sharded", held, sharded=True)
    for base in (tmp_path / "sharded", treepack.open(tmp_path / "sharded")):
        with pytest.raises(treepack.TreepackError, match="load this checkpoint, and pass its tree"):
            treepack.save(tmp_path / "new", tree, base=base)
    with pytest.raises(TypeError, match="unexpected keyword argument 'base'"):
        treepack.save_exported(tmp_path / "function", None, base=held)  # type: ignore[call-arg, arg-type]
