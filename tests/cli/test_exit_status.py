"""Commands agree on whether a file is damaged, whatever its form."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

import tiers
from hostile.uses import command
from promises.conditions import CONDITIONS, largest
from promises.forms import FORMS

# Integers, so that each form holds them.
TREE = {"a": {"leaf": np.arange(5), "w": np.ones((40, 50), np.float32)}, "z": np.arange(7)}

DAMAGE = ("nothing", "flipped bit", "cut", "zeroed tail", "device in it")


def cut_by_a_byte(path: Path) -> None:
    file = largest(path)
    file.write_bytes(file.read_bytes()[:-1])


@pytest.mark.parametrize("kind", [*DAMAGE, "cut by a byte", "empty", "text"])
@pytest.mark.parametrize("name", FORMS)
def test_damage_is_the_status_1_of_all_commands(tmp_path: Path, name: str, kind: str) -> None:
    form = FORMS[name]
    for seed in range(tiers.either(1, 2, nightly=5)):
        path = tmp_path / str(seed) / f"folder{form.suffix}"
        path.parent.mkdir()
        form.write(path, TREE)
        entry = form.entry(path)
        again = random.Random(seed)
        if kind == "cut by a byte":
            cut_by_a_byte(entry)
        elif kind in ("empty", "text") and entry.is_file():
            entry.write_bytes(b"" if kind == "empty" else b"What is no checkpoint at all.\n" * 9)
        elif (prepare := CONDITIONS.get(kind, CONDITIONS["nothing"]).prepare) is not None:
            prepare(entry, again)
        found, *said = command("verify", str(entry))
        salvaged, *told = command("salvage", str(entry), str(path.parent / "rest.treepack"))
        assert salvaged == found, (said, told)
        for args in (["ls"], ["info"], ["convert"]):
            target = [str(path.parent / "new.treepack")] if args == ["convert"] else []
            status, *told = command(*args, str(entry), *target)
            assert status in (0, found), (args, said, told)
