"""A folder with files to run commands on."""

from __future__ import annotations

from pathlib import Path

import flax.serialization
import jax
import jax.numpy as jnp
import pytest

import treepack.__main__
from commands import TREE


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    treepack.save(
        "model",
        {**TREE, "key": jax.random.key(1), "list": [jnp.ones(2), (1, "x")]},
        metadata={"epoch": 3},
    )
    Path("flax").write_bytes(flax.serialization.to_bytes(TREE))
    return tmp_path
