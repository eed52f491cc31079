"""Hostile files in stores and on web servers: the same as on a disk, or the same error."""

from __future__ import annotations

import http.server
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import numpy as np
import pytest

import tiers
import treepack
from hostile import agreement
from hostile.cases import Case, Cases
from support import s3, servers
from trees import record_of, sealed

pytest.importorskip("obstore")

LISTING = b"<ListBucketResult><Name>bucket</Name><KeyCount>0</KeyCount></ListBucketResult>"


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers with the file, or ranges of it, as S3 and web servers do."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    file: bytes = b""

    def do_GET(self) -> None:
        """Sends a range of the file, or an empty list."""
        range_ = self.headers.get("Range")
        if "list-type" in self.path:
            status, headers, data = 200, [], LISTING
        elif range_ and not self.file:
            status, headers, data = 416, [("Content-Range", "bytes */0")], b""
        else:
            status, headers, data = s3.part_of(self.file, range_)
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("ETag", '"the same"')
        self.send_header("Last-Modified", "Tue, 24 Nov 2026 00:00:00 GMT")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


class Store(NamedTuple):
    """A way to reach the file: its URL, and `storage_options`."""

    url: str
    options: dict[str, Any]


@pytest.fixture(scope="module")
def stores() -> Iterator[dict[str, Store]]:
    keys = {"access_key_id": "key", "secret_access_key": "secret", "region": "us-east-1"}
    with servers.Server(Handler) as found:
        yield {
            "s3": Store("s3://bucket/file", {"endpoint": found.url, **keys}),
            "http": Store(f"{found.url}/file", {}),
        }


class Failure(NamedTuple):
    """An error, and where it is."""

    kind: type[Exception]
    offset: int | None
    path: str | None


def _leaves(source: Any, *, salvage: bool, **options: Any) -> Any:
    with treepack.open(source, salvage=salvage, unknown="dict", **options) as file:
        return [(path, agreement.content(_whole(leaf))) for path, leaf in file.leaves()]


def _whole(leaf: Any) -> Any:
    return leaf[...] if isinstance(leaf, treepack.LazyArray) else leaf


def _slices(source: Any, **options: Any) -> Any:
    with treepack.open(source, unknown="dict", **options) as file:
        arrays = [leaf for _, leaf in file.leaves() if isinstance(leaf, treepack.LazyArray)]
        parts = (
            outcome(lambda array=array: array[array.shape and slice(1, 3)]) for array in arrays
        )
        return [agreement.content(part) for part in parts]


VERBS: dict[str, Callable[..., Any]] = {
    "load": lambda source, **options: agreement.content(
        treepack.load(source, **agreement.HOW, **options)
    ),
    "open": lambda source, **options: _leaves(source, salvage=False, **options),
    "salvage": lambda source, **options: _leaves(source, salvage=True, **options),
    "verify": lambda source, **options: (
        dict((found := treepack.verify(source, **options)).leaves), found.damage, found.newer,
    ),
    "read_metadata": lambda source, **options: repr(treepack.read_metadata(source, **options)),
    "abstract": lambda source, **options: agreement.content(
        treepack.abstract(source, unknown="dict", **options)
    ),
    "select": lambda source, **options: agreement.content(
        treepack.load(source, select="**/w", **agreement.HOW, **options)
    ),
    "slices": _slices,
    "read_stream": lambda source, **options: [
        (path, agreement.content(leaf)) for path, leaf in treepack.read_stream(source, **options)
    ],
    "is_checkpoint": treepack.is_checkpoint,
}  # fmt: skip


def outcome(use: Callable[[], Any]) -> Any:
    """Returns a result, or the type of an error and the byte where it is."""
    try:
        return use()
    except Exception as error:  # on a disk, others are what the harness looks for
        return Failure(type(error), getattr(error, "offset", None), getattr(error, "path", None))


def differences(case: Case, path: Path, stores: dict[str, Store]) -> Iterator[str]:
    """Yields where a file in a store is another one than on the disk."""
    assert isinstance(case.data, bytes)
    path.write_bytes(case.data)
    Handler.file = case.data
    for name, verb in VERBS.items():
        limit = {} if name == "is_checkpoint" else {"max_size": case.max_size}
        local = outcome(lambda verb=verb, limit=limit: verb(path, **limit))
        for kind, (url, options) in stores.items():
            remote = outcome(
                lambda verb=verb, limit=limit, url=url, options=options: verb(
                    url, storage_options=options, **limit
                )
            )
            if remote != local:
                yield f"seed {case.seed}, {case.container}, {name} over {kind}: {remote} != {local}"


@pytest.mark.campaign
def test_hostile_files_in_stores_are_those_on_the_disk(
    tmp_path: Path, stores: dict[str, Store]
) -> None:
    """Set TREEPACK_HOSTILE to the number of cases to try more of them."""
    cases = Cases()
    first, count = (
        10_000,
        int(os.environ.get("TREEPACK_HOSTILE", tiers.either(40, 400, nightly=10_000))),
    )
    only = ("file", "bytes", "flax", "gzip", "numbers", "stream")
    found: list[str] = []
    for seed in range(first, first + count):
        found.extend(differences(cases.case(seed, only), tmp_path / "file", stores))
    assert not found, f"{len(found)} differences:\n" + "\n".join(found[:20])


def test_an_index_of_more_elements_than_there_can_be_is_damage(
    tmp_path: Path, stores: dict[str, Store]
) -> None:
    treepack.save(tmp_path / "saved", {"w": np.zeros((3, 4), np.float32)})
    data = (tmp_path / "saved").read_bytes()
    record = msgpack.unpackb(record_of(data))
    index = msgpack.unpackb(record["index"])
    for shape in ([2**63 - 1, 4], [2**40, 4], [4, 4]):
        index["kinds"] = [{"array": ["float32", shape]}]
        packed = msgpack.packb({**record, "index": msgpack.packb(index)})
        plain = data[: data.index(b"__treepack__")] + b"__treepack__"
        Handler.file = plain + msgpack.packb(sealed(packed))
        for url, options in stores.values():
            array = treepack.open(url, storage_options=options)["w"]
            assert array.shape == tuple(shape)
            with pytest.raises(treepack.DecodeError):
                array[...]
