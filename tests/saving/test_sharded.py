"""Checkpoints of several processes, and of several devices in one."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
import zlib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import msgpack
import numpy as np
import pytest
from flax import serialization as flax
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import processes
import tiers
import treepack
import treepack._core as core
from programs import SAVE, TREE
from tiers import examples
from treepack._src.claims import directory, lease
from treepack._src.interop import jax as _jax
from treepack._src.layouts.layout import Encoding
from treepack._src.placing import placement as _placement
from treepack._src.readers import shard_boxes as reading
from treepack._src.readers.reader import boxes_of
from treepack._src.saving import sharded as writing
from treepack._src.sharded.files import MANIFEST
from treepack._src.sharded.reading import ShardedReader
from treepack._src.storage import filesystems
from treepack._src.storage.address import Address
from trees import DTYPES, example_array, record_of, sealed
from waiting import HANG_S, in_time

LOAD = (
    TREE
    + """
path, shape = args[0], json.loads(args[1])
tree = make(mesh(*shape))
is_plain = lambda leaf: isinstance(leaf, jax.Array) and leaf.dtype != tree["key"].dtype
abstract = jax.tree.map(
    lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
    if is_plain(leaf) else leaf, tree)
found = treepack.load(path, abstract)
check(found)
for leaf, expected in zip(jax.tree.leaves(found), jax.tree.leaves(tree)):
    if is_plain(expected):
        assert leaf.sharding.is_equivalent_to(expected.sharding, leaf.ndim)
check(treepack.load(path))
check(treepack.load(path, arrays="numpy"))
assert treepack.read_metadata(path) == {"step": 3}
print("loaded")
"""
)


@tiers.parametrize(
    ("saved", "loaded", "background"),
    [
        ((2, 2, [2, 2]), (1, 1, [1, 1]), False),
        ((2, 2, [4, 1]), (2, 4, [2, 4]), True),
        ((1, 8, [4, 2]), (2, 1, [1, 2]), False),
        ((3, 1, [1, 3]), (1, 4, [2, 2]), True),
    ],
)
def test_any_mesh_and_any_number_of_processes(
    tmp_path: Path, saved: Any, loaded: Any, background: bool
) -> None:
    path = tmp_path / "checkpoint"
    count, devices, shape = saved
    more = ["background"] if background else []
    processes.run(SAVE, count, path, json.dumps(shape), *more, devices=devices)
    files = sorted(path.glob("*-*.treepack"))
    assert len(files) == count
    assert len(list(path.iterdir())) == count + 1
    sizes = [file.stat().st_size for file in files]
    assert max(sizes) < 1.7 * min(sizes)  # replicas are shared out; `host` is in the first alone
    count, devices, shape = loaded
    processes.run(LOAD, count, path, json.dumps(shape), devices=devices)


FAILURES = (
    TREE
    + """
path = args[0]
tree = make(mesh(2, 1))
treepack.save(path, tree)  # recognised by its arrays
before = sorted(os.listdir(path))

def fails(tree, what, **options):
    for background in (False, True):
        try:
            saving = treepack.save(path, tree, background=background, **options)
            if background:
                saving.result()
        except ValueError as error:
            assert what in str(error), error
        except TypeError as error:  # where it happens
            assert index == 1 and "object" in str(error), error
        else:
            raise AssertionError("no error")
        check(treepack.load(path, make(mesh(2, 1))))

bad = make(mesh(2, 1))
if index == 1:
    bad["name"] = object()
fails(bad, "process 1: UnserializableLeafError" if index == 0 else "UnserializableLeafError")
other = make(mesh(2, 1))
other["host"] = np.zeros(1000 + index)
fails(other, "process 1 saved ")

def enough(done, total):
    if index == 1:
        raise ValueError("enough")

large = put(np.zeros(1 << 22), NamedSharding(mesh(2, 1), P("x")))
fails(make(mesh(2, 1)) | {"large": large}, "enough", progress=enough)
treepack.save(path, make(mesh(2, 1)))
after = sorted(os.listdir(path))
if index == 0:  # it removes old files while the others go on
    assert len(after) == 3 and after != before, (before, after)
"""
)


@pytest.mark.campaign
def test_an_error_in_one_process_is_one_in_all(tmp_path: Path) -> None:
    processes.run(FAILURES, 2, tmp_path / "checkpoint")


ONE_PROCESS_ALONE = (
    TREE
    + """
path = f"{args[0]}-{index}"  # which is not the same directory
try:
    treepack.save(path, make(mesh(2, 1)))
except ValueError as error:
    assert f"process 1 saves to '{args[0]}-1', process 0 to '{args[0]}-0': " in str(error), error
else:
    raise AssertionError("no error")
"""
)


@pytest.mark.campaign
def test_directories_that_are_not_the_same_are_noticed(tmp_path: Path) -> None:
    processes.run(ONE_PROCESS_ALONE, 2, tmp_path / "checkpoint")


LATE = (
    TREE
    + """
path, marker = args[0], args[0] + ".marker"
tree = make(mesh(2, 1))
treepack.save(path, tree)
if index == 1:
    while not os.path.exists(marker):
        time.sleep(0.05)
else:
    try:
        treepack.save(path, tree, timeout=1)
    except ValueError as error:
        assert "process 1: did not call save" in str(error), error
    else:
        raise AssertionError("no error")
    open(marker, "w").close()
check(treepack.load(path, make(mesh(2, 1))))
if index == 1:
    try:
        treepack.save(path, tree)  # the one that it has missed
    except ValueError as error:
        assert "process 1: did not call save" in str(error), error
    else:
        raise AssertionError("no error")
treepack.save(path, tree)
assert treepack.verify(path).ok
"""
)


@pytest.mark.campaign
def test_a_process_that_does_not_come_is_named(tmp_path: Path) -> None:
    processes.run("import time\n" + LATE, 2, tmp_path / "checkpoint")


# One process with eight devices has saved this; what follows reads it.


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sharded") / "checkpoint"
    processes.run(SAVE, 1, path, "[4, 2]", devices=8)
    return path


@pytest.fixture
def checkpoint(saved: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    return Path(shutil.copytree(saved, tmp_path / "copy"))


W = np.arange(48 * 24, dtype=np.float32).reshape(48, 24)


def test_it_is_opened_as_a_file_is(saved: Path) -> None:
    with treepack.open(saved) as file:
        assert file.metadata == {"step": 3}
        assert dict(file.leaves()).keys() == dict(treepack.verify(saved).leaves).keys()
        assert repr(file["params"]).count("float32[48,24]") == 1
        assert file.nbytes > 5 * W.nbytes
        np.testing.assert_array_equal(file["params/w"], W)
        np.testing.assert_array_equal(np.array(file["layers"].load()), [W * k for k in range(3)])
        assert file["layers"].load(arrays="numpy")[1][0, 1] == 1
        assert file["step"] == 3
        assert len(file["empty"]) == 0
        again = pickle.loads(pickle.dumps(file["params/w"]))
        np.testing.assert_array_equal(again[3], W[3])
    with pytest.raises(ValueError, match="closed"):
        file["params/w"]
    shapes = treepack.abstract(saved)
    assert shapes["params"]["w"].shape == (48, 24)
    assert shapes["step"] == 3
    assert treepack.open(saved).abstract()["layers"][0].dtype == np.float32


@examples(300)
@given(index=st.data())
def test_indices_are_those_of_numpy(saved: Path, index: st.DataObject) -> None:
    with treepack.open(saved) as file:
        array = file["params/w"]
        chosen = index.draw(
            npst.basic_indices((48, 24), allow_newaxis=True) | npst.integer_array_indices((48, 24))
        )
        found, expected = array[chosen], W[chosen]
        assert type(found) is type(expected)
        assert np.shape(found) == np.shape(expected)
        np.testing.assert_array_equal(found, expected)
        start = index.draw(st.integers(0, W.size))
        stop = index.draw(st.integers(start, W.size))
        np.testing.assert_array_equal(array.flat_range(start, stop), W.reshape(-1)[start:stop])


@given(
    shape=st.lists(st.integers(1, 4), max_size=4),
    ends=st.tuples(st.integers(0, 256), st.integers(0, 256)),
)
def test_a_range_is_boxes(shape: list[int], ends: tuple[int, int]) -> None:
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    start, stop = sorted(min(end, array.size) for end in ends)
    found = boxes_of(tuple(shape), start, stop)
    boxes = [array[(*(slice(it.start, it.stop) for it in box), ...)].reshape(-1) for box in found]
    assert len(boxes) <= max(1, 2 * len(shape))
    np.testing.assert_array_equal(np.concatenate([[], *boxes]), np.arange(start, stop))


class Opened:
    """A file that notes what is expected to be used of it."""

    def __init__(self, nbytes: int):
        self.name = "a file"
        self.nbytes = nbytes
        self.expected: list[Any] | None = None

    @property
    def catalog(self) -> Opened:
        return self

    def totals(self, _: int) -> tuple[int, int]:
        return 1, self.nbytes

    def prefetch_only(self, boxes: list[Any]) -> None:
        self.expected = boxes


class Planned:
    """A box of shards of 100 bytes: for each part its file, the shard there, and how much of it."""

    def __init__(self, *parts: tuple[int, int, int]):
        self.parts = parts

    def __len__(self) -> int:
        return len(self.parts)

    @property
    def files(self) -> list[tuple[int, int]]:
        return [(number, stop) for number, _, stop in self.parts]

    def missing(self, _: Any) -> None:
        pass

    def places(self, _: Any) -> list[tuple[int, int, Any]]:
        return [(number, value, [(0, stop, 1)]) for number, value, stop in self.parts]


class Files(list[Any]):
    """Files, by number."""

    __hash__ = object.__hash__
    catalogs: tuple[()] = ()

    def need_files(self, numbers: Any) -> None:
        pass

    def file(self, number: int) -> Any:
        return self[number]


def test_little_is_read_around_what_is_used_of_a_file() -> None:
    """Where nearly all of a file is needed, the system reads ahead."""
    whole, half, copied = files = Files([Opened(200), Opened(200), Opened(200)])
    large = np.dtype(np.complex128)  # small boxes are copied
    array: Any = SimpleNamespace(reader=files, dtype=large, stored=large)

    def box(*parts: tuple[int, int, int], in_place: bool) -> reading.Box:
        array.shards_in = lambda _: Planned(*parts)
        return reading.Box(array, [range(100)], in_place=in_place)

    boxes = [
        box((0, 1, 95), in_place=True),
        box((0, 2, 95), in_place=False),
        box((1, 1, 100), in_place=True),
        box((1, 2, 70), (2, 1, 30), in_place=True),
    ]
    assert [box.is_in_place for box in boxes] == [True, False, True, False]
    reading.expect(boxes)
    assert whole.expected is None
    assert half.expected == [(1, [(0, 100, 1)])]
    assert copied.expected is None  # which is read, not used in place


def test_boxes_without_a_waiting_reader_are_not_read() -> None:
    """An interrupt or an error ends the reading of what comes after it."""
    calls: list[str] = []
    reads, prefetches = threading.Event(), threading.Event()
    known: list[threading.Event] = []

    class Slow:
        is_in_place = False
        nbytes = 0

        def read(self, _: int, stopped: threading.Event) -> None:
            if stopped.is_set():
                return  # as a box does
            calls.append("read")
            known.append(stopped)
            reads.set()
            if not stopped.wait(HANG_S):
                calls.append("read on")

        def prefetch(self) -> None:
            calls.append("prefetch")
            prefetches.set()
            reads.wait(HANG_S)
            if not known[0].wait(HANG_S):
                calls.append("prefetched on")

    boxes: Any = [Slow() for _ in range(1000)]

    def interrupted() -> None:
        with reading.reading(boxes, 1):
            assert reads.wait(HANG_S)
            assert prefetches.wait(HANG_S)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert sorted(calls) == ["prefetch", "read"]


def test_shards_are_used_in_place(saved: Path) -> None:
    with treepack.open(saved) as file:
        part = file["layers/1"].box((slice(0, 48), slice(6, 12)))
        assert part.flags.aligned
        assert not part.flags.writeable
        assert not part.flags.owndata
        assert part.ctypes.data % 64 == 0
        first = jax.device_put(part)
        assert first.unsafe_buffer_pointer() == part.ctypes.data
        whole = file["params/w"].box((slice(0, 48), slice(0, 24)))
        assert whole.flags.writeable
        assert whole.ctypes.data % 64 == 0


def test_parts_of_it_are_loaded(saved: Path) -> None:
    found = treepack.load(saved, select="params/w")
    assert list(found) == ["params"]
    assert list(found["params"]) == ["w"]
    target = {"weights": np.zeros((48, 24), np.float16), "own": 1}
    found, report = treepack.load(
        saved,
        target,
        mapping={"weights": "params/w"},
        missing="target",
        cast=True,
        verify=True,
        return_report=True,
    )
    assert found["weights"].dtype == np.float16
    assert type(found["weights"]) is np.ndarray
    np.testing.assert_array_equal(found["weights"], W.astype(np.float16))
    assert report.loaded == ["weights"]
    assert report.kept == ["own"]
    assert report.cast == ["weights"]
    assert "step" in report.unexpected
    with pytest.raises(treepack.MismatchError, match=r"w: expected float32\[48,25\]"):
        treepack.load(saved, {"params": {"w": np.zeros((48, 25), np.float32)}})


def test_flax_reads_each_file(saved: Path) -> None:
    [file] = saved.glob("*-00000.treepack")
    found = flax.msgpack_restore(file.read_bytes())
    np.testing.assert_array_equal(found["params"]["w"]["[12:24,0:12]"], W[12:24, :12])
    np.testing.assert_array_equal(found["host"], np.arange(1000.0))


def test_it_becomes_one_file(saved: Path, tmp_path: Path) -> None:
    from commands import call

    target = tmp_path / "model.treepack"
    call("convert", str(saved), str(target))
    assert treepack.verify(target).ok
    assert treepack.read_metadata(target) == {"step": 3}
    ours, theirs = treepack.load(saved, arrays="numpy"), flax.msgpack_restore(target.read_bytes())
    np.testing.assert_array_equal(theirs["params"]["t"], W.T)
    assert treepack.dumps(ours) == treepack.dumps(treepack.load(target, arrays="numpy"))
    for command in (("ls", saved), ("verify", saved), ("diff", saved, target)):
        call(*map(str, command))
    # And back, without memory for it: arrays of an open checkpoint are leaves.
    with treepack.open(saved) as file:
        treepack.save(tmp_path / "again", dict(file["params"]), sharded=True)
        treepack.save(tmp_path / "plain", dict(file["params"]))
    for path in (tmp_path / "again", tmp_path / "plain"):
        np.testing.assert_array_equal(treepack.load(path)["w"], W)


def test_pointers_of_git_lfs_say_so(checkpoint: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n"
    for file in [*checkpoint.iterdir()]:
        before = file.read_bytes()
        file.write_bytes(pointer)
        for use in (treepack.load, lambda path: treepack.open(path).load()):
            with pytest.raises(treepack.TreepackError, match=f"{file.name} is a git-LFS pointer"):
                use(checkpoint)
        file.write_bytes(before)  # as `git lfs pull` does
        treepack.load(checkpoint)


def test_directories_other_than_checkpoints_are_described(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / MANIFEST).unlink()
    for use in (treepack.load, treepack.open, treepack.verify, treepack.abstract):
        with pytest.raises(treepack.DecodeError, match=r"has no manifest\.treepack"):
            use(checkpoint)
    (checkpoint / MANIFEST).write_bytes(b"something else, of some length")
    with pytest.raises(treepack.DecodeError, match="the manifest is damaged"):
        treepack.load(checkpoint)
    with pytest.raises(OSError, match=r"exists|directory"):
        treepack.save(checkpoint, {"w": 1})
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match=r"exists|directory"):
        treepack.save(tmp_path / "file", {"w": 1}, sharded=True)


@pytest.mark.parametrize("compress", [False, True])
def test_every_dtype_is_split_and_put_together(tmp_path: Path, compress: bool) -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("x", "y"))
    split = NamedSharding(mesh, PartitionSpec("x", "y"))
    columns = NamedSharding(mesh, PartitionSpec(None, "y"))
    dtypes = [dtype for dtype in DTYPES if _placement._jax_has(dtype)]
    expected = {dtype.name: example_array(dtype, (8, 12)) for dtype in dtypes}
    with jax.enable_x64(True):
        tree = {name: jax.device_put(array, split) for name, array in expected.items()}
        assert all(tree[dtype.name].dtype == dtype for dtype in dtypes)
        treepack.save(tmp_path / "saved", tree, sharded=True, compress=compress, durable=False)
        template = {
            name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=columns)
            for name, leaf in tree.items()
        }
        found = [treepack.load(tmp_path / "saved"), treepack.load(tmp_path / "saved", template)]
    with treepack.open(tmp_path / "saved") as file:
        treepack.save(tmp_path / "again", dict(file), sharded=True, durable=False)
        found.append({name: file[name][:] for name in expected})
        found.append({name: file[name].flat_range(0, 96).reshape(8, 12) for name in expected})
    found.append(treepack.load(tmp_path / "again", arrays="numpy"))
    for loaded in found:
        for name, array in expected.items():
            assert loaded[name].dtype == array.dtype
            assert np.asarray(loaded[name]).tobytes() == array.tobytes(), name
    assert treepack.verify(tmp_path / "saved").ok


def sealed_manifest(record: Any) -> bytes:
    """Returns a manifest with the checksum that belongs to it."""
    packed = msgpack.packb(record)
    crc = zlib.crc32(packed).to_bytes(4, "little")
    return packed + crc + b"\x93treepm\n"


def change_manifest(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes the record of a manifest, and its checksum with it."""
    manifest = path / MANIFEST
    record = msgpack.unpackb(manifest.read_bytes()[:-12])
    change(record)
    manifest.write_bytes(sealed_manifest(record))


# With no more memory than jax and NumPy need.
LITTLE_MEMORY = """
import resource
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (256 << 20), -1))
for path in args:
    for use in (
        treepack.load, treepack.abstract, treepack.read_metadata, treepack.verify, treepack.open,
        lambda path: treepack.load(path, select="**"),
        lambda path: list(treepack.open(path, salvage=True).leaves()),
    ):
        try:
            use(path)
        except treepack.DecodeError as error:
            assert "bytes outside of arrays are missing" in str(error), error
"""


@pytest.mark.campaign
def test_nothing_but_arrays_is_in_gaps(tmp_path: Path) -> None:
    for skeleton in (
        b"\xdd\xff\xff\xff\xff",  # a list of what would be in the gap
        b"\x82\xa1w\xdd\xff\xff\xff\xff",
        b"\x81\xa1w\xc6\xff\xff\xff\xff",  # bytes
        b"\x81\xa1w\xdb\xff\xff\xff\xff",  # text
        b"\x81\xa1w\xcf",  # an integer
        b"\x81\xac__treepack__\xc6\xff\xff\xff\xff",
    ):
        record = {
            "version": 1,
            "files": [["file", 1 << 40, 0]],
            "arrays": [[[1], [0], False]],
            "holes": [[len(skeleton), 1 << 40, 0]],
            "skeleton": zlib.compress(skeleton),
        }
        folder = tmp_path / skeleton.hex()
        folder.mkdir()
        (folder / MANIFEST).write_bytes(sealed_manifest(record))
    processes.run(LITTLE_MEMORY, 1, *tmp_path.iterdir())


def test_gaps_are_as_large_as_the_files(checkpoint: Path) -> None:
    def enlarge(record: dict[str, Any]) -> None:
        record["holes"][-1]["nbytes"] <<= 30

    change_manifest(checkpoint, enlarge)
    with pytest.raises(treepack.DecodeError, match="its arrays cannot fit into files of"):
        treepack.open(checkpoint)


@pytest.mark.parametrize("place", ["before", "nbytes", "array"])
def test_a_hole_is_all_of_an_array(checkpoint: Path, place: str) -> None:
    def change(record: dict[str, Any]) -> None:
        gap = record["holes"][0]
        if place == "before":  # the last byte of its header is missing
            gap["before"] -= 1
            gap["nbytes"] += 1
        elif place == "nbytes":
            gap["nbytes"] -= 1
        else:
            gap["array"] = (gap["array"] + 1) % len(record["arrays"])

    change_manifest(checkpoint, change)
    damaged = treepack.DecodeError, treepack.CorruptionError
    with pytest.raises(damaged):
        treepack.load(checkpoint)
    with contextlib.suppress(damaged):
        assert not treepack.verify(checkpoint).ok


def test_shards_are_there_before_memory_is_taken_for_them(checkpoint: Path) -> None:
    for file in checkpoint.glob("*-*"):
        file.unlink()
    taken: list[Any] = []
    with treepack.open(checkpoint) as file, pytest.MonkeyPatch.context() as patched:
        patched.setattr(np, "empty", lambda *args: taken.append(args))
        for read in (lambda: file["params/w"][1:], lambda: np.asarray(file["params/w"])):
            with pytest.raises(treepack.CorruptionError, match="is missing"):
                read()
    assert not taken


def test_max_size_is_for_all_that_is_decompressed(tmp_path: Path) -> None:
    tree = {"w": jnp.zeros(100_000), "v": jnp.ones(100_000), "name": "n" * 1000}
    for compress in (False, True):
        path = tmp_path / str(compress)
        treepack.save(path, tree, sharded=True, compress=compress)
        skeleton = core.Manifest.decode((path / MANIFEST).read_bytes()).inflated
        for options in ({}, {"select": "w"}, {"target": tree}):
            with pytest.raises(treepack.TreepackError, match=f"exceeds max_size={skeleton - 1}"):
                treepack.load(path, max_size=skeleton - 1, **options)
            if not compress:
                assert treepack.load(path, max_size=skeleton, **options)["w"].sum() == 0
                continue
            for size in (skeleton, 800_000):
                with pytest.raises(treepack.TreepackError, match=f"exceeds max_size={size} bytes"):
                    treepack.load(path, max_size=size, **options)
            assert treepack.load(path, max_size=900_000, **options)["w"].sum() == 0


KINDS_OF_FILES: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "directory": Path.mkdir,
    "device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("kind", KINDS_OF_FILES)
def test_what_is_committed_are_regular_files(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_to(tmp_path, 1)
    write = writing.ShardedWrite.write

    def replaced(share: Any, directory: directory.Directory, name: str, *args: Any) -> None:
        write(share, directory, name, *args)
        path = Path(directory.file(f"{name}-00000.treepack"))
        path.unlink()
        KINDS_OF_FILES[kind](path)

    monkeypatch.setattr(writing.ShardedWrite, "write", replaced)
    with pytest.raises(treepack.DecodeError, match="regular file"):
        save_to(tmp_path, 2)
    assert value_in(tmp_path) == 1


@pytest.mark.parametrize("kind", KINDS_OF_FILES)
def test_a_lease_is_a_regular_file(tmp_path: Path, kind: str) -> None:
    KINDS_OF_FILES[kind](tmp_path / lease.FILE)
    tree = {"w": np.ones(2)}
    for save in (
        lambda: treepack.save(tmp_path, tree, sharded=True),
        lambda: treepack.save(tmp_path, tree, format="safetensors"),
        lambda: treepack.Series(tmp_path).save(1, tree),
        lambda: treepack.Publisher(tmp_path).push(tree, version=1),
    ):
        with pytest.raises(FileExistsError, match=r"not a regular file.*lease\.treepack"):
            save()
    assert [*tmp_path.iterdir()] == [tmp_path / lease.FILE]


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("kind", KINDS_OF_FILES)
def test_shards_and_manifests_are_regular_files(checkpoint: Path, kind: str, mmap: bool) -> None:
    [shard] = checkpoint.glob("*-00000.treepack")
    shard.unlink()
    KINDS_OF_FILES[kind](shard)
    # Also if the manifest has its size.
    nbytes = shard.stat().st_size
    change_manifest(checkpoint, lambda record: record["files"][0].update(nbytes=nbytes))
    with pytest.raises(treepack.CorruptionError, match="is not a regular file"):
        treepack.load(checkpoint, mmap=mmap)
    array = treepack.open(checkpoint, mmap=mmap)["params/w"]
    with pytest.raises(treepack.CorruptionError, match="is not a regular file"):
        np.asarray(array)
    assert "is not a regular file" in (treepack.verify(checkpoint).damage or "")
    manifest = checkpoint / MANIFEST
    manifest.unlink()
    KINDS_OF_FILES[kind](manifest)
    for use in (treepack.load, treepack.open, treepack.abstract):
        with pytest.raises(treepack.DecodeError, match="is not a regular file"):
            use(checkpoint)
    assert "is not a regular file" in (treepack.verify(checkpoint).damage or "")


def test_a_checkpoint_as_a_shard_of_another_one(checkpoint: Path, saved: Path) -> None:
    """It would be read as zeros."""
    [shard] = checkpoint.glob("*-00000.treepack")
    shard.unlink()
    shutil.copytree(saved, shard)
    nbytes, record = shard.stat().st_size, treepack.open(shard)._catalog.record
    change_manifest(
        checkpoint,
        lambda it: it["files"][0].update(nbytes=nbytes, record=zlib.crc32(record or b"")),
    )
    with pytest.raises(treepack.CorruptionError, match=shard.name):
        treepack.load(checkpoint)


def test_links_to_files_are_files(checkpoint: Path, tmp_path: Path) -> None:
    for file in list(checkpoint.iterdir()):
        file.rename(tmp_path / file.name)
        file.symlink_to(tmp_path / file.name)
    np.testing.assert_array_equal(treepack.load(checkpoint)["params"]["w"], W)


# 2,000 files, with so few handles that not all can be open.
MANY_FILES = """
import os, resource, sys
import numpy as np, treepack
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
path, rows = sys.argv[1], np.arange(2000.0 * 30).reshape(2000, 30)
os.chdir(path)
with treepack.open(".") as file:
    os.chdir("/")
    np.testing.assert_array_equal(file["w"], rows)
    assert len(os.listdir("/proc/self/fd")) < 200
    views = [file["w"].box((slice(at, at + 1), slice(0, 30))) for at in range(2000)]
    for at in range(0, 2000, 17):
        np.testing.assert_array_equal(file["w"][at : at + 2, 3], rows[at : at + 2, 3])
    np.testing.assert_array_equal(file["w"][5, ::7], rows[5, ::7])
assert len(os.listdir("/proc/self/fd")) < 200
np.testing.assert_array_equal(np.concatenate(views), rows)
del views, file
assert treepack.verify(path).ok
np.testing.assert_array_equal(treepack.load(path, arrays="numpy")["w"], rows)
np.testing.assert_array_equal(treepack.load(path, {"w": rows})["w"], rows)
assert treepack.load(path, mmap=False, arrays="numpy")["w"][1999, 29] == rows[1999, 29]
assert len(os.listdir("/proc/self/fd")) < 20
# What has been opened is read, whatever becomes of the files.
with treepack.open(path) as file:
    array = file["w"]
    assert array[:, 3].tolist() == rows[:, 3].tolist()
    for name in os.listdir(path):
        os.rename(f"{path}/{name}", f"{path}/old-{name}")
        open(f"{path}/{name}", "wb").close()
    np.testing.assert_array_equal(array, rows)
"""


def many_files(path: Path, rows: np.ndarray) -> None:
    """Makes a checkpoint as so many processes save it that have one row each."""
    path.mkdir()
    files = []
    for at, row in enumerate(rows):
        file = path / f"0123abcd-{at:05}.treepack"
        shard = {"w": {f"[{at}:{at + 1},0:{rows.shape[1]}]": row[None]}}
        treepack.save(file, shard, durable=False)
        with treepack.open(file) as opened:
            record = zlib.crc32(opened._catalog.record or b"")
        files.append((file.name, file.stat().st_size, record))
    whole = Encoding(align=1, index=True, gaps=True).tree({"w": rows})
    holders = [[at] for at in range(len(rows))]
    plan = core.ShardPlan([([len(rows), 1], 0, 1, False)], [holders])
    data = core.Manifest.planned(whole, plan).with_files(files)
    (path / MANIFEST).write_bytes(data)


@pytest.mark.campaign
def test_many_files_need_few_handles(tmp_path: Path) -> None:
    many_files(tmp_path / "checkpoint", np.arange(2000.0 * 30).reshape(2000, 30))
    program = [sys.executable, "-c", MANY_FILES, tmp_path / "checkpoint"]
    subprocess.run(program, check=True, timeout=600)


def test_an_index_that_has_an_array_where_there_is_none(checkpoint: Path) -> None:
    [file] = checkpoint.glob("*-00000.treepack")
    data = file.read_bytes()
    record = msgpack.unpackb(record_of(data), strict_map_key=False)
    index = msgpack.unpackb(record["index"])
    plain = data[: data.rindex(b"__treepack__") + len(b"__treepack__")]
    at = index["kinds"].index({"array": ["float64", [1000]]})
    for shape in ([999], [2**63], [1] * 65, [2**64 - 1, 0]):
        index["kinds"][at] = {"array": ["float64", shape]}
        packed = msgpack.packb({**record, "index": msgpack.packb(index)})
        opened = treepack.open(plain + msgpack.packb(sealed(packed)))
        reads: list[Callable[[], Any]] = [
            lambda opened=opened: opened["host"][:0],
            lambda opened=opened: np.asarray(opened["host"]),
        ]
        if shape != [999]:  # of which headers are needed to tell
            reads += [opened.abstract, lambda opened=opened: dict(opened.leaves())]
        for read in reads:
            with pytest.raises(treepack.DecodeError, match="at host"):
                read()


def test_keys_of_an_unknown_implementation_are_as_those_of_a_file(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treepack._src.leaves.prng.Key.wrapped", lambda _: None)
    found = treepack.open(saved)["key"]
    assert found.keys() == {"__prng_key__", "data"}
    assert found["data"].tolist() == jax.random.key_data(jax.random.key(7)).tolist()


def test_files_elsewhere_are_not_opened(checkpoint: Path) -> None:
    manifest = checkpoint / MANIFEST
    read = core.Manifest.decode(manifest.read_bytes())
    for name in ("../other.treepack", "/etc/passwd", "..", "", "a\0b"):
        manifest.write_bytes(read.with_files([(name, 1, 1) for _ in read.files]))
        with pytest.raises(treepack.DecodeError, match="is not a file name in its directory"):
            treepack.load(checkpoint)


def test_damage_is_found(checkpoint: Path) -> None:
    [file] = checkpoint.glob("*-00000.treepack")
    data = bytearray(file.read_bytes())
    with treepack.open(file) as opened:
        _, _, start, _, _ = opened._catalog.leaf(opened._catalog.find(["host"], 0))
    data[start + 500] ^= 1
    file.write_bytes(data)
    found = treepack.verify(checkpoint)
    assert found.corrupt == ["host"]
    assert found.damage is None
    assert not found.ok
    with pytest.raises(treepack.CorruptionError, match="host is damaged"):
        treepack.load(checkpoint, verify=True)
    kept, report = treepack.load(
        checkpoint,
        {"host": np.zeros(1000), "step": 0},
        on_corrupt="skip",
        missing="target",
        return_report=True,
    )
    assert kept["host"].sum() == 0
    assert kept["step"] == 3
    assert report.corrupt == ["host"]
    file.write_bytes(data[:-1])
    with pytest.raises(
        treepack.CorruptionError, match=r"00000\.treepack has the wrong size: expected \d+ bytes"
    ):
        treepack.load(checkpoint)
    cut = treepack.verify(checkpoint)
    assert set(cut.unchecked) > {"host", "params/w"}  # for lack of checksums
    assert "00000.treepack" in str(cut.damage)
    file.unlink()
    with pytest.raises(treepack.CorruptionError, match=r"00000\.treepack is missing"):
        treepack.load(checkpoint)
    found = treepack.verify(checkpoint)
    assert found.damage is not None
    assert "missing" in found.damage
    assert found.leaves["step"] == "ok"
    assert found.leaves["params/w"] == "corrupt"
    with treepack.open(checkpoint) as opened:  # all else is there
        assert opened["step"] == 3


@pytest.mark.campaign
def test_files_of_another_checkpoint_are_not_taken(saved: Path, checkpoint: Path) -> None:
    other = checkpoint.parent / "other"
    processes.run(SAVE, 1, other, "[4, 2]", "background", devices=8)
    [ours], [theirs] = checkpoint.glob("*-0*"), other.glob("*-0*")
    data = bytearray(theirs.read_bytes())
    assert len(data) == ours.stat().st_size
    with treepack.open(theirs) as opened:
        assert opened._catalog.is_summed
    ours.write_bytes(data)
    np.testing.assert_array_equal(treepack.load(checkpoint)["host"], np.arange(1000.0))  # equal
    with pytest.warns(UserWarning, match="is one file of a sharded checkpoint"):
        other = treepack.load(theirs)
    treepack.save(ours, other | {"host": np.ones(1000)})
    with pytest.raises(treepack.CorruptionError, match=r"does not match the manifest|wrong size"):
        treepack.load(checkpoint)


def test_leftovers_go_and_nothing_else(checkpoint: Path) -> None:
    leftovers = [
        "0123abcd-00003.treepack",
        ".0123abcd-00003.treepack.treepack-x1y2z3.tmp",
    ]
    others = ["notes.txt", "model.treepack", "0123abcd-00003.treepack.txt~", "x-00001.treepack"]
    for name in [*leftovers, *others]:
        (checkpoint / name).write_bytes(b"?")
    shutil.copy(next(checkpoint.glob("*-00000.treepack")), checkpoint / leftovers[0])
    # Names of shards, but files of the user.
    others += ["1234abcd-00000.treepack", "1234abcd-00001.treepack"]
    treepack.save(checkpoint / others[-1], {"w": 1})
    (checkpoint / others[-2]).write_bytes(b"?")
    (checkpoint / "loop").symlink_to("loop")
    others.append("loop")
    with (checkpoint / leftovers[1]).open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        treepack.save(checkpoint, {"w": np.ones(3)}, sharded=True)
        assert (checkpoint / leftovers[1]).exists()  # its writer is alive
    treepack.save(checkpoint, {"w": np.ones(3)}, sharded=True)
    names = {path.name for path in checkpoint.iterdir()}
    assert names >= set(others)
    assert not names & set(leftovers)
    assert len(names) == len(others) + 1  # the arrays are in the manifest


def test_files_that_may_not_be_deleted_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_to(tmp_path, 0)
    [old] = tmp_path.glob("*-00000.treepack")
    with monkeypatch.context() as patch:
        patch.setattr(directory.LocalDirectory, "_remove", denied)
        with pytest.warns(UserWarning, match=f"no permission to delete .*{old.name}") as caught:
            save_to(tmp_path, 1)
    assert len(caught) == 1
    assert value_in(tmp_path) == 1
    save_to(tmp_path, 2)
    assert not old.exists()


def denied(*_: Any, **__: Any) -> None:
    raise PermissionError(errno.EPERM, "not permitted")


def test_at_a_store_old_files_go(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "memory://old/files"
    save_to(url, 1)
    with monkeypatch.context() as patch:
        patch.setattr(filesystems.FileSystem, "delete", denied)
        with pytest.warns(UserWarning, match="memory://old/files"):
            save_to(url, 2)
    assert value_in(url) == 2
    treepack.save(url, {"step": 1}, sharded=True)  # without shards
    assert [it.name for it in Address.of(url).entries()] == [MANIFEST]


def test_temporary_files_of_the_dead_go_and_those_of_the_living_stay(tmp_path: Path) -> None:
    path = tmp_path / ".0123abcd-00003.treepack.treepack-x1y2z3.tmp"
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        treepack.save(tmp_path, {"w": np.ones(3)}, sharded=True)
        assert path.exists()
    treepack.save(tmp_path, {"w": np.ones(3)}, sharded=True)
    assert not path.exists()
    os.mkfifo(path)  # without a writer
    treepack.save(tmp_path, {"w": np.ones(3)}, sharded=True)
    assert path.exists()


def test_options_of_files_are_those_of_shards(tmp_path: Path) -> None:
    tree = {"w": jnp.zeros(100_000), "rest": (np.ones(1000), "text")}
    treepack.save(tmp_path / "plain", tree, sharded=True, durable=False, align=1)
    treepack.save(tmp_path / "gz", tree, sharded=True, compress=True, level=1)
    sizes = [
        sum(file.stat().st_size for file in (tmp_path / name).iterdir()) for name in ("plain", "gz")
    ]
    assert sizes[1] < sizes[0] / 2
    for name in ("plain", "gz"):
        found = treepack.load(tmp_path / name)
        assert treepack.dumps(found) == treepack.dumps(tree)
        assert type(found["rest"]) is tuple
        assert isinstance(found["w"], jax.Array)
        assert treepack.verify(tmp_path / name).ok
        assert treepack.load(tmp_path / name, copy=True)["rest"][0].flags.writeable


def test_directories_elsewhere(tmp_path: Path) -> None:
    tree = {"w": jnp.arange(100_000.0), "n": np.arange(500), "step": 3}
    for url in ("memory://sharded/checkpoint", f"file://{tmp_path}/checkpoint"):
        treepack.save(url, tree, sharded=True, metadata={"a": 1})
        assert treepack.read_metadata(url) == {"a": 1}
        assert treepack.dumps(treepack.load(url)) == treepack.dumps(tree)
        with treepack.open(url) as file:
            assert file["w"][5] == 5
        assert treepack.verify(url).ok
        treepack.save(url, {"w": jnp.ones(3)}, sharded=True)
        assert treepack.load(url)["w"].tolist() == [1, 1, 1]
    import fsspec

    assert len(fsspec.filesystem("memory").ls("/sharded/checkpoint")) == 2


def test_other_processes_need_not_have_the_types(saved: Path) -> None:
    with pytest.raises(ValueError, match="unknown"):
        treepack.load(saved, unknown="perhaps")


@pytest.mark.campaign
def test_manifests_are_small(tmp_path: Path) -> None:
    program = (
        TREE
        + """
spec = NamedSharding(mesh(4, 2), P("x", "y"))
tree = {f"layer_{k}": {"kernel": put(W, spec), "bias": put(B, spec if 0 else NamedSharding(
    mesh(4, 2), P("x")))} for k in range(200)}
treepack.save(args[0], tree, sharded=True)
"""
    )
    processes.run(program, 1, tmp_path / "checkpoint", devices=8)
    assert (tmp_path / "checkpoint" / MANIFEST).stat().st_size <= 64 * 200 * 12


def writers(arrays: list[tuple[int, list[tuple[int, ...]]]]) -> list[list[int]]:
    """Returns for each shard of arrays the process that writes it: the plain form of the plan."""
    loads: Counter[int] = Counter()
    found = [[holders[0] for holders in cells] for _, cells in arrays]
    for nbytes, cells in arrays:
        for holders in cells:
            if len(holders) == 1:
                loads[holders[0]] += nbytes
    for array in sorted(range(len(arrays)), key=lambda it: -arrays[it][0]):
        nbytes, cells = arrays[array]
        for cell, holders in enumerate(cells):
            if len(holders) > 1:
                writer = min(holders, key=lambda process: (loads[process], process))
                found[array][cell] = writer
                loads[writer] += nbytes
    return found


@given(
    st.lists(
        st.tuples(
            st.integers(0, 5).map(lambda it: 100 * it),
            st.lists(st.sets(st.integers(0, 6), min_size=1).map(sorted), min_size=1, max_size=6),
        ),
        max_size=8,
    )
)
def test_the_plan_shares_what_several_have(arrays: Any) -> None:
    splits = [((len(it),), at, nbytes, False) for at, (nbytes, it) in enumerate(arrays)]
    holders = [it for _, it in arrays]
    plan = core.ShardPlan(splits, holders)
    expected = writers(arrays)
    assert plan.processes == sorted({writer for files in expected for writer in files})
    for number, files in enumerate(expected):
        for process in range(8):
            mine = [cell for cell, writer in enumerate(files) if writer == process]
            assert plan.shards_of(number, process) == mine
    assert core.ShardPlan(splits, holders).checksum == plan.checksum


# Processes that do not save the same.

SAVED = """
path = args[0]
rows = NamedSharding(mesh(2, 1), P("x"))

def tree(step, **more):
    return {"w": put(np.full((256, 128), step, np.float32), rows), **more}

def fails(what, tree, *, path=path, **options):
    for background in (False, True):
        try:
            saving = treepack.save(path, tree, background=background, **options)
            if background:
                saving.result()
        except treepack.TreepackError as error:
            assert what in str(error), (what, error)
        else:
            raise AssertionError(f"saved, where {what}: {tree}")
    found = treepack.load(args[0], arrays="numpy")["w"]
    assert (found == 0).all(), found
    assert len(os.listdir(args[0])) == 3 or index == 1  # process 0 has cleaned up
"""

OTHERS = (
    TREE
    + SAVED
    + """
treepack.save(path, tree(0), step=0)
one, two = 1, 1 + index
fails("process 1 saves no step, process 0 step 1", tree(two), step=None if index else 1)
fails("process 1 saves different metadata than process 0", tree(two), metadata={"step": two})
fails("process 1 saves with compress=True, process 0 with compress=False", tree(1),
      compress=index == 1)
fails("all processes must write to the same directory", tree(1), path=f"{path}-{index}")
everywhere = NamedSharding(mesh(2, 1), P())
for leaf in (
    two, float(two), str(two), bytes([two]), np.float32(two), np.full(3, two), np.full(5000, two),
    jnp.full(5000, two), jnp.float32(two), jnp.ones(3, jnp.int4) * two, jax.random.key(two),
    put(np.array(two, np.int32), everywhere), put(np.full(10, index == 0), everywhere),
):
    fails("process 1 has different values than process 0 at a/b", tree(1, a={"b": leaf}, c=1))
fails("process 1 saved a different tree than process 0", tree(1, a=1) if index else tree(1))
fails("process 1 saved a different tree than process 0", tree(1, a=(1,) if index else [1]))
many = {str(at): at + index for at in range(2000)}
fails("at a/0, a/1, a/2, a/3, a/4, ...: everything except sharded arrays", tree(1, a=many))
many = {str(at): at + index * (at == 1999) for at in range(2000)}
fails("process 1 saved a different tree than process 0", tree(1, a=many))
long = {"x" * 1_000_000: {str(at): index for at in range(50)}}
fails("everything except sharded arrays must be the same", tree(1, a=long))
# What is the same, though it looks different.
nan = np.full((60, 70), np.nan)
alike = {"nan": nan.T.copy().T if index else nan, "order": np.arange(600.0).astype(">f8" if index
         else "<f8"), "drift": put(np.float32(index), everywhere)}
os.chdir(os.path.dirname(path))
here = os.path.basename(path) + "/" if index else path
treepack.save(here, tree(3, **alike), step=2**70, metadata=frozenset("abcdef"), threads=1 + index,
              align=np.int64(64), durable=np.True_)
assert (treepack.load(path, arrays="numpy")["w"] == 3).all()
"""
)


@pytest.mark.campaign
def test_processes_that_save_different_trees_get_an_error(tmp_path: Path) -> None:
    processes.run(OTHERS, 2, tmp_path / "checkpoint")


MISSED = (
    TREE
    + SAVED
    + """
def misses(step, what):
    for background in (False, True):
        try:
            saving = treepack.save(path, tree(step), step=step, background=background)
            if background:
                saving.result()
        except treepack.TreepackError as error:
            assert what in str(error), error
        else:
            raise AssertionError("no error")

def saves(step):
    treepack.save(path, tree(step), step=step)
    assert (treepack.load(path, arrays="numpy")["w"] == step).all()

saves(0)
for step in (1, 11):  # process 1 misses one
    if index == 0:
        misses(step, f"process 1: it missed step {step}, and already saves step {step + 1}")
    saves(step + 1)
for step in (21, 31):  # process 0 misses one
    if index == 1:
        misses(step, f"process 0 missed it, and already saves step {step + 1}")
    saves(step + 1)
# Several at once, one of which process 1 misses.
savings = {step: treepack.save(f"{path}-{step}", tree(step), step=step, background=True)
           for step in (41, 42, 43)[index:]}
for step, saving in savings.items():
    error = saving.exception()
    assert ("it missed step 41" in str(error)) if step == 41 else error is None, (step, error)
    assert error is not None or treepack.verify(f"{path}-{step}").ok
bad = {"bad": object()}
for step in (51, 52):  # a process fails before it knows what process 0 saves
    try:
        treepack.save(path, tree(step) | (bad if step == 51 and index else {}), step=step)
    except (treepack.TreepackError, TypeError) as error:
        assert step == 51 and "object" in str(error), error
    else:
        assert step == 52
"""
)


@pytest.mark.campaign
def test_a_process_that_has_missed_a_save(tmp_path: Path) -> None:
    processes.run(MISSED, 2, tmp_path / "checkpoint")


def test_a_step_is_an_integer(tmp_path: Path) -> None:
    for step in (0, -1, 2**70, np.int64(3), jnp.int32(3)):
        treepack.save(tmp_path / "file", {"w": 1}, step=step)
        treepack.save(tmp_path / "directory", {"w": 1}, step=step, sharded=True)
    for wrong in (1.5, "1", [1], True):
        with pytest.raises(TypeError, match="integer"):
            treepack.save(tmp_path / "file", {"w": 2}, step=wrong)  # type: ignore[call-overload]
    assert treepack.load(tmp_path / "file") == {"w": 1}


# Two jobs with one directory.


def save_to(path: Path | str, value: float, **options: Any) -> Any:
    tree = {"w": jnp.full(5000, value)}
    return treepack.save(path, tree, sharded=True, durable=False, **options)


def value_in(path: Path | str) -> float:
    found = treepack.load(path, arrays="numpy")["w"]
    assert (found == found[0]).all()
    return float(found[0])


def during(path: Path | str, action: Any) -> None:
    """Saves a 1, and does something meanwhile in another thread."""
    actions = [action]

    def tell(_: int, __: int) -> None:
        while actions:
            with ThreadPoolExecutor() as threads:
                threads.submit(actions.pop()).result()

    save_to(path, 1, progress=tell)
    assert not actions


def another_lease(path: Path, **about: Any) -> Path:
    """Makes the lease of a job on another host."""
    text = {"host": "elsewhere", "pid": 7, "since": 0, "system": "x", "is_locked": True} | about
    (path / lease.FILE).write_text(json.dumps(text))
    return path / lease.FILE


def test_a_directory_that_another_job_saves_to(tmp_path: Path) -> None:
    save_to(tmp_path, 0)

    def another() -> None:
        message = rf"is being saved to by process {os.getpid()} on \S+ since \d{{4}}-\d\d-\d\d \d"
        for _ in range(2):
            with pytest.raises(treepack.TreepackError, match=message):
                save_to(tmp_path, 2)
        saving = treepack.save(tmp_path / ".", {}, sharded=True, background=True)
        with pytest.raises(treepack.TreepackError, match=message):
            saving.result(60)
        assert value_in(tmp_path) == 0

    during(tmp_path, another)
    assert value_in(tmp_path) == 1
    assert len(list(tmp_path.iterdir())) == 2
    save_to(tmp_path, 2)
    assert value_in(tmp_path) == 2


def test_processes_that_save_apart_are_an_error_with_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def another() -> None:
        monkeypatch.setattr(_jax, "processes", lambda: (1, 2, None))
        with pytest.raises(treepack.errors.BusyError, match="save together with sharded=True"):
            treepack.save(tmp_path / "hub", {"w": np.ones(2)}, format="safetensors")
        monkeypatch.undo()

    (tmp_path / "hub").mkdir()
    during(tmp_path / "hub", another)


@pytest.mark.parametrize("background", [False, True])
def test_a_signal_handler_saves_to_the_directory_that_is_saved_to(
    tmp_path: Path, background: bool
) -> None:
    for place in (tmp_path, f"memory://sharded/handled-{background}"):
        handled, begun = threading.Event(), list[bool]()

        def handle(*_: Any) -> None:
            if begun:  # noqa: B023
                return
            begun.append(True)  # noqa: B023
            saving = save_to(place, 2, background=background)  # noqa: B023
            if saving is not None:
                saving.result()
            assert value_in(place) == 2  # noqa: B023
            handled.set()  # noqa: B023

        def interrupt(*_: Any) -> None:
            if handled.is_set():  # noqa: B023
                return

            def attempt() -> bool:  # again, as Python handles one that precedes a wait after it
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
                return handled.wait(1)  # noqa: B023

            assert in_time(attempt)

        before = signal.signal(signal.SIGUSR1, handle)
        try:
            save_to(place, 1, progress=interrupt)
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert value_in(place) == 1
        assert treepack.verify(place).ok
        assert len(Address.of(place).entries()) == 2


DIES = """
import warnings
warnings.simplefilter("ignore")

def die(done, total):
    if len(args) > 1 and os.fork() == 0:  # and leaves a child, which has all files that it had
        print("child", flush=True)
        sys.stdin.read()
        os._exit(0)
    os._exit(3)

treepack.save(args[0], {"w": jnp.full(5000, 2)}, sharded=True, progress=die)
"""


@pytest.mark.parametrize("forks", [False, True])
def test_the_lease_of_a_dead_process_is_taken_over(tmp_path: Path, forks: bool) -> None:
    save_to(tmp_path, 0)
    [running] = processes.start(DIES, 1, tmp_path, *["fork"] * forks, stdin=subprocess.PIPE)
    assert running.stdout is not None
    try:
        if forks:
            assert running.stdout.readline() == "child\n"
        assert running.wait(60) == 3
        assert (tmp_path / lease.FILE).exists()
        assert value_in(tmp_path) == 0
        save_to(tmp_path, 1)
        assert value_in(tmp_path) == 1
    finally:
        running.communicate()
    save_to(tmp_path, 2)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_lease_of_another_host_expires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_to(tmp_path, 0)
    file = another_lease(tmp_path, name="0123abcd")
    others = [tmp_path / "0123abcd-00001.treepack", tmp_path / "0123abce-00001.treepack"]
    for other in others:
        shutil.copy(next(tmp_path.glob("*-00000.treepack")), other)
    message = r"by process 7 on elsewhere since 1970-01-01 00:00:00 UTC.*expires after 120 s"
    with pytest.raises(treepack.TreepackError, match=message):
        save_to(tmp_path, 1)
    assert file.exists()
    assert all(other.exists() for other in others)
    now = lease._now
    with monkeypatch.context() as patch:
        patch.setattr(lease, "_now", lambda directory: now(directory) + lease.EXPIRY_S + 1)
        save_to(tmp_path, 1)
    assert [other.exists() for other in others] == [True, False]  # it may be alive after all
    assert not file.exists()
    assert value_in(tmp_path) == 1
    save_to(tmp_path, 2)
    assert len(list(tmp_path.iterdir())) == 2


def here(**about: Any) -> dict[str, Any]:
    """Describes a process of this machine in a lease."""
    found: dict[str, Any] = {"host": socket.gethostname(), "system": lease._system()}
    return found | {"machine": "m", "processes": lease._namespace()} | about


@pytest.mark.skipif(os.name != "posix", reason="identities of systems and processes")
@pytest.mark.parametrize("is_locked", [False, True])
@pytest.mark.parametrize(
    ("about", "is_dead"),
    [
        (here(system="an earlier boot"), True),
        (here(system="an earlier boot", machine="another"), False),
        (here(system="an earlier boot", host="another"), False),
        (here(system="a name, where there is no /proc", processes=None), False),
        (here(pid=2**22 + 1), True),
        (here(pid=2**22 + 1, processes="of another container"), False),
        (here(pid=os.getpid()), False),
        (here(pid=0), False),
        (here(pid="x"), False),
    ],
)
def test_the_lease_of_a_process_that_has_ended_here(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    about: dict[str, Any],
    is_dead: bool,
    is_locked: bool,
) -> None:
    """As after the machine was started again, or where there are no locks."""
    monkeypatch.setattr(lease, "_machine", lambda: "m")
    monkeypatch.setattr(lease, "_lock", lambda file, wait=False: None)
    another_lease(tmp_path, **about, is_locked=is_locked)
    if is_dead:
        save_to(tmp_path, 1)
        assert value_in(tmp_path) == 1
    else:
        with pytest.raises(treepack.errors.BusyError, match="expires after 120 s"):
            save_to(tmp_path, 1)


@pytest.mark.parametrize("is_written", [True, False])
def test_a_lease_from_the_future_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_written: bool
) -> None:
    """The clock was set back by a day: the lease expires as if it was renewed now."""
    file = another_lease(tmp_path)
    if not is_written:  # as after the power failed
        file.write_bytes(b"")
    os.utime(file, (time.time() + 86400,) * 2)
    with pytest.raises(treepack.errors.BusyError, match="renewed 0 s ago, expires after 120 s"):
        save_to(tmp_path, 1)
    now = lease._now
    monkeypatch.setattr(lease, "_now", lambda directory: now(directory) + lease.EXPIRY_S + 1)
    save_to(tmp_path, 1)
    assert value_in(tmp_path) == 1


@pytest.mark.parametrize(
    "data", [b"", b"?", b"\xff", b"[" * 4096, b"[]", b'{"since": 1e300}', b'{"since": "x"}']
)
def test_a_lease_that_tells_nothing(
    tmp_path: Path, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / lease.FILE).write_bytes(data)
    with pytest.raises(treepack.TreepackError, match="another job"):
        save_to(tmp_path, 1)
    monkeypatch.setattr(lease, "EXPIRY_S", -1.0)
    save_to(tmp_path, 1)
    assert value_in(tmp_path) == 1


def test_a_lease_is_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RENEW_S", 0.001)

    def wait() -> None:
        os.utime(tmp_path / lease.FILE, (0, 0))
        until = time.monotonic() + 60
        while (tmp_path / lease.FILE).stat().st_mtime == 0:
            assert time.monotonic() < until

    during(tmp_path, wait)


def test_a_lease_that_is_lost_is_noticed(tmp_path: Path) -> None:
    """As that of a process that was suspended for long."""
    save_to(tmp_path, 0)
    theirs = tmp_path / "0123abcd-00000.treepack"

    def lose() -> None:
        (tmp_path / lease.FILE).unlink()
        another_lease(tmp_path)
        shutil.copy(next(tmp_path.glob("*-00000.treepack")), theirs)

    with pytest.raises(treepack.TreepackError, match=r"is gone.*process 7 on elsewhere since"):
        during(tmp_path, lose)
    assert value_in(tmp_path) == 0
    assert theirs.exists()
    (tmp_path / lease.FILE).unlink()
    with pytest.raises(treepack.TreepackError, match=r"is gone.*it was removed"):
        during(tmp_path, (tmp_path / lease.FILE).unlink)
    save_to(tmp_path, 2)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("form", ["parts", "one file", "published"])
def test_other_forms_notice_that_their_lease_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """No file of the job that holds it now is replaced or removed."""
    theirs: dict[str, bytes] = {}

    def lose(*_: Any) -> None:
        (tmp_path / lease.FILE).unlink()
        another_lease(tmp_path)
        for file in tmp_path.glob("[!.]*"):
            if file.name not in ("head.json", lease.FILE):
                file.write_bytes(b"theirs")
        for name in ("model.safetensors", "model-00002-of-00002.safetensors"):
            (tmp_path / name).write_bytes(b"theirs")
        theirs.update((file.name, file.read_bytes()) for file in tmp_path.glob("[!.]*"))

    tree = {"a": np.ones(9), "b": np.ones(9)}
    if form == "published":
        publisher = treepack.Publisher(tmp_path)
        publisher.push(tree, version=1)
        versions = publisher._versions
        write = versions.write
        with monkeypatch.context() as patch:
            patch.setattr(versions, "write", lambda *args, **how: (write(*args, **how), lose())[0])
            with pytest.raises(treepack.errors.BusyError, match=r"is gone.*elsewhere since"):
                publisher.push(tree, version=2)
    else:
        size = 72 if form == "parts" else None
        events, check = iter([lose]), lease.Lease.check
        monkeypatch.setattr(
            lease.Lease, "check", lambda self: (next(events, bool)(), check(self))[1]
        )
        with pytest.raises(treepack.errors.BusyError, match=r"is gone.*elsewhere since"):
            treepack.save(tmp_path, tree, format="safetensors", max_shard_size=size)
    found = {file.name: file.read_bytes() for file in tmp_path.glob("[!.]*")}
    assert found == theirs


@pytest.mark.parametrize("form", ["parts", "published"])
def test_a_lease_that_is_lost_during_the_commit_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Without locks nothing prevents it, and the save of the other job may be lost."""

    def lose(path: Address, *args: Any, **options: Any) -> None:
        (tmp_path / lease.FILE).unlink()
        another_lease(tmp_path)
        write(path, *args, **options)

    write = Address.write_bytes
    monkeypatch.setattr(Address, "write_bytes", lose)
    tree = {"a": np.ones(9), "b": np.ones(9)}
    saves: dict[str, Callable[[], object]] = {
        "parts": lambda: treepack.save(tmp_path, tree, format="safetensors", max_shard_size=72),
        "published": lambda: treepack.Publisher(tmp_path).push(tree, version=1),
    }
    with pytest.raises(treepack.errors.BusyError, match=r"is gone.*elsewhere since"):
        saves[form]()


def test_a_lease_goes_whatever_goes_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError("enough")

    for owner, name in (
        (lease, "Thread"),
        (lease.json, "dumps"),
        (directory.LocalDirectory, "_manifest"),
        (lease.Lease, "commit"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fail)
            with pytest.raises((OSError, TypeError)):
                save_to(tmp_path, 1)
        assert not list(tmp_path.iterdir())
    with pytest.raises(OSError, match="enough"):
        during(tmp_path, fail)
    assert not list(tmp_path.iterdir())

    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("_thread.start_new_thread", no_thread)
    save_to(tmp_path, 1)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_lease_whose_temporary_file_stays_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = os.unlink

    def fail(path: str | os.PathLike[str]) -> None:
        if Path(path).name.startswith(f".{lease.FILE}"):
            raise OSError("enough")
        unlink(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", fail)
        with pytest.raises(OSError, match="enough"):
            lease.Lease(tmp_path).take("x")
    assert not (tmp_path / lease.FILE).exists()


def test_the_checkpoint_of_another_job_stays(tmp_path: Path) -> None:
    for place in ("memory://sharded/two-jobs", tmp_path):
        save_to(place, 0)

        def another() -> None:
            if place is tmp_path:  # noqa: B023
                (tmp_path / lease.FILE).rename(tmp_path / "aside")
            save_to(place, 2)  # noqa: B023
            if place is tmp_path:  # noqa: B023
                (tmp_path / "aside").rename(tmp_path / lease.FILE)

        with pytest.raises(treepack.TreepackError, match="another job saved to"):
            during(place, another)
        assert value_in(place) == 2
        save_to(place, 3)
        assert value_in(place) == 3


RACES = """
import time
job, count = int(args[1]), int(args[2])
saved = lost = 0
print("ready", os.getpid(), flush=True)
other = sys.stdin.readline().strip()  # when both are
while saved < count:
    value = float(job * 1_000_000 + saved)
    tree = {"a": jnp.full(2000, value), "b": np.full(500, value)}
    try:
        treepack.save(args[0], tree, sharded=True, durable=False, metadata=value)
    except treepack.TreepackError as error:
        assert f"process {other} on" in str(error), error
        lost += 1
        continue
    saved += 1
    found = treepack.load(args[0], arrays="numpy")
    values = {*found["a"].tolist(), *found["b"].tolist()}
    assert len(values) == 1, values
    if values != {value}:
        assert job != values.pop() // 1_000_000
print("saved", saved, "lost", lost, flush=True)
sys.stdin.readline()  # so that the other one can tell who has the lease
"""


@pytest.mark.campaign
def test_two_jobs_that_race_for_a_directory(tmp_path: Path) -> None:
    """Set TREEPACK_RACES to let them save more often."""
    count = int(os.environ.get("TREEPACK_RACES", "20"))
    jobs = [
        processes.start(RACES, 1, tmp_path, job, count, stdin=subprocess.PIPE)[0] for job in (1, 2)
    ]
    try:
        lines = [job.stdout.readline().split() for job in jobs if job.stdout is not None]
        pids = [words[1] for words in lines if words[0] == "ready"]
        for job, pid in zip(jobs, reversed(pids), strict=True):
            assert job.stdin is not None
            job.stdin.write(f"{pid}\n")
            job.stdin.flush()
        for job in jobs:
            assert job.stdout is not None
            found = job.stdout.readline()
            if not found.startswith(f"saved {count} "):
                pytest.fail(found + job.stdout.read())
            print(found)
    finally:
        for job in jobs:
            job.communicate()
    assert len(list(tmp_path.iterdir())) == 2


def test_leaves_of_all_kinds_come_back_wherever_they_go(tmp_path: Path) -> None:
    leaves: list[Any] = [
        jnp.float32(3),
        jnp.zeros((0,)),
        jnp.zeros((0,)),
        jnp.zeros((4, 0)),
        jnp.ones((3, 5), jnp.int4),
        jnp.ones(7, jnp.float8_e4m3fn),
        jnp.ones(5, bool),
        jnp.ones(3, jnp.complex64),
        jax.random.key(3),
        jax.random.split(jax.random.key(3), 4),
        np.zeros((0, 3)),
        np.float64(2),
        np.array(5.0),
    ]
    tree = {"leaves": leaves, "again": leaves[0]}
    path = tmp_path / "checkpoint"
    treepack.save(path, tree, sharded=True)
    expected = treepack.dumps(tree)
    device = jax.devices()[0]
    assert treepack.dumps(treepack.load(path)) == expected
    for options in ({}, {"device": device}, {"copy": True}, {"verify": True}):
        assert treepack.dumps(treepack.load(path, tree, **options)) == expected
    assert treepack.load(path, arrays="numpy")["leaves"][0] == 3
    with treepack.open(path) as file:
        assert np.asarray(file["leaves/0"]).shape == ()
    assert treepack.verify(path).ok


@pytest.mark.parametrize("root", [np.arange(1000.0), jnp.arange(1000.0), 5, np.arange(3)])
def test_a_tree_that_is_a_leaf(tmp_path: Path, root: Any) -> None:
    treepack.save(tmp_path / "checkpoint", root, sharded=True)
    found = treepack.load(tmp_path / "checkpoint")
    assert type(found) is type(root)
    assert treepack.dumps(found) == treepack.dumps(root)
    assert treepack.verify(tmp_path / "checkpoint").ok


def test_arrays_of_numpy_are_as_those_of_a_file(saved: Path, tmp_path: Path) -> None:
    treepack.save(tmp_path / "one", {"w": jnp.asarray(W)}, sharded=True)
    target = {"w": np.zeros_like(W)}
    assert not treepack.load(tmp_path / "one", target)["w"].flags.writeable
    assert treepack.load(tmp_path / "one", target, copy=True)["w"].flags.writeable
    target = {"params": {"w": np.zeros_like(W)}}
    renamed = treepack.load(saved, {"v": np.zeros_like(W)}, mapping={"v": "params/w"}, copy=True)
    assert renamed["v"].flags.writeable
    for how in ({"arrays": "numpy"}, {"target": target}):
        with pytest.raises(ValueError, match="must be copied: it lies in several shards"):
            treepack.load(saved, copy=False, **how)
    loose = treepack.load(saved, {"params": {"w": 0, "t": None}}, strict=False)
    assert type(loose["params"]["w"]) is type(loose["params"]["t"]) is np.ndarray


def test_a_checkpoint_that_is_saved_again_while_it_is_read(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = treepack.open(checkpoint)
    treepack.save(checkpoint, {"w": jnp.ones(3)}, sharded=True)
    with pytest.raises(treepack.CorruptionError, match="replaced by another save: open it again"):
        np.asarray(file["params/w"])
    # Who loads begins again by himself.
    before = ShardedReader._checked
    again = iter(range(2, 32))

    def checked(self: Any, *args: Any) -> Any:
        value = next(again, None)
        if value is not None:
            treepack.save(checkpoint, {"w": jnp.full(3, value)}, sharded=True)
        return before(self, *args)

    monkeypatch.setattr(ShardedReader, "_checked", checked)
    assert treepack.load(checkpoint)["w"].tolist() == [31, 31, 31]
    for options in ({"verify": True}, {"on_corrupt": "skip"}):
        again = iter([4, 5])
        assert treepack.load(checkpoint, **options)["w"].tolist() == [5, 5, 5]
    again = iter([6, 7])
    assert treepack.verify(checkpoint).ok
    assert next(again, None) is None


def test_what_is_saved_again_elsewhere_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "memory://sharded/replaced"
    rows = NamedSharding(Mesh(jax.devices(), ("x",)), PartitionSpec("x"))
    size = 1 << 20  # more than is kept of a file
    target = {"w": jax.ShapeDtypeStruct((size,), np.float32, sharding=rows)}
    treepack.save(url, {"w": jnp.ones(size)}, sharded=True)
    array = treepack.open(url)["w"]
    treepack.save(url, {"w": jnp.full(size, 2.0)}, sharded=True)
    for read in (lambda: array[3], lambda: np.asarray(array)):
        with pytest.raises(treepack.CorruptionError, match="replaced"):
            read()
    expect, again = reading.expect, iter([3, 4])

    def expecting(boxes: Any) -> None:
        value = next(again, None)
        if value is not None:  # when all files have been opened
            boxes = [*boxes]
            treepack.save(url, {"w": jnp.full(size, float(value))}, sharded=True)
        expect(boxes)

    monkeypatch.setattr(_placement, "expect", expecting)
    assert set(treepack.load(url, target)["w"].tolist()) == {4}

    def save_again(*_: int) -> None:
        value = next(again, None)
        if value is not None:
            treepack.save(url, {"w": jnp.full(size, float(value))}, sharded=True)

    again = iter([5, 6])
    assert treepack.verify(url, progress=save_again).ok
    again = iter([7, 8])
    assert set(treepack.load(url, target, verify=True, progress=save_again)["w"].tolist()) == {8}


def test_files_that_are_cut_short_while_they_are_open(checkpoint: Path) -> None:
    with treepack.open(checkpoint) as file:
        array = file["params/w"]
        assert array[0, 0] == 0
        [shard] = checkpoint.glob("*-00000.treepack")
        os.truncate(shard, 100)
        with pytest.raises(
            treepack.CorruptionError, match=r"00000\.treepack.*overwritten in place"
        ):
            array[:, 5]
        with pytest.raises(
            treepack.CorruptionError, match=r"00000\.treepack.*overwritten in place"
        ):
            file.load({"params": {"w": W}})


def test_damaged_gzip_is_named(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    values = np.random.default_rng(0).standard_normal((300, 300))
    treepack.save(path, {"w": jnp.asarray(values, jnp.float32)}, sharded=True, compress=True)
    [file] = path.glob("*-00000.treepack")
    data = file.read_bytes()
    for start in (0, len(data) // 2):  # at its start is the header, and then what is not there
        file.write_bytes(data[:start] + bytes(1000) + data[start + 1000 :])
        with pytest.raises(treepack.CorruptionError, match=r"00000\.treepack.* is damaged"):
            treepack.load(path)


def test_arrays_of_a_closed_checkpoint(checkpoint: Path) -> None:
    with treepack.open(checkpoint) as file:
        array = file["params/w"]
    with pytest.raises(ValueError, match="closed"):
        np.asarray(array)


def test_an_array_that_lacks_shards_is_not_saved(tmp_path: Path) -> None:
    """As jax leaves one when it is interrupted while it looks for them."""
    path = tmp_path / "checkpoint"
    treepack.save(path, {"w": jnp.ones(8)}, sharded=True)
    rows = NamedSharding(Mesh(np.array(jax.devices()[:2]), ("x",)), PartitionSpec("x"))
    broken = jax.device_put(jnp.zeros(8), rows)
    broken.__dict__["addressable_shards"] = broken.addressable_shards[:1]
    with pytest.raises(
        treepack.TreepackError, match=r"at w: .* expected 2 shards in process 0, found 1"
    ):
        treepack.save(path, {"w": broken}, sharded=True)
    assert treepack.load(path)["w"].sum() == 8


def test_threads_are_as_many_as_can_be(saved: Path) -> None:
    for threads in (0, -5, 10**6):
        with pytest.raises(ValueError, match="threads"):
            treepack.load(saved, threads=threads)
    with pytest.raises(TypeError):
        treepack.load(saved, threads="x")  # type: ignore[call-overload]
    np.testing.assert_array_equal(treepack.load(saved, threads=1)["params"]["w"], W)


ONE_HAS_ALL = """
from jax.sharding import SingleDeviceSharding
mesh = Mesh(np.array(jax.devices()), ("x",))
value = np.arange(8.0, dtype=np.float32)
put = jax.make_array_from_callback((8,), NamedSharding(mesh, P("x")), lambda at: value[at])
treepack.save(args[0], {"w": put})
first = NamedSharding(Mesh(np.array(jax.devices()[:2]), ("x",)), P("x"))  # of process 0
found = treepack.load(args[0], {"w": jax.ShapeDtypeStruct((8,), np.float32, sharding=first)})["w"]
assert found.sharding == first and found.dtype == np.float32, found
assert len(found.addressable_shards) == 2 * (jax.process_index() == 0)
"""


@pytest.mark.campaign
def test_processes_that_get_nothing_of_an_array(tmp_path: Path) -> None:
    processes.run(ONE_HAS_ALL, 2, tmp_path / "checkpoint", devices=2)


KEYS = (
    TREE
    + """
sharding = NamedSharding(mesh(2, 2), P(("x", "y")))
keys = jax.jit(lambda: jax.random.split(jax.random.key(0), 8), out_shardings=sharding)()
tree = {"keys": keys, "one": jax.random.key(1), "w": put(W, NamedSharding(mesh(2, 2), P("x")))}
treepack.save(args[0], tree)
expected = np.asarray(jax.random.key_data(jax.random.split(jax.random.key(0), 8)))
for found in (treepack.load(args[0], tree)["keys"],
              treepack.load(args[0], {"keys": keys}, sharding=sharding)["keys"]):
    assert found.sharding == sharding, found.sharding
    for shard in found.addressable_shards:
        data = np.asarray(jax.random.key_data(shard.data))
        np.testing.assert_array_equal(data, expected[shard.index])
"""
)


@pytest.mark.campaign
def test_keys_of_several_processes(tmp_path: Path) -> None:
    processes.run(KEYS, 2, tmp_path / "checkpoint", devices=2)


class Called:
    """A container whose handlers tell what they were given."""

    def __init__(self, **parts: Any):
        self.parts = parts


def counted(name: str, tells: bool = True, register: Any = None) -> tuple[Any, list[Any]]:
    """Returns a kind of `Called` with handlers, and the states that these were given."""
    kind, given = type(name, (Called,), {}), []

    def to_state(it: Any) -> Any:
        if it.parts.get("is_template") and not tells:
            raise RuntimeError("a template has no state")
        return {key: it.parts[key] for key in ("w", "host", "items", "inner") if key in it.parts}

    def from_state(it: Any, state: Any) -> Any:
        given.append(state)
        return kind(**state)

    (register or treepack.serialization.register_serialization_state)(kind, to_state, from_state)
    return kind, given


SOURCES: dict[str, Any] = {
    "bytes": lambda path, tree, target, **how: treepack.loads(
        treepack.dumps(tree, static="skip"), target, **how
    ),
    "file": lambda path, tree, target, **how: (
        treepack.save(path, tree, static="skip"),
        treepack.load(path, target, **how),
    )[1],
    "gzip": lambda path, tree, target, **how: (
        treepack.save(path, tree, static="skip", compress=True),
        treepack.load(path, target, **how),
    )[1],
    "part": lambda path, tree, target, **how: (
        treepack.save(path, tree, static="skip"),
        treepack.load(path, target, select="**", **how),
    )[1],
    "directory": lambda path, tree, target, **how: (
        treepack.save(path, tree, static="skip", sharded=True),
        treepack.load(path, target, **how),
    )[1],
    "part of a directory": lambda path, tree, target, **how: (
        treepack.save(path, tree, static="skip", sharded=True),
        treepack.load(path, target, select="**", **how),
    )[1],
}


@pytest.mark.parametrize("source", SOURCES)
@tiers.parametrize("options", [{}, {"cast": True}, {"strict": False}, {"strict": "exact"}], quick=2)
@pytest.mark.parametrize("register", [None, flax.register_serialization_state])
def test_handlers_get_what_the_template_has_once(
    tmp_path: Path, source: str, options: Any, register: Any
) -> None:
    kind, given = counted("Counted", register=register)
    mesh = Mesh(np.array(jax.devices()), ("x",))
    split = NamedSharding(mesh, PartitionSpec("x"))
    w = jax.device_put(jnp.arange(8.0), split)

    def made(factor: int) -> Any:
        return {
            "a": kind(
                w=w * factor,
                host=np.arange(3.0) * factor,
                items=[jnp.arange(4.0) * factor, 1],
                inner={"w": w * factor, "b": (w * factor, np.ones(2))},
            )
        }

    found = SOURCES[source](tmp_path / "it", made(3), made(0), **options)["a"].parts
    assert len(given) == 1
    assert isinstance(found["w"], jax.Array)
    assert found["w"].sharding.is_equivalent_to(split, 1)
    assert type(found["host"]) is np.ndarray
    assert isinstance(found["items"][0], jax.Array)
    assert isinstance(found["inner"]["w"], jax.Array)
    np.testing.assert_array_equal(found["w"], np.arange(8.0) * 3)
    np.testing.assert_array_equal(found["host"], np.arange(3.0) * 3)
    np.testing.assert_array_equal(found["items"][0], np.arange(4.0) * 3)
    assert isinstance(found["inner"]["b"][0], jax.Array)
    assert type(found["inner"]["b"][1]) is np.ndarray
    # A list of another length is what the handler makes of it.
    target = made(0)
    target["a"].parts["items"] = [jnp.zeros(4)]
    found = SOURCES[source](tmp_path / "other", made(3), target, **options)["a"].parts
    assert type(found["items"][0]) is np.ndarray
    assert len(given) == 2


@pytest.mark.parametrize("source", SOURCES)
def test_a_handler_without_a_state_of_its_template_runs_once(tmp_path: Path, source: str) -> None:
    kind, given = counted("Untold", tells=False)
    mesh = Mesh(np.array(jax.devices()), ("x",))
    split = NamedSharding(mesh, PartitionSpec("x"))
    w = jax.device_put(jnp.arange(8.0), split)
    tree = {"a": kind(w=w, host=np.arange(3.0)), "b": w}
    target = {"a": kind(is_template=True), "b": jnp.zeros_like(w)}
    found = SOURCES[source](tmp_path / "it", tree, target)
    assert len(given) == 1
    for name in ("w", "host"):
        assert type(given[0][name]) is np.ndarray
        np.testing.assert_array_equal(given[0][name], tree["a"].parts[name])
    assert isinstance(found["b"], jax.Array)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("tells", [True, False])
def test_what_handlers_restore_by_themselves_is_converted(
    tmp_path: Path, source: str, tells: bool
) -> None:
    """Handlers that call `from_state_dict` on parts, which are dataclasses."""
    given = []

    class Outer:
        def __init__(self, inner: Any, tells: bool = True):
            self.inner, self.tells = inner, tells

    def to_state(it: Outer) -> Any:
        if not it.tells:
            raise RuntimeError("a template has no state")
        return {"inner": it.inner}

    def from_state(it: Outer, state: Any) -> Outer:
        given.append(state)
        return Outer(treepack.serialization.from_state_dict(it.inner, state["inner"], "inner"))

    treepack.serialization.register_serialization_state(Outer, to_state, from_state)
    tree = Outer(Inside(jnp.arange(8.0), np.arange(3.0)))
    target = Outer(Inside(jnp.zeros(8), np.zeros(3)), tells)
    found = SOURCES[source](tmp_path / "it", tree, target).inner
    assert len(given) == 1
    assert isinstance(found.w, jax.Array)
    assert type(found.host) is np.ndarray
    np.testing.assert_array_equal(found.w, np.arange(8.0))
    np.testing.assert_array_equal(found.host, np.arange(3.0))
    short = Outer(Inside(jnp.zeros(7), np.zeros(3)), tells)
    with pytest.raises(treepack.MismatchError, match=r"inner/w: expected float32\[7\]"):
        SOURCES[source](tmp_path / "other", tree, short)


@dataclasses.dataclass
class Inside:
    w: Any
    host: Any


def test_code_of_types_runs_once() -> None:
    calls = []

    @treepack.register_dataclass(serialized_name="tests.sharded.Checked")
    @dataclasses.dataclass
    class Checked:
        w: Any

        def __post_init__(self) -> None:
            calls.append(type(self.w))

    tree = {"a": Checked(jnp.arange(3.0)), "b": [Checked(np.arange(3))]}
    data = treepack.dumps(tree)
    calls.clear()
    found = treepack.loads(data, tree)
    assert calls == [type(found["a"].w), np.ndarray]


def test_a_long_key_above_many_arrays_takes_little_memory(tmp_path: Path) -> None:
    tree = {"k" * 30_000: {f"x{number}": jnp.ones(1) for number in range(500)}}
    tracemalloc.start()
    try:
        treepack.save(tmp_path, tree, sharded=True)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20, "the paths together have 15 MB"
    finally:
        tracemalloc.stop()
    assert treepack.verify(tmp_path).ok
