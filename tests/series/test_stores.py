"""A run in a store: damage of the newest checkpoints, uploads that end half-way, and costs."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiers
import treepack
from support import s3
from treepack._src.storage.address import Address

pytest.importorskip("obstore")
pytest.importorskip("moto")

URLS = itertools.count()


def state(step: int) -> dict[str, Any]:
    return {"w": np.full(3000, step, np.float32), "step": step}


@pytest.fixture(scope="module")
def running() -> Iterator[s3.Server]:
    with s3.running() as server:
        yield server


@pytest.fixture
def server(running: s3.Server) -> s3.Server:
    running.proxy.reset()
    return running


def run_of(server: s3.Server, url: str = "", **options: Any) -> treepack.Series:
    url = url or server.url(f"runs/{next(URLS)}")
    return treepack.Series(url, storage_options=server.options, **options)


def check(run: treepack.Series, step: int) -> None:
    found = run.resume(state(0))
    assert found is not None
    assert found[0] == found[1]["step"] == run.local == step
    assert (found[1]["w"] == step).all()


def objects_of(run: treepack.Series, step: int, sharded: bool) -> list[tuple[Any, str]]:
    store, path = Address.of(run.path(step)).store()
    names = [f"{path}/{it.name}" for it in store.entries(path)] if sharded else [path]
    return [(store, name) for name in names]


def damage(store: Any, path: str, kind: str, rng: random.Random) -> None:
    data = bytearray(store.get(path).data)
    if kind == "gone":
        store.delete([path])
        return
    if kind == "torn":
        del data[rng.randrange(1, len(data)) :]
    elif kind == "flipped":
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    else:
        data.clear()
    store.put(path, bytes(data))


@pytest.mark.parametrize("sharded", [False, True])
@tiers.parametrize("kind", ["torn", "flipped", "emptied", "gone"])
def test_resume_skips_damaged_checkpoints(server: s3.Server, kind: str, sharded: bool) -> None:
    """Set TREEPACK_DAMAGES to the number of times for each kind and form."""
    rng = random.Random(kind)
    for _ in range(int(os.environ.get("TREEPACK_DAMAGES", tiers.either(2, 8)))):
        run = run_of(server, sharded=sharded)
        for step in (1, 2):
            run.save(step, state(step), local=step)
        damage(*rng.choice(objects_of(run, 2, sharded)), kind, rng)
        if kind == "gone" and not sharded:
            check(run, 1)  # there is nothing to tell of it
            assert run.skipped == []
            continue
        if kind == "gone" and run.steps() == [1]:
            check(run, 1)  # without its manifest it is a save that has not ended
        else:
            with pytest.warns(UserWarning, match="step 2 of .* is skipped"):
                check(run, 1)
        assert [step for step, _ in run.skipped] == [2]
        run.save(3, state(3), local=3)
        check(run, 3)


def check_durable(server: s3.Server, url: str) -> None:
    """Fails unless the drain has brought the last step."""
    assert run_of(server, url).steps()[-1] == 4


KILLED = """
import json, sys
import numpy as np
import treepack
from treepack._src.storage import objects
url, options, sharded = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3] == "True"
objects._PART_BYTES = 5 << 20
run = treepack.Series(url, keep=treepack.Keep(last=2), sharded=sharded, storage_options=options,
                      fast=sys.argv[4] or None)
state = {"w": np.full(3000, 4, np.float32), "step": 4, "more": np.full(6 << 20, 4, np.uint8)}
run.save(4, state, local=4)
print("saved", flush=True)
run.wait()
print("ended")
"""


def killing(job: Any, turn: int, after: bool) -> Callable[[s3.Request], Any]:
    """Returns a fault that kills a program at a request, before or after it is done."""
    requests = itertools.count()

    def kill(_: s3.Request) -> Any:
        if next(requests) == turn:
            if after:
                return job.kill
            job.kill()
        return None

    return kill


@pytest.mark.campaign
@pytest.mark.parametrize("has_fast", [False, True])
@pytest.mark.parametrize("sharded", [False, True])
def test_a_program_that_is_killed_at_any_request_leaves_whole_ones(
    server: s3.Server, sharded: bool, has_fast: bool, in_memory: Path
) -> None:
    """Never two steps in one checkpoint, and never fewer whole ones than `last`."""
    options = {name: it for name, it in server.options.items() if name != "retry_config"}
    for turn in range(0, 60, tiers.either(7, 7, nightly=1)):
        after = bool(turn % 2)
        run = run_of(server, keep=treepack.Keep(last=2), sharded=sharded)
        for step in (1, 2, 3):
            run.save(step, state(step), local=step)
        url = run.path(1).removesuffix("/step_1")
        fast = str(in_memory / f"{turn}") if has_fast else ""
        command = [sys.executable, "-c", KILLED, url, json.dumps(options), str(sharded), fast]
        job = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        server.proxy.fault = killing(job, turn, after)
        output = job.communicate()[0]
        has_ended = "ended" in output
        server.proxy.wait_until_idle()
        server.proxy.fault = lambda _: None
        if has_fast:
            both = run_of(server, url, keep=treepack.Keep(last=2), sharded=sharded, fast=fast)
            found = both.resume(state(0), strict=False)
            assert found is not None
            assert found[0] == found[1]["step"] == both.local
            # The drain sends requests before `save` returns, but not before it has committed.
            assert found[0] == 4 or (found[0] == 3 and "saved" not in output)
            both.wait()
            if "saved" in output:
                check_durable(server, url)
        steps = [step for step in run.steps() if treepack.verify(run.path(step)).ok]
        assert steps in ([2, 3], [2, 3, 4], [3, 4])
        assert len(steps) >= 2
        found = run.resume()
        assert found is not None
        assert found[0] == found[1]["step"] == run.local == steps[-1]
        assert {float(it) for it in np.unique(found[1]["w"])} == {float(steps[-1])}
        if has_ended:
            return
    raise AssertionError("a save takes fewer requests")


def test_a_save_to_a_fast_directory_takes_none(server: s3.Server, tmp_path: Path) -> None:
    run = run_of(server, keep=treepack.Keep(last=2), fast=tmp_path)
    server.proxy.requests.clear()
    for step in range(1, 5):
        run.save(step, state(step), local=step)
        run.wait()
    server.proxy.requests.clear()
    server.proxy.fault = lambda _: 503
    run.save(5, state(5), local=5)
    check_fast = treepack.Series(tmp_path).resume(state(0))
    assert check_fast is not None
    assert check_fast[0] == 5
    with pytest.raises(OSError, match="runs"):
        run.wait()
    server.proxy.fault = lambda _: None
    server.proxy.requests.clear()
    run.wait()
    # What is there; whether a later one is; the file; what goes; what is left.
    assert len(server.proxy.requests) <= 7, server.proxy.requests
    has_returned, is_first = threading.Event(), []

    def held(_: object) -> None:
        is_first.append(has_returned.wait(60))

    server.proxy.fault = held
    run.save(6, state(6), local=6)
    has_returned.set()
    run.wait()
    assert is_first
    assert all(is_first), "no request was before the end of the save"
    check(run, 6)


@pytest.mark.parametrize("sharded", [False, True])
def test_a_save_takes_few_requests(server: s3.Server, sharded: bool) -> None:
    """However many checkpoints stay."""
    run = run_of(server, keep=treepack.Keep(last=3), sharded=sharded)
    for step in range(1, 5):
        run.save(step, state(step), local=step)
    server.proxy.requests.clear()
    run.save(5, state(5), local=5)
    methods = [request.method for request in server.proxy.requests]
    # Whether a later one is there; the file; what there is; what goes. Of a directory also what is
    # there before and after, the end of the file, the manifest, and the files that go.
    assert len(methods) <= (11 if sharded else 4), server.proxy.requests
    server.proxy.requests.clear()
    check(run, 5)
    assert len(server.proxy.requests) <= (4 if sharded else 3), server.proxy.requests


def test_unchanged_files_are_copied_inside_the_store(server: s3.Server) -> None:
    frozen = np.arange(50_000.0)
    run = run_of(server, unchanged="link", keep=treepack.Keep(last=2))
    for step in range(1, 4):
        server.proxy.requests.clear()
        run.save(step, {**state(step), "frozen": frozen}, local=step)
    assert run.steps() == [2, 3]
    assert sum(request.method == "PUT" for request in server.proxy.requests) == 3
    again = run_of(server, run.path(3).removesuffix("/step_3"), unchanged="link")
    found = again.resume({**state(0), "frozen": frozen})
    assert found is not None
    assert found[0] == 3
    again.save(4, {**state(4), "frozen": frozen}, local=4)
    for step in (2, 3, 4):
        with treepack.open(again.path(step)) as file:
            assert bool(file.linked)
            assert np.array_equal(file["frozen"][:], frozen)
            assert (file["w"][:] == step).all()
        assert treepack.verify(again.path(step)).ok


def test_a_failed_save_leaves_no_copies(server: s3.Server) -> None:
    frozen = np.arange(50_000.0)
    run = run_of(server, unchanged="link")
    run.save(1, {**state(1), "frozen": frozen})

    before = {each.name for each in Address.of(run.path(1), server.options).entries()}

    def fault(request: s3.Request) -> Any:
        is_new = request.path.rpartition("/")[2] not in before
        return 403 if request.method == "PUT" and is_new else None

    server.proxy.fault = fault
    with pytest.raises(PermissionError):
        run.save(2, {**state(2), "frozen": frozen})
    server.proxy.fault = lambda _: None
    assert not Address.of(run.path(2), server.options).entries()
    run.save(2, {**state(2), "frozen": frozen})
    with treepack.open(run.path(2)) as file:
        assert np.array_equal(file["frozen"][:], frozen)


@pytest.mark.parametrize("has_copies", [True, False])
def test_file_systems_of_fsspec_may_copy(monkeypatch: pytest.MonkeyPatch, has_copies: bool) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    def fails(*_: Any, **__: Any) -> None:
        raise NotImplementedError

    if not has_copies:
        monkeypatch.setattr(MemoryFileSystem, "cp_file", fails)
    frozen = np.arange(50_000.0)
    run = treepack.Series(f"memory://runs/{next(URLS)}", unchanged="link")
    for step in range(3):
        run.save(step, {**state(step), "frozen": frozen})
    for step in range(3):
        with treepack.open(run.path(step)) as file:
            assert bool(file.linked) is (has_copies and step > 0)
            assert np.array_equal(file["frozen"][:], frozen)
            assert (file["w"][:] == step).all()
