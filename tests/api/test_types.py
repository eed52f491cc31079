"""The script that the type checkers look at uses everything public, and runs."""

from __future__ import annotations

from pathlib import Path

import pytest

import treepack
import typed_api
from treepack import serialization

SOURCE = (Path(__file__).parent / "typed_api.py").read_text()


@pytest.mark.parametrize("name", treepack.__all__)
def test_every_native_name_is_used(name: str) -> None:
    assert f"treepack.{name}" in SOURCE or f"import {name}" in SOURCE or f", {name}" in SOURCE


@pytest.mark.parametrize("name", serialization.__all__)
def test_every_name_of_the_drop_in_is_used(name: str) -> None:
    assert f"serialization.{name}" in SOURCE


def test_it_runs() -> None:
    typed_api.main()


def test_names_of_the_drop_in_are_nowhere_else() -> None:
    functions = [name for name in treepack.__all__ if name[0].islower()]
    assert len(functions) <= 30  # with two modules, and one alias
    for name in serialization.__all__:
        assert not hasattr(treepack, name), name
