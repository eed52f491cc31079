"""What the functions take as a file: paths and URLs of all kinds, data, file objects."""

from __future__ import annotations

import errno
import functools
import io
import itertools
import os
import pickle
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treepack
from treepack import checkpoints, serialization
from treepack._src.storage.address import Address

TREE = {"w": np.arange(6.0), "step": 3}


READS: list[Any] = [
    *(treepack.load, treepack.open, treepack.verify, treepack.abstract, treepack.read_metadata),
    *(treepack.is_checkpoint, lambda source: treepack.load(source, select="w")),
]


def test_invalid_sources_name_the_valid_ones(tmp_path: Path) -> None:
    treepack.save(tmp_path / "model", TREE)
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.write(tmp_path / "model", "model")
    fsspec = pytest.importorskip("fsspec")
    reader, writer = os.pipe()
    os.close(writer)
    with (
        (tmp_path / "model").open() as text,
        treepack.open(tmp_path / "model") as file,
        tempfile.NamedTemporaryFile("w+") as temporary,
        os.fdopen(reader, "rb") as pipe,
    ):
        for source, kind, message in (
            (None, TypeError, "got NoneType"),
            ([1], TypeError, "got list"),
            (fsspec.open(str(tmp_path / "model")), TypeError, "got OpenFile: open it first"),
            (zipfile.Path(tmp_path / "all.zip", "model"), TypeError, "Path: open it first"),
            (file, TypeError, "got File: pass its path, or call its methods, such as load"),
            (text, TypeError, "with mode 'rb'"),
            (io.StringIO("x"), TypeError, "with mode 'rb'"),
            (temporary, TypeError, "with mode 'rb'"),
            (pipe, OSError, r"not seekable.*: pass the result of its read\(\)"),
        ):
            for verb in READS:
                with pytest.raises(kind, match=message):
                    verb(source)


def test_invalid_places_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stream = ": pass its path$"
    writes: list[tuple[str, Any]] = [
        (r": pass its path, or write the result of dumps\(tree\) to it", treepack.save),
        (
            r": pass its path, or write the result of to_bytes\(target\) to it",
            lambda path, tree: serialization.save_to_file(tree, path),
        ),
        (stream, lambda path, tree: treepack.write_stream(path, [("a", 1)])),
        (stream, lambda path, tree: next(treepack.read_stream(path))),
        (stream, lambda path, tree: serialization.load_from_file(tree, path)),
    ]
    for in_its_place, write in writes:
        for place, remedy in (
            (io.BytesIO(), in_its_place),
            (None, ": pass it as a str or a pathlib.Path$"),
            (b"name", r": pass os.fsdecode\(path\)$"),
            ({}, r": the path comes first, as in save\(path, tree\)"),
        ):
            message = f"expected a path or a URL, got {type(place).__name__}{remedy}"
            with pytest.raises(TypeError, match=message):
                write(place, TREE)
        with pytest.raises(FileNotFoundError, match=": ''"):
            write("", TREE)
    for verb in READS[:-2]:
        with pytest.raises(FileNotFoundError, match=": ''"):
            verb("")
    assert not treepack.is_checkpoint("")
    assert not list(tmp_path.iterdir())


def reads_everywhere(path: Any, **options: Any) -> None:
    assert treepack.load(path, **options)["step"] == 3
    assert treepack.load(path, select="step", **options) == {"step": 3}
    assert treepack.abstract(path, **options)["step"] == 3
    assert treepack.read_metadata(path, **options) == {"a": 1}
    assert treepack.verify(path, **options).ok
    with treepack.open(path, **options) as file:
        assert file["step"] == 3


@pytest.mark.parametrize("sharded", [False, True])
def test_options_reach_the_file_system(tmp_path: Path, sharded: bool) -> None:
    pytest.importorskip("fsspec")
    options = {"path": str(tmp_path), "target_protocol": "file"}
    treepack.save("dir://model", TREE, metadata={"a": 1}, sharded=sharded, storage_options=options)
    assert (tmp_path / "model").exists()
    reads_everywhere("dir://model", storage_options=options)
    with treepack.open("dir://model", storage_options=options) as file:
        assert pickle.loads(pickle.dumps(file))["step"] == 3


def test_options_without_a_url_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "model"
    for source in (path, str(path), treepack.dumps(TREE), io.BytesIO()):
        for verb in (
            treepack.load,
            treepack.open,
            treepack.verify,
            treepack.abstract,
            treepack.read_metadata,
        ):
            with pytest.raises(ValueError, match="storage_options="):
                verb(source, storage_options={"a": 1})
    with pytest.raises(ValueError, match="storage_options="):
        treepack.save(path, TREE, storage_options={})
    assert not path.exists()


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for path in ("~/model", Path("~/other")):
        treepack.save(path, TREE, metadata={"a": 1})
        assert (tmp_path / Path(path).name).is_file()
        reads_everywhere(path)
    treepack.save("~unknown-to-all/model", TREE)  # as the system takes it
    treepack.save("./~/model", TREE)
    assert {it.name for it in tmp_path.iterdir()} == {"model", "other", "~", "~unknown-to-all"}


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("remote", [False, True])
def test_upath(tmp_path: Path, remote: bool, sharded: bool) -> None:
    upath = pytest.importorskip("upath")
    path = upath.UPath(f"memory://{tmp_path}/model") if remote else upath.UPath(tmp_path / "model")
    treepack.save(path, TREE, metadata={"a": 1}, sharded=sharded)
    assert path.exists()
    reads_everywhere(path)
    treepack.save(path, TREE, metadata={"a": 1}, sharded=sharded, background=True).result()
    reads_everywhere(path)


def test_a_series_keeps_the_file_system_of_its_directory() -> None:
    upath = pytest.importorskip("upath")
    path = upath.UPath("memory://a//series", skip_instance_cache=True)
    found = Address.directory(path).normal()
    assert found == "memory://a/series"
    assert found.url is not None
    assert found.url.file_system is path.fs


@pytest.mark.parametrize(
    ("given", "normal"),
    [
        ("s3://b//a/./c/../d/", "s3://b/a/d"),
        ("s3://b/../a", "s3://b/a"),  # of the same bucket
        ("s3://b//", "s3://b"),
        ("s3://b", "s3://b"),
        ("memory://", "memory://"),
        ("memory:///a//b", "memory:///a/b"),
        ("simplecache::s3://b//a", "simplecache::s3://b//a"),
    ],
)
def test_normal_urls(given: str, normal: str) -> None:
    assert Address.of(given).normal() == normal


def test_upath_brings_its_options() -> None:
    upath = pytest.importorskip("upath")
    path = upath.UPath("memory://x/y", skip_instance_cache=True)
    found = Address.of(path).url
    assert found is not None
    assert found.options == {"skip_instance_cache": True}
    both = Address.of(path, {"a": 1})
    assert both.beside("z") == "memory://x/z"
    for same in (
        *(both, both / "z", both.beside("z"), both.absolute(), both.normal(), both.real()),
        pickle.loads(pickle.dumps(both)),
    ):
        assert same.url.options == {"skip_instance_cache": True, "a": 1}
        assert same.url.text == same


def test_options_reach_the_file_system_of_exported_functions(tmp_path: Path) -> None:
    pytest.importorskip("flatbuffers")
    pytest.importorskip("fsspec")
    jax = pytest.importorskip("jax")
    exported = jax.export.export(jax.jit(lambda x: x + 1))(1.0)
    options = {"path": str(tmp_path), "target_protocol": "file"}
    treepack.save_exported("dir://f", exported, {"a": 1}, storage_options=options)
    assert treepack.load_exported("dir://f", storage_options=options).params == {"a": 1}


class BytesPath(os.PathLike[bytes]):
    def __init__(self, path: str):
        self.path = path

    def __fspath__(self) -> bytes:
        return os.fsencode(self.path)


def read_by_all(path: Any) -> Iterator[Any]:
    """Yields the array of a checkpoint as each verb reads it."""
    yield treepack.load(path)["w"]
    yield treepack.load(path, {"w": np.zeros(6)}, strict=False)["w"]
    yield treepack.load(path, select="w")["w"]
    with treepack.open(path) as file:
        yield file["w"][...]
    assert treepack.abstract(path)["w"].shape == (6,)
    assert treepack.verify(path).damage is None
    assert treepack.is_checkpoint(path)
    assert treepack.diff(path, path) == []
    treepack.read_metadata(path)


def save_with_orbax(path: Any) -> None:
    ocp = pytest.importorskip("orbax.checkpoint")
    with ocp.StandardCheckpointer() as saver:
        saver.save(path, {"w": TREE["w"]})


# How each form is written, and read.
FORMS: dict[str, tuple[Any, Any]] = {
    "plain": (lambda path: treepack.save(path, TREE), read_by_all),
    "sharded": (lambda path: treepack.save(path, TREE, sharded=True), read_by_all),
    "repository": (
        lambda path: treepack.save(path, {"w": TREE["w"]}, format="safetensors"),
        read_by_all,
    ),
    "orbax": (save_with_orbax, read_by_all),
    "series": (
        lambda path: treepack.Series(path).save(1, TREE),
        lambda path: [treepack.Series(path).resume(TREE)[1]["w"]],
    ),
    "published": (
        lambda path: treepack.Publisher(path).push(TREE, version=1),
        lambda path: [treepack.Subscriber(path).latest()[1]["w"]],
    ),
    "run": (
        lambda path: checkpoints.save_checkpoint(path, TREE, 1),
        lambda path: [checkpoints.restore_checkpoint(path, None)["w"]],
    ),
}

SPELLINGS: list[Any] = [
    *("inner/{}", "{root}/inner/{}", "./inner//././{}", "/{root}/inner/{}", "link/../{}"),
    *("file://{root}/inner/{}", "FILE://{root}/inner/./{}", "file:{root}/inner/{}"),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("wrap", [str, Path, BytesPath])
def test_every_spelling_of_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, wrap: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inner" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to("inner/deep")
    write, read = FORMS[form]
    for number, spelling in enumerate(SPELLINGS):
        path = spelling.format(f"{form}{number}", root=tmp_path)
        if form == "run" and ".." in path:
            continue  # flax joins it without looking at links
        if wrap is not Path and form != "plain":
            path += "/"
        write(tmp_path / "inner" / f"{form}{number}" if form == "orbax" else wrap(path))
        assert (tmp_path / "inner" / f"{form}{number}").exists(), path
        for found in read(wrap(path)):
            np.testing.assert_array_equal(found, TREE["w"])


@pytest.mark.parametrize("form", [form for form in FORMS if form != "orbax"])
def test_relative_paths_need_a_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """The table of promises has absolute ones."""
    write, _ = FORMS[form]
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(FileNotFoundError, match="working directory was removed: pass"):
        write(form)
    with pytest.raises(FileNotFoundError, match="working directory was removed: pass"):
        serialization.save_to_file(TREE, form)


@pytest.mark.parametrize("form", [form for form in FORMS if form not in ("plain", "orbax")])
def test_listings_that_signals_interrupt_are_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Python repeats `open`, but not `scandir`."""
    write, read = FORMS[form]
    scandir, turns = os.scandir, itertools.count()

    def interrupted(path: Any) -> Any:
        if next(turns) % 2 == 0:
            raise InterruptedError(errno.EINTR, os.strerror(errno.EINTR), path)
        return scandir(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", interrupted)
        write(tmp_path / form)
        for found in read(tmp_path / form):
            np.testing.assert_array_equal(found, TREE["w"])
    assert next(turns) > 0


def test_streams_take_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    treepack.write_stream("~/stream", [("a/b", 1)])
    assert dict(treepack.read_stream("~/stream")) == {("a", "b"): 1}


def test_series_and_the_drop_in_take_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    path = checkpoints.save_checkpoint("~/run", TREE, 3)
    assert Path(path) == tmp_path / "run" / "checkpoint_3"
    assert checkpoints.latest_checkpoint("~/run") == path
    assert checkpoints.available_steps("~/run") == [3]
    assert checkpoints.restore_checkpoint("~/run", None)["step"] == 3
    serialization.save_to_file(TREE, "~/file")
    assert serialization.load_from_file(None, "~/file")["step"] == 3
    assert not (tmp_path / "~").exists()


@pytest.mark.parametrize("sharded", [False, True])
def test_series_at_other_places(tmp_path: Path, sharded: bool) -> None:
    """A UPath with options of its own, and a URL with options beside it."""
    upath = pytest.importorskip("upath")
    options = {"path": str(tmp_path), "target_protocol": "file"}
    save = checkpoints.save_checkpoint_multiprocess if sharded else checkpoints.save_checkpoint
    for directory, rest in (
        ("dir://one", {"storage_options": options}),
        (upath.UPath(f"memory://{tmp_path}/two", skip_instance_cache=False), {}),
        (Address.of("dir://three", options), {}),
    ):
        for step in (1, 2, 3):
            path = save(directory, TREE, step, keep=2, **rest)
        assert checkpoints.available_steps(directory, **rest) == [2, 3]
        assert checkpoints.latest_checkpoint(directory, **rest) == path
        for step in (None, 2):
            found = checkpoints.restore_checkpoint(directory, None, step, **rest)
            np.testing.assert_array_equal(found["w"], TREE["w"])
        assert checkpoints.restore_checkpoint(path, None)["step"] == 3  # it brings its options
    assert (tmp_path / "one" / "checkpoint_3").exists()


def test_files_of_the_drop_in_at_other_places(tmp_path: Path) -> None:
    upath = pytest.importorskip("upath")
    options = {"path": str(tmp_path), "target_protocol": "file"}
    serialization.save_to_file(TREE, "dir://file", storage_options=options)
    assert serialization.load_from_file(None, "dir://file", storage_options=options)["step"] == 3
    place = upath.UPath(f"memory://{tmp_path}/file")
    serialization.save_to_file(TREE, place)
    assert serialization.load_from_file(None, place)["step"] == 3
    treepack.write_stream(tmp_path / "stream", [("a", 1)])
    found = treepack.read_stream("dir://stream", storage_options=options)
    assert dict(found) == {("a",): 1}


def test_returned_paths_are_plain_text(tmp_path: Path) -> None:
    """A tree, its metadata and pickles of other programs may have them."""
    paths: list[Any] = [
        checkpoints.save_checkpoint(tmp_path, TREE, 1),
        checkpoints.save_checkpoint_multiprocess(tmp_path, TREE, 2),
        checkpoints.latest_checkpoint(tmp_path),
        treepack.Series(tmp_path).path(1),
        treepack.save(tmp_path / "model", TREE, background=True),
        serialization.save_to_file(TREE, tmp_path / "file", background=True),
    ]
    for saving in paths[-2:]:
        saving.result()
    paths[-2:] = [saving.path for saving in paths[-2:]]
    with treepack.open(tmp_path / "model") as file:
        paths.append(file.path)
    for read in (treepack.load, treepack.open):
        with pytest.raises(OSError, match="nothing") as caught:
            read(tmp_path / "nothing")
        paths.append(caught.value.filename)
    assert {*map(type, paths)} == {str}
    treepack.save(tmp_path / "paths", paths, metadata=paths)
    assert treepack.load(tmp_path / "paths") == paths


def test_epath(tmp_path: Path) -> None:
    epath = pytest.importorskip("etils.epath")
    path = epath.Path(tmp_path) / "model"
    treepack.save(path, TREE, metadata={"a": 1})
    reads_everywhere(path)


@pytest.mark.parametrize("url", ["s3://bucket/x", "memory://x/y", "file"])
def test_errors_about_options_do_not_show_them(url: str) -> None:
    wrong: Any = "hidden-key"
    for call in (
        lambda: treepack.save(url, TREE, storage_options=wrong),
        lambda: Address.of(url, wrong),
    ):
        with pytest.raises(TypeError, match=r"storage_options= must be a dict.*got str") as caught:
            call()
        assert "hidden-key" not in str(caught.value)


@pytest.mark.parametrize("url", ["memory://", "memory://bucket-like/folder/"])
def test_no_file_is_saved_at_the_url_of_a_directory(url: str) -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(IsADirectoryError, match="directory: 'memory://"):
        treepack.save(url, TREE)
    assert not treepack.is_checkpoint("memory://bucket-like/folder")


@pytest.mark.parametrize(
    "path", ["folder/a\0b", "a\0.safetensors", "a\0/", "file:///a\0b", "a\0.npz"]
)
def test_paths_with_nul_are_refused_by_each_verb(folder: Path, path: str) -> None:
    """Python and Rust have other words for each."""
    treepack.save("other", TREE)
    arrays = {"w": np.ones(3)}
    calls: list[Any] = [
        *[functools.partial(read, path) for read in READS],
        *(lambda: treepack.open(path, salvage=True), lambda: treepack.diff("other", path)),
        lambda: treepack.save(path, arrays, format="safetensors"),
        lambda: treepack.save("new", TREE, base=path),
        lambda: treepack.load("other", base=path),
        lambda: treepack.load_exported(path),
        lambda: list(treepack.read_stream(path)),
        lambda: treepack.Series(path),
        lambda: treepack.Publisher(path),
        lambda: treepack.Subscriber(path),
        lambda: checkpoints.restore_checkpoint(path, None),
        lambda: checkpoints.save_checkpoint(path, TREE, 1),
        lambda: checkpoints.latest_checkpoint(path),
    ]
    if "npz" not in path and "safetensors" not in path:
        calls += [
            lambda: treepack.save(path, TREE),
            lambda: treepack.save(path, TREE, sharded=True),
            lambda: treepack.save(path, TREE, background=True),
            lambda: treepack.write_stream(path, []),
            lambda: serialization.save_to_file(TREE, path),
        ]
    for call in calls:
        with pytest.raises(
            ValueError, match=r"\\x00.* contains NUL, which no path has: leave it out"
        ):
            call()
