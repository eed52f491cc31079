"""treepack inside version 1 of Orbax's API."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.metadata
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as v0
import orbax.checkpoint.experimental.v1 as ocp
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from orbax.checkpoint.experimental.v1._src.serialization.numpy_leaf_handler import NumpyShapeDtype

import processes
import treepack
from treepack.errors import CorruptionError, MismatchError
from treepack.orbax import TreepackHandler as V0Handler
from treepack.orbax import step_of
from treepack.orbax_v1 import TreepackHandler, TreepackRestore, TreepackSave, registry

pytestmark = [
    # Orbax leaves these when a save fails before it begins.
    pytest.mark.filterwarnings("ignore:coroutine '_create_paths' was never awaited"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def using(**options: Any) -> Any:
    """Returns a context of Orbax in which treepack saves."""
    context = ocp.Context()
    context.checkpointables.registry = registry(**options)
    return context


def state(step: int) -> dict[str, Any]:
    return {
        "w": jnp.full((64, 8), step, jnp.bfloat16),
        "opt": (np.arange(500.0), step),
        "key": jax.random.key(step),
    }


def same(found: Any, step: int) -> None:
    assert type(found["opt"]) is tuple
    # Orbax sorts the keys of abstract trees.
    found, expected = (jax.tree.map(lambda leaf: leaf, tree) for tree in (found, state(step)))
    assert treepack.dumps(found) == treepack.dumps(expected)


def test_checkpointables(tmp_path: Path) -> None:
    path = tmp_path / "a"
    tree = state(1)
    with using():
        ocp.save_checkpointables(
            path,
            {
                "state": tree,
                "other": TreepackSave([tree], metadata={"step": 1}),
                "config": {"lr": 0.5},
            },
        )
        found = ocp.load_checkpointables(path)
        same(found["state"], 1)
        same(found["other"][0], 1)
        assert found["config"] == {"lr": 0.5}
        assert list(ocp.load_checkpointables(path, {"state": None})) == ["state"]
        part = {"state": TreepackRestore(select="opt/1")}
        assert ocp.load_checkpointables(path, part) == {"state": {"opt": {"1": 1}}}
        with pytest.raises(MismatchError, match="w: expected"):
            ocp.load_checkpointables(path, {"state": {**tree, "w": jnp.zeros(3)}})
        about = ocp.checkpointables_metadata(path).metadata
        assert about["state"]["w"] == jax.ShapeDtypeStruct((64, 8), jnp.bfloat16)
    # A checkpointable is a checkpoint of treepack's.
    same(treepack.load(path / "state"), 1)
    assert treepack.read_metadata(path / "other") == {"step": 1}
    assert treepack.verify(path / "state").ok


def test_trees_with_an_abstract_one(tmp_path: Path) -> None:
    tree = {"w": jnp.arange(32.0).reshape(8, 4), "n": 3}
    with using():
        ocp.save(tmp_path / "a", tree)
        assert ocp.load(tmp_path / "a")["n"] == 3
        about = ocp.metadata(tmp_path / "a")
        assert about.metadata == {"w": jax.ShapeDtypeStruct((8, 4), jnp.float32), "n": 3}
        np.testing.assert_array_equal(ocp.load(tmp_path / "a", about)["w"], tree["w"])
        sharding = NamedSharding(jax.make_mesh((4,), ("x",)), PartitionSpec("x"))
        like = {"w": jax.ShapeDtypeStruct((8, 4), jnp.float32, sharding=sharding), "n": 0}
        found = ocp.load(tmp_path / "a", like)
        assert found["w"].sharding == sharding
        np.testing.assert_array_equal(found["w"], tree["w"])
        for_numpy = NumpyShapeDtype((8, 4), np.dtype("float32"))
        found = ocp.load(tmp_path / "a", like | {"w": for_numpy})
        assert type(found["w"]) is np.ndarray
        np.testing.assert_array_equal(found["w"], tree["w"])
        with pytest.raises(ValueError, match="exists"):
            ocp.save(tmp_path / "a", tree)
        ocp.save(tmp_path / "a", {"w": jnp.zeros(3)}, overwrite=True)
        assert ocp.load(tmp_path / "a")["w"].shape == (3,)


def test_saved_shardings_come_back(tmp_path: Path) -> None:
    sharding = NamedSharding(jax.make_mesh((2, 2), ("x", "y")), PartitionSpec("x", "y"))
    tree = {"w": jax.device_put(jnp.arange(32.0).reshape(8, 4), sharding)}
    with using():
        ocp.save(tmp_path / "a", tree)
        for found in (
            ocp.load(tmp_path / "a"),
            ocp.load(tmp_path / "a", ocp.metadata(tmp_path / "a")),
        ):
            assert found["w"].sharding == sharding
            np.testing.assert_array_equal(found["w"], tree["w"])


def test_the_background_sees_the_tree_as_it_was(tmp_path: Path) -> None:
    tree = state(2)
    with using():
        saving = ocp.save_checkpointables_async(tmp_path / "a", {"state": tree, "b": tree})
        tree["opt"][0][:] = -1
        saving.result()
        for name in ("state", "b"):
            same(ocp.load_checkpointables(tmp_path / "a")[name], 2)


def test_a_series(tmp_path: Path) -> None:
    policies = ocp.training.save_decision_policies, ocp.training.preservation_policies
    options = {
        "save_decision_policy": policies[0].FixedIntervalPolicy(1),
        "preservation_policy": policies[1].LatestN(2),
        "context": using(compress=True, durable=False),
    }
    with ocp.training.Checkpointer(tmp_path, **options) as checkpointer:
        for step in range(3):
            tree = state(step)
            assert checkpointer.save_async(step, tree).result()
            tree["opt"][0][:] = -1
        assert checkpointer.save_checkpointables(3, {"state": state(3), "b": [state(4)]})
        same(checkpointer.load(2), 2)
        assert checkpointer.metadata(2).metadata["opt"][1] == 2
    with ocp.training.Checkpointer(tmp_path, **options) as checkpointer:
        assert [one.step for one in checkpointer.checkpoints] == [2, 3]
        same(checkpointer.load(), 3)
        found = checkpointer.load_checkpointables(3, {"b": [state(0)]})
        same(found["b"][0], 4)


def test_a_failed_save_leaves_no_checkpoint(tmp_path: Path) -> None:
    with using():
        with pytest.raises(treepack.UnserializableLeafError, match="bad"):
            ocp.save_checkpointables(tmp_path / "a", {"state": {"w": jnp.ones(3), "bad": object()}})
        assert not (tmp_path / "a").exists()


def test_damage_is_an_error(tmp_path: Path) -> None:
    with using():
        ocp.save(tmp_path / "a", state(1))
        [file] = (tmp_path / "a" / "state").glob("*-00000.treepack")
        file.write_bytes(file.read_bytes()[:-1])
        with pytest.raises(CorruptionError):
            ocp.load(tmp_path / "a", {**state(1), "opt": (jnp.zeros(500), 0)})


@pytest.mark.filterwarnings("ignore:Sharding info not provided")  # of Orbax
def test_others_stay_registered(tmp_path: Path) -> None:
    """Without treepack's registry its files are an error; those of Orbax are read with it."""
    tree = {"w": jnp.ones(3)}
    ocp.save(tmp_path / "orbax", tree)
    with using():
        ocp.save(tmp_path / "treepack", tree)
    for load in (ocp.load, ocp.load_checkpointables):
        with pytest.raises(KeyError):
            load(tmp_path / "treepack")
    with using(names=()):
        np.testing.assert_array_equal(ocp.load(tmp_path / "orbax")["w"], tree["w"])
        ocp.save_checkpointables(tmp_path / "both", {"state": tree, "other": tree})
    assert (tmp_path / "both" / "other" / "manifest.treepack").exists()
    assert not (tmp_path / "both" / "state" / "manifest.treepack").exists()


def test_what_version_0_has_saved(tmp_path: Path) -> None:
    with v0.CheckpointManager(tmp_path, item_handlers={"state": V0Handler()}) as manager:
        manager.save(1, args=v0.args.Composite(state=TreepackSave(state(1))))
    with using():
        same(ocp.load_checkpointables(tmp_path / "1")["state"], 1)
        same(ocp.load_checkpointables(tmp_path / "1", {"state": state(0)})["state"], 1)


def test_the_handler_can_be_registered_for_a_name(tmp_path: Path) -> None:
    registered = ocp.handlers.local_registry().add(TreepackHandler, checkpointable_name="mine")
    context = ocp.Context()
    context.checkpointables.registry = registered
    with context:
        ocp.save_checkpointables(tmp_path / "a", {"mine": (1, "a"), "x": [1]})
        assert ocp.load_checkpointables(tmp_path / "a") == {"mine": (1, "a"), "x": [1]}


def test_steps_are_known_from_directories() -> None:
    for name, step in (
        ("/a/5.orbax-checkpoint-tmp/state", 5),
        ("/a/run_0012.orbax-checkpoint-tmp-3/default", 12),
        ("/a7/b.orbax-checkpoint-tmp", None),
        # Where a commit file ends the save, as in stores, no directory is renamed.
        ("gs://a/5/state", 5),
        ("/a/run_12/default", 12),
        ("/a/7/b.orbax-checkpoint-tmp", None),
        ("/a/b/state", None),
    ):
        assert step_of(name) == step


def test_the_module_of_later_versions_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Orbax's main branch has `orbax.checkpoint.v1` and no experimental one."""
    monkeypatch.setitem(sys.modules, "orbax.checkpoint.v1", ocp)
    monkeypatch.setitem(sys.modules, "orbax.checkpoint.experimental.v1", None)
    monkeypatch.setattr(treepack, "orbax_v1", sys.modules["treepack.orbax_v1"])
    monkeypatch.delitem(sys.modules, "treepack.orbax_v1")
    later = importlib.import_module("treepack.orbax_v1")
    assert later.TreepackHandler is not TreepackHandler
    context = ocp.Context()
    context.checkpointables.registry = later.registry()
    with context:
        ocp.save(tmp_path / "5", {"w": jnp.ones(3)})
        assert ocp.load(tmp_path / "5")["w"].tolist() == [1, 1, 1]


SEVERAL = """
import orbax.checkpoint.experimental.v1 as ocp
from treepack.orbax_v1 import registry

value = np.arange(64.0, dtype=np.float32).reshape(16, 4)
def put(mesh, *axes):
    sharding = NamedSharding(mesh, P(*axes))
    return jax.make_array_from_callback(value.shape, sharding, lambda at: value[at])

mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("x", "y"))
tree = {"w": put(mesh, "x", "y"), "r": put(mesh), "step": 3}
context = ocp.Context()
context.checkpointables.registry = registry()
with context:
    path = args[0] + "/a"
    ocp.save_checkpointables(path, {"state": tree, "b": [tree["w"]], "c": {"step": 3}, "d": tree})
    other = NamedSharding(Mesh(np.array(jax.devices()).reshape(4), "z"), P(None, "z"))
    like = {
        "w": jax.ShapeDtypeStruct((16, 4), np.float32, sharding=other),
        "r": jax.ShapeDtypeStruct((16, 4), np.float32, sharding=other),
        "step": 0,
    }
    found = ocp.load(path, like)
    assert found["w"].sharding == other and found["step"] == 3
    for shard in found["w"].addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), value[shard.index])
    # What goes wrong in one process is an error in both, at once, and no checkpoint.
    try:
        ocp.save(args[0] + "/b", {**tree, "host": np.zeros(1000 + index)})
    except Exception as error:
        assert "process 1 saved " in str(error), error
    else:
        raise AssertionError("no error")
    assert not os.path.exists(args[0] + "/b")
"""


@pytest.mark.campaign
def test_several_processes(tmp_path: Path) -> None:
    processes.run("import os\n" + SEVERAL, 2, tmp_path, devices=2)
    assert len([*(tmp_path / "a" / "state").glob("*.treepack")]) == 3


GIVEN_UP = """
import gc
import orbax.checkpoint.experimental.v1 as ocp
from treepack.orbax_v1 import registry

options = ocp.options.CheckpointablesOptions(registry=registry())
at_once = ocp.options.AsyncOptions(create_directories_asynchronously=False)
with ocp.Context(checkpointables_options=options, async_options=at_once):
    tree = {"w": np.ones(3)}
    try:
        bad = {"w": np.ones(3), "bad": object()} if index else tree
        ocp.save_checkpointables(args[0] + "/a", {"a": tree, "b": bad})
    except Exception as error:
        text = str(error)
    gc.collect()
    assert ("bad" in text) if index else ("given up" in text or "process 1" in text), text
"""


@pytest.mark.campaign
def test_a_save_that_one_process_gives_up_is_an_error_in_others(tmp_path: Path) -> None:
    processes.run(GIVEN_UP, 2, tmp_path)


@pytest.mark.skipif(
    importlib.metadata.version("orbax-checkpoint") == "0.12.0", reason="it knows no marks"
)
def test_orbax_finds_its_marks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with using():
        ocp.save(tmp_path / "a", {"w": jnp.ones(3)})
        caplog.clear()
        ocp.load(tmp_path / "a")
        ocp.metadata(tmp_path / "a")
    assert "malformed" not in caplog.text
    assert treepack.load(tmp_path / "a" / "state")["w"].shape == (3,)


def test_a_registry_has_defaults_and_the_context_is_heeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    adam = optax.ScaleByAdamState(jnp.zeros(()), jnp.ones(2), jnp.ones(2))
    tree = {"w": jnp.ones(3), "opt": (jnp.arange(2), adam)}
    context = using(restore=TreepackRestore(containers="plain", cast=True))
    with context:
        ocp.save(path, tree)
        assert type(ocp.load(path)["opt"]) is list
        assert type(ocp.metadata(path).metadata["opt"]) is list
        template = {"w": ocp.PLACEHOLDER, "opt": (jnp.zeros(2, jnp.uint8), tree["opt"][1])}
        found = ocp.load(path, template)
        assert (found["w"], found["opt"][0].dtype) == (..., jnp.uint8)
    partial = {"w": tree["w"], "opt": (tree["opt"][0], optax.ScaleByScheduleState(jnp.ones(())))}
    with using(), pytest.raises(MismatchError, match='unexpected="ignore"'):
        ocp.load(path, partial)
    context = using()
    context.pytree.loading.partial_load = True
    with context:
        assert ocp.load(path, partial)["opt"][1].count == 0
    context = using()
    context.array.loading.enable_padding_and_truncation = True
    with context, pytest.raises(treepack.TreepackError, match="neither pads nor truncates"):
        ocp.load(path, tree)
    context = using()
    context.array.saving.storage_options.dtype = jnp.bfloat16
    with context, pytest.raises(treepack.TreepackError, match="cast them before"):
        ocp.save(tmp_path / "b", tree)
    storage = ocp.options.ArrayOptions.Saving.StorageOptions
    for dtype in (jnp.bfloat16, None):
        context = using()
        context.array.saving.scoped_storage_options_creator = lambda path, _, dtype=dtype: storage(
            dtype=dtype if "opt" in jax.tree_util.keystr(path) else None
        )
        refused = pytest.raises(treepack.TreepackError, match="scoped_storage_options_creator")
        with context, refused if dtype else contextlib.nullcontext():
            ocp.save(tmp_path / f"scoped-{dtype}", tree)
    for option, value in (("active_processes", {0}), ("primary_host", 1), ("primary_host", None)):
        context = using()
        setattr(context.multiprocessing, option, value)
        with monkeypatch.context() as patch, context:
            patch.setattr(jax, "process_count", lambda: 2)
            with pytest.raises(treepack.TreepackError, match="in all processes together"):
                asyncio.run(TreepackHandler().save(None, tree))
    gc.collect()  # the coroutines that Orbax leaves, while their warnings are ignored
