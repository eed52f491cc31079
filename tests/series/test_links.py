"""A run whose steps share the files of unchanged leaves: `Series(unchanged="link")`."""

from __future__ import annotations

import errno
import math
import os
import random
import shutil
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import commands
import processes
import tiers
import treepack
import treepack._core as core
from treepack import Keep, Series
from treepack._src.saving import linking, sharded
from treepack._src.sharded.files import MANIFEST
from treepack._src.sharded.plan import plan_of
from treepack._src.storage.address import Address

FROZEN = {"a": np.arange(20_000.0), "b": np.ones((300, 20), np.float32)}


def state(step: int) -> dict[str, Any]:
    return {**FROZEN, "w": jnp.full(1000, step, jnp.float32), "step": step}


def same(one: Any, other: Any) -> bool:
    if jax.tree.structure(one) != jax.tree.structure(other):
        return False
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(
        np.asarray(a).dtype == np.asarray(b).dtype
        and np.asarray(a).tobytes() == np.asarray(b).tobytes()
        for a, b in pairs
    )


def check(run: Series, step: int, tree: Any) -> None:
    assert treepack.verify(run.path(step)).ok
    assert same(treepack.load(run.path(step), arrays="numpy"), jax.tree.map(np.asarray, tree))


def files(run: Series, step: int) -> dict[str, os.stat_result]:
    return {path.name: path.stat() for path in Path(run.path(step)).iterdir()}


def added(run: Series, step: int) -> int:
    """Returns the bytes of the files of a step that no earlier step has."""
    before = {name for at in run.steps() if at < step for name in files(run, at)}
    found = files(run, step).items()
    return sum(stat.st_size for name, stat in found if name not in before)


@pytest.mark.parametrize("background", [False, True])
def test_unchanged_leaves_are_written_once(tmp_path: Path, background: bool) -> None:
    run = Series(tmp_path, unchanged="link")
    for step in range(4):
        run.save(step, state(step), background=background, local={"seen": step})
    run.wait()
    (shared,) = {it for it in files(run, 0) if it != MANIFEST}
    inode = files(run, 0)[shared].st_ino
    for step in range(4):
        assert files(run, step)[shared].st_ino == inode
        check(run, step, state(step))
    assert files(run, 3)[shared].st_nlink == 4
    assert added(run, 0) > 150_000
    assert max(added(run, step) for step in range(1, 4)) < 10_000
    again = Series(tmp_path, unchanged="link")
    found = again.resume(state(0))
    assert found is not None
    assert found[0] == 3
    assert same(found[1], state(3))
    assert again.local == {"seen": 3}
    again.save(4, {**found[1], "w": jnp.zeros(1000), "step": 4})
    assert files(again, 4)[shared].st_ino == inode
    assert added(again, 4) < 10_000


def test_a_step_is_whole_without_the_others(tmp_path: Path) -> None:
    run = Series(tmp_path / "run", unchanged="link", keep=Keep(last=1))
    for step in range(3):
        run.save(step, state(step))
    assert run.steps() == [2]  # the others are removed, and their bytes stay
    check(run, 2, state(2))
    shutil.copytree(run.path(2), tmp_path / "copy")
    shutil.rmtree(tmp_path / "run")
    found = treepack.load(tmp_path / "copy", arrays="numpy")
    assert same(found, jax.tree.map(np.asarray, state(2)))


def test_a_file_is_written_again_once_most_of_it_has_changed(tmp_path: Path) -> None:
    tree = {f"{name}": np.full(1000, 0.0) for name in range(10)}
    run = Series(tmp_path, unchanged="link")
    for step in range(10):
        tree = {**tree, f"{step}": np.full(1000, step + 1.0)}
        run.save(step, tree)
        check(run, step, tree)
        sizes = [stat.st_size for stat in files(run, step).values()]
        assert sum(sizes) < 2.5 * 80_000  # of which records and the manifest take some
    assert max(files(run, 9).items(), key=lambda it: it[1].st_size)[0] not in files(run, 0)


def test_few_files_make_up_a_step(tmp_path: Path) -> None:
    tree = {f"{name}": np.full(10, 0.0) for name in range(40)}
    run = Series(tmp_path, unchanged="link")
    for step in range(40):
        tree = {**tree, f"{step}": np.full(10, step + 1.0)}
        run.save(step, tree)
    assert 5 < len(files(run, 39)) <= 20 + 1
    check(run, 39, tree)


@tiers.parametrize("seed", range(30))
def test_any_sequence_of_changes_is_loaded_as_it_was_saved(seed: int, in_memory: Path) -> None:
    rng = random.Random(seed)
    run = Series(in_memory, unchanged="link", keep=Keep(last=3, every=4))
    names = [f"{it}/{it % 3}" for it in range(8)]
    sizes = {name: rng.choice([40, 300, 3000]) for name in names}
    tree: dict[str, Any] = {}
    saved = {}
    for step in range(12):
        for name in rng.sample(names, rng.randrange(len(names))):
            change = rng.random()
            kind = rng.choice([np.float32, np.int64, jnp.bfloat16])
            if change < 0.2:
                tree.pop(name, None)
            elif change < 0.3:
                tree[name] = step
            elif change < 0.4 and isinstance(tree.get(name), np.ndarray):
                tree[name] = tree[name].reshape(2, -1)  # the same bytes
            else:
                tree[name] = np.full(sizes[name], rng.randrange(3)).astype(kind)
        saved[step] = dict(tree)
        live = {name: jnp.asarray(it) if rng.random() < 0.3 else it for name, it in tree.items()}
        run.save(step, live if jax.config.jax_enable_x64 else tree, background=rng.random() < 0.5)
        if rng.random() < 0.3:
            run.wait()
            run = Series(in_memory, unchanged="link", keep=Keep(last=3, every=4))
            found = run.resume()
            assert found is not None
            assert found[0] == step
            assert same(found[1], tree)
        elif rng.random() < 0.1:
            run.wait()
            shutil.rmtree(run.path(step))
    run.wait()
    for step in run.steps():
        assert same(treepack.load(run.path(step)), saved[step]), step
        assert treepack.verify(run.path(step)).ok


def test_only_equal_kinds_are_linked(tmp_path: Path) -> None:
    zeros = np.zeros(1000, np.float32)
    run = Series(tmp_path, unchanged="link")
    for step, tree in enumerate(
        [{"a": zeros}, {"a": zeros.view(np.int32)}, {"a": zeros.reshape(10, -1)}, {"b": zeros}]
    ):
        run.save(step, tree)
        assert len(files(run, step)) == 2
        assert all(stat.st_nlink == 1 for stat in files(run, step).values())
        check(run, step, tree)


def test_full_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Series(tmp_path / "int", unchanged="link", full_every=3)
    for step in range(5):
        run.save(step, state(0))
    run = Series(tmp_path / "int", unchanged="link", full_every=3)
    run.resume()  # the count continues
    for step in range(5, 8):
        run.save(step, state(0))
    assert [step for step in range(8) if added(run, step) > 100_000] == [0, 3, 6]
    now = [1e9]
    monkeypatch.setattr(linking.time, "time", lambda: now[0])
    run = Series(tmp_path / "default", unchanged="link")
    for step in range(120):
        now[0] += 3600 if step < 60 else 0  # a day has passed at step 24, and not after step 60
        run.save(step, {"w": np.zeros(3000)})
    assert [step for step in range(120) if added(run, step) > 20_000] == [0, 50]


@pytest.mark.parametrize("change", ["removed", "another", "moved"])
def test_a_predecessor_that_has_gone_is_not_linked(tmp_path: Path, change: str) -> None:
    run = Series(tmp_path, unchanged="link")
    run.save(1, state(1))
    if change == "moved":
        shutil.move(run.path(1), tmp_path / "elsewhere")
    else:
        shutil.rmtree(run.path(1))
    if change == "another":
        treepack.save(run.path(1), state(7), sharded=True)
    run.save(2, state(2))
    check(run, 2, state(2))
    assert all(stat.st_nlink == 1 for stat in files(run, 2).values())


def test_a_step_may_be_saved_again(tmp_path: Path) -> None:
    run = Series(tmp_path, unchanged="link")
    run.save(1, state(1))
    run.save(2, state(2))
    run.save(2, state(3))
    check(run, 1, state(1))
    check(run, 2, state(3))
    assert len(files(run, 2)) == 3
    assert added(run, 2) < 10_000


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP])
def test_files_are_copied_where_links_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    link = os.link

    def fails(source: Any, target: Any, **options: Any) -> None:
        if not os.fspath(source).endswith(".tmp"):  # of a lease
            raise OSError(number, os.strerror(number))
        link(source, target, **options)

    monkeypatch.setattr(os, "link", fails)
    run = Series(tmp_path, unchanged="link")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(3):
            run.save(step, state(step))
    (warning,) = caught
    assert os.strerror(number) in str(warning.message)
    for step in range(3):
        check(run, step, state(step))
        assert all(stat.st_nlink == 1 for stat in files(run, step).values())
    assert files(run, 0).keys() & files(run, 2).keys() > {MANIFEST}


def test_a_damaged_file_harms_all_steps_that_share_it(tmp_path: Path) -> None:
    run = Series(tmp_path, unchanged="link", full_every=3)
    for step in range(6):
        run.save(step, state(step))
    (name,) = {*files(run, 3)} - {MANIFEST}
    with (Path(run.path(4)) / name).open("r+b") as file:
        file.seek(50_000)
        file.write(b"damage")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = run.resume()
    assert found is not None
    assert found[0] == 2
    assert same(found[1], state(2))
    assert [step for step, _ in run.skipped] == [5, 4, 3]
    assert sum(name in str(it.message) for it in caught) == 3
    run.save(6, state(6))  # which links the files of step 2
    check(run, 6, state(6))


@pytest.mark.parametrize("again", [False, True])
def test_a_truncated_file_is_not_linked(tmp_path: Path, again: bool) -> None:
    run = Series(tmp_path, unchanged="link")
    run.save(0, state(0))
    run.save(1, state(1))
    (name,) = {*files(run, 0)} - {MANIFEST}
    os.truncate(Path(run.path(0)) / name, 50_000)
    step = 1 if again else 2
    with pytest.warns(
        UserWarning, match=rf"{name} has the wrong size.*every earlier step"
    ) as caught:
        run.save(step, state(step))
    assert [it.filename for it in caught] == [__file__]
    check(run, step, state(step))
    assert name not in files(run, step)
    run.save(3, state(3))
    assert added(run, 3) < 10_000


def test_a_file_in_the_way_of_a_link_is_replaced(tmp_path: Path) -> None:
    """It is of a damaged step that is saved again."""
    run = Series(tmp_path, unchanged="link")
    for step in range(3):
        run.save(step, state(step))
    [name] = {*files(run, 0)} & {*files(run, 2)} - {MANIFEST}
    path = Path(run.path(2)) / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    path.write_bytes(data)
    again = Series(tmp_path, unchanged="link")
    with pytest.warns(UserWarning, match="is skipped"):
        found = again.resume()
    assert found is not None
    assert found[0] == 1
    with warnings.catch_warnings(action="error"):
        again.save(2, state(2))
    assert path.samefile(Path(run.path(0)) / name)
    assert not [name for name in files(run, 2) if name.startswith(".")]
    check(run, 2, state(2))


def test_a_truncated_file_of_the_run_is_copied_from_the_fast_tier(tmp_path: Path) -> None:
    durable = tmp_path / "run"
    run = Series(durable, fast=tmp_path / "fast", unchanged="link")

    def save(step: int) -> None:
        run.save(step, state(step))
        run.wait()

    save(0)
    (name,) = {*files(run, 0)} - {MANIFEST}
    os.truncate(durable / "step_0" / name, 50_000)
    with pytest.warns(UserWarning, match=rf"{name} has the wrong size.*every earlier step"):
        save(1)
    assert (durable / "step_1").exists()
    check(Series(durable), 1, state(1))


def test_a_step_is_salvaged_without_its_manifest(tmp_path: Path) -> None:
    run = Series(tmp_path, unchanged="link")
    for step in range(4):
        run.save(step, state(step))
    damaged = Path(run.path(3)) / MANIFEST
    data = damaged.read_bytes()
    for content in (None, data[:-3], data[: len(data) // 2]):
        damaged.unlink(missing_ok=True)
        if content is not None:
            damaged.write_bytes(content)
        with treepack.open(run.path(3), salvage=True) as file:
            for name in ("a", "b", "w"):
                assert np.array_equal(file[name][:], state(3)[name]), (name, content)


def test_one_file_is_made_of_a_step(tmp_path: Path) -> None:
    run = Series(tmp_path / "run", unchanged="link")
    for step in range(3):
        run.save(step, state(step))
    commands.invoke("convert", run.path(2), tmp_path / "one.treepack")
    assert (tmp_path / "one.treepack").is_file()
    assert same(treepack.load(tmp_path / "one.treepack"), treepack.load(run.path(2)))


def test_memory_may_change_after_a_save_in_the_background(tmp_path: Path) -> None:
    run = Series(tmp_path, unchanged="link")
    array = np.zeros(100_000)
    for step in range(4):
        array[:] = step // 2
        run.save(step, {"w": array}, background=True)
        array[:] = -1
    run.wait()
    for step in range(4):
        check(run, step, {"w": np.full(100_000, step // 2, np.float64)})


@pytest.mark.parametrize("background", [False, True])
def test_both_tiers_have_links(tmp_path: Path, background: bool) -> None:
    durable, fast = tmp_path / "run", tmp_path / "fast"
    run = Series(durable, fast=fast, unchanged="link")

    def save(step: int) -> None:
        run.save(step, state(step), background=background)
        run.wait()

    for step in range(3):
        save(step)
    (shared,) = {it for it in files(run, 0) if it != MANIFEST}
    assert files(run, 2)[shared].st_nlink == 3
    assert max(added(run, step) for step in (1, 2)) < 10_000
    assert (fast / "step_2" / shared).stat().st_nlink == 1  # the older ones are removed
    run = Series(durable, fast=fast, unchanged="link")
    assert run.resume(state(0)) is not None
    save(3)
    assert files(run, 3)[shared].st_nlink == 4
    shutil.rmtree(fast)
    run = Series(durable, fast=fast, unchanged="link")
    assert run.resume(state(0)) is not None
    save(4)
    assert files(run, 4)[shared].st_ino == files(run, 0)[shared].st_ino
    assert max(added(run, step) for step in (3, 4)) < 10_000
    for step in range(5):
        check(run, step, state(step))


def test_damage_in_the_fast_tier_is_not_copied(tmp_path: Path) -> None:
    durable, fast = tmp_path / "run", tmp_path / "fast"
    run = Series(durable, fast=fast, unchanged="link")
    for step in range(2):
        run.save(step, state(step))
        run.wait()
    (shared,) = {it for it in files(run, 0) if it != MANIFEST}
    content = bytearray((fast / "step_1" / shared).read_bytes())
    content[len(content) // 2] ^= 1
    (fast / "step_1" / shared).write_bytes(content)
    run.save(2, state(2))
    with pytest.raises(treepack.errors.TreepackError, match=shared):
        run.wait()
    assert not Path(durable / "step_2").exists()
    check(run, 1, state(1))
    for step in (3, 4):  # which do not have the file
        run.save(step, state(step))
        run.wait()
        check(run, step, state(step))
    assert added(run, 4) < 10_000


def test_options_that_exclude_each_other(tmp_path: Path) -> None:
    options: Any
    for options, cure in (
        ({"unchanged": "copy"}, "'write' or 'link'"),
        ({"unchanged": "link", "sharded": False}, "leave out sharded=False"),
        ({"full_every": 3}, "leave it out"),
        ({"unchanged": "link", "full_every": 0}, "at least 1"),
    ):
        with pytest.raises(ValueError, match=cure):
            Series(tmp_path / "run", **options)


@pytest.mark.campaign
def test_a_long_run_takes_at_most_twice_the_bytes_that_are_alive(
    in_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharded, "BLOCK_BYTES", 20_000)
    rng, steps = random.Random(0), tiers.either(300, 300, nightly=10_000)
    # Leaves and blocks of a buffer, and how often they change.
    rates = {f"{it}": rate for it, rate in enumerate([1, 0.5, 0.1, 0.01, 0.001] * 3)}
    values = dict.fromkeys([*rates, *range(10)], 0)
    saved: dict[int, dict[Any, int]] = {}
    most = 0.0

    def tree(values: dict[Any, int]) -> dict[str, Any]:
        blocks = [np.full((50, 100), values[block], np.float32) for block in range(10)]
        leaves = {name: np.full(5000, values[name], np.float32) for name in rates}
        return {**leaves, "buffer": np.concatenate(blocks)}

    def series() -> Series:
        return Series(in_memory, unchanged="link", keep=Keep(last=2, every=1000), full_every=500)

    run = series()
    for step in range(steps):
        changed = [name for name, rate in rates.items() if rng.random() < rate]
        for name in [*changed, step // 5 % 10]:
            values[name] = rng.randrange(1 << 20)
        saved[step] = dict(values)
        run.save(step, tree(values), background=rng.random() < 0.3)
        run.wait()
        kept = run.steps()
        saved = {at: saved[at] for at in kept}
        alive = 20_000 * len({pair for each in saved.values() for pair in each.items()})
        on_disk = [path for path in in_memory.rglob("*") if path.is_file()]
        stats = [path.stat() for path in on_disk]
        nbytes = sum({stat.st_ino: stat.st_size for stat in stats}.values())
        most = max(most, nbytes / alive)
        assert nbytes <= 2 * alive, (step, nbytes, alive)
        if rng.random() < 0.01 or step == steps - 1:
            named = {Path(run.path(at)) / name for at in kept for name in names_in(run.path(at))}
            assert {*on_disk} == named
            for at in kept:
                check(run, at, tree(saved[at]))
            run = series()
            found = run.resume()
            assert found is not None
            assert found[0] == step
            assert same(found[1], tree(values))
    print(f"{steps} steps: at most {most:.2f} times the bytes that are alive")


def names_in(path: str) -> set[str]:
    """Returns the names of the files of a step."""
    manifest = core.Manifest.decode((Path(path) / MANIFEST).read_bytes())
    return {MANIFEST, *(name for name, _, _ in manifest.files)}


SAVES = """
import os
from treepack._src.saving import sharded
sharded.BLOCK_BYTES = int(args[2])
devices = jax.devices() if len(args) < 4 else jax.devices()[::2] + jax.devices()[1::2]
mesh = Mesh(np.array(devices), ("x",))
rows = NamedSharding(mesh, P("x"))

def put(w):
    return jax.make_array_from_callback(w.shape, rows, lambda index: w[index])

def state(step):
    frozen = np.arange(80_000.0, dtype=np.float32).reshape(8, -1)
    return {"frozen": put(frozen), "w": put(np.full((8, 100), step, np.float32)), "step": step}

run = treepack.Series(args[0], unchanged="link", timeout=60)
first = int(args[1])
found = run.resume(state(0))
assert (found is None) == (first == 0)
if found is not None:
    assert found[0] == found[1]["step"] == first - 1
    for shard in found[1]["w"].addressable_shards:
        assert (np.asarray(shard.data) == first - 1).all()
for step in range(first, first + 3):
    run.save(step, state(step), local={"of": index}, background=step % 2 == 0)
run.wait()
assert run.resume(state(0))[0] == step and run.local == {"of": index}
"""


@pytest.mark.campaign
@pytest.mark.parametrize("block", [1 << 20, 16_000])
def test_processes_link_their_own_files(tmp_path: Path, block: int) -> None:
    run = Series(tmp_path)

    def save(first: int, count: int, devices: int) -> None:
        processes.run(SAVES, count, tmp_path, first, block, devices=devices)

    save(0, 2, 2)  # four devices, as all that follow
    shared = {name for name in files(run, 0) if name != MANIFEST}
    assert len(shared) == 2
    save(3, 2, 2)
    save(6, 1, 4)  # which has the shards of both
    save(9, 2, 1)  # other shards, of the same blocks
    for step in range(12):
        assert shared <= {*files(run, step)} or (step >= 9 and block > 16_000), step
        tree = treepack.load(run.path(step), arrays="numpy")
        assert (tree["w"] == step).all()
        assert np.array_equal(tree["frozen"].ravel(), np.arange(80_000.0))
        assert treepack.verify(run.path(step)).ok
    assert not shared & {*files(run, 9)} or block == 16_000


FAILS = (
    SAVES.partition("run =")[0].replace("int(args[2])", "1 << 20")
    + """
from treepack._src.saving.linking import Step

class Unlucky(Exception):
    pass

def unlucky(*args):
    raise Unlucky("no digests")

unchanged = Step.unchanged
for unlucky_one in (0, 2):
    run = treepack.Series(args[0], unchanged="link", timeout=60)
    run.resume(state(0))
    Step.unchanged = unlucky if index == unlucky_one else unchanged
    try:
        run.save(12, state(12), local={"of": index})
    except Unlucky:
        assert index == unlucky_one
    except treepack.TreepackError as error:
        assert f"process {unlucky_one}: " in str(error) and "no digests" in str(error), error
    else:
        raise AssertionError("saved")

Step.unchanged = unchanged
for number, reason in enumerate(("different tree", "memoryview", "did not call", "missed step")):
    timeout = (60, 60, 4, 10 if index == 2 else 60)[number]
    run = treepack.Series(args[0], unchanged="link", timeout=timeout)
    run.resume(state(0))
    step, tree = 12 + number, state(12)
    if index == 2:
        if number == 2:
            continue
        step += number == 3
        tree |= {"more": [np.zeros(9), memoryview(np.zeros((2, 2))), 0, 0][number]}
    try:
        run.save(step, tree, local={"of": index})
    except (treepack.TreepackError, TypeError) as error:
        waited = index == 2 and number == 3  # for a save of process 0
        assert reason in str(error) or waited, error
        assert "process 0 did not call" not in str(error) or waited, error
    else:
        raise AssertionError("saved")
"""
)


@pytest.mark.campaign
def test_processes_link_files_that_they_share(tmp_path: Path) -> None:
    """Each of four has a quarter of the file that one wrote."""
    run = Series(tmp_path)

    def save(first: int, count: int, devices: int) -> None:
        processes.run(SAVES, count, tmp_path, first, 1 << 20, devices=devices)

    save(0, 1, 4)
    [shared] = {*files(run, 1)} & {*files(run, 2)} - {MANIFEST}
    save(3, 4, 1)
    save(6, 4, 1)  # which find in the files of the last step that they share one
    save(9, 1, 4)
    processes.run(FAILS, 4, tmp_path)
    for step in range(12):
        assert shared in files(run, step), step
        tree = treepack.load(run.path(step), arrays="numpy")
        assert (tree["w"] == step).all()
        assert np.array_equal(tree["frozen"].ravel(), np.arange(80_000.0))
        assert treepack.verify(run.path(step)).ok


@pytest.mark.campaign
def test_processes_link_files_on_another_mesh(tmp_path: Path) -> None:
    """As many processes, of which each has halves of the files of two."""
    run = Series(tmp_path)
    processes.run(SAVES, 4, tmp_path, 0, 1 << 20, devices=2)
    shared = {*files(run, 1)} & {*files(run, 2)} - {MANIFEST}
    assert len(shared) == 4
    processes.run(SAVES, 4, tmp_path, 3, 1 << 20, "interleaved", devices=2)
    for step in range(3, 6):
        assert shared <= {*files(run, step)}
        tree = treepack.load(run.path(step), arrays="numpy")
        assert (tree["w"] == step).all()
        assert np.array_equal(tree["frozen"].ravel(), np.arange(80_000.0))


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("when", [(linking, "digests_of"), (Address, "save")])
@pytest.mark.parametrize("step", [1, 2])
def test_an_array_that_changes_during_a_save_is_written_as_its_digest_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, when: Any, compress: bool
) -> None:
    array = np.zeros(20_000)
    call = getattr(*when)

    def changing(*args: Any) -> Any:
        if when[1] == "save":
            array[:] = 7
        found = call(*args)
        array[:] = 7
        return found

    run = Series(tmp_path / "run", unchanged="link")
    if step == 2:
        run.save(1, {"w": np.ones(20_000)}, compress=compress)  # so that digests decide
    with monkeypatch.context() as patch:
        patch.setattr(*when, changing)
        run.save(step, {"w": array}, compress=compress)
    assert (array == 7).all()
    for value in (0, 7, 1):
        step += 1
        run.save(step, {"w": np.full(20_000, value, float)}, compress=compress)
        check(run, step, {"w": np.full(20_000, value, float)})


@pytest.mark.parametrize(
    ("kind", "rows"), [("numpy", 1000), ("jax", 1000), ("mesh", 1000), ("numpy", 1009)]
)
def test_only_blocks_of_rows_that_changed_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, rows: int
) -> None:
    monkeypatch.setattr(sharded, "BLOCK_BYTES", 4000)
    mesh = jax.make_mesh((2, 2), ("x", "y"))
    convert: Any = {
        "numpy": np.copy,
        "jax": jnp.asarray,
        "mesh": lambda array: jax.device_put(array, NamedSharding(mesh, P("x", "y"))),
    }[kind]
    buffer, rng = np.zeros((rows, 50), np.float32), np.random.default_rng(0)
    template = {"buffer": convert(buffer), "at": 0}
    run = Series(tmp_path, unchanged="link", keep=Keep(last=2, every=10))
    saved, at = {}, 0
    for step in range(40):
        new = np.arange(at, at + 10) % len(buffer)
        buffer[new] = rng.standard_normal((10, 50), np.float32)
        at = (at + 10) % 950  # also across the end
        saved[step] = buffer.copy()
        run.save(step, {"buffer": convert(buffer), "at": at}, background=step % 3 == 1)
        run.wait()
        check(run, step, {"buffer": buffer, "at": at})
        assert len(files(run, step)) <= 21
        assert sum(stat.st_size for stat in files(run, step).values()) < 2 * buffer.nbytes
        if 0 < step < 25:  # later, half of the first file has changed
            assert added(run, step) < 8 * 4000 + 10_000
        if step % 9 == 5:
            run = Series(tmp_path, unchanged="link", keep=Keep(last=2, every=10))
            found = run.resume(template)
            assert found is not None
            assert type(found[1]["buffer"]) is type(template["buffer"])
            assert found[0] == step
            assert same(found[1], {"buffer": buffer, "at": at})
    for step in run.steps():
        tree = {"buffer": saved[step], "at": (10 * step + 10) % 950}
        assert treepack.digest(run.path(step)) == treepack.digest(tree)
        assert type(treepack.load(run.path(step))["buffer"]) is type(template["buffer"])
        with treepack.open(run.path(step)) as file:
            assert np.array_equal(file["buffer"][7:993:11, 3:44], saved[step][7:993:11, 3:44])
    across = NamedSharding(mesh, P(None if rows % 2 else "y", "x"))
    loaded = treepack.load(run.path(step), {"buffer": template["buffer"], "at": 0}, sharding=across)
    assert same(loaded, tree)
    (Path(run.path(step)) / MANIFEST).unlink()
    with treepack.open(run.path(step), salvage=True) as file:
        assert np.array_equal(file["buffer"][:], saved[step])


def test_without_a_file_and_the_manifest_no_replaced_shard_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The earlier file still has it, and the lost one had the current one."""
    monkeypatch.setattr(sharded, "BLOCK_BYTES", 4000)
    buffer, other = np.zeros((500, 50), np.float32), np.zeros(600, np.float32)
    run = Series(tmp_path / "run", unchanged="link")
    for step in range(3):
        buffer[100 * step] = other[:] = step + 1
        flat = np.ones(600) if step else np.zeros((20, 30))
        run.save(step, {"buffer": buffer, "other": other, "flat": flat})
    copy = tmp_path / "copy"
    shutil.copytree(run.path(2), copy)
    (copy / MANIFEST).unlink()
    with treepack.open(copy, salvage=True) as file:
        assert same(dict(file.leaves()), {"buffer": buffer, "other": other, "flat": flat})
    middle = {*files(run, 1)} & {*files(run, 2)} - {*files(run, 0)}
    assert middle
    for loss in ("damaged", "missing"):
        for name in middle:  # it has the blocks that changed at step 1, and `flat`
            if loss == "damaged":  # its record, which has its age
                data = (copy / name).read_bytes()
                (copy / name).write_bytes(data[:-20] + bytes([data[-20] ^ 1]) + data[-19:])
            else:
                (copy / name).unlink()
        with treepack.open(copy, salvage=True) as file:
            assert all(name in str(file.damage) for name in middle)
            assert "unknown which leaves are current" in str(file.damage)
            assert [path for path, _ in file.leaves()] == ["other"]
            assert np.array_equal(file["other"][:], other)


@pytest.mark.parametrize(
    ("shape", "sharding", "expected"),
    [
        ((1000, 10), (1, 1), (10, 1)),
        ((4, 250, 10), (1, 1, 1), (4, 2, 1)),  # rows of an environment
        ((4, 250, 10), (2, 1, 1), (4, 2, 1)),
        ((4, 250, 10), (1, 1, 2), (4, 1, 2)),
        ((3, 4, 5000), (1, 1, 1), (3, 4, 5)),
        ((50, 10), (1, 1), (1, 1)),
        ((1009, 10), (1, 1), (10, 1)),  # a prime number of rows
        ((2 * 1009, 10), (2, 1), (2, 1)),  # blocks would not end where the shards do
        ((1009, 1000), (1, 1), (1009, 1)),
    ],
)
def test_blocks_of_rows_have_one_size(shape: Any, sharding: Any, expected: Any) -> None:
    array = np.zeros(shape, np.float32)
    if math.prod(sharding) > 1:
        devices = np.array(jax.devices())[: math.prod(sharding)]
        mesh = Mesh(devices.reshape(sharding), ("x", "y", "z")[: array.ndim])
        array = jax.device_put(array, NamedSharding(mesh, P(*mesh.axis_names)))
    layout = core.walk(
        array, state_dict=True, align=1, max_chunk_size=2**30, structure=True, gaps=True
    )
    manifest = core.Manifest.planned(layout, plan_of([array], 4000))
    assert manifest.grid(0) == ([*expected], isinstance(array, np.ndarray))


def test_only_arrays_that_may_be_unchanged_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests_of, seen = linking.digests_of, list[int]()

    def noted(arrays: list[Any], threads: int | None) -> list[bytes]:
        seen.append(sum(array.nbytes for array in arrays))
        return digests_of(arrays, threads)

    monkeypatch.setattr(linking, "_SAMPLE", 5)
    frozen, loaded = jnp.arange(3000.0), np.arange(500.0)
    run = Series(tmp_path, unchanged="link")
    run.save(0, {"frozen": frozen, "loaded": loaded, "w": jnp.zeros(10)})
    monkeypatch.setattr(linking, "digests_of", noted)
    for step in range(1, 4):
        tree = {"frozen": frozen, "loaded": loaded, "w": jnp.full(10, float(step))}
        run.save(step, tree, background=step == 2)
        run.wait()
        check(run, step, tree)
        assert added(run, step) < 4000
    few = 5 * 8 + 5 * tree["w"].dtype.itemsize
    assert seen == [few, 4000] * 3  # of `frozen`, which is the same object, nothing
    run.save(4, {"frozen": frozen + 0, "loaded": loaded, "w": tree["w"]})  # another object
    assert seen[-2:] == [few, 4000 + frozen.nbytes]
    assert added(run, 4) < 4000
