"""Paths and URLs of files."""

from __future__ import annotations

import os
import re

# fsspec chains URLs: `simplecache::s3://bucket/model`, `zip://model::s3://bucket/models.zip`.
_URL = re.compile(r"(?:[a-zA-Z][a-zA-Z0-9+.-]+::)*[a-zA-Z][a-zA-Z0-9+.-]+:/")


def joined(path: str | os.PathLike[str], name: str) -> str:
    """Returns the path or URL of a file in a directory."""
    url = url_of(path)
    if url is None:
        return os.path.join(local(path), name)  # noqa: PTH118
    # In a chain, the path of the directory is in the first link that has a path.
    links = url.split("::")
    at = next(at for at, link in enumerate(links) if "://" in link)
    links[at] += name if links[at].endswith("/") else f"/{name}"
    return "::".join(links)


def url_of(path: str | os.PathLike[str]) -> str | None:
    """Returns a path as text if it is a URL, but not one of a local file.

    Raises:
      ValueError: If pathlib has changed a URL, so that it would be taken for a local path.
    """
    text = os.fspath(path)
    if not isinstance(text, str) or not _URL.match(text) or text.startswith("file://"):
        return None
    if "://" not in text:
        raise ValueError(f"{text!r} is a URL that pathlib has changed: pass it as text")
    return text


def absolute(path: str | os.PathLike[str]) -> str:
    """Returns a path that stays valid when the working directory changes; URLs as they are."""
    if url_of(path) is not None:
        return os.fspath(path)
    # Not `abspath`: `..` after a link leads elsewhere.
    return os.path.join(os.getcwd(), local(path))  # noqa: PTH109, PTH118


def local(path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """Returns the path of a local file, which may be given as a `file://` URL."""
    text = os.fspath(path)
    if not isinstance(text, str) or not text.startswith("file://"):
        return path
    from urllib.parse import unquote, urlsplit

    return unquote(urlsplit(text).path)
