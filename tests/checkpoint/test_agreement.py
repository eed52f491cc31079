"""Files whose parts contradict each other: `open` and `load` agree, and `verify` tells."""

from __future__ import annotations

import collections
import contextlib
import gc
import gzip
import io
import pickle
import struct
import subprocess
import sys
import weakref
import zlib
from pathlib import Path
from typing import Any

import flax.serialization
import jax
import msgpack
import numpy as np
import pytest

import tiers
import treepack
from hostile import agreement
from treepack import errors
from trees import record_of, sealed

TREE: dict[str, Any] = {
    "params": {"w": np.arange(600.0), "b": np.arange(3, dtype=np.int8)},
    "empty": {"x": {}},
    "step": 7,
    "name": "text",
    "last": {"none": {}},
}


def file_of(state: bytes, record: dict[str, Any], *, bin_width: int = 2) -> bytes:
    """Returns a file of a state with any record, in which all checksums are right."""
    index = msgpack.unpackb(record["index"])
    packed = msgpack.packb(record)
    ends = np.cumsum(np.add(index["heads"], index["sizes"])).tolist()
    count = len(ends) + 1
    length = len(packed) + 4 * count + 24
    head = {1: b"\xc4", 2: b"\xc5", 4: b"\xc6"}[bin_width] + length.to_bytes(bin_width, "big")
    before = state + msgpack.packb("__treepack__") + head
    parts = zip([0, *ends], [*ends, len(before)], strict=True)
    sums = struct.pack(f"<{count}I", *(zlib.crc32(before[start:end]) for start, end in parts))
    crc = zlib.crc32(packed + sums)
    return before + packed + sums + struct.pack("<QII8s", len(packed), count, crc, b"\x93treepk\n")


@pytest.fixture
def parts(tmp_path: Path) -> tuple[bytes, dict[str, Any]]:
    """The state of a saved tree, and its record."""
    treepack.save(tmp_path / "saved", TREE)
    data = (tmp_path / "saved").read_bytes()
    return data[: data.index(b"\xac__treepack__")], msgpack.unpackb(record_of(data))


def test_a_file_made_again_is_whole(parts: tuple[bytes, dict[str, Any]]) -> None:
    state, record = parts
    paths = ("params/w", "params/b", "step", "name")
    assert treepack.verify(file_of(state, record)).leaves == dict.fromkeys(paths, "ok")


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        (b"\x01w\xdf", b"\x01v\xdf", "params/w"),
        (b"\xa6params", b"\xa6parama", "params/w"),
        (b"\xa4step", b"\xa4stop", "step"),
        (b"\xa1x\x80", b"\xa1y\x80", "step"),  # a container with nothing in it, before it
        (b"\xa5empty\x81\xa1x\x80", b"\xa5empty\xa4xxx", "step"),  # another structure
    ],
)
def test_keys_are_those_of_the_index(
    parts: tuple[bytes, dict[str, Any]], old: bytes, new: bytes, path: str
) -> None:
    state, record = parts
    assert state.count(old) == 1
    data = file_of(state.replace(old, new), record)
    found = treepack.verify(data)
    assert found.corrupt == [path]
    # The index is sealed.
    with treepack.open(data) as file, treepack.open(file_of(state, record)) as whole:
        assert np.array_equal(file[path], whole[path])
        assert agreement.content(file.load()) == agreement.content(whole.load())


def test_containers_with_nothing_in_them_are_those_of_the_index(
    parts: tuple[bytes, dict[str, Any]],
) -> None:
    state, record = parts
    data = file_of(state.replace(b"\xa4none\x80", b"\xa4nine\x80"), record)
    found = treepack.verify(data)
    assert (found.ok, found.corrupt) == (False, [])
    assert found.damage is not None
    with treepack.open(data) as file:
        assert "none" in file.load(select="last/**")["last"]


@pytest.mark.parametrize("kind", [["float32", [1200]], ["int64", [600]], ["float64", [60, 10]]])
def test_arrays_are_what_the_index_says(parts: tuple[bytes, dict[str, Any]], kind: Any) -> None:
    state, record = parts
    index = msgpack.unpackb(record["index"])
    [number] = [at for at, it in enumerate(index["kinds"]) if it == {"array": ["float64", [600]]}]
    index["kinds"][number] = {"array": kind}
    data = file_of(state, {**record, "index": msgpack.packb(index)})
    assert treepack.loads(data)["params"]["w"].shape == (600,)
    assert treepack.verify(data).corrupt == ["params/w"]
    with treepack.open(data) as file:
        for use in (np.asarray, lambda array: array[:1], treepack.dumps):
            with pytest.raises(treepack.DecodeError) as caught:
                use(file["params/w"])
            assert caught.value.path in ("params/w", None)
        with pytest.raises(treepack.DecodeError):
            file.load(select="params/w")
        assert file["params/b"][1] == 1


def test_other_kinds_are_what_the_index_says(parts: tuple[bytes, dict[str, Any]]) -> None:
    state, record = parts
    index = msgpack.unpackb(record["index"])
    for other in ("str", "int", "none", "bool", "float", "bytes", "container"):
        kinds = [other if kind in ("str", "int") else kind for kind in index["kinds"]]
        changed = {**record, "index": msgpack.packb({**index, "kinds": kinds})}
        expected = [path for path, kind in (("step", "int"), ("name", "str")) if kind != other]
        data = file_of(state, changed)
        assert treepack.verify(data).corrupt == expected
        with treepack.open(data) as file:
            for path in expected:
                with pytest.raises(treepack.DecodeError) as caught:
                    file[path]
                assert caught.value.path == path


def test_an_index_has_no_longer_keys_than_its_file(parts: tuple[bytes, dict[str, Any]]) -> None:
    state, record = parts
    index = msgpack.unpackb(record["index"])
    outline = msgpack.unpackb(index["outline"], strict_map_key=False)
    outline = {("k" * 5000 if key == "step" else key): value for key, value in outline.items()}
    changed = {**record, "index": msgpack.packb({**index, "outline": msgpack.packb(outline)})}
    with pytest.raises(treepack.DecodeError, match="keys are longer than the data"):
        treepack.open(file_of(state, changed))


@pytest.mark.parametrize("width", [2, 4])
def test_the_record_may_have_a_wider_header(
    parts: tuple[bytes, dict[str, Any]], width: int
) -> None:
    data = file_of(*parts, bin_width=width)
    found = treepack.verify(data)
    assert set(found.leaves.values()) == {"ok"}  # so its checksums are found
    assert found.ok
    with treepack.open(data) as file:
        assert file["step"] == 7
    assert treepack.loads(data)["step"] == 7


def test_an_index_of_dtypes_that_are_none(parts: tuple[bytes, dict[str, Any]]) -> None:
    state, record = parts
    index = msgpack.unpackb(record["index"])
    kinds = [{"array": ["bloat64", [600]]} if "float64" in str(k) else k for k in index["kinds"]]
    changed = {**record, "index": msgpack.packb({**index, "kinds": kinds})}
    data = file_of(state.replace(b"\xa7float64", b"\xa7bloat64"), changed)
    with pytest.raises(treepack.DecodeError):
        treepack.loads(data)
    assert not treepack.verify(data).ok


# Gzip


def large(tmp_path: Path) -> bytes:
    noise = np.random.default_rng(0).integers(0, 256, 3 << 19, np.uint8)
    treepack.save(tmp_path / "packed", {"noise": noise, "step": 7}, compress=True)
    return (tmp_path / "packed").read_bytes()


def test_the_checksum_of_a_gzip_member(tmp_path: Path) -> None:
    data = bytearray(large(tmp_path))
    assert treepack.verify(bytes(data)).ok
    end = data.index(b"\x1f\x8b\x08\x04")  # of the data; the index follows
    data[end - 8] ^= 1
    with pytest.raises(gzip.BadGzipFile):
        gzip.decompress(data)
    found = treepack.verify(bytes(data))
    assert not found.ok
    assert "checksum of the whole" in str(found.damage)
    (tmp_path / "damaged").write_bytes(data)
    with pytest.raises(errors.CorruptionError, match="checksum of the whole"):
        treepack.load(tmp_path / "damaged", verify=True)


def test_a_damaged_index_of_gzip(tmp_path: Path) -> None:
    whole = large(tmp_path)
    begin = whole.index(b"\x1f\x8b\x08\x04")
    for at in (begin + 2, begin + 13, begin + 30, len(whole) - 60, len(whole) - 3):
        data = bytearray(whole)
        data[at] ^= 1
        found = treepack.verify(bytes(data))
        assert not found.ok, at
        with pytest.raises(errors.CorruptionError):
            treepack.open(bytes(data))
    small = bytearray(treepack.dumps({"a": np.arange(40_000) % 251}, compress=True))
    assert treepack.verify(bytes(small)).ok
    small[-30] ^= 1
    assert "index" in str(treepack.verify(bytes(small)).damage)
    with treepack.open(bytes(small)) as file:
        assert file.damage == "the index of the compressed blocks is damaged"
        with pytest.raises(errors.CorruptionError, match="index of the compressed blocks"):
            file.load(verify=True)


def test_gzip_without_an_index_is_not_damage(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).bytes(3 << 19)
    data = gzip.compress(treepack.serialization.to_bytes({"a": noise}), 1)
    with pytest.raises(treepack.errors.NoIndexError, match="no index") as caught:
        treepack.open(data)
    assert isinstance(caught.value, treepack.errors.GzipError)
    assert not isinstance(caught.value, treepack.errors.CorruptionError)
    assert treepack.verify(data).ok
    assert issubclass(treepack.errors.GzipCorruptionError, treepack.errors.GzipError)
    with pytest.raises(treepack.errors.CorruptionError):
        treepack.open(data[:-100])


# Damage outside of leaves


def test_damage_outside_of_leaves_is_reported(
    tmp_path: Path, parts: tuple[bytes, dict[str, Any]]
) -> None:
    data = bytearray(file_of(*parts))
    data[len(parts[0]) - 2] ^= 1  # a key of a container with nothing in it
    (tmp_path / "damaged").write_bytes(data)
    with pytest.raises(errors.CorruptionError):
        treepack.load(tmp_path / "damaged", select="step", verify=True)
    with pytest.warns(UserWarning, match="damaged'"):
        found = treepack.load(tmp_path / "damaged", select="step", on_corrupt="skip")
    assert found == {"step": 7}


def test_an_error_of_a_file_tells_where(tmp_path: Path) -> None:
    data = treepack.serialization.to_bytes({"a": [1, 2, 3]})
    with treepack.open(data[:-1], salvage=True) as file:
        assert str(len(data) - 1) in str(file.damage)
        assert f"(byte {len(data) - 1}, at a/2)" in str(file.damage)
    (tmp_path / "empty").touch()
    for use in (
        treepack.load,
        treepack.open,
        treepack.abstract,
        treepack.read_metadata,
        lambda path: treepack.serialization.load_from_file({}, path),
    ):
        with pytest.raises(treepack.DecodeError, match=r"empty': .*\(0 bytes\)"):
            use(tmp_path / "empty")
    assert not treepack.verify(tmp_path / "empty").ok
    assert list(treepack.read_stream(tmp_path / "empty")) == []


# Memory


def bomb() -> bytes:
    """Gzip of others, of a megabyte."""
    return gzip.compress(flax.serialization.to_bytes({"zeros": np.zeros(1 << 20, np.uint8)}))


def test_no_verb_inflates_more_than_max_size(tmp_path: Path) -> None:
    data = bomb()
    (tmp_path / "bomb").write_bytes(data)
    cut = data[:-9]
    (tmp_path / "cut").write_bytes(cut)
    uses = (
        lambda **how: treepack.open(tmp_path / "bomb", salvage=True, **how),
        lambda **how: treepack.open(cut, salvage=True, **how),
        lambda **how: treepack.verify(tmp_path / "bomb", **how),
        lambda **how: treepack.verify(cut, **how),
        lambda **how: treepack.abstract(data, **how),
        lambda **how: treepack.abstract(tmp_path / "bomb", **how),
        lambda **how: treepack.read_metadata(data, **how),
        lambda **how: treepack.read_metadata(tmp_path / "bomb", **how),
        lambda **how: [*treepack.read_stream(tmp_path / "bomb", **how)],
    )
    for use in uses:
        with pytest.raises(treepack.TreepackError, match="max_size=1048576"):
            use(max_size=1 << 20)
    for use in uses[:4]:
        use(max_size=2 << 20)


LIMITED = """
import resource, sys, tracemalloc
import numpy as np, treepack
key = "k" * 300_000
data = treepack.dumps({key: {str(index): index for index in range(20_000)}})
treepack.save(sys.argv[1], {key: {str(index): index for index in range(20_000)}})
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
for source in (sys.argv[1], data):
    with treepack.open(source) as file:
        assert len(repr(file)) < 50 * 400_000
        assert next(file.leaves())[0] == key + "/0"
    found = treepack.verify(source)
    assert found.ok and found.corrupt == [] and len(found.leaves) == 20_000
    assert found.leaves[key + "/7"] in ("ok", "unchecked")
"""


@pytest.mark.campaign
def test_paths_are_made_on_demand(tmp_path: Path) -> None:
    # All paths together have 6 GB.
    subprocess.run([sys.executable, "-c", LIMITED, tmp_path / "long"], check=True, timeout=60)


def test_statuses_are_a_mapping(tmp_path: Path) -> None:
    treepack.save(tmp_path / "saved", TREE)
    found = treepack.verify(tmp_path / "saved")
    assert repr(found.leaves) == repr(dict(found.leaves))
    assert list(found.leaves) == ["params/w", "params/b", "step", "name"]
    assert list(found.leaves.items()) == [(path, "ok") for path in found.leaves]
    assert "step" in found.leaves
    assert "empty/x" not in found.leaves
    assert 3 not in found.leaves  # type: ignore[comparison-overlap]
    again = pickle.loads(pickle.dumps(found))
    assert again == found
    assert (again.ok, again.corrupt, again.unchecked) == (True, [], [])


class Weak(io.BytesIO):
    """A file object that can have attributes."""


@tiers.parametrize("form", ["file", "bytearray", "packed file", "packed bytearray"])
def test_a_file_in_a_cycle_goes(form: str) -> None:
    class Data(bytearray):
        pass

    tree = {"a": np.arange(200_000)}
    data = treepack.dumps(tree, compress=form.startswith("packed"))
    source: Any = Data(data) if form.endswith("bytearray") else Weak(data)
    source.opened = treepack.open(source)
    source.opened["a"][3:5]
    gone = weakref.ref(source)
    del source
    gc.collect()
    assert gone() is None


# The index, and the record


@pytest.mark.parametrize(
    "change",
    [{"kinds": []}, {"outline": b"\x90"}, {"heads": [1]}, {"rest": "x"}, {"sizes": [1]}],
)
def test_a_damaged_index_is_reported_though_all_headers_are_intact(
    parts: tuple[bytes, dict[str, Any]], change: dict[str, Any]
) -> None:
    state, record = parts
    index = {**msgpack.unpackb(record["index"]), **change}
    packed = msgpack.packb({**record, "index": msgpack.packb(index)})
    data = state + msgpack.packb("__treepack__") + msgpack.packb(sealed(packed))
    same_arrays = treepack.loads(data)["params"]["w"] == TREE["params"]["w"]
    assert same_arrays.all()
    with pytest.raises(treepack.DecodeError):
        treepack.open(data)
    found = treepack.verify(data)
    assert (found.ok, found.corrupt) == (False, [])
    assert "index" in str(found.damage)
    with treepack.open(data, salvage=True) as file:
        assert "index" in str(file.damage)
        assert file["step"] == 7


def damaged_record(tree: Any, change: Any) -> bytes:
    """Returns the bytes of a tree with another record, sealed."""
    state = msgpack.unpackb(treepack.dumps(tree, metadata=5), strict_map_key=False)
    record = msgpack.unpackb(record_of(state.pop("__treepack__")), strict_map_key=False)
    change(record)
    return msgpack.packb({**state, "__treepack__": sealed(msgpack.packb(record))})


NODE = collections.OrderedDict({(1, 2): [1, (2,)], "b": bytearray(b"x")})


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record["nodes"][-1][1].pop(),
        lambda record: record["nodes"][-1][1].append([1, 0]),
        lambda record: record["nodes"].append(["list", record["nodes"][-1][1]]),
        lambda record: record["nodes"].append(["bytearray", []]),
        lambda record: record["nodes"].append(["dict", [[2, 1]]]),
        lambda record: record["nodes"][-1][0].update(typed=[0, b"\xc1"]),
        lambda record: record["nodes"].append([{"dict_with_keys": b"\x81\xa4list\x90"}, [[2, 0]]]),
        lambda record: record["nodes"].append([{"dict_with_keys": b"\xa4none"}, [[2, 0]]]),
        lambda record: record.update(metadata=b"\x93"),
    ],
)
def test_a_record_of_another_tree_is_damage(change: Any) -> None:
    assert treepack.verify(damaged_record(NODE, lambda _: None)).ok
    data = damaged_record(NODE, change)
    for read in (treepack.loads, treepack.read_metadata):
        with contextlib.suppress(treepack.DecodeError):
            read(data)
            continue
        break
    else:
        pytest.fail("all of it is read")
    found = treepack.verify(data)
    assert not found.ok
    assert found.damage


def test_the_keys_of_a_list_are_text() -> None:
    data = treepack.dumps([np.ones(2), 5])
    assert treepack.verify(data).ok
    changed = data.replace(b"\xa11\x05", b"\x01\x05")
    with pytest.raises(treepack.DecodeError, match="an element of a list has the key 1"):
        treepack.loads(changed)
    assert "an element of a list" in str(treepack.verify(changed).damage)


@pytest.mark.parametrize(
    "key", [2.0, -0.0, 1e-4, 1.5e-5, 1e-7, 123456789.25, 1e15, 1e16, 1.5e300, np.inf, np.nan]
)
def test_keys_that_are_numbers_read_as_python_writes_them(key: float) -> None:
    with treepack.open(msgpack.packb({key: 1})) as file:
        assert list(file) == [str(key)]


def test_an_array_of_other_bytes_than_its_shape_tells_is_corrupt() -> None:
    data = flax.serialization.to_bytes({"a": np.zeros((2, 3), np.int8), "b": np.int16(1), "c": 1})
    assert treepack.verify(data).ok
    shape = data.replace(b"\x92\x02\x03", b"\x92\x03\x03")
    scalar = data.replace(b"int16", b"int32")
    for changed, path in ((shape, "a"), (scalar, "b")):
        with pytest.raises(treepack.DecodeError, match=r"does not fit|bytes"):
            treepack.serialization.msgpack_restore(changed)
        assert treepack.verify(changed).corrupt == [path]
        with treepack.open(changed) as file:
            assert file["c"] == 1


def test_the_key_of_the_record_is_where_the_index_tells(
    parts: tuple[bytes, dict[str, Any]],
) -> None:
    state, record = parts
    index = msgpack.unpackb(record["index"])
    moved = {**record, "index": msgpack.packb({**index, "rest": index["rest"] + 1})}
    data = file_of(state, record, bin_width=4)
    at = data.index(b"__treepack__\xc6") + 16
    head = bytes([data[at] ^ 1])
    # The checksum before the footer is that of the header, too.
    longer = data[:at] + head + data[at + 1 :]
    sums = zlib.crc32(longer[len(state) : at + 1])
    longer = longer[:-28] + struct.pack("<I", sums) + longer[-24:]
    count = struct.unpack("<I", data[-16:-12])[0]
    length = len(record_of(data)) + 4 * count
    crc = zlib.crc32(longer[-24 - length : -24])
    longer = longer[:-12] + struct.pack("<I", crc) + longer[-8:]
    assert treepack.verify(data).ok
    for data in (file_of(state, moved, bin_width=4), longer):
        with pytest.raises(treepack.DecodeError):
            treepack.open(data)
        assert treepack.verify(data).damage is not None


@pytest.mark.parametrize("name", ["<f8", "float16", "M8[s]", "datetime64[ns]"])
def test_dtypes_that_only_numpy_knows_have_as_many_bytes(name: str) -> None:
    array = msgpack.packb(([3], name, bytes(12)))
    data = msgpack.packb({"a": msgpack.ExtType(1, array), "b": 1})
    with pytest.raises(treepack.DecodeError):
        treepack.serialization.msgpack_restore(data)
    assert treepack.verify(data).corrupt == ["a"]


@pytest.mark.parametrize("key", [False, True])
def test_arrays_in_leaves_of_other_kinds_have_the_bytes_of_their_shapes(key: bool) -> None:
    """Such as those of kinds that are not known here, and the data of PRNG keys."""
    tree = {"a": jax.random.key(3) if key else np.zeros((2, 3), np.int8), "b": 1}
    data = treepack.dumps(tree)
    assert treepack.verify(data).ok
    changed = data.replace(b"\x92\x02\x03", b"\x92\x03\x03").replace(
        b"\x91\x02\xa6", b"\x91\x03\xa6"
    )
    assert changed != data
    found = treepack.verify(changed)
    assert found.corrupt == ["a"]
    with treepack.open(changed) as file, pytest.raises(treepack.DecodeError):
        np.asarray(file["a"])


def test_arrays_of_unknown_kinds_are_looked_at(parts: tuple[bytes, dict[str, Any]]) -> None:
    state, record = parts
    index = msgpack.unpackb(record["index"])
    kinds = ["of a later version" if "float64" in str(it) else it for it in index["kinds"]]
    record = {**record, "index": msgpack.packb({**index, "kinds": kinds})}
    assert treepack.verify(file_of(state, record)).ok
    damaged = state.replace(b"\x02\x58", b"\x02\x59", 1)  # of the whole, and not of a chunk
    assert treepack.verify(file_of(damaged, record)).corrupt == ["params/w"]


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        (b"\xa1b\xc7\x0d\x01", b"\xa1b\xc7\x0e\x01", "params/b"),  # the length of an extension
        (b"\xa4text", b"\xa4te\xfft", "name"),  # is no UTF-8
        (b"\xcd\x02\x58\xa7float64", b"\xcd\x02\x59\xa7float64", "params/w"),  # a chunk
    ],
)
def test_leaves_are_what_their_headers_tell(
    parts: tuple[bytes, dict[str, Any]], old: bytes, new: bytes, path: str
) -> None:
    state, record = parts
    assert state.count(old) == 1, state[-200:]
    changed = file_of(state.replace(old, new), record)
    with pytest.raises(treepack.DecodeError):
        treepack.loads(changed)
    assert treepack.verify(changed).corrupt == [path]


@pytest.mark.parametrize("value", [5, "text", [1], {"a": 1}])
def test_the_record_is_bytes(value: Any) -> None:
    data = msgpack.packb({"a": 1, "__treepack__": value})
    for read in (treepack.loads, treepack.open):
        with pytest.raises(treepack.DecodeError, match="not bytes"):
            read(data)
    assert "not bytes" in str(treepack.verify(data).damage)
    nested = msgpack.packb({"a": {"__treepack__": value}})
    with treepack.open(nested) as file:
        assert list(file["a"]) == ["__treepack__"]


def test_dtypes_inside_of_leaves_are_those_of_arrays(tmp_path: Path) -> None:
    treepack.save(tmp_path / "keys", {"key": jax.random.key(0)})
    data = (tmp_path / "keys").read_bytes()
    state, record = data[: data.index(b"\xac__treepack__")], msgpack.unpackb(record_of(data))
    assert treepack.verify(file_of(state, record)).ok
    listed = flax.serialization.msgpack_serialize({"a": [np.ones(2)]})
    assert treepack.verify(listed).ok
    index = msgpack.unpackb(record["index"])
    later = {**record, "index": msgpack.packb({**index, "kinds": [{"of a later version": 1}]})}
    assert treepack.verify(file_of(state, later)).ok
    for wrong, name in (
        (file_of(state.replace(b"uint32", b"vint32"), record), "vint32"),
        (file_of(state.replace(b"uint32", b"vint32"), later), "vint32"),
        (listed.replace(b"float64", b"gloat64"), "gloat64"),
    ):
        found = treepack.verify(wrong)
        assert (found.ok, found.damage, found.corrupt) == (False, None, [])
        assert found.unreadable in (["key"], ["a/0"])
        with pytest.raises(treepack.DecodeError, match=name):
            treepack.loads(wrong)


@pytest.mark.parametrize("shape", [[2], [1], [0], []])
@pytest.mark.parametrize("name", ["float3", "int32\0", "datetime64[nT]", "int\\"])
def test_no_dtype_that_is_missing_is_verified(name: str, shape: list[int]) -> None:
    nbytes = 0 if shape == [0] else 8
    for code in (1, 3):
        array = msgpack.ExtType(code, msgpack.packb([shape, name, bytes(nbytes)]))
        data = msgpack.packb({"w": array})
        assert not treepack.verify(data).ok
        assert treepack.verify(data).damage is None
        with pytest.raises(treepack.DecodeError, match="unsupported array dtype"):
            treepack.loads(data)
