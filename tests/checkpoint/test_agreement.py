"""Files whose parts contradict each other: `open` and `load` agree, and `verify` tells."""

from __future__ import annotations

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
import msgpack
import numpy as np
import pytest

import treepack
from treepack import errors
from trees import record_of

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
    with treepack.open(data) as file:
        with pytest.raises(treepack.DecodeError, match="not what the index") as caught:
            np.asarray(file[path])
        assert caught.value.path == path
        assert caught.value.offset is not None
        with pytest.raises(treepack.DecodeError, match="not what the index"):
            file.load()


def test_containers_with_nothing_in_them_are_those_of_the_index(
    parts: tuple[bytes, dict[str, Any]],
) -> None:
    state, record = parts
    data = file_of(state.replace(b"\xa4none\x80", b"\xa4nine\x80"), record)
    found = treepack.verify(data)
    assert (found.ok, found.corrupt) == (False, [])
    assert "between the leaves and the record" in str(found.damage)
    with treepack.open(data) as file, pytest.raises(treepack.DecodeError, match="the index"):
        file.load(select="last/**")


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
            with pytest.raises(treepack.DecodeError, match="not what the index") as caught:
                use(file["params/w"])
            assert caught.value.path in ("params/w", None)
        with pytest.raises(treepack.DecodeError, match="not what the index"):
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
                with pytest.raises(treepack.DecodeError, match="not what the index"):
                    file[path]


def test_an_index_has_no_longer_keys_than_its_file(parts: tuple[bytes, dict[str, Any]]) -> None:
    state, record = parts
    index = msgpack.unpackb(record["index"])
    outline = msgpack.unpackb(index["outline"], strict_map_key=False)
    outline = {("k" * 5000 if key == "step" else key): value for key, value in outline.items()}
    changed = {**record, "index": msgpack.packb({**index, "outline": msgpack.packb(outline)})}
    with pytest.raises(treepack.DecodeError, match="longer keys than the data"):
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


def test_gzip_without_an_index_is_no_damage(tmp_path: Path) -> None:
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


def test_damage_outside_of_leaves_is_told(
    tmp_path: Path, parts: tuple[bytes, dict[str, Any]]
) -> None:
    data = bytearray(file_of(*parts))
    data[len(parts[0]) - 2] ^= 1  # a key of a container with nothing in it
    (tmp_path / "damaged").write_bytes(data)
    with pytest.raises(errors.CorruptionError, match="between the leaves and the record"):
        treepack.load(tmp_path / "damaged", select="step", verify=True)
    with pytest.warns(UserWarning, match="between the leaves and the record"):
        found = treepack.load(tmp_path / "damaged", select="step", on_corrupt="skip")
    assert found == {"step": 7}


def test_an_error_of_a_file_tells_where(tmp_path: Path) -> None:
    data = treepack.serialization.to_bytes({"a": [1, 2, 3]})
    with treepack.open(data[:-1], salvage=True) as file:
        assert str(len(data) - 1) in str(file.damage)
        assert f"(byte {len(data) - 1})" in str(file.damage)
    (tmp_path / "empty").touch()
    for use in (
        treepack.load,
        treepack.open,
        treepack.abstract,
        treepack.read_metadata,
        lambda path: treepack.serialization.load_from_file({}, path),
    ):
        with pytest.raises(treepack.DecodeError, match=r"empty': the file is empty \(0 bytes\)"):
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


def test_paths_are_made_when_they_are_asked_for(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("form", ["file", "bytearray", "packed file", "packed bytearray"])
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
