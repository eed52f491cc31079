"""treepack inside Orbax's managers, and files of older versions of Orbax."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest

import processes
import treepack
from commands import call
from treepack._src.options import Saved
from treepack._src.saving.sharded import ShardedWrite
from treepack.errors import CorruptionError, MismatchError, TreepackError
from treepack.orbax import TreepackHandler, TreepackRestore, TreepackSave, load_aggregate

GOLDEN = Path(__file__).parents[1] / "golden" / "orbax"


def state(step: int) -> dict[str, Any]:
    return {"w": jnp.full((64, 8), step, jnp.bfloat16), "opt": (np.arange(500.0), step)}


def same(found: Any, step: int) -> None:
    assert type(found["opt"]) is tuple
    assert treepack.dumps(found) == treepack.dumps(state(step))


@pytest.mark.parametrize("background", [False, True])
def test_a_manager_keeps_the_last_steps(tmp_path: Path, background: bool) -> None:
    options = ocp.CheckpointManagerOptions(
        max_to_keep=3, enable_async_checkpointing=background, cleanup_tmp_directories=True
    )
    with ocp.CheckpointManager(tmp_path, options=options) as manager:
        for step in range(6):
            tree = state(step)
            assert manager.save(step, args=TreepackSave(tree, metadata={"step": step}))
            tree["opt"][0][:] = -1
        manager.wait_until_finished()
        assert manager.all_steps() == [3, 4, 5]
        same(manager.restore(5, args=TreepackRestore(state(0))), 5)
        same(manager.restore(4), 4)
        with pytest.raises(MismatchError, match="w: expected"):
            manager.restore(5, args=TreepackRestore({"w": jnp.zeros(3)}))
    # The item is a checkpoint of treepack's.
    item = tmp_path / "5" / "default"
    same(treepack.load(item), 5)
    assert treepack.read_metadata(item) == {"step": 5}
    assert treepack.verify(item).ok
    names = json.loads((tmp_path / "5" / "_CHECKPOINT_METADATA").read_text())["item_handlers"]
    assert names == {"default": "treepack.orbax.TreepackHandler"}


def test_processes_compare_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []

    class Write(ShardedWrite):
        def __init__(self, path: Any, tree: Any, saved: Saved, *args: Any, **options: Any):
            steps.append(saved.step)
            super().__init__(path, tree, saved, *args, **options)

    monkeypatch.setattr("treepack.orbax.ShardedWrite", Write)
    for background in (False, True):
        options = ocp.CheckpointManagerOptions(
            enable_async_checkpointing=background, step_prefix="run"
        )
        with ocp.CheckpointManager(tmp_path / str(background), options=options) as manager:
            manager.save(12, args=TreepackSave(state(12)))
    with ocp.Checkpointer(TreepackHandler()) as checkpointer:
        checkpointer.save(tmp_path / "7" / "a", args=TreepackSave(state(1)))
    assert steps == [12, 12, None]


FRESH = """
import orbax.checkpoint as ocp
import treepack.orbax
with ocp.CheckpointManager(args[0]) as manager:
    assert manager.restore(manager.latest_step())["opt"][1] == 1
"""


@pytest.mark.campaign
def test_another_program_restores_without_arguments(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(1, args=TreepackSave(state(1)))
    processes.run(FRESH, 1, tmp_path)


def test_a_step_with_one_item_is_a_checkpoint(tmp_path: Path) -> None:
    args = ocp.args.Composite
    with ocp.CheckpointManager(tmp_path) as manager:
        for step in range(2):
            items = {f"item{at}": TreepackSave(state(step)) for at in range(step + 1)}
            manager.save(step, args=args(**items, config=ocp.args.JsonSave({"lr": 0.1})))
        manager.wait_until_finished()
    same(treepack.load(tmp_path / "0"), 0)
    assert treepack.verify(tmp_path / "0")
    with pytest.raises(treepack.NoManifestError, match=r"load '.*item0'"):
        treepack.load(tmp_path / "1")
    assert ": 1 of 2 " in call("ls", str(tmp_path))


def test_one_item_of_several(tmp_path: Path) -> None:
    args = ocp.args.Composite
    with ocp.CheckpointManager(tmp_path) as manager:
        for step in range(2):
            manager.save(
                step,
                args=args(
                    state=TreepackSave(state(step)),
                    other=TreepackSave([state(step)]),
                    config=ocp.args.JsonSave({"lr": 0.1}),
                ),
            )
        manager.wait_until_finished()
        found = manager.restore(
            1,
            args=args(
                state=TreepackRestore(select="opt/1"),
                other=TreepackRestore(),
                config=ocp.args.JsonRestore(),
            ),
        )
        assert found.state == {"opt": {"1": 1}}
        same(found.other[0], 1)
        assert found.config == {"lr": 0.1}
        same(manager.restore(0, args=args(state=None)).state, 0)
    with ocp.CheckpointManager(tmp_path, item_handlers={"state": TreepackHandler()}) as manager:
        shapes = manager.item_metadata(1).state
        assert shapes["w"] == jax.ShapeDtypeStruct((64, 8), jnp.bfloat16)


def test_checkpointers_and_options(tmp_path: Path) -> None:
    zeros = {"w": np.zeros(100_000)}
    with ocp.Checkpointer(TreepackHandler(compress=True, durable=False)) as checkpointer:
        checkpointer.save(tmp_path / "a", args=TreepackSave(zeros))
        found = checkpointer.restore(tmp_path / "a", args=TreepackRestore(verify=True))
        assert found["w"].sum() == 0
        checkpointer.save(tmp_path / "legacy", zeros)
        assert checkpointer.restore(tmp_path / "legacy", zeros)["w"].shape == (100_000,)
    assert sum(file.stat().st_size for file in (tmp_path / "a").glob("*.treepack")) < 10_000
    with ocp.AsyncCheckpointer(TreepackHandler()) as checkpointer:
        checkpointer.save(tmp_path / "b", args=TreepackSave(zeros))
        checkpointer.wait_until_finished()
    assert treepack.load(tmp_path / "b")["w"].shape == (100_000,)
    [file] = (tmp_path / "b").glob("*-00000.treepack")
    file.write_bytes(file.read_bytes()[:-1])
    with ocp.Checkpointer(TreepackHandler()) as checkpointer, pytest.raises(CorruptionError):
        checkpointer.restore(tmp_path / "b")


def test_a_failed_save_leaves_no_step(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path) as manager:
        with pytest.raises(treepack.UnserializableLeafError, match="bad"):
            manager.save(0, args=TreepackSave({"bad": object()}))
        manager.save(1, args=TreepackSave(state(1)))
        manager.wait_until_finished()
        assert manager.all_steps() == [1]


SEVERAL = """
import orbax.checkpoint as ocp
from treepack.orbax import TreepackRestore, TreepackSave

value = np.arange(64.0, dtype=np.float32).reshape(16, 4)
def put(mesh, *axes):
    sharding = NamedSharding(mesh, P(*axes))
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("x", "y"))
tree = {"w": put(mesh, "x", "y"), "r": put(mesh), "step": 3}
options = ocp.CheckpointManagerOptions(max_to_keep=2)
with ocp.CheckpointManager(args[0], options=options) as manager:
    for step in range(3):
        manager.save(step, args=ocp.args.Composite(
            a=TreepackSave(tree), b=TreepackSave([tree["w"]]), c=ocp.args.JsonSave({"step": step})))
    manager.wait_until_finished()
    assert manager.all_steps() == [1, 2], manager.all_steps()
    other = NamedSharding(Mesh(np.array(jax.devices()).reshape(4), "z"), P(None, "z"))
    template = {"w": jax.ShapeDtypeStruct((16, 4), np.float32, sharding=other)}
    found = manager.restore(2, args=ocp.args.Composite(a=TreepackRestore(template))).a["w"]
    assert found.sharding == other
    for shard in found.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), value[shard.index])

# What goes wrong in one process is an error in both, at once, and no step.
bad = {**tree, "host": np.zeros(1000 + index)}
with ocp.CheckpointManager(args[0]) as manager:
    try:
        manager.save(3, args=TreepackSave(bad))
        manager.wait_until_finished()
    except Exception as error:
        assert "process 1 saved " in str(error), error
    else:
        raise AssertionError("no error")
with ocp.CheckpointManager(args[0]) as manager:
    assert manager.latest_step() == 2
"""


@pytest.mark.campaign
def test_a_manager_of_several_processes(tmp_path: Path) -> None:
    processes.run(SEVERAL, 2, tmp_path, devices=2)
    names = sorted(path.name for path in (tmp_path / "2" / "a").glob("*.treepack"))
    assert len(names) == 3


# `tests/golden/make_orbax.py` has made the files.

EXPECTED = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "bf": np.ones(2, jnp.bfloat16),
    "i": 7,
    "s": "text",
    "none": None,
    "ed": {},
    "el": [],
    "list": [np.zeros(2), 1],
    "nt": {"mu": np.ones(2), "nu": np.zeros(2)},
}


@pytest.mark.parametrize("version", ["0.2.3", "0.5.20"])
def test_aggregates_of_older_versions(version: str) -> None:
    path = GOLDEN / version / "all_agg"
    found = load_aggregate(path)
    for name, expected in EXPECTED.items():
        assert treepack.dumps(found[name]) == treepack.dumps(expected), name
    theirs = ocp.PyTreeCheckpointer().restore(path) if version == "0.5.20" else found
    assert treepack.dumps(found["tup"]) == treepack.dumps(theirs["tup"])
    target = {"a": jnp.zeros((2, 3)), "list": [np.ones(2), 0], "tup": (np.zeros(1), np.zeros(1))}
    restored = load_aggregate(path / "checkpoint", target)
    assert type(restored["tup"]) is tuple
    assert restored["list"][1] == 1
    np.testing.assert_array_equal(restored["a"], EXPECTED["a"])


def test_aggregates_at_other_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = GOLDEN / "0.5.20" / "all_agg"
    expected = treepack.dumps(load_aggregate(source))
    options = {"path": str(source.parent), "target_protocol": "file"}
    (tmp_path / "item").symlink_to(source.absolute())
    monkeypatch.setenv("HOME", str(tmp_path))
    for place in ("~/item", "~/item/checkpoint", tmp_path / "item", source.absolute().as_uri()):
        assert treepack.dumps(load_aggregate(place)) == expected
    for url in ("dir://all_agg", "dir://all_agg/checkpoint"):
        assert treepack.dumps(load_aggregate(url, storage_options=options)) == expected


@pytest.mark.parametrize("version", ["0.2.3", "0.5.20"])
def test_arrays_beside_an_aggregate_are_named(version: str) -> None:
    with pytest.raises(TreepackError, match=r"11 leaves are not in .*list/0"):
        load_aggregate(GOLDEN / version / "mixed")
    with pytest.raises(FileNotFoundError):
        load_aggregate(GOLDEN)


def test_a_handler_has_defaults_for_all_restores(tmp_path: Path) -> None:
    tree = {"a": (jnp.arange(3), {"n": 1}), "b": optax.ScaleState(), "c": np.ones(2, np.float32)}
    how = TreepackRestore(
        containers="plain", cast=True, unexpected="ignore", missing="target", static={"f": len}
    )
    handlers = {"default": TreepackHandler(restore=how)}
    with ocp.CheckpointManager(tmp_path, item_handlers=handlers["default"]) as manager:
        manager.save(0, args=TreepackSave(tree))
        manager.wait_until_finished()
        plain = manager.restore(0)
        assert type(plain["a"]) is list
        assert (plain["a"][1], plain["b"]) == ({"n": 1}, {})
        assert isinstance(plain["a"][0], jax.Array)
        abstract = manager.item_metadata(0)
        assert type(abstract["a"]) is list
        found = manager.restore(0, args=TreepackRestore(containers="saved", exclude="c"))
        assert type(found["a"]) is tuple
        assert "c" not in found
        template = {"a": (jnp.zeros(3, jnp.uint32), {"n": 0}), "c": np.ones(2, np.float64)}
        found = manager.restore(0, args=TreepackRestore(template))
        assert (found["a"][0].dtype, found["c"].dtype) == (jnp.uint32, np.float64)
        with pytest.raises(MismatchError, match="int32"):
            manager.restore(0, args=TreepackRestore(template, cast=False))


def test_placeholders_of_a_template_are_skipped(tmp_path: Path) -> None:
    tree = state(1) | {"more": {"x": np.ones(3)}}
    handler = TreepackHandler()
    handler.save(tmp_path / "item", TreepackSave(tree))
    lost = object()
    template = {"w": ocp.PLACEHOLDER, "opt": (lost, 0), "more": ...}
    found = handler.restore(tmp_path / "item", TreepackRestore(template))
    assert found == template | {"opt": (lost, 1)}
    assert handler.restore(tmp_path / "item", TreepackRestore(...)) is ...
    chosen = TreepackRestore({"w": np.zeros(1), "opt": (..., 0)}, select="opt/1")
    assert handler.restore(tmp_path / "item", chosen)["opt"] == (..., 1)
