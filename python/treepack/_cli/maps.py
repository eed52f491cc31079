"""Files in another layout: `--map` of commands."""

from __future__ import annotations

import difflib
import importlib.util
from pathlib import Path
from typing import Annotated, Any

import typer

MAP = Annotated[
    str | None,
    typer.Option(
        "--map",
        metavar="FILE.py:NAME",
        help="Read FILE by the treepack.Mapping NAME of a Python file, such as llama.py:llama.",
    ),
]


def named(given: str) -> Any:
    """Returns the mapping that `--map` names, or its rules.

    Raises:
      ValueError: If the option has another form, or the Python file lacks the name.
      FileNotFoundError: If there is no such Python file.
    """
    path, _, name = given.rpartition(":")
    if not path or not name.isidentifier():
        raise ValueError(
            f"--map takes a Python file and a name in it, as llama.py:llama, got {given!r}"
        )
    if not Path(path).is_file():
        raise FileNotFoundError(f"--map: there is no file {path!r}")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"--map: {path!r} is not a Python file: its name ends with .py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    names: dict[str, Any] = vars(module)
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        there = [each for each in names if not each.startswith("_")]
        hint = f"is it {near[0]!r}?" if near else f"it has {', '.join(there) or 'no names'}"
        raise ValueError(f"--map: {path} has no {name}: {hint}")
    return names[name]
