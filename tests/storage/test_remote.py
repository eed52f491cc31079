"""Files that are elsewhere: how many requests they take, and that they are whole or not there."""

from __future__ import annotations

import functools
import http.server
import io
import json
import os
import socket
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import fsspec
import fsspec.spec
import jax
import jax.numpy as jnp
import numpy as np
import obstore
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from safetensors.numpy import load_file

import tiers
import treepack
from support import servers
from treepack import serialization
from treepack._src.readers import reader
from treepack._src.storage import filesystems, remote
from treepack._src.storage.address import Address
from treepack._src.storage.urls import Url

TREE: dict[str, Any] = {
    f"layer_{index}": {"kernel": np.full((64, 1024), index, np.float32), "bias": np.zeros(3)}
    for index in range(60)
}


class Handler(http.server.SimpleHTTPRequestHandler):
    """Answers ranges, and counts."""

    requests: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        """Sends a range of a file."""
        type(self).requests.append(f"GET {self.headers.get('Range')}")
        path = Path(self.directory) / self.path[1:]
        if not path.is_file():
            self.send_error(404)
            return
        data = path.read_bytes()
        start, stop = 0, len(data)
        if "Range" in self.headers:
            first, last = self.headers["Range"].removeprefix("bytes=").split("-")
            start = int(first) if first else max(0, len(data) - int(last))
            stop = min(len(data), int(last) + 1) if first else len(data)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(stop - start))
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        self.wfile.write(data[start:stop])

    def do_HEAD(self) -> None:
        """Tells how large a file is."""
        type(self).requests.append("HEAD")
        path = Path(self.directory) / self.path[1:]
        self.send_response(200 if path.exists() else 404)
        self.send_header("Content-Length", str(path.stat().st_size if path.exists() else 0))
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("aiohttp")
    folder = tmp_path_factory.mktemp("served")
    treepack.save(folder / "saved", TREE, metadata={"step": 1})
    treepack.save(folder / "packed", TREE, compress=True)
    (folder / "flax").write_bytes(serialization.to_bytes(TREE))
    arrays: Any = {"a": np.arange(2000), "b": np.arange(2000)}
    treepack.save(folder / "repo", arrays, format="safetensors", max_shard_size=20_000)
    index = {"weight_map": {"a": "../saved"}}
    (folder / "repo" / "bad.safetensors.index.json").write_text(json.dumps(index))
    handler = functools.partial(Handler, directory=str(folder))
    with servers.Server(handler) as found:
        yield found.url


@tiers.parametrize(
    ("name", "to_open", "to_take"), [("saved", 2, 3), ("packed", 4, 4), ("flax", 70, 3)]
)
def test_few_requests(server: str, name: str, to_open: int, to_take: int) -> None:
    """To open a file without an index takes one for each large leaf, many at a time."""
    Handler.requests.clear()
    file = treepack.open(f"{server}/{name}")
    assert len(list(file.leaves())) == 120
    assert len(Handler.requests) <= to_open, Handler.requests
    Handler.requests.clear()
    np.testing.assert_array_equal(file["layer_30/kernel"][2:5], TREE["layer_30"]["kernel"][2:5])
    assert len(Handler.requests) <= to_take, Handler.requests
    Handler.requests.clear()
    found = treepack.load(f"{server}/{name}", TREE)
    assert len(Handler.requests) <= 4, Handler.requests
    jax.tree.map(np.testing.assert_array_equal, found, TREE)
    assert treepack.verify(f"{server}/{name}").ok
    part = treepack.load(f"{server}/{name}", TREE, select="layer_7")
    np.testing.assert_array_equal(part["layer_7"]["kernel"], TREE["layer_7"]["kernel"])
    if name != "flax":
        assert treepack.abstract(f"{server}/{name}")["layer_1"]["bias"].shape == (3,)


def test_a_repository_is_read_by_the_url_of_its_index(server: str) -> None:
    """Web servers list nothing."""
    url = f"{server}/repo/model.safetensors.index.json"
    found = treepack.load(url)
    np.testing.assert_array_equal([found["a"], found["b"]], [np.arange(2000)] * 2)
    assert treepack.verify(url).ok
    with pytest.raises(treepack.DecodeError, match=r"names \.\./saved, which is not"):
        treepack.load(f"{server}/repo/bad.safetensors.index.json")
    with pytest.raises(treepack.NoManifestError, match=r"may not be listed.*of a file"):
        treepack.load(f"{server}/repo/")


def test_a_range_of_elements_takes_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.arange(300 * 3001 * 5, dtype=np.float32).reshape(300, 3001, 5)
    treepack.save("memory://range/saved", {"a": array})
    found = treepack.open("memory://range/saved")["a"]
    requests = []
    fetch = MemoryFileSystem.cat_file

    def counted(self: Any, path: str, *args: Any, **options: Any) -> bytes:
        requests.append((path, args, options))
        return fetch(self, path, *args, **options)

    monkeypatch.setattr(MemoryFileSystem, "cat_file", counted)
    part = found.flat_range(1_000, array.size - 1_000)  # parts of rows, and whole ones between
    np.testing.assert_array_equal(part, array.reshape(-1)[1_000:-1_000])
    assert len(requests) <= 2, requests  # the other is for the header


def test_what_is_not_there(server: str) -> None:
    for read in (treepack.open, treepack.load, treepack.verify):
        with pytest.raises(FileNotFoundError):
            read(f"{server}/nothing")  # type: ignore[operator]


def test_a_damaged_manifest_on_a_web_server(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/manifest.treepack").write_bytes(bytes(100))
    with servers.Server(functools.partial(Handler, directory=str(tmp_path))) as found:
        for source in (tmp_path / "run", f"{found.url}/run/"):
            found_there = treepack.verify(source)
            assert "its end mark is missing" in str(found_there.damage)


class Cutting(Handler):
    """Announces more bytes than it sends, or sends fewer than requested."""

    honest: ClassVar[bool] = True

    def send_header(self, keyword: str, value: str) -> None:
        """Counts 5 bytes too many."""
        if keyword == "Content-Length" and self.command == "GET" and not self.honest:
            value = str(int(value) + 5)
        super().send_header(keyword, value)

    def do_GET(self) -> None:
        """Sends a range, without its last byte."""
        size = (Path(self.directory) / self.path[1:]).stat().st_size
        if "Range" in self.headers:
            del self.headers["Range"]
            self.headers["Range"] = f"bytes=0-{size - 2}"
        super().do_GET()


@pytest.mark.parametrize("honest", [False, True])
def test_what_is_cut_on_its_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, honest: bool
) -> None:
    pytest.importorskip("aiohttp")
    monkeypatch.setattr(Cutting, "honest", honest)
    (tmp_path / "saved").write_bytes(treepack.dumps({"a": 1}))
    handler = functools.partial(Cutting, directory=str(tmp_path))
    with servers.Server(handler) as server:
        url = f"{server.url}/saved"
        for read in (treepack.load, treepack.open, treepack.verify):
            with pytest.raises(OSError, match=f"{url}: .*Requested 0"):
                read(url)  # type: ignore[operator]


class Unsized(Handler):
    """Leaves out the size of the file, in one of the ways of HTTP."""

    protocol_version = "HTTP/1.1"
    way = ""

    def send_header(self, keyword: str, value: str) -> None:
        """Sends other headers unchanged."""
        if keyword == "Content-Range":
            value = f"{value.partition('/')[0]}/*"
        if keyword == "Content-Length" and self.way != "without the total":
            if self.way == "chunked":
                super().send_header("Transfer-Encoding", "chunked")
            keyword, value = "Connection", "close"
        super().send_header(keyword, value)

    def end_headers(self) -> None:
        """Sends the body, which follows, in a chunk."""
        super().end_headers()
        if self.way == "chunked" and self.command == "GET":
            self.wfile = _Chunk(self.wfile)


class _Chunk(io.BufferedIOBase):
    def __init__(self, file: Any):
        self.file = file

    def write(self, data: Any) -> int:
        self.file.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data))
        return len(data)

    def flush(self) -> None:
        self.file.flush()


# fsspec's blockcache leaves its files open.
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("way", ["chunked", "until the end", "without the total"])
@pytest.mark.parametrize("cache", ["", "blockcache::", "filecache::"])
def test_responses_without_a_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, cache: str
) -> None:
    pytest.importorskip("aiohttp")
    monkeypatch.setattr(Unsized, "way", way)
    tree = {"w": np.arange(60_000.0), "step": 3}
    treepack.save(tmp_path / "saved", tree, metadata=1)
    handler = functools.partial(Unsized, directory=str(tmp_path))
    with servers.Server(handler) as server:
        url = f"{cache}{server.url}/saved"
        np.testing.assert_array_equal(treepack.load(url)["w"], tree["w"])
        assert treepack.load(url, select="step") == {"step": 3}
        np.testing.assert_array_equal(treepack.open(url)["w"][5:9], tree["w"][5:9])
        assert treepack.verify(url).ok
        assert treepack.read_metadata(url) == 1
        for missing in (treepack.load, treepack.open):
            with pytest.raises(FileNotFoundError):
                missing(f"{url}-not")  # type: ignore[operator]


@pytest.mark.campaign
def test_where_nothing_can_be_written(server: str) -> None:
    with pytest.raises(OSError, match=f"{server}/new: .* 501 Not Implemented"):
        treepack.save(f"{server}/new", {"a": 1})


def test_memory_is_that_of_the_program_and_has_no_options() -> None:
    url = "memory://options/model"
    treepack.save(url, {"a": 1}, storage_options={"use_listings_cache": False})
    assert fsspec.filesystem("memory").exists("/options/model")
    for work in (treepack.load, treepack.is_checkpoint, lambda *a, **k: treepack.save(*a, {}, **k)):
        with pytest.raises(ValueError, match=rf"'{url}': memory:// has no option 'regoin'"):
            work(url, storage_options={"regoin": "x"})  # type: ignore[operator]
    chained = treepack.load(f"simplecache::{url}", storage_options={"memory": {}})
    assert chained == {"a": 1}


@pytest.mark.parametrize("compress", [False, True])
def test_all_verbs_in_memory(compress: bool) -> None:
    url = f"memory://folder/{compress}/model"
    treepack.save(url, TREE, metadata={"step": 2}, compress=compress)
    jax.tree.map(np.testing.assert_array_equal, treepack.load(url), TREE)
    assert treepack.read_metadata(url) == {"step": 2}
    assert treepack.verify(url).ok
    assert not treepack.verify(url).unchecked
    with treepack.open(url) as file:
        assert file["layer_3/kernel"][5, 5] == 3
        assert file.load(select="layer_4")["layer_4"]["kernel"].sum() == 4 * 64 * 1024
    serialization.save_to_file(TREE, f"{url}.flax", compress=compress)
    found = serialization.load_from_file(TREE, f"{url}.flax")
    jax.tree.map(np.testing.assert_array_equal, found, TREE)


def test_a_failed_save_leaves_what_was_there() -> None:
    url = "memory://failing/model"
    treepack.save(url, {"a": 1})

    def fail(done: int, total: int) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        treepack.save(url, TREE, progress=fail)
    assert treepack.load(url) == {"a": 1}
    threads = [thread for thread in threading.enumerate() if not thread.daemon]
    assert threading.main_thread() in threads


def test_an_upload_that_lost_bytes_is_an_error() -> None:
    with pytest.raises(OSError, match=r"memory://lost/w: short read .*: expected 7 bytes, got 0"):
        remote.write(Url("memory://lost/w", {}, None), lambda pipe: 7, 7)
    assert not fsspec.filesystem("memory").exists("/lost/w")


def test_the_same_is_salvaged_of_a_remote_file_with_the_marks_of_two_forms(tmp_path: Path) -> None:
    data = b"\x1f\x8b" + treepack.dumps({"w": np.arange(30), "n": 1})[2:]
    local = tmp_path / "file"
    local.write_bytes(data)
    with fsspec.open("memory://marks/file", "wb") as target:
        target.write(data)
    found = []
    for source in (local, "memory://marks/file"):
        with treepack.open(source, salvage=True) as file:
            found.append((dict(file.leaves()), file.damage))
        found.append(treepack.verify(source))
        with pytest.raises(treepack.TreepackError):
            treepack.open(source)["n"]
    assert found[:2] == found[2:]


def test_local_files_by_url(tmp_path: Path) -> None:
    url = (tmp_path / "new" / "a b").as_uri()
    treepack.save(url, {"a": 1})
    assert treepack.load(tmp_path / "new" / "a b") == treepack.load(url) == {"a": 1}
    assert treepack.open(url)["a"] == 1


def test_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(ImportError, match="pip install fsspec"):
        treepack.save("sftp://host/model", {})
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ImportError, match="pip install obstore"):
        treepack.save("s3://nowhere/model", {})
    assert fsspec.__version__


def test_streams_and_archives_are_written_to_urls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from commands import call

    monkeypatch.chdir(tmp_path)
    treepack.save("model", {"w": np.ones(3)})
    treepack.write_stream("memory://folder/stream", [("w", np.ones(3))])
    [(key, array)] = treepack.read_stream("memory://folder/stream")
    assert (key, array.tolist()) == (("w",), [1, 1, 1])
    call("convert", "model", "memory://folder/file.npz")
    assert treepack.load("memory://folder/file.npz")["w"].tolist() == [1, 1, 1]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_command_line_converts_to_urls(tmp_path: Path) -> None:
    typer_testing = pytest.importorskip("typer.testing")
    from treepack._cli import app

    treepack.save(tmp_path / "model", {"w": np.ones(3)})
    url = "memory://command/line"
    done = typer_testing.CliRunner().invoke(app, ["convert", str(tmp_path / "model"), url])
    assert done.exit_code == 0, done.output
    np.testing.assert_array_equal(treepack.load(url)["w"], np.ones(3))


class Upload(io.BytesIO):
    """An object of a store, which is there when it is committed."""

    def __init__(self, store: Store, path: str, autocommit: bool):
        super().__init__()
        self.store = store
        self.path = path
        self.autocommit = autocommit

    def close(self) -> None:
        """Ends the upload."""
        if not self.closed:
            self.content = self.getvalue()
            if self.autocommit:
                self.commit()
        super().close()

    def commit(self) -> None:
        """Shows the object, if there is such a bucket."""
        if self.path.split("/")[0] not in Store.buckets:
            raise FileNotFoundError("the bucket does not exist")
        Store.objects[self.path] = self.content
        self.store.invalidate_cache(self.path)

    def discard(self) -> None:
        """Leaves it."""


class Store(fsspec.spec.AbstractFileSystem):
    """Keeps listings, and makes buckets, as s3fs does."""

    protocol = "store"
    buckets: ClassVar[set[str]] = set()
    objects: ClassVar[dict[str, bytes]] = {}

    def ls(self, path: str, detail: bool = True, refresh: bool = False, **_: Any) -> list[Any]:
        """Lists a prefix, perhaps as it was before."""
        path = self._strip_protocol(path)
        if refresh or path not in self.dircache:
            below = f"{path}/" if path else ""
            names = {
                below + name[len(below) :].split("/")[0]
                for name in [*self.objects, *self.buckets]
                if name.startswith(below)
            }
            self.dircache[path] = [self._entry(name) for name in sorted(names)]
        found = self.dircache[path]
        if not found and path not in self.buckets | {""}:
            raise FileNotFoundError(path)
        return found if detail else [entry["name"] for entry in found]

    def _entry(self, name: str) -> dict[str, Any]:
        if name in self.objects:
            return {"name": name, "size": len(self.objects[name]), "type": "file"}
        return {"name": name, "size": 0, "type": "directory"}

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Tells of an object; of a listing that has been made, what it has."""
        path = self._strip_protocol(path)
        parent = self._parent(path)
        if parent in self.dircache:
            for entry in self.dircache[parent]:
                if entry["name"] == path:
                    found: dict[str, Any] = entry
                    return found
            raise FileNotFoundError(path)
        if path not in self.objects:
            self.ls(path)
        return self._entry(path)

    def invalidate_cache(self, path: str | None = None) -> None:
        """Forgets the listings that have a path."""
        if path is None:
            self.dircache.clear()
            return
        path = self._strip_protocol(path)
        while path:
            self.dircache.pop(path, None)
            path = self._parent(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Makes the bucket, which is all that there is to make."""
        self.buckets.add(self._strip_protocol(path).split("/")[0])

    def rm_file(self, path: str) -> None:
        """Removes an object."""
        del self.objects[self._strip_protocol(path)]
        self.invalidate_cache(path)

    def _open(
        self, path: str, mode: str = "rb", block_size: Any = None, autocommit: bool = True, **_: Any
    ) -> Any:
        if mode == "wb":
            upload = Upload(self, path, autocommit)
            if not autocommit:
                self.transaction.files.append(upload)
            return upload
        return io.BytesIO(self.objects[path])


@pytest.fixture
def store() -> Iterator[Store]:
    fsspec.register_implementation("store", Store, clobber=True)
    Store.clear_instance_cache()
    Store.buckets.add("bucket")
    yield fsspec.filesystem("store")
    Store.buckets.clear()
    Store.objects.clear()


def test_what_was_just_saved_is_found(store: Store) -> None:
    assert store.ls("bucket") == []
    for step in range(2):
        treepack.save(f"store://bucket/{step}", {"a": step})
        assert treepack.load(f"store://bucket/{step}") == {"a": step}
        assert treepack.open(f"store://bucket/{step}")["a"] == step
        assert treepack.verify(f"store://bucket/{step}").ok
        assert store.ls("bucket", detail=False)[step] == f"bucket/{step}"
    treepack.save("store://bucket/0", {"a": "longer than before"})
    assert treepack.load("store://bucket/0") == {"a": "longer than before"}


class OneListing(Store):
    """Drops the listing of a path only, as the file systems of FTP and Azure do."""

    protocol = "onelisting"

    def invalidate_cache(self, path: str | None = None) -> None:
        """Forgets what is listed at a path."""
        self.dircache.pop("" if path is None else self._strip_protocol(path), None)


def test_listings_of_the_directory_are_dropped(store: Store) -> None:
    fsspec.register_implementation("onelisting", OneListing, clobber=True)
    assert fsspec.filesystem("onelisting").ls("bucket") == []
    treepack.save("onelisting://bucket/model", {"a": 1})
    assert treepack.load("onelisting://bucket/model") == {"a": 1}


def test_what_others_have_saved_is_found(store: Store) -> None:
    assert store.ls("bucket") == []
    treepack.save("memory://others/model", {"a": 1})
    Store.objects["bucket/model"] = fsspec.filesystem("memory").cat_file("/others/model")
    assert treepack.load("store://bucket/model") == {"a": 1}
    del Store.objects["bucket/model"]
    with pytest.raises(FileNotFoundError):
        treepack.open("store://bucket/model")


@pytest.mark.parametrize("chain", ["", "simplecache::", "filecache::"])
def test_sharded_checkpoints_are_saved_again(store: Store, chain: str) -> None:
    url = f"{chain}store://bucket/runs/sharded"
    for step in range(3):
        treepack.save(url, {"w": np.full(3000, step), "step": step}, sharded=True)
        store.ls("bucket/runs/sharded")
        assert treepack.load(url)["w"].tolist() == [step] * 3000
        assert treepack.open(url)["w"][7] == step
        assert treepack.verify(url).ok
    assert len(Store.objects) == 2, "files of older steps are removed"


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("folder", ["", "runs/"])
def test_buckets_are_not_made(store: Store, folder: str, sharded: bool) -> None:
    with pytest.raises(FileNotFoundError):
        treepack.save(f"store://mistyped/{folder}model", {"w": np.ones(3000)}, sharded=sharded)
    assert Store.buckets == {"bucket"}
    assert not Store.objects


def test_directories_are_made_where_there_are_some(tmp_path: Path) -> None:
    fsspec.filesystem("local").mkdir(str(tmp_path / "known"))
    for url in (
        f"local://{tmp_path}/new/folder/model",
        f"simplecache::file://{tmp_path}/cached/folder/model",
        f"dir://below/it/model::file://{tmp_path}/known",
    ):
        treepack.save(url, {"a": 1})
        assert treepack.load(url) == {"a": 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cached", "known", "new"]


@pytest.mark.parametrize("cache", ["simplecache", "filecache"])
def test_chained_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: str) -> None:
    monkeypatch.chdir(tmp_path)
    url = f"{cache}::memory://chained/{cache}/model"
    for step in range(3):
        treepack.save(url, {"step": step, "w": np.full(3 << 20, step)})
        assert treepack.load(url)["w"][-1] == step
        assert treepack.load(url.removeprefix(f"{cache}::"))["step"] == step
        assert treepack.open(url)["w"][7] == step
    with pytest.raises(ValueError, match="pathlib"):
        treepack.save(Path(url), {})
    assert not os.listdir(tmp_path)  # noqa: PTH208
    treepack.save("a::b", {"a": 1})
    treepack.save("run::2/c:d", {"a": 1})
    assert sorted(os.listdir(tmp_path)) == ["a::b", "run::2"]  # noqa: PTH208


def test_an_archive_has_the_formats_of_the_files_in_it(tmp_path: Path) -> None:
    tree = {"w": np.arange(3.0)}
    archive = tmp_path / "all.npz"
    with zipfile.ZipFile(archive, "w") as file:
        for name in ("a.treepack", "a.safetensors", "a.msgpack.gz"):
            treepack.save(tmp_path / name, tree)
            file.write(tmp_path / name, name)
    for name in ("a.treepack", "a.safetensors", "a.msgpack.gz"):
        url = f"zip://{name}::{archive}"
        np.testing.assert_array_equal(treepack.load(url)["w"], tree["w"])
        with treepack.open(url) as opened, pytest.raises(OSError, match="archives are only read:"):
            treepack.save(f"zip://b{name[1:]}::{archive}", opened)
        with pytest.raises(OSError, match="add that file to the archive"):
            treepack.save(url, tree)
    with pytest.raises(ValueError, match="which is for PyTorch"):
        treepack.save(f"zip://a.pt::{archive}", tree)
    folder = tmp_path / "folder.npz"
    folder.mkdir()
    treepack.save(f"dir://a.treepack::file://{folder}", tree)
    assert treepack.is_checkpoint(folder / "a.treepack")
    treepack.save(f"dir://a.safetensors::file://{folder}", tree)
    assert load_file(folder / "a.safetensors").keys() == {"w"}


def test_links_of_a_chain_keep_their_places() -> None:
    for directory, file in (
        ("s3://bucket/model", "s3://bucket/model/x"),
        ("s3://bucket/", "s3://bucket/x"),
        ("simplecache::s3://bucket/model", "simplecache::s3://bucket/model/x"),
        ("zip://model::s3://bucket/all.zip", "zip://model/x::s3://bucket/all.zip"),
        ("zip://::simplecache::s3://all.zip", "zip://x::simplecache::s3://all.zip"),
    ):
        assert Address.of(directory) / "x" == file


class Short(Store):
    """Sends fewer bytes than requested, or none."""

    protocol = "short"
    answer: ClassVar[BaseException | None] = None

    def cat_file(self, path: str, start: Any = None, end: Any = None, **_: Any) -> bytes:
        """Sends all but the last byte."""
        if self.answer is not None:
            raise self.answer
        found: bytes = super().cat_file(path, start=start, end=end)
        return found[:-1]


def test_a_short_response_is_an_error_with_its_url(store: Store) -> None:
    fsspec.register_implementation("short", Short, clobber=True)
    treepack.save("store://bucket/model", {"w": np.ones(50_000)})
    url, size = "short://bucket/model", len(Store.objects["bucket/model"])
    text = f"{url}: wrong response for bytes {{0}} to {size}: expected {{2}} bytes, got {{1}}"
    with pytest.raises(OSError, match=text.format(0, size - 1, size)):
        treepack.load(url)
    last = 160 << 10
    with pytest.raises(OSError, match=text.format(size - last, last - 1, last)):
        treepack.open(url)


@pytest.mark.parametrize("size", [0, 7])
def test_a_wrong_number_of_bytes_is_an_error(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    def get(_store: Any, _path: str, *, options: Any) -> Any:
        if options:
            raise obstore.exceptions.GenericError("416 Range Not Satisfiable")
        meta = {"size": size, "e_tag": None}
        return SimpleNamespace(meta=meta, range=(0, size), bytes=lambda: bytes(size + 2))

    monkeypatch.setattr(obstore, "get", get)
    monkeypatch.setattr(obstore, "head", lambda _store, _path: {"size": size})
    message = f"wrong response: expected {size} bytes, got {size + 2}"
    for read in (treepack.load, treepack.verify):
        with pytest.raises(OSError, match=message):
            read("s3://bucket/model", storage_options={"skip_signature": True, "region": "r"})


@pytest.mark.campaign
def test_a_server_that_does_not_answer_is_not_taken_for_a_missing_file() -> None:
    with socket.socket() as bound:  # without a listener
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}/model"
        for read in (treepack.load, treepack.open, treepack.verify, treepack.is_checkpoint):
            with pytest.raises(OSError, match=f"^{url}: .*error sending request") as caught:
                read(url)  # type: ignore[operator]
            assert not isinstance(caught.value, FileNotFoundError)


def test_errors_of_other_libraries_have_the_url(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsspec.register_implementation("short", Short, clobber=True)
    treepack.save("store://bucket/model", {"w": np.ones(5)})
    monkeypatch.setattr(Short, "answer", RuntimeError("the line is dead"))
    message = "short://bucket/model: cannot read bytes 0 to .*: RuntimeError: the line is dead"
    for read in (treepack.load, treepack.open):
        with pytest.raises(OSError, match=message):
            read("short://bucket/model")  # type: ignore[operator]
    monkeypatch.setattr(Short, "answer", ValueError("no such range"))
    with pytest.raises(OSError, match=r"cannot read bytes .*: ValueError: no such range"):
        treepack.load("short://bucket/model")
    monkeypatch.setattr(Short, "answer", PermissionError("not you"))
    message = "short://bucket/model: cannot read bytes 0 to .*: not you"
    with pytest.raises(PermissionError, match=message):
        treepack.load("short://bucket/model")


class Twice:
    """A file whose bytes all differ at the second request."""

    def __init__(self) -> None:
        self.ranges: list[range] = []

    def __call__(self, found: Any, start: int) -> bytes:
        data = bytearray(found)
        stop = start + len(data)
        for before in self.ranges:
            for at in range(max(start, before.start), min(stop, before.stop)):
                data[at - start] ^= 1
        self.ranges.append(range(start, stop))
        return bytes(data)


def test_what_is_verified_is_what_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store may send other bytes at the second request."""
    url = "memory://verified/model.treepack"
    value = np.arange(1 << 18, dtype=np.uint8)
    treepack.save(url, {"w": value})
    read = filesystems.FileSystem.range
    twice = Twice()

    def once(store: Any, path: str, start: int, stop: int, version: Any) -> Any:
        return twice(read(store, path, start, stop, version), start)

    monkeypatch.setattr(filesystems.FileSystem, "range", once)
    for options in ({"verify": True}, {"on_corrupt": "skip"}):
        twice.ranges.clear()
        found = treepack.load(url, {"w": value}, **options)  # type: ignore[call-overload]
        np.testing.assert_array_equal(found["w"], value)


class Changing(io.BytesIO):
    """A file object of such a file."""

    def __init__(self, data: bytes, twice: Callable[[Any, int], bytes]):
        super().__init__(data)
        self._twice = twice

    def read(self, size: int | None = -1, /) -> bytes:
        start = self.tell()
        return self._twice(super().read(size), start)


@pytest.mark.parametrize("options", [{"verify": True}, {"on_corrupt": "skip"}])
@pytest.mark.parametrize("source", ["select", "gzip", "sharded", "jax", "file object", "open"])
def test_what_is_read_again_is_compared_with_what_was_verified(
    source: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"memory://again/{source.replace(' ', '_')}"
    value = np.random.default_rng(0).integers(0, 255, 1 << 19, np.uint8)
    is_sharded = source in ("sharded", "jax")
    tree = {"w": jnp.asarray(value) if source == "jax" else value, "b": 1}
    treepack.save(url, tree, sharded=is_sharded, compress=source == "gzip")
    verify, read = reader.Reader.verify, filesystems.FileSystem.range
    does_change, is_verified, twice = False, False, Twice()

    def verifies(self: reader.Reader, **options: Any) -> Any:
        nonlocal is_verified
        is_verified = True
        return verify(self, **options)

    def gives(found: Any, start: int) -> bytes:
        return twice(found, start) if does_change and is_verified else bytes(found)

    def ranged(store: Any, path: str, start: int, stop: int, version: Any) -> Any:
        return gives(read(store, path, start, stop, version), start)

    monkeypatch.setattr(reader.Reader, "verify", verifies)
    monkeypatch.setattr(filesystems.FileSystem, "range", ranged)

    def load() -> Any:
        nonlocal is_verified
        is_verified = False
        if source == "open":
            with treepack.open(url) as file:
                return file.load(select="w", **options)
        where: Any = url
        if source == "file object":
            where = Changing(fsspec.filesystem("memory").cat_file(url), gives)
        return treepack.load(where, select=None if is_sharded else "w", **options)

    np.testing.assert_array_equal(load()["w"], value)
    does_change = True
    try:
        np.testing.assert_array_equal(load()["w"], value)  # of bytes that are still there
    except treepack.CorruptionError as error:
        assert "changed since they were verified" in str(error)  # noqa: PT017
