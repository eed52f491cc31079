"""The fast tier of a series: a directory in memory, or on a local disk, to which it saves first.

    save ──▶ room ──▶ commit in the fast directory ──▶ return
                            │
    a thread                └──▶ copy, commit in the durable directory ──▶ rules of `Keep`

The oldest is copied first. A checkpoint counts as copied if the durable directory has an intact one
of a later step, or of its step that was not saved before it. Nothing else is recorded: the next
save or `Series.wait` continues after a kill.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from treepack._src.options import Progress
from treepack._src.printable import warn
from treepack._src.runs.checkpoints import Checkpoints
from treepack._src.runs.contents import Summary
from treepack._src.saving.background import Saving
from treepack._src.series.keep import Keep, tidy
from treepack.errors import TreepackError

FILE = "fast.treepack"
"""The file with the random name of a run, in its directory and in its fast directory."""

# The number of checkpoints besides the one being written: the one being copied and the newest.
_MOST = 2


class Fast:
    def __init__(self, checkpoints: Checkpoints, durable: Checkpoints, keep: Keep | None):
        self.checkpoints = checkpoints
        self._durable, self._keep = durable, keep
        self._line = durable.saves("copies")
        # The copies, and whether each has looked: it may miss checkpoints that are committed later.
        self._copies: dict[Saving, bool] = {}
        self._run: bytes | None = None  # the random name of the run, once it is known
        self._saved = self._copied = -1  # the last step that was saved here, and that was copied

    def __str__(self) -> str:
        return self.checkpoints.folder.directory.shown

    def save(self, step: int, write: Callable[[Progress], None], progress: Progress) -> None:
        self.check(bind=True)
        both = self.checkpoints, self._durable
        for one, other in zip(self._unknown(), reversed(both), strict=False):
            one.check_last(step, other)
        self._make_room()
        write(progress)
        self._saved = step
        self.begin_copying()

    def now(self, step: int) -> float:
        """Returns a time after all previous saves of a step.

        The clock may be set back.
        """
        tiers = [Checkpoints(tier.folder) for tier in self._unknown()]  # others may have saved it
        summaries = [tier.summary(step) for tier in tiers if step in tier.steps()]
        times = [each.time for each in summaries if each is not None and each.time is not None]
        return max([time.time(), *(math.nextafter(seconds, math.inf) for seconds in times)])

    def _unknown(self) -> list[Checkpoints]:
        """Returns the directories that may have later checkpoints.

        The durable one has none while the last saved one is intact in the fast directory.
        """
        saved, fast = self._saved, self.checkpoints
        is_known = saved in fast.folder.numbered() and fast.summary(saved) is not None
        return [fast] if is_known else [fast, self._durable]

    def check(self, *, bind: bool = False, afresh: bool = False) -> None:
        """Raises a TreepackError if the fast directory is of another run, or of a removed one.

        With `bind`, the run takes a new or removed directory. With `afresh`, the durable directory
        is read again.
        """
        durable, fast = (tier.folder for tier in (self._durable, self.checkpoints))
        there = durable.read(FILE) if afresh or self._run is None else self._run
        run, mine = there or self._run, fast.read(FILE)
        if (mine is None and self.checkpoints.steps()) or mine not in (None, run):
            raise TreepackError(
                f"the fast directory {self} has checkpoints of another run than "
                f"{durable.directory.shown}, or of a run that was removed: pass another "
                "directory, or remove this one if they are not needed"
            )
        if bind:
            run = run or secrets.token_hex(16).encode()
            for folder, name in ((durable, there), (fast, mine)):
                if name is None:
                    folder.write(FILE, run)
        self._run = run

    def steps(self) -> list[int]:
        # In this order, since one may be copied and removed meanwhile.
        return sorted({*self.checkpoints.steps()} | {*self._durable.steps()})

    def holder(self, step: int) -> Checkpoints:
        if step not in self.checkpoints.steps():
            return self._durable
        is_copied = all(summary.step != step for summary in self._uncopied(self._intact()))
        return self._durable if is_copied and step in self._durable.steps() else self.checkpoints

    def is_older(self, step: int) -> bool:
        both = self.checkpoints, self._durable
        # Read afresh, since others may have saved it.
        mine, other = (Checkpoints(tier.folder).summary(step) for tier in both)
        return mine is not None and other is not None and (other.time or 0) > (mine.time or 0)

    def begin_copying(self) -> None:
        if self.checkpoints.steps():
            with contextlib.suppress(RuntimeError, MemoryError):  # no thread: the next one does it
                self._begin()

    def _begin(self) -> None:
        if all(looked or copying.done() for copying, looked in self._copies.copy().items()):
            copying = self._line.later(self._durable.folder.directory, self._copy_all)
            self._copies.setdefault(copying, False)

    def finish(self) -> None:
        if self.checkpoints.steps():
            self._begin()
        self._line.wait()
        copies = self._take(are_done=False)
        for copying in copies[:-1]:
            copying.exception()  # the last has tried again
        if copies:
            copies[-1].result()

    def warn(self) -> None:
        for copying in self._take(are_done=True):
            if copying.has_unretrieved_error:
                warn(
                    f"{self} could not be copied to {self._durable.folder.directory.shown}: "
                    f"{copying.exception()!r}; later saves try again"
                )

    def _take(self, *, are_done: bool) -> list[Saving]:
        taken = []
        for copying in [*self._copies]:
            is_taken = copying.done() or not are_done
            if is_taken and self._copies.pop(copying, None) is not None:  # else another thread did
                taken.append(copying)
        return taken

    def _copy_all(self, copying: Saving) -> None:
        self._copies[copying] = True
        self.check(bind=self._run is not None, afresh=True)
        tried: set[tuple[int, float | None]] = set()
        errors: list[BaseException] = []
        while left := [summary for summary in self._tidy(protected=0) if summary[:2] not in tried]:
            try:
                self._copy(left[0])
            except FileNotFoundError:
                if left[0][:2] in (summary[:2] for summary in self._intact()):
                    raise
                continue  # it was removed, or saved again, meanwhile
            except TreepackError as error:  # of this one, such as that it has come too late
                errors.append(error)
            tried.add(left[0][:2])
        self._check_saved()
        if errors:
            raise errors[-1]

    def _check_saved(self) -> None:
        step = self._saved
        if step == self._copied or self.checkpoints.steps()[-1:] != [step]:
            return
        self._durable.check_last(step, self.checkpoints)
        error = self.checkpoints.damaged.get(step)
        if error is not None and not self._durable.intact(step):
            raise error

    def _copy(self, summary: Summary) -> None:
        with self.checkpoints.copied(summary.step, self._durable) as check:
            self._durable.add(summary)
            tidy(self._durable, summary.step, self._keep, check)
        self._copied = summary.step

    def _intact(self) -> list[Summary]:
        self.checkpoints.refresh()
        return self.checkpoints.intact()

    def _uncopied(self, there: Sequence[Summary]) -> list[Summary]:
        if not there:
            return []
        later = self._durable.intact(there[0].step)
        return [
            summary
            for summary in there
            if not any(map(functools.partial(_replaces, summary), later))
        ]

    def _tidy(self, *, protected: int) -> list[Summary]:
        """Removes copied checkpoints except the newest, and those between that only `last` keeps.

        The first `protected` ones stay, as another thread may copy them. Returns the uncopied ones.
        """
        there = self._intact()
        left = self._uncopied(there)
        between = left[protected:-1]
        wanted = self._wanted(there) if between else set()
        dropped = [summary for summary in between if summary.step not in wanted]
        left = [summary for summary in left if summary not in dropped]
        self._remove([summary.step for summary in there[:-1] if summary not in left])
        return left

    def _wanted(self, there: Sequence[Summary]) -> set[int]:
        if self._keep is None:
            return {summary.step for summary in there}
        both = {summary.step: summary for summary in (*self._durable.intact(), *there)}
        keep = dataclasses.replace(self._keep, last=1)
        kept = keep.kept([both[step] for step in sorted(both)])
        return kept | self._durable.folder.listing().pinned()

    def _remove(self, steps: Sequence[int]) -> None:
        folder = self.checkpoints.folder
        listing = folder.listing()
        numbered = listing.numbered()
        newest = max((summary.step for summary in self.checkpoints.intact()), default=0)
        bad = [
            step
            for step, entry in numbered.items()
            if step < newest and step in self.checkpoints.damaged and not entry.is_foreign
        ]
        unfinished = [at for at, entry in numbered.items() if at < newest and not entry.is_complete]
        listing.remove(map(folder.name, (*bad, *steps)), map(folder.name, unfinished))

    def _make_room(self) -> None:
        """Makes room for one more checkpoint: drops some, waits for copies, or drops more.

        Warns if copying has failed, and uncopied checkpoints are dropped.
        """
        for is_first in (True, False):
            if self._has_room():
                return
            if not is_first:
                self.begin_copying()
                self._line.wait()
            with contextlib.suppress(OSError, TreepackError):  # of the durable directory
                self._tidy(protected=1)
        if self._has_room():
            return
        left = there = self._intact()
        with contextlib.suppress(OSError, TreepackError):
            left = self._uncopied(there)
        if dropped := [summary.step for summary in left[:-1]]:
            warn(
                f"{self} is full: removed steps {', '.join(map(str, dropped))}, perhaps before "
                f"they were copied to {self._durable.folder.directory.shown}"
            )
        self._remove([summary.step for summary in there if summary not in left[-1:]])

    def _has_room(self) -> bool:
        """For one about as large as the newest; true where the file system does not know."""
        steps = self.checkpoints.steps()
        if not steps or len(steps) > _MOST:
            return not steps
        newest = Path(self.checkpoints.path(steps[-1]))
        try:
            files = newest.iterdir() if newest.is_dir() else [newest]
            nbytes = sum(file.stat().st_size for file in files)
            usage = shutil.disk_usage(newest.parent)
        except OSError:
            return True
        return usage.free >= nbytes or not usage.total


def _replaces(one: Summary, other: Summary) -> bool:
    return (other.step, other.time or 0) >= (one.step, one.time or 0)
