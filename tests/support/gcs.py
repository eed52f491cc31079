"""A stand-in for Google Cloud Storage: of its XML API, what obstore uses, with its conditions.

No emulator that a package registry has answers all of these requests. The form of requests and
answers follows https://cloud.google.com/storage/docs/xml-api/overview; objects have generations,
and conditions are about those.
"""

from __future__ import annotations

import contextlib
import email.utils
import hashlib
import http.server
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from support import servers
from support.s3 import BUCKET, part_of


class Server(servers.Server):
    """A server with one bucket.

    Attributes:
      objects: The content of each object, and its generation.
      requests: Methods and paths of requests.
      before: Is called before each request is done.
    """

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.requests: list[str] = []
        self.before: Callable[[str], None] = lambda _: None
        self.numbers = itertools.count(1_700_000_000_000_000)
        self.lock = threading.Lock()

    @property
    def options(self) -> dict[str, Any]:
        """What `storage_options` has to be."""
        return {
            "base_url": self.url,
            "bearer_token": "none",
            "client_options": {"allow_http": True},
        }


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # see s3.py
    server: Server

    def _do(self) -> None:
        url = urlsplit(self.path)
        query = {k: v[0] for k, v in parse_qs(url.query, keep_blank_values=True).items()}
        bucket, _, name = unquote(url.path[1:]).partition("/")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.requests.append(f"{self.command} {name}")
        self.server.before(f"{self.command} {name}")
        with self.server.lock:
            if bucket != BUCKET:
                self._answer(404, b"<Error><Code>NoSuchBucket</Code></Error>")
            elif self.command == "POST" or "uploadId" in query:
                self._upload(name, query, body)
            elif not name:
                self._list(query.get("prefix", ""), query.get("delimiter"))
            elif self.command == "PUT":
                self._put(name, body)
            elif name not in self.server.objects:
                self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            elif self.command == "DELETE":
                del self.server.objects[name]
                self._answer(204)
            else:
                self._get(name)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _do  # noqa: N815

    def _put(self, name: str, body: bytes) -> None:
        expected = self.headers.get("x-goog-if-generation-match")
        _, found = self.server.objects.get(name, (b"", 0))
        if expected is not None and int(expected) != found:
            self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            return
        source = self.headers.get("x-goog-copy-source")
        if source is not None:
            _, _, source = unquote(source).lstrip("/").partition("/")
            if source not in self.server.objects:
                self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
                return
            body, _ = self.server.objects[source]
        self.server.objects[name] = body, next(self.server.numbers)
        self._answer(200, b"", self._about(name))

    def _get(self, name: str) -> None:
        about = self._about(name)
        if self.headers.get("If-Match", about["ETag"]) != about["ETag"]:
            self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            return
        data = self.server.objects[name][0]
        range_ = self.headers.get("Range")
        if range_ is not None and not data:
            self._answer(416, b"<Error><Code>InvalidRange</Code></Error>")
            return
        status, headers, part = part_of(data, range_)
        self._answer(status, part, {**about, **dict(headers)})

    def _list(self, prefix: str, delimiter: str | None) -> None:
        items, inside = [], set()
        for name in sorted(self.server.objects):
            rest = name.removeprefix(prefix)
            if not name.startswith(prefix):
                continue
            if delimiter and delimiter in rest:
                inside.add(prefix + rest.split(delimiter)[0] + delimiter)
                continue
            about = self._about(name)
            items.append(
                f"<Contents><Key>{escape(name)}</Key><Size>{len(self.server.objects[name][0])}"
                "</Size><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
                f"<ETag>{escape(about['ETag'])}</ETag></Contents>"
            )
        items += [
            f"<CommonPrefixes><Prefix>{escape(it)}</Prefix></CommonPrefixes>" for it in inside
        ]
        text = f"<ListBucketResult>{''.join(items)}</ListBucketResult>"
        self._answer(200, text.encode(), {"Content-Type": "application/xml"})

    def _upload(self, name: str, query: dict[str, str], body: bytes) -> None:
        uploads = self.server.uploads
        if "uploads" in query:
            number = str(next(self.server.numbers))
            uploads[number] = {}
            text = f"<InitiateMultipartUploadResult><UploadId>{number}</UploadId>"
            self._answer(200, f"{text}</InitiateMultipartUploadResult>".encode())
        elif self.command == "PUT":
            uploads[query["uploadId"]][int(query["partNumber"])] = body
            self._answer(200, b"", {"ETag": f'"{hashlib.md5(body).hexdigest()}"'})
        elif self.command == "DELETE":
            del uploads[query["uploadId"]]
            self._answer(204)
        else:
            parts = uploads.pop(query["uploadId"])
            data = b"".join(parts[number] for number in sorted(parts))
            self.server.objects[name] = data, next(self.server.numbers)
            text = f"<ETag>{escape(self._about(name)['ETag'])}</ETag>"
            text = f"<CompleteMultipartUploadResult>{text}</CompleteMultipartUploadResult>"
            self._answer(200, text.encode(), self._about(name))

    def _about(self, name: str) -> dict[str, str]:
        data, generation = self.server.objects[name]
        return {
            "ETag": f'"{hashlib.md5(data).hexdigest()}"',
            "Last-Modified": email.utils.formatdate(usegmt=True),
            "x-goog-generation": str(generation),
        }

    def _answer(
        self, status: int, data: bytes = b"", headers: dict[str, str] | None = None
    ) -> None:
        self.send_response_only(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


@contextlib.contextmanager
def running() -> Iterator[Server]:
    """Runs a server with an empty bucket."""
    with Server() as server:
        yield server
