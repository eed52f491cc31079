"""The checkpoints of a directory by steps, as this process knows them, and their saves and copies.

claim of the directory ──▶ no later checkpoint ──▶ write or copy, commit ──▶ removal of others
(a lease, on disks)        is there                (`saving/`)               (process 0)

A lease, which a process that stands still loses, is checked before a file gets its name, and before
others are removed.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Self, TypeVar

from treepack._src.claims.directory import Directory
from treepack._src.options import Progress, Saved, StepOptions, StorageOptions, Writing
from treepack._src.runs.contents import Contents, Summary, describe, read
from treepack._src.runs.steps import CheckpointEntry, Folder, checked
from treepack._src.saving.background import OneByOne
from treepack._src.saving.checkpoints import copy_checkpoint, encoded
from treepack._src.saving.linking import Linking
from treepack._src.storage.address import Address, Location
from treepack.errors import InvalidCheckpointError, TreepackError

T = TypeVar("T")


class Checkpoints:
    """The checkpoints of a series as this process knows them; `damaged` has errors by step."""

    def __init__(self, folder: Folder):
        self.folder = folder
        self.damaged: dict[int, BaseException] = {}
        self._summaries: dict[int, Summary] = {}
        self._linking: Linking | None = None

    @classmethod
    def of(cls, location: Location, prefix: str, storage_options: StorageOptions = None) -> Self:
        return cls(Folder.of(location, prefix, storage_options))

    @staticmethod
    def spaced(items: Iterable[tuple[T, float]], distance: float) -> Iterator[T]:
        """Yields the first of items, and each at least `distance` after the one yielded before.

        Removed and later items do not change the choice among the others. An item before the last
        one yielded is far enough, too: the clock was set back.
        """
        last = -math.inf
        for item, position in items:
            if not 0 <= position - last < distance:
                last = position
                yield item

    def step(self, step: Any) -> int:
        if step is None:
            raise TypeError(
                "step must be an integer, got None, as best() returns while no checkpoint has "
                'metrics: pass save(..., metrics={"loss": loss})'
            )
        is_number = isinstance(step, (bool, float)) or hasattr(step, "dtype")
        if isinstance(step, (str, list, set)):
            is_digits = isinstance(step, str) and step.strip().isdigit()
            cure = "pass int(step)" if is_digits else "pass one step, such as steps()[-1]"
        else:
            cure = "pass int(step)" if is_number else "it comes first, as in save(step, state)"
        return checked("step", step, cure)

    def saves(self, kind: str) -> OneByOne:
        return OneByOne(self.folder.directory, kind)

    def path(self, step: int) -> Address:
        return self.folder.path(self.folder.name(step))

    def steps(self) -> list[int]:
        return [step for step, entry in self.folder.numbered().items() if entry.is_complete]

    def complete(self, numbered: Mapping[int, CheckpointEntry], first: int = 0) -> list[int]:
        """Like `steps` from `first` on, without the request that a look into a known one takes."""
        seen = {} if self.folder.is_local else self._summaries
        entries = ((step, entry) for step, entry in numbered.items() if step >= first)
        return [step for step, entry in entries if step in seen or entry.is_complete]

    def intact(self, first: int = 0) -> list[Summary]:
        numbered = self.folder.numbered()
        return self.summaries(numbered, self.complete(numbered, first))

    def summaries(
        self, numbered: Mapping[int, CheckpointEntry], steps: Iterable[int]
    ) -> list[Summary]:
        summaries = (self.summary(step, is_directory=numbered[step].is_directory) for step in steps)
        return [summary for summary in summaries if summary is not None]

    def refresh(self) -> None:
        self._summaries.clear()

    def add(self, summary: Summary) -> None:
        self._summaries[summary.step] = summary
        self.damaged.pop(summary.step, None)

    def summary(self, step: int, *, is_directory: bool = False) -> Summary | None:
        if step in self.damaged:
            return None
        summary = self._summaries.get(step)
        if summary is None:
            try:
                summary = self.read(step, Contents.summary, is_directory=is_directory)
                self._summaries[step] = summary
            except Exception as error:
                if not self.is_damaged(step, error):
                    raise
        return summary

    def is_damaged(self, step: int, error: BaseException) -> bool:
        """Remembers the damage that an error means."""
        if has_damage := Contents.is_damage(error):
            self.damaged[step] = error.with_traceback(None)  # which holds the arrays
        return has_damage

    def is_gone(self, step: int, error: Exception) -> bool:
        if not Contents.is_damage(error):
            return False
        entry = self.folder.numbered().get(step)
        return entry is None or not entry.is_complete or isinstance(error, FileNotFoundError)

    def read(self, step: int, work: Callable[[Contents], T], **options: Any) -> T:
        return read(self.path(step), step, work, **options)

    def forget(self, steps: Collection[int]) -> None:
        for cache in (self._summaries, self.damaged):
            for step in [*cache]:  # in one step: a signal handler may save meanwhile
                if step not in steps:
                    cache.pop(step, None)

    @contextlib.contextmanager
    def room_for(self, step: int, is_sharded: bool) -> Iterator[Callable[[], None]]:
        """Claims the directory for the save of a step, and removes a damaged checkpoint of it.

        Yields a check of the claim. Raises a BusyError if another job saves there, an
        InvalidCheckpointError if a later checkpoint is there, which would be resumed instead, or
        one of this step that has another form.
        """
        folder, path = self.folder, self.path(step)
        with Directory.at(folder.directory).held() as check:
            same = self.check_last(step).get(step)
            if same is not None and same.is_directory != is_sharded:
                if same.is_complete and self.summary(step) is not None:
                    forms = ["a file", "a directory"]
                    raise InvalidCheckpointError(
                        f"{path.shown} is {forms[same.is_directory]}, and would become "
                        f"{forms[is_sharded]}, which cannot replace it atomically: remove it, or "
                        "save a later step"
                    )
                if same.is_foreign:
                    raise InvalidCheckpointError(
                        f"{path.shown} is a directory with files of another program: move it away, "
                        "or save a later step"
                    )
                same.path.remove()
            elif same is not None and same.path.is_special():
                same.path.remove()  # a save would write into the pipe or device
            yield check

    def check_last(self, step: int, *others: Checkpoints) -> Mapping[int, CheckpointEntry]:
        """Returns the checkpoints; an InvalidCheckpointError if one of a later step is there.

        It also names those in other directories that `resume` would take.
        """
        numbered = self.folder.numbered()
        later = reversed(self.complete(numbered, step + 1))
        last = next((number for number in later if self.summaries(numbered, [number])), None)
        if last is None:
            return numbered
        paths = [
            each.path(first).shown
            for each in (self, *others)
            for first in each.complete(each.folder.numbered(), step + 1)[:1]
        ]
        raise InvalidCheckpointError(
            f"step {step} cannot be saved to {self.folder.directory.shown}: resume would load "
            f"step {last}, which exists. Save a later step, or remove {' and '.join(paths)} and "
            "all later ones"
        )

    @contextlib.contextmanager
    def copied(self, step: int, target: Checkpoints) -> Iterator[Callable[[], None]]:
        """Copies a local checkpoint in one commit; yields a check of the target's claim."""
        entry = self.folder.numbered().get(step)
        is_directory = entry is not None and entry.is_directory

        def earlier() -> Address | None:
            steps = [at for at in target.steps() if at <= step]
            return target.path(steps[-1]) if steps else None

        try:
            self.read(step, lambda contents: contents.verify(0, 1), is_directory=is_directory)
        except TreepackError as error:
            if self.is_damaged(step, error) and self._linking is not None:
                self._linking.has_damage = True  # else later steps share it, and are not copied
            raise
        with target.room_for(step, is_directory) as check:
            source, copy = self.path(step), target.path(step)
            copy_checkpoint(source, copy, check, is_directory=is_directory, earlier=earlier)
            yield check

    def link_unchanged(self, full_every: int | None) -> None:
        self._linking = Linking(full_every)

    def has_resumed(self, step: int, source: Checkpoints) -> None:
        if self._linking is not None:
            is_linkable = source.folder.is_local == self.folder.is_local
            self._linking.resume((source if is_linkable else self).path(step))

    def commit(self, step: int, options: StepOptions, *, sharded: bool, timeout: float) -> Commit:
        saved = Saved.of(options)
        saved.sharded, saved.timeout, saved.linking = sharded, timeout, self._linking
        return Commit(self, step, saved, Writing.of(options))


class Commit:
    """The save of one step: it is encoded, and then called, which writes and commits.

    Attributes:
      then: Called in process 0 after the commit, with a check of the claim of the directory.
      abandon: Called with the error if the save is never called.
    """

    def __init__(self, checkpoints: Checkpoints, step: int, saved: Saved, writing: Writing):
        self.path = checkpoints.path(step)
        self._checkpoints, self._step = checkpoints, step
        self._saved, self._writing = saved, writing
        self._writes: list[Any] = []  # of one; `encoded` returns it
        self.abandon: Callable[[BaseException], object] | None = None
        self.then: Callable[[Callable[[], None]], object] = lambda check: None

    def encode(self, state: Any, now: float, metrics: Any, local: Any, *, snapshot: bool) -> None:
        """With `snapshot`, the state and metadata may change afterwards."""
        self._summary = describe(self._saved, self._step, now, metrics, local)
        write = encoded(self.path, state, self._saved, self._writing, snapshot=snapshot)
        self._writes, self.abandon = [write], write.abandon

    def __call__(self, progress: Progress) -> None:
        writes = self._writes  # popped, so that its arrays do not stay
        if not writes[0].leads:
            writes.pop()(progress)
            return
        is_sharded = bool(self._saved.sharded)
        check: Callable[[], None] | None = None
        try:
            with self._checkpoints.room_for(self._step, is_sharded) as check:
                writes.pop()(progress, check)
                self._checkpoints.add(self._summary)
                self.then(check)
        except BaseException as error:
            if check is None:
                writes.pop().abandon(error)
            raise
