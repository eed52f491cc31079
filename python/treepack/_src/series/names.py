"""The names of checkpoints: a prefix and a step."""

from __future__ import annotations

import operator
import os
import re
from typing import Any

from treepack._src.saving.directory import has_other_files, is_unfinished
from treepack._src.storage.entries import entries, is_local
from treepack._src.storage.place import joined
from treepack._src.storage.store import Entry

# An integer as Python writes it, so that a step has one name; of at most 63 bits.
_INTEGER = re.compile(r"0|[1-9][0-9]{0,17}")

# A prefix, and such an integer.
_NUMBERED = re.compile(rf"(.*\D|)({_INTEGER.pattern})", re.DOTALL)

PIN = ".keep"
"""The suffix of the file that pins a checkpoint, after the checkpoint's name."""

# The temporary files of the core.
OWN_TEMPORARY = re.compile(r"\..*\.treepack-.*\.tmp", re.DOTALL)


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
        return is_local(self.directory)

    def name(self, step: object) -> str:
        return f"{self.begin}{step}"

    def path(self, name: str) -> str:
        return joined(self.directory, name)

    def step(self, name: str) -> int | None:
        """Returns the step in a name that is the prefix and an integer; `None` for other names."""
        text = name.removeprefix(self.begin)
        is_step = name.startswith(self.begin) and _INTEGER.fullmatch(text)
        return int(text) if is_step else None

    def listing(self) -> Listing:
        return Listing(self, entries(self.directory, hidden=self.begin.startswith(".")))

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
    """

    def __init__(self, folder: Folder, entries: list[Entry]):
        self.folder, self.entries = folder, entries

    def begun(self) -> list[CheckpointEntry]:
        """Returns the entries whose names begin with the prefix."""
        begin = self.folder.begin
        return [
            CheckpointEntry(self.folder, entry)
            for entry in self.entries
            if entry.name.startswith(begin) and not OWN_TEMPORARY.fullmatch(entry.name)
        ]

    def numbered(self) -> dict[int, CheckpointEntry]:
        """Returns the entries that are named by the prefix and an integer, by step, in order.

        Entries with other names, such as `step_7.bak` or `step_007`, are not of the series. Where
        a store has a file and a directory of one name, the file is the one that is read.
        """
        numbered: dict[int, CheckpointEntry] = {}
        for entry in sorted(self.begun(), key=lambda entry: entry.is_directory):
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
        matches = filter(None, (_NUMBERED.fullmatch(entry.name) for entry in self.entries))
        return {
            match[1]: match[0]
            for match in sorted(matches, key=lambda match: (match[1], int(match[2])))
            if match[1] != self.folder.begin
        }
