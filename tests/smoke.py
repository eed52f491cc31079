"""Uses every public name of an installed package once: `python tests/smoke.py`, without pytest.

Needs treepack[cli,export] and nothing else. `test_package.py` holds that every name is here.
"""

from __future__ import annotations

import dataclasses
import enum
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import treepack


@treepack.register_dataclass(serialized_name="smoke.Layer")
@dataclasses.dataclass
class Layer:
    w: Any
    act: str = dataclasses.field(default="relu", metadata={"static": True})


@treepack.register_namedtuple(serialized_name="smoke.Point")
class Point(NamedTuple):
    x: float


@treepack.register_auxdata(serialized_name="smoke.Mode")
class Mode(enum.Enum):
    TRAIN = 1


@treepack.register_function(serialized_name="smoke.twice")
def twice(x: float) -> float:
    return 2 * x


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass
class Node:
    value: Any

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        return (self.value,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: Any) -> Node:
        return cls(*children)


TREE = {
    "layer": Layer(jnp.arange(8.0).reshape(4, 2)),
    "point": Point(1.5),
    "node": Node(2),
    "key": jax.random.key(0),
    "bfloat16": jnp.ones(3, jnp.bfloat16),
    "partial": jax.tree_util.Partial(twice, 2.0),
}


def types() -> None:
    treepack.register_node(Node, serialized_name="smoke.Node")
    treepack.register_pytree_node_serialization(Node, serialized_name="smoke.Node")
    treepack.register_tree([Point(1.0)])
    assert treepack.registered_types()["smoke.Point"] is Point


def check(found: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(TREE)
    assert jax.tree.all(jax.tree.map(jnp.array_equal, found, TREE))
    assert found["partial"]() == 4


def in_memory() -> None:
    data = treepack.dumps(TREE)
    check(treepack.loads(data))
    check(treepack.loads(data, TREE))
    memory = bytearray(treepack.packed_size(TREE))
    written = treepack.pack_into(TREE, memory)
    check(treepack.loads(memory[:written], TREE))
    check(treepack.loads(b"".join(treepack.buffers(TREE)), TREE))
    patch = treepack.buffers(TREE, base=TREE)
    assert treepack.apply_delta(b"".join(patch), memory) == written
    held = {"w": np.arange(100)}
    try:
        treepack.loads(treepack.dumps({"w": np.arange(100) + 1}, base=held), base={})
    except treepack.BaseMismatchError as mismatch:
        paths = mismatch.paths
    assert paths == ["w"]
    assert treepack.loads(treepack.dumps({Mode.TRAIN: 1})) == {Mode.TRAIN: 1}
    state = treepack.serialization.to_bytes({"w": np.ones(3)})
    assert treepack.serialization.from_bytes({"w": np.zeros(3)}, state)["w"].sum() == 3


def in_files(folder: Path) -> None:
    path = folder / "model.treepack"
    rules = {"a": ("layers/{l}", "m -> l m"), "b": ("w", "a b -> b a")}
    treepack.save(path, {"layers": [np.zeros(2), np.ones(2)], "w": np.zeros((2, 3))})
    made = treepack.load(path, {"a": np.ones((2, 2)), "b": np.ones((3, 2))}, mapping=rules)
    assert made["a"][1, 0] == 1
    treepack.save(folder / "model.safetensors", made, mapping=rules)
    mapping = treepack.Mapping({"a": ("layers.{l}", "m -> l m")})
    treepack.save(folder / "mapped.safetensors", made, mapping=mapping)
    assert treepack.load(folder / "mapped.safetensors", mapping=mapping)["a"].shape == (2, 2)
    assert treepack.load(folder / "model.safetensors")["layers"]["1"][0] == 1
    calls: list[int] = []
    progress: treepack.Progress = lambda done, total: calls.append(done)  # noqa: E731
    arrays: treepack.Arrays = "saved"
    strict: treepack.Strict = "exact"
    place: treepack.Location = path
    storage_options: treepack.StorageOptions = None
    writing: treepack.SaveOptions = {"metadata": {"step": 3}, "storage_options": storage_options}
    reading: treepack.LoadOptions = {"arrays": arrays}
    saving: treepack.Saving = treepack.save(place, TREE, background=True, **writing)
    saving.result()
    check(treepack.load(place, **reading))
    report: treepack.Report
    found, report = treepack.load(path, TREE, strict=strict, verify=True, return_report=True)
    check(found)
    assert "layer/w" in report.loaded
    assert treepack.is_checkpoint(path)
    assert treepack.abstract(path)["layer"].w.shape == (4, 2)
    assert treepack.read_metadata(path) == {"step": 3}
    checked: treepack.Verification = treepack.verify(path)
    assert treepack.diff(path, treepack.load(path)) == []
    digest: treepack.Digest = treepack.digest(TREE)
    check(treepack.load(path, expect=digest))
    assert treepack.digest(path) == digest
    assert checked.ok
    file: treepack.File
    with treepack.open(path) as file:
        tree: treepack.Tree = file["layer"]
        info: treepack.Info = tree.info()
        assert info.kind == "container"
        rows: treepack.LazyArray = tree["w"]
        np.testing.assert_array_equal(rows[1:3], [[2, 3], [4, 5]])
    treepack.save(folder / "model.treepack.gz", TREE, progress=progress)
    assert calls
    check(treepack.load(folder / "model.treepack.gz"))
    treepack.save(folder / "shards", TREE, sharded=True, step=1)
    check(treepack.load(folder / "shards"))
    treepack.write_stream(folder / "stream", [("a/b", np.ones(2))])
    assert [key for key, _ in treepack.read_stream(folder / "stream")] == [("a", "b")]
    treepack.checkpoints.save_checkpoint(folder / "series", TREE, step=7)
    check(treepack.checkpoints.restore_checkpoint(folder / "series", TREE))
    run = treepack.Series(folder / "run", keep=treepack.Keep(last=1))
    run.save(7, TREE, metrics={"loss": 0.5}, background=True)
    resumed = run.resume(TREE)
    assert resumed is not None
    check(resumed[1])
    treepack.Publisher(folder / "policy").push(TREE, version=1)
    check(treepack.Subscriber(folder / "policy").latest()[1])


def functions(folder: Path) -> None:
    params = {"w": jnp.full(3, 2.0)}
    apply = jax.export.export(jax.jit(lambda params, x: params["w"] * x))(params, params["w"])
    treepack.save_exported(folder / "model.exported", apply, params)
    loaded: treepack.LoadedExported = treepack.load_exported(folder / "model.exported")
    assert loaded.exported.call(loaded.params, params["w"]).sum() == 12


def failures(folder: Path) -> None:
    """Every exception can be caught by its public name, and those of damage are raised."""
    for name in (
        treepack.DecodeError,
        treepack.GzipCorruptionError,
        treepack.GzipError,
        treepack.GzipTruncatedError,
        treepack.PlaceholderError,
        treepack.InvalidCheckpointError,
        treepack.MissingPathError,
        treepack.MultiprocessArrayError,
        treepack.NewerVersionError,
        treepack.NoIndexError,
        treepack.NoManifestError,
        treepack.BusyError,
        treepack.DamagedFileError,
        treepack.OthersError,
        treepack.UnsummedError,
        treepack.StateDictKeyError,
        treepack.UnregisteredTypeError,
        treepack.UnserializableLeafError,
    ):
        assert issubclass(name, Exception), name
        assert getattr(treepack.errors, name.__name__) is name
    assert issubclass(treepack.CorruptionError, treepack.TreepackError)
    path = folder / "damaged.treepack"
    treepack.save(path, {"w": np.ones(1000)})
    data = bytearray(path.read_bytes())
    data[4000] ^= 1
    path.write_bytes(data)
    try:
        treepack.load(path, verify=True)
    except treepack.CorruptionError as damage:
        text = str(damage)
    assert "damaged.treepack" in text
    try:
        treepack.loads(treepack.dumps({"w": np.ones(3)}), {"w": np.ones(4)}, strict=True)
    except treepack.MismatchError as differences:
        mismatches: list[treepack.Mismatch] = differences.mismatches
    assert [found.path for found in mismatches] == ["w"]


def commands(folder: Path) -> None:
    """The command line: as a module, and as the script that the installation has made."""
    script = Path(sysconfig.get_path("scripts")) / "treepack"
    for command in ([sys.executable, "-m", "treepack"], [str(script)]):
        found = subprocess.check_output([*command, "ls", folder / "model.treepack"], text=True)
        assert "bfloat16[3]" in found, found


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        types()
        in_memory()
        in_files(folder)
        functions(folder)
        failures(folder)
        commands(folder)
    print(f"treepack {treepack.__version__} of {treepack.__file__}: every name works")


if __name__ == "__main__":
    main()
