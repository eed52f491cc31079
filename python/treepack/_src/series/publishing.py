"""Sends the versions of a tree through a directory or store: `Publisher` and `Subscriber`."""

from __future__ import annotations

import contextlib
import errno
import secrets
import time
from typing import Any, Never, Unpack

import treepack._core as core
from treepack._src.checkpoint.file import open
from treepack._src.checkpoint.load import restore_described
from treepack._src.elsewhere import Hinting, advised
from treepack._src.options import (
    ChoiceOptions,
    Reading,
    Selection,
    Static,
    StorageOptions,
    Template,
    check,
    check_in_time,
    takes,
)
from treepack._src.printable import warn
from treepack._src.runs.objects import Objects, sum_of
from treepack._src.runs.steps import checked
from treepack._src.saving.layout import encodings
from treepack._src.series.published import HEAD, OBJECT, Anchor, Head, LoadedVersion, Version
from treepack._src.storage.address import Location
from treepack._src.tasks import Turns
from treepack.errors import BusyError, CorruptionError, TreepackError

# The anchors that stay, with all versions after the first of them.
_ANCHORS = 2

# The seconds between two looks at the head: at first, and at most.
_PAUSE_S, _MOST_PAUSE_S = 0.01, 1.0

# The number of retries if objects are removed while they are read, since later versions come.
_ATTEMPTS = 5


class Publisher(Hinting):
    """Publishes the versions of a tree, such as a policy, to any number of `Subscriber`s.

    Each version is written to the directory as a patch of the previous one (see `dumps`), and at
    intervals also as an *anchor*, which has the whole tree. The last two anchors stay, and all
    versions since the first of them. A version appears atomically, when a small file that names it,
    `head.json`, is replaced.

    A publisher that starts continues after the newest version there, which it reads. Of two
    publishers, the one that did not push last gets an error. The last version stays in memory,
    encoded, and a push briefly needs twice that. Threads may share a publisher: their pushes wait
    for each other.

    Args:
      path: The directory, or its URL. The first push makes it.
      anchor_every: The number of versions from one anchor to the next.
      durable: Whether to wait until a version is on the local disk (fsync); see `save`.
      storage_options: See `save`.

    Raises:
      CorruptionError: A ValueError. If the head in the directory is damaged.
      OSError: If the directory cannot be read.

    Examples:
      >>> import numpy as np, tempfile, treepack
      >>> place = tempfile.mkdtemp()
      >>> publisher = treepack.Publisher(place, anchor_every=50)
      >>> subscriber = treepack.Subscriber(place)
      >>> policy = {"w": np.zeros(1000, np.float32)}
      >>> for step in range(3):
      ...     policy["w"][step] = 1
      ...     publisher.push(policy, version=step)
      >>> version, tree = subscriber.latest()
      >>> version, tree["w"].sum()
      (2, np.float32(3.0))
    """

    @advised
    def __init__(
        self,
        path: Location,
        *,
        anchor_every: int = 50,
        durable: bool = True,
        storage_options: StorageOptions = None,
    ):
        check("anchor_every", anchor_every)
        self._objects = Objects(path, HEAD, OBJECT, storage_options)
        self._anchor_every, self._durable = anchor_every, durable
        self._head = Head.read(self._objects)
        self._held: LoadedVersion | None = None
        self._has_tidied = False
        self._turns = Turns()
        # The head and version of a push whose outcome is unknown.
        self._unknown: tuple[Head, LoadedVersion] | None = None

    @advised
    @takes()
    def push(self, tree: Any, *_more: Never, version: int, static: Static = "skip-code") -> None:
        """Publishes a version of the tree, atomically.

        The tree may change afterwards. After an OSError, the version may be published or not:
        repeat the call.

        Args:
          tree: Any tree; see `save`. Arrays on accelerators are fetched once.
          version: The number of the version, such as the training step; greater than all previous
            ones.
          static: Static data and leaves that have no form in files; see `save`.

        Raises:
          TreepackError: A ValueError. If the version is not newer than the newest one, or another
            publisher has pushed since.
          OSError: If it cannot be written.
          UnserializableLeafError: A TypeError, with the path. If a leaf cannot be stored.
          MultiprocessArrayError: A TypeError. If an array is not fully held by this process.

        Warns:
          UserWarning: If older versions cannot be removed.
        """
        if _more:
            raise TypeError("push() takes a tree: name the version, as in push(tree, version=1)")
        check_in_time()
        number = checked("version", version, "pass the step")
        with self._turns.taken() as is_taken:
            if not is_taken:
                raise BusyError(
                    f"version {number} is pushed while this thread pushes another, which a signal "
                    "handler interrupted: push it afterwards"
                )
            self._push(tree, number, static)

    def _push(self, tree: Any, number: int, static: Static) -> None:
        with self._objects.leased("publisher"):
            is_repeated = self._settle(number)
            base = self._base()
            held = None if base is None else base.content
            patch, data = encodings(tree, static, held)
            if is_repeated and held is not None:
                if sum_of(data) != sum_of(held):
                    raise TreepackError(f"version {number} was published with another tree")
                return
            name = f"version_{number}-{secrets.token_hex(8)}"
            versions = self._write(name, None if held is None else patch, data)
            self._commit(Head.of(self._objects, versions), LoadedVersion(name, data))
            if not self._objects.is_leased:  # then another publisher tidies
                return
            if versions[-1].anchor is not None or not self._has_tidied:
                self._tidy()

    def _settle(self, number: int) -> bool:
        """Finds the newest version, and checks that this one is newer.

        Returns:
          Whether the last push, of this number, was published though it raised an error.

        Raises:
          BusyError: If another publisher has pushed.
        """
        current = Head.read(self._objects)
        is_repeated = False
        if self._unknown is not None and current.data == self._unknown[0].data:
            self._head, self._held = self._unknown
            is_repeated = self._head.number == number
        self._unknown = None
        if current.data != self._head.data:
            raise self._busy(current)
        self._head = current
        newest = current.number
        if number <= newest and not is_repeated:
            raise TreepackError(
                f"version {number} is not newer than version {newest}, the newest in "
                f"{self._objects}: push a later version, or to another directory"
            )
        return is_repeated

    def _base(self) -> LoadedVersion | None:
        """Returns the newest version, read once; `None` if there is none, or it is damaged."""
        if self._held is None and self._head.versions:
            with contextlib.suppress(TreepackError, FileNotFoundError):  # then comes an anchor
                self._held = self._head.assembled(None, None)
        return self._held

    def _write(self, name: str, patch: core.Content | None, data: core.Content) -> list[Version]:
        """Writes the objects of a version; returns the versions that stay with it."""
        old = self._head.versions
        since = next(
            (at for at, version in enumerate(reversed(old)) if version.anchor is not None), 0
        )
        anchor = None
        if patch is None or since + 1 >= self._anchor_every:
            anchor = Anchor(data.nbytes, sum_of(data))
            self._objects.write(f"{name}.treepack", data, durable=self._durable)
        if patch is not None:
            self._objects.write(f"{name}.patch", patch, durable=self._durable)
        versions = [*old, Version(name, None if patch is None else patch.nbytes, anchor)]
        anchors = [at for at, version in enumerate(versions) if version.anchor is not None]
        versions = versions[anchors[-_ANCHORS:][0] :]
        return [versions[0]._replace(patch=None), *versions[1:]]

    def _commit(self, head: Head, held: LoadedVersion) -> None:
        """Replaces the head, on the condition that it has not changed."""
        self._unknown = head, held
        try:
            self._objects.replace_head(head.data or b"", self._head.stored, durable=self._durable)
        except Exception as error:
            current = None
            with contextlib.suppress(Exception):  # the next push looks again
                current = Head.read(self._objects)
            if current is None or current.data != head.data:
                if isinstance(error, Objects.Changed):
                    raise self._busy(current or self._head) from error
                raise
        self._unknown, self._head, self._held = None, head, held

    def _busy(self, current: Head) -> BusyError:
        return BusyError(
            f"another publisher has changed {self._objects}, where {current.newest} is "
            "the newest now: only one may push; a new Publisher continues after that version"
        )

    def _tidy(self) -> None:
        """Removes objects that the head does not name: old ones, and leftovers of failed pushes."""
        versions = self._head.versions
        kept = {f"{version.name}.treepack" for version in versions}
        kept |= {f"{version.name}.patch" for version in versions if version.patch is not None}
        try:
            self._objects.remove_others(kept)
            self._has_tidied = True
        except (OSError, TreepackError) as error:
            newest = self._head.newest
            warn(f"{newest} is published, but older ones could not be removed: {error}")

    def __repr__(self) -> str:
        return f"<treepack.Publisher {str(self._objects)!r}: {self._head.newest} published>"


class Subscriber(Hinting):
    """Receives the versions of a `Publisher`, from any process or host.

    It keeps the newest received version in memory, encoded. For a newer one it reads the patches
    since then, or an anchor and the patches after it, whichever are fewer bytes. Each version is
    intact: all bytes are compared with checksums. Threads may share a subscriber.

    Args:
      path: The directory, or its URL.
      max_size: The maximum size of a version in bytes, encoded.
      storage_options: See `load`.

    Examples:
      >>> import tempfile, treepack
      >>> place = tempfile.mkdtemp()
      >>> treepack.Publisher(place).push({"temperature": 0.7}, version=12)
      >>> subscriber = treepack.Subscriber(place)
      >>> subscriber.wait(newer_than=11, timeout=60)
      (12, {'temperature': 0.7})
    """

    @advised
    def __init__(
        self,
        path: Location,
        *,
        max_size: int | None = None,
        storage_options: StorageOptions = None,
    ):
        check("max_size", max_size)
        self._objects, self._max_size = Objects(path, HEAD, OBJECT, storage_options), max_size
        self._held: LoadedVersion | None = None

    @takes(ChoiceOptions)
    def latest(
        self, template: Template | None = None, **options: Unpack[ChoiceOptions]
    ) -> tuple[int, Template]:
        """Returns the newest version: its number and its tree.

        Args:
          template: A template of the tree; see `load`.
          strict: See `load`, also for other options.

        Raises:
          FileNotFoundError: If no version was published.
          TreepackError: A ValueError. If the version is damaged, or larger than `max_size`.
          MismatchError: A ValueError. If it does not fit the template.
          OSError: If it cannot be read.
        """
        Reading.of(options), Selection.of(options)  # checks them
        held, head = self._held, Head.read(self._objects)
        if not head.versions:
            raise FileNotFoundError(
                errno.ENOENT,
                "no version was published here yet: push one by a Publisher of this directory, or "
                "call wait(), which waits for it",
                str(self._objects),
            )
        return self._restored(held, head, template, options)

    @takes(ChoiceOptions)
    def wait(
        self,
        template: Template | None = None,
        *,
        newer_than: int | None = None,
        timeout: float = 60.0,
        **options: Unpack[ChoiceOptions],
    ) -> tuple[int, Template]:
        """Waits for a newer version, and returns the newest one: its number and its tree.

        It reads the head up to a hundred times a second, and later at least once a second.

        Args:
          template: A template of the tree; see `load`.
          newer_than: The number of a version; by default the last one received, by any thread.
          timeout: The maximum time to wait in seconds.
          strict: See `load`, also for other options.

        Raises:
          TimeoutError: An OSError. If no newer version was published in time.
          TreepackError: See `latest`, also for other errors.
        """
        check("timeout", timeout)
        check("newer_than", newer_than)
        Reading.of(options), Selection.of(options)  # checks them
        held = self._held
        if newer_than is None:
            newer_than = -1 if held is None else held.number
        end, pause = time.monotonic() + timeout, _PAUSE_S
        while True:
            held, head = self._held, Head.read(self._objects)
            if head.versions and head.number > newer_than:
                return self._restored(held, head, template, options)
            left = end - time.monotonic()
            if left <= 0:
                after = f" after version {newer_than}" if newer_than >= 0 else ""
                error = TimeoutError(
                    errno.ETIMEDOUT,
                    f"no version{after} was published in {timeout:g} s",
                    str(self._objects),
                )
                if head.data is None:
                    error.add_note(
                        "treepack: no Publisher has pushed to this directory: is it its path?"
                    )
                raise error
            time.sleep(min(pause, left))
            pause = min(2 * pause, _MOST_PAUSE_S)

    def _restored(
        self, held: LoadedVersion | None, head: Head, template: Any, options: ChoiceOptions
    ) -> tuple[int, Any]:
        """Reads the newest version, unless it is held, and restores it.

        Args:
          held: The version that was held before the head was read. Other threads may replace it.
          head: The head.
          template: The template.
          options: The options of `load`.
        """
        before = held
        for left in reversed(range(_ATTEMPTS)):
            try:
                if held is None or held.name != head.versions[-1].name:
                    held = head.assembled(held, self._max_size)
                break
            except FileNotFoundError as error:
                newer = Head.read(self._objects)  # later versions may have come
                if not left or newer.data == head.data or not newer.versions:
                    raise CorruptionError(
                        f"{self._objects} lacks an object that its head names: {error}"
                    ) from error
                head = newer
        assert held is not None
        newest = self._held
        if newest is before or newest is None or newest.number < held.number:
            self._held = held
        if Selection.of(options).is_whole:
            return held.number, restore_described(held.content, template, Reading.of(options))
        return held.number, open(held.content).load(template, **options)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None}  # another process reads the newest version

    def __repr__(self) -> str:
        held = self._held
        text = "no version" if held is None else f"version {held.number}"
        return f"<treepack.Subscriber {str(self._objects)!r}: {text} received>"
