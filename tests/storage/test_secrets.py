"""What is secret in a URL, a login or a signature, stands in no error, repr or listing."""

from __future__ import annotations

import base64
import http.server
import logging
import pickle
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pytest

import tiers
import treepack
from support import servers
from treepack import checkpoints
from treepack._src.storage.hiding import hiding
from treepack._src.storage.urls import shown, without_secrets

pytest.importorskip("obstore")
pytest.importorskip("aiohttp")

PASSWORD = "pass%40w0rd"  # no secret
SIGNATURE = "abcdef0123456789%2B"


class Handler(http.server.BaseHTTPRequestHandler):
    """Has one file, or answers with a status."""

    status: ClassVar[int] = 404
    data: ClassVar[bytes] = b""
    logins: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        """Sends the file."""
        type(self).logins.append(self.headers.get("Authorization"))
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(self.data)

    do_HEAD = do_PUT = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(Handler, "status", 404)
    monkeypatch.setattr(Handler, "data", b"")
    monkeypatch.setattr(Handler, "logins", [])
    with servers.Server(Handler) as found:
        yield found.server_port


def urls(port: int) -> list[str]:
    host = f"127.0.0.1:{port}"
    return [
        f"http://user:{PASSWORD}@{host}/run/model",
        f"http://{host}/run/model?X-Amz-Expires=60&X-Amz-Signature={SIGNATURE}",
        f"http://user:{PASSWORD}@{host}/run/model?sig={SIGNATURE}",
        f"simplecache::http://user:{PASSWORD}@{host}/run/model?sig={SIGNATURE}",
    ]


def _save(url: str) -> None:
    treepack.save(url, {"a": 1}, storage_options=QUICK if "?" not in url else None)


def _save_sharded(url: str) -> None:
    treepack.save(url, {"a": 1}, sharded=True)


def _in_background(url: str) -> None:
    saving = treepack.save(url, {"a": 1}, background=True)
    assert_clean(repr(saving))
    try:
        saving.result()
    finally:
        assert_clean(repr(saving))


QUICK = {"retry_config": {"max_retries": 0}}

WORK: list[Callable[[str], object]] = [
    treepack.load,
    treepack.open,
    treepack.verify,
    treepack.is_checkpoint,
    treepack.abstract,
    treepack.read_metadata,
    _save,
    _save_sharded,
    _in_background,
    lambda url: checkpoints.restore_checkpoint(url, None),
    lambda url: checkpoints.restore_checkpoint(url, None, 3),
    lambda url: checkpoints.save_checkpoint(url, {"a": 1}, 3),
    checkpoints.latest_checkpoint,
]


def assert_clean(text: str) -> None:
    for secret in ("pass%40w0rd", "pass@w0rd", "abcdef0123456789"):
        assert secret not in text, text


def failure_of(work: Callable[[str], object], url: str) -> BaseException | None:
    try:
        work(url)
    except Exception as error:
        assert_clean("".join(traceback.format_exception(error)))
        assert_clean(repr(error))
        assert_clean(repr(getattr(error, "filename", None)))
        return error
    return None


@pytest.mark.campaign
@pytest.mark.parametrize("status", tiers.either([], [404], nightly=[401, 403, 404, 405, 418]))
def test_errors_of_web_servers(
    server: int, status: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Handler, "status", status)
    caplog.set_level(logging.ERROR)
    for url in urls(server):
        failures = [failure_of(work, url) for work in WORK]
        assert sum(error is not None for error in failures) >= 6
        assert shown(url) in str(failures[0]), "it still tells where"
    assert_clean(caplog.text)


@pytest.mark.campaign
def test_errors_of_servers_that_do_not_answer() -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as taken:
        port = taken.server_port
    for url in urls(port):
        for work in WORK[:4]:
            error = failure_of(work, url)
            assert isinstance(error, OSError)
            assert not isinstance(error, FileNotFoundError)


def test_what_is_no_checkpoint(server: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Handler, "status", 200)
    monkeypatch.setattr(Handler, "data", b"\x81\xa1a")
    for url in urls(server):
        assert isinstance(failure_of(treepack.load, url), (treepack.DecodeError, OSError))
        assert isinstance(failure_of(treepack.open, url), (treepack.DecodeError, OSError))


def test_open_files(tmp_path: Path) -> None:
    """Their reprs, also of those that have been pickled, and errors of paths in them."""
    treepack.save(tmp_path / "model", {"w": np.ones(3)})
    fs = fsspec.filesystem("memory")
    fs.pipe(f"/secrets/model?sig={SIGNATURE}", (tmp_path / "model").read_bytes())
    url = f"memory://secrets/model?sig={SIGNATURE}"
    with treepack.open(url) as file:
        assert "memory://secrets/model?sig=***" in repr(file)
        assert_clean(repr(file))
        with pytest.raises(treepack.MissingPathError) as caught:
            file["v"]
        assert_clean(str(caught.value))
        with pickle.loads(pickle.dumps(file)) as again:
            np.testing.assert_array_equal(again["w"], np.ones(3))
            assert_clean(repr(again))


def test_logins_are_sent(server: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By treepack: obstore would not."""
    monkeypatch.setattr(Handler, "status", 200)
    monkeypatch.setattr(Handler, "data", treepack.dumps({"a": 1}))
    expected = "Basic " + base64.b64encode(b"user:pass@w0rd").decode()
    assert treepack.load(f"http://user:{PASSWORD}@127.0.0.1:{server}/model") == {"a": 1}
    assert {*Handler.logins} == {expected}
    Handler.logins.clear()
    other = {"headers": {"Authorization": "Bearer other"}}
    url = f"http://user:{PASSWORD}@127.0.0.1:{server}/model"
    assert treepack.load(url, storage_options=other) == {"a": 1}
    assert {*Handler.logins} == {"Bearer other"}
    Handler.logins.clear()
    assert treepack.load(f"http://127.0.0.1:{server}/model") == {"a": 1}
    assert {*Handler.logins} == {None}


@tiers.parametrize("command", tiers.some(["ls", "verify", "diff", "show", "convert"]))
def test_the_command_line(
    server: int, command: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("typer")
    from treepack import _cli

    for status, data in (
        (404, b""),
        (403, b""),
        (200, b"\x81\xa1a"),
        (200, treepack.dumps({"a": 1})),
    ):
        monkeypatch.setattr(Handler, "status", status)
        monkeypatch.setattr(Handler, "data", data)
        for url in urls(server)[:3]:
            rest = {"show": ["b"], "diff": [url], "convert": [f"{url}.npz"]}.get(command, [])
            monkeypatch.setattr("sys.argv", ["treepack", command, url, *rest])
            with pytest.raises(SystemExit):
                _cli.run()
            output = "".join(capfd.readouterr())
            assert_clean(output)


def test_errors_of_other_stores() -> None:
    for url in (
        f"nothing://user:{PASSWORD}@host/x",
        f"http:/user:{PASSWORD}@host/x",
        f"s3://bucket//x?sig={SIGNATURE}",
    ):
        for work in (treepack.load, treepack.save, treepack.is_checkpoint):
            args = ({"a": 1},) if work is treepack.save else ()
            assert failure_of(lambda url: work(url, *args), url) is not None  # noqa: B023


def test_errors_in_groups() -> None:
    url = f"https://user:{PASSWORD}@host/x"

    def fail(url: str) -> None:
        """Raises a group with a group in it, as the cause of an error."""
        refused = UnicodeDecodeError("utf-8", b"x", 0, 1, url)  # whose message is none of its args
        inner = ExceptionGroup(f"of {url}", [OSError(f"no {url}"), refused, KeyError("a")])
        with hiding(url):
            raise OSError("failed") from BaseExceptionGroup("two", [ValueError(url), inner])

    error = failure_of(fail, url)
    assert isinstance(error, OSError)
    group = error.__cause__
    assert isinstance(group, ExceptionGroup)
    assert [str(it) for it in group.exceptions] == [
        "https://***@host/x",
        "of https://***@host/x (3 sub-exceptions)",
    ]
    assert isinstance(group.exceptions[1], ExceptionGroup)
    assert isinstance(group.exceptions[1].exceptions[1], ValueError)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://user:pw@host/x", "https://***@host/x"),
        ("https://token@host/x", "https://***@host/x"),
        ("https://user:p/w@host/x", "https://***@host/x"),
        ("https://user:p?w@host/x", "https://***@host/x"),
        ("https://host/x?a=1&b=2#c=3", "https://host/x?a=***&b=***#c=***"),
        ("https://host/x?token", "https://host/x?***"),
        ("https://host:80/x@v1", "https://host:80/x@v1"),
        ("https://[::1]:80/x@v1", "https://[::1]:80/x@v1"),
        ("https://u:p@[::1]:80/x", "https://***@[::1]:80/x"),
        ("sftp://user:pw@host/x", "sftp://***@host/x"),
        ("sftp://user@host/x", "sftp://user@host/x"),
        ("abfs://container@account.dfs.core.windows.net/x",) * 2,
        ("s3://bucket/a?b#c&d", "s3://bucket/a?b#c&d"),
        ("az://box/x?sv=1&sig=2", "az://box/x?sv=***&sig=***"),
        ("zip://a::https://u:p@host/x.zip?s=1", "zip://a::https://***@host/x.zip?s=***"),
        ("https:/user:pw@host/x", "https:/***@host/x"),
        ("/home/me@work/x?y=z",) * 2,
        ("file:///home/me:you@work/x?y=z",) * 2,
    ],
)
def test_what_is_shown(url: str, expected: str) -> None:
    assert shown(url) == expected
    assert shown(expected) == expected


def test_what_is_hidden_in_text() -> None:
    text = "GET https://h/b?list-type=2&X-Amz-Signature=12 of http://me:pw@h/x: 404"
    hidden = without_secrets(text, "s3://b/x")
    assert hidden == "GET https://h/b?list-type=2&X-Amz-Signature=*** of http://***@h/x: 404"
