"""Checkpoints in a store: how many requests they take, and that nothing is lost on the way."""

from __future__ import annotations

import functools
import http
import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import tiers
import treepack
from support import processes, s3
from treepack import checkpoints
from treepack._src.storage import fetch
from treepack._src.storage.address import Address
from treepack._src.storage.store import NO_FILE, ConditionError
from treepack.errors import BusyError

pytest.importorskip("obstore")
pytest.importorskip("moto")

TREE: dict[str, Any] = {
    f"layer_{index}": {"kernel": np.full((64, 1024), index, np.float32), "bias": np.arange(3.0)}
    for index in range(16)
}


@pytest.fixture(scope="module")
def running() -> Iterator[s3.Server]:
    with s3.running() as server:
        yield server


@pytest.fixture
def server(running: s3.Server) -> s3.Server:
    running.proxy.reset()
    return running


def same(found: Any, expected: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def count(server: s3.Server) -> int:
    """Returns the number of requests since the last call."""
    found = len(server.proxy.requests)
    server.proxy.requests.clear()
    return found


@pytest.mark.parametrize("sharded", [False, True])
@tiers.parametrize("compress", [False, True])
def test_all_verbs(server: s3.Server, sharded: bool, compress: bool) -> None:
    url, options = server.url(f"verbs/{sharded}-{compress}"), server.options
    for step in range(2):
        treepack.save(
            url,
            TREE | {"step": step},
            metadata={"step": step},
            sharded=sharded,
            compress=compress,
            storage_options=options,
        )
        assert treepack.load(url, storage_options=options)["step"] == step
    same(treepack.load(url, TREE | {"step": 0}, storage_options=options), TREE | {"step": 1})
    assert treepack.read_metadata(url, storage_options=options) == {"step": 1}
    assert treepack.abstract(url, storage_options=options)["layer_1"]["bias"].shape == (3,)
    assert treepack.verify(url, storage_options=options).ok
    assert treepack.is_checkpoint(url, storage_options=options)
    part = treepack.load(url, select="layer_3/*", storage_options=options)
    same(part, {"layer_3": TREE["layer_3"]})
    with treepack.open(url, storage_options=options) as file:
        same(file["layer_7/kernel"][3:9, ::2], TREE["layer_7"]["kernel"][3:9, ::2])
    if sharded:
        assert len(Address.of(url, options).entries()) == 2, (
            "the files of the first save are deleted"
        )


@pytest.mark.parametrize("nbytes", [0, 1000, 20 << 20])
@pytest.mark.parametrize("scheme", ["s3", "memory", "file"])
def test_a_copy_whose_check_fails_gets_no_name(
    server: s3.Server, tmp_path: Path, scheme: str, nbytes: int
) -> None:
    """The check comes after the last byte, which may have taken long."""
    urls = {"s3": server.url("checked"), "memory": "memory://checked", "file": str(tmp_path)}
    (tmp_path / "source").write_bytes(bytes(nbytes))
    path = Address.of(f"{urls[scheme]}/{nbytes}", server.options if scheme == "s3" else None)
    source, calls = Address.of(tmp_path / "source"), []

    def check() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise BusyError("another job saves there")

    with pytest.raises(BusyError):
        source.copy_to(path, check)
    assert not path.exists()
    assert source.copy_to(path, check) == nbytes
    assert path.exists()
    assert len(calls) == 2


def test_requests_of_a_file(server: s3.Server) -> None:
    url, options = server.url("requests/file"), server.options
    treepack.save(url, TREE, storage_options=options)
    assert count(server) == 1
    with treepack.open(url, storage_options=options) as file:
        assert len(list(file.leaves())) == 32
        assert count(server) == 1
        np.asarray(file["layer_7/kernel"])
        assert count(server) == 1
    with treepack.open(url, storage_options=options) as file:
        assert file["layer_3/kernel"][10:20].shape == (10, 1024)
        assert count(server) == 2
    treepack.load(url, storage_options=options)
    assert count(server) == 2
    treepack.load(url, TREE, select="layer_9", storage_options=options)
    assert count(server) == 2


def test_requests_of_a_directory(server: s3.Server) -> None:
    url, options = server.url("requests/directory"), server.options
    treepack.save(url, TREE, sharded=True, storage_options=options)
    assert count(server) <= 6, "the first save also looks whether a file has this name"
    same(treepack.load(url, storage_options=options), TREE)
    found = [request for request in server.proxy.requests if "-00000" in request.path]
    assert len(found) <= 3, server.proxy.requests
    assert count(server) <= 6


def test_requests_of_a_repository(server: s3.Server) -> None:
    """Other files in it, such as of a tokenizer, cost none."""
    url, options = server.url("requests/repository"), server.options
    arrays = {f"layer{number}": np.full(1000, number) for number in range(4)}
    more = {"format": "safetensors", "max_shard_size": 16_000}
    treepack.save(url, arrays, storage_options=options, **more)
    for name in ("config.json", "tokenizer.json", "vocab.json"):
        Address.of(f"{url}/{name}", options).write_bytes(b"{}", durable=False)
    count(server)
    same(treepack.load(url, storage_options=options), arrays)
    paths = [request.path for request in server.proxy.requests]
    assert len(paths) <= 7, "file or directory, manifest, listing, index, two files"

    def fault(request: s3.Request) -> Any:
        return 500 if "delimiter" in request.path else None

    server.proxy.fault = fault
    for verb in (treepack.load, treepack.is_checkpoint):
        with pytest.raises(OSError, match="list request"):
            verb(url, storage_options=options)


def test_requests_of_a_series(server: s3.Server) -> None:
    """Each listing is requested once."""
    url, options = server.url("requests/series"), server.options
    for step in range(2):
        checkpoints.save_checkpoint(url, {"a": step}, step, keep=2, storage_options=options)
        assert count(server) == 3, "is it the newest, the file, what else is there"
    checkpoints.save_checkpoint(url, {"a": 2}, 2, keep=2, storage_options=options)
    assert count(server) == 4, "and one is deleted"
    assert checkpoints.available_steps(url, storage_options=options) == [1, 2]
    assert count(server) == 1
    assert checkpoints.restore_checkpoint(url, None, storage_options=options) == {"a": 2}
    assert count(server) == 2
    found = checkpoints.restore_checkpoint(f"{url}/checkpoint_1", None, storage_options=options)
    assert found == {"a": 1}
    assert count(server) == 2, "a listing, the file"
    assert checkpoints.restore_checkpoint(url, None, 1, storage_options=options) == {"a": 1}
    assert count(server) == 2
    with pytest.raises(ValueError, match="the steps 1, 2"):
        checkpoints.restore_checkpoint(url, None, 7, storage_options=options)
    count(server)
    nowhere = server.url("requests/nowhere")
    assert checkpoints.restore_checkpoint(nowhere, 5, storage_options=options) == 5
    assert count(server) == 4, "a listing, a file, a directory, and whether it may be listed"


def test_requests_of_a_series_of_directories(server: s3.Server) -> None:
    url, options = server.url("requests/directories"), server.options
    for step in range(3):
        path = f"{url}/checkpoint_{step}"
        treepack.save(path, {"a": step}, sharded=True, storage_options=options)
    count(server)
    assert treepack.load(path, storage_options=options) == {"a": 2}
    load = count(server)
    assert checkpoints.restore_checkpoint(url, None, storage_options=options) == {"a": 2}
    assert count(server) <= load + 2, "the series, and the directory of its last step"
    checkpoints.save_checkpoint(url, {"a": 3}, 3, keep=3, storage_options=options)
    listed = [request.path for request in server.proxy.requests if "list-type" in request.path]
    assert listed[0] == listed[1], "before the save, and after it"
    assert len(listed) == len({*listed}) + 1 == 6, "three directories, and all below one of them"
    assert checkpoints.available_steps(url, storage_options=options) == [1, 2, 3]
    for step, place in ((None, f"{url}/checkpoint_1"), (1, url)):
        found = checkpoints.restore_checkpoint(place, None, step, storage_options=options)
        assert found == {"a": 1}


def test_requests_where_there_is_no_checkpoint(server: s3.Server) -> None:
    options = server.options
    url = server.url("requests/empty/")
    assert not treepack.is_checkpoint(url, storage_options=options)
    assert count(server) == 2, "the manifest, and a listing"
    treepack.save(server.url("requests/other/below/it/file"), {"a": 1}, storage_options=options)
    count(server)
    assert not treepack.is_checkpoint(server.url("requests/other/"), storage_options=options)
    assert len(server.proxy.requests) == len({it.path for it in server.proxy.requests})


def test_series_that_may_not_be_listed(server: s3.Server) -> None:
    url, options = server.url("requests/hidden"), server.options
    checkpoints.save_checkpoint(url, {"a": 1}, 1, storage_options=options)
    server.proxy.fault = lambda request: 403 if "list-type" in request.path else None
    assert checkpoints.restore_checkpoint(url, None, 1, storage_options=options) == {"a": 1}
    path = f"{url}/checkpoint_1"
    assert checkpoints.restore_checkpoint(path, None, storage_options=options) == {"a": 1}
    with pytest.raises(PermissionError, match=url) as caught:  # there may be checkpoints
        checkpoints.restore_checkpoint(url, {"a": 0}, storage_options=options)
    assert "pass storage_options= with" in "".join(caught.value.__notes__)


def test_ranges_are_fetched_at_once(server: s3.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    url, options = server.url("requests/many"), server.options
    treepack.save(url, TREE, storage_options=options)
    monkeypatch.setattr(fetch, "_PART_BYTES", 128 << 10)
    wait = threading.Barrier(8, timeout=60)  # passes only when so many are under way
    turns = itertools.count()

    def together(request: s3.Request) -> None:
        if request.method == "GET" and request.range != "bytes=-163840" and next(turns) < 8:
            wait.wait()

    server.proxy.fault = together
    same(treepack.load(url, storage_options=options), TREE)
    server.proxy.fault = lambda _: None
    kernels = [f"layer_{index}/kernel" for index in range(0, 16, 2)]
    found = treepack.load(url, select=kernels, storage_options=options)
    same(
        found, {f"layer_{at}": {"kernel": TREE[f"layer_{at}"]["kernel"]} for at in range(0, 16, 2)}
    )
    assert treepack.verify(url, storage_options=options).ok


def test_what_is_fetched_is_fetched_once(
    server: s3.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the headers of all leaves are looked at before the first leaf is read."""
    url, options = server.url("requests/once"), server.options
    tree = {f"w{at}": np.full((64, 1024), at, np.float32) for at in range(64)}
    treepack.save(url, tree, storage_options=options)
    monkeypatch.setattr(fetch, "_PART_BYTES", 256 << 10)
    server.proxy.reset()
    same(treepack.load(url, select="**", storage_options=options), tree)
    assert server.proxy.sent < 1.2 * (16 << 20)
    assert len(server.proxy.requests) < 120


FAULTS = [503, 500, "reset", "short"]


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_that_pass(server: s3.Server, fault: Any) -> None:
    url, options = server.url(f"faults/{fault}"), server.options
    turns = itertools.count()
    server.proxy.fault = lambda _: fault if next(turns) % 3 == 0 else None
    treepack.save(url, TREE, storage_options=options)
    same(treepack.load(url, storage_options=options), TREE)
    treepack.save(f"{url}-directory", TREE, sharded=True, storage_options=options)
    same(treepack.load(f"{url}-directory", storage_options=options), TREE)
    assert treepack.verify(f"{url}-directory", storage_options=options).ok


@pytest.mark.campaign
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_that_stay(server: s3.Server, fault: Any) -> None:
    url, options = server.url(f"lasting/{fault}"), server.options
    treepack.save(url, {"a": 1}, storage_options=options)
    server.proxy.fault = lambda _: fault
    for read in (treepack.load, treepack.open, treepack.verify):
        with pytest.raises(OSError, match=url):
            read(url, storage_options=options)  # type: ignore[operator]
    for sharded in (False, True) if fault != "short" else ():
        with pytest.raises(OSError, match=url):
            treepack.save(url, TREE, sharded=sharded, storage_options=options)
    server.proxy.reset()
    assert treepack.load(url, storage_options=options) == {"a": 1}


def test_what_is_not_there(server: s3.Server) -> None:
    options = server.options
    for url in (server.url("nothing"), "s3://no-such-bucket/model"):
        for read in (treepack.load, treepack.open, treepack.verify):
            with pytest.raises(FileNotFoundError, match=url):
                read(url, storage_options=options)  # type: ignore[operator]
    with pytest.raises(FileNotFoundError, match="no-such-bucket"):
        treepack.save("s3://no-such-bucket/model", TREE, storage_options=options)
    with pytest.raises(ValueError, match=r"storage_options for s3:// are options of obstore"):
        treepack.load(server.url("x"), storage_options={**options, "no_option": 1})


@pytest.mark.parametrize("status", [401, 403])
def test_denied_requests_name_the_remedy(server: s3.Server, status: int) -> None:
    server.proxy.fault = lambda _: status
    for work in (
        treepack.load,
        treepack.open,
        lambda *a, **k: treepack.save(a[0], TREE, **k),
        checkpoints.latest_checkpoint,
    ):
        with pytest.raises(PermissionError) as caught:
            work(server.url("forbidden"), storage_options=server.options)  # type: ignore[operator]
        assert "storage_options=" in "".join(caught.value.__notes__)


def test_missing_credentials(server: s3.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has none either, whose service for them the proxy is."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    server.proxy.fault = lambda _: 404
    place = {"endpoint": server.proxy.url, "metadata_endpoint": server.proxy.url}
    with pytest.raises(PermissionError, match=server.url("x")) as caught:
        treepack.load(server.url("x"), storage_options={"region": "us-east-1", **place})
    text = "".join(caught.value.__notes__)
    assert "no credentials" in text
    assert "AWS_ACCESS_KEY_ID" in text


def test_files_and_directories_do_not_hide_each_other(server: s3.Server) -> None:
    url, options = server.url("kinds/file"), server.options
    treepack.save(url, {"a": 1}, storage_options=options)
    for place in (url, f"{url}/"):
        with pytest.raises(NotADirectoryError, match=place):
            treepack.save(place, {"a": 2}, sharded=True, storage_options=options)
    assert treepack.load(url, storage_options=options) == {"a": 1}
    for place in (f"{url}s/", f"s3://{s3.BUCKET}", f"s3://{s3.BUCKET}/"):
        count(server)
        with pytest.raises(IsADirectoryError, match=place):
            treepack.save(place, {"a": 2}, storage_options=options)
        assert count(server) == 0, "which could make a bucket"


ODD_NAMES = ["a b", "a+b", "a%20b", "a%b", "ü/ö", "a#b", "a?b", "x&y=z", "日本", "a\\b", "%2F"]


@pytest.mark.parametrize("sharded", [False, True])
def test_names_with_odd_characters(server: s3.Server, sharded: bool) -> None:
    options = server.options
    for name in ODD_NAMES:
        url = server.url(f"names-{sharded}/{name}/model")
        treepack.save(url, {"name": name}, sharded=sharded, storage_options=options)
    for name in ODD_NAMES:
        url = server.url(f"names-{sharded}/{name}/model")
        assert treepack.load(url, storage_options=options) == {"name": name}
    for name in ("a//b", "a/../b", "a/./b", "tab\t"):
        with pytest.raises(ValueError, match=f"s3://{s3.BUCKET}/names/"):
            treepack.save(server.url(f"names/{name}"), {"a": 1}, storage_options=options)
        for read in (treepack.load, treepack.open, treepack.verify, treepack.is_checkpoint):
            with pytest.raises(ValueError, match=f"^s3://{s3.BUCKET}/names/"):
                read(server.url(f"names/{name}"), storage_options=options)  # type: ignore[operator]


def test_a_file_that_is_replaced_while_it_is_read(server: s3.Server) -> None:
    url, options = server.url("replaced"), server.options
    treepack.save(url, TREE, storage_options=options)
    with treepack.open(url, storage_options=options) as file:
        treepack.save(url, TREE | {"step": 3}, storage_options=options)
        with pytest.raises((OSError, treepack.TreepackError), match="changed"):
            np.asarray(file["layer_7/kernel"])


def test_an_upload_that_fails_leaves_nothing(server: s3.Server) -> None:
    url, options = server.url("uploads/failed"), server.options
    large = {"w": np.zeros(24 << 20, np.uint8)}

    def enough(done: int, total: int) -> None:
        if done > 20 << 20:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        treepack.save(url, large, progress=enough, storage_options=options)
    with pytest.raises(FileNotFoundError):
        treepack.load(url, storage_options=options)
    methods = [request.method for request in server.proxy.requests if "uploadId" in request.path]
    assert "DELETE" in methods, "the upload is aborted"
    treepack.save(url, large, storage_options=options)
    assert treepack.load(url, storage_options=options)["w"].nbytes == 24 << 20


@pytest.mark.campaign
@pytest.mark.parametrize("fault", ["lost", 503])
def test_an_upload_whose_answer_is_lost_is_looked_for(server: s3.Server, fault: Any) -> None:
    """Its repetition finds no upload; an older file of the same size is not taken for it."""
    url, options = server.url(f"lost/{fault}"), server.options
    save = functools.partial(treepack.save, url, storage_options=options)
    new, old = (np.random.default_rng(seed).integers(0, 256, 17 << 20, np.uint8) for seed in (0, 1))
    save({"w": old})
    turns = itertools.count()

    def answer(request: s3.Request) -> Any:
        is_end = request.method == "POST" and "uploadId=" in request.path
        return None if not is_end else fault if next(turns) == 0 else 404

    server.proxy.fault = answer
    if fault == "lost":
        save({"w": new})
    else:  # it was not carried out
        with pytest.raises(OSError, match="lost/503"):
            save({"w": new})
    server.proxy.reset()
    found = treepack.load(url, storage_options=options)["w"]
    np.testing.assert_array_equal(found, new if fault == "lost" else old)


@pytest.mark.parametrize("status", [501, 400])
def test_stores_without_conditional_writes(server: s3.Server, status: int) -> None:
    """One warning names the risk; a change since the save began is seen all the same."""
    url, options = server.url(f"plain/{status}"), {**server.options, "session_token": f"{status}"}
    server.proxy.fault = lambda request: (
        status if request.method == "PUT" and request.is_conditional else None
    )
    publishers = [treepack.Publisher(f"{url}/pub", storage_options=options) for _ in "ab"]
    with pytest.warns(UserWarning, match="does not support conditional writes.*one job"):
        publishers[0].push({"w": 1}, version=1)
    with pytest.raises(treepack.errors.BusyError):
        publishers[1].push({"w": 2}, version=2)
    for step in (1, 2):  # without another warning
        treepack.save(f"{url}/d", {"w": step}, sharded=True, storage_options=options)
    run = treepack.Series(f"{url}/run", sharded=True, storage_options=options)
    run.save(1, {"w": 1})
    assert treepack.load(f"{url}/d", storage_options=options) == {"w": 2}
    assert run.resume({"w": 0}) == (1, {"w": 1})
    store, place = Address.of(f"{url}/pub/head.json", options).store()
    with pytest.raises(ConditionError):
        store.put(place, b"", NO_FILE)


def test_markers_of_folders_are_no_entries(server: s3.Server) -> None:
    """As of an empty directory: consoles make objects such as `run/step_7/`."""
    signed = "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request"
    for name in ("", "step_7/", "checkpoint_7/", "empty/"):
        path = f"/{s3.BUCKET}/marked/{name}"
        put = s3.answer_of(
            server.proxy.application, "PUT", path, b"", {"HTTP_AUTHORIZATION": signed}
        )
        assert put[0] == http.HTTPStatus.OK
    url, options = server.url("marked"), server.options
    run = treepack.Series(url, sharded=True, keep=treepack.Keep(last=1), storage_options=options)
    assert run.resume({"w": 0}) is None
    assert run.steps() == []
    for step in (6, 7, 8):
        run.save(step, {"w": step})
    assert run.steps() == [8]
    assert run.resume({"w": 0}) == (8, {"w": 8})
    with pytest.warns(UserWarning, match="but 'step_8': pass prefix='step_'"):
        assert checkpoints.latest_checkpoint(url, storage_options=options) is None
    with pytest.warns(UserWarning, match="but 'step_8': pass prefix='step_'"):
        assert checkpoints.restore_checkpoint(url, None, storage_options=options) is None
    empty = Address.of(f"{url}/empty", options)
    assert (empty.entries(), empty.listed()) == ([], [])
    with pytest.raises(treepack.errors.DecodeError, match="it is empty"):
        treepack.load(empty)


def test_of_two_jobs_one_gets_an_error(server: s3.Server) -> None:
    url, options = server.url("jobs/one"), server.options
    treepack.save(url, {"a": 0}, sharded=True, storage_options=options)
    inner: list[int] = []

    def other(request: s3.Request) -> None:
        if request.method == "PUT" and "manifest" in request.path and not inner:
            inner.append(1)
            treepack.save(url, {"a": 1}, sharded=True, storage_options=options)

    server.proxy.fault = other
    with pytest.raises(treepack.TreepackError, match=r"another job saved .*: process \d+ on"):
        treepack.save(url, {"a": 2}, sharded=True, storage_options=options)
    assert treepack.load(url, storage_options=options) == {"a": 1}
    assert treepack.verify(url, storage_options=options).ok


def test_a_lost_response_is_not_a_conflict(server: s3.Server) -> None:
    url, options = server.url("jobs/lost"), server.options
    turns = itertools.count()

    def lose(request: s3.Request) -> Any:
        is_commit = request.method == "PUT" and "manifest" in request.path
        return "lost" if is_commit and next(turns) == 0 else None

    server.proxy.fault = lose
    treepack.save(url, {"a": 2}, sharded=True, storage_options=options)
    assert next(turns) == 2, "it was requested twice"
    assert treepack.load(url, storage_options=options) == {"a": 2}


RACE = """
import json, os, sys, treepack
url, options, rounds = args[0], json.loads(args[1]), int(args[2])
won = lost = 0
for step in range(rounds):
    try:
        tree = {"who": os.getpid(), "step": step}
        treepack.save(url, tree, sharded=True, storage_options=options)
        won += 1
    except treepack.TreepackError as error:
        assert "another job saved" in str(error), error
        lost += 1
    found = treepack.load(url, storage_options=options)
    assert set(found) == {"who", "step"}
print("won", won, "lost", lost)
"""


@pytest.mark.campaign
def test_jobs_race_for_a_directory(server: s3.Server, tmp_path: Path) -> None:
    options = {k: v for k, v in server.options.items() if k != "retry_config"}
    program = tmp_path / "race.py"
    program.write_text("import sys; args = sys.argv[1:]\n" + RACE)
    url = server.url("race")
    saves = tiers.either(1, 150, nightly=600)
    command = [sys.executable, str(program), url, json.dumps(options), str(saves)]
    jobs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    outputs = [job.communicate()[0] for job in jobs]
    assert [job.returncode for job in jobs] == [0] * 4
    won = [int(text.split()[1]) for text in outputs]
    lost = [int(text.split()[3]) for text in outputs]
    assert sum(won) + sum(lost) == 4 * saves, "each job that has lost gets an error"
    assert sum(won) >= saves, "of those that commit at a time, one wins"
    assert treepack.verify(url, storage_options=server.options).ok


KILLED = """
import json, sys, treepack, numpy as np
url, options = sys.argv[1], json.loads(sys.argv[2])
from treepack._src.storage import objects
objects._PART_BYTES = 5 << 20
tree = {"w": np.full(int(sys.argv[3]) << 20, 2, np.uint8), "v": np.full(1000, 2)}
print("begins", flush=True)
treepack.save(url, tree, sharded=url.endswith("-directory"), storage_options=options)
print("ended", flush=True)
"""


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("sharded", "mib", "after"),
    tiers.some(itertools.product([False], [13, 3], [False, True]), 3)
    + tiers.some(itertools.product([True], [3], [False, True])),
)
def test_kills_leave_the_old_or_the_new(
    server: s3.Server, sharded: bool, mib: int, after: bool
) -> None:
    """At each request, before or after the server has it; of 13 MiB, three parts are uploaded."""
    options = {k: v for k, v in server.options.items() if k != "retry_config"}
    url = server.url(f"killed/{after}-{mib}") + "-directory" * sharded
    found = set()
    for turn in range(20):
        server.proxy.fault = lambda _: None
        old = {"w": np.full(mib << 20, 1, np.uint8), "v": np.full(1000, 1)}
        treepack.save(url, old, sharded=sharded, storage_options=server.options)
        command = [sys.executable, "-c", KILLED, url, json.dumps(options), str(mib)]
        job = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        requests = itertools.count()

        def kill(_: s3.Request, job: Any = job, turn: int = turn, requests: Any = requests) -> Any:
            if next(requests) == turn:
                if after:
                    return job.kill
                job.kill()
            return None

        server.proxy.fault = kill
        has_ended = "ended" in job.communicate()[0]
        server.proxy.wait_until_idle()  # the server may still do requests of a dead client
        server.proxy.fault = lambda _: None
        loaded = treepack.load(url, storage_options=server.options)
        assert loaded["w"].min() == loaded["w"].max() == loaded["v"].min() == loaded["v"].max()
        found.add(int(loaded["v"][0]))
        assert treepack.verify(url, storage_options=server.options).ok
        if has_ended:
            assert loaded["v"][0] == 2
            break
    else:
        raise AssertionError("a save takes fewer requests")
    assert found == {1, 2} if mib == 13 else 2 in found
    assert turn == (5 if mib == 13 else 1) or sharded
    treepack.save(url, old, sharded=sharded, storage_options=server.options)
    same(treepack.load(url, storage_options=server.options), old)
    if sharded:
        left = [entry.name for entry in Address.of(url, server.options).entries()]
        assert len(left) == 2, "the next save removes what killed ones have left"


@pytest.mark.campaign
def test_a_program_that_is_preempted_goes_on_on_another_mesh(server: s3.Server) -> None:
    """`examples/pod.py`: what it saves last is what it would have been without the pause."""
    pytest.importorskip("optax")
    options = {k: v for k, v in server.options.items() if k != "retry_config"}
    example = Path(__file__).parents[2] / "examples" / "pod.py"

    def start(name: str, mesh: str) -> Any:
        options_of = ["--storage-options", json.dumps(options), "--steps", "12", "--every", "5"]
        command = [sys.executable, example, server.url(f"pod/{name}"), "--mesh", mesh]
        command += ["--devices", "4", *options_of]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    job = start("preempted", "2,2")
    output = ""
    for line in job.stdout:
        output += line
        if line.startswith("step 3"):
            job.terminate()
            break
    output += job.communicate()[0]
    assert job.returncode in (0, 143), output  # it may have come to its end
    last = int(output.split("step ")[-1].split(",")[0])
    assert 3 <= last <= 12
    output = start("preempted", "1,4").communicate()[0]
    assert f"goes on after step {last}" in output
    assert "ends after step 12" in output
    whole = start("whole", "4,1").communicate()[0]
    assert whole.splitlines()[-1] == output.splitlines()[-1]
    runs = [
        treepack.Series(server.url(f"pod/{name}"), storage_options=server.options)
        for name in ("preempted", "whole")
    ]
    found = [treepack.load(run.path(12), arrays="numpy") for run in runs]
    np.testing.assert_allclose(found[0]["params"], found[1]["params"], rtol=1e-6, atol=1e-7)
    assert found[0]["step"] == 12


TOGETHER = """
url, options = args[0], json.loads(args[1])
mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("x", "y"))
place = NamedSharding(mesh, P("x", "y"))
def array(step):
    whole = np.arange(64 * 32, dtype=np.float32).reshape(64, 32) + step
    return jax.make_array_from_callback(whole.shape, place, lambda index: whole[index])
for step in range(2):
    treepack.save(url, {"w": array(step), "step": step}, storage_options=options)
    found = treepack.load(url, {"w": array(0), "step": 0}, storage_options=options)
    assert found["step"] == step
    for mine, theirs in zip(found["w"].addressable_shards, array(step).addressable_shards):
        np.testing.assert_array_equal(mine.data, theirs.data)
    for path in (url + "-hub", url + "-hub.safetensors"):
        rules = {"a": ("w", "i o -> o i"), "b": "b"}
        treepack.save(path, {"a": array(step), "b": array(step)}, format="safetensors",
                      mapping=rules, max_shard_size=None if path.endswith("s") else 9000,
                      storage_options=options)
"""


def test_processes_save_together(server: s3.Server) -> None:
    options = {k: v for k, v in server.options.items() if k != "retry_config"}
    url = server.url("together")
    processes.run("import json\n" + TOGETHER, 2, url, json.dumps(options), devices=2)
    found = treepack.load(url, arrays="numpy", storage_options=server.options)
    assert found["step"] == 1
    np.testing.assert_array_equal(
        found["w"], np.arange(64 * 32, dtype=np.float32).reshape(64, 32) + 1
    )
    for suffix in ("-hub", "-hub.safetensors"):
        hub = treepack.load(url + suffix, storage_options=server.options)
        np.testing.assert_array_equal(hub["w"].T, found["w"])
        np.testing.assert_array_equal(hub["b"], found["w"])
        inside = Address.of(url + suffix, server.options).entries(hidden=True)
        assert not [each.name for each in inside if each.name.startswith(".")]
    there = Address.of(server.url(""), server.options).entries(hidden=True)
    assert not [each.name for each in there if each.name.startswith(".together")]
