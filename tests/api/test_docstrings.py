"""Every public class, method, attribute, function and constant has a docstring."""

from __future__ import annotations

import ast
import inspect
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import treepack
from treepack import checkpoints, errors, orbax, orbax_v1, serialization

MODULES = (treepack, checkpoints, errors, orbax, orbax_v1, serialization)
TREES = [ast.parse(path.read_text()) for path in Path(treepack.__file__).parent.rglob("*.py")]
PUBLIC = {name: getattr(module, name) for module in MODULES for name in module.__all__}
CLASSES = [it for it in PUBLIC.values() if isinstance(it, type) and "treepack" in it.__module__]


def own_attributes(ty: type) -> Iterator[str]:
    """Yields the attributes that a class declares, or sets in an object."""
    yield from vars(ty)
    yield from vars(ty).get("__annotations__", ())
    definitions = (node for tree in TREES for node in tree.body if isinstance(node, ast.ClassDef))
    for node in (
        it for found in definitions if found.name == ty.__name__ for it in ast.walk(found)
    ):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield from [node.attr] if ast.unparse(node.value) == "self" else []


def is_documented(ty: type, name: str) -> bool:
    value = inspect.getattr_static(ty, name, None)
    if isinstance(value, property):
        return bool(value.__doc__)
    if isinstance(value, (classmethod, staticmethod)) or inspect.isroutine(inspect.unwrap(value)):
        return bool(inspect.getdoc(getattr(ty, name)))
    texts = (inspect.getdoc(base) or "" for base in ty.__mro__)
    return any(re.search(rf"^  {name}: ", text, re.M) for text in texts)


@pytest.mark.parametrize("ty", CLASSES, ids=lambda ty: ty.__qualname__)
def test_classes_and_their_attributes_are_documented(ty: Any) -> None:
    assert inspect.getdoc(ty)
    names = {name for name in own_attributes(ty) if name[0] != "_"}
    if typing.is_typeddict(ty):
        return  # the verbs that take the options document them
    if hasattr(ty, "_shown"):  # the other names are internal
        names &= {*ty._shown}
    assert [name for name in sorted(names) if not is_documented(ty, name)] == []


def documented_constants() -> Iterator[str]:
    """Yields the names of values that a text follows where the package defines them."""
    for tree in TREES:
        for one, other in zip(tree.body, tree.body[1:], strict=False):
            value: Any = other.value if isinstance(other, ast.Expr) else None
            if not isinstance(getattr(value, "value", None), str):
                continue
            if isinstance(one, (ast.Assign, ast.AnnAssign)):
                targets = one.targets if isinstance(one, ast.Assign) else [one.target]
                yield from map(ast.unparse, targets)


def test_functions_and_constants_are_documented() -> None:
    constants = {*documented_constants(), "__version__"}
    kinds = (type, types.ModuleType, types.FunctionType)
    assert [
        name
        for name, value in PUBLIC.items()
        if not (inspect.getdoc(value) if isinstance(value, kinds) else name in constants)
    ] == []


def verbs() -> Iterator[tuple[str, Any]]:
    """Yields public functions, and methods of public classes, that describe their arguments."""
    for name, value in PUBLIC.items():
        members = vars(value).items() if value in CLASSES else [("", value)]
        for part, it in members:
            if part[:1] != "_" and inspect.isfunction(it) and "Args:" in (it.__doc__ or ""):
                yield f"{name}.{part}".rstrip("."), it


def test_every_option_is_documented() -> None:
    found = dict(verbs())
    assert len(found) > 50
    for name, verb in found.items():
        text = inspect.getdoc(verb) or ""
        if "also for other options." in text:  # the named verb documents them
            continue
        for option in {*inspect.signature(verb).parameters} - {"self"}:
            assert re.search(rf"^  (?:\S+, )*\*?{option}(?:, \S+)*: ", text, re.M), (name, option)
