"""Runs the table: a sample in `make test`, all pairs in `make test-all`, triples at night."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

import tiers
from promises import table
from promises.table import Cell

# The number of cells in `make test`.
SHARE = 150

GROUPS = tiers.either([], table.PAIRS, nightly=[*table.PAIRS, *table.TRIPLES])
CELLS = table.covering(GROUPS) if GROUPS else table.sample(SHARE)


@pytest.mark.all_cases
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_the_promise_is_kept(cell: Cell, tmp_path: Path) -> None:
    table.run(cell, tmp_path)


@pytest.mark.skipif(not GROUPS, reason="make test has a sample")
def test_each_form_verb_source_leaf_and_condition_has_a_cell() -> None:
    for axis, names in table.AXES.items():
        assert {getattr(cell, axis) for cell in CELLS} == names.keys()


@pytest.mark.skipif(not GROUPS, reason="make test has a sample")
def test_each_pair_with_a_meaning_has_a_cell() -> None:
    for pair in table.PAIRS:
        covered = {tuple(getattr(cell, axis) for axis in pair) for cell in CELLS}
        for names in {*itertools.product(*(table.AXES[axis] for axis in pair))} - covered:
            others = {axis: values for axis, values in table.AXES.items() if axis not in pair}
            rows = itertools.product(*others.values())
            row = dict(zip(pair, names, strict=True))
            assert table.unmeant(row) or all(
                table.unmeant(row | dict(zip(others, rest, strict=True))) for rest in rows
            ), row
