"""Files that are elsewhere: how many requests they take, and that they are whole or not there."""

from __future__ import annotations

import functools
import http.server
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import jax
import numpy as np
import pytest

import treepack
from treepack import serialization

LATENCY = 0.02

TREE: dict[str, Any] = {
    f"layer_{index}": {"kernel": np.full((64, 1024), index, np.float32), "bias": np.zeros(3)}
    for index in range(60)
}


class Handler(http.server.SimpleHTTPRequestHandler):
    """Answers ranges after some time, and counts."""

    requests: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        """Sends a range of a file."""
        type(self).requests.append(f"GET {self.headers.get('Range')}")
        time.sleep(LATENCY)
        data = (Path(self.directory) / self.path[1:]).read_bytes()
        start, stop = 0, len(data)
        if "Range" in self.headers:
            first, last = self.headers["Range"].removeprefix("bytes=").split("-")
            start, stop = int(first), min(len(data), int(last) + 1)
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
        time.sleep(LATENCY)
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
    handler = functools.partial(Handler, directory=str(folder))
    found = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{found.server_port}"
    found.shutdown()
    found.server_close()


@pytest.mark.parametrize(
    ("name", "to_open", "to_take"), [("saved", 2, 3), ("packed", 4, 4), ("flax", 14, 3)]
)
def test_few_requests(server: str, name: str, to_open: int, to_take: int) -> None:
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


def test_what_is_not_there(server: str) -> None:
    for read in (treepack.open, treepack.load, treepack.verify):
        with pytest.raises(FileNotFoundError):
            read(f"{server}/nothing")  # type: ignore[operator]


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


def test_local_files_by_url(tmp_path: Path) -> None:
    url = (tmp_path / "new" / "a b").as_uri()
    treepack.save(url, {"a": 1})
    assert treepack.load(tmp_path / "new" / "a b") == treepack.load(url) == {"a": 1}
    assert treepack.open(url)["a"] == 1


def test_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(ImportError, match=r"treepack\[remote\]"):
        treepack.save("s3://bucket/model", {})
    assert fsspec.__version__


def test_only_save_writes_to_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from treepack import _convert

    monkeypatch.chdir(tmp_path)
    state = _convert.State({"w": np.ones(3)}, None)
    for write in (
        lambda url: treepack.write_stream(url, [("w", np.ones(3))]),
        lambda url: _convert.write_safetensors(state, url, "."),
        lambda url: _convert.write_npz(state, url, "."),
    ):
        with pytest.raises(ValueError, match="is a URL"):
            write("memory://folder/file")
    assert not list(tmp_path.iterdir())


def test_the_command_line_converts_to_urls(tmp_path: Path) -> None:
    typer_testing = pytest.importorskip("typer.testing")
    from treepack._cli import app

    treepack.save(tmp_path / "model", {"w": np.ones(3)})
    url = "memory://command/line"
    done = typer_testing.CliRunner().invoke(app, ["convert", str(tmp_path / "model"), url])
    assert done.exit_code == 0, done.output
    np.testing.assert_array_equal(treepack.load(url)["w"], np.ones(3))
