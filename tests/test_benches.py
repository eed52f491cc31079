"""Benchmarks import from treepack only names that are there; most are not run by tests."""

from __future__ import annotations

import ast
import importlib
import json
import pickle
from pathlib import Path

import pytest

BENCHES = Path(__file__).parent.parent / "benches"


@pytest.mark.parametrize("path", sorted(BENCHES.glob("*.py")), ids=lambda path: path.stem)
def test_names_of_treepack_are_there(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name.split(".")[0] == "treepack":
                    importlib.import_module(name.name)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "treepack":
            module = importlib.import_module(node.module or "")
            for name in node.names:
                if not hasattr(module, name.name):  # a module of a package is imported first
                    importlib.import_module(f"{node.module}.{name.name}")


def test_settings_of_peers_differ_from_their_defaults() -> None:
    if pickle.DEFAULT_PROTOCOL < 5:
        results = json.loads((BENCHES / "results" / "results.json").read_text())
        assert "protocol 5" in results["settings"]["pickle"]
