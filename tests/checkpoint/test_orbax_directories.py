"""Directories of Orbax are checkpoints, without Orbax; its own restore is the oracle."""

from __future__ import annotations

import collections
import importlib.metadata
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import orbax.checkpoint as ocp
import orbax.checkpoint.experimental.v1 as ocp_v1
import pytest
from flax.training.train_state import TrainState
from jax.sharding import NamedSharding, PartitionSpec

import treepack
from commands import call, refused
from treepack import CorruptionError, DecodeError
from treepack._src.formats.orbax import item as storage
from treepack._src.formats.orbax import reading as reader
from treepack.orbax import load_aggregate

Moments = collections.namedtuple("Moments", "mu nu")
Empty = collections.namedtuple("Empty", "")

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


def rows(*axes: Any) -> NamedSharding:
    return NamedSharding(jax.make_mesh((4,), ("x",)), PartitionSpec(*axes))


def tree() -> dict[str, Any]:
    return {
        "p": {
            "rows": jax.device_put(jnp.arange(32.0).reshape(8, 4), rows("x")),
            "bf": jnp.arange(3, dtype=jnp.bfloat16),
            "f8": np.arange(5).astype(ml_dtypes.float8_e4m3fn),
            "dotted.name": np.arange(2),
            "a/b~c": np.arange(3),
        },
        "np": np.arange(3, dtype=np.int8),
        "complex": np.ones(2, np.complex64),
        "scalars": [7, 2.5, True],
        "none": None,
        "empty": ({}, [], ()),
        "moments": Moments(np.ones(2), None),
        "key": jax.random.key(3),
        "keys": jax.random.split(jax.random.key(1, impl="rbg"), 4),
        "zeros": jnp.zeros((4, 2)),
    }


# Version 0 has these as well.
MORE = {"text": "text", "c/d": "slash", "np scalar": np.float32(1.5), "nothing": Empty()}


def write_v0(path: Path, **options: bool) -> Path:
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**options)) as checkpointer:
        checkpointer.save(path, tree() | MORE)
    return path


def write_standard(path: Path) -> Path:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, tree())
    return path


def write_step(path: Path) -> Path:
    with ocp.CheckpointManager(path) as manager:
        items = {"state": ocp.args.StandardSave(tree()), "config": ocp.args.JsonSave({"a": 1})}
        manager.save(3, args=ocp.args.Composite(**items))
    return path / "3"


def write_v1(path: Path) -> Path:
    ocp_v1.save_pytree(path, tree())
    return path


def without_database(path: Path) -> Path:
    return write_v0(path, use_ocdbt=False)


def with_zarr3(path: Path) -> Path:
    return write_v0(path, use_zarr3=True)


def with_directories_of_zarr3(path: Path) -> Path:
    return write_v0(path, use_ocdbt=False, use_zarr3=True)


WRITERS = [
    *(write_v0, without_database, with_zarr3, with_directories_of_zarr3),
    *(write_standard, write_step, write_v1),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Any], Path]:
    """Returns the directory of a writer, which runs once."""
    folder, known = tmp_path_factory.mktemp("orbax"), dict[Any, Path]()

    def get(write: Any) -> Path:
        if write not in known:
            known[write] = write(folder / write.__name__)
        return known[write]

    return get


def item_of(path: Path) -> Path:
    return path if (path / "_METADATA").exists() else path / "state"


def restored(path: Path) -> Any:
    """Returns the tree as Orbax restores it without a template, with NumPy arrays."""
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        found = checkpointer.metadata(item_of(path)).item_metadata.tree

        def how(leaf: Any) -> Any:
            is_array = isinstance(leaf, ocp.metadata.ArrayMetadata) and not isinstance(
                leaf, ocp.metadata.ScalarMetadata
            )
            return ocp.RestoreArgs(restore_type=np.ndarray if is_array else None)

        args = ocp.args.PyTreeRestore(restore_args=jax.tree.map(how, found))
        return checkpointer.restore(item_of(path), args=args)


def equal(one: Any, other: Any) -> None:
    """Compares trees: containers, types, dtypes and values; keys of Orbax are their data."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key, child in one.items():
            equal(child, other[key])
    elif isinstance(one, (list, tuple)):
        assert type(one) is type(other)
        for child, theirs in zip(one, other, strict=True):
            equal(child, theirs)
    elif isinstance(one, jax.Array):
        is_key = jax.dtypes.issubdtype(other.dtype, jax.dtypes.prng_key)
        theirs = jax.random.key_data(other) if is_key else other
        np.testing.assert_array_equal(jax.random.key_data(one), theirs)
    elif isinstance(one, np.ndarray):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_array_equal(one, other)
    else:
        assert (type(one), one) == (type(other), other)


@pytest.mark.parametrize("write", WRITERS)
def test_values_are_as_orbax_restores_them(made: Any, write: Any) -> None:
    path = made(write)
    loaded = treepack.load(path)
    equal(loaded, restored(path))
    assert jax.random.key_impl(loaded["keys"]) == "rbg"
    assert treepack.is_checkpoint(path)
    with treepack.open(path) as file:
        np.testing.assert_array_equal(file["p/rows"][1:7:2, ::-1], loaded["p"]["rows"][1:7:2, ::-1])
        assert file["p/dotted.name"].shape == (2,)
        assert file["scalars/0"] == 7
        again = pickle.loads(pickle.dumps(file))
        equal(again.load(), loaded)
        part = file["p"].load(select="bf")
        equal(part, {"bf": loaded["p"]["bf"]})
    equal(treepack.load(path, select="scalars"), {"scalars": [7, 2.5, True]})
    shapes = treepack.abstract(path)
    assert (shapes["p"]["bf"].shape, shapes["p"]["bf"].dtype) == ((3,), jnp.bfloat16)
    found = treepack.verify(path)
    assert found.ok
    assert "p/rows" in found.unchecked


@pytest.mark.parametrize("write", [write_v0, write_v1, without_database])
def test_the_command_line(made: Any, write: Any, monkeypatch: Any, tmp_path: Path) -> None:
    path = str(made(write))
    monkeypatch.chdir(tmp_path)
    lines = [line.split()[:2] for line in call("ls", path, "--flat").splitlines()]
    assert ["p/rows", "float32[8,4]"] in lines
    assert "0 to 31" in call("show", path, "p/rows")
    call("get", path, "p", "part.treepack")
    loaded = treepack.load(path)
    equal(treepack.load("part.treepack"), loaded["p"])
    call("convert", path, "all.treepack")
    equal(treepack.load("all.treepack"), loaded)
    assert treepack.verify("all.treepack").ok
    assert "0 of" in call("diff", path, "all.treepack")


@pytest.mark.parametrize("write", [write_standard, write_v1, with_directories_of_zarr3])
@pytest.mark.parametrize("axes", [("x",), (None, "x"), ()])
def test_each_device_reads_its_box(
    made: Any, write: Any, axes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    boxes = []
    start = reader._Array.start
    monkeypatch.setattr(
        reader._Array, "start", lambda self, box: boxes.append(tuple(box)) or start(self, box)
    )
    place = rows(*axes)
    template = {"p": {"rows": jax.ShapeDtypeStruct((8, 4), jnp.float32, sharding=place)}}
    loaded = treepack.load(made(write), template)["p"]["rows"]
    assert loaded.sharding == place
    np.testing.assert_array_equal(loaded, np.arange(32.0).reshape(8, 4))
    needed = {
        tuple(range(*part.indices(n)) for part, n in zip(index, (8, 4), strict=True))
        for index in place.devices_indices_map((8, 4)).values()
    }
    assert sorted(boxes, key=str) == sorted(needed, key=str)  # each once


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_one_chunk_is_decoded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: Any
) -> None:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "a", {"w": jnp.arange(32.0).reshape(8, 4)})
    boxes = []
    start = reader._Array.start
    monkeypatch.setattr(
        reader._Array, "start", lambda self, box: boxes.append(tuple(box)) or start(self, box)
    )
    template = {"w": jax.ShapeDtypeStruct((8, 4), dtype, sharding=rows(None, "x"))}
    loaded = treepack.load(tmp_path / "a", template, cast=True)["w"]
    assert loaded.dtype == dtype
    np.testing.assert_array_equal(loaded, np.arange(32.0).reshape(8, 4))
    assert len(boxes) == 1


@pytest.mark.parametrize("write", [write_standard, write_v1, without_database])
def test_a_train_state(tmp_path: Path, write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Orbax writes `None` for the empty states of optax."""
    params = {"w": jax.device_put(jnp.arange(8.0), rows("x")), "b": jnp.ones(3, jnp.bfloat16)}
    state = TrainState.create(apply_fn=None, params=params, tx=optax.adamw(1e-3))
    state = state.apply_gradients(grads=params)
    monkeypatch.setitem(globals(), "tree", lambda: state)
    monkeypatch.setitem(globals(), "MORE", state.replace(step=0))
    if write is without_database:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False)) as checkpointer:
            checkpointer.save(tmp_path / "a", state)
    else:
        write(tmp_path / "a")
    template = TrainState.create(
        apply_fn=None, params=jax.tree.map(jnp.zeros_like, params), tx=state.tx
    )
    loaded = treepack.load(tmp_path / "a", template)
    jax.tree.map(np.testing.assert_array_equal, loaded, state)
    assert loaded.params["w"].sharding == params["w"].sharding
    assert type(loaded.opt_state[1]) is optax.EmptyState
    treepack.save(tmp_path / "b", loaded)
    assert not treepack.diff(tmp_path / "a", tmp_path / "b")
    assert not treepack.diff(tmp_path / "b", tmp_path / "a")
    renamed = {"model": {"w": jnp.zeros(8)}, "rest": optax.EmptyState()}
    found = treepack.load(
        tmp_path / "a",
        renamed,
        mapping={"model/w": "params/w", "rest": "opt_state/1"},
    )
    np.testing.assert_array_equal(found["model"]["w"], state.params["w"])
    assert found["rest"] == optax.EmptyState()


def test_layers_are_stacked(tmp_path: Path) -> None:
    layers = [{"w": np.arange(6.0, dtype=np.float32).reshape(2, 3) + at} for at in range(4)]
    ocp_v1.save_pytree(tmp_path / "a", {"layers": layers})
    template = {"w": jax.ShapeDtypeStruct((4, 3, 2), jnp.float32, sharding=rows("x"))}
    rules = {"w": ("layers/{l}/w", "a b -> l b a")}
    loaded = treepack.load(tmp_path / "a", template, mapping=rules)
    np.testing.assert_array_equal(loaded["w"], np.stack([it["w"].T for it in layers]))


@pytest.mark.skipif(
    importlib.metadata.version("orbax-checkpoint") == "0.12.0", reason="it cannot save one"
)
def test_a_leaf_alone(tmp_path: Path) -> None:
    ocp_v1.save_pytree(tmp_path / "a", jnp.arange(5))
    np.testing.assert_array_equal(treepack.load(tmp_path / "a"), np.arange(5))


def test_metadata(tmp_path: Path) -> None:
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        args = ocp.args.PyTreeSave({"w": jnp.ones(2)}, custom_metadata={"lr": 0.1})
        checkpointer.save(tmp_path / "a", args=args)
    assert treepack.read_metadata(tmp_path / "a") == {"lr": 0.1}


def test_metadata_beside_an_item(tmp_path: Path) -> None:
    state = {"w": jnp.ones(2)}
    with ocp.StandardCheckpointer() as standard:
        standard.save(tmp_path / "standard", state, custom_metadata={"a": 1})
    ocp.PyTreeCheckpointer().save(tmp_path / "tree", state, custom_metadata={"a": 1})
    ocp_v1.save(tmp_path / "v1", state, custom_metadata={"a": 1})
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        manager.save(0, args=ocp.args.StandardSave(state), custom_metadata={"a": 1})
        manager.save(1, args=ocp.args.StandardSave(state))
    for name in ("standard", "tree", "v1", "v1/state", "run/0", "run/0/default"):
        assert treepack.read_metadata(tmp_path / name) == {"a": 1}, name
        with treepack.open(tmp_path / name) as file:
            assert file.metadata == {"a": 1}
    assert treepack.read_metadata(tmp_path / "run/1") is None


def test_values_in_one_file(tmp_path: Path) -> None:
    """Older versions write values to one file, which refers to arrays beside it."""
    golden = Path(__file__).parents[1] / "golden" / "orbax" / "0.5.20"
    expected = load_aggregate(golden / "all_agg")
    found = treepack.load(golden / "all_agg")
    equal(found, expected)
    with pytest.raises(CorruptionError, match=r"at \w+: TensorStore cannot read the array"):
        treepack.load(golden / "mixed")
    shutil.copytree(golden / "all_agg", tmp_path / "a")
    data = treepack.serialization.to_bytes(expected | {"np": "PLACEHOLDER://np"})
    (tmp_path / "a" / "checkpoint").write_bytes(data)
    with pytest.raises(DecodeError, match="reference PLACEHOLDER://np in place of the value"):
        treepack.load(tmp_path / "a")
    (tmp_path / "a" / "checkpoint").unlink()
    with pytest.raises(CorruptionError, match="checkpoint, which has values, is missing"):
        treepack.load(tmp_path / "a")


# Refusals


def refuses(path: Path, message: str, kind: type[Exception] = DecodeError) -> None:
    verbs = [treepack.open, treepack.load, treepack.abstract]
    if kind is CorruptionError:
        assert re.search(message, str(treepack.verify(path).damage))
    else:
        verbs.append(treepack.verify)
    for verb in verbs:
        with pytest.raises(kind, match=message) as caught:
            verb(path)
        assert "Event loop" not in str(caught.value)
    assert not treepack.is_checkpoint(path)
    with pytest.raises(kind, match=message):
        treepack.load(path, {"w": np.zeros(2)})


def test_several_items_are_named(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "a") as manager:
        items = {name: ocp.args.StandardSave({"w": jnp.ones(2)}) for name in ("one", "two")}
        manager.save(3, args=ocp.args.Composite(**items))
        manager.save(4, args=ocp.args.Composite(config=ocp.args.JsonSave({"a": 1})))
    refuses(tmp_path / "a" / "3", "a directory of Orbax with one, two: pass the path of one of")
    refuses(tmp_path / "a", "a directory of Orbax with 3, 4: pass the path of one")
    refuses(tmp_path / "a" / "4", "Orbax without a tree: it contains config")
    with ocp.CheckpointManager(tmp_path / "b") as manager:
        manager.save(10, args=ocp.args.StandardSave({"w": jnp.ones(2)}))
    refuses(tmp_path / "b", "a directory of Orbax with the step 10: pass its path, .*10")
    assert "with one, two: pass" in refused("ls", str(tmp_path / "a" / "3"))


@pytest.mark.parametrize("write", [write_standard, write_step, write_v1])
def test_without_metadata(tmp_path: Path, write: Any) -> None:
    """The restore that the error names is one that Orbax has."""
    path = write(tmp_path / "a")
    item = item_of(path)
    (item / "_METADATA").unlink()
    refuses(path, rf"'{item}' has arrays of Orbax, but lacks _METADATA, .* with a template, as by")
    assert "lacks _METADATA" in refused("convert", str(path), str(tmp_path / "b.treepack"))
    if write is write_standard:
        with ocp.StandardCheckpointer() as checkpointer:
            found = checkpointer.restore(
                path, {"p": {"bf": jnp.zeros(3, jnp.bfloat16)}}, strict=False
            )
        np.testing.assert_array_equal(found["p"]["bf"], np.arange(3))


def test_missing_data(tmp_path: Path) -> None:
    path = write_standard(tmp_path / "a")
    shutil.copytree(path, tmp_path / "b")
    shutil.rmtree(path / "d")
    refuses(path, "at .*: NOT_FOUND", CorruptionError)
    (tmp_path / "b" / "manifest.ocdbt").unlink()
    refuses(tmp_path / "b", r"manifest\.ocdbt, which lists the arrays, is missing", CorruptionError)


def test_a_missing_chunk_is_an_error(tmp_path: Path) -> None:
    path = without_database(tmp_path / "a")
    (path / "p.rows" / "2.0").unlink()
    with treepack.open(path) as file:
        np.testing.assert_array_equal(file["p/rows"][:4], np.arange(16.0).reshape(4, 4))
        with pytest.raises(CorruptionError, match="at p/rows: TensorStore cannot read"):
            file["p/rows"][:]
    with pytest.raises(CorruptionError, match="at p/rows: TensorStore cannot read"):
        treepack.load(path)


@pytest.mark.parametrize("name", ["shape", "chunks"])
def test_arrays_beyond_memory(tmp_path: Path, name: str) -> None:
    """TensorStore would end the program."""
    path = without_database(tmp_path / "a")
    for array, error in (("p.rows", MemoryError), ("scalars.0", DecodeError)):
        file = path / array / ".zarray"
        found = json.loads(file.read_text())
        file.write_text(
            json.dumps(found | {"shape": [8, 4], "chunks": [4, 4], name: [1 << 20, 1 << 20]})
        )
        with pytest.raises(error):
            treepack.load(path, max_size=1 << 50)


def test_files_do_not_claim_far_more_than_they_can_hold(tmp_path: Path) -> None:
    """Missing chunks are read as one value, so that a few bytes would take any memory."""
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False)) as checkpointer:
        checkpointer.save(tmp_path / "a", {"w": np.arange(16.0)})
        checkpointer.save(tmp_path / "zeros", {"w": np.zeros(1 << 22)})
    assert not treepack.load(tmp_path / "zeros")["w"].any()
    file = tmp_path / "a" / "_METADATA"  # as older versions wrote it
    found = json.loads(file.read_text())
    file.write_text(json.dumps(found | {"store_array_data_equal_to_fill_value": False}))
    file = tmp_path / "a" / "w" / ".zarray"
    found = json.loads(file.read_text())
    for shape, chunks in ((16, 1 << 28), (1 << 28, 1 << 20)):
        file.write_text(json.dumps(found | {"shape": [shape], "chunks": [chunks]}))
        for read in (treepack.load, treepack.open, treepack.abstract, treepack.verify):
            with pytest.raises(treepack.TreepackError, match=r"missing.* max_size=2147483648"):
                read(tmp_path / "a")
    with treepack.open(tmp_path / "a", max_size=1 << 31) as opened:
        assert opened["w"][1 << 27 : (1 << 27) + 3].tolist() == [0, 0, 0]


def test_a_directory_is_walked_once_whatever_its_links(tmp_path: Path) -> None:
    """Two links to one folder would make 2**40 paths of it."""
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "a", {"w": np.arange(16.0)})
    files = [file for file in (tmp_path / "a").rglob("*") if file.is_file()]
    for name in ("x", "y"):
        (tmp_path / "a" / name).symlink_to(".")
    (tmp_path / "a" / "nothing").symlink_to("missing")
    with treepack.open(tmp_path / "a") as file:
        assert file._place.reader.nbytes == sum(each.stat().st_size for each in files)
        assert file["w"][3] == 3


def test_no_array_is_read_when_a_directory_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ocp.StandardCheckpointer() as checkpointer:
        tree = {"l": [jnp.ones(1000), [jnp.ones(2)]], "v": jnp.ones(3), "w": jnp.ones(1000)}
        checkpointer.save(tmp_path / "a", tree)
    monkeypatch.setattr(storage, "read", None)
    with treepack.open(tmp_path / "a") as file:
        assert file["w"].shape == (1000,)
        assert dict(file.leaves())["l/1/0"].shape == (2,)
    assert treepack.abstract(tmp_path / "a")["l"][0].shape == (1000,)


def test_an_unfinished_save(tmp_path: Path) -> None:
    path = write_standard(tmp_path / "a")
    name = "b.orbax-checkpoint-tmp-12"
    path.rename(tmp_path / name)
    refuses(tmp_path / name, "a save of Orbax that has not finished")


HARMS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "nothing": lambda found: found.clear(),
    "a list": lambda found: found.update(tree_metadata=[1]),
    "no keys": lambda found: found["tree_metadata"]["('w',)"].pop("key_metadata"),
    "no type": lambda found: found["tree_metadata"]["('w',)"].pop("value_metadata"),
    "twice": lambda found: found["tree_metadata"].update(b=found["tree_metadata"]["('w',)"]),
    "deep": lambda found: found["tree_metadata"]["('w',)"].update(
        key_metadata=[{"key": "a", "key_type": 2}] * 600
    ),
    "a gap": lambda found: found["tree_metadata"]["('w',)"].update(
        key_metadata=[{"key": "1", "key_type": 1}]
    ),
    "both": lambda found: found["tree_metadata"].update(
        b={**found["tree_metadata"]["('w',)"], "key_metadata": [{"key": "0", "key_type": 1}]}
    ),
    "a root": lambda found: found["tree_metadata"].update(
        b={**found["tree_metadata"]["('w',)"], "key_metadata": []}
    ),
    "a type": lambda found: found["tree_metadata"]["('w',)"]["value_metadata"].update(
        value_type="my.Type"
    ),
    "text": lambda found: found["tree_metadata"]["('w',)"]["value_metadata"].update(
        value_type="string"
    ),
    "an array": lambda found: found["tree_metadata"]["('w',)"]["value_metadata"].update(
        value_type="scalar"
    ),
}


@pytest.mark.parametrize("harm", HARMS)
def test_damaged_metadata(tmp_path: Path, harm: str) -> None:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "a", {"w": jnp.ones(2)})
    file = tmp_path / "a" / "_METADATA"
    found = json.loads(file.read_text())
    HARMS[harm](found)
    file.write_text(json.dumps(found))
    with pytest.raises(treepack.TreepackError):
        treepack.load(tmp_path / "a")
    for text in ("", "[", "7", "[" * 100_000):
        file.write_text(text)
        with pytest.raises(DecodeError, match="_METADATA is not metadata of Orbax"):
            treepack.load(tmp_path / "a")


def test_names_do_not_lead_out_of_the_directory(tmp_path: Path) -> None:
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False)) as checkpointer:
        for name in "ab":
            checkpointer.save(tmp_path / name, {"w": np.ones(2)})
    file = tmp_path / "a" / "_METADATA"
    for name in ("../b/w", f"{tmp_path}/b/w"):
        found = json.loads(file.read_text())
        for entry in found["tree_metadata"].values():
            entry["key_metadata"][0]["key"] = name
        file.write_text(json.dumps(found))
        with pytest.raises(DecodeError, match="leads out of the directory"):
            treepack.load(tmp_path / "a")


def test_max_size(made: Any) -> None:
    with pytest.raises(treepack.TreepackError, match="exceed max_size=100"):
        treepack.open(made(write_standard), max_size=100)
    treepack.open(made(write_standard), max_size=10_000).close()


@pytest.mark.campaign
def test_neither_orbax_nor_jax_is_needed(made: Any) -> None:
    code = (
        "import sys, treepack\n"
        "sys.modules['orbax.checkpoint'] = None\n"
        "with treepack.open(sys.argv[1]) as file: print(file['w'][:])\n"
        "assert 'jax' not in sys.modules\n"
        "sys.modules['tensorstore'] = None\n"
        "treepack.open(sys.argv[1])"
    )
    path = made(write_plain)
    done = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, env=os.environ
    )
    assert done.stdout == "[1. 1.]\n"
    assert "pip install tensorstore" in done.stderr


def write_plain(path: Path) -> Path:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, {"w": jnp.ones(2)})
    return path
