"""Formats and features can be taken out: their folder, and a few lines elsewhere."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest

import tiers
import treepack

PACKAGE = Path(treepack.__file__).parent
TESTS = Path(__file__).parents[1]
FORMATS = PACKAGE / "_src" / "formats"
FOLDERS = sorted(path.parent.name for path in FORMATS.glob("*/__init__.py"))

# The forms of a folder's format in the promises, if they are called otherwise.
WORDS = {"safetensors": "safetensors or repository"}

# What other modules say of libraries, not of the formats that folders read.
OTHERS = {
    "_src/elsewhere.py": "hints at names that users of Orbax try",
    "_src/interop/libraries.py": "the libraries whose types are read by name",
    "_src/interop/msgpack.py": "a code of Orbax in flax's format",
    "_src/leaves/references.py": "references in flax's format, as Orbax and T5X write them",
    "checkpoints/__init__.py": "parameters and constants of flax's API",
    "checkpoints/_names.py": "unfinished steps of Orbax's managers, which treepack.orbax fills",
    "checkpoints/_orbax.py": "checkpointers that programs pass",
    "checkpoints/_restoring.py": "the same",
    "orbax.py": "the handler for Orbax's managers, which writes files of treepack",
    "orbax_v1.py": "the same for its newer API",
}


def words_of(tree: ast.Module) -> set[str]:
    """Returns the names, and the texts other than docstrings, of a module."""
    bodies = [node.body for node in ast.walk(tree) if isinstance(getattr(node, "body", None), list)]
    texts = {id(it.value) for body in bodies for it in body if isinstance(it, ast.Expr)}
    found = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts
    }
    for node in ast.walk(tree):
        for field in ("id", "attr", "name", "arg", "module"):
            found.add(str(getattr(node, field, "")))
    return found


def test_nobody_else_names_a_format() -> None:
    names = re.compile("|".join(FOLDERS), re.IGNORECASE)
    naming = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if FORMATS not in path.parents
        if any(map(names.search, words_of(ast.parse(path.read_text()))))
    }
    assert naming == {*OTHERS}


def test_a_format_may_be_small() -> None:
    files = [*(FORMATS / "npy").rglob("*.py")]
    assert sum(len(path.read_text().splitlines()) for path in files) <= 120


class Feature(NamedTuple):
    """A feature that can be taken out.

    Attributes:
      paths: Its modules and folders.
      lines: The lines elsewhere, by module, and those in their place.
      words: The forms, verbs and sources of the promises that need it.
    """

    paths: tuple[str, ...]
    lines: Mapping[str, Mapping[str, str]] = MappingProxyType({})
    words: str = ""


_PUBLIC = "__init__.py"
_STORES = "_src/storage/stores.py"
_OPENED = "    return objects.opened(url) or filesystems.opened(url)\n"
_OPENED_ALONE = (
    "    if found := objects.opened(url):\n        return found\n    raise ValueError(url)\n"
)
FEATURES = {
    "_cli": Feature(("_cli", "__main__.py")),
    "orbax": Feature(("orbax.py", "orbax_v1.py")),
    "orbax_v1": Feature(("orbax_v1.py",)),
    "checkpoints": Feature(
        ("checkpoints",),
        {
            _PUBLIC: {
                "from treepack import checkpoints, errors": "from treepack import errors",
                '    "checkpoints",\n': "",
                "in (serialization, checkpoints)": "in (serialization,)",
            }
        },
    ),
    "series": Feature(
        ("_src/series",),
        {
            _PUBLIC: {
                "from treepack._src.series import Keep, Series\n": "",
                **{f'    "{name}",\n': "" for name in ("Keep", "Series")},
            }
        },
        "step or version or Series or Subscriber or link",
    ),
    "publishing": Feature(
        ("_src/publishing",),
        {
            _PUBLIC: {
                "from treepack._src.publishing import Publisher, Subscriber\n": "",
                **{f'    "{name}",\n': "" for name in ("Publisher", "Subscriber")},
            }
        },
        "version or Subscriber",
    ),
    "obstore": Feature(
        ("_src/storage/objects.py",),
        {_STORES: {"filesystems, objects": "filesystems", "objects.opened(url) or ": ""}},
    ),
    "fsspec": Feature(
        ("_src/storage/filesystems.py",),
        {_STORES: {"filesystems, objects": "objects", _OPENED: _OPENED_ALONE}},
        "memory",
    ),
}


def copied(to: Path, *without: str, feature: Feature | None = None) -> dict[str, str]:
    """Copies the package without some folders of formats, or without a feature.

    Returns the environment of programs that use the copy.
    """
    made = shutil.copytree(
        PACKAGE, to / "treepack", ignore=shutil.ignore_patterns("__pycache__", "*.pyi")
    )
    taken = [f"_src/formats/{name}" for name in without]
    for name in taken if feature is None else feature.paths:
        shutil.rmtree(made / name) if (made / name).is_dir() else (made / name).unlink()
    for name, lines in {} if feature is None else feature.lines.items():
        text = (made / name).read_text()
        for old, new in lines.items():
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        (made / name).write_text(text)
    return {**os.environ, "PYTHONPATH": str(to)}


PROGRAM = """
import numpy as np, treepack
from treepack._cli import app
from treepack._src import formats
assert formats.known() == ()
treepack.save("model.treepack", {"w": np.ones(3), "step": 2}, metadata={"step": 2})
treepack.serialization.save_to_file({"w": np.ones(3)}, "flax.msgpack")
for path in ("model.treepack", "flax.msgpack"):
    assert treepack.load(path)["w"].sum() == 3
    assert treepack.load(path, {"w": np.zeros(3)})["w"].sum() == 3
    assert treepack.is_checkpoint(path)
    with treepack.open(path) as file:
        assert file["w"][1] == 1
assert treepack.verify("model.treepack").ok
np.savez("arrays.npz", w=np.ones(3))
for options in ({"format": "safetensors"}, {"max_shard_size": 10}):
    try:
        treepack.save("other", {"w": np.ones(3)}, **options)
    except ValueError as error:
        print(error)
try:
    treepack.load("arrays.npz")
except treepack.DecodeError as error:
    print(error)
for command in ("ls model.treepack", "convert model.treepack plain.msgpack", "ls plain.msgpack"):
    app(command.split(), standalone_mode=False)
"""


def test_without_any_of_them(tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=copied(tmp_path, *FOLDERS),
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    format, option, other, *lines = found.stdout.splitlines()
    assert format.startswith("format must be None, got 'safetensors'")
    assert option == "max_shard_size= applies only to other formats: leave it out"
    assert "npz archive" in other
    assert sum("float64[3]" in line for line in lines) == 2


def naming(folder: str, files: list[Path]) -> list[str]:
    """Returns the tests in files that name a format."""
    return [
        f"--deselect={path.relative_to(TESTS.parent)}::{it.name}"
        for path in files
        for it in ast.parse(path.read_text()).body
        if isinstance(it, ast.FunctionDef) and re.search(folder, ast.unparse(it), re.IGNORECASE)
    ]


def passes(env: dict[str, str], *args: object) -> None:
    """Checks that tests pass with a copy of the package."""
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, args)],
        env=env,
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stdout[-5000:]


@pytest.mark.campaign
@pytest.mark.parametrize("folder", tiers.either([], ["safetensors"], nightly=FOLDERS))
def test_all_else_works_without_one(folder: str, tmp_path: Path) -> None:
    """Runs the promises of other forms, and tests of flax's format and of commands."""
    files = [TESTS / "dropin" / "test_semantics_wire.py", TESTS / "cli" / "test_inspecting.py"]
    words = ("-k", f"not ({WORDS.get(folder, folder)})")
    passes(copied(tmp_path, folder), TESTS / "promises", *files, *naming(folder, files), *words)


USES_ALL = """
import importlib, pkgutil, numpy as np, treepack
for module in pkgutil.walk_packages(treepack.__path__, "treepack."):
    if module.name not in ("treepack.orbax", "treepack.orbax_v1", "treepack.__main__"):
        importlib.import_module(module.name)
assert all(hasattr(treepack, name) for name in treepack.__all__)
treepack.save("model.treepack", {"w": np.ones(3)})
assert treepack.load("model.treepack")["w"].sum() == 3
"""


@pytest.mark.all_cases
@pytest.mark.parametrize("name", FEATURES)
def test_a_feature_takes_five_lines_elsewhere(name: str, tmp_path: Path) -> None:
    lines = [line for lines in FEATURES[name].lines.values() for line in lines]
    assert len(lines) <= 5
    assert all(line.count("\n") <= 1 for line in lines)
    env = copied(tmp_path, feature=FEATURES[name])
    found = subprocess.run([sys.executable, "-c", USES_ALL], env=env, cwd=tmp_path)
    assert found.returncode == 0


@pytest.mark.campaign
@pytest.mark.parametrize("name", tiers.either([], ["series"], nightly=[*FEATURES]))
def test_all_else_works_without_a_feature(name: str, tmp_path: Path) -> None:
    """Runs the promises without it, or without commands tests of patches and selections."""
    files = [TESTS / "dropin" / "test_semantics_wire.py"]
    if name == "_cli":
        files += [TESTS / "layouts" / "test_base.py", TESTS / "checkpoint" / "test_selection.py"]
    else:
        files += [TESTS / "promises", TESTS / "cli" / "test_inspecting.py"]
    words = FEATURES[name].words
    passes(
        copied(tmp_path, feature=FEATURES[name]),
        *files,
        *(["-k", f"not ({words})"] if words else []),
    )
