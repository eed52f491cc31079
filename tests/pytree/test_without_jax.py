"""Trees of NumPy's arrays need no jax: it is not imported, and may be absent."""

from __future__ import annotations

import subprocess
import sys

import pytest

NUMPY_ONLY = """
import dataclasses, sys
import numpy as np, ml_dtypes
import treepack
from treepack import serialization

tree = {
    "w": np.arange(6, dtype=ml_dtypes.bfloat16).reshape(2, 3),
    "l": [np.zeros(3), (1, "text"), None],
    5: {"b": b"bytes", "s": np.float32(2)},
}
data = treepack.dumps(tree, metadata={"step": 3})
assert repr(treepack.loads(data)) == repr(tree)
assert repr(treepack.loads(data, tree)) == repr(tree)
assert treepack.read_metadata(data) == {"step": 3}
encoded = serialization.to_bytes(tree)
assert repr(serialization.from_bytes(tree, encoded)) == repr(tree)
serialization.msgpack_restore(encoded)
buffer = bytearray(treepack.packed_size(tree, described=True))
treepack.pack_into(tree, buffer, described=True)
assert repr(treepack.loads(buffer)) == repr(tree)
path = sys.argv[1]
treepack.save(path, tree)
assert repr(treepack.load(path)) == repr(tree)
assert serialization.validate_serializable(tree) == (True, [])

@dataclasses.dataclass
class Point:
    x: object

point = serialization.from_bytes(Point(np.zeros(2)), serialization.to_bytes(Point(np.ones(2))))
assert point.x.sum() == 2
try:
    serialization.from_bytes({"w": np.zeros(3)}, encoded)
except treepack.MismatchError as error:
    assert "w: expected float64[3], found bfloat16[2,3]" in str(error)
else:
    raise AssertionError
try:
    treepack.dumps({"a": object()})
except treepack.UnserializableLeafError:
    pass
else:
    raise AssertionError
"""

# Importing jax fails, as where it is not installed.
ABSENT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("jax", "jaxlib", "flax"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""


def run(code: str, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_jax_is_not_imported(tmp_path) -> None:
    check = "assert not {'jax', 'jaxlib', 'flax'} & sys.modules.keys(), sys.modules.keys()"
    run(f"{NUMPY_ONLY}\n{check}\n", str(tmp_path / "tree"))


def test_without_jax(tmp_path) -> None:
    run(ABSENT + NUMPY_ONLY, str(tmp_path / "tree"))


@pytest.mark.campaign
def test_arrays_of_jax_where_there_is_none(tmp_path) -> None:
    path = str(tmp_path / "tree")
    run("import sys, jax.numpy as jnp, treepack\ntreepack.save(sys.argv[1], [jnp.ones(3)])", path)
    code = ABSENT + (
        "import treepack\n"
        "assert treepack.load(sys.argv[1], arrays='numpy')[0].sum() == 3\n"
        "try:\n"
        "    treepack.load(sys.argv[1])\n"
        "except ImportError as error:\n"
        "    assert \"arrays='numpy'\" in str(error), error\n"
        "else:\n"
        "    raise AssertionError\n"
        "class Point: pass\n"
        "for work in (lambda: treepack.abstract(sys.argv[1]),\n"
        "             lambda: treepack.register_dataclass(Point, ['x'], [])):\n"
        "    try:\n"
        "        work()\n"
        "    except ImportError as error:\n"
        "        assert 'jax is not installed' in str(error), error\n"
        "    else:\n"
        "        raise AssertionError\n"
    )
    run(code, path)


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
