from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from treepack._src.options import ChoiceOptions
from treepack._src.printable import warn
from treepack._src.processes.meeting import Meeting
from treepack._src.runs.checkpoints import Checkpoints
from treepack._src.runs.contents import Contents
from treepack._src.series.fast import Fast
from treepack.errors import CorruptionError

# The number of retries if a checkpoint is removed while it is read, since later ones are saved.
_ATTEMPTS = 5


class Loaded(NamedTuple):
    checkpoints: Checkpoints
    step: int
    state: Any
    local: Any
    saved: int


class UnfinishedError(CorruptionError):
    """The save of a checkpoint has not ended."""


@dataclasses.dataclass(kw_only=True)
class Resuming:
    """The search for the newest intact checkpoint, and its load.

    `mmap=None` maps the files of a directory. `skipped` are not intact, with errors, the latest
    first.
    """

    checkpoints: Checkpoints
    fast: Fast | None
    template: Any
    timeout: float
    is_verified: bool
    mmap: bool | None
    max_size: int | None
    options: ChoiceOptions
    skipped: list[tuple[int, BaseException]] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self._meeting = Meeting("resume", self.timeout, Contents.is_damage)
        self._index, self._count = Meeting.processes()

    def __call__(self) -> Loaded | None:
        if self.fast is not None:
            self.fast.check()
        loaded = self._lead() if self._index == 0 else self._follow()
        directory = self.checkpoints.folder.directory.shown
        if loaded is None and self._index == 0:  # the skipped ones, if any, are unfinished
            self.checkpoints.folder.warn_of_others("Series")
        for step, error in self.skipped:
            if not isinstance(error, UnfinishedError):
                warn(f"step {step} of {directory} is skipped: {error}")
        if loaded is not None and loaded.local is not None and loaded.saved != self._count:
            warn(
                f"{loaded.saved} processes have saved step {loaded.step}, and "
                f"{self._count} resume it: local is a list of the items of all"
            )
        return loaded

    def _search(self, attempt: Callable[[int, Checkpoints, bool], Loaded]) -> Loaded | None:
        for left in reversed(range(_ATTEMPTS)):
            self.skipped = []
            for step, checkpoints, is_directory, is_complete in self._candidates():
                try:
                    if not is_complete:
                        raise UnfinishedError("its save has not ended: there is no manifest")
                    loaded = attempt(step, checkpoints, is_directory)
                except Exception as error:
                    if left and _is_gone(checkpoints, step, error):
                        break  # since a later one is saved: look again
                    if not checkpoints.is_damaged(step, error):
                        raise
                    self.skipped.append((step, error))
                else:
                    checkpoints.damaged.pop(step, None)
                    self._forgive(step, checkpoints)
                    return loaded
            else:
                break
        if all(isinstance(error, UnfinishedError) for _, error in self.skipped):
            return None
        errors = "; ".join(f"step {step}: {error}" for step, error in self.skipped)
        raise CorruptionError(
            f"no checkpoint in {self.checkpoints.folder.directory.shown} is whole: {errors}. "
            "Copy the intact leaves with `treepack salvage`, or begin a run in another directory"
        )

    def _candidates(self) -> Iterator[tuple[int, Checkpoints, bool, bool]]:
        """Yields the checkpoints of all directories, the latest first, and the fast one first."""
        tiers = [self.checkpoints]
        if self.fast is not None:  # in this order, since one may be copied and removed meanwhile
            tiers.insert(0, self.fast.checkpoints)
        candidates = [
            (at, tier, entry) for tier in tiers for at, entry in tier.folder.numbered().items()
        ]
        steps = [step for step, _, _ in candidates]
        older = {
            step
            for step in steps
            if self.fast is not None and steps.count(step) > 1 and self.fast.is_older(step)
        }
        candidates.sort(key=lambda row: (-row[0], row[0] in older and row[1] is not tiers[-1]))
        for step, tier, entry in candidates:
            yield step, tier, entry.is_directory, entry.is_complete

    def _forgive(self, step: int, checkpoints: Checkpoints) -> None:
        for skipped, error in self.skipped:
            if skipped == step and not isinstance(error, UnfinishedError):
                warn(f"step {step} is taken from {checkpoints.path(step).shown}: {error}")
        self.skipped = [pair for pair in self.skipped if pair[0] != step]

    def _load(self, checkpoints: Checkpoints, step: int, contents: Contents) -> Loaded:
        local, saved = contents.locals(self._index, self._count)
        is_alone = self._count == 1
        if self.is_verified and not is_alone:  # each process verifies a part
            contents.verify(self._index, self._count)
        verify, timeout = self.is_verified and is_alone, self.timeout
        state = contents.load(self.template, verify=verify, timeout=timeout, **self.options)
        return Loaded(checkpoints, step, state, local, saved)

    def _lead(self) -> Loaded | None:
        def attempt(step: int, checkpoints: Checkpoints, is_directory: bool) -> Loaded:
            work = functools.partial(self._read, step, checkpoints, is_directory)
            return self._meeting.attempt([step, is_directory], work)

        return self._meeting.lead(functools.partial(self._search, attempt), self._end)

    def _end(self, loaded: Loaded | None) -> Any:
        return loaded is not None, [
            [step, str(error), isinstance(error, UnfinishedError)] for step, error in self.skipped
        ]

    def _follow(self) -> Loaded | None:
        loaded, (is_found, skipped) = self._meeting.follow(
            lambda task: self._read(task[0], self.checkpoints, task[1])
        )
        self.skipped = [
            (step, UnfinishedError(text) if is_unfinished else CorruptionError(text))
            for step, text, is_unfinished in skipped
        ]
        return loaded if is_found else None

    def _read(self, step: int, checkpoints: Checkpoints, is_directory: bool) -> Loaded:
        return checkpoints.read(
            step,
            functools.partial(self._load, checkpoints, step),
            is_directory=is_directory,
            is_whole=self.is_verified or self.options.get("select") is None,
            mmap=self.mmap is not False if is_directory else bool(self.mmap),
            max_size=self.max_size,
        )


def _is_gone(checkpoints: Checkpoints, step: int, error: Exception) -> bool:
    if isinstance(error, UnfinishedError):
        return step not in checkpoints.folder.numbered()
    return checkpoints.is_gone(step, error)
