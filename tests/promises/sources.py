"""Ways to name a saved tree."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
import numpy as np

import treepack


class Source(NamedTuple):
    """A way to name what lies at an absolute path.

    Attributes:
      named: Yields the argument of a verb.
      group: `"path"`, `"URL"`, `"data"`, `"file object"` or `"open"`.
      is_relative: Whether it needs the working directory.
      folder: The name of the folder of the tree.
    """

    named: Callable[[Path], contextlib.AbstractContextManager[Any]]
    group: str = "path"
    is_relative: bool = False
    folder: str = "folder"
    name: str = ""

    @property
    def is_bytes(self) -> bool:
        """Whether it has no path, so that files beside it cannot be read."""
        return self.group in ("data", "file object")


def given(make: Callable[[Path], Any]) -> Callable[[Path], contextlib.AbstractContextManager[Any]]:
    return lambda path: contextlib.nullcontext(make(path))


def relative(
    make: Callable[[Path], Any],
) -> Callable[[Path], contextlib.AbstractContextManager[Any]]:
    @contextlib.contextmanager
    def named(path: Path) -> Iterator[Any]:
        with contextlib.chdir(path.parent):
            yield make(path)

    return named


@contextlib.contextmanager
def in_memory(path: Path) -> Iterator[str]:
    """Yields a URL of fsspec's file system in memory, with what lies at a path and beside it."""
    url = f"memory://promises{path}"
    files = fsspec.filesystem("memory")
    files.put(str(path.parent), f"/promises{path.parent}", recursive=True)
    try:
        yield url
    finally:
        files.rm(f"/promises{path.parent}", recursive=True)


SOURCES: dict[str, Source] = {
    "absolute path": Source(given(str)),
    "pathlib.Path": Source(given(lambda path: path)),
    "relative path": Source(relative(lambda path: path.name), is_relative=True),
    "./path": Source(relative(lambda path: f"./{path.name}"), is_relative=True),
    "path/": Source(
        given(lambda path: f"{path}/" if path.is_dir() else f"{path.parent}/./{path.name}")
    ),
    "a//b/../b": Source(given(lambda path: f"{path.parent}//../{path.parent.name}/{path.name}")),
    # Characters to which URLs and patterns give a meaning.
    "odd path": Source(given(str), folder="50% a#b?c [x] *ü"),
    "file:// URL": Source(given(lambda path: path.as_uri()), "URL"),
    "memory:// URL": Source(in_memory, "URL"),
    "bytes": Source(given(lambda path: path.read_bytes()), "data"),
    "NumPy array": Source(given(lambda path: np.frombuffer(path.read_bytes(), np.uint8)), "data"),
    "memoryview": Source(given(lambda path: memoryview(bytearray(path.read_bytes()))), "data"),
    "file object": Source(lambda path: path.open("rb"), "file object"),
    "BytesIO": Source(given(lambda path: io.BytesIO(path.read_bytes())), "file object"),
    "open File": Source(lambda path: treepack.open(path), "open"),
}

SOURCES = {name: each._replace(name=name) for name, each in SOURCES.items()}
