"""The entries of directories, local or at URLs: listed and removed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NamedTuple

from treepack._src.storage import remote as _remote
from treepack._src.storage.place import local, url_of


class Entry(NamedTuple):
    """The name of a file or directory."""

    name: str
    is_directory: bool


def entries(directory: str | os.PathLike[str]) -> list[Entry]:
    """Returns the entries of a directory; none if it is missing."""
    url = url_of(directory)
    try:
        if url is None:
            with os.scandir(local(directory)) as found:
                return [Entry(entry.name, entry.is_dir()) for entry in found]
        fs, path = _remote.file_system(url)
        listed = fs.ls(path, detail=True)
    except FileNotFoundError:
        return []
    # Some list a directory in itself.
    inside = [info for info in listed if info["name"].strip("/") != path.strip("/")]
    return [
        Entry(info["name"].rstrip("/").rsplit("/", 1)[-1], info["type"] == "directory")
        for info in inside
    ]


def exists(path: str | os.PathLike[str]) -> bool:
    """Returns whether there is a file or directory."""
    url = url_of(path)
    if url is None:
        return Path(local(path)).exists()
    fs, place = _remote.file_system(url)
    return bool(fs.exists(place))


def is_directory(path: str | os.PathLike[str]) -> bool:
    """Returns whether there is a directory."""
    url = url_of(path)
    if url is None:
        return Path(local(path)).is_dir()
    fs, place = _remote.file_system(url)
    return bool(fs.isdir(place))


def remove(path: str | os.PathLike[str]) -> None:
    """Removes a file, or a directory with all that is in it, unless it is gone already."""
    url = url_of(path)
    try:
        if url is not None:
            fs, place = _remote.file_system(url)
            fs.rm(place, recursive=True)
        elif is_directory(path) and not Path(local(path)).is_symlink():
            shutil.rmtree(local(path))
        else:
            Path(local(path)).unlink()
    except FileNotFoundError:
        pass
