"""Finds the store of a path or URL."""

from __future__ import annotations

import errno
import os

from treepack._src.storage import filesystems, objects
from treepack._src.storage.disk import Disk
from treepack._src.storage.place import local, shown, url_of
from treepack._src.storage.store import RemoteStore, Store

_DISK = Disk()


def store_of(path: str | os.PathLike[str]) -> tuple[Store, str]:
    """Returns the store of a path or URL, and the path in the store.

    Raises:
      ImportError: If a required package is not installed.
      ValueError: If the store does not support the options of the URL.
    """
    url = url_of(path)
    return (_DISK, os.fspath(local(path))) if url is None else remote_store(url)


def remote_store(url: str) -> tuple[RemoteStore, str]:
    """Returns the store of a URL, and the path in the store; see `store_of`."""
    return objects.opened(url) or filesystems.opened(url)


def file_at(url: str) -> tuple[RemoteStore, str]:
    """Returns the store of a file's URL, and the path in the store.

    Raises:
      IsADirectoryError: If the URL names a directory or bucket.
    """
    store, path = remote_store(url)
    # The end of a chain or query does not show whether it is a directory.
    ends = url.endswith("/") and "::" not in url and "?" not in url
    if ends or not path.strip("/"):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), shown(url))
    return store, path
