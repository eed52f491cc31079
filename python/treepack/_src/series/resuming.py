"""Finds the newest intact checkpoint of a series, and loads it.

process 0     a step ──▶ all          loads ──▶ intact, damaged, or an error ──▶ the next step,
all others              ──▶ load, tell process 0                               or the end ──▶ all
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from treepack._src.api.structure import is_checkpoint
from treepack._src.interop import jax as _jax
from treepack._src.interop.group import Group, Message, text_of
from treepack._src.options import ChoiceOptions
from treepack._src.printable import warn
from treepack._src.runs.checkpoints import Checkpoints
from treepack._src.runs.contents import Contents, is_damage
from treepack._src.runs.steps import CheckpointEntry
from treepack._src.series.fast import Fast
from treepack.errors import CorruptionError, OthersError, TreepackError

# The number of retries if a checkpoint is removed while it is read, since later ones are saved.
_ATTEMPTS = 5


# The maximum number of other prefixes of which one file is opened.
_MOST_OTHERS = 5


class Loaded(NamedTuple):
    """A checkpoint that was loaded.

    Attributes:
      step: The step.
      state: The state.
      local: The local item of this process, or the list of all.
      saved: The number of processes that have saved it.
    """

    step: int
    state: Any
    local: Any
    saved: int


class UnfinishedError(CorruptionError):
    """The save of a checkpoint has not ended."""


@dataclasses.dataclass(kw_only=True)
class Resuming:
    """The search for the newest intact checkpoint, and its load.

    Attributes:
      checkpoints: The series.
      fast: Its fast tier, if it has one.
      template: The template of the state.
      timeout: The maximum time to wait for other processes in seconds.
      is_verified: Whether all bytes are compared with their checksums.
      mmap: Whether files are mapped; `None` maps the files of a directory.
      max_size: The maximum decompressed size.
      options: Options of `load`.
      skipped: The checkpoints that are not intact so far, with their errors, the latest first.
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
        self._index, self._count, _ = _jax.processes()

    def __call__(self) -> Loaded | None:
        """Loads the newest intact checkpoint, the same in all processes.

        Returns:
          The checkpoint; `None` if none was ever completed.

        Raises:
          CorruptionError: If there are checkpoints, and none of them is intact.
        """
        if self.fast is not None:
            self.fast.check()
        meeting = _meeting(self.timeout)
        loaded = self._lead(meeting) if self._index == 0 else self._follow(meeting)
        directory = self.checkpoints.folder.directory.shown
        if loaded is None and not self.skipped and self._index == 0:
            self._warn_of_others(directory)
        for step, error in self.skipped:
            if not isinstance(error, UnfinishedError):
                warn(f"step {step} of {directory} is skipped: {error}")
        if loaded is not None and loaded.local is not None and loaded.saved != self._count:
            warn(
                f"{loaded.saved} processes have saved step {loaded.step}, and {self._count} resume "
                "it: local is a list of the items of all"
            )
        return loaded

    def _warn_of_others(self, directory: str) -> None:
        """Warns of checkpoints whose names begin with another prefix."""
        folder = self.checkpoints.folder
        for prefix, name in itertools.islice(folder.listing().others().items(), _MOST_OTHERS):
            with contextlib.suppress(OSError, ImportError, TreepackError):  # it cannot be read
                if is_checkpoint(folder.path(name)):
                    warn(
                        f"{directory} has no checkpoint of the prefix {folder.begin!r}, but "
                        f"{name!r}: pass prefix={prefix!r:.100} to Series, or load it"
                    )

    def _search(self, attempt: Callable[[int, Checkpoints, bool], Loaded]) -> Loaded | None:
        """Tries one step after another, the latest first."""
        for left in reversed(range(_ATTEMPTS)):
            self.skipped = []
            for step, checkpoints, entry in self._candidates():
                try:
                    if not entry.is_complete:
                        raise UnfinishedError("its save has not ended: there is no manifest")
                    loaded = attempt(step, checkpoints, entry.is_directory)
                except Exception as error:
                    if not is_damage(error):
                        raise
                    if left and _is_gone(checkpoints, step, error):
                        break  # since a later one is saved: look again
                    error = error.with_traceback(None)  # which holds the arrays
                    self.skipped.append((step, error))
                    checkpoints.damaged[step] = error
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

    def _candidates(self) -> list[tuple[int, Checkpoints, CheckpointEntry]]:
        """Returns the checkpoints of all directories, the latest first, and the fast one first."""
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
        return sorted(
            candidates, key=lambda row: (-row[0], row[0] in older and row[1] is not tiers[-1])
        )

    def _forgive(self, step: int, checkpoints: Checkpoints) -> None:
        """Removes a step that another directory has intact from the skipped ones."""
        for skipped, error in self.skipped:
            if skipped == step and not isinstance(error, UnfinishedError):
                warn(f"step {step} is taken from {checkpoints.path(step).shown}: {error}")
        self.skipped = [pair for pair in self.skipped if pair[0] != step]

    def _load(self, step: int, contents: Contents) -> Loaded:
        """Loads an open checkpoint.

        Raises:
          Exception: If it is not intact; see `is_damage`.
        """
        local, saved = contents.locals(self._index, self._count)
        is_alone = self._count == 1
        if self.is_verified and not is_alone:  # each process verifies a part
            contents.verify(self._index, self._count)
        verify, timeout = self.is_verified and is_alone, self.timeout
        state = contents.load(self.template, verify=verify, timeout=timeout, **self.options)
        return Loaded(step, state, local, saved)

    def _lead(self, meeting: Iterator[Group]) -> Loaded | None:
        def attempt(step: int, checkpoints: Checkpoints, is_directory: bool) -> Loaded:
            group = next(meeting)
            group.announce(json.dumps({"step": step, "is_directory": is_directory}))
            mine = self._outcome(step, checkpoints, is_directory)
            messages = sorted(group.gather().items())
            errors = [f"process {at}: {message.error}" for at, message in messages if message.error]
            if errors and not _message(mine).error:
                raise group.failed(errors)
            damage = [
                f"process {at}: {message.differs}" for at, message in messages if message.differs
            ]
            if damage and not isinstance(mine, Exception):
                raise CorruptionError("; ".join(damage))
            return _result(mine)

        try:
            loaded = self._search(attempt)
        except BaseException as error:
            next(meeting).announce(json.dumps({"error": text_of(error)}))
            raise
        skipped = [
            [step, str(error), isinstance(error, UnfinishedError)] for step, error in self.skipped
        ]
        end = {"found": None if loaded is None else loaded.step, "skipped": skipped}
        next(meeting).announce(json.dumps(end))
        return loaded

    def _follow(self, meeting: Iterator[Group]) -> Loaded | None:
        mine: Loaded | Exception | None = None
        while True:
            group = next(meeting)
            message = json.loads(group.announced())
            if "step" in message:
                mine = self._outcome(message["step"], self.checkpoints, message["is_directory"])
                group.tell(_message(mine))
                continue
            if _message(mine).error:
                return _result(mine)
            if "error" in message:
                raise OthersError(f"process 0 cannot resume: {message['error']}")
            self.skipped = [
                (step, UnfinishedError(text) if is_unfinished else CorruptionError(text))
                for step, text, is_unfinished in message["skipped"]
            ]
            return None if message["found"] is None or mine is None else _result(mine)

    def _outcome(
        self, step: int, checkpoints: Checkpoints, is_directory: bool
    ) -> Loaded | Exception:
        """Returns the checkpoint of a step, or the error in loading it."""
        try:
            return checkpoints.read(
                step,
                functools.partial(self._load, step),
                is_directory=is_directory,
                is_whole=self.is_verified or self.options.get("select") is None,
                mmap=self.mmap is not False if is_directory else bool(self.mmap),
                max_size=self.max_size,
            )
        except Exception as error:
            return error


def _result(outcome: Loaded | Exception | None) -> Loaded:
    """Returns a loaded checkpoint, or raises its error."""
    if isinstance(outcome, Exception):
        raise outcome
    assert outcome is not None
    return outcome


def _message(outcome: Loaded | Exception | None) -> Message:
    """Returns the message to process 0: `error`, or for damage `differs`.

    An error of another process counts as damage: that process sends it.
    """
    if not isinstance(outcome, Exception):
        return Message()
    text = text_of(outcome)
    if is_damage(outcome) or isinstance(outcome, OthersError):
        return Message(differs=text)
    return Message(error=text)


def _is_gone(checkpoints: Checkpoints, step: int, error: Exception) -> bool:
    """Returns whether a checkpoint that cannot be read has been removed."""
    entry = checkpoints.folder.numbered().get(step)
    if entry is None or isinstance(error, UnfinishedError):
        return entry is None
    return not entry.is_complete or isinstance(error, FileNotFoundError)


# The number of resumes of all processes.
_rounds = itertools.count()

# The messages of a round that all processes have finished.
_left: list[str] = []


def _meeting(timeout: float) -> Iterator[Group]:
    """Yields the rounds of messages of one call of `resume` in all processes."""
    place, count = f"series/{next(_rounds)}", _jax.processes()[1]
    for number in itertools.count():
        folder = f"{place}/{number}"
        old = _left.pop() if _left else None
        _left.append(folder)
        yield Group(timeout, members=range(count), folder=folder, old=old, call="resume")
