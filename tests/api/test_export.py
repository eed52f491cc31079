"""Functions that take and return registered types, exported and called in another process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import flax.struct
import jax
import numpy as np
import pytest

import node_types
import treepack
from node_types import NODES

CALL = """
import sys, pathlib
import jax, numpy as np
import node_types, treepack  # only the definitions of the types

folder = pathlib.Path(sys.argv[1])
for path in sorted(folder.glob("*.bin")):
    exported = jax.export.deserialize(bytearray(path.read_bytes()))
    argument = treepack.loads(path.with_suffix(".args").read_bytes())
    result = exported.call(argument)
    expected = jax.tree_util.tree_map(lambda x: 2 * x, argument)
    same = jax.tree_util.tree_structure(result) == jax.tree_util.tree_structure(expected)
    assert same, (path, result, expected)
    leaves = zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True)
    for found, wanted in leaves:
        np.testing.assert_array_equal(found, wanted)
    print(path.stem)
"""


def run(program: str, *arguments: str) -> list[str]:
    support = Path(node_types.__file__).parent
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=support)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def double(tree: Any) -> Any:
    return jax.tree_util.tree_map(lambda x: 2 * x, tree)


@pytest.mark.campaign
def test_every_kind_is_called_in_another_process(tmp_path: Path) -> None:
    for name, node in NODES.items():
        exported = jax.export.export(jax.jit(double))(node)
        (tmp_path / f"{name}.bin").write_bytes(exported.serialize())
        (tmp_path / f"{name}.args").write_bytes(treepack.dumps(node))
    assert run(CALL, str(tmp_path)) == sorted(NODES)


@pytest.mark.parametrize("name", NODES)
def test_structures_survive_in_the_same_process(name: str) -> None:
    node = NODES[name]
    exported = jax.export.export(jax.jit(double))(node)
    again = jax.export.deserialize(exported.serialize())
    assert again.in_tree == exported.in_tree
    assert again.out_tree == jax.tree_util.tree_structure(node)


SAVED = """
import sys
import numpy as np
import node_types, treepack

found = treepack.load_exported(sys.argv[1])
assert repr(found) == "<treepack.LoadedExported <lambda>, params: dict>"
exported, params = found
np.testing.assert_array_equal(found.call(params, np.ones(3, np.float32)), [0, 1, 2])
assert type(params["layer"]) is node_types.Struct and not params["layer"].w.flags.writeable
np.testing.assert_array_equal(exported.call(params, np.ones(3, np.float32)), [0, 1, 2])
print("done")
"""


@pytest.mark.campaign
def test_a_function_with_its_parameters(tmp_path: Path) -> None:
    params = {"layer": NODES["struct"]}
    apply = jax.jit(lambda params, x: params["layer"].w * x)
    exported = jax.export.export(apply)(params, np.ones(3, np.float32))
    path = tmp_path / "models" / "model.treepack"
    treepack.save_exported(path, exported, params, metadata={"step": 3})
    assert run(SAVED, str(path)) == ["done"]
    assert treepack.read_metadata(path.read_bytes()) == {"step": 3}


def test_parameters_with_placeholders(tmp_path: Path) -> None:
    exported = jax.export.export(jax.jit(lambda x: 2 * x))(1.0)
    double = jax.tree_util.Partial(lambda x: 2 * x)
    path = tmp_path / "model.treepack"
    with pytest.raises(TypeError, match="register_function"):
        treepack.save_exported(path, exported, {"f": double}, static="error")
    treepack.save_exported(path, exported, {"f": double})
    with pytest.raises(treepack.TreepackError, match="at params/f/func"):
        treepack.load_exported(path)
    for static in ({"f/func": double.func}, {"f": double}):
        assert treepack.load_exported(path, static=static).params["f"](3) == 6


def unregistered_types() -> list[Any]:
    """Returns nodes of types that were made just now, as other libraries make theirs."""

    class State(NamedTuple):
        mu: Any

    @flax.struct.dataclass
    class Struct:
        w: Any

    class Module(eqx.Module):
        w: Any

    class Frozen(dict[str, Any]):
        pass

    jax.tree_util.register_pytree_node(
        Frozen, lambda it: ([*it.values()], ()), lambda _, it: Frozen(w=it[0])
    )
    return [(State(1.0), 2.0), {"a": Struct(1.0)}, Module(1.0), Frozen(w=1.0)]


@pytest.mark.filterwarnings("ignore:.*unregistered_types.<locals>")
def test_unknown_types_of_a_function_are_registered_as_the_error_says(tmp_path: Path) -> None:
    path = tmp_path / "model.treepack"
    for number, tree in enumerate(unregistered_types()):
        exported = jax.export.export(jax.jit(double))(tree)
        with pytest.raises(treepack.TreepackError, match=r"treepack\.register_tree"):
            treepack.save_exported(path, exported, tree)
        assert not path.exists()
        names = treepack.register_tree(tree, prefix=f"exported_{number}")
        treepack.save_exported(path, exported, tree)
        loaded = treepack.load_exported(path)
        assert type(loaded.exported.call(loaded.params)) is type(tree)
        path.unlink()
        # As in a program that has not registered the type.
        (name,) = (name.encode() for name in names)
        renamed = bytes(exported.serialize()).replace(name, b"X" * len(name))
        data = treepack.dumps({"exported": renamed, "params": None})
        with pytest.raises(treepack.DecodeError, match=r"treepack\.register_tree .*XXX"):
            treepack.load_exported(data)


def test_keys_that_jax_cannot_save_are_an_error_with_a_remedy(tmp_path: Path) -> None:
    exported = jax.export.export(jax.jit(double))({1: 1.0})
    with pytest.raises(
        treepack.TreepackError, match=r"string keys: convert .*(Found key 1|non-string)"
    ):
        treepack.save_exported(tmp_path / "model.treepack", exported)


def test_an_expired_function_is_an_error_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As jax 0.12 raises it; older versions warn."""
    path = tmp_path / "model.treepack"
    treepack.save_exported(path, jax.export.export(jax.jit(double))(1.0), {"w": 1})

    def refuse(_: bytearray) -> None:
        raise ValueError("older than the 6-month backward-compatibility window")

    monkeypatch.setattr(jax.export, "deserialize", refuse)
    with pytest.raises(treepack.DecodeError, match="export the function again"):
        treepack.load_exported(path)
    assert treepack.load(path, select="params") == {"params": {"w": 1}}


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tree"
    path.write_bytes(treepack.dumps({"a": 1}))
    with pytest.raises(treepack.DecodeError, match="not written by save_exported"):
        treepack.load_exported(path)
    for function in (2_000_000_000, b"", b"junk" * 100, "text"):
        path.write_bytes(treepack.dumps({"exported": function, "params": None}))
        with pytest.raises(treepack.DecodeError, match="the exported function"):
            treepack.load_exported(path)
    path.write_bytes(treepack.serialization.to_bytes({"a": 1}))
    with pytest.raises(treepack.DecodeError, match="not written by save_exported"):
        treepack.load_exported(path)
