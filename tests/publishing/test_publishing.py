"""`Publisher` and `Subscriber`: chains of patches, anchors, two publishers, damage and kills."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import tiers
import treepack
import treepack._core as core
from support import s3
from treepack._src.claims.versions import HEAD, Versions
from treepack._src.storage.address import Address
from trees import assert_same

NUMBERS = itertools.count()


def policy(version: int) -> dict[str, Any]:
    w = np.arange(20_000, dtype=np.float32)
    w[: version + 1] = -version
    return {"w": w, "frozen": np.ones(3000), "step": np.int64(version), "name": f"v{version}"}


@pytest.fixture(scope="module")
def server() -> Iterator[s3.Server]:
    pytest.importorskip("obstore")
    pytest.importorskip("moto")
    with s3.running() as running:
        yield running


@pytest.fixture(params=["disk", "fsspec", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """The directory of a publisher, as options."""
    if request.param == "s3":
        server = request.getfixturevalue("server")
        server.proxy.reset()
        url = server.url(f"policies/{next(NUMBERS)}")
        return {"path": url, "storage_options": server.options}
    if request.param == "fsspec":
        pytest.importorskip("fsspec")
        return {"path": f"memory://policies/{next(NUMBERS)}"}
    return {"path": tmp_path / "new" / "policy"}


@pytest.fixture
def where(tmp_path: Path) -> Path:
    return tmp_path / "policy"


def names(where: Path) -> list[str]:
    return sorted(it.name for it in where.iterdir())


def kinds(where: Path) -> list[str]:
    """Returns the versions that objects belong to, with their suffixes."""
    found = [name for name in names(where) if name != HEAD]
    return sorted(f"{name.split('-')[0][8:]}{Path(name).suffix}" for name in found)


def check(subscriber: treepack.Subscriber, version: int) -> None:
    number, found = subscriber.latest()
    assert number == version
    assert_same(found, policy(version))


def test_subscribers_follow_whether_they_keep_up_or_not(place: dict[str, Any]) -> None:
    publisher = treepack.Publisher(**place, anchor_every=3)
    fast, slow, slowest = (treepack.Subscriber(**place) for _ in range(3))
    with pytest.raises(FileNotFoundError, match="no version was published"):
        fast.latest()
    for version in range(11):
        publisher.push(policy(version), version=version)
        check(fast, version)
        if version % 4 == 0:
            check(slow, version)
        if version in (0, 10):
            check(slowest, version)
        check(treepack.Subscriber(**place), version)


def test_a_tree_may_change_after_it_is_pushed(where: Path) -> None:
    publisher, subscriber = treepack.Publisher(where), treepack.Subscriber(where)
    tree = {"w": np.zeros(5000, np.float32), "b": jnp.ones(3)}
    for version in range(4):
        tree["w"][version] = 1
        publisher.push(tree, version=version)
        tree["w"][10:] += 1
        tree["w"][10:] -= 1
        number, found = subscriber.latest(tree, strict="exact")
        assert (number, found["w"].sum()) == (version, version + 1)
        assert isinstance(found["b"], type(tree["b"]))


def test_two_anchors_stay_with_all_after_the_first(where: Path) -> None:
    publisher = treepack.Publisher(where, anchor_every=3)
    for version in range(8):
        publisher.push(policy(version), version=10 * version)
    anchors = ["30.treepack", "60.treepack"]
    assert kinds(where) == sorted([*anchors, "40.patch", "50.patch", "60.patch", "70.patch"])
    found = treepack.load(next(where.glob("version_60-*.treepack")))
    assert_same(found, policy(6))
    (where / ".head.json.treepack-0123456789abcdef.tmp").write_bytes(b"of a dead publisher")
    (where / "version_1-0123456789abcdef.patch").write_bytes(b"of a failed push")
    (where / "mine.patch").write_bytes(b"of the user")
    (where / "version_1").write_bytes(b"of the user")
    treepack.Publisher(where, anchor_every=3).push(policy(8), version=80)
    assert len(kinds(where)) == 9
    assert names(where)[:2] == [HEAD, "mine.patch"]
    assert "version_1" in names(where)


def test_an_anchor_is_read_only_where_it_is_fewer_bytes(server: s3.Server) -> None:
    server.proxy.reset()
    place: Any = {
        "path": server.url(f"policies/{next(NUMBERS)}"),
        "storage_options": server.options,
    }
    publisher, keeps_up = treepack.Publisher(**place, anchor_every=4), treepack.Subscriber(**place)
    other = treepack.Subscriber(**place)

    def read_by(subscriber: treepack.Subscriber, version: int) -> list[str]:
        server.proxy.requests.clear()
        check(subscriber, version)
        paths = [it.path for it in server.proxy.requests if it.method == "GET"]
        return [path.rpartition(".")[2] for path in paths]

    for version in range(10):
        publisher.push(policy(version), version=version)
        expected = ["json", "patch"] if version else ["json", "treepack"]
        assert read_by(keeps_up, version) == expected
        assert read_by(keeps_up, version) == ["json"]
        if version == 4:
            check(other, version)
    assert read_by(other, 9) == ["json", *["patch"] * 5], "5 patches are fewer bytes"
    new = np.random.default_rng(0).random(20_000)
    for version in range(10, 13):
        publisher.push({"w": new * version}, version=version)
    server.proxy.requests.clear()
    assert other.latest()[0] == 12
    paths = [it.path.rpartition(".")[2] for it in server.proxy.requests]
    assert paths == ["json", "treepack"], "the patches of all that changed are more bytes"


def test_a_push_takes_few_requests(server: s3.Server) -> None:
    server.proxy.reset()
    url = server.url(f"policies/{next(NUMBERS)}")
    publisher = treepack.Publisher(url, storage_options=server.options)
    for version in range(3):
        publisher.push(policy(version), version=version)
    server.proxy.requests.clear()
    publisher.push(policy(3), version=3)
    assert [it.method for it in server.proxy.requests] == ["GET", "PUT", "PUT"]


def test_a_subscriber_is_sent_to_another_process(where: Path) -> None:
    treepack.Publisher(where).push(policy(1), version=1)
    subscriber = treepack.Subscriber(where)
    check(subscriber, 1)
    sent = pickle.loads(pickle.dumps(subscriber))
    assert "no version received" in repr(sent)
    check(sent, 1)
    check(subscriber, 1)


def test_temporary_files_of_dead_writers_are_removed(where: Path) -> None:
    """Of any in the directory: a killed program may have saved beside the versions."""
    where.mkdir()
    names = ["model.treepack", "head.json", "notes"]
    dead = [where / f".{name}.treepack-0123456789abcdef.tmp" for name in names]
    for path in dead:
        path.write_bytes(b"of a dead writer")
    alive = core.Replacement(where / "model", private=False)
    (where / ".notes.tmp").touch()  # of another program
    try:
        treepack.Publisher(where).push(policy(0), version=0)
        there = {path.name for path in where.iterdir()}
        assert {*(path.name for path in dead)}.isdisjoint(there)
        assert {Path(alive.name).name, ".notes.tmp"} <= there
    finally:
        alive.discard()


def test_a_version_must_be_newer(where: Path) -> None:
    publisher = treepack.Publisher(where)
    publisher.push(policy(5), version=5)
    for version in (5, 4):
        with pytest.raises(treepack.TreepackError, match=f"{version} is not newer than version 5"):
            publisher.push(policy(version), version=version)
        with pytest.raises(treepack.TreepackError, match=f"{version} is not newer than version 5"):
            treepack.Publisher(where).push(policy(version), version=version)
    for wrong in (-1, 10**18):
        with pytest.raises(ValueError, match=rf"^version .* 0 .*got {wrong}$"):
            publisher.push(policy(6), version=wrong)
    with pytest.raises(TypeError):
        publisher.push(policy(6), version=6.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="anchor_every must be an integer of at least 1, got 0"):
        treepack.Publisher(where, anchor_every=0)
    with pytest.raises(TypeError, match=r"anchor_every must be an integer .*, got 1\.5"):
        treepack.Publisher(where, anchor_every=1.5)  # type: ignore[arg-type]
    publisher.push(policy(6), version=6)
    check(treepack.Subscriber(where), 6)


def test_of_two_publishers_one_gets_an_error(place: dict[str, Any]) -> None:
    one, two = treepack.Publisher(**place), treepack.Publisher(**place)
    one.push(policy(1), version=1)
    message = (
        "another publisher has changed .*, where version 1 is the newest now: only one may push"
    )
    for _ in range(2):
        with pytest.raises(treepack.TreepackError, match=message):
            two.push(policy(2), version=2)
    one.push(policy(2), version=2)
    three = treepack.Publisher(**place)
    three.push(policy(3), version=3)
    with pytest.raises(treepack.TreepackError, match="version 3 is the newest now"):
        one.push(policy(4), version=4)
    three.push(policy(4), version=4)
    check(treepack.Subscriber(**place), 4)


def test_two_publishers_at_the_same_time_never_mix(
    place: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One pushes after the other has read the head: the lease or the condition tells it."""
    if place["path"].__class__ is str and place["path"].startswith("memory"):
        pytest.skip("file systems of fsspec have no conditions")
    one, two = treepack.Publisher(**place), treepack.Publisher(**place)
    errors: list[BaseException] = []
    write = Address.write_content

    def overtaken(*args: Any, **options: Any) -> None:
        monkeypatch.setattr(Address, "write_content", write)
        try:
            two.push(policy(2), version=2)
        except treepack.TreepackError as error:
            errors.append(error)
        write(*args, **options)

    monkeypatch.setattr(Address, "write_content", overtaken)
    try:
        one.push(policy(1), version=1)
    except treepack.TreepackError as error:
        errors.append(error)
    message = r"version \d+ is the newest|process \d+"
    assert len(errors) == 1
    with pytest.raises(treepack.TreepackError, match=message):
        raise errors[0]
    assert treepack.Subscriber(**place).latest()[0] in (1, 2)


def test_a_publisher_continues_after_the_last_version(where: Path) -> None:
    for version in range(5):
        treepack.Publisher(where, anchor_every=3).push(policy(version), version=version)
    assert kinds(where) == ["0.treepack", "1.patch", "2.patch", "3.patch", "3.treepack", "4.patch"]
    check(treepack.Subscriber(where), 4)


@pytest.mark.parametrize("kind", ["flipped", "torn", "gone"])
@pytest.mark.parametrize("suffix", ["patch", "treepack"])
def test_damage_is_an_error_and_the_next_publisher_starts_anew(
    where: Path, kind: str, suffix: str
) -> None:
    publisher, old = treepack.Publisher(where), treepack.Subscriber(where)
    for version in range(3):
        publisher.push(policy(version), version=version)
    check(old, 2)
    [path] = where.glob(f"version_{2 if suffix == 'patch' else 0}-*.{suffix}")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 8
    path.write_bytes(data if kind == "flipped" else data[: len(data) // 2])
    if kind == "gone":
        path.unlink()
    with pytest.raises(treepack.TreepackError) as error:
        treepack.Subscriber(where).latest()
    assert str(where) in str(error.value)
    check(old, 2)
    treepack.Publisher(where).push(policy(3), version=3)
    check(treepack.Subscriber(where), 3)
    check(old, 3)


def test_a_subscriber_whose_objects_go_reads_the_head_again(
    where: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher, subscriber = treepack.Publisher(where, anchor_every=1), treepack.Subscriber(where)
    publisher.push(policy(0), version=0)
    loaded = Versions.loaded

    def late(*args: Any) -> Any:
        monkeypatch.setattr(Versions, "loaded", loaded)
        for version in range(1, 4):
            publisher.push(policy(version), version=version)
        return loaded(*args)

    monkeypatch.setattr(Versions, "loaded", late)
    check(subscriber, 3)


def test_a_subscriber_that_is_too_slow_says_so(
    where: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher, subscriber = treepack.Publisher(where, anchor_every=1), treepack.Subscriber(where)
    publisher.push(policy(0), version=0)
    versions, loaded = itertools.count(1), Versions.loaded

    def late(*args: Any) -> Any:
        for _ in range(3):
            publisher.push(policy(0), version=next(versions))
        return loaded(*args)

    monkeypatch.setattr(Versions, "loaded", late)
    with pytest.raises(treepack.TreepackError, match=r"removed while it was read: .*anchor_every="):
        subscriber.latest()


def test_waiting_ends_with_a_newer_version(where: Path) -> None:
    publisher, subscriber = treepack.Publisher(where), treepack.Subscriber(where)
    with pytest.raises(TimeoutError, match=r"0\.01 s.*policy"):
        subscriber.wait(timeout=0.01)
    with pytest.raises(ValueError, match="timeout"):
        subscriber.wait(timeout=0)
    with pytest.raises(TypeError, match="newer_than must be an integer, got 'one'"):
        subscriber.wait(newer_than="one")  # type: ignore[arg-type]
    received: list[int] = []

    def receive() -> None:
        while not received or received[-1] < 5:
            received.append(subscriber.wait(policy(0), newer_than=max(received, default=-1))[0])

    thread = threading.Thread(target=receive)
    thread.start()
    for version in range(6):
        publisher.push(policy(version), version=version)
    thread.join()
    assert received == sorted(set(received))
    with pytest.raises(TimeoutError, match="no version after version 5 was published in"):
        subscriber.wait(timeout=0.01)
    assert subscriber.wait(newer_than=4, timeout=0.01)[0] == 5


def test_a_push_without_an_answer_may_be_repeated(server: s3.Server) -> None:
    server.proxy.reset()
    url = server.url(f"policies/{next(NUMBERS)}")
    options = {**server.options, "retry_config": {"max_retries": 0}}
    publisher = treepack.Publisher(url, storage_options=options)
    publisher.push(policy(1), version=1)
    is_lost: list[bool] = []

    def lose(request: s3.Request) -> Any:
        is_commit = request.method == "PUT" and HEAD in request.path
        is_late = bool(is_lost)
        is_lost.extend([True] * is_commit)
        return "lost" if is_commit else "reset" if is_late else None

    for version, other in ((2, 2), (3, 4)):
        is_lost.clear()
        server.proxy.fault = lose
        with pytest.raises(OSError, match=url):
            publisher.push(policy(version), version=version)
        server.proxy.fault = lambda _: None
        if other == version:
            publisher.push(policy(version), version=version)
        else:
            with pytest.raises(treepack.TreepackError, match="published with another tree"):
                publisher.push(policy(other), version=version)
            publisher.push(policy(4), version=4)
    check(treepack.Subscriber(url, storage_options=server.options), 4)


GOOD = {"name": "version_1-0123456789abcdef", "patch": None, "anchor": [5, 7]}


@pytest.mark.parametrize(
    "head",
    [
        *(
            b"",
            b"{",
            b"[]",
            b"\xff",
            b"[" * 100_000,
            {"treepack_versions": "1", "versions": [GOOD]},
        ),
        *({"versions": []}, {"versions": 1}, {"versions": [{}]}, {"versions": [GOOD, GOOD]}),
        {"versions": [{**GOOD, "name": "../version_1-0123456789abcdef"}]},
        {"versions": [{**GOOD, "name": 1}]},
        {"versions": [{**GOOD, "anchor": None, "patch": 5}]},
        {"versions": [{**GOOD, "anchor": None}]},
        {"versions": [{**GOOD, "anchor": [1]}]},
        {"versions": [{**GOOD, "anchor": [-1, 7]}]},
        {"versions": [{**GOOD, "patch": 1.5}]},
    ],
)
def test_a_head_that_no_publisher_writes_is_an_error(where: Path, head: Any) -> None:
    where.mkdir()
    data = head if isinstance(head, bytes) else json.dumps({"treepack_versions": 1, **head})
    (where / HEAD).write_bytes(data if isinstance(data, bytes) else data.encode())
    with pytest.raises(treepack.CorruptionError) as error:
        treepack.Subscriber(where).latest()
    assert str(where / HEAD) in str(error.value)
    with pytest.raises(treepack.CorruptionError):
        treepack.Publisher(where)


def test_a_newer_head_is_an_error(where: Path) -> None:
    where.mkdir()
    (where / HEAD).write_text('{"treepack_versions": 2}')
    with pytest.raises(treepack.NewerVersionError, match="upgrade treepack"):
        treepack.Subscriber(where).latest()


def test_a_subscriber_bounds_the_size_of_versions(where: Path) -> None:
    publisher = treepack.Publisher(where)
    for version in range(2):
        publisher.push({"w": np.zeros(100_000 * (1 + version))}, version=version)
        if version == 0:
            subscriber = treepack.Subscriber(where, max_size=1_000_000)
            subscriber.latest()
    with pytest.raises(treepack.TreepackError, match="max_size=1000000 "):
        subscriber.latest()


def test_a_version_that_did_not_fit_is_returned_by_the_next_call(where: Path) -> None:
    treepack.Publisher(where).push({"w": np.zeros(3)}, version=0)
    subscriber = treepack.Subscriber(where)
    with pytest.raises(treepack.MismatchError):
        subscriber.wait({"w": np.zeros(4)}, timeout=60)
    assert subscriber.wait({"w": np.zeros(3)}, timeout=1)[0] == 0


# An interrupt may leave a temporary file to the collector, which warns.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_publisher_goes_on_after_an_interrupt_at_any_line(where: Path) -> None:
    publisher = treepack.Publisher(where, durable=False, anchor_every=2)
    numbers = itertools.count()

    def push(line: int) -> KeyboardInterrupt | None:
        lines = itertools.count(1)

        def trace(frame: Any, event: str, _: object) -> Any:
            code = frame.f_code
            if "treepack" not in code.co_filename or code.co_name in ("_end", "_close"):
                return None  # Python swallows what is raised in finalizers
            if event == "line" and next(lines) == line:
                raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            publisher.push(policy(0), version=next(numbers))
        except KeyboardInterrupt as error:
            return error
        finally:
            sys.settrace(before)
        return None

    stride, interrupted = tiers.either(3, 1), 0
    for line in itertools.count(1, stride):
        error = push(line)  # with its traceback, as in a notebook
        if error is None:
            break
        interrupted += 1
        publisher.push(policy(0), version=next(numbers))
    assert interrupted > 50


# Forks publishers and subscribers, and kills them at any time. All of a tree is of one version. The
# program imports no jax, so that it may fork.
KILLS = """
import os, random, signal, sys, time
import numpy as np
import treepack
folder, kills = sys.argv[1], int(sys.argv[2])
rng = random.Random(0)

def policy(version):
    w = np.full(30_000, version, np.float32)
    w[version % 1000:] += 1
    return {"w": w, "version": version}

def check(version, tree):
    expected = policy(version)
    assert tree["version"] == version and np.array_equal(tree["w"], expected["w"]), version

def publish(tell):
    publisher = treepack.Publisher(folder, anchor_every=3)
    try:
        version = treepack.Subscriber(folder).latest()[0]
    except FileNotFoundError:
        version = 0
    while True:
        version += 1
        publisher.push(policy(version), version=version)
        tell(version)

def subscribe(tell):
    subscriber = treepack.Subscriber(folder)
    while True:
        check(*subscriber.latest())
        tell(subscriber.latest()[0])

def start(work):
    output, given = os.pipe()
    process = os.fork()
    if process:
        os.close(given)
        return process, os.fdopen(output)
    os.close(output)
    try:
        work(lambda version: os.write(given, b"%d\\n" % version))
    except BaseException as error:
        print("a process ends with", repr(error), file=sys.stderr, flush=True)
    os._exit(1)

follower, newest = treepack.Subscriber(folder), 0
for kill in range(kills):
    publisher, published = start(publish)
    lines = [published.readline()]
    subscriber, heard = start(subscribe)
    for _ in range(rng.randrange(4)):
        lines.append(published.readline())
    time.sleep(rng.random() * 0.01)  # to any place in a push
    os.kill(publisher, signal.SIGKILL)
    os.waitpid(publisher, 0)
    assert heard.readline(), "it has ended"
    os.kill(subscriber, signal.SIGKILL)
    os.waitpid(subscriber, 0)
    versions = [int(line) for line in [*lines, *published]]
    published.close(), heard.close()
    assert versions == list(range(versions[0], versions[0] + len(versions)))
    assert versions[0] in (newest + 1, newest + 2)  # the last one may be unreported
    for reader in (follower, treepack.Subscriber(folder)):
        version, tree = reader.latest()
        check(version, tree)
        assert version in (versions[-1], versions[-1] + 1)
    newest = versions[-1]
publisher = treepack.Publisher(folder, anchor_every=1)
for version in (newest + 5, newest + 6):
    publisher.push(policy(version), version=version)
print(kills, "kills")
"""


def test_publishers_and_subscribers_may_be_killed(where: Path) -> None:
    """Set TREEPACK_KILLS to the number of times; 0 torn or mixed versions in 500."""
    kills = os.environ.get("TREEPACK_KILLS", str(tiers.either(3, 50)))
    done = subprocess.run(
        [sys.executable, "-c", KILLS, where, kills], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"{kills} kills" in done.stdout
    suffixes = [Path(name).suffix for name in names(where)]
    assert sorted(suffixes) == [".json", ".patch", ".treepack", ".treepack"], "leftovers are gone"


@pytest.mark.campaign
def test_a_publisher_that_is_killed_at_any_request_leaves_whole_versions(server: s3.Server) -> None:
    program = (
        "import json, sys, numpy as np, treepack\n"
        "publisher = treepack.Publisher(sys.argv[1], anchor_every=2,\n"
        "                               storage_options=json.loads(sys.argv[2]))\n"
        "for version in (3, 4):\n"
        "    publisher.push({'w': np.full(3000, version)}, version=version)\n"
        "print('ended')\n"
    )
    options = {name: it for name, it in server.options.items() if name != "retry_config"}
    for turn in range(40):
        server.proxy.reset()
        url = server.url(f"policies/{next(NUMBERS)}")
        place: Any = {"path": url, "storage_options": server.options}
        first = treepack.Publisher(**place, anchor_every=2)
        for version in (1, 2):
            first.push({"w": np.full(3000, version)}, version=version)
        old = treepack.Subscriber(**place)
        old.latest()
        job = subprocess.Popen(
            [sys.executable, "-c", program, url, json.dumps(options)],
            stdout=subprocess.PIPE,
            text=True,
        )
        requests = itertools.count()

        def kill(_: s3.Request, job: Any = job, turn: int = turn, requests: Any = requests) -> Any:
            if next(requests) == turn:
                if turn % 2:
                    return job.kill  # after it is done
                job.kill()
            return None

        server.proxy.fault = kill
        has_ended = "ended" in job.communicate()[0]
        server.proxy.wait_until_idle()
        server.proxy.fault = lambda _: None
        for subscriber in (old, treepack.Subscriber(**place)):
            version, tree = subscriber.latest()
            assert version in ((4,) if has_ended else (2, 3, 4))
            assert (tree["w"] == version).all()
        treepack.Publisher(**place, anchor_every=1).push({"w": np.full(3000, 5)}, version=5)
        assert treepack.Subscriber(**place).latest()[1]["w"][0] == 5
        if has_ended:
            return
