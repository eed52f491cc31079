"""Shardings that files record, and that arrays get again without a template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgpack
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import processes
import treepack
from trees import record_of, sealed

P = PartitionSpec
VALUE = np.arange(64, dtype=np.float32).reshape(8, 8)


def mesh(*sizes: int, kind: str = "Auto") -> Mesh:
    names = ("a", "b", "c")[: len(sizes)]
    devices = np.array(jax.devices()[: int(np.prod(sizes))]).reshape(sizes)
    return Mesh(devices, names, axis_types=(AxisType[kind],) * len(sizes))


def split(*sizes: int, spec: Any, kind: str = "Auto") -> jax.Array:
    return jax.device_put(VALUE, NamedSharding(mesh(*sizes, kind=kind), spec))


def tree() -> dict[str, Any]:
    rows = NamedSharding(mesh(4), P("a"))
    return {
        "rows": split(4, spec=P("a")),
        "list": [split(2, 2, spec=P("a", "b")), split(2, 2, spec=P(("a", "b")))],
        "columns": split(2, 2, spec=P(None, "b")),
        "copies": split(4, spec=P()),
        "two": split(2, spec=P("a")),
        "explicit": split(2, 2, spec=P("b"), kind="Explicit"),
        "again": split(4, spec=P("a")),
        "keys": jax.device_put(jax.random.split(jax.random.key(0), 8), rows),
        "weak": jax.device_put(jnp.full(8, 2.0), rows),
        "one": jnp.asarray(VALUE),
        "host": VALUE,
        "step": 3,
    }


def same(found: Any, expected: Any) -> None:
    """Compares values and shardings."""
    assert treepack.dumps(found) == treepack.dumps(expected)
    places = [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(found)]
    assert places == [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(expected)]


SAVES: dict[str, Any] = {
    "file": {},
    "background": {"background": True},
    "file.gz": {},
    "numbers": {"compress": "numbers"},
    "directory": {"sharded": True},
}


@pytest.mark.parametrize("name", SAVES)
def test_arrays_are_split_as_they_were(tmp_path: Path, name: str) -> None:
    path, saved = tmp_path / name, tree()
    if saving := treepack.save(path, saved, **SAVES[name]):
        saving.result()
    same(treepack.load(path), saved)
    same(treepack.load(path, select="list"), {"list": saved["list"]})
    about = treepack.abstract(path)
    assert about["columns"].sharding == saved["columns"].sharding
    assert about["one"].sharding is about["host"].sharding is None
    assert about["weak"].weak_type
    same(treepack.load(path, {**about, "host": VALUE}), saved)
    with treepack.open(path) as file:
        same(file.load(), saved)
        same(file["list"].load(), saved["list"])
    place = jax.devices()[1]
    assert treepack.load(path, device=place)["rows"].devices() == {place}
    assert type(treepack.load(path, arrays="numpy")["rows"]) is np.ndarray
    assert treepack.verify(path).ok


def test_bytes_and_copies_of_files(tmp_path: Path) -> None:
    saved = tree()
    same(treepack.loads(treepack.dumps(saved)), saved)
    treepack.save(tmp_path / "a", saved, sharded=True)
    same(treepack.load(tmp_path / "a", dtype="float32"), saved)
    assert type(treepack.load(tmp_path / "a", treepack.load(tmp_path / "a"))) is dict


@pytest.mark.skipif(not hasattr(jax.sharding, "get_mesh"), reason="newer versions of jax tell it")
def test_a_mesh_that_the_program_has_set_is_used() -> None:
    data = treepack.dumps({"w": split(2, 2, spec=P("a", "b"))})
    other = Mesh(np.array(jax.devices()[::-1]).reshape(2, 2), ("a", "b"))
    with jax.set_mesh(other):
        found = treepack.loads(data)["w"]
    assert found.sharding == NamedSharding(other, P("a", "b"))
    np.testing.assert_array_equal(found, VALUE)


FEWER = """
found = treepack.load(args[0])
assert found["two"].sharding.mesh.shape == {"a": 2}, found["two"].sharding
assert found["rows"].devices() == {jax.devices()[0]}
assert treepack.abstract(args[0])["rows"].sharding is None
np.testing.assert_array_equal(found["rows"], found["host"])
"""


@pytest.mark.campaign
def test_fewer_devices(tmp_path: Path) -> None:
    treepack.save(tmp_path / "a", tree())
    processes.run(FEWER, 1, tmp_path / "a", devices=2)


SEVERAL = """
value = np.arange(64, dtype=np.float32).reshape(8, 8)
def put(mesh, *spec):
    sharding = NamedSharding(mesh, P(*spec))
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

both = Mesh(np.array(jax.devices()).reshape(2, 2), ("x", "y"))
own = Mesh(np.array(jax.local_devices()), ("x",))
tree = {"w": put(both, "x", "y"), "copies": put(both), "own": put(own, "x")}
treepack.save(args[0], tree)
for replicas in ("read", "broadcast"):
    found = treepack.load(args[0], replicas=replicas)
    for name, leaf in found.items():
        assert leaf.sharding == tree[name].sharding, name
        for shard in leaf.addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data), value[shard.index])
about = treepack.abstract(args[0])
assert treepack.load(args[0], about)["w"].sharding == tree["w"].sharding
"""


@pytest.mark.campaign
def test_several_processes(tmp_path: Path) -> None:
    processes.run(SEVERAL, 2, tmp_path / "a", devices=2)
    processes.run(
        "assert len(treepack.load(args[0])['w'].devices()) == 4", 1, tmp_path / "a", devices=4
    )


def test_more_shardings_than_are_recorded() -> None:
    devices = np.array(jax.devices()[:2])
    leaf = jnp.ones(2)
    saved = [
        jax.device_put(leaf, NamedSharding(Mesh(devices, (f"x{k}",)), P(f"x{k}")))
        for k in range(258)
    ]
    found = treepack.loads(treepack.dumps(saved))
    assert [len(one.devices()) for one in found] == [2] * 256 + [1, 1]


AXIS = ["a", 4, False]
ROWS = {"mesh": [AXIS], "spec": [["a"]]}


def with_record(**changes: Any) -> bytes:
    """Data of rows that are split, with another record."""
    data = treepack.dumps({"rows": split(4, spec=P("a"))})
    record = msgpack.unpackb(record_of(data))
    assert record["shardings"] == [ROWS]
    assert record["split"] == [[1, 0]]
    plain = data[: data.index(b"__treepack__") + len("__treepack__")]
    return plain + msgpack.packb(sealed(msgpack.packb({**record, **changes})))


@pytest.mark.parametrize(
    "sharding",
    [
        {"mesh": [], "spec": []},
        {"mesh": [["a", 0, False]], "spec": [["a"]]},
        {"mesh": [["a", 2**63, False], ["b", 2**63, False]], "spec": [["a"]]},
        {"mesh": [["a", 2, False]] * 2, "spec": [["a"]]},
        {"mesh": [["", 4, False]], "spec": [[""], [], []]},
        {"mesh": [AXIS, *([f"x{k}", 1, False] for k in range(100))], "spec": [["a"]]},
        {"mesh": [AXIS], "spec": [["b"]]},
        {"mesh": [AXIS], "spec": [["a"], ["a"]]},
        {"mesh": [AXIS], "spec": [["a", "a"]]},
        {"mesh": [["a", 3, False]], "spec": [["a"]]},
    ],
)
def test_shardings_that_do_not_fit_are_ignored(sharding: Any) -> None:
    data = with_record(shardings=[sharding])
    found = treepack.loads(data)["rows"]
    assert isinstance(found.sharding, SingleDeviceSharding)
    np.testing.assert_array_equal(found, VALUE)
    assert treepack.abstract(data)["rows"].sharding is None


def test_what_later_versions_may_add_is_ignored() -> None:
    data = with_record(shardings=[{**ROWS, "memory": ["no such memory"], "more": {"a": 1}}])
    assert treepack.loads(data)["rows"].sharding == NamedSharding(mesh(4), P("a"))


@pytest.mark.parametrize(
    "changes",
    [
        {"split": [[0, 0]]},
        {"split": [[9, 0]]},
        {"split": [[1, 1]]},
        {"split": [[1, 0], [1, 0]]},
        {"shardings": [ROWS] * 257},
        {"shardings": [{}]},
        {"shardings": [{"mesh": [["a", -1, False]], "spec": []}]},
    ],
)
def test_damage_is_an_error(changes: Any) -> None:
    with pytest.raises(treepack.DecodeError, match="record of the structure is damaged"):
        treepack.loads(with_record(**changes))
