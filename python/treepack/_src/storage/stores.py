from __future__ import annotations

import errno
import os

from treepack._src.storage import filesystems, objects
from treepack._src.storage.store import RemoteStore
from treepack._src.storage.urls import Url


def remote_store(url: Url) -> tuple[RemoteStore, str]:
    return objects.opened(url) or filesystems.opened(url)


def file_at(url: Url) -> tuple[RemoteStore, str]:
    store, path = remote_store(url)
    # The end of a chain or query does not show whether it is a directory.
    ends = url.text.endswith("/") and "::" not in url.text and "?" not in url.text
    if ends or not path.strip("/"):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), url.shown)
    return store, path
