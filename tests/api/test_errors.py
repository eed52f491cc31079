"""The exceptions: all can be caught by public names, are documented, and survive pickling."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import treepack
from treepack import errors

DOCUMENT = Path(__file__).parents[2] / "docs" / "guarantees.md"

EXCEPTIONS = [
    found
    for found in vars(errors).values()
    if isinstance(found, type) and issubclass(found, Exception)
]

ARGUMENTS = {
    "MismatchError": ("text", [errors.Mismatch("a", "b", "c")]),
    "UnserializableLeafError": ("text", "a/b"),
    "UnregisteredTypeError": ("text", "name", "a/b"),
    "DecodeError": ("text", 3, "a/b"),
    "NewerVersionError": ("text", None, "a/b"),
}


def subclasses(of: type) -> set[type]:
    below = {it for it in of.__subclasses__() if it.__module__.startswith("treepack")}
    return below.union(*map(subclasses, below))


@pytest.mark.parametrize("ty", EXCEPTIONS, ids=lambda ty: ty.__name__)
def test_each_is_public_and_documented(ty: type[Exception]) -> None:
    assert getattr(treepack, ty.__name__) is ty
    assert ty.__name__ in treepack.__all__
    assert ty.__doc__
    rows = [
        line
        for line in DOCUMENT.read_text().splitlines()
        if line.startswith(f"| `{ty.__name__}` |")
    ]
    assert len(rows) == 1
    bases = rows[0].split("|")[2]
    assert set(bases.replace("`", "").replace(",", " ").split()) == {
        base.__name__ for base in ty.__bases__
    }
    error = ty(*ARGUMENTS.get(ty.__name__, ("text",)))
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is ty
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_there_are_no_others() -> None:
    """Whoever catches what is public catches all; others only tell treepack itself more."""
    assert len(EXCEPTIONS) == 16
    public = tuple(EXCEPTIONS)
    found = subclasses(Exception) - set(EXCEPTIONS)
    assert {it for it in found if not issubclass(it, public)} == set()
