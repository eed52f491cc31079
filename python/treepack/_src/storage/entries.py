"""The entries of directories, local or at URLs: listed and removed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from treepack._src.storage.place import local, url_of
from treepack._src.storage.remote import store_of
from treepack._src.storage.store import Entry


def entries(directory: str | os.PathLike[str]) -> list[Entry]:
    """Returns the entries of a directory; none if it is missing."""
    url = url_of(directory)
    if url is not None:
        store, path = store_of(url)
        return store.entries(path)
    try:
        with os.scandir(local(directory)) as found:
            return [Entry(entry.name, _is_directory(entry)) for entry in found]
    except FileNotFoundError:
        return []


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def listed(directory: str | os.PathLike[str]) -> list[Entry] | None:
    """Returns the entries of a directory; `None` if there is none there that may be listed."""
    url = url_of(directory)
    if url is None:
        return entries(directory) if Path(local(directory)).is_dir() else None
    store, path = store_of(url)
    return store.listed(path)


def exists(path: str | os.PathLike[str]) -> bool:
    """Returns whether there is a file or directory."""
    url = url_of(path)
    if url is None:
        return Path(local(path)).exists()
    store, place = store_of(url)
    try:
        store.head(place, 1)
    except FileNotFoundError:
        return False
    except IsADirectoryError:
        pass
    return True


def is_directory(path: str | os.PathLike[str]) -> bool:
    """Returns whether there is a directory."""
    url = url_of(path)
    if url is None:
        return Path(local(path)).is_dir()
    store, place = store_of(url)
    return store.is_directory(place)


def remove_file(path: str | os.PathLike[str]) -> None:
    """Removes a file, unless it is gone already."""
    url = url_of(path)
    if url is None:
        Path(local(path)).unlink(missing_ok=True)
    else:
        store, place = store_of(url)
        store.delete([place])


def remove(path: str | os.PathLike[str]) -> None:
    """Removes a file, or a directory with all that is in it, unless it is gone already."""
    url = url_of(path)
    try:
        if url is not None:
            store, place = store_of(url)
            store.remove(place)
        elif is_directory(path) and not Path(local(path)).is_symlink():
            shutil.rmtree(local(path))
        else:
            Path(local(path)).unlink()
    except FileNotFoundError:
        pass
