"""Files of tiny values, or of long keys above them: memory and time are linear in their bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgpack
import numpy as np
import pytest

import tiers
import treepack
from commands import call, refused
from hostile import limits
from treepack import serialization
from trees import sealed

# So many bytes for each value, beside `TIMES` those of the file; docs/guarantees.md has it.
PER_VALUE = 300

NBYTES = 1 << 17

ITEMS: dict[str, bytes] = {
    "nil": b"\xc0",
    "empty maps": b"\x80",
    "empty lists": b"\x90",
    "strings": b"\xa1a",
    "bytes": b"\xc4\x00",
    "maps": b"\x81\xa0\xc0",
    "extensions": b"\xc7\x00\x07",
    "nested": b"\x91" * 100 + b"\xc0",
    "complex": msgpack.packb(msgpack.ExtType(2, msgpack.packb((1.0, 2.0)))),
    "arrays": msgpack.packb(msgpack.ExtType(1, msgpack.packb(([0], "u1", b"")))),
    "scalars": msgpack.packb(msgpack.ExtType(3, msgpack.packb(([], "u1", b"a")))),
}

RECORD = {"version": 1, "types": [], "nodes": [["plain", []]]}


def described(state: bytes, **record: Any) -> bytes:
    """Returns a file of a state, and of a record with some other values."""
    seal = msgpack.packb(sealed(msgpack.packb({**RECORD, **record})))
    return b"\x82\xa1a" + state + msgpack.packb("__treepack__") + seal


def dense(name: str) -> tuple[bytes, int]:
    """Returns a file of nothing but equal values, and how many they are."""
    item = ITEMS[name]
    count = NBYTES // len(item)
    values = 101 if name == "nested" else 2 if name == "maps" else 1
    return described(b"\xdd" + struct.pack(">I", count) + item * count), values * count


def leaves(data: bytes) -> int:
    with treepack.open(data) as file:
        repr(file)
        return sum(1 for _ in file.leaves())


VERBS: dict[str, Callable[[bytes], object]] = {
    "msgpack_restore": serialization.msgpack_restore,
    "loads": lambda data: treepack.loads(data, arrays="numpy"),
    "abstract": treepack.abstract,
    "open": leaves,
    "verify": treepack.verify,
    "read_metadata": treepack.read_metadata,
}


@pytest.fixture(scope="module")
def measured() -> limits.Limits:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("resets the peak of memory")
    for verb in VERBS.values():
        verb(treepack.dumps({"a": np.ones(3)}))
    return limits.Limits()


def check(measured: limits.Limits, verb: str, data: bytes, values: int) -> None:
    check_work(measured, lambda: VERBS[verb](data), len(data), values)


def check_work(
    measured: limits.Limits, work: Callable[[], object], nbytes: int, values: int
) -> None:
    with (
        measured.memory("", nbytes, PER_VALUE * values) as found,
        measured.time("", 100 * nbytes) as late,  # what is quadratic takes longer by far
    ):
        work()
    assert not found + late


@tiers.parametrize("verb", VERBS, quick=2)
@pytest.mark.parametrize("name", ITEMS)
def test_memory_follows_the_number_of_values(measured: limits.Limits, name: str, verb: str) -> None:
    check(measured, verb, *dense(name))


@tiers.parametrize("verb", VERBS, quick=2)
@pytest.mark.parametrize("part", ["nodes", "types", "metadata", "tuples"])
def test_memory_follows_what_is_in_a_record(measured: limits.Limits, part: str, verb: str) -> None:
    count = NBYTES // 8
    records: dict[str, dict[str, Any]] = {
        "nodes": {"nodes": [*[["dict", []]] * count, ["plain", []]]},
        "types": {"types": [{"name": ""}] * count},
        "metadata": {"metadata": msgpack.packb({"list": ["none"] * count})},
        "tuples": {"metadata": msgpack.packb({"list": [{"tuple": []}] * count})},
    }
    check(measured, verb, described(b"\x01", **records[part]), count)


@pytest.mark.parametrize("containers", ["saved", "plain"])
def test_nodes_share_the_keys_that_they_share_in_the_file(
    measured: limits.Limits, containers: Any
) -> None:
    count = NBYTES // 8
    factory = "none" if containers == "saved" else {"list": ["none"] * NBYTES}
    static = msgpack.packb({"tuple": [{"list": [{"str": LONG * 8}]}, factory]})
    mapping = [{"typed": [0, static]}, [[1, 0]]]
    record = {
        "types": [{"name": "collections.OrderedDict"}],
        "nodes": [["plain", []], mapping, ["list", [[count, 1]]]],
    }
    children = b"".join(msgpack.packb(str(number)) + b"\x81\xa1a\x01" for number in range(count))
    data = b"\xde" + struct.pack(">H", count + 1) + children
    data += msgpack.packb("__treepack__") + msgpack.packb(
        sealed(msgpack.packb({**RECORD, **record}))
    )
    with (
        measured.memory("", len(data), 3 * PER_VALUE * count) as found,
        measured.time("", 1) as late,
    ):
        treepack.loads(data, containers=containers)
    assert not found + late


def test_an_array_in_many_chunks_is_copied_in_linear_time(
    measured: limits.Limits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serialization, "MAX_CHUNK_SIZE", 8)
    source = tmp_path / "source.treepack"
    treepack.save(source, {"w": np.zeros(5 * NBYTES, np.uint8)}, durable=False)
    nbytes = source.stat().st_size
    with treepack.open(source) as file, measured.time("", nbytes) as late:
        treepack.save(tmp_path / "copy.treepack", file, durable=False)
    assert nbytes > 2 * limits.MIB
    assert not late


# The texts of the paths of so many leaves below this key have 26 MB.
LONG = "k" * (NBYTES // 2)
MANY = 400


def below_long(leaf: Any) -> Any:
    return {LONG: {f"x{number}": leaf for number in range(MANY)}}


@pytest.fixture(scope="module")
def long_keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("long")
    leaves = {"numpy": np.ones(1, np.float32), "jax": jnp.ones(1), "lists": [1]}
    for name, leaf in leaves.items():
        treepack.save(folder / name, below_long(leaf), durable=False)
    treepack.save(folder / "sharded", below_long(leaves["jax"]), sharded=True, durable=False)
    return {name: folder / name for name in (*leaves, "sharded")}


def into(leaf: Any, **options: Any) -> Callable[[Path], object]:
    return lambda path: treepack.load(path, below_long(leaf), **options)


# What reads a file with a long key above many leaves.
READS: dict[str, Callable[[Path], object]] = {
    "load": treepack.load,
    "arrays": lambda path: treepack.load(path, arrays="jax"),
    "dtype": lambda path: treepack.load(path, dtype="float16"),
    "template": into(jax.ShapeDtypeStruct((1,), np.float32)),
    "exact": into(jax.ShapeDtypeStruct((1,), np.float32), strict="exact"),
    "cast": into(jax.ShapeDtypeStruct((1,), jnp.bfloat16), cast=True),
    "select": lambda path: treepack.load(path, select=[(LONG, "x1")]),
    "select by a pattern": lambda path: treepack.load(path, select=f"{LONG}/*1"),
    "missing": lambda path: f"{LONG}/y" in treepack.open(path),
    "skip": lambda path: treepack.load(path, on_corrupt="skip"),
    "verify": lambda path: treepack.verify(path).ok,
}


@pytest.mark.parametrize(
    ("name", "read"),
    [
        *(("jax", read) for read in READS),
        ("numpy", "arrays"),
        *(("sharded", read) for read in ("load", "cast", "verify")),
    ],
)
def test_memory_does_not_repeat_long_keys(
    measured: limits.Limits, long_keys: dict[str, Path], name: str, read: str
) -> None:
    check_work(measured, lambda: READS[read](long_keys[name]), 2 * NBYTES, MANY)


def test_no_paths_are_written_for_shards_that_are_copied(
    long_keys: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether an array can be viewed where it lies is no matter of errors, which have its path."""
    made: list[object] = []
    create = treepack.DecodeError.__init__

    def init(self: treepack.DecodeError, *args: Any) -> None:
        made.append(args)
        create(self, *args)

    monkeypatch.setattr(treepack.DecodeError, "__init__", init)
    treepack.load(long_keys["sharded"], arrays="numpy")
    assert not made


TOO_LONG: dict[str, Callable[[treepack.File | treepack.Tree], object]] = {
    "leaves": lambda file: list(file.leaves()),
    "report": lambda file: file.load(return_report=True),
    "report of a template": lambda file: file.load(
        {"a": np.ones(1)}, return_report=True, missing="target", unexpected="ignore"
    ),
    "mapping": lambda file: file.load(
        {"v": np.ones(1, np.float32)}, mapping={"v": "x1"}, unexpected="ignore"
    ),
    "select by a function": lambda file: file.load(select=lambda it: it.endswith("x1")),
    "exclude by a function": lambda file: file.load(exclude=lambda it: it.endswith("x1")),
    "sharding by a function": lambda file: file.load(sharding=lambda *_: None),
    "mismatched": lambda file: file.load(
        {"x1": np.ones(1, np.float32)}, mismatched="target", missing="target"
    ),
    "select nothing": lambda file: file.load(select="*y*"),
}


@pytest.mark.parametrize("use", TOO_LONG)
def test_what_needs_all_paths_is_refused_where_they_are_too_long(
    measured: limits.Limits, long_keys: dict[str, Path], use: str
) -> None:
    def work() -> None:
        with (
            treepack.open(long_keys["numpy"]) as file,
            pytest.raises(treepack.TreepackError, match=r"at kkk.*open the container below such"),
        ):
            TOO_LONG[use](file)

    check_work(measured, work, NBYTES, MANY)
    with treepack.open(long_keys["numpy"]) as file:
        if use == "select nothing":
            with pytest.raises(treepack.TreepackError, match="select"):
                TOO_LONG[use](file[LONG])
        else:
            TOO_LONG[use](file[LONG])


@pytest.mark.parametrize("suffix", ["safetensors", "npz"])
def test_names_that_repeat_long_keys_are_refused(
    measured: limits.Limits, long_keys: dict[str, Path], tmp_path: Path, suffix: str
) -> None:
    target = tmp_path / f"new.{suffix}"
    call("get", str(long_keys["numpy"]), LONG, str(target))

    def work() -> None:
        assert "open the container below" in refused(
            "convert", str(long_keys["numpy"]), str(target)
        )

    check_work(measured, work, NBYTES, MANY)


@pytest.mark.parametrize("option", ["--flat", "--json"])
def test_listings_that_repeat_long_keys_are_refused(
    measured: limits.Limits, long_keys: dict[str, Path], option: str
) -> None:
    def work() -> None:
        assert "open the container below" in refused("ls", option, str(long_keys["numpy"]))

    check_work(measured, work, NBYTES, MANY)


@pytest.mark.parametrize(
    ("name", "strict"), [("numpy", True), ("lists", "exact"), ("sharded", True)]
)
def test_mismatches_are_reported_as_far_as_there_is_room(
    measured: limits.Limits, long_keys: dict[str, Path], name: str, strict: Any
) -> None:
    def work() -> None:
        with pytest.raises(treepack.MismatchError, match=r"at least \d+ ") as caught:
            into(np.ones(2), strict=strict)(long_keys[name])
        assert 50 < len(caught.value.mismatches) < MANY

    check_work(measured, work, 2 * NBYTES, MANY)


def test_paths_of_many_long_keys_have_room() -> None:
    """They are no longer than the keys in the file, or not by much."""
    keys = {f"{number:0999}": {"w": number} for number in range(10_000)}
    deep: Any = {f"x{number}": number for number in range(10_000)}
    for level in range(30):
        deep = {f"level{level:04}": deep}
    texts = {"ü" * 100 + str(number): {"w": [1, 2]} for number in range(10_000)}
    for tree in (keys, deep, texts):
        with treepack.open(treepack.dumps(tree)) as file:
            assert sum(1 for _ in file.leaves()) >= 10_000


def test_a_long_path_gets_another_name() -> None:
    data = treepack.dumps({"k" * 3000: {"x": np.ones(3), "y": 1}})
    found = treepack.load(
        data, {"v": np.zeros(3)}, mapping={"v": "k" * 3000 + "/x"}, unexpected="ignore"
    )
    assert found["v"].tolist() == [1, 1, 1]
