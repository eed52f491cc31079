"""Resolves paths and URLs of files."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from treepack._src import formats
from treepack._src.options import Compress
from treepack._src.printable import printable, warn

# fsspec chains URLs: `simplecache::s3://bucket/model`, `zip://model::s3://bucket/models.zip`.
_URL = re.compile(r"(?:[a-zA-Z][a-zA-Z0-9+.-]+::)*[a-zA-Z][a-zA-Z0-9+.-]+:/")

# Schemes are case-insensitive. With a single slash, pathlib has changed it.
_FILE = re.compile(r"file:/", re.IGNORECASE)


class RemotePath(Protocol):
    """A path of another file system, such as a `UPath`."""

    @property
    def protocol(self) -> str:
        """The scheme of the URL."""

    @property
    def storage_options(self) -> Mapping[str, Any]:
        """The options of the file system."""


Location = str | os.PathLike[str] | RemotePath
"""The location of a file or directory: a path, a URL, or a `UPath`."""


class Url(str):
    """A URL with the options of its store.

    Attributes:
      storage_options: The options.
      file_system: The fsspec file system that the caller passed, or `None`.
    """

    __slots__ = ("file_system", "storage_options")

    storage_options: dict[str, Any]
    file_system: Any

    def __new__(
        cls, text: str, storage_options: Mapping[str, Any] | None = None, file_system: Any = None
    ) -> Url:
        url = super().__new__(cls, text)
        url.storage_options = dict(storage_options or {})
        url.file_system = file_system
        return url

    def __add__(self, text: str) -> Url:
        return Url(super().__add__(text), self.storage_options, self.file_system)


def options_of(url: str) -> dict[str, Any]:
    """Returns the options of the store of a URL."""
    return url.storage_options if isinstance(url, Url) else {}


def file_system_of(url: str) -> Any:
    """Returns the fsspec file system that the caller passed with a URL, or `None`."""
    return url.file_system if isinstance(url, Url) else None


def resolved(source: Any, storage_options: Mapping[str, Any] | None = None) -> Any:
    """Returns a source in the form that internal functions take.

    A path becomes text: of a `UPath` of a remote file system a `Url` with that file system, of a
    `file://` URL the path, with the home folder for a leading `~`. Data and file objects are
    returned unchanged.

    Raises:
      TypeError: If the options are not a mapping.
      ValueError: If a path contains NUL, or there are options, but the source is not a URL.
    """
    if storage_options is not None and not isinstance(storage_options, Mapping):
        # Shows only the type: the value may be a secret.
        kind = type(storage_options).__name__
        raise TypeError(f'storage_options= must be a dict, such as {{"region": …}}, got {kind}')
    own = getattr(source, "storage_options", None)
    protocol = getattr(source, "protocol", "")
    if own is not None and isinstance(protocol, str) and protocol not in ("", "file", "local"):
        if storage_options:
            return Url(str(source), {**own, **storage_options})
        return Url(str(source), own, getattr(source, "fs", None))
    url = None
    if isinstance(source, (str, os.PathLike)):
        if "\0" in os.fsdecode(source):
            raise ValueError(f"{shown(source)!r} contains NUL, which no path has: leave it out")
        url = url_of(source)
        # Path.expanduser raises for unknown users.
        source = os.path.expanduser(local(source)) if url is None else url  # noqa: PTH111
        if "$" in source and url is None:
            _warn_of_variables(source)
    if storage_options is None:
        return source
    if url is None:
        raise ValueError(
            "storage_options= apply only to URLs, and this is not a URL: leave them out"
        )
    return Url(url, {**options_of(url), **storage_options}, file_system_of(url))


def _warn_of_variables(path: str) -> None:
    """Warns of a path with a variable of the environment that is meant to be expanded."""
    if os.path.expandvars(path) != path and not os.path.lexists(path):
        warn(
            f"{printable(path)!r} has a variable of the environment, which is part of the name "
            "here: pass os.path.expandvars(path) for its value"
        )


def resolved_beside(source: Any, storage_options: Mapping[str, Any] | None) -> Any:
    """Returns a further source of a call, such as its base, in the form of `resolved`.

    Only a URL without options of its own takes those of the call.
    """
    if source is None:
        return None
    is_path = isinstance(source, (str, os.PathLike)) and url_of(source) is not None
    has_own = getattr(source, "storage_options", None) is not None
    return resolved(source, storage_options if is_path and not has_own else None)


def located(
    path: Any, storage_options: Mapping[str, Any] | None = None, *, for_file: str = "pass its path"
) -> Any:
    """Returns the path or URL of a file to write; see `resolved`.

    `for_file` is the remedy in the error for a file object.

    Raises:
      TypeError: If `path` has another type.
      FileNotFoundError: If it is empty.
    """
    location = resolved(path, storage_options)
    if not isinstance(location, str):
        remedy = (
            "the path comes first, as in save(path, tree), or second, as in "
            "serialization.load_from_file(tree, path)"
        )
        if hasattr(path, "write"):
            remedy = for_file
        raise TypeError(f"expected a path or a URL, got {type(path).__name__}: {remedy}")
    check_name(location)
    return location


def check_name(path: str | os.PathLike[str]) -> None:
    """Raises a FileNotFoundError if a path is empty, which would be the working directory."""
    if os.fspath(path) == "":
        raise FileNotFoundError(errno.ENOENT, "The path is empty", "")


# The suffixes of other formats.
_FORMATS = {
    "PyTorch": ".pt .pth",
    "HDF5": ".h5 .hdf5",
    "Keras": ".keras",
    "pickle": ".pkl .pickle",
    "JSON": ".json",
    "GGUF": ".gguf",
    "ONNX": ".onnx",
    "zip": ".zip",
    "tar": ".tar .tgz",
    "Zstandard": ".zst",
    "bzip2": ".bz2",
    "xz": ".xz",
    "LZ4": ".lz4",
    "Parquet": ".parquet",
    "Arrow": ".arrow .feather",
    "CSV": ".csv",
    "YAML": ".yaml .yml",
    "TOML": ".toml",
}
_FOREIGN = {suffix: name for name, suffixes in _FORMATS.items() for suffix in suffixes.split()}


def compression(path: str | os.PathLike[str], compress: Compress | None = None) -> Compress:
    """Returns how a file of msgpack is compressed: as chosen, or as its name says.

    Raises:
      ValueError: If its name has the suffix of another format or compression.
    """
    is_gzip = os.fsdecode(path).endswith(".gz")
    if compress == "numbers" and is_gzip:
        raise ValueError(
            f'{shown(path)!r}: .gz is for gzip, and "numbers" is another compression: choose a '
            "name without .gz"
        )
    suffix = os.path.splitext(os.fsdecode(path).lower().removesuffix(".gz"))[1]  # noqa: PTH122
    format = formats.of_suffix(suffix)
    library = _FOREIGN.get(suffix) if format is None else format.library
    if library is None:
        return is_gzip if compress is None else compress
    others = [each for each in formats.known() if each.is_saved and each is not format]
    arrays = "".join(f", or {each.suffixes[0]} for arrays alone" for each in others)
    is_converted = format is not None and not format.is_saved
    hint = ", and run `treepack convert` on it" if is_converted else ""
    raise ValueError(
        f"{shown(path)!r}: cannot write msgpack to a {suffix} file, which is for {library}: "
        f"choose .treepack or .msgpack{arrays}{hint}"
    )


def has_flax_suffix(path: str | os.PathLike[str]) -> bool:
    """Returns whether a file name says that flax reads the file."""
    return os.fsdecode(path).lower().removesuffix(".gz").endswith(".msgpack")


def joined(path: str | os.PathLike[str], name: str) -> str:
    """Returns the path or URL of a file in a directory."""
    url = url_of(path)
    if url is None:
        return os.path.join(local(path), name)  # noqa: PTH118
    return _changed(url, lambda link: f"{link}{'' if link.endswith('/') else '/'}{name}")


def beside(path: str | os.PathLike[str], name: str) -> str:
    """Returns the path or URL of a file in the directory of another one."""
    url = url_of(path)
    if url is None:
        return os.path.join(os.path.dirname(local(path)), name)  # noqa: PTH118, PTH120
    return _changed(url, lambda link: f"{link.rpartition('/')[0]}/{name}")


def like(path: str, text: str) -> str:
    """Returns text as a path, or as a URL with the same options as `path`."""
    return text if url_of(path) is None else Url(text, options_of(path), file_system_of(path))


def normal(path: str) -> str:
    """Returns a path or URL without `.` and empty parts; a chain of URLs as it is.

    `..` stays in a path: after a link, it is not the directory before.
    """
    url = url_of(path)
    if url is None:
        return os.fspath(Path(path))
    if "::" in url:
        return path
    scheme, _, rest = url.partition("://")
    return like(path, f"{scheme}://{os.path.normpath(rest)}")


def directory_of(given: Any, storage_options: Mapping[str, Any] | None = None) -> str:
    """Returns the path or URL of a directory, normalized; see `resolved`."""
    directory = resolved(given, storage_options)
    if not isinstance(directory, str):
        kind = type(directory).__name__
        raise TypeError(f"expected the path of a directory, which comes first, got {kind}")
    return normal(directory)


def fixed_directory(given: Any, storage_options: Mapping[str, Any] | None = None) -> str:
    """Returns a directory to write to as a path or URL that the working directory does not change.

    Raises:
      TypeError: If `given` has another type.
      FileNotFoundError: If it is empty.
    """
    return absolute(normal(located(given, storage_options)))


def names_of(path: str | os.PathLike[str]) -> list[str]:
    """Returns the names of a path or URL: as given, and absolute."""
    url = url_of(path)
    if url is not None:
        return [url, url.rstrip("/")]
    given = local(path)
    return [given, os.path.abspath(given)]  # noqa: PTH100


def _changed(url: str, change: Callable[[str], str]) -> Url:
    # In a chain, the first link with a path has it.
    links = url.split("::")
    at = next(at for at, link in enumerate(links) if "://" in link)
    links[at] = change(links[at])
    return Url("::".join(links), options_of(url), file_system_of(url))


def url_of(path: str | os.PathLike[str]) -> str | None:
    """Returns a path as text if it is a URL of a remote file, or `None`.

    Raises:
      ValueError: If pathlib changed a URL so that it looks like a local path.
    """
    text = os.fsdecode(path)
    if not _URL.match(text) or _FILE.match(text):
        return None
    if "://" not in text:
        raise ValueError(
            f"{shown(text)!r} is a URL that pathlib changed: pass it as a str, with ://"
        )
    return text


def shown(path: str | os.PathLike[str]) -> str:
    """Returns a path or URL as text for messages, without its login and the values of its query.

    So errors and logs contain no passwords or signatures of presigned URLs.
    """
    text = os.fsdecode(path)
    if not _URL.match(text) or _FILE.match(text):
        return text
    text = _LOGIN.sub(_without_login, text)
    at = min((at for mark in "?#" if (at := text.find(mark)) >= 0), default=len(text))
    place, query = text[:at], text[at:]
    if "=" not in query and query.startswith("?") and _WEB.search(place):
        return f"{place}?{_HIDDEN}"
    return place + _VALUE.sub(f"={_HIDDEN}", query)


def without_secrets(text: str, url: str | os.PathLike[str]) -> str:
    """Returns text, such as an error of a store, without the parts of the URL that `shown` hides.

    In queries of other URLs, such as in requests, it hides values with names of secrets.
    """
    text = text.replace(os.fsdecode(url), shown(url))
    text = _LOGIN_IN_TEXT.sub(_without_login, text)
    text = _SECRET_IN_TEXT.sub(rf"\1={_HIDDEN}", text)
    for secret in _secrets(os.fsdecode(url)):
        text = text.replace(secret, _HIDDEN)
    return text


_HIDDEN = "***"

# A login ends before the path, unless its password contains a slash and thus is not a port.
_LOGIN = re.compile(
    r"([a-zA-Z][a-zA-Z0-9+.-]*:/+)([^/?#]*|[^/?#:\[]*:(?!:|\d*(?:[/?#]|$)).*)@", re.DOTALL
)
_LOGIN_IN_TEXT = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*:/+)([^/?#\s'\"]*)@")
_VALUE = re.compile(r"=[^&;#]*")
_SECRET_IN_TEXT = re.compile(
    r"([?&][^=&?\s]*(?:sig|token|secret|passw|credential|auth|key)[^=&?\s]*)=[^&#\s]*",
    re.IGNORECASE,
)
_WEB = re.compile(r"https?:/", re.IGNORECASE)

# Shorter values may be common words.
_LEAST_PASSWORD = 4
_LEAST_VALUE = 8


def _without_login(match: re.Match[str]) -> str:
    scheme, login = match[1], match[2]
    # For other schemes, a name alone is not a login: `abfs://container@account…`.
    is_name = ":" not in login and not _WEB.fullmatch(scheme.rstrip("/") + "/")
    return match[0] if is_name else f"{scheme}{_HIDDEN}@"


def _secrets(url: str) -> list[str]:
    """Returns the passwords and query values of a URL, longest first."""
    from urllib.parse import unquote

    if not _URL.match(url) or _FILE.match(url):
        return []
    logins = [match[2] for match in _LOGIN.finditer(url) if _without_login(match) != match[0]]
    passwords = [login.partition(":")[2] or login for login in logins]
    _, _, query = url.partition("?")
    values = [match[0][1:] for match in _VALUE.finditer(query)]
    secrets = {password for password in passwords if len(password) >= _LEAST_PASSWORD}
    secrets |= {value for value in values if len(value) >= _LEAST_VALUE}
    return sorted(secrets | {unquote(secret) for secret in secrets}, key=len, reverse=True)


def absolute(path: str | os.PathLike[str]) -> str:
    """Returns a path that stays valid when the working directory changes; URLs unchanged."""
    if url_of(path) is not None:
        return os.fsdecode(path)
    place = local(path)
    if os.path.isabs(place):  # noqa: PTH117
        return place  # the working directory may be gone
    try:
        # Not `abspath`, which resolves `..` after a link differently.
        return os.path.join(os.getcwd(), place)  # noqa: PTH109, PTH118
    except FileNotFoundError as error:
        text = "The working directory was removed: pass an absolute path"
        raise FileNotFoundError(errno.ENOENT, text, place) from error


def real(path: str | os.PathLike[str]) -> str:
    """Returns the URL, or the path of a local file with links resolved."""
    url = url_of(path)
    return os.path.realpath(absolute(path)) if url is None else url.rstrip("/")


def local(path: str | os.PathLike[str]) -> str:
    """Returns the path of a local file, also for a `file://` URL."""
    text = os.fsdecode(path)
    if not _FILE.match(text):
        return text
    from urllib.parse import unquote, urlsplit

    return unquote(urlsplit(text).path)
