"""Threads that save, load, open, register and change things at once."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

import treepack
from treepack import serialization
from treepack._src.claims.directory import RemoteDirectory, interrupted
from treepack._src.claims.versions import Versions
from treepack._src.processes.group import Group, _Rounds
from treepack._src.publishing import publisher
from treepack._src.pytree import handlers
from treepack._src.pytree.containers import NAMEDTUPLE
from treepack._src.registry import names, nodes, unregistered
from treepack._src.storage.address import Address

ROUNDS = 20
HAS_GIL: bool = getattr(sys, "_is_gil_enabled", lambda: True)()


@pytest.fixture(autouse=True)
def often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def at_once(works: list[Callable[[int], None]], rounds: int = ROUNDS) -> None:
    """Runs each work in a thread, again and again, and raises what one of them has raised."""
    errors: list[BaseException] = []
    start = threading.Barrier(len(works))

    def run(work: Callable[[int], None]) -> None:
        try:
            start.wait(60)
            for number in range(rounds):
                work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_nothing_is_lost_or_mixed_up(tmp_path: Path) -> None:
    shared: dict[str, Any] = {f"leaf{i}": np.full(7, i) for i in range(50)}
    path = tmp_path / "shared"
    treepack.save(path, shared, durable=False)

    def save(number: int) -> None:
        with contextlib.suppress(RuntimeError):  # the dict has changed meanwhile
            treepack.save(path, shared, durable=False)

    def load(number: int) -> None:
        for name, leaf in treepack.load(path).items():
            if name.startswith("leaf"):
                np.testing.assert_array_equal(leaf, int(name[4:]))

    def look(number: int) -> None:
        with treepack.open(path) as file:
            np.testing.assert_array_equal(file["leaf3"], 3)
            assert treepack.verify(path).ok

    def register(number: int) -> None:
        name = f"Kind{threading.get_ident()}_{number}"
        kind = dataclasses.make_dataclass(name, ["x"])
        treepack.register_dataclass(kind, serialized_name=name)
        found = treepack.loads(treepack.dumps({"node": kind(np.arange(number))}))
        assert type(found["node"]) is kind
        assert len(found["node"].x) == number

    def mutate(number: int) -> None:
        shared[f"other{number}"] = np.ones(3)
        treepack.dumps({**shared})
        shared.pop(f"other{number}", None)

    at_once([save, save, load, load, look, register, register, mutate])


def test_containers_change_while_they_are_saved() -> None:
    grows: list[Any] = [np.full(3, i) for i in range(20)]
    keys: dict[str, Any] = {f"key{i}": i for i in range(20)}
    shape = np.arange(24.0).reshape(4, 6)
    tree = {"grows": grows, "keys": keys, "shape": shape}

    def save(encode: Callable[[Any], bytes], number: int) -> None:
        try:
            found = serialization.msgpack_restore(encode(tree))
        except RuntimeError as error:
            if "changed size" not in str(error):
                raise
            return
        assert found["shape"].shape in [(4, 6), (6, 4)]
        assert found["shape"].sum() == 276
        assert found["keys"]["key3"] == 3

    def lengthen(number: int) -> None:
        grows.append(np.zeros(number))
        keys[f"more{number}"] = number
        del grows[20:], keys[f"more{number}"]

    def turn(number: int) -> None:
        shape.shape = shape.shape[::-1]

    encodings: list[Callable[[Any], bytes]] = [
        treepack.dumps,
        serialization.to_bytes,
        serialization.msgpack_serialize,
        functools.partial(serialization.msgpack_serialize, in_place=True),
    ]
    saves = [functools.partial(save, encode) for encode in encodings]
    # Without the GIL NumPy forbids changing the shape of an array that another thread uses.
    at_once([*saves, lengthen, lengthen, *([turn, turn] if HAS_GIL else [])])


@pytest.mark.campaign
@pytest.mark.parametrize("threads", [2, 16])
def test_each_thread_gets_the_bytes_of_one_thread(threads: int, tmp_path: Path) -> None:
    def tree(number: int) -> dict[str, Any]:
        rows = np.random.default_rng(number).standard_normal((64, number + 1), np.float32)
        return {"rows": rows, "pair": (jax.numpy.arange(number), f"step {number}"), "n": number}

    encodings: list[Callable[[Any], bytes]] = [
        treepack.dumps,
        functools.partial(treepack.dumps, compress="gzip"),
        functools.partial(treepack.dumps, compress="numbers"),
        functools.partial(treepack.dumps, base=treepack.dumps(tree(0))),
        serialization.to_bytes,
    ]
    expected = [[encode(tree(number)) for encode in encodings] for number in range(ROUNDS)]
    ours = itertools.count()

    def work(number: int) -> None:
        given = tree(number)
        assert [encode(given) for encode in encodings] == expected[number]
        loads = [treepack.loads(data) for data in expected[number][:3]]
        loads.append(treepack.loads(expected[number][0], given))
        loads.append(treepack.loads(expected[number][3], base=tree(0)))
        path = tmp_path / f"own{next(ours)}"
        treepack.save(path, given, durable=False)
        loads.append(treepack.load(path))
        for found in loads:
            jax.tree.map(np.testing.assert_array_equal, found, given)

    at_once([work] * threads)


@pytest.mark.campaign
def test_registrations_that_fail_take_only_their_own_names_back() -> None:
    class Mode:
        pass

    def encode(mode: Any) -> int:
        return 1

    treepack.register_auxdata(Mode, "at_once.Mode", encode, lambda _: Mode())

    def fail(number: int) -> None:
        ty = type(f"Bad{threading.get_ident()}", (), {})
        with contextlib.suppress(ZeroDivisionError), names.registering:
            treepack.register_auxdata(ty, f"{ty.__name__}{number}", encode, lambda _: ty())
            _ = 1 / 0
        with pytest.raises(treepack.UnserializableLeafError):
            treepack.dumps(ty())

    def use(number: int) -> None:
        data = treepack.dumps({Mode(): number})
        assert b"at_once.Mode" in data
        assert [type(key) for key in treepack.loads(data)] == [Mode]

    def handle(number: int) -> None:
        class Own:
            x = number

        serialization.register_serialization_state(
            Own, lambda own: {"x": own.x}, lambda _, state: state
        )
        assert serialization.from_bytes(Own(), serialization.to_bytes(Own())) == {"x": number}

    def export(number: int) -> None:
        name = f"Exported{threading.get_ident()}_{number}"
        kind = dataclasses.make_dataclass(name, ["x"])
        treepack.register_dataclass(kind, serialized_name=name)
        apply = jax.export.export(jax.jit(lambda node: node))(kind(np.float32(number)))
        assert name.encode() in apply.serialize()

    at_once([fail, fail, use, use, handle, handle, export, export])


def test_a_file_is_closed_while_others_read_it(tmp_path: Path) -> None:
    path = tmp_path / "model"
    treepack.save(path, {"a": np.arange(1000), "b": {"c": np.ones(3)}}, durable=False)
    files = [treepack.open(path) for _ in range(ROUNDS)]

    def read(number: int) -> None:
        try:
            np.testing.assert_array_equal(files[number]["a"][5:8], [5, 6, 7])
            assert files[number].load()["b"]["c"].sum() == 3
        except ValueError as error:
            if "is closed" not in str(error):
                raise

    def close(number: int) -> None:
        files[number].close()

    at_once([read, read, read, close])


def test_threads_share_a_subscriber(tmp_path: Path) -> None:
    publisher = treepack.Publisher(tmp_path, durable=False, anchor_every=4)
    publisher.push({"v": np.array(0)}, version=0)
    subscriber, newest = treepack.Subscriber(tmp_path), itertools.count(1)

    def push(number: int) -> None:
        version = next(newest)
        publisher.push({"v": np.array(version)}, version=version)

    def read(number: int) -> None:
        for found in (subscriber.latest(), subscriber.wait(newer_than=-1)):
            version, tree = found
            assert int(tree["v"]) == version
        assert "received" in repr(subscriber)

    at_once([push, *[read] * 7])
    assert subscriber.latest() == (ROUNDS, {"v": ROUNDS})


@pytest.mark.parametrize(("owner", "name"), [(Versions, "loaded"), (publisher, "load")])
def test_a_subscriber_returns_number_and_tree_of_one_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    publisher, subscriber = treepack.Publisher(tmp_path), treepack.Subscriber(tmp_path)
    publisher.push({"v": 1}, version=1)
    found: list[tuple[int, Any]] = []
    numbers = iter([2, 3])

    original = getattr(owner, name)

    def meanwhile(*args: Any, **options: Any) -> Any:
        for number in numbers:  # as another thread, before and after the version is read
            publisher.push({"v": number}, version=number)
            found.append(subscriber.latest())
        return original(*args, **options)

    monkeypatch.setattr(owner, name, meanwhile)
    found.append(subscriber.latest())
    assert found == [(version, {"v": version}) for version, _ in found]
    assert "version 3 received" in repr(subscriber)


@pytest.mark.parametrize("where", ["disk", "memory"])
def test_threads_share_a_publisher(where: str, tmp_path: Path) -> None:
    """Each version is pushed once, or refused because a later one came first."""
    pytest.importorskip("fsspec")
    place: Any = tmp_path if where == "disk" else f"memory://at_once/{tmp_path.name}"
    publisher, numbers = treepack.Publisher(place, durable=False), itertools.count(1)
    pushed: list[int] = []

    def push(number: int) -> None:
        version = next(numbers)
        try:
            publisher.push({"v": version}, version=version)
            pushed.append(version)
        except treepack.TreepackError as error:
            assert "is not newer than" in str(error)  # noqa: PT017

    at_once([push] * 8)
    newest = max(pushed)
    assert treepack.Subscriber(place).latest() == (newest, {"v": newest})
    publisher.push({"v": 0}, version=next(numbers))


@pytest.mark.filterwarnings("ignore:.* was not saved:UserWarning")
@pytest.mark.parametrize("fast", [None, "fast"])
def test_threads_share_a_series(fast: str | None, tmp_path: Path) -> None:
    keep = treepack.Keep(last=3, best=("loss", 1, "min"))
    run = treepack.Series(tmp_path / "run", keep=keep, fast=fast and tmp_path / fast)
    numbers, saved = itertools.count(), list[int]()

    def save(number: int) -> None:
        step = next(numbers)
        try:
            saving = run.save(
                step, {"v": step}, metrics={"loss": step}, background=number % 2 == 0, durable=False
            )
            if saving is not None:
                saving.result()
                assert saving.path.endswith(f"step_{step}")
            else:
                assert number % 2
        except treepack.TreepackError as error:
            assert "a later step" in str(error)  # noqa: PT017
        else:
            saved.append(step)

    def look(number: int) -> None:
        run.steps(), run.should_save(number), repr(run)
        if (step := run.best("loss", "min")) is not None:
            assert step >= 0
        if (found := run.resume()) is not None:
            assert found == (found[0], {"v": found[0]})
        with contextlib.suppress(treepack.TreepackError):  # of a save
            run.wait()

    at_once([save] * 4 + [look] * 4)
    with contextlib.suppress(treepack.TreepackError):
        run.wait()
    assert run.resume() == (max(saved), {"v": max(saved)})


def test_threads_share_a_file_in_every_form(tmp_path: Path) -> None:
    tree = {"a": np.arange(1000.0), "b": {"c": np.ones((30, 4)), "d": np.arange(6)}}
    forms: dict[str, dict[str, Any]] = {
        "plain": {},
        "gz": {"compress": True},
        "numbers": {"compress": "numbers"},
        "sharded": {"sharded": True},
        "hub": {"format": "safetensors", "max_shard_size": "1KB"},
    }
    for name, options in forms.items():
        treepack.save(tmp_path / name, tree, durable=False, **options)
    files = [treepack.open(tmp_path / name) for name in forms]
    lazy = [file["a"] for file in files]

    def read(number: int) -> None:
        for file, array in zip(files, lazy, strict=True):
            np.testing.assert_array_equal(array[number : number + 9], tree["a"][number:][:9])
            assert file["b"].load()["c"].sum() == 120
            assert float(file["a"].sum()) == 499500
            assert len(repr(file)) > 0

    at_once([read] * 8)


def test_threads_share_a_saving(tmp_path: Path) -> None:
    savings = [
        treepack.save(tmp_path / str(it), {"v": it}, background=True) for it in range(ROUNDS)
    ]

    def wait(number: int) -> None:
        saving = savings[number]
        assert saving.exception() is saving.result() is None
        assert saving.done()
        assert "saved" in repr(saving)
        assert treepack.load(saving.path) == {"v": number}

    at_once([wait] * 8)


def test_threads_share_a_handler_of_orbax(tmp_path: Path) -> None:
    orbax = pytest.importorskip("treepack.orbax")
    handler, numbers = orbax.TreepackHandler(durable=False), itertools.count()

    def use(number: int) -> None:
        step = next(numbers)
        handler.save(tmp_path / str(step), orbax.TreepackSave({"v": np.full(3, step)}))
        found = handler.restore(
            tmp_path / str(step), orbax.TreepackRestore({"v": np.zeros(3, int)})
        )
        np.testing.assert_array_equal(found["v"], step)
        assert handler.metadata(tmp_path / str(step))["v"].shape == (3,)

    at_once([use] * 8, rounds=4)


def test_of_threads_that_register_one_handler_one_is_first(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own:
        pass

    register = functools.partial(
        serialization.register_serialization_state, Own, lambda own: {}, lambda own, state: own
    )
    registry_of = handlers._registry_of

    def meanwhile(module: str) -> dict[Any, Any]:
        monkeypatch.setattr(handlers, "_registry_of", registry_of)
        register()  # as another thread
        return registry_of(module)

    monkeypatch.setattr(handlers, "_registry_of", meanwhile)
    with pytest.raises(ValueError, match="already registered"):
        register()


def test_what_was_found_before_another_thread_registers_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Pair(NamedTuple):
        a: Any

    class Other(NamedTuple):
        b: Any

    name = names.default_name(Pair)
    by_name = unregistered.TYPES.by_name

    def and_then(name: str) -> Any:
        monkeypatch.setattr(unregistered.TYPES, "by_name", by_name)
        free = by_name(name)
        treepack.register_namedtuple(Other, serialized_name=name)  # as another thread
        return free

    monkeypatch.setattr(unregistered.TYPES, "by_name", and_then)
    assert unregistered.unregistered(Pair, NAMEDTUPLE) is not None
    assert treepack.registered_types()[name] is Other
    assert unregistered.unregistered(Pair, NAMEDTUPLE) is None


def test_types_are_added_while_a_name_is_looked_for() -> None:
    class Added:
        pass

    class Meanwhile(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            nodes._own.setdefault(Added, nodes._own[nodes.Pruned])  # as another thread
            return False

        def __hash__(self) -> int:
            return 0

    try:
        assert nodes._own_by_name(Meanwhile("nothing")) is None
    finally:
        nodes._own.pop(Added, None)


def test_a_name_is_taken_back_while_it_is_looked_up() -> None:
    table: names.Names[int] = names.Names("thing of this test")
    names.registering._tables.remove(table)
    thing = object()
    table.add(thing, "one", 1)
    assert table.named(thing) == ("one", 1)
    table._by_name = {}  # as `put_back` does, which has not come to the other tables yet
    assert table.name_of(thing) is table.entry_of(thing) is None


def test_saves_begin_and_end_while_others_are_looked_for(tmp_path: Path) -> None:
    """Those that a handler has interrupted, and those that wait for a round of process 0."""
    claimed = [RemoteDirectory(Address.of(f"memory://claimed/{it}")) for it in range(300)]
    rounds = _Rounds()
    waiting = [Group() for _ in range(300)]
    for number, directory in enumerate(claimed):
        directory.claim(str(number))
        rounds.join(waiting[number])

    def begin(_: int) -> None:
        made = [RemoteDirectory(Address.of(f"memory://claimed/{it}")) for it in range(5)]
        for directory in made:
            directory.claim("other")
        groups = [Group() for _ in made]
        for group in groups:
            rounds.join(group)
        for directory in made:
            directory.release()

    def look(_: int) -> None:
        assert interrupted(Address.of(tmp_path)) == []
        assert rounds.leave(Group()) >= 0

    at_once([look, begin, begin])
    for directory in claimed:
        directory.release()
