"""Every call of the system that a save makes, failed in turn; and power lost after each of them.

Calls that file systems may lack are refused, too. A tracer (`tests/support/tracer.c`) sees calls as
the kernel does, for every thread.
"""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import safetensors.numpy

import tiers
import treepack
from commands import COMMAND
from exported import doubling
from traced import Disk, ask, is_traced, run, write_state
from treepack import _cli, checkpoints, serialization
from treepack._src.claims.lease import BusyError

OLD: Any = {"w": np.arange(3000.0), "n": 3}
NEW: Any = {"w": np.arange(3000.0) + 1, "n": 4}

# Kinds of saves whose files can be opened.
LOADED = ("file", "gzip", "numbers", "background", "directory", "iterator")

# Beside calls that fail once: a disk that is full from then on.
FULL = "FULL"
ERRORS = ("EIO", "ENOSPC", "EDQUOT", "EACCES", "EMFILE", "ENOMEM", "EINTR", "EROFS", "ESTALE")


def leaves(tree: Any) -> Iterator[tuple[str, Any]]:
    yield from tree.items()


def convert(path: Path, tree: Any) -> None:
    """Converts a file of another folder by the command line."""
    source = Path(sys.argv[1]) / "source.msgpack"
    source.write_bytes(serialization.to_bytes(tree))
    errors = io.StringIO()
    command = ["treepack", "convert", str(source), str(path)]
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(sys, "argv", command))
        stack.enter_context(mock.patch.object(_cli, "app", COMMAND))
        stack.enter_context(contextlib.redirect_stderr(errors))
        try:
            _cli.run()
        except SystemExit as ended:
            if ended.code:
                raise OSError(errors.getvalue()) from None


Write = Callable[[Path, Any], object]


def fast_of(path: Path) -> Path:
    """Returns the fast directory of a run."""
    return path.with_name("fast")


def save_step(path: Path, tree: Any, **options: Any) -> None:
    """Saves the next step of a run, and drains it if there is a fast directory."""
    run = treepack.Series(path, keep=treepack.Keep(last=1), **options)
    run.save((run.steps() or [0])[-1] + 1, tree, local=tree["n"])
    run.wait()


def link_step(path: Path, tree: Any) -> None:
    """Resumes a run, and saves its next step, which links the file of an unchanged leaf."""
    run = treepack.Series(path, keep=treepack.Keep(last=1), unchanged="link")
    run.resume()
    state = {**tree, "frozen": np.arange(5000.0)}
    run.save((run.steps() or [0])[-1] + 1, state, local=tree["n"])


SAVES: dict[str, Write] = {
    "file": lambda path, tree: treepack.save(path, tree),
    "gzip": lambda path, tree: treepack.save(path, tree, compress=True),
    "numbers": lambda path, tree: treepack.save(path, tree, compress="numbers"),
    "background": lambda path, tree: treepack.save(path, tree, background=True).result(),
    "directory": lambda path, tree: treepack.save(path, tree, sharded=True),
    "directory in the background": lambda path, tree: treepack.save(
        path, tree, sharded=True, background=True
    ).result(),
    "iterator": lambda path, tree: treepack.save(path, leaves(tree)),
    "state": lambda path, tree: serialization.save_to_file(tree, path),
    "stream": lambda path, tree: treepack.write_stream(path, leaves(tree)),
    "convert": convert,
    "convert to npz": convert,
    "convert to safetensors": convert,
    "directory of safetensors": lambda path, tree: treepack.save(
        path, {**tree, "n": np.asarray(tree["n"])}, format="safetensors", max_shard_size=1000
    ),
    "exported": lambda path, tree: treepack.save_exported(path, doubling(), tree),
    "series": lambda path, tree: checkpoints.save_checkpoint(
        path, tree, tree["n"], keep=1, overwrite=True
    ),
    "run": save_step,
    "run of directories": lambda path, tree: save_step(path, tree, sharded=True),
    "run with links": link_step,
    "run with a fast directory": lambda path, tree: save_step(path, tree, fast=fast_of(path)),
    "run of directories with a fast one": lambda path, tree: save_step(
        path, tree, sharded=True, fast=fast_of(path)
    ),
}

# Kinds that consist of others, whose calls all fail with each error. They make thousands of calls:
# of these each seventh fails, with one error in turn.
COMPOSED = {kind for kind in SAVES if kind.startswith("run ")}

# The names of files that tell their format.
NAMES = {"convert to npz": "model.npz", "convert to safetensors": "model.safetensors"}


def name_of(kind: str) -> str:
    """Returns the name of the file or directory that a save makes."""
    return NAMES.get(kind, "model")


def found_at(kind: str, path: Path) -> Any:
    """Returns the tree at a path."""
    if kind == "convert to npz":
        with np.load(path) as arrays:
            return dict(arrays)
    if kind == "convert to safetensors":
        return safetensors.numpy.load(path.read_bytes())
    if kind == "exported":
        exported, found = treepack.load_exported(path, copy=True, mmap=False)
        assert exported.in_avals == doubling().in_avals
        return found
    if kind == "stream":
        return {keys[-1]: leaf for keys, leaf in treepack.read_stream(path)}
    if kind in ("state", "convert"):
        return serialization.load_from_file(None, path)
    if kind == "series":
        return checkpoints.restore_checkpoint(path, None)
    if kind.startswith("run"):
        run = treepack.Series(path, fast=fast_of(path) if "fast" in kind else None)
        resumed = run.resume(copy=True)
        assert resumed is not None, "there was one"
        assert run.local == resumed[1]["n"]
        with contextlib.suppress(
            BusyError
        ):  # by a lease that was not written before power was lost
            run.wait()  # it drains what it has found
        return resumed[1]
    return treepack.load(path, copy=True, mmap=False)


def which(kind: str, path: Path) -> str:
    """Returns which of both trees is at a path; raises an AssertionError if none is, whole."""
    found = found_at(kind, path)
    for name, tree in (("old", OLD), ("new", NEW)):
        if np.array_equal(np.asarray(found["w"]), tree["w"]) and found["n"] == tree["n"]:
            return name
    raise AssertionError(f"neither is at {path}")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.name.endswith(".tmp"))


def fail_each(kind: str, folder: Path, errors: list[str], *, each: bool, stride: int) -> None:
    """Fails one of `stride` calls of a save, with each error or with one of them in turn."""
    save = SAVES[kind]
    inside = folder / ("full" if errors == [FULL] else "inside")
    inside.mkdir()
    path = inside / name_of(kind)
    save(path, OLD)
    count = 0
    for number in itertools.count(1, stride):
        for name in errors if each else [errors[number % len(errors)]]:
            problem = f"{kind}: call {number}, {name}"
            fault = f"full/{number}" if name == FULL else f"fail/{number}/{getattr(errno, name)}"
            ask(f"{fault}{inside}")
            error: Exception | None = None
            try:
                save(path, NEW)
            except Exception as caught:
                error = caught
            if not ask("failed"):
                assert error is None, problem
                assert count >= (2 if name == FULL else 10), problem
                print(kind, "calls that failed:", count)
                return
            count += 1
            now = which(kind, path)
            assert now == "new" or error is not None, problem
            if error is not None:
                text = " ".join([str(error), *getattr(error, "__notes__", [])])
                assert isinstance(error, (OSError, MemoryError, treepack.TreepackError)), problem
                named = str(inside) in text or "out of memory" in text
                # Python's error for files without a position.
                named = named or isinstance(error, (MemoryError, io.UnsupportedOperation))
                assert named, f"{problem}: {text}"
            save(path, OLD)
            assert which(kind, path) == "old", problem
            assert names(inside) == [], problem


# Calls that some file systems or kernels lack or forbid (CIFS, FUSE, NFS, drvfs), by their numbers
# in asm/unistd_64.h, and the error with which they refuse them.
REFUSALS = {
    "mapping": ([9], "ENODEV"),
    "advice": ([28, 221], "EINVAL"),  # madvise, fadvise64
    "locks": ([73], "ENOLCK"),
    "syncing directories": ([74], "EINVAL"),
    "modes": ([90, 91, 268, 452], "EPERM"),  # chmod, fchmod, fchmodat, fchmodat2
    "owners": ([92, 93, 260], "EPERM"),  # chown, fchown, fchownat
    "links": ([86, 265], "EPERM"),  # link, linkat
    "times": ([280], "EPERM"),  # utimensat
    "reserving": ([277, 285], "EOPNOTSUPP"),  # sync_file_range, fallocate
    "new calls": ([326, 327, 332], "ENOSYS"),  # copy_file_range, preadv2, statx
}


def refuse_some(folder: Path) -> None:
    """Saves in all ways and loads where calls are refused, each kind of them and all together."""
    for kind in SAVES:
        inside = folder / kind
        inside.mkdir()
        path = inside / name_of(kind)
        SAVES[kind](path, OLD)
        for refused in [*([name] for name in REFUSALS), list(REFUSALS)]:
            problem = f"{kind} without {refused}"
            for calls, name in map(REFUSALS.__getitem__, refused):
                for call in calls:
                    ask(f"refuse/{call}/{getattr(errno, name)}{inside}")
            tree = OLD if which(kind, path) == "new" else NEW
            SAVES[kind](path, tree)
            assert which(kind, path) == ("old" if tree is OLD else "new"), problem
            assert names(inside) == [], problem
            if kind in LOADED:
                assert treepack.verify(path).ok, problem
                with treepack.open(path) as file:
                    assert np.array_equal(file["w"][5:7], tree["w"][5:7]), problem
                for found in (treepack.load(path), treepack.load(path, OLD)):
                    assert np.array_equal(found["w"], tree["w"]), problem
            ask("refuse/0/0")


def save_without_dev_fd() -> None:
    """Saves to a store where `/dev/fd` is missing, as in small containers and on Windows."""
    for call in (4, 6, 257, 262, 332):  # stat, lstat, openat, newfstatat, statx
        ask(f"refuse/{call}/{errno.ENOENT}/dev/fd")
    assert not Path("/dev/fd").exists()
    for number, how in enumerate(({}, {"compress": True}, {"sharded": True})):
        url = f"memory://without/{number}"
        treepack.save(url, OLD, **how)
        assert np.array_equal(treepack.load(url)["w"], OLD["w"]), how


def kill_often(kind: str, folder: Path, instants: int) -> None:
    """Kills processes that save both trees in turn, while they do."""
    inside = folder / kind
    inside.mkdir()
    path = inside / name_of(kind)
    SAVES[kind](path, OLD)
    rng = random.Random(kind)
    left = 0
    for _ in range(instants):
        ready, sender = os.pipe()
        child = os.fork()
        if not child:
            for tree in itertools.cycle((NEW, OLD)):
                SAVES[kind](path, tree)
                os.write(sender, b".")
        os.close(sender)
        for _ in range(rng.randrange(1, 4)):
            assert os.read(ready, 1), "it has ended"
        time.sleep(rng.random() * 0.01)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ready)
        left += bool(names(inside))
        which(kind, path)
    SAVES[kind](path, NEW)
    assert which(kind, path) == "new"
    assert names(inside) == []
    print(kind, "kills:", instants, "of which in the middle of a save, at least:", left)


# Over an old tree, or to new directories.
PLACES = {"over": "", "new": "new/and/newer"}


def log_saves(folder: Path) -> None:
    """Saves while what happens is logged."""
    for kind, place in itertools.product(SAVES, PLACES):
        inside = folder / kind / place / "inside"
        inside.mkdir(parents=True)
        path = inside / PLACES[place] / name_of(kind)
        if place == "over":
            SAVES[kind](path, OLD)
        shutil.copytree(inside, inside.parent / "before")
        ask(f"refuse/326/{errno.ENOSYS}{inside}")  # copy_file_range, whose bytes are not in the log
        ask(f"log{inside}")
        ask(f"say/{inside}")
        SAVES[kind](path, NEW)
        ask("say/saved")
        ask("log/nothing")
        ask("refuse/0/0")


@is_traced
@tiers.parametrize("kind", SAVES, quick={"file"})
def test_a_call_that_fails_or_a_full_disk_leaves_the_old_or_the_new(
    kind: str, in_memory: Path
) -> None:
    is_composed = kind in COMPOSED
    each = tiers.either(False, kind == "file", nightly=True)
    stride = tiers.either(7, 19, nightly=1) if is_composed else 1
    calls = f"each={each}, stride="
    folder = "pathlib.Path(sys.argv[1])"
    call = f"fail_each({kind!r}, {folder}, list(it.ERRORS), {calls}{stride})"
    call += f"; it.fail_each({kind!r}, {folder}, [it.FULL], {calls}{min(stride, 7)})"
    print(run(__name__, call, in_memory)[0])


@pytest.mark.campaign
@is_traced
def test_file_systems_may_lack_calls(in_memory: Path) -> None:
    run(__name__, "refuse_some(pathlib.Path(sys.argv[1]))", in_memory)


@pytest.mark.campaign
@is_traced
def test_stores_need_no_dev_fd(in_memory: Path) -> None:
    run(__name__, "save_without_dev_fd()", in_memory)


@pytest.mark.campaign
@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_a_process_that_is_killed_leaves_the_old_or_the_new(in_memory: Path) -> None:
    """Set TREEPACK_INSTANTS to kill more often."""
    instants = int(os.environ.get("TREEPACK_INSTANTS", "10"))
    each = f"it.kill_often(kind, pathlib.Path(sys.argv[1]), {instants}) for kind in it.SAVES"
    print(run(__name__, f"os; [{each}]", in_memory, traced=False)[0])


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, list[str]]:
    """Logs of the calls that saved a tree, by its folder."""
    folder = tmp_path_factory.mktemp("logged")
    _, log = run(__name__, "log_saves(pathlib.Path(sys.argv[1]))", folder)
    found: dict[Path, list[str]] = {}
    for line in log:
        if line.startswith("say /"):
            lines = found[Path(line.removeprefix("say "))] = []
        else:
            lines.append(line)
    return found


@pytest.mark.campaign
@is_traced
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", tiers.either([], [*SAVES][::2], nightly=[*SAVES]))
def test_power_is_lost(
    kind: str, place: str, logged: dict[Path, list[str]], in_memory: Path
) -> None:
    [inside] = [it for it in logged if it.parts[-3:] == (kind, place, "inside")]
    where, log = PLACES[place], logged[inside]
    disk = Disk(str(inside), inside.parent / "before")
    crashed = in_memory / "crashed"
    tried: set[Any] = set()
    is_saved = False
    for line in ["say begun", *log]:
        disk.apply(line)
        is_saved = is_saved or line == "say saved"
        for state in disk.states():
            found = (is_saved, *sorted(state.items(), key=str))
            if found in tried:
                continue
            tried.add(found)
            write_state(state, disk, crashed)
            path = crashed / where / name_of(kind)
            if not is_saved and where and not path.exists():
                continue
            try:
                now = which(kind, path)
            except Exception as error:
                # Of new directories, some may be there without what commits them.
                if is_saved or not where:
                    raise AssertionError(f"after {line[:200]}: {sorted(state)}") from error
                continue
            assert now == "new" or not is_saved, line[:200]
    assert is_saved
    assert len(tried) > 3
    print(kind, place, "states after a loss of power:", len(tried))
