"""Trees of NumPy's arrays need no jax: it is not imported, and may be absent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

# The program that a package without JAX is tried with.
PROGRAM = f"""
import sys
from pathlib import Path

sys.path.insert(0, {str(TESTS)!r})
import smoke_core
"""

# Importing jax fails, as where it is not installed, and so do the packages that need it.
ABSENT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("jax", "jaxlib", "flax", "orbax"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""


def run(code: str, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_jax_is_not_imported(tmp_path: Path) -> None:
    run(f"{PROGRAM}\nsmoke_core.works(Path(sys.argv[1]))", str(tmp_path))


def test_without_jax() -> None:
    run(f"{ABSENT}{PROGRAM}\nsmoke_core.main()")


@pytest.mark.campaign
def test_a_tree_that_was_saved_without_jax_has_its_types_with_it() -> None:
    run(
        "import numpy as np, treepack\n"
        "data = treepack.dumps([np.ones(3)])\n"
        "import jax\n"
        "assert isinstance(treepack.abstract(data)[0], jax.ShapeDtypeStruct)\n"
        "assert type(treepack.loads(data)[0]) is np.ndarray\n"
        "found = treepack.loads(data, [jax.ShapeDtypeStruct((3,), 'float32')], cast=True)[0]\n"
        "assert isinstance(found, jax.Array) and found.dtype == 'float32'\n"
    )
