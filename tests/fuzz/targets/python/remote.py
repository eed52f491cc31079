"""Whatever a store or a web server answers: what is read is what is stored, or there is an error.

An input has parts. The first is the script: what is done, and how the store answers requests. The
others are files, alone or in a directory. Requests go to functions in the place of obstore's.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import obstore
from prelude import core, is_error, outcome, text

import treepack
from treepack._src.storage.address import Address
from treepack._src.storage.fetch import Blocks
from treepack._src.storage.objects import ObjectStore

CUT = b"\xc1cut\xc1"

# Few bytes at a time, so that small files take several requests.
Blocks.END, Blocks.LEAST, Blocks.MOST = 200, 64, 512
ObjectStore.near, ObjectStore.at_once = 32, 2

DOCUMENTED = (ValueError, OSError, MemoryError)
FAILED = obstore.exceptions

# Errors of requests.
ERRORS = (
    FAILED.GenericError("body error"),
    FAILED.GenericError("416 Range Not Satisfiable"),
    FAILED.GenericError("501 Not Implemented"),
    FAILED.GenericError("non-partial content"),
    FAILED.GenericError("/meta-data/ does not answer"),
    FAILED.GenericError("x" * 1000),
    FAILED.NotSupportedError("suffix"),
    FAILED.PreconditionError("412"),
    FAILED.PermissionDeniedError("403 Forbidden"),
    FAILED.UnauthenticatedError("401"),
    FAILED.JoinError("a task"),
    FileNotFoundError("404"),
    ConnectionResetError("reset"),
)


class Server:
    """The files of an input, and its answers.

    Attributes:
      is_true: Whether a reader can detect each wrong answer so far.
      has_failed: Whether an answer was another than a store should give.
    """

    def __init__(self, script: bytes, files: dict[str, bytes]):
        self.script, self.files = script, files
        self.requests: Counter[Any] = Counter()
        self.is_true = True
        self.has_failed = False

    def _answer(self, *request: Any) -> tuple[int, int]:
        """Returns how a request is answered, which its number among equal ones decides as well."""
        self.requests[request] += 1
        at = sum(it if isinstance(it, int) else len(it) for it in request)
        at = (at + 7 * self.requests[request]) % max(1, len(self.script) // 2) * 2
        kind, how = (*self.script[at : at + 2], 0, 0)[:2]
        self.has_failed = self.has_failed or kind > 0
        if kind >= 256 - len(ERRORS):
            raise ERRORS[kind - 256]
        return kind, how

    def get(self, _store: Any, path: str, *, options: Any) -> Any:
        """Answers like `obstore.get`."""
        part = options.get("range")
        kind, how = self._answer(path, *(part if isinstance(part, tuple) else ("suffix",)))
        name = path.rpartition("model")[2].strip("/")
        if name not in self.files:
            raise FileNotFoundError(path)
        data = self.files[name]
        size, tag = len(data), '"a"'
        if options.get("if_match", tag) != tag:
            raise FAILED.PreconditionError("412")
        if isinstance(part, tuple):
            start, stop = part
            if start >= size:
                raise FAILED.GenericError("416 Range Not Satisfiable")
        else:
            start, stop = (max(0, size - part["suffix"]) if part else 0), size
        found, stop = data[start:stop], min(stop, size)
        if kind == 1:  # less
            found = found[: len(found) - how]
        elif kind == 2:  # more
            found += bytes(how)
        elif kind == 3:  # all
            start, stop, found = 0, size, data
        elif kind == 4:  # another size
            size += how - 128
        elif kind == 5:
            size = how << 36
        elif kind == 6:  # another file since
            tag = f'"{how}"'
        elif kind == 7:
            tag = "W/weak"
        elif kind == 8:
            tag = ""
        elif kind == 9:  # elsewhere
            self.is_true = self.is_true and not isinstance(part, tuple)
            start, stop = start + how, stop + how
            found = data[start:stop]
        elif kind == 10 and found:  # damage
            at = how % len(found)
            found = found[:at] + bytes([found[at] ^ 1]) + found[at + 1 :]
            self.is_true = False
        elif kind == 11:
            found = b""
        elif kind == 12:  # another size in this answer, and as many bytes
            size = len(found)
        meta: dict[str, Any] = {"size": max(0, size), "path": path, "e_tag": tag or None}
        return SimpleNamespace(meta=meta, range=(start, stop), bytes=lambda: found)

    def head(self, _store: Any, path: str) -> Any:
        """Answers like `obstore.head`."""
        kind, how = self._answer("head", path)
        name = path.rpartition("model")[2].strip("/")
        if name not in self.files:
            raise FileNotFoundError(path)
        size = len(self.files[name])
        return {"size": size + how - 128 if kind == 4 else size, "path": path, "e_tag": '"a"'}

    def list(self, _store: Any, path: str, **_: Any) -> Any:
        """Answers like `obstore.list`."""
        self._answer("list", path)
        found = [{"path": f"{path}/{name}", "size": 1} for name in self.files if name]
        return iter([found] if found else [])

    def list_with_delimiter(self, _store: Any, path: str) -> Any:
        """Answers like `obstore.list_with_delimiter`."""
        self._answer("names", path)
        found = [{"path": f"{path}/{name}", "size": 1} for name in self.files if name]
        return {"objects": found, "common_prefixes": []}


def leaves(source: Any, *, salvage: bool) -> Any:
    """Opens, and reads parts."""
    with treepack.open(source, salvage=salvage, max_size=1 << 24, unknown="dict") as file:
        found = {}
        outcome(lambda: repr(file))
        for path, leaf in file.leaves():
            if isinstance(leaf, treepack.LazyArray):
                part = slice(0, 1) if leaf.ndim else ()
                found[path] = outcome(lambda: [leaf[part], np.asarray(leaf)], DOCUMENTED)  # noqa: B023
            else:
                found[path] = leaf
        return found


def load(source: Any, select: Any) -> Any:
    """Loads all, or what patterns mean."""
    return treepack.load(
        source, max_size=1 << 24, unknown="dict", arrays="numpy", select=select, verify=bool(select)
    )


VERBS = (
    lambda source: load(source, None),
    lambda source: load(source, ["**/w", "!0"]),
    lambda source: leaves(source, salvage=False),
    lambda source: leaves(source, salvage=True),
    lambda source: treepack.verify(source, max_size=1 << 24),
    lambda source: treepack.read_metadata(source, max_size=1 << 24, unknown="dict"),
    lambda source: treepack.abstract(source, max_size=1 << 24, unknown="dict"),
    lambda source: list(treepack.read_stream(source)),
    treepack.is_checkpoint,
)
URLS = ("s3://bucket/model", "https://host/model", "gs://bucket/model", "az://box/model")
OPTIONS = (
    {"region": "r", "skip_signature": True},
    {},
    {"skip_signature": True},
    {"account_name": "a", "skip_signature": True},
)


def files_of(parts: list[bytes]) -> dict[str, bytes]:
    """Returns files by their names in the directory, or one whose name is empty."""
    if len(parts) < 2:
        return {"": parts[0] if parts else b""}
    found = {"manifest.treepack": parts[0]}
    names: Any = outcome(lambda: core.Manifest.decode(parts[0]).files)
    names = [name for name, *_ in names] if isinstance(names, list) else ["a", "b"]
    return found | dict(zip(names, parts[1:], strict=False))


# What damage may be said to be: it is left out where no request succeeds that would tell.
HINT = re.compile(r"the data looks like [^;]*; |the data looks like .*|\d+ trailing byte.*")


def compare(found: Any, expected: Any, *, has_failed: bool) -> None:
    """Raises an error if what was read is something else than what is stored."""
    if isinstance(found, dict) and isinstance(expected, dict) and found.keys() == expected.keys():
        for key, value in found.items():
            compare(value, expected[key], has_failed=has_failed)
        return
    shown, wanted = text(found), text(expected)
    if has_failed and "the data looks like " not in shown:
        shown, wanted = HINT.sub("", shown), HINT.sub("", wanted)
    assert is_error(found) or shown == wanted, (found, expected)


def check(data: bytes) -> None:
    """Does one thing with the files, here and there."""
    script, *parts = data.split(CUT)
    how = script[0] if script else 0
    verb, number = VERBS[how % 9], how // 9 % 4
    server = Server(script[1:], files_of(parts))
    for name in ("get", "head", "list", "list_with_delimiter"):
        setattr(obstore, name, getattr(server, name))
    # Web servers have directories only where the URL says so.
    source = Address.of(URLS[number] + "/" * (len(server.files) > 1), OPTIONS[number])
    found = outcome(lambda: verb(source), DOCUMENTED)
    if not server.is_true or (server.has_failed and verb is treepack.is_checkpoint):
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        local = Path(folder) / "model"
        if [*server.files] == [""]:
            local.write_bytes(server.files[""])
        else:
            local.mkdir()
            for name, content in server.files.items():
                if name and "/" not in name and "\0" not in name and len(name.encode()) < 200:
                    (local / name).write_bytes(content)
        expected = outcome(lambda: verb(local), DOCUMENTED)
    compare(found, expected, has_failed=server.has_failed)
    if not server.has_failed:
        assert is_error(found) == is_error(expected), (found, expected)
