"""A run on one disk and in one process: saved by steps, resumed from the newest intact one."""

from __future__ import annotations

import collections
import dataclasses
import gc
import gzip
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import commands
import tiers
import treepack
from treepack import (
    CorruptionError,
    InvalidCheckpointError,
    Keep,
    NoIndexError,
    Series,
    TreepackError,
    checkpoints,
)
from treepack._src.runs.contents import Contents
from treepack._src.storage import content as storage_content
from treepack._src.storage.address import Address
from treepack.errors import BusyError


def state(step: int) -> dict[str, Any]:
    return {"w": jnp.full(1000, step, jnp.float32), "host": np.arange(300) + step, "step": step}


TEMPLATE = state(0)


def check(found: Any, step: int) -> None:
    """Fails unless a result of `resume` is all of one step."""
    assert found is not None
    assert found[0] == step
    assert jax.tree.all(jax.tree.map(np.array_equal, found[1], state(step)))


def saved(folder: Path, *steps: int, **options: Any) -> Series:
    run = Series(folder, **options)
    for step in steps:
        run.save(step, state(step), metrics={"loss": 1 / (step + 1)}, local={"seen": step})
    return run


@pytest.mark.parametrize("sharded", [False, True])
def test_a_local_item_that_resume_could_not_load_is_not_saved(
    tmp_path: Path, sharded: bool
) -> None:
    unique = f"Local{sharded}"
    named = collections.namedtuple(f"{unique}Tuple", "seen", module="local")  # type: ignore[misc]
    plain = dataclasses.make_dataclass(f"{unique}Plain", ["seen"], namespace={"__module__": "l"})
    handled = type(f"{unique}Handled", (), {"seen": 1})
    flax.serialization.register_serialization_state(
        handled, lambda node: {"seen": node.seen}, lambda node, state: node
    )
    run = Series(tmp_path, sharded=sharded)
    run.save(1, state(1))
    for local, place, cure, cured in (
        ({"a": [collections.Counter("aab")]}, "a/0: ", "pass dict(...)", lambda it: {"a": [{}]}),
        (type("Pairs", (dict,), {})(seen=1), "", "pass dict(...)", dict),
        (type("Several", (list,), {})([1]), "", "list(...)", list),
        ([handled()], "", "treepack.serialization.to_state_dict(...)", lambda it: [{}]),
        (
            {"b/c": named(2)},
            named.__name__,
            "register_namedtuple",
            lambda it: treepack.register_namedtuple(named, serialized_name=named.__name__) and it,
        ),
        (
            [plain(3)],
            plain.__name__,
            "call treepack.register_dataclass",
            lambda it: treepack.register_dataclass(plain, serialized_name=plain.__name__) and it,
        ),
    ):
        with pytest.raises(treepack.UnserializableLeafError) as caught:
            run.save(2, state(2), local=local)
        assert caught.value.path == "local"
        assert place in str(caught.value)
        assert cure in str(caught.value)
        fitting: Any = cured(local)
        run.save(1, state(1), local=fitting)
        again = Series(tmp_path)
        check(again.resume(TEMPLATE), 1)
        assert again.local == fitting


def test_a_run_goes_on_where_it_was(tmp_path: Path) -> None:
    run = Series(tmp_path / "run", keep=Keep(last=2))
    assert run.resume(TEMPLATE) is None
    assert run.steps() == []
    for step in range(5):
        run.save(
            step,
            state(step),
            metrics={"loss": jnp.float32(step)},
            metadata={"config": (step, "a")},
            local={"seen": step, "rng": np.arange(3)},
            background=step % 2 == 0,
        )
    run.wait()
    again = Series(tmp_path / "run")
    assert again.steps() == [3, 4]
    check(again.resume(TEMPLATE), 4)
    assert again.skipped == []
    assert again.local["seen"] == 4
    again.local["rng"][0] = 7  # is writable
    assert again.metrics(3) == {"loss": 3.0}
    assert again.metadata(4) == {"config": (4, "a")}
    # Each is an ordinary checkpoint.
    assert treepack.load(again.path(3), TEMPLATE)["step"] == 3
    assert treepack.verify(again.path(3)).ok


def test_names_of_others_are_left_alone(tmp_path: Path) -> None:
    names = ["step_1.bak", "step_01", "step_-1", "step_1e3", "step_²", "step_", "ema_1", "notes"]
    names += ["step_" + "9" * 30, "step_tmp", ".step_1", "step_9_gda"]
    for name in names:
        (tmp_path / name).write_text("mine")
    (tmp_path / "step_folder").mkdir()
    (tmp_path / "step_5_gda").mkdir()
    run = saved(tmp_path, 1, 2, 3, 10, keep=Keep(last=1))
    other = saved(tmp_path, 1, 2, 3, keep=Keep(last=2), prefix="ema_")
    assert (run.steps(), other.steps()) == ([10], [2, 3])
    there = {it.name for it in tmp_path.iterdir()}
    assert there == {*names, "step_folder", "step_5_gda", "step_10", "ema_2", "ema_3"} - {"ema_1"}
    check(run.resume(TEMPLATE), 10)
    assert run.skipped == []


def damage(path: Path, kind: str, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    if kind == "torn":
        path.write_bytes(data[: rng.randrange(1, len(data))])
    elif kind == "flipped":
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
    elif kind == "zeroed":  # of a file system that was not synced
        start = rng.randrange(len(data)) & ~511
        data[start : start + 512] = bytes(min(512, len(data) - start))
        path.write_bytes(data)
    elif kind == "emptied":
        path.write_bytes(b"")
    elif kind.startswith("metadata"):
        series = {"step": np.ones(3)} if "step" in kind else {"step": 3, "local": 5}
        treepack.save(path, state(3), metadata={"series": series, "metadata": None})
    elif kind == "another step":
        path.write_bytes((path.parent / "step_1").read_bytes())
    elif kind == "a text":
        path.write_text("<html>404</html>")
    else:
        path.unlink()
        path.mkdir()
        (path / "notes").write_text("mine")


KINDS = ["torn", "flipped", "zeroed", "emptied", "another step", "a text", "a folder"]
KINDS += ["metadata with a step", "metadata with a local item"]


@pytest.mark.parametrize("kind", KINDS)
def test_resume_skips_damaged_checkpoints(tmp_path: Path, kind: str) -> None:
    rng = random.Random(kind)
    run = saved(tmp_path, 1, 2, 3)
    for step, skipped in ((3, [3]), (2, [3, 2])):
        path = Path(run.path(step))
        whole = path.read_bytes()
        for _ in range(tiers.either(6, 60) if kind in KINDS[:3] else 1):
            path.write_bytes(whole)
            damage(path, kind, rng)
            if path.is_file() and path.read_bytes() == whole:
                continue  # zeros were there
            with pytest.warns(UserWarning, match="is skipped"):
                check(run.resume(TEMPLATE), step - 1)
            assert [it for it, _ in run.skipped] == skipped
            assert str(path) in str(run.skipped[-1][1]) or kind == "a folder"
            assert run.local == {"seen": step - 1}


@pytest.mark.parametrize("name", ["metrics", "best"])
def test_a_checkpoint_that_is_replaced_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    run, other = (Series(tmp_path, sharded=True) for _ in range(2))
    run.save(1, {"w": 1}, metrics={"loss": 1}, metadata="first")
    begin, has_replaced = Contents.__init__, list[int]()

    def replaced(contents: Contents, reader: Any, step: int) -> None:
        """The manifest was read; the save removes the files that it names."""
        if not has_replaced:
            has_replaced.append(step)
            other.save(1, {"w": 2}, metrics={"loss": 2}, metadata="second")
        begin(contents, reader, step)

    monkeypatch.setattr(Contents, "__init__", replaced)
    if name == "metrics":
        assert run.metrics(1) == {"loss": 2}
    else:
        assert run.best("loss", "min") == 1
    assert has_replaced == [1]
    assert run.metadata(1) == "second"


@pytest.mark.parametrize("verify", ["all", "manifest"])
def test_resume_skips_a_torn_gzip_file_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verify: Any
) -> None:
    """Without its index, a large file might be of another program."""
    monkeypatch.setattr(storage_content, "_SMALL_BYTES", 1000)
    monkeypatch.setattr(storage_content, "_CHECKED_BYTES", 1000)
    run = Series(tmp_path)
    run.save(1, {"w": np.arange(5)}, compress=True)
    run.save(2, {"w": np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8)}, compress=True)
    path = Path(run.path(2))
    whole = path.read_bytes()
    for size in (len(whole) - 1, len(whole) // 2, 1500):
        path.write_bytes(whole[:size])
        with pytest.warns(UserWarning, match="step 2 of .* is skipped"):
            assert run.resume(verify=verify)[0] == 1
    path.write_bytes(gzip.compress(gzip.decompress(whole)))
    with pytest.raises(NoIndexError):  # another program's is no damage
        run.resume(verify=verify)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


SPECIAL: dict[str, Callable[[Path], None]] = {
    "a pipe": lambda path: os.mkfifo(path),
    "a device": lambda path: path.symlink_to("/dev/null"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a socket": make_socket,
}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes with names")
@pytest.mark.parametrize("sharded", [False, True])
@tiers.parametrize("kind", SPECIAL)
def test_files_of_the_system_are_passed_over(tmp_path: Path, kind: str, sharded: bool) -> None:
    """Reading a pipe, or writing to it, would wait for another program."""
    run = saved(tmp_path, 1, sharded=sharded)
    SPECIAL[kind](tmp_path / "step_2")
    with pytest.warns(UserWarning, match="step 2 of .* is skipped"):
        check(run.resume(TEMPLATE), 1)
    assert "step_2': " in str(run.skipped[0][1])
    with pytest.raises(TreepackError, match="step_2"):
        run.metrics(2)
    listed = commands.run("ls", str(tmp_path))
    assert "1 of 2 checkpoints" in listed
    run.save(2, state(2))
    check(run.resume(TEMPLATE), 2)
    assert run.skipped == []
    assert treepack.verify(run.path(2)).ok


@pytest.mark.parametrize("verify", ["manifest", "all"])
@pytest.mark.parametrize("byte", [b"\0", b"\n", b"\x1f"])
def test_a_file_of_one_byte_is_passed_over(
    tmp_path: Path, byte: bytes, verify: Literal["manifest", "all"]
) -> None:
    """Which is an integer of MessagePack."""
    run = saved(tmp_path, 1, 2)
    Path(run.path(2)).write_bytes(byte)
    with pytest.warns(UserWarning, match="is skipped"):
        check(run.resume(None, verify=verify), 1)
    assert [step for step, _ in run.skipped] == [2]


def test_directories_of_other_programs_stay(tmp_path: Path) -> None:
    (tmp_path / "step_1").mkdir()
    (tmp_path / "step_1" / "notes").write_text("mine")
    run = treepack.Series(tmp_path, keep=treepack.Keep(last=1))
    with pytest.raises(treepack.TreepackError, match="files of another program"):
        run.save(1, {"w": 1})
    for step in (2, 3, 4):
        run.save(step, {"w": 1})
    assert (tmp_path / "step_1" / "notes").read_text() == "mine"
    assert not (tmp_path / "step_2").exists()


def test_a_checkpoint_goes_with_all_files_in_its_directory(tmp_path: Path) -> None:
    run = treepack.Series(tmp_path, unchanged="link", keep=treepack.Keep(last=1))
    run.save(1, {"w": 1})
    (tmp_path / "step_1" / "notes").write_text("mine")
    run.save(2, {"w": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["step_2"]


def test_a_call_of_preemption_alone_warns(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"has no effect: write `with run\.preemption\(\):`"):
        treepack.Series(tmp_path).preemption()


def test_a_second_signal_does_not_end_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    after: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: after.append(number))
    try:
        run = treepack.Series(tmp_path)
        monkeypatch.setattr(run, "wait", lambda: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(SystemExit), run.preemption():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert after == []


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="signals of the user")
@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("sharded", [False, True])
def test_a_signal_may_interrupt_the_save_of_a_handler(
    tmp_path: Path, sharded: bool, background: bool
) -> None:
    """Which saves as well, while the first save still waits."""
    run = Series(tmp_path, sharded=sharded)
    handled = []

    def interrupt(*_: Any) -> None:
        if len(handled) < 3 and threading.current_thread() is threading.main_thread():
            signal.raise_signal(signal.SIGUSR1)

    def handle(*_: Any) -> None:
        if len(handled) < 3:
            handled.append(len(handled) + 1)
            save(handled[-1], background=background)

    def save(value: int, **options: Any) -> None:
        saving = run.save(5, {"value": value}, progress=interrupt, **options)
        if saving is not None:
            saving.result()

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        save(0)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert handled == [1, 2, 3]
    assert run.resume() == (5, {"value": 0})


def test_options_that_cannot_work_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must not end with a digit"):
        treepack.Series(tmp_path, prefix="v1")
    with pytest.raises(TypeError, match="keep"):
        treepack.Series(tmp_path, keep=3)  # type: ignore[arg-type]


def test_a_run_in_which_nothing_is_whole_is_an_error_that_names_all(tmp_path: Path) -> None:
    run = saved(tmp_path, 1, 2)
    Path(run.path(1)).write_bytes(b"")
    Path(run.path(2)).write_bytes(Path(run.path(2)).read_bytes()[:500])
    with pytest.raises(CorruptionError, match=r"whole: step 2: .*step_2.*ends.*; step 1: .*empty"):
        run.resume(TEMPLATE)
    assert [step for step, _ in run.skipped] == [2, 1]


def test_a_save_that_never_ended_is_passed_over(tmp_path: Path) -> None:
    run = Series(tmp_path)
    (tmp_path / "step_7").mkdir()
    for name in ("0123abcd-00000", "manifest"):  # killed before and in the commit
        (tmp_path / "step_7" / f".{name}.treepack.treepack-1-2.tmp").write_bytes(b"some")
    assert run.resume(TEMPLATE) is None
    assert [step for step, _ in run.skipped] == [7]
    assert "has not ended" in str(run.skipped[0][1])
    assert run.steps() == []
    saved(tmp_path, 3, 8, keep=Keep())
    assert [it.name for it in tmp_path.iterdir()] == ["step_8"]


def test_what_is_not_damage_is_raised(tmp_path: Path) -> None:
    run = saved(tmp_path, 1, 2)
    with pytest.raises(treepack.MismatchError, match="step_2"):
        run.resume({**TEMPLATE, "w": jnp.zeros(3)})
    run.resume({**TEMPLATE, "w": jnp.zeros(3)}, strict=False)
    os.chmod(run.path(2), 0)  # noqa: PTH101
    if os.getuid() != 0:
        with pytest.raises(PermissionError):
            run.resume(TEMPLATE)
    with pytest.raises(ValueError, match="'manifest' or 'all'"):
        run.resume(TEMPLATE, verify="some")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="on_corrupt"):
        run.resume(TEMPLATE, on_corrupt="skip")  # type: ignore[call-arg]


def test_less_may_be_verified(tmp_path: Path) -> None:
    run = saved(tmp_path, 1, 2)
    path = Path(run.path(2))
    data = bytearray(path.read_bytes())
    data[2000] ^= 1  # in an array
    path.write_bytes(data)
    found = run.resume(verify="manifest")
    assert found is not None
    assert found[0] == 2
    with pytest.warns(UserWarning, match="is skipped"):
        found = run.resume()
    assert found is not None
    assert found[0] == 1


def test_files_of_others_are_resumed(tmp_path: Path) -> None:
    """Those of `save` and of flax, which a program has saved before."""
    run = Series(tmp_path, prefix="checkpoint_", keep=Keep(last=3))
    treepack.save(run.path(3), state(3), metadata={"mine": 1})
    check(run.resume(TEMPLATE), 3)
    assert run.local is None
    assert run.metrics(3) == {}
    assert run.metadata(3) == {"mine": 1}
    checkpoints.save_checkpoint(tmp_path, state(4), 4, keep=9)
    check(run.resume(TEMPLATE, verify="manifest"), 4)
    with pytest.raises(TreepackError, match="checksums"):
        run.resume(TEMPLATE)
    run.save(5, state(5))
    assert run.steps() == [3, 4, 5]
    run.save(6, state(6))
    assert run.steps() == [4, 5, 6]


def test_a_step_is_saved_again_but_none_before_a_whole_one(tmp_path: Path) -> None:
    run = saved(tmp_path, 1, 5)
    run.save(5, {**state(5), "step": 6})
    found = run.resume()
    assert found is not None
    assert found[1]["step"] == 6
    for later in (run, Series(tmp_path)):
        with pytest.raises(InvalidCheckpointError, match="step 5"):
            later.save(4, state(4))
    # A damaged one does not count: training goes on before it.
    Path(run.path(5)).write_bytes(b"")
    for again in (run, Series(tmp_path)):
        with pytest.warns(UserWarning, match="is skipped"):
            check(again.resume(TEMPLATE), 1 if again is run else 3)
        again.save(3, state(3))
    run.save(5, state(5))
    check(run.resume(TEMPLATE), 5)
    assert run.steps() == [1, 3, 5]


def test_damaged_checkpoints_do_not_count_for_rules(tmp_path: Path) -> None:
    run = saved(tmp_path, 1, 2, 3, 4, keep=Keep(last=2))
    assert run.steps() == [3, 4]
    Path(run.path(4)).write_bytes(b"")
    run = saved(tmp_path, 5, keep=Keep(last=2))
    assert run.steps() == [3, 4, 5]
    run.save(6, state(6))
    assert run.steps() == [5, 6]


def test_an_error_of_the_rules_does_not_harm_the_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = saved(tmp_path, 1, 2, keep=Keep())

    def fail(*_: object) -> None:
        raise PermissionError(1, "not permitted", "x")

    monkeypatch.setattr(Address, "remove_files", fail)
    with pytest.warns(UserWarning, match="step_2"):
        run.save(3, state(3))
    monkeypatch.undo()
    monkeypatch.setattr("treepack._src.runs.steps.Listing.remove", fail)
    with pytest.warns(UserWarning, match="step 4 is saved, but older"):
        run.save(4, state(4))
    monkeypatch.undo()
    assert run.steps() == [2, 3, 4]
    run.save(5, state(5))
    assert run.steps() == [5]


def test_the_save_after_a_failed_one_in_the_background_warns_and_continues(tmp_path: Path) -> None:
    run = Series(tmp_path / "run")
    (tmp_path / "run").write_text("in the way")
    saving = run.save(1, state(1), background=True)
    while not saving.done():
        pass
    (tmp_path / "run").unlink()
    with pytest.warns(UserWarning, match="step_1 was not saved.*the next save goes on"):
        run.save(2, state(2), background=True)
    run.wait()
    assert run.steps() == [2]
    (tmp_path / "run").rename(tmp_path / "other")
    (tmp_path / "run").write_text("in the way")
    saving = run.save(3, state(3), background=True)
    with pytest.raises(OSError, match="run"):
        run.wait()
    (tmp_path / "run").unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is known
        run.save(4, state(4))


def test_pins_need_a_checkpoint(tmp_path: Path) -> None:
    run = saved(tmp_path, 1, keep=Keep())
    run.keep(1)
    with pytest.raises(TreepackError, match=r"no checkpoint of step 2 in .*: there are 1"):
        run.keep(2)
    run = saved(tmp_path, 2, 3, keep=Keep())
    assert run.steps() == [1, 3]
    (tmp_path / "step_1.keep").unlink()
    run.save(4, state(4))
    assert run.steps() == [4]
    with pytest.raises(TreepackError, match="there is none"):
        Series(tmp_path / "nothing").metrics(1)


@pytest.mark.parametrize("step", [-1, 10**18, 1.0, "1", None])
def test_steps_are_integers(tmp_path: Path, step: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        Series(tmp_path).save(step, {})
    assert [*tmp_path.iterdir()] == []


def test_arguments_are_checked(tmp_path: Path) -> None:
    run = Series(tmp_path)
    with pytest.raises(TypeError, match="unexpected keyword argument 'select'"):
        run.save(1, {}, select="a")  # type: ignore[call-overload]
    wrong: dict[str, Any]
    for wrong in ({"strict": "no"}, {"missing": "skip"}, {"dtype": "int8"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):  # though there is no checkpoint
            run.resume(**wrong)
    values: list[Any] = ["low", "0.5", b"1", [1], None, 2j, np.zeros(3), 10**400]
    for run in (Series(tmp_path), Series(tmp_path, sharded=True)):
        for value in values:
            with pytest.raises(TypeError, match=r"metrics\['loss'\] must be a number, got"):
                run.save(1, {}, metrics={"loss": value})
        with pytest.raises(TypeError, match="metrics must be numbers by name"):
            run.save(1, {}, metrics=[1.0])  # type: ignore[call-overload]
        for local, path in ((object(), "local"), ({"a": [1, object()]}, "local/a/1")):
            with pytest.raises(treepack.UnserializableLeafError, match=f"at {path}: "):
                run.save(1, {}, local=local)
        with pytest.raises(ValueError, match="unique") as caught:
            run.save(1, {}, local={1: 2, "1": 3})
        assert "the argument local" in caught.value.__notes__[-1]
    with pytest.raises(treepack.UnserializableLeafError, match="a/b"):
        run.save(1, {"a": {"b": object()}})
    with pytest.raises(ValueError, match="prefix"):
        Series(tmp_path, prefix="a/b")
    with pytest.raises(FileNotFoundError):
        Series("")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.campaign
def test_nothing_is_held(tmp_path: Path) -> None:
    run = Series(tmp_path)
    for background in (False, True):
        array = jnp.ones(1 << 18)
        alive = weakref.ref(array)
        run.save(1, [array], background=background)
        run.wait()
        del array
        gc.collect()
        assert alive() is None


def test_the_program_may_go_to_another_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = Series("run")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    run.save(1, state(1), background=True)
    run.wait()
    assert (tmp_path / "run" / "step_1").exists()
    assert [*(tmp_path / "other").iterdir()] == []


BUSY = """
import sys, treepack
from treepack._src.claims.lease import BusyError
try:
    treepack.Series(sys.argv[1]).save(9, {"w": 1})
except BusyError as error:
    print(error)
"""


def test_of_two_jobs_one_gets_an_error(tmp_path: Path) -> None:
    outputs = []

    def meanwhile(done: int, total: int) -> None:
        if not outputs:
            command = [sys.executable, "-c", BUSY, str(tmp_path)]
            outputs.append(subprocess.run(command, capture_output=True, text=True).stdout)

    Series(tmp_path).save(1, state(1), progress=meanwhile)
    assert f"process {os.getpid()}" in outputs[0]
    assert [it.name for it in tmp_path.iterdir()] == ["step_1"]


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("compress", [False, True])
def test_a_job_that_lost_its_lease_neither_commits_a_file_nor_removes_others(
    sharded: bool, compress: bool, tmp_path: Path
) -> None:
    def lost(done: int, total: int) -> None:
        (tmp_path / "lease.treepack").unlink(missing_ok=True)

    run = Series(tmp_path, keep=Keep(last=1), sharded=sharded)
    run.save(1, state(1))
    large = {"w": np.zeros(10 << 20, np.uint8)}  # of several calls
    if sharded:  # the directory of the step has a lease of its own
        with pytest.warns(UserWarning, match="step 2 is saved, but .*the lease of this process"):
            run.save(2, large, progress=lost, compress=compress)
    else:
        with pytest.raises(BusyError, match="the lease of this process"):
            run.save(2, large, progress=lost, compress=compress)
    assert run.steps() == [1, 2][: 1 + sharded]


@pytest.mark.campaign
def test_it_needs_no_jax(tmp_path: Path) -> None:
    program = """
import sys
sys.modules["jax"] = None
import numpy as np, treepack
run = treepack.Series(sys.argv[1], keep=treepack.Keep(last=1))
for step in range(3):
    run.save(step, {"a": np.full(3, step)}, local={"seen": step}, background=True)
run.wait()
step, state = run.resume({"a": np.zeros(3, int)})
assert step == 2 and state["a"].sum() == 6 and run.local == {"seen": 2}
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
