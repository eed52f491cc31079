from __future__ import annotations

import contextlib
import difflib
import functools
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal, Self, TypeVar, Unpack, overload

from treepack._src.advice import Advising
from treepack._src.options import (
    ChoiceOptions,
    StepOptions,
    StorageOptions,
    Template,
    takes,
)
from treepack._src.printable import warn
from treepack._src.processes.meeting import Meeting
from treepack._src.runs.checkpoints import Checkpoints
from treepack._src.runs.contents import Contents
from treepack._src.saving.background import Saving
from treepack._src.series.fast import Fast
from treepack._src.series.intervals import Intervals
from treepack._src.series.keep import Keep, best_rules, best_steps, check_mode, quoted, tidy
from treepack._src.series.resuming import Resuming
from treepack._src.storage.address import Location
from treepack.errors import TreepackError

T = TypeVar("T")

# The number of metrics that an error names.
_MOST_NAMES = 5


class Series(Advising, lists="steps"):
    """The checkpoints of a training run: saved atomically, kept by rules, resumed.

    The checkpoint of step 1000 is `step_1000` in the directory: a file as `treepack.save` writes
    it, or with several processes a directory; `load`, `open`, `verify` and the command line read
    it. Other files are left alone. Threads may share a series, unless there are several processes:
    their saves wait for each other, and steps must still increase.

    Args:
      path: The directory of the run, or its URL. The first save makes it.
      keep: The rules for the checkpoints that stay. `None` removes nothing.
      every: `should_save` saves the multiples of this number.
      seconds: The minimum number of seconds between saves by `should_save`. Without this and
        `every`, it saves each step.
      prefix: The prefix of the names of checkpoints, so that several series may share a directory.
      sharded: Whether a checkpoint is a directory. `None` makes one if there are several processes
        of `jax.distributed`, all of which then make the same calls.
      timeout: The seconds that processes wait for each other.
      fast: A local directory, such as `"/dev/shm/run"`, to which `save` saves; a thread copies from
        there to `path`. It holds at most three checkpoints. If copying takes longer than the
        intervals between saves, checkpoints that only `last` keeps are not copied; `save` waits for
        the copies of others. Only for programs of one process.
      unchanged: `"write"` writes all leaves of each step. `"link"` saves directories, and links the
        files of unchanged leaves to those of the last step that this object saved or resumed; each
        step stays whole without the others. A damaged file harms all steps that share it.
      full_every: With `unchanged="link"`, the number of checkpoints after which all leaves are
        written again. `None` does so once 50 checkpoints and one day have passed.
      storage_options: See `save`.

    Attributes:
      skipped: The damaged checkpoints that the last `resume` skipped: pairs of a step and its
        error, the latest first.
      local: The data that this process passed as `local=` to the save of the resumed step; a list
        of all processes' data if their number has changed.

    Examples:
      >>> import jax.numpy as jnp, tempfile, treepack
      >>> run = treepack.Series(tempfile.mkdtemp(), keep=treepack.Keep(last=2))
      >>> state = {"w": jnp.zeros(2)}
      >>> for step in range(4):
      ...     run.save(step, {"w": state["w"] + step}, metrics={"loss": 1 / (step + 1)})
      >>> run.steps(), run.metrics(3)
      ([2, 3], {'loss': 0.25})
      >>> run.resume(state)
      (3, {'w': Array([3., 3.], dtype=float32)})
    """

    @takes(early=True)
    def __init__(
        self,
        path: Location,
        *,
        keep: Keep | None = None,
        every: int | None = None,
        seconds: float | None = None,
        prefix: str = "step_",
        sharded: bool | None = None,
        timeout: float = Meeting.TIMEOUT_S,
        fast: str | os.PathLike[str] | None = None,
        unchanged: Literal["write", "link"] = "write",
        full_every: int | None = None,
        storage_options: StorageOptions = None,
    ):
        if not isinstance(prefix, str):
            raise TypeError(f"prefix must be a string, such as 'step_', got {prefix!r:.100}")
        links = _links(unchanged, full_every, sharded)
        self._checkpoints = durable = Checkpoints.of(path, prefix, storage_options)
        is_name = os.path.basename(prefix) == prefix  # noqa: PTH119  # a URL is not a path
        if not is_name or prefix[-1:].isdigit():
            raise ValueError(
                "prefix must be the start of a file name, without a directory, and must not end "
                f"with a digit, which would be read as one of the step, got {prefix!r:.100}"
            )
        if not isinstance(keep, Keep | None):
            raise TypeError(
                f"keep must be a treepack.Keep, such as Keep(last=3), got {keep!r:.100}"
            )
        self.skipped: list[tuple[int, BaseException]] = []
        self.local: Any = None
        self._saves = durable.saves("series")
        self._keep, self._sharded, self._timeout = keep, links or sharded, timeout
        self._last: Saving | None = None
        self._meeting = Meeting("should_save", timeout)
        self._intervals = Intervals(every, seconds, self._meeting)
        self._fast = None if fast is None else Fast(_checked_fast(fast, durable), durable, keep)
        # The checkpoints to which a save goes.
        self._first = durable if self._fast is None else self._fast.checkpoints
        if links:
            self._first.link_unchanged(full_every)

    @overload
    def save(
        self,
        step: int,
        state: Any,
        *,
        metrics: Mapping[str, Any] | None = None,
        local: Any = None,
        background: Literal[False] = False,
        **options: Unpack[StepOptions],
    ) -> None: ...

    @overload
    def save(
        self,
        step: int,
        state: Any,
        *,
        metrics: Mapping[str, Any] | None = None,
        local: Any = None,
        background: Literal[True],
        **options: Unpack[StepOptions],
    ) -> Saving: ...

    @takes(StepOptions)
    def save(
        self,
        step: int,
        state: Any,
        *_more: Any,
        metrics: Mapping[str, Any] | None = None,
        local: Any = None,
        background: bool = False,
        **options: Unpack[StepOptions],
    ) -> Saving | None:
        """Saves the checkpoint of a step, atomically.

        Replaces a checkpoint of this step. Saves wait for each other. After a failed save in the
        background, the next save warns and continues; `wait` and the `Saving` raise the error.

        Args:
          step: The step, not less than the step of any intact checkpoint.
          state: Any tree; see `treepack.save`.
          metrics: Numbers by name, such as `{"loss": loss}`, for `metrics` and for rules of `Keep`.
            Of several processes, process 0 provides them.
          local: A small tree of this process alone, such as the state of its data iterator;
            `resume` sets `local` to it. Its types must load without a template.
          background: Whether to write in a thread, and return a `Saving` as soon as the program may
            change the state.
          metadata: See `treepack.save`, also for other options.

        Raises:
          InvalidCheckpointError: If a checkpoint of a later step is there.
          TreepackError: If another job saves to the directory, or another process fails, has missed
            this step or saves something else. The next save is not affected.
          UnserializableLeafError: With the path, if a leaf cannot be stored.
          TypeError: If a metric is not a number.

        Warns:
          UserWarning: If the previous save has failed in the background, or older checkpoints
            cannot be removed.
        """
        if _more:
            raise TypeError(
                "save() takes a step and a state: name the rest, as in metrics={'loss': 0.5}"
            )
        step = self._checkpoints.step(step)
        sharded = Meeting.processes()[1] > 1 if self._sharded is None else self._sharded
        commit = self._first.commit(step, options, sharded=sharded, timeout=self._timeout)
        self._wait()
        self._check_processes()
        now = time.time() if self._fast is None else self._fast.now(step)
        commit.encode(state, now, {} if metrics is None else metrics, local, snapshot=background)
        commit.then = functools.partial(self._has_saved, step, self._intervals.restart())
        write = commit if self._fast is None else functools.partial(self._fast.save, step, commit)
        saving = self._last = self._saves.run(
            commit.path,
            write,
            options.get("progress"),
            background=background,
            claims=self._first.folder.directory,
            abandon=commit.abandon,
        )
        self._exit_if_preempted()
        return saving

    @takes(ChoiceOptions, early=True)
    def resume(
        self,
        template: Template | None = None,
        *,
        verify: Literal["manifest", "all"] = "all",
        mmap: bool | None = None,
        max_size: int | None = None,
        **options: Unpack[ChoiceOptions],
    ) -> tuple[int, Template] | None:
        """Returns the newest intact checkpoint: its step and its state.

        Skips damaged checkpoints, with a warning for each. `skipped` lists these and unfinished
        saves. Their files stay.

        Args:
          template: A template of the state; see `treepack.load`.
          verify: `"all"` compares all bytes with their checksums; `"manifest"` only the record and
            sizes, so changed bytes in an array go unnoticed.
          mmap: Whether to map files rather than read them. `None` maps the files of a directory,
            since each device needs only a part. On network file systems, another host must not
            remove a mapped file, as later saves do.
          max_size: The maximum decompressed size in bytes.
          select: See `treepack.load`, also for other options.

        Returns:
          The step and the state; `None` if no checkpoint was ever completed, so that
          `step, state = run.resume(state) or (0, state)` begins or resumes.

        Raises:
          CorruptionError: If there are checkpoints, but no intact one; it names all.
          MismatchError: If the checkpoint does not fit the template; earlier ones are not tried
            then.
          UnregisteredTypeError: See `treepack.load`, also for other errors except damage.

        Warns:
          UserWarning: If a checkpoint is skipped; if there are none, but the directory has others
            or is one; or if `local` is a list.
        """
        if verify not in ("manifest", "all"):
            raise ValueError(f"verify must be 'manifest' or 'all', got {verify!r:.100}")
        self._saves.wait()
        self._check_processes()
        resuming = Resuming(
            checkpoints=self._checkpoints,
            fast=self._fast,
            template=template,
            timeout=self._timeout,
            is_verified=verify == "all",
            mmap=mmap,
            max_size=max_size,
            options=options,
        )
        try:
            loaded = resuming()
        finally:
            self.skipped = resuming.skipped
        self.local = None if loaded is None else loaded.local
        if loaded is None:
            return None
        self._first.has_resumed(loaded.step, loaded.checkpoints)
        return loaded.step, loaded.state

    def steps(self) -> list[int]:
        """Returns the steps of all checkpoints, in order. Reads only names."""
        return (self._checkpoints if self._fast is None else self._fast).steps()

    def path(self, step: int) -> str:
        """Returns the path or URL of the checkpoint of a step, whether or not it is there.

        With `fast=`, the copy in `path` once it exists.
        """
        step = self._checkpoints.step(step)
        return self._holder(step).path(step).plain

    def metrics(self, step: int) -> dict[str, float]:
        """Returns the metrics of a checkpoint. The state is not read.

        Raises:
          TreepackError: If the step has no checkpoint, or a damaged one.
        """
        return self._read(step, lambda contents: dict(contents.summary().metrics))

    def metadata(self, step: int) -> Any:
        """Returns the metadata of a checkpoint, or `None`. The state is not read.

        Raises:
          TreepackError: See `metrics`.
          UnregisteredTypeError: If a type in them is not registered.
        """
        return self._read(step, Contents.metadata)

    def best(
        self, metric: str | None = None, mode: Literal["min", "max"] | None = None
    ) -> int | None:
        """Returns the step of the best checkpoint, or `None` if none has metrics.

        `treepack.load(run.path(run.best()), target)` loads it. Damaged checkpoints do not count.

        Args:
          metric: The name of a metric. `None` takes the only rule of `Keep(best=...)`.
          mode: Whether its least (`"min"`) or greatest (`"max"`) value is best; not needed if
            `Keep(best=...)` has this metric.

        Raises:
          ValueError: If there is no `metric` or no `mode`, and the series has not one such rule.
          TreepackError: If checkpoints have metrics, but none has this one.
        """
        rules = [] if self._keep is None else best_rules(self._keep)
        if metric is not None:
            modes = {rule[2] for rule in rules if rule[0] == metric}
            if mode is None and len(modes) == 1:
                [mode] = modes
            check_mode(mode, f"best({quoted(str(metric))}, ")
            rules = best_rules(Keep(best=(metric, 1, mode or "min")))
        if len(rules) != 1:
            several = ", ".join(quoted(name) for name, _, _ in rules)
            raise ValueError(
                'best() requires a metric, as in best("loss", "min"), or '
                f'keep=Keep(best=("loss", 1, "min")){several and f": keep has {several}"}'
            )
        [rule] = rules
        summaries = []
        for step in self.steps():
            with contextlib.suppress(TreepackError):  # damaged, or removed meanwhile
                summaries.append(self._read(step, Contents.summary))
        names = {name for summary in summaries for name in summary.metrics}
        if names and rule[0] not in names:
            raise TreepackError(
                f"no checkpoint has the metric {quoted(rule[0])}: {_near(rule[0], names)}"
            )
        return next(iter(best_steps(summaries, rule[0], 1, rule[2])), None)

    def keep(self, step: int) -> None:
        """Keeps a checkpoint regardless of the rules, also after a restart.

        It writes an empty file beside it, such as `step_1000.keep`; remove that to return to the
        rules. Of several processes, process 0 writes it.

        Raises:
          TreepackError: If the step has no checkpoint.
        """
        self._check_existing(step)
        if Meeting.processes()[0] == 0:
            self._checkpoints.folder.pin(self._checkpoints.folder.name(step))

    def should_save(self, step: int) -> bool:
        """Returns whether to save a step: by `every` and `seconds`, or before the program ends.

        All of several processes must call it for each step; they get the same answer, by the clock
        of process 0.

        Examples:
          >>> import tempfile, treepack
          >>> run = treepack.Series(tempfile.mkdtemp(), every=10)
          >>> [step for step in range(35) if run.should_save(step)]
          [0, 10, 20, 30]
        """
        step = self._checkpoints.step(step)
        is_due, preemption = self._intervals.is_due(step), self._meeting.preemption
        if preemption is not None:
            preemption.reach(step)
            is_due |= preemption.number is not None
        return is_due

    def preemption(self) -> AbstractContextManager[None]:
        """Saves once more before the program ends by SIGTERM.

        Within the block, SIGTERM makes `should_save` true. The next `save`, or else the end of the
        block, waits until all is written, and exits with the status 143 (`SystemExit`). One process
        replaces the handler of SIGTERM, and must call this in the main thread. Several processes
        use the preemption service of `jax.distributed`, and call `should_save` for each step.

        Raises:
          SystemExit: If the program received SIGTERM.
          ValueError: In another thread than the main one.
          TreepackError: If there are several processes, and jax has no preemption service.

        Examples:
          >>> import signal, tempfile, treepack
          >>> run = treepack.Series(tempfile.mkdtemp(), every=1000)
          >>> try:
          ...     with run.preemption():
          ...         for step in range(5000):
          ...             if run.should_save(step):
          ...                 run.save(step, {"step": step})
          ...             if step == 1200:  # a machine is taken away
          ...                 signal.raise_signal(signal.SIGTERM)
          ... except SystemExit as error:
          ...     print(error.code, run.steps())
          143 [0, 1000, 1201]
        """
        return _Preemption(self._preemption())

    @contextlib.contextmanager
    def _preemption(self) -> Iterator[None]:
        preemption = self._meeting.listen()
        try:
            yield
            self._exit_if_preempted()  # before the old handler is back: the signal may come again
        finally:
            self._meeting.preemption = None
            preemption.end()
        if preemption.number is not None:
            self.wait()
            raise preemption.exit()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """If the block raised an error, failed saves are warnings."""
        if error is None:
            self.wait()
        else:
            self._wait()

    def wait(self) -> None:
        """Waits until all saves in the background have ended, and with `fast=` are copied.

        The end of `with treepack.Series(path) as run:` waits as well.

        Raises:
          Exception: The error of the last save, or of the copy.
        """
        self._saves.wait()
        if self._fast is not None:
            self._fast.finish()
        if (last := self._last) is not None:
            last.result()

    def __repr__(self) -> str:
        folder = self._checkpoints.folder
        options = f"prefix={folder.begin!r}, keep={self._keep!r}"
        return f"<treepack.Series {folder.directory.shown!r}, {options}>"

    def _has_saved(self, step: int, then: Callable[[], None], check: Callable[[], None]) -> None:
        then()
        if self._fast is None:
            tidy(self._checkpoints, step, self._keep, check)

    def _exit_if_preempted(self) -> None:
        preemption = self._meeting.preemption
        if preemption is not None and preemption.number is not None:
            self.wait()
            raise preemption.exit()

    def _wait(self) -> None:
        self._saves.wait()
        last, self._last = self._last, None
        if last is not None and last.has_unretrieved_error:
            warn(f"{last.name} was not saved: {last.exception()!r}; the next save goes on")
        if self._fast is not None:
            self._fast.warn()

    def _check_processes(self) -> None:
        if self._fast is not None and Meeting.processes()[1] > 1:
            raise TreepackError(
                f"fast= is for one process, and there are {Meeting.processes()[1]}: leave it out"
            )

    def _holder(self, step: int) -> Checkpoints:
        return self._checkpoints if self._fast is None else self._fast.holder(step)

    def _read(self, step: int, work: Callable[[Contents], T], *, is_last: bool = False) -> T:
        self._check_existing(step)
        step = self._checkpoints.step(step)
        try:
            return self._holder(step).read(step, work)
        except FileNotFoundError:  # it was copied or removed meanwhile
            if is_last:
                raise
        return self._read(step, work, is_last=True)

    def _check_existing(self, step: int) -> None:
        self._saves.wait()
        steps = self.steps()
        if self._checkpoints.step(step) not in steps:
            folder = self._checkpoints.folder.directory.shown
            there = f"there are {', '.join(map(str, steps))}" if steps else "there is none"
            raise TreepackError(f"no checkpoint of step {step} in {folder}: {there}")


class _Preemption(AbstractContextManager[None]):
    """Warns if no `with` statement has entered it."""

    def __init__(self, inner: AbstractContextManager[None]):
        self._inner, self._is_entered = inner, False

    def __enter__(self) -> None:
        self._is_entered = True
        self._inner.__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        return self._inner.__exit__(*error)

    def __del__(self) -> None:
        if not self._is_entered:
            warn("preemption() has no effect: write `with run.preemption():` around the loop")


def _links(unchanged: str, full_every: int | None, sharded: bool | None) -> bool:
    if unchanged not in ("write", "link"):
        raise ValueError(f"unchanged must be 'write' or 'link', got {unchanged!r:.100}")
    if unchanged == "write":
        if full_every is not None:
            raise ValueError("full_every requires unchanged='link': leave it out, or pass both")
        return False
    if sharded is False:
        raise ValueError(
            "unchanged='link' saves directories: leave out sharded=False, or pass unchanged='write'"
        )
    return True


def _checked_fast(fast: str | os.PathLike[str], durable: Checkpoints) -> Checkpoints:
    checkpoints = Checkpoints.of(fast, durable.folder.begin)
    here, there = checkpoints.folder.directory, durable.folder.directory
    if not here.is_local:
        raise ValueError(f"fast must be a local directory, not the URL {here.shown!r}")
    if here.real() == there.real():
        raise ValueError(f"fast must be another directory than path, {there.shown!r}")
    return checkpoints


def _near(metric: str, names: Collection[str]) -> str:
    if near := difflib.get_close_matches(metric, names, n=1):
        return f"is it {quoted(near[0])}?"
    return f"they have {', '.join(map(quoted, sorted(names)[:_MOST_NAMES]))}"
