"""The cases of some seeds, used."""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import os
import random
import re
import shutil
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import treepack
from hostile import agreement, limits, uses
from hostile.agreement import Outcome
from hostile.cases import Case, Cases

# So many uses of each file, beside those that have to agree; and of each directory.
USES, OF_DIRECTORIES = 3, 12

# A case costs as much as some uses of the costly ones, so these are drawn less often.
_WEIGHTS = {"cli": 0.03, "memory": 0.5, "save": 0.5, "restore": 0.5}


class Work:
    """Runs cases.

    Attributes:
      counts: How often each use has had a result, and each error, by container.
      findings: What is wrong: seed, container, use, and what.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        for name in ("in", "out", "tmp"):
            (folder / name).mkdir()
        self.cases = Cases()
        self.limits = limits.Limits()
        self.audit = limits.Audit()
        self.output = limits.Output(folder)
        self.counts: dict[str, collections.Counter[str]] = collections.defaultdict(
            collections.Counter
        )
        self.findings: list[tuple[int, str, str, str]] = []
        self._case: Case = None  # type: ignore[assignment]
        self._is_warm = False
        warnings.simplefilter("error")
        # What `on_corrupt="skip"` tells of damage outside of leaves.
        warnings.filterwarnings("ignore", message=".*is damaged.*|.*damage.*", category=UserWarning)
        warnings.filterwarnings("ignore", message="select= and exclude= leave out every leaf")
        warnings.filterwarnings("ignore", message="static= (is|has values)", category=UserWarning)

    def warm_up(self, only: tuple[str, ...], cases: int) -> None:
        """Lets everything be imported that is needed, and limits what the process may do."""
        for seed in range(cases):
            self.run(seed, only, every=seed < 60)
        self.findings.clear()
        self.counts.clear()
        self.output.taken()
        self.limits.slowest, self.limits.largest = (0.0, ""), (0, "")
        self._is_warm = True
        limits.limit_space()
        gc.collect()
        gc.freeze()  # what there is now need not be looked at again and again

    def run(self, seed: int, only: tuple[str, ...] = (), *, every: bool = False) -> None:
        """Runs a case."""
        limits.allow_time()
        case = self._case = self.cases.case(seed, only)
        self._use(case, self._written(case), every=every)
        self._check_files(case)

    def _use(self, case: Case, path: str, *, every: bool) -> None:
        rng = random.Random(case.seed)
        if case.base is not None:
            for problem in agreement.check_patch(case, path, self.use):
                self._found("agreement", problem)
            choice, count = uses.USES | uses.FILES, USES
        elif isinstance(case.data, bytes):
            is_plain = case.container != "values"
            found = agreement.check(case.data, path, case.max_size, self.use, compare=is_plain)
            if is_plain and rng.random() < 0.2:
                found += agreement.check_salvage(case.data, case.max_size, self.use)
            for problem in found:
                self._found("agreement", problem)
            choice, count = uses.USES | uses.FILES, USES
        else:
            self.use("verify", lambda: treepack.verify(path, max_size=case.max_size))
            choice, count = uses.USES, OF_DIRECTORIES
        weights = [_WEIGHTS.get(name.partition(" ")[0].rstrip(":"), 1.0) for name in choice]
        for name in choice if every else rng.choices([*choice], weights, k=count):
            self.use(name, functools.partial(choice[name], case, path, str(self.folder / "out")))

    def _written(self, case: Case) -> str:
        for name, found in (("base", case.base), ("file", case.data)):
            path = self.folder / "in" / name
            if path.is_dir():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)  # the old one may be mapped
            if isinstance(found, bytes):
                path.write_bytes(found)
            elif found is not None:
                path.mkdir()
                for inner, data in found.items():
                    (path / inner).write_bytes(data)
        return str(path)

    def use(self, name: str, call: Callable[[], Any]) -> Outcome:
        """Does something with a case, within the limits; all that is wrong becomes a finding."""
        case = self._case
        outcome = Outcome()
        where = f"seed {case.seed}, {name}"
        with (
            self.audit.watching(name) as events,
            self.limits.time(name, case.max_size) as late,
            self.limits.memory(where, case.size, case.max_size) as exceeded,
        ):
            try:
                outcome = Outcome(call())
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                outcome = Outcome(None, error)
        outcome_name = "a result" if outcome.is_ok else type(outcome.error).__name__
        self.counts[case.container][f"{name}: {outcome_name}"] += 1
        wrong = [*late, *exceeded, *events]
        if outcome.error is not None:
            wrong += _wrong_in(outcome.error, case)
        for it in wrong:
            self._found(name, it)
        return outcome

    def _found(self, name: str, problem: str) -> None:
        self.findings.append((self._case.seed, self._case.container, name, problem))

    def _check_files(self, case: Case) -> None:
        """Compares what there is in the folder with what should be."""
        out = self.folder / "out"
        for entry in os.scandir(out):
            if entry.name.startswith("."):
                self._found("files", f"left in out: {entry.name}")
            with contextlib.suppress(NotADirectoryError):
                shutil.rmtree(entry.path)
                continue
            Path(entry.path).unlink()
        for name, expected in (
            ("", ["in", "out", "output", "tmp"]),
            ("in", ["file"] if case.base is None else ["base", "file"]),
            ("tmp", []),
        ):
            there = sorted(os.listdir(self.folder / name))  # noqa: PTH208
            if there != expected:
                self._found("files", f"in {name or 'the folder'}: {there}")
        path = self.folder / "in" / "file"
        if isinstance(case.data, bytes):
            if path.stat().st_size != len(case.data):
                self._found("files", "the file has changed")
        elif sorted(os.listdir(path)) != sorted(case.data):  # noqa: PTH208
            self._found("files", "the directory has changed")
        if problem := self.output.taken():
            self._found("output", problem)

    def summary(self) -> dict[str, Any]:
        """Returns what has been found since the last time."""
        found = {
            "findings": self.findings,
            "counts": {name: dict(it) for name, it in self.counts.items()},
            "slowest": self.limits.slowest,
            "largest": self.limits.largest,
            "seconds": time.process_time(),
        }
        self.findings, self.counts = [], collections.defaultdict(collections.Counter)
        return found


_CONTROL = re.compile("[\0-\x09\x0b-\x1f\x7f]")

_DOCUMENTED = (treepack.TreepackError, treepack.UnserializableLeafError, OSError)

# Errors of the use, not of files.
_ASKED = ("matches nothing", "match nothing", "no leaf of the file matches")


def _wrong_in(error: BaseException, case: Case) -> list[str]:
    """Returns what is wrong with an error."""
    text = str(error)
    is_known = isinstance(error, _DOCUMENTED) and not isinstance(error, PermissionError)
    if isinstance(error, treepack.MissingPathError):
        is_known = error.path in case.paths
    elif isinstance(error, ValueError) and any(it in text for it in _ASKED):
        is_known = True
    elif any("was restored at" in note for note in getattr(error, "__notes__", ())):
        is_known = True  # what a handler of another library raises
    if not is_known:
        lines = traceback.format_exception(error)
        return ["".join(lines)[-3000:]]
    found = []
    # A path has the keys that lead there, and mismatches have as many as there is room for.
    if len(text) > (9 << 20 if case.name == "long" else 20_000):
        found.append(f"{type(error).__name__} has a message of {len(text)} characters")
    if _CONTROL.search(text):
        found.append(f"control characters in {text!r:.300}")
    if isinstance(error, treepack.DecodeError) and case.container in ("file", "bytes", "flax"):
        size = len(case.data)
        if error.offset is not None and not 0 <= error.offset <= size:
            found.append(f"byte {error.offset} of {size}: {text:.300}")
    return found
