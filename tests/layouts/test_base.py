"""Files that were saved with `base=`."""

from __future__ import annotations

import gzip
import io
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treepack
import treepack._core as core
from hostile import patches
from hostile.changes import packed, unpacked
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


@pytest.mark.parametrize("state", ["there", "a pipe", "missing", "damaged"])
@pytest.mark.parametrize("compress", [None, True, "numbers"])
def test_metadata_of_a_patch_need_no_base(
    compress: Any, state: str, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, path = files
    options: Any = {"base": base, "metadata": "new", "compress": compress}
    treepack.save(path, trees()[1], **options)
    data = path.read_bytes()
    if state == "damaged":
        base.write_bytes(b"text")
    elif state != "there":
        base.unlink()
    if state == "a pipe":
        os.mkfifo(base)
    monkeypatch.setattr(core, "join", lambda *_, **__: pytest.fail("it joins the base"))
    for source in (path, data, io.BytesIO(data)):
        assert treepack.is_checkpoint(source)
        assert treepack.read_metadata(source, max_size=10_000) == "new"
    damaged = bytearray(data)
    damaged[len(data) // 2] ^= 1
    assert not treepack.is_checkpoint(damaged)
    with pytest.raises(treepack.TreepackError):
        treepack.read_metadata(damaged)


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
    treepack.save(tmp_path / "new", tree, base=tmp_path / "held.gz", compress=compress)
    assert_same(treepack.load(tmp_path / "new"), tree)
    with treepack.open(tmp_path / "new") as file:
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
        ("sharded", "the base is a directory: pass the tree"),
        ("safetensors", "the base is a safetensors file: pass the tree"),
        ("npz", "the base is an npz archive of NumPy: pass the tree"),
        ("pipe", "not a regular file"),
    ],
)
def test_errors_name_a_base_that_cannot_be_used(files: tuple[Path, Path], kind: str, message: str):
    held, tree = trees()
    data = files[0].read_bytes()
    files[0].unlink()
    if kind == "sharded":
        treepack.save(files[0], held, sharded=True)
    elif kind == "safetensors":
        treepack.save(files[0].with_suffix(".safetensors"), held["params"])
        files[0].with_suffix(".safetensors").rename(files[0])
    elif kind == "npz":
        with files[0].open("wb") as file:
            np.savez(file, w=np.zeros(3))
    elif kind == "pipe":
        os.mkfifo(files[0])
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


def test_a_patch_of_an_iterator_names_its_base(files: tuple[Path, Path]):
    base, path = files[0], files[0].with_name("leaves.treepack")
    with treepack.open(treepack.dumps(trees()[1])) as file:
        treepack.save(path, file.leaves(), base=base)
        with pytest.raises(ValueError, match="is the file of base=, which the patch would"):
            treepack.save(base, file.leaves(), base=base)
    assert_same(treepack.load(path), trees()[1])


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
    with pytest.raises(TypeError, match="unexpected keyword argument 'base'"):
        treepack.save_exported(tmp_path / "function", None, base=held)  # type: ignore[call-arg, arg-type]


FORMS = {
    "safetensors": "a safetensors file",
    "repository": "a directory",
    "sharded": "a directory",
    "npz": "an npz archive of NumPy",
    "orbax": "a directory",
    "patch": "a patch itself",
}


def written(form: str, held: Any, folder: Path) -> Path:
    """Writes a tree in another form than one whole file of treepack, and returns its path."""
    path = folder / {"safetensors": "it.safetensors", "npz": "it.npz"}.get(form, "it")
    if form == "npz":
        np.savez(path, **held)
    elif form == "orbax":
        orbax = pytest.importorskip("orbax.checkpoint")
        with orbax.StandardCheckpointer() as checkpointer:
            checkpointer.save(path, held)
    else:
        treepack.save(folder / "base", held)
        options: dict[str, Any] = {
            "repository": {"format": "safetensors"},
            "sharded": {"sharded": True},
            "patch": {"base": folder / "base"},
        }
        treepack.save(path, held, **options.get(form, {}))
    return path


def verbs_of(held: Any, folder: Path) -> dict[str, Any]:
    """Returns the verbs that take a base; `new` is a patch of a tree against itself."""
    patch = treepack.dumps(held, base=held)
    (folder / "new").write_bytes(patch)
    return {
        "dumps": lambda base: treepack.dumps(held, base=base),
        "buffers": lambda base: treepack.buffers(held, base=base),
        "packed_size": lambda base: treepack.packed_size(held, base=base),
        "pack_into": lambda base: treepack.pack_into(held, bytearray(9000), base=base),
        "save": lambda base: treepack.save(folder / "other", held, base=base),
        "loads": lambda base: treepack.loads(patch, base=base),
        "load": lambda base: treepack.load(folder / "new", base=base),
        "select": lambda base: treepack.load(folder / "new", select="w", base=base),
    }


@pytest.mark.parametrize("form", FORMS)
def test_every_verb_refuses_a_base_in_another_form(form: str, tmp_path: Path):
    held = {"w": np.arange(1000.0)}
    path = written(form, held, tmp_path)
    verbs = verbs_of(held, tmp_path)
    with treepack.open(path) as file:
        bases: dict[str, Any] = {"path": path, "file": file}
        if path.is_file():
            bases |= {"bytes": path.read_bytes()}
        for kind, base in bases.items():
            what = FORMS[form] if kind != "file" or form == "patch" else "a checkpoint of "
            for name, verb in verbs.items():
                with pytest.raises(treepack.TreepackError, match="pass the tree that") as error:
                    verb(base)
                assert f"the base is {what}" in str(error.value), (kind, name)
    assert not (tmp_path / "other").exists()
    with path.parent.joinpath("new").open("rb") as stream:
        for verb in verbs.values():
            with pytest.raises(TypeError, match=r"file object: pass treepack.open\(file\)"):
                verb(stream)


def test_every_verb_refuses_a_base_that_is_no_tree(tmp_path: Path):
    """Each was taken as a tree, so that a patch had no differences, and no reader its base."""
    held = {"w": np.arange(1000.0), "params": {"b": np.ones(9)}}
    path = tmp_path / "held"
    treepack.save(path, held)
    verbs = verbs_of(held, tmp_path)
    with treepack.open(path) as file:
        for base, text in [
            (file["w"], "got LazyArray, a part of an open file: pass the File, or load the part"),
            (file["params"], "got Tree, a part of an open file: pass the File, or load the part"),
            ([str(path)], r"got a list of paths, .*: pass one file, or treepack\.dumps\(tree\)"),
            ((path,), "got a tuple of paths"),
            ({"held": str(path), "new": path}, "got a dict of paths"),
            ([file], "got a list of paths, files"),
            *(
                (leaf, "got .*: pass the tree, or the file")
                for leaf in (3, 0.5, True, len, object())
            ),
        ]:
            for name, verb in verbs.items():
                with pytest.raises(TypeError, match=rf"^base= takes a tree, .* {text}") as error:
                    verb(base)
                assert len(str(error.value)) < 250, name
        with treepack.open(path, mapping={"v": "w"}) as mapped:  # its arrays are not in a file
            for verb in verbs.values():
                with pytest.raises(treepack.TreepackError, match="an open file with a mapping: "):
                    verb(mapped)
        lazy = {"w": file["w"], "params": {"b": file["params/b"]}}
        for base in (path, str(path), file, path.read_bytes(), held, lazy):
            for verb in verbs.values():
                verb(base)
    for base in ({}, [], held["w"], {"text": b"", "step": 3}, treepack.dumps(["a text"])):
        for name, verb in verbs.items():
            if name in ("load", "loads", "select"):
                with pytest.raises(treepack.BaseMismatchError, match="has none of the leaves: w"):
                    verb(base)
            else:
                verb(base)


@pytest.mark.parametrize("name", ["", "..", "/etc/passwd", "a/b", "a\0b"])
def test_a_patch_names_a_file_in_its_directory(tmp_path: Path, name: str) -> None:
    held = {"w": np.zeros(9)}
    treepack.save(tmp_path / "held", held)
    treepack.save(tmp_path / "new", {"w": np.ones(9)}, base=tmp_path / "held")
    tree, record = patches.taken((tmp_path / "new").read_bytes())
    renamed = patches.sealed(tree, packed({**unpacked(record), "base": name}))
    (tmp_path / "new").write_bytes(renamed)
    for read in (treepack.load, treepack.open, treepack.abstract):
        with pytest.raises(treepack.BaseMismatchError, match="this is a patch: pass base="):
            read(tmp_path / "new")
    assert "this is a patch: pass base=" in str(treepack.verify(tmp_path / "new").damage)
    np.testing.assert_array_equal(treepack.load(tmp_path / "new", base=held)["w"], np.ones(9))


def test_the_base_is_no_pipe_and_no_larger_than_max_size(tmp_path: Path):
    held = {"w": np.zeros(1 << 20)}
    treepack.save(tmp_path / "held.gz", held)
    treepack.save(tmp_path / "new", {"x": np.zeros(9)}, base=tmp_path / "held.gz")
    os.mkfifo(tmp_path / "pipe")
    for base in ({}, {"base": tmp_path / "held.gz"}, {"base": (tmp_path / "held.gz").read_bytes()}):
        assert treepack.load(tmp_path / "new", **base)["x"].shape == (9,)
        for select in ({}, {"select": "x"}):
            with pytest.raises(treepack.TreepackError, match="max_size=100000 "):
                treepack.load(tmp_path / "new", max_size=100_000, **base, **select)
    for read in (treepack.open, treepack.abstract):
        with pytest.raises(treepack.TreepackError, match="max_size=100000 "):
            read(tmp_path / "new", max_size=100_000)
    assert "max_size=100000 " in str(treepack.verify(tmp_path / "new", max_size=100_000).damage)
    with pytest.raises(treepack.DecodeError, match=r"pipe'.*not a regular file"):
        treepack.load(tmp_path / "new", base=tmp_path / "pipe")
    (tmp_path / "held.gz").unlink()
    (tmp_path / "pipe").rename(tmp_path / "held.gz")
    with pytest.raises(treepack.BaseMismatchError, match=r"held\.gz'.*not a regular file"):
        treepack.load(tmp_path / "new")


def test_a_url_as_a_base_takes_the_options_of_the_call():
    fsspec = pytest.importorskip("fsspec")
    memory = pytest.importorskip("fsspec.implementations.memory")

    class Locked(memory.MemoryFileSystem):  # type: ignore[name-defined, misc]
        protocol = "locked"

        def __init__(self, *args: Any, password: str | None = None, **options: Any):
            if password != "open":
                raise PermissionError("locked:// needs a password")
            super().__init__(*args, **options)

    fsspec.register_implementation("locked", Locked, clobber=True)
    held, tree = trees()
    options: Any = {"storage_options": {"password": "open"}}
    treepack.save("locked://held.treepack", held, **options)
    treepack.save("locked://new.treepack", tree, base="locked://held.treepack", **options)
    assert_same(treepack.load("locked://new.treepack", **options), tree)
    found = treepack.load("locked://new.treepack", base="locked://held.treepack", **options)
    assert_same(found, tree)
    assert_same(treepack.load("locked://new.treepack", base=held, **options), tree)
