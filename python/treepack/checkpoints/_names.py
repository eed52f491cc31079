"""The names of checkpoints, a prefix and a step, and their order by these numbers."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any

from treepack._src.options import StorageOptions
from treepack._src.runs.steps import CheckpointEntry, Folder

_NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"

SIGNED_FLOAT_RE = re.compile(rf"([-+]?{_NUMBER})")
"""A number, with its sign."""

UNSIGNED_FLOAT_RE = re.compile(rf"[-+]?({_NUMBER})")
"""A number, without its sign."""

SCHEME_RE = re.compile(r"(?P<scheme>[a-z][a-z0-9.+-]+://)?(?P<path>.*)", re.IGNORECASE | re.DOTALL)
"""The scheme of a URL, if it is one, and the rest."""

MP_ARRAY_POSTFIX = "_gda"
"""The suffix of directories with the arrays of several processes, in flax's form."""

# flax's name of an incomplete file, after the prefix.
TEMPORARY = "tmp"

# The part of a directory's name by which Orbax marks it as incomplete.
_ORBAX_TEMPORARY = ".orbax-checkpoint-tmp"


def sort_key(name: str, signed: bool = True) -> list[Any]:
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


class Steps(Folder):
    @classmethod
    def at(cls, ckpt_dir: Any, prefix: str, storage_options: StorageOptions) -> Steps:
        """As flax normalizes paths: `a/../b` is `b`."""
        directory = cls.given(ckpt_dir, "", storage_options).directory.normal()
        if directory.is_local:
            directory = directory.like(safe_normpath(directory))
        return cls(directory, prefix)

    def key(self, name: str) -> list[Any]:
        return sort_key(name.removeprefix(self.begin))

    def ordered(self, itself: CheckpointEntry | None = None) -> Ordered:
        return Ordered(self, None if itself is None else itself.inside())

    def names(self) -> list[str]:
        return [entry.name for entry in self.ordered().checkpoints if entry.is_complete]

    def steps(self) -> list[str]:
        return [name.removeprefix(self.begin) for name in self.names()]


class Ordered:
    def __init__(self, folder: Steps, inside: list[Any] | None):
        self.listing, self._key = folder.listing(inside), folder.key
        temporary = folder.begin + TEMPORARY
        checkpoints = [
            entry
            for entry in self.listing.begun()
            if entry.name != temporary
            and not entry.name.endswith(MP_ARRAY_POSTFIX)
            and _ORBAX_TEMPORARY not in entry.name
        ]
        self.checkpoints = sorted(checkpoints, key=lambda checkpoint: folder.key(checkpoint.name))

    def newest(self) -> CheckpointEntry | None:
        """Names other than a prefix and a number, such as `checkpoint_best`, come last.

        Saves ignore them, so they would hide all later steps.
        """
        ordered = sorted(self.checkpoints, key=lambda it: self._key(it.name)[::2] == ["", ""])
        return next((entry for entry in reversed(ordered) if entry.is_complete), None)

    def like(self, name: str, *, earlier: bool = True) -> list[str]:
        """Returns the names of the complete checkpoints that differ from a name in numbers alone.

        Others may belong to another series, such as `checkpoint_ema_1` beside `checkpoint_1`. Of
        names with equal numbers, `name` is the last.
        """
        key = self._key(name)
        keys = [(self._key(entry.name), entry) for entry in self.checkpoints]
        similar = [
            (other, entry.name == name, entry.name)
            for other, entry in keys
            if other[::2] == key[::2] and (earlier or other >= key) and entry.is_complete
        ]
        return [entry for _, _, entry in sorted(similar)]
