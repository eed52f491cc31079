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
from treepack._src.interop.group import Group, _Rounds
from treepack._src.pytree import handlers
from treepack._src.pytree.containers import NAMEDTUPLE
from treepack._src.registry import names, nodes, unregistered
from treepack._src.saving.directory import RemoteDirectory, interrupted

ROUNDS = 20
HAS_GIL: bool = getattr(sys, "_is_gil_enabled", lambda: True)()


@pytest.fixture(autouse=True)
def often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def at_once(works: list[Callable[[int], None]]) -> None:
    """Runs each work in a thread, again and again, and raises what one of them has raised."""
    errors: list[BaseException] = []
    start = threading.Barrier(len(works))

    def run(work: Callable[[int], None]) -> None:
        try:
            start.wait(60)
            for number in range(ROUNDS):
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
    claimed = [RemoteDirectory(f"memory://claimed/{it}") for it in range(300)]
    rounds = _Rounds()
    waiting = [Group() for _ in range(300)]
    for number, directory in enumerate(claimed):
        directory.claim(str(number))
        rounds.join(waiting[number])

    def begin(_: int) -> None:
        made = [RemoteDirectory(f"memory://claimed/{it}") for it in range(5)]
        for directory in made:
            directory.claim("other")
        groups = [Group() for _ in made]
        for group in groups:
            rounds.join(group)
        for directory in made:
            directory.release()

    def look(_: int) -> None:
        assert interrupted(tmp_path) == []
        assert rounds.leave(Group()) >= 0

    at_once([look, begin, begin])
    for directory in claimed:
        directory.release()
