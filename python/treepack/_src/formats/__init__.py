"""Formats of other libraries: a folder has all that is known of one.

    path, data, directory ──▶ of_suffix, of_content, in_directory ──▶ Format ──▶ Reader
    leaves of a tree or an open file ──▶ to_save ──▶ Format.write ──▶ files

This face is below the rooms that use it; the folders are above the rooms that they use.
"""

from __future__ import annotations

import functools
import importlib
import os
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import treepack._core as core
from treepack._src.options import Buffer, Export, Progress, Saved, Writing, invalid_choice

SEPARATOR = "."
"""The default separator between the keys of a path in the name of an array."""

Look = Callable[[Any], list[str]]
"""Returns the names in a directory."""

Write = Callable[[Progress], None]
"""Writes files."""


Leaves = Iterable[tuple[tuple[str, ...], Any]]
"""Leaves with the keys of their paths."""


class Format:
    """A format of another library. A folder has an instance of a subclass, `FORMAT`.

    Promises that all forms keep (normal paths, leases, bounds, closed files) are kept below, by
    `Reader`, `Opened` and `storage`. A format that lacks an ability inherits the method.

    Attributes:
      name: Its name in messages, and as `format=` of `save`.
      title: One file of it, in messages.
      rank: Formats of a lower rank are tried first.
      reads_paths: Whether a path with one of its suffixes is opened by this format alone.
      separators: The separators of keys in names of its arrays, the usual one first; empty if
        arrays have no names.
      is_saved: Whether `save` writes trees in it, to files with the first suffix or by its name;
        open files are copied to each format with suffixes.
      is_split: Whether `max_shard_size` makes a directory of several files of it.
      directories: The word for its directories in help, if it has some.
    """

    name: str
    library: str
    title = ""
    suffixes: tuple[str, ...] = ()
    rank = 0
    separators: tuple[str, ...] = ()
    reads_paths = is_saved = is_split = False
    directories = ""

    @property
    def kind(self) -> str:
        return self.name if self.name == self.library else f"{self.library} ({self.name})"

    def recognizes(self, content: core.Content) -> bool:
        return False

    def open(self, source: Any, opened: Any, **options: Any) -> Any:
        raise NotImplementedError

    def find(
        self, path: Any, names: Sequence[str], has_checkpoint: Callable[[], bool]
    ) -> Callable[..., Any] | None:
        """Returns a function that opens a directory, of the options of a `Reader`.

        `has_checkpoint` looks for a sharded one in subdirectories. Raises a DecodeError for a
        directory of this format that is not a checkpoint.
        """
        return None

    def describe(self, path: Any, look: Look) -> str | None:
        return None

    def is_run(self, path: Any) -> bool:
        return False

    def check(self, path: Any, export: Export, options: Mapping[str, Any]) -> None:
        if any(options.get(name) not in (None, False) for name in ("compress", "level", "align")):
            raise ValueError(
                "compress=, level= and align= apply only to msgpack, and the target is "
                f"{self.name}: leave them out"
            )

    def exchange_folder(self, path: Any) -> Any:
        return None

    def content_of(self, tree: Any, saved: Saved) -> tuple[Leaves, Mapping[str, str] | None]:
        raise NotImplementedError

    def write(
        self,
        path: Any,
        leaves: Leaves,
        metadata: Mapping[str, str] | None,
        writing: Writing,
        export: Export,
        *,
        snapshot: bool = False,
        exchange: Any = None,
    ) -> Write:
        """Returns a function that writes arrays by their paths.

        With `snapshot`, they may change before. Processes of an `Exchange` call it together.
        """
        raise NotImplementedError

    def tree_of(self, content: core.Content, separator: str, max_size: int | None) -> Any:
        raise NotImplementedError


@functools.cache
def known() -> tuple[Format, ...]:
    names = [each.name for each in pkgutil.iter_modules(__path__) if each.ispkg]
    formats: list[Format] = [importlib.import_module(f"{__name__}.{name}").FORMAT for name in names]
    return tuple(sorted(formats, key=lambda format: (format.rank, format.name)))


def file_name(path: str) -> str:
    """Returns the link of a chain of URLs that has the path of the file; other paths unchanged."""
    return next((link for link in path.split("::") if "://" in link), path)


def of_suffix(source: Any) -> Format | None:
    if isinstance(source, (str, os.PathLike)):
        name = os.fsdecode(source).lower()
        name = file_name(name) if "::" in name else name
        for each in known():
            if name.endswith(each.suffixes):
                return each
    return None


def readable_suffixes() -> tuple[str, ...]:
    return (".treepack", ".msgpack", *(suffix for each in known() for suffix in each.suffixes))


def of_content(data: core.Content | Buffer) -> Format | None:
    content = data if isinstance(data, core.Content) else core.Content.lent(data)
    return next((each for each in known() if each.recognizes(content)), None)


def in_directory(
    path: Any, names: Sequence[str], has_checkpoint: Callable[[], bool]
) -> Callable[..., Any] | None:
    for each in known():
        if (opening := each.find(path, names, has_checkpoint)) is not None:
            return opening
    return None


def is_run(path: Any) -> bool:
    return any(each.is_run(path) for each in known())


def to_save(path: str, export: Export, *, is_open: bool = False) -> Format | None:
    saved = {each.name: each for each in known() if each.is_saved}
    if export.format is not None:
        if not isinstance(export.format, str) or export.format not in saved:
            text = invalid_choice("format", export.format, (None, *saved))
            hub = "".join(f", {name!r} as on Hugging Face" for name in saved)
            raise ValueError(f"{text}: leave it out; the suffix .msgpack writes for flax{hub}")
        return saved[export.format]
    if is_open and (format := of_suffix(path)) is not None:
        return format
    for each in saved.values():
        if file_name(path).lower().endswith(each.suffixes[0]):
            return each
    if export.max_shard_size is not None:
        raise ValueError(
            f"max_shard_size= applies only to {' and '.join(saved) or 'other formats'}: "
            f"{''.join(f'pass format={each!r}, or ' for each in saved)}leave it out"
            + "".join(
                f"; {each} are directories, or files with the suffix {kind.suffixes[0]}"
                for each, kind in saved.items()
            )
        )
    if export.separator is not None and of_suffix(path) is None:
        raise ValueError(
            f"separator= applies only to names in {with_names()}: leave it out, or choose another "
            "suffix"
        )
    return None


def with_names() -> str:
    return " and ".join(each.name for each in known() if each.separators)
