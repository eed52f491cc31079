"""Series of checkpoints: whole or not at all, in the background, of several processes, at URLs."""

from __future__ import annotations

import errno
import gc
import logging
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import processes
import treepack
from treepack import checkpoints, serialization
from treepack._src.interop.modules import error_class
from treepack._src.storage.address import Address
from treepack.checkpoints import _restoring
from treepack.checkpoints._names import Steps
from treepack.errors import InvalidCheckpointError, MismatchError, MultiprocessArrayError


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.campaign
def test_it_needs_neither_flax_nor_orbax_nor_jax(tmp_path: Path) -> None:
    program = """
import sys
for name in ("flax", "orbax", "jax"):
    sys.modules[name] = None
from treepack import checkpoints
from treepack.errors import InvalidCheckpointError
import numpy as np
manager = checkpoints.AsyncManager()
for step in range(3):
    checkpoints.save_checkpoint(sys.argv[1], {"a": np.ones(3)}, step, async_manager=manager)
manager.wait_previous_save()
assert checkpoints.restore_checkpoint(sys.argv[1], {"a": np.zeros(3)})["a"].sum() == 3
try:
    checkpoints.save_checkpoint(sys.argv[1], {}, 1)
except InvalidCheckpointError as error:
    assert type(error) is InvalidCheckpointError
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
    assert names(tmp_path) == ["checkpoint_2"]


KILLED = """
import os, signal, sys
import numpy as np
from treepack import checkpoints
directory, when = sys.argv[1:]
def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)
if when == "before others are removed":
    checkpoints.tidy = kill
state = {"w": np.ones(1 << 20)}
checkpoints.save_checkpoint(directory, state, 3, progress=kill if when == "writing" else None)
"""


@pytest.mark.parametrize("when", ["writing", "before others are removed"])
def test_a_killed_save_leaves_the_older_ones(tmp_path: Path, when: str) -> None:
    for step in (1, 2):
        checkpoints.save_checkpoint(tmp_path, {"w": np.full(9, step)}, step, keep=2)
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), when])
    assert done.returncode == -signal.SIGKILL
    found = [name for name in names(tmp_path) if not name.startswith(".")]
    assert found[:2] == ["checkpoint_1", "checkpoint_2"]
    if when == "writing":
        assert len(names(tmp_path)) == 3  # and what was written of the new one
        assert checkpoints.available_steps(tmp_path) == [1, 2]
        assert checkpoints.restore_checkpoint(tmp_path, None)["w"][0] == 2
    else:
        assert checkpoints.available_steps(tmp_path) == [1, 2, 3]
    checkpoints.save_checkpoint(tmp_path, {}, 4, keep=1)
    assert names(tmp_path) == ["checkpoint_4"]


def test_what_cannot_be_saved_leaves_the_older_ones(tmp_path: Path) -> None:
    checkpoints.save_checkpoint(tmp_path, {"a": 1}, 1)
    for manager in (None, checkpoints.AsyncManager()):
        with pytest.raises(treepack.UnserializableLeafError, match="at a"):
            checkpoints.save_checkpoint(tmp_path, {"a": object()}, 2, async_manager=manager)
    assert names(tmp_path) == ["checkpoint_1"]


def test_a_save_of_flax_that_was_killed_is_not_a_checkpoint(tmp_path: Path) -> None:
    checkpoints.save_checkpoint(tmp_path, {"a": 1}, 1)
    (tmp_path / "checkpoint_tmp").write_bytes(b"half")
    assert checkpoints.restore_checkpoint(tmp_path, None) == {"a": 1}
    checkpoints.save_checkpoint(tmp_path, {"a": 2}, 2)
    assert names(tmp_path) == ["checkpoint_2"]


def test_other_series_in_the_directory_stay(tmp_path: Path) -> None:
    """In flax, whatever begins with the prefix is removed, or keeps steps from being saved."""
    others = ["checkpoint_ema_1", "checkpoint_ema_2", "checkpoint_7.bak", "checkpoint_best"]
    for name in others:
        (tmp_path / name).write_bytes(b"")
    others.append("loop")
    (tmp_path / "loop").symlink_to("loop")
    for step in (5, 6, 2):
        checkpoints.save_checkpoint(tmp_path, {"a": step}, step, overwrite=True)
        latest = checkpoints.latest_checkpoint(tmp_path)
        assert latest == str(tmp_path / f"checkpoint_{step}")
        assert checkpoints.restore_checkpoint(tmp_path, None) == {"a": step}
    assert names(tmp_path) == sorted([*others, "checkpoint_2"])
    for step in range(3):
        checkpoints.save_checkpoint(tmp_path, {}, step, prefix="run-", overwrite=step == 2)
    assert checkpoints.available_steps(tmp_path, "run-") == [2]
    checkpoints.save_checkpoint(tmp_path, {}, 10, prefix="run-", keep=2)
    assert checkpoints.available_steps(tmp_path, "run-") == [2, 10]
    checkpoints.save_checkpoint(tmp_path, {"a": 1}, 1, prefix="inner/x_")
    assert checkpoints.available_steps(tmp_path, "inner/x_") == [1]
    assert checkpoints.restore_checkpoint(tmp_path, None, prefix="inner/x_") == {"a": 1}
    # In an empty prefix, all names are steps.
    for step in (1.5, 2.5):
        checkpoints.save_checkpoint(tmp_path / "empty", {}, step, prefix="")
    assert checkpoints.available_steps(tmp_path / "empty", "", float) == [2.5]


def test_the_new_one_of_equal_steps_stays(tmp_path: Path) -> None:
    for step in ("1", "1.0", "1e0"):
        checkpoints.save_checkpoint(tmp_path, {}, step)  # type: ignore[arg-type]
        assert names(tmp_path) == [f"checkpoint_{step}"]


def test_the_background_sees_the_tree_as_it_was(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    manager, tree = checkpoints.AsyncManager(), {"w": np.zeros(100_000)}
    path = checkpoints.save_checkpoint("a", tree, 1, async_manager=manager)
    tree["w"][:] = 1
    (tmp_path / "b").mkdir()
    os.chdir("b")
    manager.wait_previous_save()
    assert path == "a/checkpoint_1"
    assert checkpoints.restore_checkpoint(tmp_path / "a", None)["w"].sum() == 0


def test_errors_of_the_background_are_reported_once(tmp_path: Path, caplog: Any) -> None:
    manager = checkpoints.AsyncManager()
    manager.save_async(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        checkpoints.save_checkpoint(tmp_path, {}, 1, async_manager=manager)
    assert not tmp_path.joinpath("checkpoint_1").exists()
    checkpoints.save_checkpoint(tmp_path, {}, 1, async_manager=manager)
    manager.save_async(lambda: 1 / 0)
    assert manager.save_future is not None
    with pytest.raises(ZeroDivisionError):
        manager.save_future.result()
    checkpoints.save_checkpoint(tmp_path, {}, 2, async_manager=manager)
    manager.save_async(lambda: 1 / 0)
    manager.executor.shutdown()
    with caplog.at_level(logging.ERROR, "treepack"):
        del manager
        gc.collect()  # earlier errors hold frames that hold it
    assert "in the background failed: ZeroDivisionError" in caplog.text


def test_templates_are_compared_on_request(tmp_path: Path) -> None:
    checkpoints.save_checkpoint(tmp_path, {"w": np.zeros(3)}, 1)
    target = {"w": np.zeros(4)}
    assert checkpoints.restore_checkpoint(tmp_path, target)["w"].shape == (3,)
    with pytest.raises(MismatchError, match="w: expected"):
        checkpoints.restore_checkpoint(tmp_path, target, strict=True)


def test_options(tmp_path: Path) -> None:
    tree = {"w": np.zeros(100_000)}
    path = checkpoints.save_checkpoint(tmp_path, tree, 1, compress=True, level=9, durable=False)
    assert Path(path).stat().st_size < 10_000
    assert checkpoints.restore_checkpoint(tmp_path, None, parallel=False)["w"].shape == (100_000,)
    with pytest.raises(treepack.TreepackError, match="max_size"):
        checkpoints.restore_checkpoint(tmp_path, None, max_size=10)
    found = checkpoints.restore_checkpoint(path, None, copy=True)["w"]
    assert found.flags.writeable
    with pytest.raises(ValueError, match="level requires compress"):
        checkpoints.save_checkpoint(tmp_path, tree, 2, level=3)


@pytest.mark.parametrize("scheme", ["memory://", "simplecache::memory://"])
def test_urls(scheme: str) -> None:
    url = f"{scheme}series{len(scheme)}"
    manager = checkpoints.AsyncManager()
    for step in range(12):
        tree = {"w": np.full(9, step)}
        path = checkpoints.save_checkpoint(
            url, tree, step, keep=2, keep_every_n_steps=5, async_manager=manager
        )
        assert path == f"{url}/checkpoint_{step}"
    manager.wait_previous_save()
    assert checkpoints.available_steps(url) == [1, 6, 10, 11]
    assert checkpoints.latest_checkpoint(url) == f"{url}/checkpoint_11"
    assert checkpoints.restore_checkpoint(url, None)["w"][0] == 11
    assert checkpoints.restore_checkpoint(url, None, step=6)["w"][0] == 6
    assert checkpoints.restore_checkpoint(f"{url}/none", 5) == 5
    with pytest.raises(InvalidCheckpointError):
        checkpoints.save_checkpoint(url, tree, 3)
    checkpoints.save_checkpoint(url, tree, 3, overwrite=True)
    assert checkpoints.available_steps(url) == [3]


SEVERAL = """
import os, pytest
from treepack import checkpoints
from treepack.errors import InvalidCheckpointError

assert "flax" not in __import__("sys").modules
value = np.arange(64.0, dtype=np.float32).reshape(16, 4)
def put(value, *axes):
    sharding = NamedSharding(mesh, P(*axes))
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("x", "y"))
def tree(step):
    return {"w": put(value + step, "x", "y"), "list": [put(value), step], "h": np.full(5, step)}

save = checkpoints.save_checkpoint_multiprocess
for manager in (None, checkpoints.AsyncManager()):
    directory = args[0] + str(manager is None)
    for step in range(5):
        path = save(directory, tree(step), step, keep=2, async_manager=manager)
        assert path == directory + f"/checkpoint_{step}"
    if manager is not None:
        manager.wait_previous_save()
    found = checkpoints.restore_checkpoint(directory, tree(0))
    assert found["w"].sharding == tree(0)["w"].sharding and type(found["list"]) is list
    assert found["list"][1] == 4 and found["h"][0] == 4
    for shard in found["w"].addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), value[shard.index] + 4)
    # The state dict, without a template: arrays of NumPy.
    state = checkpoints.restore_checkpoint(path, None)
    np.testing.assert_array_equal(state["w"], value + 4)
    assert state["list"]["1"] == 4
    jax.experimental.multihost_utils.sync_global_devices("read")
    with pytest.raises(InvalidCheckpointError):
        save(directory, tree(1), 4)
    save(directory, tree(1), 4, overwrite=True, keep=2)
    assert checkpoints.restore_checkpoint(directory, tree(0))["h"][0] == 1
    jax.experimental.multihost_utils.sync_global_devices("overwritten")
    assert checkpoints.available_steps(directory) == [3, 4]
    # What no process has to share is one file.
    path = save(directory, {"r": put(value), "step": 5}, 5, async_manager=manager)
    if manager is not None:
        manager.wait_previous_save()
    jax.experimental.multihost_utils.sync_global_devices("written")
    assert os.path.isfile(path)
    assert checkpoints.restore_checkpoint(directory, None)["r"].shape == (16, 4)
    jax.experimental.multihost_utils.sync_global_devices("done")
    assert os.listdir(directory) == ["checkpoint_5"], os.listdir(directory)
"""


@pytest.mark.campaign
def test_several_processes_write_directories(tmp_path: Path) -> None:
    processes.run("import jax.experimental.multihost_utils\n" + SEVERAL, 2, tmp_path, devices=2)


SEVERAL_AT_A_URL = """
from treepack import checkpoints

value = np.arange(64.0, dtype=np.float32).reshape(16, 4)
sharding = NamedSharding(Mesh(np.array(jax.devices()), "x"), P("x"))
put = lambda value: jax.make_array_from_callback(value.shape, sharding, lambda at: value[at])
url = "local://" + args[0] + "/series"
for step in range(6):
    tree = {"w": put(value + step), "n": step}
    path = checkpoints.save_checkpoint_multiprocess(url, tree, step, keep=2, keep_every_n_steps=3)
    assert path == f"{url}/checkpoint_{step}"
assert checkpoints.latest_checkpoint(url) == path
found = checkpoints.restore_checkpoint(url, {"w": put(0 * value), "n": 0})
assert found["n"] == 5 and found["w"].sharding == sharding
for shard in found["w"].addressable_shards:
    np.testing.assert_array_equal(np.asarray(shard.data), value[shard.index] + 5)
"""


@pytest.mark.campaign
def test_several_processes_at_a_url(tmp_path: Path) -> None:
    processes.run(SEVERAL_AT_A_URL, 2, tmp_path, devices=2)
    assert checkpoints.available_steps(f"local://{tmp_path}/series") == [1, 4, 5]
    assert names(tmp_path / "series") == ["checkpoint_1", "checkpoint_4", "checkpoint_5"]


def test_directories_that_are_not_complete_do_not_count(tmp_path: Path) -> None:
    for step in (1, 3):
        treepack.save(tmp_path / f"checkpoint_{step}", {"step": step}, sharded=True)
    (tmp_path / "checkpoint_3" / "manifest.treepack").unlink()
    (tmp_path / "checkpoint_2").mkdir()
    assert checkpoints.available_steps(tmp_path) == [1]
    assert checkpoints.restore_checkpoint(tmp_path, {"step": 0}) == {"step": 1}
    assert checkpoints.restore_checkpoint(tmp_path / "checkpoint_1", None) == {"step": 1}
    assert names(tmp_path) == ["checkpoint_1", "checkpoint_2", "checkpoint_3"]
    checkpoints.save_checkpoint(tmp_path, {"step": 4}, 4)
    assert names(tmp_path) == ["checkpoint_4"]


def test_what_orbax_writes_does_not_count(tmp_path: Path) -> None:
    """An asynchronous checkpointer may be at work: the last complete step must stay."""
    checkpoints.save_checkpoint(tmp_path, {}, 2)
    (tmp_path / "checkpoint_3.orbax-checkpoint-tmp").mkdir()
    (tmp_path / "checkpoint_3.orbax-checkpoint-tmp" / "data").touch()
    assert checkpoints.available_steps(tmp_path) == [2]
    checkpoints.save_checkpoint(tmp_path, {}, 4, keep=2)
    assert names(tmp_path)[:2] == ["checkpoint_2", "checkpoint_3.orbax-checkpoint-tmp"]


def test_a_directory_of_something_else_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint_1"
    path.mkdir()
    (path / "notes").write_text("")
    for step in (1, None):
        with pytest.raises(IsADirectoryError):
            checkpoints.restore_checkpoint(tmp_path, None, step=step)
    with pytest.raises(OSError, match="checkpoint_1"):
        checkpoints.save_checkpoint(tmp_path, {}, 1, overwrite=True)
    assert (path / "notes").exists()


@pytest.mark.parametrize("sharded", [False, True])
def test_another_process_may_remove_what_is_being_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sharded: bool
) -> None:
    treepack.save(tmp_path / "checkpoint_1", {"a": 1}, sharded=sharded)
    module, name = (_restoring, "load") if sharded else (serialization, "load_from_file")
    read = getattr(module, name)

    def read_later(*args: Any, **options: Any) -> Any:
        if str(args[not sharded]).endswith("_1"):
            checkpoints.save_checkpoint(tmp_path, {"a": 2}, 2)
        return read(*args, **options)

    monkeypatch.setattr(module, name, read_later)
    assert checkpoints.restore_checkpoint(tmp_path, None) == {"a": 2}


def test_errors_list_the_existing_steps(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="checkpoint_3; there is no checkpoint"):
        checkpoints.restore_checkpoint(tmp_path, None, step=3)
    for step in (1, 2):
        checkpoints.save_checkpoint(tmp_path, {}, step, keep=2)
    with pytest.raises(ValueError, match="checkpoint_3; there are the steps 1, 2"):
        checkpoints.restore_checkpoint(tmp_path, None, step=3)


@pytest.mark.parametrize("ours", [InvalidCheckpointError, MultiprocessArrayError])
def test_errors_can_be_pickled(ours: type[Exception]) -> None:
    import flax.errors

    both = error_class(ours, "flax.errors", "InvalidCheckpointError")
    assert issubclass(both, flax.errors.InvalidCheckpointError)
    copied = pickle.loads(pickle.dumps(both("text")))
    assert type(copied) is ours
    assert str(copied) == "text"


def test_errors_are_made_by_a_text_where_no_builtin_class_has_a_constructor() -> None:
    class OursError(Exception):
        """In the order of its bases like a ValueError of Python 3.14: without `__init__`."""

    import flax.errors

    assert "__init__" in vars(flax.errors.InvalidCheckpointError)  # of a path and a step
    error = error_class(OursError, "flax.errors", "InvalidCheckpointError")("text")
    assert isinstance(error, flax.errors.InvalidCheckpointError)
    assert str(error) == "text"


def test_files_and_what_is_absent(tmp_path: Path) -> None:
    path = checkpoints.save_checkpoint(tmp_path / "series", {"a": 1}, 1)
    assert checkpoints.restore_checkpoint(path, None) == {"a": 1}
    for place in (tmp_path / "absent", f"{path}/below", (tmp_path / "absent").as_uri()):
        assert checkpoints.restore_checkpoint(place, 5) == 5
        with pytest.raises(ValueError, match="checkpoint_1"):
            checkpoints.restore_checkpoint(place, 5, 1)
    with pytest.raises(ValueError, match="checkpoint_1"):
        checkpoints.restore_checkpoint(path, 5, 1)
    (tmp_path / "empty").mkdir()
    assert checkpoints.restore_checkpoint(tmp_path / "empty", 5) == 5
    with pytest.raises(ValueError, match="strict must be"):
        checkpoints.restore_checkpoint(tmp_path / "empty", 5, strict="typo")  # type: ignore[arg-type]
    (tmp_path / "empty" / "checkpoint_1").mkdir()  # as of a save that has not ended
    assert checkpoints.restore_checkpoint(tmp_path / "empty", 5) == 5
    with pytest.raises(IsADirectoryError):
        checkpoints.restore_checkpoint(tmp_path / "empty", 5, 1)


@pytest.mark.parametrize("number", [errno.EPERM, errno.EBUSY, errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("how", ["file", "background", "all processes", "listing"])
def test_a_save_is_complete_if_old_checkpoints_cannot_be_deleted(
    tmp_path: Path, monkeypatch: Any, number: int, how: str
) -> None:
    def fails(directory: Any, names: Any) -> Any:
        if how == "listing" or "checkpoint_1" in names:
            raise OSError(number, os.strerror(number), *names)
        remove_files(directory, names)

    remove_files = Address.remove_files
    for step in (1, 2):
        checkpoints.save_checkpoint(tmp_path, {"a": step}, step, keep=9)
    if how == "listing":
        monkeypatch.setattr(Steps, "ordered", lambda _: fails(None, [tmp_path.name]))
    else:
        monkeypatch.setattr(Address, "remove_files", fails)
    manager = checkpoints.AsyncManager() if how == "background" else None
    together = how == "all processes"
    verb = checkpoints.save_checkpoint_multiprocess if together else checkpoints.save_checkpoint

    def save() -> None:
        verb(tmp_path, {"a": 3}, 3, overwrite=how == "listing", async_manager=manager)
        if manager is not None:
            manager.wait_previous_save()

    with pytest.warns(UserWarning, match="the save is complete, but .*checkpoint"):
        save()
    monkeypatch.undo()
    left = ["checkpoint_1", *["checkpoint_2"] * (how == "listing"), "checkpoint_3"]
    assert names(tmp_path) == left
    assert checkpoints.restore_checkpoint(tmp_path, None) == {"a": 3}


def test_files_restore_as_numpy_arrays_and_directories_as_those_of_the_target(
    tmp_path: Path,
) -> None:
    tree = {"w": jnp.ones(4)}
    path = checkpoints.save_checkpoint(tmp_path, tree, 1)
    assert type(checkpoints.restore_checkpoint(tmp_path, tree)["w"]) is np.ndarray
    assert isinstance(treepack.load(path, tree)["w"], jax.Array)
    treepack.save(tmp_path / "checkpoint_2", tree, sharded=True)
    assert isinstance(checkpoints.restore_checkpoint(tmp_path, tree)["w"], jax.Array)
    assert type(checkpoints.restore_checkpoint(tmp_path, None)["w"]) is np.ndarray
