from __future__ import annotations

import contextlib
import errno
import time
from typing import Any, Never, Unpack

from treepack._src.advice import Advising
from treepack._src.api.files import load
from treepack._src.claims.versions import Head, Versions
from treepack._src.layouts.layout import Encoding
from treepack._src.options import ChoiceOptions, Static, StorageOptions, Template, takes
from treepack._src.printable import warn
from treepack._src.runs.steps import checked
from treepack._src.storage.address import Location
from treepack.errors import BusyError, CorruptionError, TreepackError

# The seconds between two looks at the head: at first, and at most.
_PAUSE_S, _MOST_PAUSE_S = 0.01, 1.0

# The number of retries if objects are removed while they are read, since later versions come.
_ATTEMPTS = 5


class Publisher(Advising):
    """Publishes the versions of a tree, such as a policy, to any number of `Subscriber`s.

    Each version is written as a patch of the previous one (see `dumps`), and at intervals also as
    an *anchor*, which has the whole tree. The last two anchors stay, and all versions since the
    first of them. A version appears atomically, with the small file `head.json`.

    A publisher continues after the newest version, which it reads first. Of two publishers, the one
    that did not push last gets an error. The last version stays in memory, encoded, and a push
    briefly needs twice that. Threads may share a publisher.

    Args:
      path: The directory, or its URL. The first push makes it.
      anchor_every: The number of versions from one anchor to the next.
      durable: Whether to wait until a version is on the local disk (fsync).
      storage_options: See `save`.

    Raises:
      CorruptionError: If the head in the directory is damaged.

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

    @takes(early=True)
    def __init__(
        self,
        path: Location,
        *,
        anchor_every: int = 50,
        durable: bool = True,
        storage_options: StorageOptions = None,
    ):
        self._versions = Versions(path, storage_options)
        self._anchor_every, self._durable = anchor_every, durable
        self._head = self._versions.head()
        self._has_tidied = False
        # The head of a push whose outcome is unknown.
        self._unknown: Head | None = None

    @takes()
    def push(self, tree: Any, *_more: Never, version: int, static: Static = "skip-code") -> None:
        """Publishes a version of the tree, atomically.

        The tree may change afterwards. After an OSError, repeat the call: the version may be
        published or not.

        Args:
          tree: Any tree; see `save`. Arrays on accelerators are fetched once.
          version: The number of the version, such as the training step; greater than all before.
          static: See `save`.

        Raises:
          TreepackError: If the version is not newer than the newest one, or another publisher has
            pushed since.
          UnserializableLeafError: With the path, if a leaf cannot be stored.
          MultiprocessArrayError: If an array is not fully held by this process.

        Warns:
          UserWarning: If older versions cannot be removed.
        """
        if _more:
            raise TypeError("push() takes a tree: name the version, as in push(tree, version=1)")
        number = checked("version", version, "pass the step")
        self._versions.in_turn(number, lambda: self._push(tree, number, static))

    def _push(self, tree: Any, number: int, static: Static) -> None:
        is_repeated = self._settle(number)
        head = self._loaded()
        patch, content = Encoding.patched(tree, static, head.content)
        if is_repeated and head.content is not None:
            if not head.holds(content):
                raise TreepackError(f"version {number} was published with another tree")
            return
        more = self._anchor_every
        self._commit(
            self._versions.write(head, number, patch, content, more, durable=self._durable)
        )
        if self._head.versions[-1].anchor is not None or not self._has_tidied:
            self._tidy()

    def _settle(self, number: int) -> bool:
        """Raises a BusyError if another publisher has pushed, or the version is not newer.

        Returns whether the last push, of this number, was published though it raised an error.
        """
        current = self._versions.head()
        is_repeated = False
        if self._unknown is not None and current.data == self._unknown.data:
            self._head = self._unknown
            is_repeated = self._head.number == number
        self._unknown = None
        if current.data != self._head.data:
            raise self._busy(current)
        self._head = current._replace(content=self._head.content)
        newest = current.number
        if number <= newest and not is_repeated:
            raise TreepackError(
                f"version {number} is not newer than version {newest}, the newest in "
                f"{self._versions}: push a later version, or to another directory"
            )
        return is_repeated

    def _loaded(self) -> Head:
        if self._head.content is None and self._head.versions:
            with contextlib.suppress(TreepackError, FileNotFoundError):  # then comes an anchor
                self._head = self._versions.loaded(self._head)
        return self._head

    def _commit(self, head: Head) -> None:
        self._unknown = head
        try:
            self._versions.replace(self._head, head, durable=self._durable)
        except BusyError:
            raise  # another job may have removed the objects that the head names
        except Exception as error:
            current = None
            with contextlib.suppress(Exception):  # the next push looks again
                current = self._versions.head()
            if current is None or current.data != head.data:
                if isinstance(error, Versions.Changed):
                    raise self._busy(current or self._head) from error
                raise
        self._unknown, self._head = None, head

    def _busy(self, current: Head) -> BusyError:
        return BusyError(
            f"another publisher has changed {self._versions}, where {current.newest} is "
            "the newest now: only one may push; a new Publisher continues after that version"
        )

    def _tidy(self) -> None:
        try:
            self._versions.tidy(self._head)
            self._has_tidied = True
        except (OSError, TreepackError) as error:
            newest = self._head.newest
            warn(f"{newest} is published, but older ones could not be removed: {error}")

    def __repr__(self) -> str:
        return f"<treepack.Publisher {str(self._versions)!r}: {self._head.newest} published>"


class Subscriber(Advising):
    """Receives the versions of a `Publisher`, from any process or host.

    It keeps the newest received version in memory, encoded. For a newer one it reads the patches
    since then, or an anchor and the patches after it, whichever are fewer bytes; checksums cover
    all. Threads may share a subscriber.

    Args:
      path: The directory, or its URL.
      max_size: The maximum size of a version in bytes, encoded.
      storage_options: See `save`.

    Examples:
      >>> import tempfile, treepack
      >>> place = tempfile.mkdtemp()
      >>> treepack.Publisher(place).push({"temperature": 0.7}, version=12)
      >>> subscriber = treepack.Subscriber(place)
      >>> subscriber.wait(newer_than=11, timeout=60)
      (12, {'temperature': 0.7})
    """

    @takes(early=True)
    def __init__(
        self,
        path: Location,
        *,
        max_size: int | None = None,
        storage_options: StorageOptions = None,
    ):
        self._versions, self._max_size = Versions(path, storage_options), max_size
        self._held: Head | None = None  # with its newest version

    @takes(ChoiceOptions, early=True)
    def latest(
        self, template: Template | None = None, **options: Unpack[ChoiceOptions]
    ) -> tuple[int, Template]:
        """Returns the newest version: its number and its tree.

        Args:
          template: A template of the tree; see `load`.
          strict: See `load`, also for other options.

        Raises:
          FileNotFoundError: If no version was published.
          TreepackError: If the version is damaged, or larger than `max_size`.
          MismatchError: If it does not fit the template.
        """
        held, head = self._held, self._versions.head()
        if not head.versions:
            cure = "push one by a Publisher of this directory, or call wait(), which waits for it"
            raise FileNotFoundError(
                errno.ENOENT,
                f"no version was published here yet: {self._versions.other_content() or cure}",
                str(self._versions),
            )
        return self._restored(held, head, template, options)

    @takes(ChoiceOptions, early=True)
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
          newer_than: The number of a version; by default the last one returned, in any thread.
          timeout: The maximum time in seconds.
          strict: See `load`, also for other options.

        Raises:
          TimeoutError: If no newer version was published in time; an OSError.
          TreepackError: See `latest`, also for other errors.
        """
        held = self._held
        if newer_than is None:
            newer_than = -1 if held is None else held.number
        number = checked("newer_than", newer_than, "pass the number of a version", least=-1)
        end, pause = time.monotonic() + timeout, _PAUSE_S
        while True:
            held, head = self._held, self._versions.head()
            if head.versions and head.number > number:
                return self._restored(held, head, template, options)
            left = end - time.monotonic()
            if left <= 0:
                after = f" after version {number}" if number >= 0 else ""
                error = TimeoutError(
                    errno.ETIMEDOUT,
                    f"no version{after} was published in {timeout:g} s",
                    str(self._versions),
                )
                if head.data is None:
                    cure = self._versions.other_content() or "is it its path?"
                    error.add_note(f"treepack: no Publisher has pushed to this directory: {cure}")
                raise error
            time.sleep(min(pause, left))
            pause = min(2 * pause, _MOST_PAUSE_S)

    def _restored(
        self, held: Head | None, head: Head, template: Any, options: ChoiceOptions
    ) -> tuple[int, Any]:
        before = held
        for left in reversed(range(_ATTEMPTS)):
            try:
                if held is None or held.name != head.name:
                    held = self._versions.loaded(head, held, self._max_size)
                break
            except FileNotFoundError as error:
                newer = self._versions.head()  # later versions may have come
                if newer.data == head.data or not newer.versions:
                    raise CorruptionError(
                        f"{self._versions} lacks an object that its head names: {error}"
                    ) from error
                if not left:
                    raise TreepackError(
                        f"{self._versions}: each of {_ATTEMPTS} versions was removed while it was "
                        "read: pass a larger anchor_every= to the Publisher, so that they stay "
                        "longer"
                    ) from error
                head = newer
        assert held is not None
        # First, so that `wait` does not skip a version that cannot be loaded.
        tree = load(held.content, template, **options)
        newest = self._held
        if newest is before or newest is None or newest.number < held.number:
            self._held = held
        return held.number, tree

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None}  # another process reads the newest version

    def __repr__(self) -> str:
        held = self._held
        text = "no version" if held is None else f"version {held.number}"
        return f"<treepack.Subscriber {str(self._versions)!r}: {text} received>"
