"""Saves the checkpoints of a series, each in one commit, and then removes superseded ones.

claim of the directory ──▶ no later checkpoint ──▶ write, commit ──▶ remove others by the rules
(a lease, on disks)        is there                (`saving/`)       (process 0)

A process that stands still for too long loses its lease, so it is checked before a file gets its
name, and before others are removed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from treepack._src.options import Progress, Saved, Writing
from treepack._src.printable import warn
from treepack._src.runs.contents import Summary, is_damage, opened
from treepack._src.runs.steps import CheckpointEntry, Folder
from treepack._src.saving.checkpoints import encoded
from treepack._src.series.keep import Keep
from treepack._src.storage.address import Address
from treepack.errors import InvalidCheckpointError, TreepackError

# The number of metrics that a warning names.
_MOST_NAMES = 5


class Checkpoints:
    """The checkpoints of a series as this process knows them.

    Attributes:
      folder: Their directory.
      damaged: The errors of those that are damaged, by step.
    """

    def __init__(self, folder: Folder):
        self.folder = folder
        self.damaged: dict[int, BaseException] = {}
        self._summaries: dict[int, Summary] = {}

    def path(self, step: int) -> Address:
        return self.folder.path(self.folder.name(step))

    def steps(self) -> list[int]:
        """Returns the steps of the checkpoints whose save has ended, in order."""
        return [step for step, entry in self.folder.numbered().items() if entry.is_complete]

    def complete(self, numbered: Mapping[int, CheckpointEntry], first: int = 0) -> list[int]:
        """Returns `steps` from `first` on, without looking again into known ones.

        In a store, each look takes a request.
        """
        seen = {} if self.folder.is_local else self._summaries
        entries = ((step, entry) for step, entry in numbered.items() if step >= first)
        return [step for step, entry in entries if step in seen or entry.is_complete]

    def intact(self, first: int = 0) -> list[Summary]:
        """Returns the intact checkpoints from a step on, in order."""
        numbered = self.folder.numbered()
        return self.summaries(numbered, self.complete(numbered, first))

    def summaries(
        self, numbered: Mapping[int, CheckpointEntry], steps: Iterable[int]
    ) -> list[Summary]:
        """Returns the summaries of the intact checkpoints."""
        summaries = (self.summary(step, is_directory=numbered[step].is_directory) for step in steps)
        return [summary for summary in summaries if summary is not None]

    def refresh(self) -> None:
        """Forgets the contents read so far: others may have replaced the checkpoints."""
        self._summaries.clear()

    def add(self, summary: Summary) -> None:
        """Adds a checkpoint that was saved here."""
        self._summaries[summary.step] = summary
        self.damaged.pop(summary.step, None)

    def summary(self, step: int, *, is_directory: bool = False) -> Summary | None:
        """Returns a checkpoint, which is read once; `None` if it is damaged.

        With `is_directory` it is known to be a directory.

        Raises:
          Exception: If it cannot be read for another reason; see `is_damage`.
        """
        if step in self.damaged:
            return None
        summary = self._summaries.get(step)
        if summary is None:
            try:
                with opened(self.path(step), step, is_directory=is_directory) as contents:
                    summary = self._summaries[step] = contents.summary()
            except Exception as error:
                if not is_damage(error):
                    raise
                self.damaged[step] = error.with_traceback(None)
        return summary

    def forget(self, steps: Collection[int]) -> None:
        """Forgets checkpoints of other steps than these, which are gone."""
        for cache in (self._summaries, self.damaged):
            for step in [*cache]:  # in one step: a signal handler may save meanwhile
                if step not in steps:
                    cache.pop(step, None)


class Commit:
    """The save of one step. Calling it writes and commits; process 0 then removes others.

    Attributes:
      step: The step.
    """

    def __init__(self, checkpoints: Checkpoints, keep: Keep | None, saved: Saved, summary: Summary):
        """Takes the options of the save, with the metadata of `summary`."""
        self._checkpoints, self._keep, self._saved = checkpoints, keep, saved
        self._summary, self.step = summary, summary.step
        self._write: Callable[..., None] | None = None
        self._leads = True
        self._is_sharded = bool(saved.sharded)
        self.abandon: Callable[[BaseException], object] | None = None
        self.then: Callable[[], None] = lambda: None

    def prepare(self, state: Any, writing: Writing, *, snapshot: bool) -> None:
        """Encodes a state; with `snapshot`, the encoding does not depend on the tree any more."""
        path = self._checkpoints.path(self.step)
        write = encoded(path, state, self._saved, writing, snapshot=snapshot)
        self._write, self.abandon, self._leads = write, write.abandon, write.leads

    def __call__(self, progress: Progress) -> None:
        write, self._write = self._write, None
        assert write is not None, "it is written once"
        if not self._leads:
            write(progress)
            return
        with contextlib.ExitStack() as stack:
            try:
                room = room_for(self._checkpoints, self.step, self._is_sharded)
                check = stack.enter_context(room)
            except BaseException as error:
                if self.abandon is not None:
                    self.abandon(error)
                raise
            # The directory of a sharded one has a lease of its own.
            if self._is_sharded:
                write(progress)
            else:
                write(progress, check)
            del write  # and the arrays with it
            self.then()
            has_saved(self._checkpoints, self._summary, self._keep, check)


@contextlib.contextmanager
def room_for(checkpoints: Checkpoints, step: int, is_sharded: bool) -> Iterator[Callable[[], None]]:
    """Claims the directory for the save of a step, and removes a damaged checkpoint of it.

    Yields a function that checks the claim.

    Raises:
      BusyError: If another job saves there.
      InvalidCheckpointError: If a later checkpoint is there, which would be resumed instead, or one
        of this step that has another form.
    """
    folder, path = checkpoints.folder, checkpoints.path(step)
    with folder.claimed() as check:
        same = check_last(checkpoints, step).get(step)
        if same is not None and same.is_directory != is_sharded:
            if same.is_complete and checkpoints.summary(step) is not None:
                forms = ["a file", "a directory"]
                raise InvalidCheckpointError(
                    f"{path.shown} is {forms[same.is_directory]}, and would become "
                    f"{forms[is_sharded]}, which cannot replace it atomically: remove it, or save "
                    "a later step"
                )
            if same.is_foreign:
                raise InvalidCheckpointError(
                    f"{path.shown} is a directory with files of another program: move it away, or "
                    "save a later step"
                )
            folder.remove(same.name)
        elif same is not None and same.is_special:
            folder.remove(same.name)  # a save would write into the pipe or device
        yield check


def check_last(
    checkpoints: Checkpoints, step: int, *others: Checkpoints
) -> Mapping[int, CheckpointEntry]:
    """Returns the checkpoints of a directory, after checking that none of a later step is there.

    Raises:
      InvalidCheckpointError: If one is there. It also names those in the other directories that
        `resume` would take.
    """
    numbered = checkpoints.folder.numbered()
    later = reversed(checkpoints.complete(numbered, step + 1))
    last = next((number for number in later if checkpoints.summaries(numbered, [number])), None)
    if last is None:
        return numbered
    paths = [
        each.path(first).shown
        for each in (checkpoints, *others)
        for first in each.complete(each.folder.numbered(), step + 1)[:1]
    ]
    raise InvalidCheckpointError(
        f"step {step} cannot be saved to {checkpoints.folder.directory.shown}: resume would load "
        f"step {last}, which exists. Save a later step, or remove {' and '.join(paths)} and all "
        f"later ones"
    )


def has_saved(
    checkpoints: Checkpoints, summary: Summary, keep: Keep | None, check: Callable[[], None]
) -> None:
    """Adds a checkpoint that was committed, and removes those that no rule keeps any more.

    None is removed if another job holds the claim of the directory by now. An error is a warning,
    since the save has succeeded. A damaged one is removed once `keep.last` later ones are intact.
    """
    checkpoints.add(summary)
    if keep is None:
        return
    saved = summary.step
    try:
        folder = checkpoints.folder
        listing = folder.listing()
        numbered = listing.numbered()
        complete = checkpoints.complete(numbered)
        intact = checkpoints.summaries(numbered, (step for step in complete if step <= saved))
        if not intact or intact[-1].step != saved:
            return  # another job has removed it
        kept = keep.kept(intact) | listing.pinned()
        oldest = intact[-keep.last :][0].step if len(intact) >= keep.last else 0
        gone = [step for step in complete if step <= saved and step not in kept]
        gone = [
            step
            for step in gone
            if step not in checkpoints.damaged or (step < oldest and not numbered[step].is_foreign)
        ]
        unfinished = [step for step in numbered if step < saved and step not in complete]
        check()
        listing.remove(map(folder.name, gone), map(folder.name, unfinished))
        checkpoints.forget(numbered.keys() - gone)
        if keep.best is not None and intact[-1].metrics and keep.is_unseen(intact):
            has = ", ".join(f"{name!r:.100}" for name in sorted(intact[-1].metrics)[:_MOST_NAMES])
            warn(
                f"metrics has {has}, keep asks for {keep.best[0]!r:.100}: until a checkpoint has "
                "it, none with metrics is removed"
            )
    except (OSError, TreepackError) as error:
        warn(f"step {saved} is saved, but older checkpoints could not be removed: {error}")
