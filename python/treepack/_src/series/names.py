"""The names of checkpoints: which of them are a series, and their order.

The rules are the same as in `flax.training.checkpoints`: a name is a prefix and a step, and numbers
in names count as numbers.
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Iterable
from typing import Any

from treepack._src.options import StorageOptions
from treepack._src.saving.directory import has_other_files, is_unfinished
from treepack._src.storage.entries import entries
from treepack._src.storage.place import joined, normal, resolved
from treepack._src.storage.store import Entry
from treepack._src.storage.stores import store_of

_NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"

SIGNED_FLOAT_RE = re.compile(rf"([-+]?{_NUMBER})")
"""A number, with its sign."""

UNSIGNED_FLOAT_RE = re.compile(rf"[-+]?({_NUMBER})")
"""A number, without its sign."""

SCHEME_RE = re.compile(r"(?P<scheme>[a-z][a-z0-9.+-]+://)?(?P<path>.*)", re.IGNORECASE | re.DOTALL)
"""The scheme of a URL, if it is one, and the rest."""

MP_ARRAY_POSTFIX = "_gda"
"""The suffix of directories with the arrays of several processes, in flax's form."""

# An integer as Python writes it, so that a step has one name; of at most 63 bits.
_INTEGER = re.compile(r"0|[1-9][0-9]{0,17}")

# A prefix, and such an integer.
_NUMBERED = re.compile(rf"(.*\D|)(?:{_INTEGER.pattern})", re.DOTALL)

# flax's name of an incomplete file, after the prefix.
TEMPORARY = "tmp"

# The part of a directory's name by which Orbax marks it as incomplete.
_ORBAX_TEMPORARY = ".orbax-checkpoint-tmp"

PIN = ".keep"
"""The suffix of the file that pins a checkpoint, after the checkpoint's name."""

# The temporary files of the core.
OWN_TEMPORARY = re.compile(r"\..*\.treepack-.*\.tmp", re.DOTALL)


def sort_key(name: str, signed: bool = True) -> list[Any]:
    """Splits a name into text and numbers, in turn."""
    parts: list[Any] = (SIGNED_FLOAT_RE if signed else UNSIGNED_FLOAT_RE).split(name)
    parts[1::2] = map(float, parts[1::2])
    return parts


def natural_sort(file_list: Iterable[str], signed: bool = True) -> list[str]:
    """Sorts names so that numbers in them count as numbers.

    Args:
      file_list: The names.
      signed: Whether a sign belongs to the number after it.

    Examples:
      >>> from treepack.checkpoints import natural_sort
      >>> natural_sort(["step_10", "step_9", "step_1e3", "step_-1"])
      ['step_-1', 'step_9', 'step_10', 'step_1e3']
    """
    return sorted(file_list, key=lambda name: sort_key(name, signed))


def safe_normpath(path: str) -> str:
    """Normalizes a path, or the part of a URL after its scheme.

    Examples:
      >>> from treepack.checkpoints import safe_normpath
      >>> safe_normpath("gs://bucket//runs/./1")
      'gs://bucket/runs/1'
    """
    if "::" in path and "://" in path:
        return path  # a chain of URLs
    match = SCHEME_RE.fullmatch(path)
    assert match is not None
    return (match["scheme"] or "") + os.path.normpath(match["path"])


# Numbers with more digits are not found in names.
_MOST_NUMBER = 10**18


def checked(name: str, number: Any, text: str) -> int:
    """Returns a step or version as an integer.

    Raises:
      TypeError: If it is not an integer; the error ends with the text.
      ValueError: If it is negative or too large.
    """
    if not hasattr(number, "__index__"):
        raise TypeError(f"{name} must be an integer, {text}")
    integer = operator.index(number)
    if not 0 <= integer < _MOST_NUMBER:
        raise ValueError(f"{name} must be an integer from 0 to 10**18 - 1, got {integer}")
    return integer


def directory_of(given: Any, storage_options: StorageOptions = None) -> str:
    """Returns the path or URL of a directory, normalized; see `resolved`."""
    directory = resolved(given, storage_options)
    if not isinstance(directory, str):
        kind = type(directory).__name__
        raise TypeError(f"expected the path of a directory, which comes first, got {kind}")
    return normal(directory, safe_normpath)


class Folder:
    """The checkpoints in a directory whose names begin with a prefix.

    Attributes:
      directory: The path or URL of the directory.
      begin: The prefix of the names.
    """

    def __init__(self, directory: str, prefix: str):
        inner, self.begin = os.path.split(prefix)
        self.directory = joined(directory, inner) if inner else directory

    @property
    def is_local(self) -> bool:
        """Whether the directory is one of the system."""
        return store_of(self.directory)[0].is_local

    def name(self, step: object) -> str:
        return f"{self.begin}{step}"

    def path(self, name: str) -> str:
        return joined(self.directory, name)

    def step(self, name: str) -> int | None:
        """Returns the step in a name that is the prefix and an integer; `None` for other names."""
        text = name.removeprefix(self.begin)
        is_step = name.startswith(self.begin) and _INTEGER.fullmatch(text)
        return int(text) if is_step else None

    def key(self, name: str) -> list[Any]:
        """Returns the sort key of a name, without the prefix."""
        return sort_key(name.removeprefix(self.begin))

    def listing(self) -> Listing:
        return Listing(self, entries(self.directory, hidden=self.begin.startswith(".")))

    def names(self) -> list[str]:
        """Returns the names of all complete checkpoints, in order."""
        return [entry.name for entry in self.listing().checkpoints if entry.is_complete]

    def steps(self) -> list[str]:
        """Returns the steps of all complete checkpoints, in order."""
        return [name.removeprefix(self.begin) for name in self.names()]

    def numbered(self) -> dict[int, CheckpointEntry]:
        """Returns the numbered entries of a new listing."""
        return self.listing().numbered()


class CheckpointEntry:
    """An entry that is, or will be, a checkpoint; a directory is listed on first use.

    Attributes:
      name: Its name.
      is_directory: Whether it is a directory.
    """

    def __init__(self, folder: Folder, entry: Entry):
        self.name, self.is_directory = entry.name, entry.is_directory
        self._folder = folder
        self._inside: list[Entry] | None = None

    def inside(self) -> list[Entry] | None:
        """Returns the entries in it, or `None` if it is a file."""
        if self.is_directory and self._inside is None:
            self._inside = entries(self._folder.path(self.name))
        return self._inside

    @property
    def is_complete(self) -> bool:
        """Whether its save has ended."""
        inside = self.inside()
        return inside is None or not is_unfinished(entry.name for entry in inside)

    @property
    def is_foreign(self) -> bool:
        """Whether it is a directory with files of other programs."""
        inside = self.inside()
        return inside is not None and has_other_files(entry.name for entry in inside)


class Listing:
    """The content of the directory of a series at one time.

    Attributes:
      folder: The series.
      entries: All of it.
      checkpoints: The entries that are, or will be, checkpoints, in order.
    """

    def __init__(self, folder: Folder, entries: list[Entry]):
        self.folder, self.entries = folder, entries
        checkpoints = [
            CheckpointEntry(folder, entry)
            for entry in entries
            if entry.name.startswith(folder.begin)
            and entry.name != folder.name(TEMPORARY)
            and not entry.name.endswith(MP_ARRAY_POSTFIX)
            and _ORBAX_TEMPORARY not in entry.name
            and not OWN_TEMPORARY.fullmatch(entry.name)
        ]
        self.checkpoints = sorted(checkpoints, key=lambda checkpoint: folder.key(checkpoint.name))

    def numbered(self) -> dict[int, CheckpointEntry]:
        """Returns the entries that are named by the prefix and an integer, by step, in order.

        Entries with other names, such as `step_7.bak` or `step_007`, are not of the series. Where
        a store has a file and a directory of one name, the file is the one that is read.
        """
        numbered: dict[int, CheckpointEntry] = {}
        for entry in sorted(self.checkpoints, key=lambda entry: entry.is_directory):
            if (step := self.folder.step(entry.name)) is not None:
                numbered.setdefault(step, entry)
        return dict(sorted(numbered.items()))

    def pinned(self) -> set[int]:
        """Returns the steps that are pinned by files."""
        names = (entry.name for entry in self.entries if entry.name.endswith(PIN))
        steps = {self.folder.step(name.removesuffix(PIN)) for name in names}
        return {step for step in steps if step is not None}

    def others(self) -> dict[str, str]:
        """Returns the names of the last steps of other prefixes, by prefix."""
        last_names: dict[str, str] = {}
        for name in natural_sort((entry.name for entry in self.entries), signed=False):
            if (numbered := _NUMBERED.fullmatch(name)) and numbered[1] != self.folder.begin:
                last_names[numbered[1]] = name
        return last_names

    def newest(self) -> CheckpointEntry | None:
        """Returns the last complete checkpoint."""
        return next((entry for entry in reversed(self.checkpoints) if entry.is_complete), None)

    def unfinished(self) -> list[str]:
        """Returns the names of sharded checkpoints whose save has not ended."""
        return [entry.name for entry in self.checkpoints if not entry.is_complete]

    def like(self, name: str, *, earlier: bool = True) -> list[str]:
        """Returns the names of the complete checkpoints that differ from a name in numbers alone.

        Others may belong to another series, such as `checkpoint_ema_1` beside `checkpoint_1`.

        Args:
          name: The name; of those with equal numbers, it is the last.
          earlier: Whether the names before it are among the result.
        """
        key = self.folder.key(name)
        keys = [(self.folder.key(entry.name), entry) for entry in self.checkpoints]
        similar = [
            (other, entry.name == name, entry.name)
            for other, entry in keys
            if other[::2] == key[::2] and (earlier or other >= key) and entry.is_complete
        ]
        return [entry for _, _, entry in sorted(similar)]
