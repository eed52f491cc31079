"""Each request of each verb fails in turn, in each way: there is the old tree or the new one."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiers
import treepack
from support import s3
from support.exported import doubling
from treepack import checkpoints, serialization
from treepack._src.storage import objects
from treepack._src.storage.address import Address

pytest.importorskip("obstore")
pytest.importorskip("moto")

Fault = Any

# What happens to a request; `lost` is an answer that does not come, though all was done. A server
# that says 404 or 412 lies here.
FAULTS: list[Fault] = ["reset", "lost", "short", 500, 503, 429, 403, 404, 412]

SECRETS = {"access_key_id": "s3cr3t-key", "secret_access_key": "s3cr3t-value"}


def tree(step: int, nbytes: int = 4000) -> dict[str, Any]:
    return {"w": np.full(nbytes, step % 256, np.uint8), "n": {"step": step}}


def step_of(found: Any) -> int:
    """Returns the step of a tree, all of which is of one step."""
    assert np.all(found["w"] == found["n"]["step"] % 256)
    return int(found["n"]["step"])


# A save of a step to a URL; what there is after it is read by `read`.
Write = Callable[[str, int, dict[str, Any]], object]


def _leaves(url: str, step: int, options: dict[str, Any]) -> None:
    found = tree(step, 100_000)
    items = (("w", found["w"]), ("n/step", step))
    treepack.save(url, iter(items), storage_options=options)


def _series(url: str, step: int, options: dict[str, Any]) -> None:
    checkpoints.save_checkpoint(url, tree(step), step, keep=1, storage_options=options)


def _run(url: str, options: dict[str, Any], **more: Any) -> treepack.Series:
    return treepack.Series(url, keep=treepack.Keep(last=1), storage_options=options, **more)


def _drained(url: str, step: int, options: dict[str, Any]) -> None:
    fast = Path(tempfile.gettempdir()) / f"fast-{url.rpartition('/')[2]}"
    run = _run(url, options, fast=fast)
    run.save(step, tree(step), local=step)
    run.wait()


WRITERS: dict[str, Write] = {
    "file": lambda url, step, options: treepack.save(url, tree(step), storage_options=options),
    "gzip": lambda url, step, options: treepack.save(
        url, tree(step), compress=True, storage_options=options
    ),
    "numbers": lambda url, step, options: treepack.save(
        url, tree(step), compress="numbers", storage_options=options
    ),
    "state": lambda url, step, options: serialization.save_to_file(
        tree(step), url, storage_options=options
    ),
    "exported": lambda url, step, options: treepack.save_exported(
        url, doubling(), tree(step), storage_options=options
    ),
    "file in parts": lambda url, step, options: treepack.save(
        url, tree(step, 6 << 20), storage_options=options
    ),
    "file in the background": lambda url, step, options: treepack.save(
        url, tree(step), background=True, storage_options=options
    ).result(),
    "iterator": _leaves,
    "directory": lambda url, step, options: treepack.save(
        url, tree(step), sharded=True, storage_options=options
    ),
    "directory in the background": lambda url, step, options: treepack.save(
        url, tree(step), sharded=True, background=True, storage_options=options
    ).result(),
    "series": _series,
    "run": lambda url, step, options: _run(url, options).save(step, tree(step), local=step),
    "run of directories": lambda url, step, options: _run(url, options, sharded=True).save(
        step, tree(step), local=step
    ),
    "run with a fast directory": _drained,
    "publisher": lambda url, step, options: treepack.Publisher(
        url, anchor_every=2, storage_options=options
    ).push(tree(step), version=step),
}


def _rows(url: str, options: dict[str, Any]) -> Any:
    with treepack.open(url, storage_options=options) as file:
        return {"w": file["w"][5:50], "n": file["n"].load()}


def _verified(url: str, options: dict[str, Any]) -> Any:
    found = treepack.verify(url, storage_options=options)
    # A server may say that a file is not there.
    assert found.ok or "is missing" in str(found.damage)
    return tree(1)


def _salvaged(url: str, options: dict[str, Any]) -> Any:
    with treepack.open(url, salvage=True, storage_options=options) as file:
        if file.damage and " is missing" in file.damage:
            raise FileNotFoundError(url)  # as a server may say of the manifest and of each shard
        assert not file.damage
        return {"w": np.asarray(file["w"]), "n": file["n"].load()}


def _is_checkpoint(url: str, options: dict[str, Any]) -> Any:
    if not treepack.is_checkpoint(url, storage_options=options):
        raise FileNotFoundError(url)  # which a server may say
    return tree(1)


READERS: dict[str, Callable[[str, dict[str, Any]], Any]] = {
    "load": lambda url, options: treepack.load(url, storage_options=options),
    "load into": lambda url, options: treepack.load(url, tree(0), storage_options=options),
    "select": lambda url, options: {
        **tree(1),
        **treepack.load(url, select="n", storage_options=options),
    },
    "open": _rows,
    "verify": _verified,
    "read_metadata": lambda url, options: {
        **tree(1),
        "n": treepack.read_metadata(url, storage_options=options),
    },
    "abstract": lambda url, options: {
        **tree(1),
        "n": treepack.abstract(url, storage_options=options)["n"],
    },
    "salvage": _salvaged,
    "is_checkpoint": _is_checkpoint,
}


@pytest.fixture(scope="module")
def running() -> Iterator[s3.Server]:
    with s3.running() as server:
        yield server


@pytest.fixture
def server(running: s3.Server, monkeypatch: pytest.MonkeyPatch) -> s3.Server:
    running.proxy.reset()
    monkeypatch.setattr(objects, "_PART_BYTES", 5 << 20)  # the smallest of S3
    return running


def options_of(server: s3.Server, retries: int) -> dict[str, Any]:
    retry = {**server.options["retry_config"], "max_retries": retries}
    return {**server.options, **SECRETS, "retry_config": retry}


def plans(requests: int, first: int, *, every: bool) -> Iterator[tuple[int, Fault, bool]]:
    """Yields the number of a request, what happens to it, and whether to all after it as well.

    Without `every`, each request has one of the faults, from the first on. With it, half of them,
    or a fifth where there are many requests, of which every other one also stays; at night, all.
    """
    if every:
        some = tiers.either(1, 2, nightly=1) if requests <= MANY else tiers.either(1, 5, nightly=1)
        for number, (at, fault) in itertools.product(range(requests), enumerate(FAULTS)):
            if (number + at) % some:
                continue
            yield number, fault, False
            if requests <= MANY or (number + at) % 2:
                yield number, fault, True
    else:
        for number in range(requests):
            yield number, FAULTS[(first + 2 * number) % len(FAULTS)], number % 3 == 2


# The requests of a use, above which not all plans are tried.
MANY = 12


class Failing:
    """Lets one request fail, or all from it on."""

    def __init__(self, server: s3.Server, plan: tuple[int, Fault, bool] | None):
        self._server, self._plan = server, plan
        self._numbers = itertools.count()

    def __enter__(self) -> None:
        if self._plan is not None:
            self._server.proxy.fault = self._fault

    def _fault(self, _: s3.Request) -> Fault:
        assert self._plan is not None
        number, fault, stays = self._plan
        now = next(self._numbers)
        return fault if now == number or (stays and now > number) else None

    def __exit__(self, *_: object) -> None:
        self._server.proxy.wait_until_idle()
        self._server.proxy.fault = lambda _: None


def check_error(error: BaseException, url: str) -> None:
    """Fails unless an error is documented, and names the URL and no secrets.

    A complete save warns of old files that it may not delete.
    """
    assert isinstance(error, (OSError, treepack.TreepackError, UserWarning)), repr(error)
    assert url in str(error), repr(error)
    text = "".join(traceback.format_exception(error))
    assert "s3cr3t" not in text, text


URLS = itertools.count()


class Saved:
    """What is at a URL: the last step that is saved there, without a fault."""

    def __init__(self, server: s3.Server, name: str):
        self._server, self._name = server, name
        self._url = server.url(f"{name}/{next(URLS)}")
        # With retries, since a connection may be one that a fault has closed at the other end.
        self._sure = options_of(server, 2)
        self._step = 1
        WRITERS[name](self._url, self._step, self._sure)

    def _found(self) -> int:
        return step_of(read(self._name, self._url, self._sure))

    def written(self, plan: tuple[int, Fault, bool] | None, retries: int) -> int:
        """Saves a tree over the last one, with a fault; returns the number of requests."""
        name, url, write = self._name, self._url, WRITERS[self._name]
        old, new = self._step, self._step + 1
        options = options_of(self._server, retries)
        self._server.proxy.requests.clear()
        error: BaseException | None = None
        with Failing(self._server, plan):
            try:
                write(url, new, options)
            except Exception as raised:
                error = raised
        requests = len(self._server.proxy.requests)
        found = self._found()
        assert found in (old, new)
        if error is None:
            assert found == new
        else:
            check_error(error, url)
        self._step += 2
        write(url, self._step, self._sure)
        assert self._found() == self._step
        if name.startswith("directory"):
            assert treepack.verify(url, storage_options=self._sure).ok
            there = Address.of(url, self._sure).entries()
            assert len(there) == 2, "what failed saves have left is gone"
        return requests


def read(name: str, url: str, options: dict[str, Any]) -> Any:
    if name == "series":
        return checkpoints.restore_checkpoint(url, None, storage_options=options)
    if name.startswith("run"):
        run = _run(url, options)
        resumed = run.resume()
        assert resumed is not None
        assert run.local == resumed[0] == step_of(resumed[1])
        return resumed[1]
    if name == "publisher":
        version, found = treepack.Subscriber(url, storage_options=options).latest()
        assert version == step_of(found)
        return found
    if name == "state":
        return serialization.load_from_file(None, url, storage_options=options)
    if name == "exported":
        return treepack.load_exported(url, storage_options=options).params
    return treepack.load(url, storage_options=options)


def loaded(
    server: s3.Server,
    name: str,
    url: str,
    plan: tuple[int, Fault, bool] | None,
    retries: int,
) -> int:
    """Reads a tree, with a fault; returns the number of requests."""
    options = options_of(server, retries)
    server.proxy.requests.clear()
    with Failing(server, plan):
        try:
            assert step_of(READERS[name](url, options)) == 1
        except Exception as error:
            if isinstance(error, AssertionError):
                raise
            check_error(error, url)
            assert plan is not None
    return len(server.proxy.requests)


def try_all(use: Callable[[Any, int], int], first: int) -> None:
    """Lets each request of a use fail, or some; `use` takes a plan, and the number of retries.

    With retries, which are those of obstore and wait, each request has one of the faults.
    """
    every = tiers.either(False, True)
    requests = use(None, 0)
    assert requests
    for retries in (0, 2) if every else (0,):
        for plan in plans(requests, first, every=every and not retries):
            try:
                use(plan, retries)
            except BaseException as error:
                error.add_note(f"request, fault, and whether it stays: {plan}; retries: {retries}")
                raise


QUICK = {"file in parts", "directory"}
SAVED = [name for at, name in enumerate(WRITERS) if at % 2 == 0 or name in QUICK]


@tiers.parametrize("name", tiers.either(SAVED, SAVED, nightly=[*WRITERS]), quick=QUICK)
def test_a_save_that_fails_leaves_the_old_or_the_new(server: s3.Server, name: str) -> None:
    try_all(Saved(server, name).written, [*WRITERS].index(name))


@pytest.mark.parametrize("stays", [False, True])
def test_the_files_of_a_commit_without_an_answer_stay(server: s3.Server, stays: bool) -> None:
    """Since the manifest, which names them, may be there."""
    url, options = server.url(f"answer/{stays}"), options_of(server, 0)
    treepack.save(url, tree(1), sharded=True, storage_options=options)
    is_lost: list[bool] = []

    def lose(request: s3.Request) -> Fault:
        is_commit = request.method == "PUT" and "manifest" in request.path
        is_late = stays and bool(is_lost)
        is_lost.extend([True] * is_commit)
        return "lost" if is_commit else "reset" if is_late else None

    server.proxy.fault = lose
    with contextlib.suppress(OSError):
        treepack.save(url, tree(2), sharded=True, storage_options=options)
    server.proxy.fault = lambda _: None
    options = options_of(server, 2)
    assert step_of(treepack.load(url, storage_options=options)) == 2
    assert treepack.verify(url, storage_options=options).ok
    treepack.save(url, tree(3), sharded=True, storage_options=options)
    assert len(Address.of(url, options).entries()) == 2


@pytest.mark.parametrize("kind", ["file", "gzip", "numbers", "directory"])
@pytest.mark.parametrize("name", READERS)
def test_a_read_that_fails_tells_where(server: s3.Server, name: str, kind: str) -> None:
    url, options = server.url(f"read/{kind}"), options_of(server, 2)
    how: dict[str, Any] = {"directory": {"sharded": True}, "file": {}}.get(kind, {"compress": kind})
    treepack.save(url, tree(1), metadata={"step": 1}, **how, storage_options=options)
    first = [*READERS].index(name) + len(kind)
    try_all(lambda plan, retries: loaded(server, name, url, plan, retries), first)


@pytest.mark.parametrize("sharded", [False, True])
def test_what_is_replaced_while_it_is_looked_at_is_not_taken_for_nothing(
    server: s3.Server, sharded: bool
) -> None:
    url, options = server.url(f"replaced/{sharded}"), options_of(server, 0)
    treepack.save(url, tree(1), sharded=sharded, storage_options=options)
    with (
        Failing(server, (0, 412, False)),
        pytest.raises(treepack.TreepackError, match="was changed by another writer: open or"),
    ):
        treepack.is_checkpoint(url, storage_options=options)
    assert treepack.is_checkpoint(url, storage_options=options)


def test_a_shard_that_is_replaced_during_a_read_is_not_too_large(server: s3.Server) -> None:
    url, options = server.url("replaced/shard"), options_of(server, 0)
    treepack.save(url, tree(1), sharded=True, storage_options=options)

    def replaced(request: s3.Request) -> Fault:
        return 412 if "-00000" in request.path else None

    server.proxy.fault = replaced
    with pytest.raises(treepack.TreepackError, match=r"-00000.* changed"):
        treepack.load(url, max_size=1 << 30, storage_options=options)


def test_a_deletion_that_fails_keeps_what_is_newer(server: s3.Server) -> None:
    """Of a series, the steps that are not kept go after the new one is there."""

    def use(plan: tuple[int, Fault, bool] | None, retries: int) -> int:
        options, url = options_of(server, retries), server.url(f"series/{next(URLS)}")
        for step in (1, 2, 3):
            checkpoints.save_checkpoint(url, tree(step), step, keep=3, storage_options=options)
        server.proxy.requests.clear()
        with Failing(server, plan):
            try:
                checkpoints.save_checkpoint(url, tree(4), 4, keep=1, storage_options=options)
            except Exception as error:
                check_error(error, url)
        requests = len(server.proxy.requests)
        steps = checkpoints.available_steps(url, storage_options=options)
        assert steps[-1] in (3, 4)
        assert 4 in steps or steps == [1, 2, 3], "nothing is deleted before"
        for step in steps:
            found = checkpoints.restore_checkpoint(url, None, step, storage_options=options)
            assert step_of(found) == step
        return requests

    try_all(use, 0)


def test_a_subscriber_that_fails_has_a_whole_version(server: s3.Server) -> None:
    """With a version or without, it reads an anchor or patches, and later the newest version."""
    url, sure = server.url("subscriber"), options_of(server, 2)
    publisher = treepack.Publisher(url, anchor_every=4, storage_options=sure)
    for step in (1, 2, 3):
        publisher.push(tree(step), version=step)

    def use(plan: tuple[int, Fault, bool] | None, retries: int) -> int:
        subscriber = treepack.Subscriber(url, storage_options=options_of(server, retries))
        server.proxy.requests.clear()
        with Failing(server, plan):
            try:
                version, found = subscriber.latest()
                assert version == step_of(found) == 3
            except Exception as error:
                if isinstance(error, AssertionError):
                    raise
                check_error(error, url)
        requests = len(server.proxy.requests)
        assert step_of(subscriber.latest()[1]) == 3
        return requests

    try_all(use, 0)
