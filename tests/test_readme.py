"""The examples in the README are run, and what it says of the API is true."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import numpy as np
import pytest
from eformer.pytree import serialization as eformer
from flax import serialization as flax
from typer.testing import CliRunner

import treepack
from treepack._cli import app

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
DOCS = "".join(
    (ROOT / "docs" / name).read_text() for name in ("format.md", "sharded.md", "orbax.md")
)


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", README + DOCS, re.S))
def test_example(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})
    if "print(error)" in code:
        told = code[code.index("print(error)") :].splitlines()[1:]
        assert capsys.readouterr().out.splitlines() == [line.strip()[2:] for line in told]


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    tree = {"params": {"w": np.ones((64, 64))}, "step": 3}
    treepack.save("model.treepack", tree)
    treepack.save("other.treepack", tree)
    Path("model.msgpack").write_bytes(flax.to_bytes(tree))
    Path("cut.treepack").write_bytes(Path("model.treepack").read_bytes()[:-100])
    commands = re.findall(r"^treepack (.*?)(?: +#.*)?$", README, re.M)
    assert len(commands) >= 8
    for command in commands:
        done = CliRunner().invoke(app, command.split())
        assert done.exit_code == ("salvage" in command), (command, done.output, done.exception)


def test_every_make_target_that_is_named_exists():
    makefile = (ROOT / "Makefile").read_text()
    texts = README + (ROOT / "CONTRIBUTING.md").read_text()
    for target in set(re.findall(r"`make ([a-z-]+)`", texts)):
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_every_name_of_both_originals_is_there_with_its_signature():
    for original in (flax, eformer):
        for name, value in vars(original).items():
            public = not name.startswith("_") and getattr(value, "__module__", "") in (
                original.__name__,
            )
            if not (public and inspect.isfunction(value)):
                continue
            for module in (treepack.serialization,):
                ours = list(inspect.signature(getattr(module, name)).parameters.values())
                theirs = list(inspect.signature(value).parameters.values())
                positional = [p for p in ours if p.kind is not inspect.Parameter.KEYWORD_ONLY]
                assert [(p.name, p.default) for p in positional] == [
                    (p.name, p.default) for p in theirs
                ], name
    assert treepack.serialization.MAX_CHUNK_SIZE == flax.MAX_CHUNK_SIZE == eformer.MAX_CHUNK_SIZE
