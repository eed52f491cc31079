"""Files in another layout: `--map` of commands."""

from __future__ import annotations

import difflib
import importlib.util
import re
from pathlib import Path
from typing import Annotated, Any

import typer

import treepack

MAP = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        metavar="NEW=OLD[=AXES]",
        help="Read FILE in another layout: other names, such as new/{i}/kernel=old/{i}/w, or axes, "
        "such as 'w=layers.{l}.w=o i -> l i o'. May be repeated. Or all rules: FILE.py:NAME, a "
        "treepack.Mapping in a Python file.",
    ),
]


def rules_of(given: list[str]) -> Any:
    if len(given) == 1 and "=" not in given[0]:
        return _named(given[0])
    rules: dict[str, Any] = {}
    for text in given:
        tree, _, file = text.partition("=")
        path, _, axes = file.partition("=")
        tree, path, axes = tree.strip(), path.strip(), axes.strip()
        if len(given) > 1 and "=" not in text and ".py:" in text:
            raise ValueError(
                f"--map takes rules, or one name in a file, got both: pass {text} alone"
            )
        if not (tree and path):
            raise ValueError(f"--map takes the new and the old path, as new=old, got {text!r}")
        if tree in rules:
            raise ValueError(f"--map has {tree!r} twice: leave out one of the rules")
        if not axes:
            _check_indices(tree, path)
        rules[tree] = (path, axes) if axes else path
    return rules


def _check_indices(tree: str, path: str) -> None:
    ours, theirs = ([*dict.fromkeys(re.findall(r"{(\w+)", text))] for text in (tree, path))
    if {*ours} == {*theirs}:
        return
    here, there = (" ".join([*own, "o i"]) for own in (ours, theirs))
    cure = f"add axes, as in {f'{tree}={path}={here} -> {there}'!r}"
    if {*ours} - {*theirs} and {*theirs} - {*ours}:
        cure = "give an index the same name in both"
    raise ValueError(
        f"--map: without axes, {tree!r} and {path!r} must have the same indices: {cure}"
    )


_RULES = (treepack.Mapping, dict)


def _named(given: str) -> Any:
    path, _, name = given.rpartition(":")
    if not path or not name.isidentifier():
        raise ValueError(
            "--map takes a Python file and a name in it, as llama.py:llama, or a rule, as NEW=OLD, "
            f"got {given!r}"
        )
    if not Path(path).is_file():
        raise FileNotFoundError(f"--map: there is no file {path!r}; a rule is NEW=OLD")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"--map: {path!r} is not a Python file: its name ends with .py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ImportError as error:
        raise ImportError(f"--map: {path}: {error}") from error
    names: dict[str, Any] = vars(module)
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        public = {each: value for each, value in names.items() if not each.startswith("_")}
        there = [each for each, value in public.items() if isinstance(value, _RULES)]
        hint = f"is it {near[0]!r}?" if near else f"it has {', '.join(there) or 'no rules'}"
        raise ValueError(f"--map: {path} has no name {name!r}: {hint}")
    if not isinstance(names[name], _RULES):
        raise ValueError(
            f"--map takes a treepack.Mapping or a dict of rules; {name} of {path} is of the type "
            f"{type(names[name]).__name__}"
        )
    return names[name]
