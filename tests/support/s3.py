"""A server of S3 in this process, and a proxy before it that is slow, fails, and counts."""

from __future__ import annotations

import contextlib
import datetime
import http
import http.server
import io
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import unquote

from support import servers

BUCKET = "bucket"


class Request(NamedTuple):
    """A request that the proxy has forwarded, or answered itself."""

    method: str
    path: str
    range: str | None
    nbytes: int
    is_conditional: bool = False


def requested_bytes(request: Request) -> int:
    """Returns the number of bytes that a request asks for."""
    if request.method != "GET" or not request.range:
        return 0
    first, last = request.range.lower().removeprefix("bytes=").split("-")
    return int(last) + 1 - int(first) if first and last else 0


# A server of S3: it is called with what WSGI tells of a request.
Application = Callable[..., Any]


class Proxy(servers.Server):
    """Forwards requests.

    Attributes:
      latency: Each request takes so many seconds longer.
      requests: Those that have come.
      files: What it answers itself, by paths: the server reads all of a file for each range.
      fault: Chooses what goes wrong for each request: a status, `"reset"`, `"short"`, `"lost"`
        (after it was done), a function that is called then, or nothing.
      most: The most requests at a time.
      sent: The number of bytes in all answers.
    """

    def __init__(self, application: Application):
        super().__init__(_Handler)
        self.application = application
        self.latency = 0.0
        self.requests: list[Request] = []
        self.files: dict[str, bytes] = {}
        self.fault: Callable[[Request], Any] = lambda _: None
        self.most = self.sent = 0
        self._now = 0
        self._changed = threading.Condition()

    def reset(self) -> None:
        """Forgets all requests, and becomes fast and faultless."""
        self.requests, self.most, self.sent, self.latency = [], 0, 0, 0.0
        self.fault = lambda _: None

    def counted(self, step: int, sent: int = 0) -> None:
        """Counts requests that are under way, and what was sent."""
        with self._changed:
            self._now += step
            self.sent += sent
            self.most = max(self.most, self._now)
            self._changed.notify_all()

    def wait_until_idle(self) -> None:
        """Waits until no request is under way, also of clients that are dead."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._now == 0, timeout=60)

    def handle_error(self, *_: Any) -> None:
        """Says nothing of clients that hang up."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or bodies wait for the client to acknowledge headers
    server: Proxy

    def _forward(self) -> None:
        proxy = self.server
        body = self._body()
        is_conditional = "If-Match" in self.headers or "If-None-Match" in self.headers
        request = Request(
            self.command, self.path, self.headers.get("Range"), len(body or b""), is_conditional
        )
        proxy.requests.append(request)
        proxy.counted(1)
        sent = 0
        try:
            time.sleep(proxy.latency)
            fault = proxy.fault(request)
            if fault == "reset":
                self.close_connection = True
                self.connection.close()
                return
            if isinstance(fault, int):
                self._answer(fault, [], b"<Error><Code>Fault</Code></Error>")
                return
            file = proxy.files.get(self.path)
            status, headers, data = (
                self._ask(body or b"") if file is None else part_of(file, request.range)
            )
            if callable(fault):
                fault()
            if fault == "lost" or callable(fault):
                self.close_connection = True
                self.connection.close()
                return
            self._answer(status, headers, data, is_short=fault == "short")
            sent = len(data)
        finally:
            proxy.counted(-1, sent)

    def _body(self) -> bytes | None:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        length = int(self.headers.get("Content-Length") or 0)
        return self.rfile.read(length) if length else None

    def _ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        skipped = ("connection", "transfer-encoding", "content-length", "content-type")
        headers = {
            f"HTTP_{name.upper().replace('-', '_')}": value
            for name, value in self.headers.items()
            if name.lower() not in skipped
        }
        return answer_of(self.server.application, self.command, self.path, body, headers)

    def _answer(
        self, status: int, headers: list[tuple[str, str]], data: bytes, *, is_short: bool = False
    ) -> None:
        self.send_response_only(status)
        length = next((int(v) for n, v in headers if n.lower() == "content-length"), len(data))
        for name, value in headers:
            if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(length if self.command == "HEAD" else len(data)))
        self.end_headers()
        if is_short:
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
        elif self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _forward  # noqa: N815

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


def part_of(file: bytes, range_: str | None) -> tuple[int, list[tuple[str, str]], bytes]:
    """Returns a file, or a range of it."""
    if range_ is None:
        return 200, [], file
    first, last = range_.removeprefix("bytes=").split("-")
    start = int(first) if first else max(0, len(file) - int(last))
    data = file[start : int(last) + 1 if first and last else None]
    content_range = f"bytes {start}-{start + len(data) - 1}/{len(file)}"
    return 206, [("Content-Range", content_range)], data


def answer_of(
    application: Application, method: str, path: str, body: bytes, headers: dict[str, str]
) -> tuple[int, list[tuple[str, str]], bytes]:
    """Returns the status, headers and data with which an application answers."""
    name, _, query = path.partition("?")
    started: list[Any] = []
    parts = application(
        {
            "REQUEST_METHOD": method,
            "SCRIPT_NAME": "",
            "PATH_INFO": unquote(name, "latin-1"),
            "QUERY_STRING": query,
            "RAW_URI": path,
            "SERVER_NAME": "127.0.0.1",
            "SERVER_PORT": "80",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "REMOTE_ADDR": "127.0.0.1",
            "CONTENT_LENGTH": str(len(body)),
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(body),
            "wsgi.errors": sys.stderr,
            "wsgi.multithread": True,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
            **headers,
        },
        lambda *args: started.extend(args),
    )
    with contextlib.closing(parts):
        data = b"".join(parts)
    return int(started[0].split()[0]), started[1], data


class Server(NamedTuple):
    """A server of S3, and the proxy that clients talk to.

    Attributes:
      proxy: The proxy.
      options: What `storage_options` has to be.
    """

    proxy: Proxy
    options: dict[str, Any]

    def url(self, path: str) -> str:
        """Returns the URL of a path in the bucket."""
        return f"s3://{BUCKET}/{path}"


_MS = datetime.timedelta(milliseconds=1)


@contextlib.contextmanager
def running() -> Iterator[Server]:
    """Runs a server with an empty bucket."""
    from moto.server import create_backend_app

    # Moto's server looks through 200 folders of its own at each request, for the application.
    application = create_backend_app("s3")
    signed = "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request"
    made = answer_of(application, "PUT", f"/{BUCKET}", b"", {"HTTP_AUTHORIZATION": signed})
    assert made[0] == http.HTTPStatus.OK
    keys = {"access_key_id": "key", "secret_access_key": "secret", "region": "us-east-1"}
    retries = {
        "max_retries": 4,
        "backoff": {"init_backoff": _MS * 10, "max_backoff": _MS * 50, "base": 2.0},
        "retry_timeout": _MS * 60_000,
    }
    with Proxy(application) as proxy:
        yield Server(proxy, {"endpoint": proxy.url, **keys, "retry_config": retries})
