"""The script that the type checkers look at uses everything public, and runs."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import pytest

import treepack
import typed_api
from treepack import errors, orbax, serialization
from treepack._src.options import Status

SOURCE = (Path(__file__).parent / "typed_api.py").read_text()


@pytest.mark.parametrize("name", treepack.__all__)
def test_every_native_name_is_used(name: str) -> None:
    assert f"treepack.{name}" in SOURCE or f"import {name}" in SOURCE or f", {name}" in SOURCE


@pytest.mark.parametrize("name", serialization.__all__)
def test_every_name_of_the_drop_in_is_used(name: str) -> None:
    assert f"serialization.{name}" in SOURCE


def test_it_runs() -> None:
    typed_api.main()


def _public() -> Iterator[tuple[str, Any]]:
    """Yields all public classes and functions, with the methods of the classes."""
    for module in (treepack, serialization, errors, orbax):
        for name, value in vars(module).items():
            if name[0] == "_" or not (isinstance(value, type) or inspect.isfunction(value)):
                continue
            if not value.__module__.startswith("treepack"):
                continue
            yield name, value
            for base in value.__mro__ if isinstance(value, type) else ():
                if base.__module__.startswith("treepack"):
                    for part, method in vars(base).items():
                        method = getattr(method, "fget", getattr(method, "__func__", method))
                        if inspect.isfunction(method):
                            yield f"{name}.{part}", method


def test_annotations_resolve() -> None:
    found = dict(_public())
    assert len(found) > 150
    for name, value in found.items():
        try:
            typing.get_type_hints(value)
        except NameError as error:
            pytest.fail(f"{name}: {error}")
    assert typing.get_type_hints(treepack.Verification)["leaves"] == Mapping[str, Status]
    exported = typing.get_type_hints(treepack.LoadedExported)["exported"]
    assert exported is jax.export.Exported
    [options] = typing.get_args(typing.get_type_hints(treepack.load)["options"])
    assert typing.get_type_hints(options)["device"] == jax.Device | None


def test_names_of_the_drop_in_are_nowhere_else() -> None:
    functions = [name for name in treepack.__all__ if inspect.isfunction(getattr(treepack, name))]
    assert len(functions) <= 27  # with one alias
    for name in serialization.__all__:
        assert not hasattr(treepack, name), name
