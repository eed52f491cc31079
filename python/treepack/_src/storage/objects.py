"""Implements stores of S3, Google Cloud Storage, Azure and web servers with `obstore`."""

from __future__ import annotations

import base64
import contextlib
import errno
import functools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from treepack._src.forks import Locked
from treepack._src.options import Buffer
from treepack._src.printable import warn
from treepack._src.storage.hiding import hiding
from treepack._src.storage.store import (
    NO_FILE,
    BadNameError,
    ConditionError,
    Entry,
    RemoteStore,
    Response,
)
from treepack._src.storage.urls import Url, shown
from treepack.errors import TreepackError

T = TypeVar("T")

_SCHEMES = {
    "s3": ("s3", "s3a"),
    "gs": ("gs", "gcs"),
    "az": ("az", "azure", "adl", "abfs", "abfss"),
    "http": ("http", "https"),
}

# The options with credentials, and the variables of the environment.
_CREDENTIALS = {
    "s3": (
        "endpoint, region, access_key_id and secret_access_key",
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    ),
    "gs": ("service_account", "GOOGLE_APPLICATION_CREDENTIALS"),
    "az": ("account_name and account_key", "AZURE_STORAGE_ACCOUNT_NAME and …_KEY"),
    "http": ("headers", ""),
}

# Texts of obstore for denied listings, which are not PermissionDeniedErrors.
_DENIED = ("401 Unauthorized", "403 Forbidden")

# Texts in errors of requests to the machine for credentials that it lacks.
_ASKS_MACHINE = ("/api/token", "token request", "/meta-data/")

_URL = re.compile(r"([a-zA-Z0-9]+)://([^/]*)/*(.*)", re.DOTALL)

# The size in bytes of the parts of an upload, and their number at a time. A store allows at most
# 10,000 parts.
_PART_BYTES = 16 << 20
_PARTS_AT_ONCE = 12
_MOST_PARTS = 9000

# fsspec's names of some options.
_ALIASES = {"key": "access_key_id", "secret": "secret_access_key", "anon": "skip_signature"}

# obstore's text for a response that breaks off; the request is repeated.
_ATTEMPTS = 3
_BROKEN_OFF = "body error"

# Texts of obstore for responses that it does not take: without the range, or the size of the file.
_NO_SIZE = "Content-Length Header missing"
_NO_RANGE = ("non-partial", "416 ", "501 ", "CONTENT_RANGE header", _NO_SIZE)

# The fields that identify a version of a file.
_VERSION = ("e_tag", "version")

_CHANGED = "{} was changed by another writer: open or save it again"

# Texts of obstore for conditions that a store does not support.
_NO_CONDITION = ("501 Not Implemented", "400 Bad Request", "conditional put is disabled")

# The timeout of a request with all its bytes; with the default of 30 s, large parts of slow uploads
# would never finish.
_TIMEOUT = "300s"

# The timeout in seconds for the next bytes of a response without a size.
_STREAM_TIMEOUT_S = 60


def opened(url: Url) -> tuple[ObjectStore, str] | None:
    match = _URL.fullmatch(url.text)
    if match is None or url.file_system is not None:
        return None
    scheme, host, path = match[1].lower(), match[2], match[3].rstrip("/")
    if not any(scheme in names for names in _SCHEMES.values()):
        return None
    if not scheme.startswith("http"):
        return _store_at(url, scheme, host), path
    # A presigned URL has a query, which paths of obstore cannot have.
    return None if "?" in path or "#" in path else (_store_at(url, scheme, host), unquote(path))


class ObjectStore(RemoteStore):
    near = 2 << 20
    at_once = 32
    has_conditions = True

    def __init__(self, url: Url, scheme: str, host: str):
        try:
            import obstore
            from obstore.store import HTTPStore, from_url
        except ImportError as error:
            raise ImportError(
                f"{url.shown!r} is a URL, but obstore is not installed: pip install obstore"
            ) from error
        self._obstore: Any = obstore
        self._base = f"{scheme}://{host}"
        self._kind = next(kind for kind, names in _SCHEMES.items() if scheme in names)
        self._is_web = scheme.startswith("http")
        login, at, host = host.rpartition("@") if self._is_web else ("", "", host)
        self._login = login + at
        self.has_conditions = not self._is_web
        options = {_ALIASES.get(name, name): value for name, value in url.options.items()}
        client = {"timeout": _TIMEOUT, **(options.pop("client_options", None) or {})}
        headers = options.pop("headers", None)
        if headers is not None:
            client["default_headers"] = headers
        if login:  # obstore would not send it, but show it in errors
            client["default_headers"] = _with_login(client.get("default_headers"), login)
        base = f"{'gs' if scheme == 'gcs' else scheme}://{host}"
        endpoint = base if self._is_web else _endpoint(options)
        if endpoint.startswith("http://"):
            client.setdefault("allow_http", True)
        self._client: dict[str, Any] = client
        make: Any = HTTPStore.from_url if self._is_web else from_url
        with hiding(url.text):
            try:
                self._store: Any = make(base, client_options=client, **options)
            except (obstore.exceptions.BaseError, TypeError, ValueError) as error:
                raise ValueError(
                    f"{url.shown}: {_first_line(error)}; storage_options for {scheme}:// are "
                    f"options of obstore.store.from_url, such as {_CREDENTIALS[self._kind][0]}"
                ) from error

    def head(self, path: str, count: int) -> Response:
        with self._translated(path):
            try:
                return self._end(path, {"suffix": count}, count)
            except FileNotFoundError:
                if self.is_directory(path):
                    raise self._error(errno.EISDIR, path) from None
                raise
            except self._failures as error:
                if not self._has_no_such_range(error):
                    raise
            with contextlib.suppress(FileNotFoundError, *self._failures):  # not all have HEAD
                nbytes = self._obstore.head(self._store, path)["size"]
                if nbytes > count:
                    return self._end(path, (nbytes - count, nbytes), count)
            return self.get(path)

    def get(self, path: str) -> Response:
        with self._translated(path):
            try:
                _, stored = self._read(path, {})
            except self._failures as error:
                if _NO_SIZE not in str(error):
                    raise
                return self._streamed(path)
            count = memoryview(stored.data).nbytes
            if count != stored.nbytes:
                raise OSError(
                    f"{self._shown(path)}: wrong response: expected {stored.nbytes} bytes, got "
                    f"{count}"
                )
            return stored

    def _streamed(self, path: str) -> Response:
        """Reads a file of a web server whose response has no size, which obstore rejects."""
        from urllib.request import Request, urlopen

        request = Request(f"{self._base.replace(self._login, '', 1)}/{quote(path)}")
        for name, text in (self._client.get("default_headers") or {}).items():
            request.add_unredirected_header(name, os.fsdecode(text))  # for this host only
        with urlopen(request, timeout=_STREAM_TIMEOUT_S) as response:
            data: bytes = response.read()
        return Response(len(data), None, data)

    def _end(self, path: str, part: Any, count: int) -> Response:
        start, stored = self._read(path, {"range": part})
        nbytes = memoryview(stored.data).nbytes
        expected = min(count, stored.nbytes or 0)
        if start + nbytes != stored.nbytes or nbytes != expected:
            raise OSError(
                f"{self._shown(path)}: wrong response: expected the last {expected} of "
                f"{stored.nbytes} bytes, got {nbytes} from {start} on"
            )
        return stored

    def range(self, path: str, start: int, stop: int, version: Any) -> Buffer:
        options: dict[str, Any] = {"range": (start, stop)}
        tag = None if version is None else version.get("e_tag")
        if tag is not None and not tag.startswith("W/"):
            options["if_match"] = tag
        with self._translated(path):
            return self._read(path, options)[1].data

    def _read(self, path: str, options: dict[str, Any]) -> tuple[int, Response]:
        def read() -> tuple[int, Response]:
            response = self._obstore.get(self._store, path, options=options)
            meta = response.meta
            data = response.bytes()
            return response.range[0], Response(meta["size"], _version_in(meta), data)

        return self._again(read)

    def _again(self, ask: Callable[[], T]) -> T:
        """Repeats a request if the response breaks off: obstore does not always."""
        for _ in range(_ATTEMPTS):
            try:
                return ask()
            except self._obstore.exceptions.GenericError as error:
                if _BROKEN_OFF not in str(error):
                    raise
        return ask()

    def _upload(self, path: str, parts: Iterator[bytes], nbytes: int) -> None:
        size = max(_PART_BYTES, -(-nbytes // _MOST_PARTS))
        with self._translated(path):
            self._obstore.put(
                self._store,
                path,
                parts,
                use_multipart=nbytes > _PART_BYTES,
                chunk_size=size,
                max_concurrency=_PARTS_AT_ONCE,
            )

    def put(self, path: str, data: bytes, before: Any = None, *, durable: bool = True) -> None:
        put = functools.partial(self._obstore.put, self._store, path, data, use_multipart=False)
        with self._translated(path):
            lacks = None
            if before is not None and self.has_conditions:
                try:
                    put(mode="create" if before is NO_FILE else before)
                    return
                except self._failures as error:
                    if not any(text in str(error) for text in _NO_CONDITION):
                        raise
                    lacks = error
            if before is not None and not self._is_web and self._version(path) != before:
                raise ConditionError(_CHANGED.format(self._shown(path))) from lacks
            put()
            if lacks is not None:
                self.has_conditions = False
                warn(
                    f"{self._base} does not support conditional writes: of two jobs that save to "
                    "one directory at the same time, one may replace the other's checkpoint "
                    "without an error. Let only one job save there"
                )

    def _version(self, path: str) -> Any:
        try:
            meta = self._obstore.head(self._store, path)
        except FileNotFoundError:
            return NO_FILE
        return _version_in(meta)

    def link(self, source: str, target: str, *, durable: bool) -> None:
        with self._translated(source):
            self._obstore.copy(self._store, source, target)

    def delete(self, paths: Sequence[str]) -> None:
        if not paths:
            return
        with self._translated(paths[0]):
            try:
                self._obstore.delete(self._store, list(paths))
            except FileNotFoundError:  # some stores raise it if one of them is missing
                for path in paths:
                    with contextlib.suppress(FileNotFoundError):
                        self._obstore.delete(self._store, path)

    def entries(self, path: str) -> list[Entry]:
        with self._translated(path):
            return self._listed(path) or []

    def _listed(self, path: str) -> list[Entry] | None:
        """Lists a directory; `None` if there is nothing, not even its marker.

        Consoles mark a directory by an empty object `name/`, which obstore shows as `name`.
        """
        listing = self._again(lambda: self._obstore.list_with_delimiter(self._store, path))
        objects = [entry["path"] for entry in listing["objects"]]
        if not objects and not listing["common_prefixes"]:
            return None
        names = [Entry(_name(name), False) for name in objects if name != path]
        return [*names, *(Entry(_name(prefix), True) for prefix in listing["common_prefixes"])]

    def listed(self, path: str) -> list[Entry] | None:
        return self._unless_hidden(path, lambda: self._listed(path))

    def is_directory(self, path: str) -> bool:
        def ask() -> bool:
            return self._again(lambda: any(self._obstore.list(self._store, path, chunk_size=1)))

        return bool(self._unless_hidden(path, ask))

    def _unless_hidden(self, path: str, ask: Callable[[], T]) -> T | None:
        """Returns `None` if the bucket does not exist, or may not be listed."""
        if self._is_web:  # most web servers do not list, and respond with an error
            return None
        with self._translated(path):
            try:
                return ask()
            except self._obstore.exceptions.BaseError as error:
                if any(text in str(error) for text in ("404 Not Found", "403 Forbidden")):
                    return None
                raise

    def remove(self, path: str) -> None:
        with self._translated(path):
            listed = self._again(lambda: [*self._obstore.list(self._store, path)])
        self.delete([path, *(entry["path"] for part in listed for entry in part)])

    def _has_no_such_range(self, error: Exception) -> bool:
        """Whether an object is empty, or a store does not support a kind of range."""
        if isinstance(error, self._obstore.exceptions.NotSupportedError):
            return True
        return any(text in str(error) for text in _NO_RANGE)

    @property
    def _failures(self) -> tuple[type[Exception], ...]:
        failures = self._obstore.exceptions
        return failures.GenericError, failures.NotSupportedError, NotImplementedError

    def _remedy(self) -> str:
        options, variables = _CREDENTIALS[self._kind]
        if self._is_web:
            return f"pass storage_options= with {options}, if the server asks for a login"
        return (
            f"pass storage_options= with {options}, or set {variables}; for public data, pass "
            'storage_options={"skip_signature": True}'
        )

    def _error(self, number: int, path: str) -> OSError:
        return OSError(number, os.strerror(number), self._shown(path))  # of the number's class

    def _shown(self, path: str) -> str:
        return shown(f"{self._base}/{path}")

    @contextlib.contextmanager
    def _translated(self, path: str) -> Iterator[None]:
        failures = self._obstore.exceptions
        with hiding(f"{self._base}/{path}"):
            try:
                yield
            except FileNotFoundError as error:
                translated = self._error(errno.ENOENT, path)
                translated.add_note(_first_line(error))
                raise translated from None
            except TreepackError:  # of the code that yields the parts
                raise
            except ValueError as error:  # a name that obstore rejects
                raise BadNameError(f"{self._shown(path)}: {_first_line(error)}") from error
            except (failures.PreconditionError, failures.AlreadyExistsError) as error:
                raise ConditionError(_CHANGED.format(self._shown(path))) from error
            except failures.BaseError as error:
                denials = failures.PermissionDeniedError, failures.UnauthenticatedError
                is_denied = isinstance(error, denials) or any(
                    text in str(error) for text in _DENIED
                )
                needs_machine = any(text in str(error) for text in _ASKS_MACHINE)
                if not is_denied and not needs_machine:
                    raise OSError(f"{self._shown(path)}: {_first_line(error)}") from error
                translated = self._error(errno.EACCES, path)
                translated.add_note("no credentials: " * needs_machine + _first_line(error))
                translated.add_note(self._remedy())
                raise translated from error


def _endpoint(options: Mapping[str, Any]) -> str:
    names = ("endpoint", "endpoint_url", "aws_endpoint", "aws_endpoint_url")
    endpoint = next((options[name] for name in names if name in options), None)
    return str(
        endpoint or os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT") or ""
    )


def _with_login(headers: Mapping[str, Any] | None, login: str) -> dict[str, Any]:
    updated = {**(headers or {})}
    if all(name.lower() != "authorization" for name in updated):
        text = base64.b64encode(unquote(login if ":" in login else f"{login}:").encode())
        updated["authorization"] = f"Basic {text.decode()}"
    return updated


def _first_line(error: BaseException) -> str:
    text = str(error).split("\n\nDebug source")[0].strip()
    return text if len(text) < _MOST_CHARS else f"{text[:_MOST_CHARS]} …"


_MOST_CHARS = 500


def _version_in(meta: Mapping[str, Any]) -> dict[str, Any] | None:
    return {key: meta[key] for key in _VERSION if meta.get(key) is not None} or None


def _name(path: str) -> str:
    return path.rsplit("/", 1)[-1]


# The prefixes of environment variables that obstore reads.
_READ = ("AWS_", "GOOGLE_", "AZURE_")

_MOST_STORES = 64

# The stores of the program, which keep their connections.
_stores: dict[Any, ObjectStore] = {}
_turns = Locked()


def _store_at(url: Url, scheme: str, host: str) -> ObjectStore:
    environment = sorted(
        variable for variable in os.environ.items() if variable[0].startswith(_READ)
    )
    key = scheme, host, repr(sorted(url.options.items())), tuple(environment), os.getpid()
    with _turns.lock:
        store = _stores.get(key)
        if store is None:
            if len(_stores) >= _MOST_STORES:
                _stores.clear()
            store = _stores[key] = ObjectStore(url, scheme, host)
        return store
