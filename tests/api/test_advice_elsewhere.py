"""What errors of exports, of Orbax's managers and of several processes say to do succeeds."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
import pytest

import processes
import treepack
from exported import doubling
from treepack import checkpoints, serialization
from treepack.orbax import TreepackHandler, TreepackRestore, TreepackSave


class State(NamedTuple):
    """A type that jax.export does not know."""

    mu: Any


def of_exports(folder: Path) -> list[tuple[Any, str, list[Any]]]:
    """Returns calls that fail, what their errors say, and what follows that."""
    state = State(jnp.ones(2))
    function = jax.export.export(jax.jit(lambda it: it.mu))(state)
    path = folder / "function.treepack"
    save = functools.partial(treepack.save_exported, path)
    held = folder / "held.treepack"
    code = {"f": jax.tree_util.Partial(lambda x: 2 * x)}
    treepack.save_exported(held, doubling(), code)
    foreign = functools.partial(treepack.save_exported, folder / "m.npz", doubling())

    def registered() -> None:
        treepack.register_tree(state)
        save(function, {"s": state})
        found = treepack.load_exported(path)
        assert found.exported.call(found.params["s"]).tolist() == [1, 1]

    def with_static() -> None:
        assert treepack.load_exported(held, static=code).params["f"](3) == 6

    return [
        (lambda: save(function), "call treepack.register_tree on a tree", [registered]),
        (lambda: treepack.load_exported(held), "static=", [with_static]),
        (foreign, "choose .treepack", [lambda: save(doubling())]),
    ]


def of_orbax(folder: Path) -> list[tuple[Any, str, list[Any]]]:
    """Returns rows of Orbax's manager, and of its directories."""
    state = {"w": jnp.ones(3), "n": jnp.zeros(2, jnp.int32)}
    with ocp.CheckpointManager(folder / "series", item_handlers=TreepackHandler()) as manager:
        manager.save(0, args=TreepackSave(state))

    def restore(item: Any = None, **options: Any) -> Any:
        handler = TreepackHandler()
        with ocp.CheckpointManager(folder / "series", item_handlers=handler) as manager:
            return manager.restore(0, args=TreepackRestore(item, **options))

    place = folder / "series" / "0" / "default"
    more = {**state, "k": jnp.ones(1)}
    half = {**state, "w": jnp.zeros(3, jnp.bfloat16)}
    other = {**state, "w": jnp.zeros(4)}
    path = folder / "orbax"
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, state)
    read = functools.partial(serialization.load_from_file, None, place)
    return [
        (lambda: restore(more), 'missing="target"', [lambda: restore(more, missing="target")]),
        (lambda: restore(half), "cast=True", [lambda: restore(half, cast=True)]),
        (lambda: restore(other), "strict=False", [lambda: restore(other, strict=False)]),
        (read, "treepack.load reads directories; containers='plain'", [
            lambda: treepack.load(place, containers="plain")]),
        (lambda: checkpoints.save_checkpoint_multiprocess(
            folder / "flax", state, 1, gda_manager=1), "leave it out", [
            lambda: checkpoints.save_checkpoint_multiprocess(folder / "flax", state, 1)]),
    ]  # fmt: skip


@pytest.mark.parametrize("rows", [of_exports, of_orbax])
def test_what_errors_say_to_do_succeeds(tmp_path: Path, rows: Any) -> None:
    for call, message, follow in rows(tmp_path):
        with pytest.raises((ValueError, TypeError, OSError)) as caught:
            call()
        text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
        assert re.search(message, text, re.S), text
        for other in follow:
            other()


TOGETHER = """
import re
from jax.experimental.multihost_utils import process_allgather
from treepack import checkpoints

path, index = args[0], jax.process_index()
mesh = Mesh(np.array(jax.devices()), ("x",))
rows = NamedSharding(mesh, P("x"))
split = jax.make_array_from_callback((4, 2), rows, lambda at: np.ones((4, 2), np.float32)[at])
state = {"w": split, "step": 1}

def follow(call, message, other):
    try:
        call()
    except (ValueError, TypeError) as error:
        assert re.search(message, str(error)), error
    else:
        raise AssertionError(message)
    other()

def gathered():
    data = treepack.dumps({"w": process_allgather(split, tiled=True)})
    assert treepack.loads(data)["w"].sum() == 8

def save(name="a", **options):
    treepack.save(f"{path}/{name}", state, timeout=60, **options)

def save_loader():
    treepack.save(f"{path}/a", {**state, "loader": index}, timeout=60)

def described():
    treepack.dumps({}, metadata={"w": process_allgather(split, tiled=True)})

def measured():
    metrics = {"w": float(split.mean())}
    treepack.Series(f"{path}/run").save(1, {}, metrics=metrics)

follow(
    lambda: treepack.dumps(state), r"gather it .*process_allgather\\(array, tiled=True", gathered
)
follow(
    lambda: treepack.dumps({}, metadata={"w": split}),
    "at metadata/w: .*process_allgather.*: pass a value that this process has", described
)
follow(
    lambda: treepack.Series(f"{path}/run").save(1, {}, metrics={"w": split}),
    r"metrics.'w'. must be a number: .* float\\(value.mean\\(\\)\\)", measured
)
follow(save_loader, "process 1 .* at loader: ", save)
treepack.save(f"{path}/loader-{index}", {"loader": index})  # as docs/sharded.md says
follow(lambda: save(str(index)), "process 1 .*the same directory", save)
follow(lambda: save(step=index), "saves step|[Ss]ave that step next", lambda: save(step=5))
assert treepack.load(f"{path}/a", state)["w"].sharding == rows
"""


@pytest.mark.campaign
def test_what_errors_of_several_processes_say_to_do_succeeds(tmp_path: Path) -> None:
    processes.run(TOGETHER, 2, tmp_path)
