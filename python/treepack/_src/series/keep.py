from __future__ import annotations

import dataclasses
import inspect
import json
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from treepack._src.options import takes
from treepack._src.printable import warn
from treepack._src.runs.checkpoints import Checkpoints
from treepack._src.runs.contents import Summary

# The number of metrics that a warning names.
_MOST_NAMES = 5

# The length of names of metrics in errors.
_MOST_NAME = 100

Best = tuple[str, int, Literal["min", "max"]]
"""A metric, how many checkpoints stay for it, and whether the least or greatest values are best."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Keep:
    """Rules for the checkpoints of a series that stay; all others are removed.

    Checkpoints whose records cannot be read do not count.

    Args:
      last: The number of last checkpoints that stay; at least 1.
      every: The minimum number of steps between older checkpoints that also stay, beginning with
        the first one: of steps 0, 1, 2, …, `every=4` keeps 0, 4, 8, ….
      seconds: The minimum number of seconds between the saves of older checkpoints that also stay.
      best: A metric, the number of best checkpoints by it that also stay, and `"min"` or `"max"`;
        or a list of these. Of equal values the later one is better; checkpoints without the metric,
        or with NaN, are never best. While no checkpoint has a metric, all with others stay, and
        saves warn.

    Raises:
      ValueError: If a number is too small, or `best` has another form.

    Examples:
      >>> import tempfile, treepack
      >>> keep = treepack.Keep(last=2, every=4, best=("loss", 1, "min"))
      >>> run = treepack.Series(tempfile.mkdtemp(), keep=keep)
      >>> for step, loss in enumerate([9.0, 1.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0]):
      ...     run.save(step, {"w": 0.0}, metrics={"loss": loss})
      >>> run.steps()
      [0, 1, 4, 6, 7]
    """

    last: int = 1
    every: int | None = None
    seconds: float | None = None
    best: Best | list[Best] | None = None

    if not TYPE_CHECKING:  # type checkers take `__init__`

        def __new__(cls, *args: Any, **rules: Any) -> Keep:
            if args:
                raise TypeError(f"rules have names: pass Keep(last={args[0]!r:.100})")
            return object.__new__(cls)

    def __post_init__(self) -> None:
        for rule in best_rules(self):
            best: tuple[Any, ...] = rule if isinstance(rule, tuple) else ()
            if not 2 <= len(best) <= 3 or not isinstance(best[0], str) or not _is_count(best[1]):
                raise ValueError(
                    "best must be the name of a metric, the number of checkpoints to keep (at "
                    'least 1), and "min" or "max", such as ("loss", 2, "min") or ("accuracy", 2, '
                    f'"max"), or a list of these, got {self.best!r:.100}'
                )
            check_mode((*best, None)[2], f"best=({quoted(best[0])}, {best[1]}, ")

    def kept(self, checkpoints: Sequence[Summary]) -> set[int]:
        """Returns the steps that stay, of intact checkpoints in order."""
        steps = {each.step for each in checkpoints[-self.last :]}
        if self.every is not None:
            numbers = ((each.step, each.step) for each in checkpoints)
            steps.update(Checkpoints.spaced(numbers, self.every))
        if self.seconds is not None:
            times = ((each.step, each.time) for each in checkpoints if each.time is not None)
            steps.update(Checkpoints.spaced(times, self.seconds))
        for rule in best_rules(self):
            steps.update(best_steps(checkpoints, *rule))
        if self.unseen(checkpoints):
            steps.update(each.step for each in checkpoints if each.metrics)
        return steps

    def unseen(self, checkpoints: Sequence[Summary]) -> list[str]:
        """Returns the metrics of `best` that no checkpoint has, perhaps typos."""
        names = {name for summary in checkpoints for name in summary.metrics}
        return [name for name, _, _ in best_rules(self) if name not in names]


if not TYPE_CHECKING:  # `help` would show the signature of `__new__`
    Keep.__signature__ = inspect.signature(object.__new__(Keep).__init__)
    Keep.__init__ = takes(early=True)(Keep.__init__)


def best_rules(keep: Keep) -> list[Best]:
    rules: Any = keep.best
    if rules is None:
        return []
    return list(rules) if rules and isinstance(rules, list) else [rules]


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def check_mode(mode: Any, call: str) -> None:
    if mode not in ("min", "max"):
        got = "" if mode is None else f", got {mode!r:.100}"
        raise ValueError(
            f'best must say which values are best: pass {call}"min") for the least, or '
            f'{call}"max") for the greatest{got}'
        )


def quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)[:_MOST_NAME]


def best_steps(
    checkpoints: Iterable[Summary], name: str, count: int, mode: Literal["min", "max"]
) -> list[int]:
    sign = 1 if mode == "min" else -1
    values = ((each.metrics.get(name, math.nan), each.step) for each in checkpoints)
    ranked = sorted((sign * value, -step) for value, step in values if not math.isnan(value))
    return [-step for _, step in ranked[:count]]


def tidy(
    checkpoints: Checkpoints, saved: int, keep: Keep | None, check: Callable[[], None]
) -> None:
    """Removes the checkpoints that no rule keeps any more, after the commit of a step.

    Errors are warnings, since the save has succeeded. A damaged one is removed once `keep.last`
    later ones are intact.
    """
    if keep is None:
        return
    folder = checkpoints.folder
    with folder.tidying(f"step {saved} is saved"):
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
        unseen = keep.unseen(intact)
        if unseen and intact[-1].metrics:
            has = ", ".join(f"{name!r:.100}" for name in sorted(intact[-1].metrics)[:_MOST_NAMES])
            warn(
                f"metrics has {has}, keep asks for {unseen[0]!r:.100}: until a checkpoint has "
                "it, none with metrics is removed"
            )
