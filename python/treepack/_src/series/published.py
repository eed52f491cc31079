"""Reads published versions: the head, which names them, and their objects.

    head.json                   the versions, oldest first; replaced atomically
    version_7-TOKEN.treepack    an anchor: the encoding of version 7
    version_7-TOKEN.patch       version 7 as a patch of the version before

Objects never change. A version has an anchor, a patch or both, which give the same bytes.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import treepack._core as core
from treepack._src.runs.objects import Objects
from treepack._src.saving.directory import writer
from treepack._src.storage.foreign import substitute
from treepack.errors import CorruptionError, NewerVersionError, TreepackError

HEAD = "head.json"

# The pattern of the name of a version.
_NAME = r"version_\d{1,18}-[0-9a-f]{16}"

OBJECT = rf"{_NAME}\.(?:treepack|patch)"
"""The pattern of the name of an object."""

_FORMAT = 1


class Anchor(NamedTuple):
    """The encoding of a version: its size in bytes and its CRC-32."""

    nbytes: int
    crc: int


class Version(NamedTuple):
    """A published version.

    Attributes:
      name: Its unique name.
      patch: The size in bytes of its patch of the version before; `None` if it has none.
      anchor: Its anchor, if it has one.
    """

    name: str
    patch: int | None
    anchor: Anchor | None


class LoadedVersion(NamedTuple):
    """A version in memory: its name and its encoding."""

    name: str
    content: core.Content

    @property
    def number(self) -> int:
        """The number that the publisher gave it."""
        return _number(self.name)


class Head(NamedTuple):
    """The head of a directory.

    Attributes:
      objects: The directory.
      versions: The versions, oldest first.
      data: Its bytes; `None` if nothing was published.
      stored: Its version in the store, or that it is absent, if it was read.
    """

    objects: Objects
    versions: tuple[Version, ...]
    data: bytes | None
    stored: Any = None

    @classmethod
    def of(cls, objects: Objects, versions: Sequence[Version]) -> Head:
        header = {"treepack_versions": _FORMAT, "writer": writer()}
        data = json.dumps({**header, "versions": [version._asdict() for version in versions]})
        return Head(objects, tuple(versions), data.encode())

    @classmethod
    def read(cls, objects: Objects) -> Head:
        """Reads the head.

        Raises:
          CorruptionError: If it is damaged.
          NewerVersionError: If a newer treepack wrote it.
        """
        versions, data, stored = objects.head(_versions)
        return Head(objects, versions or (), data, stored)

    @property
    def number(self) -> int:
        """The number of the newest version; -1 if there is none."""
        return _number(self.versions[-1].name) if self.versions else -1

    @property
    def newest(self) -> str:
        """The newest version as text."""
        return f"version {self.number}" if self.versions else "no version"

    def assembled(self, held: LoadedVersion | None, max_size: int | None) -> LoadedVersion:
        """Returns the newest version, assembled from the fewest bytes; there must be one.

        Args:
          held: A version in memory, perhaps one of these.
          max_size: The maximum size of the version in bytes.

        Raises:
          FileNotFoundError: If an object is gone.
          CorruptionError: If an object is damaged.
        """
        start, is_anchor = _start(self.versions, held)
        if is_anchor:
            _check_size(self.versions[start], max_size)
            anchor = self.versions[start]
            data = self.objects.read(f"{anchor.name}.treepack", max_size, None, anchor.anchor)
            held = LoadedVersion(anchor.name, data)
        assert held is not None, "`_start` returns an anchor otherwise"
        content = held.content
        for version in self.versions[start + 1 :]:
            content = self.objects.read(f"{version.name}.patch", max_size, content)
        return LoadedVersion(self.versions[-1].name, content)


def _number(name: str) -> int:
    return int(name.partition("-")[0].removeprefix("version_"))


def _versions(data: bytes) -> tuple[Version, ...]:
    try:
        head = json.loads(data)
        if head["treepack_versions"] > _FORMAT:
            raise NewerVersionError("a newer treepack wrote it: upgrade treepack")
        versions = tuple(map(_version, head["versions"]))
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        if isinstance(error, NewerVersionError):
            raise
        text = f"it is {substitute(data) or f'not a head of published versions: {error}'}"
        raise CorruptionError(text) from error
    numbers = [_number(version.name) for version in versions]
    is_sorted = all(earlier < later for earlier, later in itertools.pairwise(numbers))
    if not versions or versions[0].anchor is None or not is_sorted:
        raise CorruptionError("the head of published versions is damaged: publish to a new place")
    return versions


def _version(fields: dict[str, Any]) -> Version:
    name, patch, anchor = fields["name"], fields["patch"], fields["anchor"]
    sizes = [*([] if patch is None else [patch]), *([] if anchor is None else anchor)]
    # A name leads to a path, so it must not lead elsewhere.
    is_valid = re.fullmatch(_NAME, name) and all(type(size) is int and size >= 0 for size in sizes)
    if not is_valid or not sizes:
        raise ValueError(f"a version is malformed: {fields!r:.200}")
    return Version(name, patch, None if anchor is None else Anchor(*anchor))


def _start(versions: Sequence[Version], held: LoadedVersion | None) -> tuple[int, bool]:
    """Returns the index of the version to start at, and whether to read its anchor."""
    starts: list[tuple[int, int, bool]] = []
    patches = 0
    for at, version in reversed([*enumerate(versions)]):
        if held is not None and version.name == held.name:
            starts.append((patches, at, False))
        if version.anchor is not None:
            starts.append((patches + version.anchor.nbytes, at, True))
        if version.patch is None:
            break
        patches += version.patch
    _, at, is_anchor = min(starts)
    return at, is_anchor


def _check_size(version: Version, max_size: int | None) -> None:
    """Checks the size of an anchor before it is read; joining checks the sizes of patches."""
    nbytes = version.anchor[0] if version.anchor is not None else 0
    if max_size is not None and nbytes > max_size:
        raise TreepackError(
            f"version {_number(version.name)} is larger than max_size={max_size} bytes: pass a "
            f"max_size of {nbytes} or more"
        )
