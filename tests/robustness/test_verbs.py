"""Every public verb, interrupted at any point, forked at any point, and under limits of the system.

Points are counted, not timed. They are the places where Python looks at signals: a function of its
own begins, or one of C has returned. Whatever happens at one, a file is the old one or the new
one, and the next call works.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import resource
import signal
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiers
import treepack
from treepack import serialization
from waiting import HANG_S

# The points of each verb that are tried, evenly spread; `TREEPACK_POINTS=0` tries all.
POINTS = int(os.environ.get("TREEPACK_POINTS", tiers.either(12, 12, nightly=40)))

OLD: Any = {"w": np.arange(300.0), "n": 3, "rest": [1, (2, None)]}
NEW: Any = {"w": np.arange(300.0) + 1, "n": 4, "rest": [1, (2, "x")]}

# What is interrupted may leave it to Python to close what it has opened.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

# What a system that lacks something makes of a call.
LACKING = (OSError, MemoryError, RuntimeError, treepack.TreepackError)


def same(found: Any, expected: Any) -> bool:
    """Returns whether two of the trees above are equal."""
    return bool(
        np.array_equal(found["w"], expected["w"]) and {**found, "w": 0} == {**expected, "w": 0}
    )


def leaves(tree: Any) -> Iterator[tuple[str, Any]]:
    yield from ((key, tree[key]) for key in ("w", "n"))


def read_all(path: Path) -> Any:
    with treepack.open(path) as file:
        return [np.asarray(leaf) for _, leaf in file.leaves()], repr(file)


def writers(path: Path) -> dict[str, Callable[[Any], object]]:
    """Returns calls that save a tree to a path, by name."""
    return {
        "save": lambda tree: treepack.save(path, tree),
        "save, compressed": lambda tree: treepack.save(path, tree, compress=True),
        "save, not durable": lambda tree: treepack.save(path, tree, durable=False),
        "save in the background": lambda tree: treepack.save(path, tree, background=True).result(),
        "save a directory": lambda tree: treepack.save(path, tree, sharded=True),
        "save a directory in the background": lambda tree: treepack.save(
            path, tree, sharded=True, background=True
        ).result(),
    }


def readers(path: Path) -> dict[str, Callable[[], object]]:
    """Returns calls that read a tree at a path, by name."""
    return {
        "load": lambda: treepack.load(path),
        "load, copied": lambda: treepack.load(path, copy=True, mmap=False),
        "load into a template": lambda: treepack.load(path, OLD),
        "load, verified": lambda: treepack.load(path, OLD, verify=True),
        "load a part": lambda: treepack.load(path, select="w"),
        "load a part into a template": lambda: treepack.load(path, OLD, select="w"),
        "open": lambda: read_all(path),
        "verify": lambda: treepack.verify(path),
        "abstract": lambda: treepack.abstract(path),
        "read_metadata": lambda: treepack.read_metadata(path),
    }


def others(folder: Path) -> dict[str, Callable[[], object]]:
    """Returns calls that need no file, or one of their own, by name."""
    data, state = treepack.dumps(OLD), serialization.to_bytes(OLD)
    packed = bytearray(treepack.packed_size(OLD))
    return {
        "dumps": lambda: treepack.dumps(OLD),
        "dumps, compressed": lambda: treepack.dumps(OLD, compress=True),
        "loads": lambda: treepack.loads(data),
        "loads into a template": lambda: treepack.loads(data, OLD),
        "packed_size": lambda: treepack.packed_size(OLD),
        "pack_into": lambda: treepack.pack_into(OLD, packed),
        "buffers": lambda: b"".join(treepack.buffers(OLD)),
        "write_stream, read_stream": lambda: (
            treepack.write_stream(folder / "stream", leaves(OLD)),
            list(treepack.read_stream(folder / "stream")),
        ),
        "save leaves": lambda: treepack.save(folder / "leaves", leaves(OLD)),
        "to_bytes, from_bytes": lambda: serialization.from_bytes(OLD, serialization.to_bytes(OLD)),
        "msgpack_restore": lambda: serialization.msgpack_restore(state),
        "to_state_dict, from_state_dict": lambda: serialization.from_state_dict(
            OLD, serialization.to_state_dict(OLD)
        ),
        "save_to_file, load_from_file": lambda: (
            serialization.save_to_file(OLD, folder / "file"),
            serialization.load_from_file(OLD, folder / "file"),
        ),
        "a file object": lambda: treepack.open(io.BytesIO(data))["w"][:5],
    }


def at(point: int, do: Callable[[], object], call: Callable[[], object]) -> int:
    """Does something at a point of a call: at the nth place where Python looks at signals.

    Returns:
      The number of points of the call.
    """
    count = 0

    def profile(frame: types.FrameType, event: str, _: Any) -> None:
        nonlocal count
        name = frame.f_globals.get("__name__", "")
        if event in ("call", "c_return") and name.split(".")[0] == "treepack":
            count += 1
            if count == point:
                do()

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


def points(call: Callable[[], object], most: int = POINTS) -> Iterator[int]:
    """Yields `most` points of a call, evenly spread, or all for 0."""
    count = at(0, int, call)
    chosen = min(most or count, count)
    yield from sorted({1 + number * count // chosen for number in range(chosen)})


def interrupt() -> None:
    sys.setprofile(None)  # which would interrupt what cleans up as well
    raise KeyboardInterrupt


def interrupted(point: int, call: Callable[[], object]) -> None:
    """Makes a call that is interrupted; one that has come to its end all the same is right, too."""
    with contextlib.suppress(KeyboardInterrupt):
        at(point, interrupt, call)


def in_folder(folder: Path) -> Iterator[tuple[Path, Callable[[Any], object]]]:
    """Yields a path for each of the writers, and the writer."""
    for number, name in enumerate(writers(folder)):
        path = folder / str(number)
        yield path, writers(path)[name]


@pytest.mark.parametrize("name", writers(Path()))
def test_an_interrupted_save_can_be_made_again(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model"
    write = writers(path)[name]
    write(OLD)
    for point in points(lambda: write(OLD)):
        interrupted(point, lambda: write(NEW))
        found = treepack.load(path)  # after a save in the background that has gone on
        assert same(found, OLD) or same(found, NEW), point
        write(NEW)
        assert treepack.verify(path).ok
        assert same(treepack.load(path), NEW), point
        write(OLD)
        assert same(treepack.load(path), OLD), point


@pytest.mark.parametrize("kind", ["file", "gzip", "directory"])
def test_an_interrupted_read_can_be_made_again(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "model"
    treepack.save(path, OLD, sharded=kind == "directory", compress=kind == "gzip")
    for read in readers(path).values():
        for point in points(read):
            interrupted(point, read)
            read()
    assert same(treepack.load(path), OLD)


def test_other_verbs_that_are_interrupted_can_be_called_again(tmp_path: Path) -> None:
    for call in others(tmp_path).values():
        for point in points(call, tiers.either(POINTS, 0)):
            interrupted(point, call)
            call()


def run(script: Callable[[Path], None], folder: Path) -> None:
    """Runs a function of this file in a process without jax, in which limits may be set."""
    code = (
        f"import test_verbs, pathlib, sys; test_verbs.{script.__name__}(pathlib.Path(sys.argv[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, folder],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * HANG_S,
    )
    assert done.returncode == 0, done.stderr


def forked(path: Path, call: Callable[[], object], point: int) -> None:
    """Forks at a point of a call: both processes have to come to their end."""

    def fork() -> None:
        child = os.fork()
        if child:
            assert os.waitpid(child, 0)[1] == 0
            return
        sys.setprofile(None)
        signal.alarm(int(HANG_S))
        try:
            own = path.with_name("of the child")
            treepack.save(own, NEW, background=True).result()
            assert same(treepack.load(own), NEW)
            assert same(treepack.loads(treepack.dumps(NEW)), NEW)
            found = treepack.load(path)
            assert same(found, OLD) or same(found, NEW)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)

    at(point, fork, call)


FORKS = tiers.either(POINTS, 2, nightly=POINTS)


def fork_everywhere(folder: Path) -> None:
    for path, write in in_folder(folder):
        write(OLD)
        for point in points(functools.partial(write, OLD), FORKS):
            forked(path, functools.partial(write, NEW), point)
            assert same(treepack.load(path), NEW)
            write(OLD)
        for read in readers(path).values():
            for point in points(read, FORKS):
                forked(path, read, point)


@pytest.mark.campaign
def test_a_fork_at_any_point_hangs_neither_process(tmp_path: Path) -> None:
    run(fork_everywhere, tmp_path)


def lacking(limit: int, soft: int, call: Callable[[], object]) -> None:
    """Makes a call under a limit of the system: it ends well, or with an error of the system's."""
    before, hard = resource.getrlimit(limit)
    resource.setrlimit(limit, (soft, hard))
    try:
        with contextlib.suppress(*LACKING):
            call()
    finally:
        resource.setrlimit(limit, (before, hard))


def without_handles(folder: Path) -> None:
    """Lets calls have so few handles of files, from none on."""
    for path, write in in_folder(folder):
        write(OLD)
        highest = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir()) + 1
        calls = [functools.partial(write, NEW), *readers(path).values(), *others(folder).values()]
        for free in range(10):
            for call in calls:
                lacking(resource.RLIMIT_NOFILE, highest + free, call)
                found = treepack.load(path)
                assert same(found, OLD) or same(found, NEW), (path, free)
                assert treepack.verify(path).ok, (path, free)
        write(NEW)
        assert same(treepack.load(path), NEW)


def without_space(folder: Path) -> None:
    """Lets files have so few bytes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for path, write in in_folder(folder):
        write(OLD)
        for most in range(0, 4000, 250):
            lacking(resource.RLIMIT_FSIZE, most, functools.partial(write, NEW))
            found = treepack.load(path)
            assert same(found, OLD) or same(found, NEW), (path, most)
            assert treepack.verify(path).ok, (path, most)
        write(NEW)
        assert same(treepack.load(path), NEW)
        left = [found.name for found in folder.rglob("*") if found.name.endswith(".tmp")]
        assert left == [], path


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="tells which handles are open")
@pytest.mark.campaign
@pytest.mark.parametrize("script", [without_handles, without_space])
def test_what_the_system_does_not_give_is_an_error(
    script: Callable[[Path], None], tmp_path: Path
) -> None:
    run(script, tmp_path)
