"""Lists and removes entries of directories, local or at URLs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import treepack._core as core
from treepack._src.storage.place import joined, real
from treepack._src.storage.store import ABSENT, Entry, is_hidden
from treepack._src.storage.stores import store_of

_Path = str | os.PathLike[str]


def entries(directory: _Path, *, hidden: bool = False) -> list[Entry]:
    """Returns the entries of a directory; none if it is missing.

    Raises:
      NotADirectoryError: If it is a file.
    """
    store, path = store_of(directory)
    with of_directory():
        all_entries = store.entries(path)
    return [entry for entry in all_entries if hidden or not is_hidden(entry.name)]


@contextlib.contextmanager
def of_directory() -> Iterator[None]:
    """Adds to errors in reading a directory that is a file what to pass instead."""
    try:
        yield
    except NotADirectoryError as error:
        error.add_note("treepack: pass a directory; treepack.load reads a file")
        raise


def listed(directory: _Path) -> list[Entry] | None:
    """Returns the entries of a directory; `None` if it is missing or may not be listed."""
    store, path = store_of(directory)
    all_entries = store.listed(path)
    return (
        None
        if all_entries is None
        else [entry for entry in all_entries if not is_hidden(entry.name)]
    )


def is_local(path: _Path) -> bool:
    """Returns whether a path is one of the system, not a URL of a store."""
    return store_of(path)[0].is_local


def versioned(directory: _Path, name: str) -> tuple[bytes | None, Any]:
    """Reads a small file of a directory that is replaced on the condition that it has not changed.

    Returns:
      Its bytes, or `None` if it is missing, and its version for `Store.put`.
    """
    store, path = store_of(joined(directory, name))
    try:
        with of_directory():
            response = store.get(path)
    except FileNotFoundError:
        return None, ABSENT
    return bytes(response.data), response.version


def exists(path: _Path) -> bool:
    """Returns whether there is a file or directory."""
    store, place = store_of(path)
    return store.exists(place)


def is_directory(path: _Path) -> bool:
    """Returns whether there is a directory."""
    store, place = store_of(path)
    return store.is_directory(place)


def link(source: _Path, target: _Path, *, durable: bool) -> None:
    """Gives a file another name in its store: by a hard link, or a copy made by the store.

    Raises:
      OSError: If the store has no such links.
      NotImplementedError: The same, from libraries.
    """
    (store, old), (_, new) = store_of(source), store_of(target)
    if real(source) == real(target) and store.exists(old):  # a checkpoint is saved again
        return
    store.link(old, new, durable=durable)


def remove_files(*paths: _Path) -> None:
    """Removes files of one store, unless they are gone already."""
    places = [store_of(path) for path in paths]
    if places:
        places[0][0].delete([place for _, place in places])


def remove_dead(path: str) -> None:
    """Removes a temporary file of the core if its writer is dead and it is local."""
    if is_local(path):
        with contextlib.suppress(OSError):
            core.remove_if_dead(Path(path))


def remove(path: _Path) -> None:
    """Removes a file, or a directory with its content, unless it is gone already."""
    store, place = store_of(path)
    store.remove(place)
