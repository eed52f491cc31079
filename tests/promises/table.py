"""Combinations of the table: which are meant, which are chosen, and what each promises."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import covertable
import numpy as np

import treepack
from promises.conditions import ANYTHING, CONDITIONS, EITHER, ERROR, VALUE, Condition
from promises.forms import FORMS, Form
from promises.leaves import KINDS
from promises.sources import SOURCES
from promises.verbs import VERBS, Case, Verb

# Errors that the pages of verbs name.
DOCUMENTED = (treepack.TreepackError, OSError, EOFError)


class Cell(NamedTuple):
    """One combination, by names."""

    form: str
    verb: str
    source: str
    leaf: str
    condition: str

    def __str__(self) -> str:
        return " | ".join(self)


AXES = {"form": FORMS, "verb": VERBS, "source": SOURCES, "leaf": KINDS, "condition": CONDITIONS}


# Pairs without a meaning: the axes, a function of their values, and the reason.
RULES: list[tuple[tuple[str, str], Callable[[Any, Any], bool], str]] = [
    (("form", "leaf"), lambda form, kind: form.refuses(kind), "the form cannot hold the leaf"),
    (
        ("form", "verb"),
        lambda form, verb: verb.forms is not None and form.name not in verb.forms,
        "the verb reads other forms",
    ),
    (
        ("form", "verb"),
        lambda form, verb: verb.name == "save over it" and not form.is_ours,
        "another program writes the form",
    ),
    (
        ("verb", "source"),
        lambda verb, source: source.group not in verb.takes,
        "the verb does not take such sources",
    ),
    (
        ("form", "source"),
        lambda form, source: source.is_bytes and not form.is_one_file,
        "bytes have no files beside them",
    ),
    (
        ("form", "source"),
        lambda form, source: form.name == "Orbax directory" and source.group == "URL",
        "directories of Orbax are read from the disk",
    ),
    (
        ("form", "source"),
        lambda form, source: form.name == "Orbax directory" and source.name == "odd path",
        "Orbax saves nothing below names that are patterns",
    ),
    (
        ("source", "condition"),
        lambda source, condition: source.group not in condition.takes,
        "the condition is one of files",
    ),
    (
        ("source", "condition"),
        lambda source, condition: source.is_relative and condition.name == "no working directory",
        "the path is relative",
    ),
    (
        ("verb", "condition"),
        lambda verb, condition: condition.is_of_writers and not verb.writes,
        "the verb writes nothing",
    ),
    (
        ("verb", "condition"),
        lambda verb, condition: condition.option and condition.option[0] not in verb.options,
        "the verb has no such option",
    ),
    (
        ("form", "condition"),
        lambda form, condition: condition.option and not form.is_bounded,
        "the option bounds what is decompressed, joined or assembled",
    ),
    (
        ("verb", "condition"),
        lambda verb, condition: verb.is_command and condition.name in ("eight threads", "Ctrl-C"),
        "a command is a process of its own",
    ),
    (
        ("form", "condition"),
        lambda form, condition: condition.name == "FIFO in it" and form.is_one_file,
        "a pipe that the caller names is read, as by `open` of Python",
    ),
    (
        ("form", "condition"),
        lambda form, condition: form.name == "Orbax directory" and condition.name == "signals",
        "TensorStore does not get on between a thousand signals a second",
    ),
    (
        ("verb", "condition"),
        lambda verb, condition: verb.name == "save over it" and condition.is_of_files,
        "a save does not read the file that it replaces",
    ),
]


def unmeant(names: dict[str, str]) -> str | None:
    """Returns why a combination, or a part of one, has no meaning, if it has none."""
    for rule, (axes, _, reason) in enumerate(RULES):
        if names.keys() >= {*axes} and _applies(rule, *(names[axis] for axis in axes)):
            return reason
    return None


@functools.cache
def _applies(rule: int, *names: str) -> bool:
    axes, applies, _ = RULES[rule]
    return bool(applies(*(AXES[axis][name] for axis, name in zip(axes, names, strict=True))))


PAIRS = [*itertools.combinations(AXES, 2)]


def sample(count: int) -> list[Cell]:
    """Returns cells with a meaning, without the library, which takes long."""
    rng, cells = random.Random(0), dict[Cell, None]()
    while len(cells) < count:
        cell = Cell(*(rng.choice([*values]) for values in AXES.values()))
        if unmeant(cell._asdict()) is None:
            cells[cell] = None
    return [*cells]


def covering(groups: list[tuple[str, ...]]) -> list[Cell]:
    """Returns cells that cover all combinations with a meaning of the axes of each group.

    The library takes 12 seconds for all pairs, so `target/` keeps the cells for other processes.
    """
    names = {axis: [*values] for axis, values in AXES.items()}
    lacking = {
        pair: [
            row for row in itertools.product(*(names[axis] for axis in pair)) if _lacks(pair, row)
        ]
        for pair in PAIRS
    }
    described = json.dumps([names, groups, [*lacking.items()]])
    kept = _KEPT / f"promises-{hashlib.sha256(described.encode()).hexdigest()[:16]}.json"
    kept.parent.mkdir(exist_ok=True)
    with kept.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            rows = covertable.make(
                names,
                criterion=covertable.criteria.simple,
                sub_models=[{"fields": group, "strength": len(group)} for group in groups],
                constraints=[_constraint(pair, {*rows}) for pair, rows in lacking.items() if rows],
            )
            unfinished = kept.with_suffix(".tmp")
            unfinished.write_text(json.dumps([Cell(**row) for row in rows]))
            unfinished.replace(kept)
    return [Cell(*row) for row in json.loads(kept.read_text())]


def _lacks(pair: tuple[str, ...], row: tuple[str, ...]) -> bool:
    return unmeant(dict(zip(pair, row, strict=True))) is not None


def _constraint(pair: tuple[str, str], lacking: set[tuple[str, ...]]) -> dict[str, Any]:
    one, other = pair
    return {
        "operator": "fn",
        "requires": [one, other],
        "evaluate": lambda row: (row[one], row[other]) not in lacking,
    }


# Where cells are kept; the folder of Rust's builds.
_KEPT = Path(__file__).parents[2] / "target"

# The triples in which one promise was forgotten by a form that others kept.
TRIPLES = [("form", "verb", axis) for axis in ("source", "leaf", "condition")]


def tree_of(leaf: str) -> Any:
    """Returns the tree of a cell: its leaf among arrays."""
    weights = np.arange(2000, dtype=np.float32).reshape(40, 50)
    return {"a": {"leaf": KINDS[leaf].make(), "w": weights}, "z": np.arange(7)}


def run(cell: Cell, folder: Path) -> None:
    """Runs a cell in an empty folder; raises unless its promise is kept."""
    form, verb, source = FORMS[cell.form], VERBS[cell.verb], SOURCES[cell.source]
    condition, rng = CONDITIONS[cell.condition], random.Random(str(cell))
    tree = tree_of(cell.leaf)
    home = folder / source.folder / f"model{form.suffix}"
    home.parent.mkdir()
    form.write(home, tree)
    entry = form.entry(home)
    written = folder / "written"
    written.mkdir()
    expected = {path: verb.expected(leaf) for path, leaf in _values(tree)}
    outcome = outcome_of(form, verb, condition)
    if cell.verb == "base of a patch" and cell.source == "NumPy array":
        outcome = condition.outcome  # as a base, an array is a tree, whatever its bytes are
    condition.prepare(entry, rng)
    try:
        with source.named(home if verb.is_of_home else entry) as argument:
            options = dict([condition.option] if condition.option else [])
            case = Case(form, tree, argument, entry, options, written)
            leaves = condition.around(lambda: verb.run(case))
    except DOCUMENTED as error:
        if outcome == VALUE:
            raise AssertionError(f"{type(error).__name__}: {error}") from error
        for file in written.iterdir():
            treepack.open(file).close()  # nothing is half written
        return
    except AssertionError:
        if outcome == ANYTHING:
            return
        raise
    assert outcome != ERROR, f"no error, but {leaves!r:.200}"
    if leaves is None or outcome == ANYTHING:
        return
    wrong = [path for path, leaf in leaves.items() if expected.get(path) != leaf]
    assert not wrong, f"{wrong}: {leaves[wrong[0]]!r:.100} for {expected.get(wrong[0])!r:.100}"
    assert verb.is_partial or leaves.keys() == expected.keys(), expected.keys() ^ leaves.keys()


def outcome_of(form: Form, verb: Verb, condition: Condition) -> str:
    """Returns the outcome that is right."""
    if verb.name == "base of a patch" and not form.is_base:
        return ERROR
    if verb.name == "save over it" and condition.name == "eight threads":
        return EITHER  # one job at a time saves to a directory
    if verb.name == "load, verified" and not form.is_summed and condition.outcome == VALUE:
        return EITHER  # an error says that there are no checksums
    if condition.is_of_files and not (verb.verifies and form.is_summed):
        return ANYTHING
    if condition.option and verb.is_partial:
        return EITHER  # what it reads may be smaller
    return condition.outcome


def _values(tree: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    if not isinstance(tree, dict):
        return [(path, tree)]
    return [pair for name, child in tree.items() for pair in _values(child, (*path, name))]
