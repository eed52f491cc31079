from __future__ import annotations

import contextlib
import difflib
import fnmatch
import glob
import itertools
import os
import re
import shlex
from typing import Any

from treepack._src import formats
from treepack._src.storage.urls import shown
from treepack.errors import GzipCorruptionError, MissingPathError, TreepackError


def _size_of(source: Any) -> str:
    with contextlib.suppress(OSError, TypeError, ValueError):
        return f", which has {os.path.getsize(source)} bytes"  # noqa: PTH202
    return ""


def _is_repository(source: Any) -> bool:
    form = r"(\w[\w.-]*)/(?!.*\.[A-Za-z]\w+$)\w[\w.-]*"
    match = re.fullmatch(form, source) if isinstance(source, str) else None
    return match is not None and not os.path.lexists(match[1])


def _hint(source: Any) -> str:
    folder, name = os.path.split(os.fsdecode(source))
    if _is_repository(source):
        return (
            f"for a repository of Hugging Face, load huggingface_hub.snapshot_download({source!r})"
        )
    try:
        with os.scandir(folder or os.curdir) as listing:
            names = [entry.name for entry in itertools.islice(listing, _MOST_NAMES)]
    except (OSError, ValueError):  # a URL, or no such folder
        if "://" in os.fsdecode(source):
            return ""
        chain, _, file = os.fsdecode(source).rpartition("::")
        if chain and os.path.lexists(file):
            return f"a chain ends with a URL: is it '{chain}::file://{os.path.abspath(file)}'?"  # noqa: PTH100
        is_here = os.path.lexists(name)
        return f"there is no folder {folder!r}{f': is it {name!r}?' if is_here else ''}"
    if inside := _inside(source):
        return inside
    if any(other.startswith(f".{name}.treepack-") for other in names):
        return "a save to it has not ended, or was killed: wait for result() of a background save"
    names = [near for near in names if near != name]  # it is there, but may not be seen
    names = [other for other in names if name[:1] == "." or other[:1] != "."]
    if glob.has_magic(name):
        matches = sorted(fnmatch.filter(names, name))
        if matches:
            return f"a path has no wildcards: pass one of {_listed(folder, matches)}"
    # Equal suffixes do not make names similar. A series calls the checkpoint of step 1 `step_1`.
    stems = {_stem(other).lower(): other for other in sorted(names)}
    steps = [other for other in names if name.isdigit() and re.fullmatch(rf"\D+{name}", other)]
    stem = _stem(name)
    # The suffix may be misspelt.
    stem = os.path.splitext(name)[0] if stem == name else stem  # noqa: PTH122
    near = [stems[stem] for stem in difflib.get_close_matches(stem.lower(), stems, n=1)]
    if near := [*steps, *near]:
        return f"is it {os.path.join(folder, near[0])!r}?"  # noqa: PTH118
    alike = sorted(other for other in names if _stem(other) != other) or sorted(names)
    return f"there are {_listed(folder, alike)}" if alike else ""


def _inside(source: Any) -> str:
    text = os.fsdecode(source)
    for end in (at for at, letter in enumerate(text) if letter in "/:#?" and at):
        if os.path.isfile(text[:end]):  # noqa: PTH113
            file, path = text[:end], text[end + 1 :].removeprefix("select=")
            if not path:
                return f"is it {file!r}?"
            import zipfile  # takes milliseconds of the start of every program

            if formats.of_suffix(file) is None and zipfile.is_zipfile(file):
                return f"{file!r} is an archive: is it {f'zip://{path}::{file}'!r}?"
            command = f"treepack ls {shlex.quote(file)} {shlex.quote(path)}"
            call = f"treepack.open({file!r})[{path!r}]"
            return f"{file!r} is a file, and {path!r} a path in it: {call}, or `{command}`"
    return ""


def _stem(name: str) -> str:
    name = name.removesuffix(".gz")
    suffixes = formats.readable_suffixes()
    return next((name.removesuffix(end) for end in suffixes if name.endswith(end)), name)


def _listed(folder: str, names: list[str]) -> str:
    paths = [repr(os.path.join(folder, name)) for name in names[:_MOST_LISTED]]  # noqa: PTH118
    return ", ".join(paths) + (", …" if len(names) > _MOST_LISTED else "")


_CURE = "copy the file again, or its intact leaves with `treepack salvage`"

# The maximum number of names in a message.
_MOST_LISTED = 5

# Limits the search, which is slow.
_MOST_NAMES = 1000


class naming:  # noqa: N801  # a context manager is written like a function
    """Names a file in the errors of a block, or in a caught error.

    Errors of treepack and of the system get a `filename`; others, as of handlers, a note.
    """

    __slots__ = ("_source",)

    def __init__(self, source: Any):
        self._source = source

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            self.add_to(error)

    @property
    def filename(self) -> str | None:
        source = self._source
        if isinstance(source, (str, os.PathLike)):
            return shown(source)
        name = getattr(source, "name", None) if hasattr(source, "read") else None
        return os.fsdecode(name) if isinstance(name, (str, bytes, os.PathLike)) else None

    def add_to(self, error: BaseException) -> None:
        source, name = self._source, self.filename
        if name is None:
            return
        if isinstance(error, TreepackError):
            if error.filename is None:
                error.filename = name
                if type(error) is GzipCorruptionError:
                    error.add_note(f"treepack: {_CURE}")
        elif isinstance(error, OSError):
            if error.filename is None and error.errno is not None:
                error.filename = name
            is_missing = isinstance(error, FileNotFoundError) and error.filename in (name, source)
            if is_missing and not hasattr(error, "__notes__") and (hint := _hint(source)):
                error.add_note(f"treepack: {hint}")
            if isinstance(error, NotADirectoryError) and (hint := _inside(source)):
                error.add_note(f"treepack: {hint}")
        elif isinstance(error, MemoryError):
            if not error.args:  # the core has no memory for a text
                error.args = (f"not enough memory for {name!r}{_size_of(source)}",)
        elif isinstance(error, Exception) and not isinstance(error, MissingPathError):
            note = f"treepack: while reading {name!r}"
            if note not in getattr(error, "__notes__", ()):
                error.add_note(note)
