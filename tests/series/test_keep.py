"""The rules of retention beside a model, in any history of saves, losses, pins and restarts."""

from __future__ import annotations

import math
import os
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

import tiers
import treepack
from treepack._src.runs.checkpoints import Checkpoints
from treepack._src.runs.contents import Summary

NUMBERS = st.one_of(st.sampled_from([math.nan, math.inf, -math.inf]), st.integers(0, 4))
METRICS = st.fixed_dictionaries({}, optional={"loss": NUMBERS, "accuracy": NUMBERS})

BEST = st.tuples(
    st.sampled_from(["loss", "accuracy"]), st.integers(1, 3), st.sampled_from(["min", "max"])
)

KEEPS = st.builds(
    treepack.Keep,
    last=st.integers(1, 4),
    every=st.none() | st.integers(1, 20),
    seconds=st.none() | st.floats(0.5, 30),
    best=st.none() | BEST | st.lists(BEST, min_size=1, max_size=3),
)

# A step is so much later than the one before, in steps and seconds (before, if the clock was set
# back), and has metrics.
# Then something else happens: the checkpoint is pinned, damaged, or the program starts again.
EVENTS = st.tuples(
    st.integers(1, 9),
    st.floats(0, 9) | st.sampled_from([-1e5, -20.0, 1e5]),
    METRICS,
    st.sampled_from(["nothing", "nothing", "pin", "damage", "restart"]),
)


class Model:
    """What has to be there, found naively: all rules for each checkpoint by itself."""

    def __init__(self, keep: treepack.Keep):
        self.keep = keep
        self.there: list[Summary] = []
        self.pinned: set[int] = set()
        self.damaged: set[int] = set()

    def save(self, saved: Summary) -> None:
        self.there.append(saved)
        whole = [it for it in self.there if it.step not in self.damaged]
        newest = whole[-self.keep.last :]

        def stays(it: Summary) -> bool:
            if it.step in self.pinned:
                return True
            if it.step in self.damaged:  # nothing is removed in its favour
                return len(whole) < self.keep.last or it.step >= newest[0].step
            return it in newest or self.is_spaced(it, whole) or self.is_best(it, whole)

        self.there = [it for it in self.there if stays(it)]

    def is_spaced(self, wanted: Summary, whole: list[Summary]) -> bool:
        for distance, position in ((self.keep.every, 0), (self.keep.seconds, 1)):
            at: Any = None
            for it in whole if distance is not None else ():
                if at is None or it[position] - at >= distance or it[position] < at:
                    at = it[position]
                    if it == wanted:
                        return True
        return False

    def is_best(self, wanted: Summary, whole: list[Summary]) -> bool:
        best: Any = self.keep.best
        for name, count, mode in best if isinstance(best, list) else [best] if best else []:
            if not any(name in it.metrics for it in whole) and wanted.metrics:
                return True  # the name may be a typo
            value = wanted.metrics.get(name, math.nan)
            better = 0
            for it in whole:
                other = it.metrics.get(name, math.nan)
                is_better = other > value if mode == "max" else other < value
                better += is_better or (other == value and it.step > wanted.step)
            if not math.isnan(value) and better < count:
                return True
        return False


@settings(max_examples=tiers.either(50, 500, nightly=10_000))
@given(keep=KEEPS, events=st.lists(EVENTS, max_size=12))
def test_the_rules_keep_what_a_model_keeps(keep: treepack.Keep, events: list[Any]) -> None:
    """Of whole checkpoints that are not pinned, without files."""
    step, now = -1, 1e9
    model = Model(keep)
    there: list[Summary] = []
    for distance, seconds, metrics, _ in events:
        step, now = step + distance, now + seconds
        saved = Summary(step, now, metrics)
        model.save(saved)
        there.append(saved)
        kept = keep.kept(there)
        there = [it for it in there if it.step in kept]
        assert there == model.there


@settings(
    max_examples=int(os.environ.get("TREEPACK_HISTORIES", tiers.either(50, 100, nightly=5000)))
)
@given(keep=KEEPS, events=st.lists(EVENTS, max_size=tiers.either(8, 12)))
def test_what_stays_is_what_a_model_keeps(keep: treepack.Keep, events: list[Any]) -> None:
    """Set TREEPACK_HISTORIES to the number of histories."""
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        check_history(Path(folder), keep, events)


def check_history(folder: Path, keep: treepack.Keep, events: list[Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        step, now = -1, 1e9
        patch.setattr(time, "time", lambda: now)
        model = Model(keep)
        run = treepack.Series(folder, keep=keep)
        for distance, seconds, metrics, then in events:
            step, now = step + distance, now + seconds
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of metrics that no checkpoint has
                run.save(step, {"step": step}, metrics=metrics, durable=False)
            model.save(Summary(step, now, metrics))
            assert run.steps() == [it.step for it in model.there]
            if then == "pin":
                run.keep(step)
                model.pinned.add(step)
            elif then == "damage":
                Path(run.path(step)).write_bytes(b"")
                model.damaged.add(step)
            if then in ("damage", "restart"):
                run = treepack.Series(folder, keep=keep)
        found = run.steps()
        assert {it.step for it in model.there} == {*found}
        assert sorted(it.name for it in folder.iterdir()) == sorted(
            [f"step_{it}" for it in found] + [f"step_{it}.keep" for it in model.pinned]
        )


@given(positions=st.lists(st.integers(0, 60)), distance=st.integers(1, 20), data=st.data())
def test_what_goes_changes_nothing_of_what_stays(
    positions: list[int], distance: int, data: st.DataObject
) -> None:
    items = [*enumerate(positions)]
    kept = [*Checkpoints.spaced(items, distance)]
    gone = data.draw(st.sets(st.sampled_from(items))) if items else set()
    left = [it for it in items if it not in gone or it[0] in kept]
    assert [*Checkpoints.spaced(left, distance)] == kept
    assert [*Checkpoints.spaced(items[: len(items) // 2], distance)] == [
        it for it in kept if it < len(items) // 2
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"last": 0},
        {"every": 0},
        {"seconds": -1.0},
        {"seconds": math.nan},
        {"best": ("loss", 0, "min")},
        {"best": ("loss",)},
        {"best": ("loss", 1)},
        {"best": ("loss", 1, "least")},
        {"best": "loss"},
        {"best": 3},
        {"best": (3, "loss")},
        {"best": []},
        {"best": [("loss", 1, "min"), ("accuracy", 1)]},
        {"best": [("loss", 1, "min"), "accuracy"]},
    ],
)
def test_rules_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        treepack.Keep(**options)


def test_several_metrics_have_best_checkpoints(tmp_path: Path) -> None:
    rules = [("loss", 1, "min"), ("accuracy", 1, "max")]
    run = treepack.Series(tmp_path, keep=treepack.Keep(best=rules))
    for step, (loss, accuracy) in enumerate([(3, 0.9), (1, 0.2), (2, 0.3), (4, 0.1)]):
        run.save(step, {"step": step}, metrics={"loss": loss, "accuracy": accuracy})
    assert run.steps() == [0, 1, 3]
    assert (run.best("loss"), run.best("accuracy"), run.best("loss", "max")) == (1, 0, 3)
    with pytest.raises(ValueError, match=r'requires a metric.*: keep has "loss", "accuracy"$'):
        run.best()
