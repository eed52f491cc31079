"""Saves that go on while the program does."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import processes
import tiers
import treepack
from treepack import Saving, serialization
from treepack._src.saving import background as _background
from treepack._src.storage.address import Address
from treepack._src.tasks import Milestone
from waiting import HANG_S


def test_a_save_in_the_background_is_like_another(tmp_path: Path) -> None:
    tree = {"w": jnp.ones((300, 400)), "n": np.arange(5), "step": 3, "list": [np.zeros(4000)]}
    saving = treepack.save(tmp_path / "a", tree, background=True, metadata="m")
    assert isinstance(saving, Saving)
    assert saving.result() is None
    assert saving.exception() is None
    assert saving.done()
    assert saving.progress[0] == saving.progress[1] == (tmp_path / "a").stat().st_size
    assert "saved" in repr(saving)
    assert "a" in saving.path
    treepack.save(tmp_path / "b", tree, metadata="m")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


class Gate:
    """Holds up the saves that report to it."""

    def __init__(self) -> None:
        self.open, self.reached = threading.Event(), threading.Event()

    def __call__(self, done: int, total: int) -> None:
        self.reached.set()
        assert self.open.wait(HANG_S)


def test_files_of_the_drop_in_in_the_background(tmp_path: Path) -> None:
    tree, path, gate = {"n": np.arange(5000)}, tmp_path / "a", Gate()
    saving = serialization.save_to_file(tree, path, background=True, progress=gate)
    assert isinstance(saving, Saving)
    tree["n"][:] = 1
    assert gate.reached.wait(HANG_S)
    waiting = threading.Thread(target=serialization.save_to_file, args=({"n": 2}, path))
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()  # the last save to a path is the one that stays
    assert not path.exists()
    gate.open.set()
    saving.result()
    waiting.join()
    assert serialization.load_from_file(None, path) == {"n": 2}
    serialization.save_to_file({"n": np.arange(5000)}, tmp_path / "b", background=True).result()
    assert serialization.load_from_file(None, tmp_path / "b")["n"][-1] == 4999


@pytest.mark.parametrize("compress", [False, True])
def test_what_becomes_of_the_tree_afterwards_does_not_matter(
    tmp_path: Path, compress: bool
) -> None:
    rng = np.random.default_rng(0)
    gate = Gate()
    first = rng.random(1 << 20)  # more than is written before the first report
    tree = {
        "first": first,
        "arrays": [rng.random(size) for size in (1, 100, 1000, 200_000)],
        "strided": rng.random((300, 500))[::2, ::3],
        "bytes": bytearray(b"x" * 5000),
        "dict": {"a": 1},
        "donated": jax.random.normal(jax.random.key(0), (1 << 18,)),
    }
    expected = treepack.loads(treepack.dumps(tree), copy=True)
    saving = treepack.save(
        tmp_path / "model", tree, background=True, progress=gate, compress=compress
    )
    for array in (tree["first"], *tree["arrays"], tree["strided"]):
        array[...] = -1
    tree["bytes"][:] = b"y" * 5000
    tree["dict"]["a"] = 2
    changed = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)(tree.pop("donated"))
    changed.block_until_ready()
    del tree
    gate.open.set()
    saving.result()
    found = treepack.load(tmp_path / "model")
    assert treepack.dumps(found) == treepack.dumps(expected)


DONATED = """
mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"))
value = np.arange(1 << 20, dtype=np.float32).reshape(1024, 1024)
array = jax.device_put(value, NamedSharding(mesh, P("x", "y")))
for sharded in (False, True):
    array = jax.device_put(value, NamedSharding(mesh, P("x", "y")))
    saving = treepack.save(f"{args[0]}-{sharded}", {"w": array}, background=True, sharded=sharded)
    jax.jit(lambda x: x * 0 - 1, donate_argnums=0)(array).block_until_ready()
    saving.result()
    np.testing.assert_array_equal(treepack.load(f"{args[0]}-{sharded}")["w"], value)
"""


@pytest.mark.campaign
def test_arrays_on_several_devices_may_be_donated(tmp_path: Path) -> None:
    processes.run(DONATED, 1, tmp_path / "model", devices=8)


def waits_for_another(thread: threading.Thread) -> bool:
    """Tells whether a thread is blocked because another save to a path is under way."""
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and frame.f_code is Milestone.wait.__code__


def test_the_next_save_to_a_path_waits(tmp_path: Path) -> None:
    gate = Gate()
    path = tmp_path / "model"
    first = treepack.save(path, np.zeros(1 << 20), background=True, progress=gate)
    assert first is not None
    assert gate.reached.wait(HANG_S)
    treepack.save(tmp_path / "other", 1)  # does not
    relative = tmp_path / "folder" / ".." / "model"
    (tmp_path / "folder").mkdir()
    saving: list[Saving] = []
    second = threading.Thread(
        target=lambda: saving.append(treepack.save(relative, "second", background=True))
    )
    second.start()
    while second.is_alive() and not waits_for_another(second):
        time.sleep(0.001)
    assert second.is_alive()
    assert not first.done()
    assert not path.exists()
    gate.open.set()
    second.join()
    saving[0].result()
    assert treepack.load(path) == "second"


def test_what_goes_wrong_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "model" / "below").mkdir(parents=True)
    with caplog.at_level(logging.ERROR, "treepack"):
        saving = treepack.save(tmp_path / "model", {"w": 1}, background=True)
        with pytest.raises(OSError, match="model"):
            saving.result()
        assert isinstance(saving.exception(), OSError)
        assert "Error" in repr(saving)
        del saving
        gc.collect()
        assert not caplog.records
        saving = treepack.save(tmp_path / "model", {"w": 1}, background=True)
        for thread in _background._threads:
            thread.join()
        del saving
        gc.collect()
        assert "model failed" in caplog.text


def test_errors_of_the_tree_and_of_options_are_raised_at_once(tmp_path: Path) -> None:
    path = tmp_path / "model"
    with pytest.raises(treepack.errors.UnserializableLeafError, match="a/b"):
        treepack.save(path, {"a": {"b": object()}}, background=True)
    with pytest.raises(ValueError, match="level"):
        treepack.save(path, {}, background=True, level=3)
    with pytest.raises(ValueError, match="iterator"):
        treepack.save(path, iter([("a", 1)]), background=True)


def test_an_error_of_the_progress_callable_ends_the_save(tmp_path: Path) -> None:
    def fail(done: int, total: int) -> None:
        raise RuntimeError("enough")

    path = tmp_path / "model"
    treepack.save(path, "old")
    saving = treepack.save(path, np.zeros(1 << 20), background=True, progress=fail)
    with pytest.raises(RuntimeError, match="enough"):
        saving.result()
    assert treepack.load(path) == "old"


def test_nothing_is_held_afterwards(tmp_path: Path) -> None:
    array = jnp.ones(1 << 18)
    alive = weakref.ref(array)
    saving = treepack.save(tmp_path / "model", [array], background=True)
    saving.result()
    del array
    gc.collect()
    assert alive() is None


AT_EXIT = """
import multiprocessing, threading, time
from pathlib import Path
from treepack._src.saving import background as _background

main = threading.main_thread().ident

def is_at_its_end():
    frame = sys._current_frames()[main]
    while frame is not None and frame.f_code is not _background._finish.__code__:
        frame = frame.f_back
    return frame is not None

def report(done, total):
    while not is_at_its_end():
        time.sleep(0.001)
    assert not Path(path).exists()

def save(where):
    global path
    path = where
    treepack.save(path, {"w": np.ones(1 << 23)}, background=True, progress=report)

if args[1] == "program":
    save(args[0])
else:
    child = multiprocessing.get_context("fork").Process(target=save, args=(args[0],))
    child.start()
    child.join()
    assert child.exitcode == 0
"""


@pytest.mark.parametrize("what", ["program", "process of multiprocessing"])
def test_the_end_of_the_program_waits(tmp_path: Path, what: str) -> None:
    processes.run(AT_EXIT, 1, tmp_path / "model", what)
    assert treepack.load(tmp_path / "model")["w"].sum() == 1 << 23


FAILS_AT_EXIT = """
treepack.save("/proc/there/is/no/such/folder", {"w": np.ones(8)}, background=True)
"""


def test_a_failure_that_is_not_retrieved_is_logged_at_exit() -> None:
    assert "folder failed" in processes.run(FAILS_AT_EXIT, 1)


# What runs when the program ends, before or after the module waits for its saves.
SAVES_LATE = {
    "save": "treepack.save(path, tree, background=True)",
    "checkpoint of a run": "treepack.Series(path).save(1, tree, background=True)",
    "fast run": "treepack.Series(path, fast=path + '-fast').save(1, tree, background=True)",
    "manager": """treepack.checkpoints.save_checkpoint(
        path, tree, 1, async_manager=treepack.checkpoints.AsyncManager())""",
    "sharded": "treepack.save(path, tree, background=True, sharded=True)",
    "two": "treepack.save(path, 0, background=True), treepack.save(path, tree, background=True)",
    "in a thread": """
    made = threading.Thread(target=lambda: treepack.save(path, tree, background=True))
    made.start()
    made.join()""",
}

ENDS = {
    "atexit": "atexit.register(end)",
    "threads": "threading._register_atexit(end)",
    "executor": """
def wait():
    while not threading._SHUTTING_DOWN:
        time.sleep(0.001)
    end()
concurrent.futures.ThreadPoolExecutor().submit(wait)""",
    "signal": "signal.signal(signal.SIGTERM, lambda *_: (end(), sys.exit(0)))",
}

LATE = """
import atexit, concurrent.futures, signal, sys, threading, time
path = sys.argv[1]
def end():
    tree = np.arange(1 << 20)
    {save}
{register}
import numpy as np, treepack, treepack.checkpoints
if {is_signal}:
    signal.raise_signal(signal.SIGTERM)
"""


def late() -> Iterator[Any]:
    """Yields each save with the plainest end, and the plainest save with each end."""
    yield "save", "atexit"
    pairs = [(save, "atexit") for save in SAVES_LATE] + [("save", end) for end in ENDS]
    for pair in pairs:
        if pair != ("save", "atexit"):
            yield pytest.param(*pair, marks=pytest.mark.campaign)


@pytest.mark.parametrize(("save", "end"), late())
def test_a_save_that_begins_when_the_program_ends_is_whole(
    tmp_path: Path, save: str, end: str
) -> None:
    given = {"save": SAVES_LATE[save], "register": ENDS[end], "is_signal": end == "signal"}
    args = [sys.executable, "-c", LATE.format(**given), str(tmp_path / "late")]
    done = subprocess.run(args, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    path = tmp_path / "late"
    if "run" in save:
        found = treepack.Series(path).resume()
        assert found is not None
        assert found[1].sum() == (1 << 19) * ((1 << 20) - 1)
    else:
        path = path / "checkpoint_1" if save == "manager" else path
        assert treepack.load(path).sum() == (1 << 19) * ((1 << 20) - 1)


@pytest.mark.campaign
@pytest.mark.parametrize("background", [True, False])
def test_what_cannot_be_saved_when_the_program_ends_is_an_error(
    tmp_path: Path, background: bool
) -> None:
    failing = "treepack.save('/proc/no/such', 1, background=True)"
    given = {"save": failing, "register": ENDS["atexit"], "is_signal": False}
    args = [sys.executable, "-c", LATE.format(**given), ""]
    done = subprocess.run(args, capture_output=True, text=True, check=True)
    assert "saving /proc/no/such failed" in done.stderr
    program = f"""
import numpy, sys, treepack
class Last:
    def __del__(self, save=treepack.save, numpy=numpy):
        save(sys.argv[1], numpy.ones(9), background={background})
last = Last()
last.itself = last
"""
    args = [sys.executable, "-c", program, str(tmp_path / "late")]
    done = subprocess.run(args, capture_output=True, text=True, check=True)
    assert (tmp_path / "late").exists() or "Error" in done.stderr
    assert "Panic" not in done.stderr


LATEST = {
    "save": "treepack.save(path, tree)",
    "background": "treepack.save(path, tree, background=True)",
    "sharded": "treepack.save(path, tree, sharded=True)",
    "safetensors": "treepack.save(path, tree, format='safetensors')",
    "series": "treepack.Series(path).save(1, tree)",
    "publisher": "publisher.push(tree, version=1)",
    "flax": "treepack.checkpoints.save_checkpoint(path, tree, 1)",
    "drop-in": "treepack.serialization.save_to_file(tree, path)",
}

HELD = {
    "cycle": "last.itself = last; del last",
    "global": "",
    "module": "sys.modules['h'] = types.ModuleType('h'); sys.modules['h'].it = last; del last",
}


# The cases of `make test`.
FIRST = [("save", "cycle"), ("background", "cycle"), ("publisher", "cycle")]


@tiers.parametrize(
    ("save", "held"),
    [*FIRST, *tiers.some(pair for pair in itertools.product(LATEST, HELD) if pair not in FIRST)],
    quick=len(FIRST),
)
def test_a_save_by_del_when_python_ends_says_that_it_is_too_late(
    tmp_path: Path, save: str, held: str
) -> None:
    program = f"""
import sys, types, numpy, treepack, treepack.checkpoints, treepack.serialization
publisher = treepack.Publisher(sys.argv[1] + "s")
def write(treepack=treepack, publisher=publisher, path=sys.argv[1], tree={{"w": numpy.ones(9)}}):
    {LATEST[save]}
class Last:
    def __del__(self, write=write):
        write()
last = Last()
{HELD[held]}
"""
    args = [sys.executable, "-c", program, str(tmp_path / "late")]
    done = subprocess.run(args, capture_output=True, text=True, check=True)
    assert "too late to save: Python is taking its modules apart" in done.stderr
    assert "Panic" not in done.stderr
    assert not (tmp_path / "late").exists() or save == "series"


def test_nothing_is_held_after_a_failure(tmp_path: Path) -> None:
    (tmp_path / "model" / "below").mkdir(parents=True)
    array = jnp.ones(1 << 18)
    alive = weakref.ref(array)
    saving = treepack.save(tmp_path / "model", [array], background=True)
    assert saving.exception() is not None
    del array
    gc.collect()
    assert alive() is None


def test_a_thread_that_cannot_start_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    array = jnp.ones(1 << 18)
    alive = weakref.ref(array)
    for sharded in (False, True):
        path = tmp_path / f"model-{sharded}"
        with monkeypatch.context() as patch:
            patch.setattr("_thread.start_new_thread", start)
            with pytest.raises(RuntimeError, match="can't start"):
                treepack.save(path, [array], background=True, sharded=sharded)
        assert not path.exists()
        assert not _background._under_way
        saving = treepack.save(path, {"w": 1}, background=True, sharded=sharded)
        saving.result(60)
    del array
    gc.collect()
    assert alive() is None


FORKED = """
import os, signal, sys, threading
import numpy as np, treepack
from treepack._src.registry import names as _names

def in_child(work):
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(60)  # which kills it if it waits for ever
            work()
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

path = sys.argv[1]
go_on, reached = threading.Event(), threading.Event()

def gate(done, total):
    reached.set()
    assert go_on.wait(60)

calls = []
saving = treepack.save(path, np.zeros(1 << 20), background=True, progress=gate)
saving.add_done_callback(calls.append)
assert reached.wait(60)

def save_again():
    for background in (False, True):
        again = treepack.save(path, "child", background=background)
    again.result(60)
    try:
        saving.result(60)
    except treepack.TreepackError as error:
        assert "the parent process continues to save" in str(error), error
    else:
        raise AssertionError("no error")
    assert saving.done() and not calls

in_child(save_again)
assert treepack.load(path) == "child"

def register():
    class Here:
        pass
    treepack.register_auxdata(Here, "here", lambda _: 1, lambda _: Here())
    treepack.save(path, "registered", background=True).result(60)

held, done = threading.Event(), threading.Event()

def hold():
    with _names.registering, saving._condition:
        held.set()
        assert done.wait(60)

thread = threading.Thread(target=hold)
thread.start()
assert held.wait(60)
in_child(register)
in_child(save_again)
done.set()
thread.join()
go_on.set()
saving.result(60)
assert calls == [saving]
assert treepack.load(path).shape == (1 << 20,)
"""


HANDLED = """
import faulthandler, threading, time
faulthandler.dump_traceback_later(300, exit=True)
kind, path, support, calls = args
sys.path.insert(0, support)
from signals import at_each_step
from treepack import checkpoints
from treepack._src.saving import background as _background
from treepack._src.storage.address import Address

if kind == "sharded without links":
    def link(*_):
        raise PermissionError(1, "no links here")
    os.link = link

manager = checkpoints.AsyncManager()
main_thread, handled = threading.get_ident(), []

def is_blocked():
    frame = sys._current_frames()[main_thread]
    while frame is not None and frame.f_code.co_name != "wait":
        frame = frame.f_back
    return frame is not None

def tell(*_):
    while not handled and not is_blocked():
        time.sleep(0)

def save(value, **options):
    treepack.save(path, {"w": np.full(2000, value)}, durable=False, **options)

def value():
    return treepack.load(path)["w"][0]

def work(step):
    handled.clear()
    if kind == "file":
        save(step, background=True, progress=tell)
        save(step, background=True)
        _background.OneByOne(Address.of(path)).wait()
        assert value() in (step, -1)
    elif kind == "manager":
        manager.save_async(tell)
        manager.save_async(lambda: None)
    else:
        save(step, sharded=True)
        assert value() in (step, -1)
        assert treepack.verify(path).ok and len(os.listdir(path)) == 2, os.listdir(path)

def handler():
    handled.append(1)
    if kind == "manager":
        done = []
        manager.save_async(lambda: done.append(1))
        manager.wait_previous_save()
        assert done
        return
    for background in (False, True):
        saving = treepack.save(path, {"w": np.full(2000, -1)}, sharded=kind.startswith("sharded"),
                               background=background, durable=False)
        if background:
            saving.result()
        assert value() == -1

saving = ("claims/directory.py", "claims/lease.py", "saving/sharded.py")
waiting = ("saving/background.py", "_src/tasks.py", "checkpoints/_manager.py", "threading.py",
           "futures/_base.py", "futures/thread.py")
at_each_step(saving if kind.startswith("sharded") else waiting, work, handler, int(calls))
"""


@pytest.mark.campaign
@pytest.mark.parametrize(
    "kind", tiers.some(["file", "manager", "sharded", "sharded without links"])
)
def test_a_signal_handler_may_save_at_any_time(in_memory: Path, kind: str) -> None:
    calls = tiers.either("4", "4", nightly="1")
    support = Path(__file__).parents[1] / "support"
    processes.run(HANDLED, 1, kind, in_memory / "x", support, calls)


@pytest.mark.parametrize("sharded", [False, True])
def test_the_program_may_go_to_another_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sharded: bool
) -> None:
    gone = threading.Event()
    save = Address.save

    def waiting(*args: Any, **options: Any) -> None:
        assert gone.wait(HANG_S)
        save(*args, **options)

    monkeypatch.setattr(Address, "save", waiting)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    saving = treepack.save("model", {"w": np.ones(3)}, background=True, sharded=sharded)
    os.chdir("other")
    gone.set()
    saving.result()
    assert treepack.load(tmp_path / "model")["w"].sum() == 3
    assert list(Path().iterdir()) == []


@pytest.mark.campaign
def test_a_fork_does_not_wait_for_what_its_parent_saves(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED, str(tmp_path / "model")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr


FORKED_GROUP = """
import warnings
warnings.simplefilter("ignore")
child = os.fork()
if child == 0:
    try:
        treepack.save(f"{args[0]}-{index}", {"w": np.ones(3)})
        treepack.save(args[0], {"w": np.ones(3)}, sharded=True)
    except treepack.TreepackError as error:
        os._exit(0 if "a forked process cannot save together" in str(error) else 1)
    os._exit(2)
assert os.waitpid(child, 0)[1] == 0
treepack.save(args[0], {"w": np.ones(3)}, sharded=True)
"""


@pytest.mark.campaign
def test_a_fork_is_not_one_of_the_processes_that_save_together(tmp_path: Path) -> None:
    processes.run(FORKED_GROUP, 2, tmp_path / "model")
    assert treepack.load(tmp_path / "model")["w"].sum() == 3
    assert treepack.load(tmp_path / "model-1")["w"].sum() == 3
