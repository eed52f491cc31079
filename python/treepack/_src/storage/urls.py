from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

# fsspec chains URLs: `simplecache::s3://bucket/model`, `zip://model::s3://bucket/models.zip`.
_URL = re.compile(r"(?:[a-zA-Z][a-zA-Z0-9+.-]+::)*[a-zA-Z][a-zA-Z0-9+.-]+:/")

# Schemes without the slashes that a URL has: `s3:bucket/model`.
_BARE = re.compile(r"(s3|gs|gcs|az|abfs|hf|https?)(?::(?!/)|//)(?=.)")

# Schemes are case-insensitive. With a single slash, pathlib has changed it.
_FILE = re.compile(r"file:/", re.IGNORECASE)


class Url(NamedTuple):
    text: str
    options: Mapping[str, Any]
    file_system: Any

    @property
    def shown(self) -> str:
        return shown(self.text)


def local(text: str) -> str | None:
    """Returns text, also a `file://` URL, as the path of a local file; `None` for other URLs.

    Raises a ValueError if pathlib shortened `://`, or a `file://` URL has no path or another host.
    """
    if not _URL.match(text):
        if bare := _BARE.match(text):
            url = f"{bare[1]}://{text[bare.end() :]}"
            raise ValueError(
                f"{shown(text)!r} looks like a URL without ://: is it {shown(url)!r}? A file of "
                "this name is in a folder: ./"
            )
        return text
    if not _FILE.match(text):
        if "://" not in text:
            raise ValueError(
                f"{shown(text)!r} is a URL that pathlib changed: pass it as a str, with ://"
            )
        return None
    from urllib.parse import unquote, urlsplit

    parts = urlsplit(text)
    path = unquote(parts.path)
    if path and parts.netloc in ("", "localhost"):
        return path
    wrong = "has the host" if path else "names no file but the host"
    raise ValueError(
        f"{text!r} {wrong} {parts.netloc!r}: pass a path, or a URL with three slashes, file:///"
    )


def shown(path: str | os.PathLike[str]) -> str:
    text = str(os.fsdecode(path))  # not an `Address`
    if not _URL.match(text) or _FILE.match(text):
        return text
    text = _LOGIN.sub(_without_login, text)
    at = min((at for mark in "?#" if (at := text.find(mark)) >= 0), default=len(text))
    place, query = text[:at], text[at:]
    if "=" not in query and query.startswith("?") and _WEB.search(place):
        return f"{place}?{_HIDDEN}"
    return place + _VALUE.sub(f"={_HIDDEN}", query)


def without_secrets(text: str, url: str) -> str:
    """Removes the parts of the URL that `shown` hides from text, such as an error of a store.

    In queries of other URLs, it hides values with names of secrets.
    """
    text = text.replace(url, shown(url))
    text = _LOGIN_IN_TEXT.sub(_without_login, text)
    text = _SECRET_IN_TEXT.sub(rf"\1={_HIDDEN}", text)
    for secret in _secrets(url):
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
