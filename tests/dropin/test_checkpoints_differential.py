"""Series of checkpoints beside `flax.training.checkpoints`: the same names, files and errors."""

from __future__ import annotations

import inspect
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import flax.errors
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.training import checkpoints as flax_checkpoints
from flax.training.train_state import TrainState
from hypothesis import given
from hypothesis import strategies as st

import processes
import tiers
from treepack import checkpoints
from treepack.errors import InvalidCheckpointError, MultiprocessArrayError

BOTH = (flax_checkpoints, checkpoints)


@pytest.fixture(autouse=True, scope="module")
def files() -> Iterator[None]:
    """Makes flax save files by itself: by default, it lets Orbax do it."""
    before = flax.config.flax_use_orbax_checkpointing
    flax.config.update("flax_use_orbax_checkpointing", False)
    yield
    flax.config.update("flax_use_orbax_checkpointing", before)


def test_every_public_name_is_here() -> None:
    for name, value in vars(flax_checkpoints).items():
        home = getattr(value, "__module__", flax_checkpoints.__name__)
        if name.startswith("_") or isinstance(value, ModuleType):
            continue
        if name[0].islower() and home != flax_checkpoints.__name__:
            continue  # it imports that
        if name in ("Any", "Callable", "Iterable", "GlobalAsyncCheckpointManager"):
            continue
        assert name in checkpoints.__all__, name
        if isinstance(value, str):
            assert getattr(checkpoints, name) == value


def test_a_path_other_than_a_directory_has_no_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for ours in (flax_checkpoints, checkpoints):
        ours.save_checkpoint(".", {"a": 1}, 1, overwrite=True)
        assert ours.latest_checkpoint("") is None
        with pytest.raises(NotADirectoryError):
            ours.latest_checkpoint("checkpoint_1")
        with pytest.raises(ValueError, match="checkpoint_1/checkp"):
            ours.restore_checkpoint("checkpoint_1", None, step=7)


@pytest.mark.parametrize("name", [name for name in checkpoints.__all__ if name[0].islower()])
def test_signatures_are_the_same_but_for_options(name: str) -> None:
    theirs = inspect.signature(getattr(flax_checkpoints, name)).parameters.values()
    ours = inspect.signature(getattr(checkpoints, name)).parameters.values()
    given = [one for one in ours if one.kind is not inspect.Parameter.KEYWORD_ONLY]
    assert [(one.name, one.default) for one in given] == [(one.name, one.default) for one in theirs]


# Of names with numbers that are equal, the order of the directory decides in flax.
STEPS = st.integers(-3, 40) | st.sampled_from([0.5, 1.25, 10.5, 30.75, 1e-7, 2e20])

SAVES = st.fixed_dictionaries(
    {
        "step": STEPS,
        "prefix": st.sampled_from(["checkpoint_", "ema_", "a.b-c1_", "Ünï_"]),
        "keep": st.integers(0, 4),
        "overwrite": st.booleans(),
        "keep_every_n_steps": st.none() | st.integers(1, 12),
    }
)


def attempted(module: Any, directory: Path, options: dict[str, Any]) -> str | None:
    """Saves the step; returns the name of the file, or `None` if it is outdated."""
    try:
        path = module.save_checkpoint(directory, {"step": np.float64(options["step"])}, **options)
    except flax.errors.InvalidCheckpointError:
        return None
    assert Path(path).parent == directory
    return Path(path).name


# A disk takes milliseconds for each file.
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


@pytest.mark.campaign
@given(saves=st.lists(SAVES, max_size=12))
def test_saves_leave_the_same_files(saves: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as root:
        theirs, ours = Path(root, "flax"), Path(root, "treepack")
        for options in saves:
            expected = attempted(flax_checkpoints, theirs, options)
            assert attempted(checkpoints, ours, options) == expected
            if not theirs.exists():
                assert not ours.exists()
                continue
            files = sorted(path.name for path in theirs.iterdir())
            assert sorted(path.name for path in ours.iterdir()) == files
            for name in files:
                assert Path(ours, name).read_bytes()  # not equal: ours are aligned
            prefix = options["prefix"]
            for directory in (theirs, ours):
                latest = [module.latest_checkpoint(directory, prefix) for module in BOTH]
                assert latest[0] == latest[1]
                steps = [module.available_steps(directory, prefix, float) for module in BOTH]
                assert steps[0] == steps[1]
                found = [
                    module.restore_checkpoint(directory, None, prefix=prefix) for module in BOTH
                ]
                assert found[0] == found[1]
                assert found[0]["step"] == steps[0][-1]


names = st.text("_-+.019eE/ab", max_size=12)


@given(names=st.lists(names, max_size=8), signed=st.booleans())
def test_names_are_sorted_the_same(names: list[str], signed: bool) -> None:
    expected = flax_checkpoints.natural_sort(names, signed)
    assert checkpoints.natural_sort(names, signed) == expected


@given(scheme=st.sampled_from(["", "gs://", "S3://", "a+b://"]), rest=st.text("./ab", max_size=10))
def test_paths_are_normal_the_same(scheme: str, rest: str) -> None:
    path = scheme + rest
    assert checkpoints.safe_normpath(path) == flax_checkpoints.safe_normpath(path)


modules = st.recursive(
    st.just({}),
    lambda children: st.dictionaries(
        st.from_regex(r"(Conv|Dense|a_b)(_[0-9]{1,2})?", fullmatch=True), children, max_size=4
    ),
    max_leaves=12,
)


@given(params=modules)
def test_parameters_before_linen_are_renamed_the_same(params: dict[str, Any]) -> None:
    expected = flax_checkpoints.convert_pre_linen(params)
    found = checkpoints.convert_pre_linen(params)
    assert found == expected
    assert list(found) == list(expected)
    frozen = flax.core.freeze(params)
    assert checkpoints.convert_pre_linen(frozen) == flax_checkpoints.convert_pre_linen(frozen)
    assert type(checkpoints.convert_pre_linen(frozen)) is flax.core.FrozenDict


def train_state() -> TrainState:
    return TrainState.create(
        apply_fn=None, params={"w": jnp.arange(4.0), "b": [jnp.ones(2)]}, tx=optax.adam(1e-3)
    ).replace(step=7)


@pytest.mark.parametrize("saver", BOTH)
@pytest.mark.parametrize("loader", BOTH)
def test_files_go_both_ways(tmp_path: Path, saver: Any, loader: Any) -> None:
    state = train_state()
    path = saver.save_checkpoint(tmp_path, state, 7)
    for where, step in ((tmp_path, 7), (tmp_path, None), (path, None)):
        blank = jax.tree.map(jnp.zeros_like, state)
        found = loader.restore_checkpoint(where, blank, step=step)
        assert type(found) is TrainState
        assert jax.tree.all(jax.tree.map(np.array_equal, found, state))
        # A target of another shape is no error in flax.
        other = {"params": {"w": jnp.zeros(9), "b": [jnp.zeros(2)]}}
        assert loader.restore_checkpoint(where, None, step=step)["params"]["w"].shape == (4,)
        with pytest.raises(ValueError, match=r"params|step|opt_state|keys"):
            loader.restore_checkpoint(where, {**other, "more": 1}, step=step)


def test_missing_checkpoints_are_the_same(tmp_path: Path) -> None:
    for module in BOTH:
        target = {"a": 1}
        assert module.restore_checkpoint(tmp_path / "none", target) is target
        assert module.restore_checkpoint(tmp_path, target) is target
        assert module.latest_checkpoint(tmp_path / "none") is None
        assert module.available_steps(tmp_path / "none") == []
        with pytest.raises(ValueError, match="Matching checkpoint not found"):
            module.restore_checkpoint(tmp_path, target, step=3)


def test_managers_of_both_go_with_both(tmp_path: Path) -> None:
    for saver in BOTH:
        for manager in (flax_checkpoints.AsyncManager(), checkpoints.AsyncManager()):
            for step in range(3):
                saver.save_checkpoint(
                    tmp_path, {"step": step}, step, overwrite=True, async_manager=manager
                )
            manager.wait_previous_save()
            assert [path.name for path in tmp_path.iterdir()] == ["checkpoint_2"]


def test_errors_are_of_both_classes(tmp_path: Path) -> None:
    checkpoints.save_checkpoint(tmp_path, {}, 3)
    for kind in (InvalidCheckpointError, ValueError, flax.errors.InvalidCheckpointError):
        with pytest.raises(kind, match=r"checkpoint_2.* .*checkpoint_3"):
            checkpoints.save_checkpoint(tmp_path, {}, 2)


@pytest.mark.filterwarnings("ignore:Sharding info not provided")  # of Orbax
@pytest.mark.parametrize("saver", BOTH)
@pytest.mark.parametrize("loader", BOTH)
@tiers.parametrize("multiprocess", [False, True])
def test_checkpoints_of_orbax_go_both_ways(
    tmp_path: Path, saver: Any, loader: Any, multiprocess: bool
) -> None:
    import orbax.checkpoint as ocp

    save = saver.save_checkpoint_multiprocess if multiprocess else saver.save_checkpoint
    tree = {"w": jnp.arange(6.0), "inner": {"n": 3}}
    for step in range(1, 6):
        save(
            tmp_path,
            tree,
            step,
            keep=2,
            keep_every_n_steps=2,
            orbax_checkpointer=ocp.PyTreeCheckpointer(),
        )
    # Before it saves, the other function removes what is older.
    kept = [1, 3, 4, 5]
    assert loader.available_steps(tmp_path) == kept
    for target in (None, {"w": jnp.zeros(6), "inner": {"n": 0}}):
        found = loader.restore_checkpoint(tmp_path, target)
        np.testing.assert_array_equal(found["w"], tree["w"])
        assert found["inner"]["n"] == 3
    shutil.rmtree(tmp_path / "checkpoint_5")
    with pytest.raises(ValueError, match="exists"):
        save(tmp_path, tree, 3, keep=5, orbax_checkpointer=ocp.PyTreeCheckpointer())


SEVERAL = """
import os, pytest
from flax.training import checkpoints as flax_checkpoints
from jax.experimental.array_serialization.serialization import GlobalAsyncCheckpointManager
from treepack import checkpoints
import flax.errors

flax.config.update("flax_use_orbax_checkpointing", False)
value = np.arange(64.0, dtype=np.float32).reshape(16, 4)
mesh = Mesh(np.array(jax.devices()), "x")
sharding = NamedSharding(mesh, P("x"))
put = lambda value: jax.make_array_from_callback(value.shape, sharding, lambda at: value[at])
tree = {"w": put(value), "inner": {"v": put(value + 1), "n": 3}, "h": np.ones(5)}
zeros = {"w": put(0 * value), "inner": {"v": put(0 * value), "n": 0}, "h": np.zeros(5)}
directory, manager = args[0], GlobalAsyncCheckpointManager()
for step in range(3):
    flax_checkpoints.save_checkpoint_multiprocess(directory, tree, step, gda_manager=manager)
manager.wait_until_finished()
assert checkpoints.available_steps(directory) == [2]
for target in (None, zeros):
    with pytest.raises(flax.errors.MPACheckpointingRequiredError):
        checkpoints.restore_checkpoint(directory, target, gda_manager=manager)
part = checkpoints.restore_checkpoint(directory, None, allow_partial_mpa_restoration=True)
assert part["w"] == "//GDAPlaceholder:w"
assert part["inner"]["n"] == 3
with pytest.raises(ValueError, match="async_manager="):
    checkpoints.save_checkpoint_multiprocess(directory, tree, 3, gda_manager=manager)
again = flax_checkpoints.restore_checkpoint(directory, zeros, gda_manager=manager)
checkpoints.save_checkpoint_multiprocess(directory, again, 3)
if jax.process_index() == 0:
    assert os.listdir(directory) == ["checkpoint_3"]
found = checkpoints.restore_checkpoint(directory, zeros)
assert found["w"].sharding == sharding and found["inner"]["n"] == 3
for shard in found["inner"]["v"].addressable_shards:
    np.testing.assert_array_equal(np.asarray(shard.data), value[shard.index] + 1)
"""


@pytest.mark.campaign
def test_arrays_of_several_processes_move_from_flax(tmp_path: Path) -> None:
    processes.run(SEVERAL, 2, tmp_path, devices=2)


def test_lost_arrays_are_an_error(tmp_path: Path) -> None:
    """As when a file is copied without the directory beside it."""
    checkpoints.save_checkpoint(tmp_path, {"a": f"{checkpoints.MP_ARRAY_PH}a"}, 1)
    for target in (None, {"a": jnp.zeros(3)}):
        with pytest.raises(MultiprocessArrayError, match=r"directory \*_gda beside it"):
            checkpoints.restore_checkpoint(tmp_path, target)
