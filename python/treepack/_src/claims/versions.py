"""Directories of the versions of a tree: objects that never change, and a head, which names them.

    head.json                   the versions, oldest first; replaced atomically
    version_7-TOKEN.treepack    an anchor: the encoding of version 7
    version_7-TOKEN.patch       version 7 as a patch of the version before

A version has an anchor, a patch or both, which give the same bytes.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import secrets
import zlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import treepack._core as core
from treepack._src.checkpoint.file import open
from treepack._src.claims.directory import writer
from treepack._src.claims.lease import Permit
from treepack._src.options import Opening, StorageOptions, check_in_time
from treepack._src.storage.address import Address, Location
from treepack._src.storage.content import content_of
from treepack._src.storage.foreign import substitute
from treepack._src.storage.naming import naming
from treepack._src.storage.store import ConditionError
from treepack._src.storage.write import pieces
from treepack._src.tasks import Turns
from treepack.errors import (
    BusyError,
    CorruptionError,
    NewerVersionError,
    NoManifestError,
    TreepackError,
)

HEAD = "head.json"

# The pattern of the name of a version, and of an object.
_NAME = r"version_\d{1,18}-[0-9a-f]{16}"
_OBJECT = rf"{_NAME}\.(?:treepack|patch)"

_FORMAT = 1

# The anchors that stay, with all versions after the first of them.
_ANCHORS = 2


class Anchor(NamedTuple):
    """The encoding of a version: its size in bytes and its CRC-32."""

    nbytes: int
    crc: int

    @classmethod
    def of(cls, content: core.Content) -> Anchor:
        crc = functools.reduce(lambda crc, piece: zlib.crc32(piece, crc), pieces(content), 0)
        return cls(content.nbytes, crc)


class Version(NamedTuple):
    name: str
    patch: int | None
    anchor: Anchor | None


class Head(NamedTuple):
    """The head of a directory.

    Attributes:
      versions: Oldest first.
      data: Its bytes; `None` if nothing was published.
      mark: For `Versions.replace`, if it was read.
      content: The encoding of the newest version, if it is in memory.
    """

    versions: tuple[Version, ...]
    data: bytes | None
    mark: Any = None
    content: core.Content | None = None

    @property
    def name(self) -> str:
        return self.versions[-1].name if self.versions else ""

    @property
    def number(self) -> int:
        return _number(self.name) if self.versions else -1

    @property
    def newest(self) -> str:
        return f"version {self.number}" if self.versions else "no version"

    def holds(self, content: core.Content) -> bool:
        return self.content is not None and Anchor.of(content) == Anchor.of(self.content)


class Versions:
    """Replaces the head `in_turn`; in a store, `replace` raises `Changed` if another did."""

    Changed: ClassVar[type[Exception]] = ConditionError

    def __init__(self, path: Location, storage_options: StorageOptions):
        self._path = Address.of(path, storage_options).fixed()
        self._head = self._path / HEAD
        self._permit = Permit()
        self._turns = Turns()

    def __str__(self) -> str:
        return self._path.shown

    def head(self) -> Head:
        data, mark = self._head.versioned()
        with naming(self._head):
            return Head(() if data is None else _versions(data), data, mark)

    def other_content(self) -> str | None:
        try:
            with open(self._path):
                return "it is a checkpoint itself: load it"
        except NoManifestError as error:
            text = "it has checkpoints, such as those of a Series: treepack.load reads one"
            return text if error.is_above else None
        except (TreepackError, OSError, ImportError):
            return None

    def loaded(self, head: Head, held: Head | None = None, max_size: int | None = None) -> Head:
        """Returns a head with its newest version, assembled from the fewest bytes.

        `held` has its version in memory, and may be the same head.
        """
        start, is_anchor = _start(head.versions, held)
        content = None if held is None else held.content
        if is_anchor:
            version = head.versions[start]
            _check_size(version, max_size)
            content = self._read(f"{version.name}.treepack", None, max_size, version.anchor)
        for version in head.versions[start + 1 :]:
            content = self._read(f"{version.name}.patch", content, max_size)
        return head._replace(content=content)

    def _read(
        self,
        name: str,
        base: core.Content | None,
        max_size: int | None,
        expected: Anchor | None = None,
    ) -> core.Content:
        path = self._path / name
        with naming(path):
            content = content_of(path, Opening(mmap=False, base=base, max_size=max_size))
            if expected is not None and (found := Anchor.of(content)) != expected:
                raise CorruptionError(
                    "the anchor is damaged: expected the size and CRC-32 "
                    f"{tuple(expected)}, found {tuple(found)}; wait for the next one"
                )
            return content

    def in_turn(self, number: int, push: Callable[[], None]) -> None:
        """Keeps out other threads and, by the lease of a local directory, other jobs."""
        check_in_time()

        def permitted() -> None:
            self._permit.release()  # unless Ctrl-C came meanwhile, it is released
            with Permit.taken(self._path, "publisher") as self._permit:
                push()

        if not self._turns.run(permitted):
            raise BusyError(
                f"version {number} is pushed while this thread pushes another, which a signal "
                "handler interrupted: push it afterwards"
            )

    def write(
        self,
        head: Head,
        number: int,
        patch: core.Content,
        content: core.Content,
        anchor_every: int,
        *,
        durable: bool,
    ) -> Head:
        name = f"version_{number}-{secrets.token_hex(8)}"
        old, has_patch = head.versions, head.content is not None
        anchors = [at for at, version in enumerate(old) if version.anchor is not None]
        anchor = None
        if not has_patch or len(old) - anchors[-1] >= anchor_every:
            anchors.append(len(old))
            anchor = Anchor.of(content)
            (self._path / f"{name}.treepack").write_content(content, durable=durable)
        if has_patch:
            (self._path / f"{name}.patch").write_content(patch, durable=durable)
        versions = [*old, Version(name, patch.nbytes if has_patch else None, anchor)]
        first, *rest = versions[anchors[-_ANCHORS:][0] :]
        versions = [first._replace(patch=None), *rest]
        fields = [version._asdict() for version in versions]
        head_fields = {"treepack_versions": _FORMAT, "versions": fields, "writer": writer()}
        return Head((*versions,), json.dumps(head_fields).encode(), content=content)

    def replace(self, before: Head, head: Head, *, durable: bool) -> None:
        assert head.data is not None, "`write` has returned it"
        self._permit.commit(self._head, head.data, before.mark, durable=durable)

    def tidy(self, head: Head) -> None:
        """Removes the objects that a head does not name, and files of killed publishers."""
        if not self._permit.is_held:  # then that job does it
            return
        kept = {f"{version.name}.treepack" for version in head.versions}
        kept |= {f"{version.name}.patch" for version in head.versions if version.patch is not None}
        gone = []
        for entry in self._path.entries():
            if re.fullmatch(_OBJECT, entry.name) and entry.name not in kept:
                gone.append(entry.name)
            elif entry.is_temporary:
                (self._path / entry.name).remove_dead()
        self._path.remove_files(gone)


def _number(name: str) -> int:
    return int(name.partition("-")[0].removeprefix("version_"))


def _versions(data: bytes) -> tuple[Version, ...]:
    try:
        head = json.loads(data)
        if head["treepack_versions"] > _FORMAT:
            raise NewerVersionError("a newer treepack wrote it: upgrade treepack")
        versions = tuple(map(_version, head["versions"]))
    except TreepackError:
        raise
    except (ValueError, TypeError, LookupError, RecursionError) as error:
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


def _start(versions: Sequence[Version], held: Head | None) -> tuple[int, bool]:
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
    """Checks an anchor before it is read; joining checks the sizes of patches."""
    nbytes = version.anchor[0] if version.anchor is not None else 0
    if max_size is not None and nbytes > max_size:
        raise TreepackError(
            f"version {_number(version.name)} is larger than max_size={max_size} bytes: pass a "
            f"max_size of {nbytes} or more"
        )
