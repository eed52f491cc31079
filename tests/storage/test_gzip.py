"""Gzip: readable by others, equal for any number of threads, bounded, with progress, and sound."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deflate
import isal.igzip
import jax.numpy as jnp
import numpy as np
import pytest
import rapidgzip
from eformer.pytree import serialization as eformer
from hypothesis import given
from hypothesis import strategies as st

import tiers
import treepack
from trees import assert_same
from waiting import in_time

RNG = np.random.default_rng(0)
BLOCK = 256 << 10

CORPORA = {
    "empty": b"",
    "short": b"abc",
    "bfloat16": (RNG.standard_normal(1 << 20) * 0.02).astype(jnp.bfloat16).tobytes(),
    "float32": (RNG.standard_normal(1 << 19) * 0.02).astype(np.float32).tobytes(),
    "noise": RNG.bytes(3 * BLOCK + 1),
    "zeros": bytes(5 * BLOCK + 7),
    "small": (RNG.standard_normal(1 << 20) * 6).astype(np.int8).tobytes()
    + (RNG.random(1 << 20) < 0.05).tobytes(),
    "mixed": b"".join(
        [
            RNG.integers(-9, 9, 1 << 20).astype(np.int8).tobytes(),
            (RNG.random(1 << 20) < 0.1).tobytes(),
            np.arange(1 << 18, dtype=np.int32).tobytes(),
            bytes(1 << 20),
            RNG.standard_normal(1 << 18).tobytes(),
        ]
    ),
    "indices": np.cumsum(RNG.integers(0, 30, 1 << 18)).astype(np.int32).tobytes()
    + np.arange(1 << 17).tobytes(),
    "sparse": np.repeat(RNG.standard_normal(1 << 14) * (RNG.random(1 << 14) < 0.3), 8).tobytes(),
}

LEVELS = [None, 0, 1, 6, 9]


def _command(name: str) -> Callable[[bytes], bytes]:
    def read(stream: bytes) -> bytes:
        return subprocess.run(
            [name, "-dc"], input=stream, stdout=subprocess.PIPE, check=True
        ).stdout

    return read


def _rapidgzip(stream: bytes) -> bytes:
    with rapidgzip.open(io.BytesIO(stream), parallelization=2) as file:
        return file.read()


def _size(stream: bytes) -> int:
    """Returns the size that a stream of ours tells: in its last member, or at its end."""
    tail = stream[-66:]  # as it is described in src/codec/gzip/index.rs
    if tail[12:14] == b"TE":
        return int(struct.unpack("<Q", tail[24:32])[0])
    return int(struct.unpack("<I", stream[-4:])[0])


def _libdeflate(stream: bytes) -> bytes:
    """Reads the data alone, since this binding stops after the first member."""
    return bytes(deflate.gzip_decompress(stream, originalsize=_size(stream) or 1))


READERS: dict[str, Callable[[bytes], bytes]] = {
    "python": gzip.decompress,
    "isal": isal.igzip.decompress,
    "libdeflate": _libdeflate,
    "rapidgzip": _rapidgzip,
    "eformer": eformer.decompress_bytes,
    "treepack": treepack.serialization.decompress_bytes,
    **{name: _command(name) for name in ("gunzip", "pigz") if shutil.which(name)},
}


@tiers.parametrize("level", LEVELS, quick=2)
@pytest.mark.parametrize("name", CORPORA)
def test_everybody_reads_it(name: str, level: int | None):
    data = CORPORA[name]
    stream = treepack.serialization.compress_bytes(data, level=level)
    for reader, read in READERS.items():
        assert read(stream) == data, reader


@pytest.mark.parametrize("name", CORPORA)
def test_the_data_are_one_member_with_no_time(name: str):
    data = CORPORA[name]
    stream = treepack.serialization.compress_bytes(data)
    assert stream[4:8] == bytes(4)
    member = zlib.decompressobj(wbits=31)
    assert member.decompress(stream) == data
    assert member.eof
    # The index, in members that are empty.
    assert (member.unused_data == b"") == (len(data) <= 256 << 10)
    assert gzip.decompress(member.unused_data) == b""


@pytest.mark.campaign
def test_the_index_of_any_length_is_read():
    """One of two members, which is more than 65,536 bytes."""
    data = bytes(9000 * (256 << 10))
    stream = treepack.serialization.compress_bytes(data)
    assert len(stream) > 9000 * 8
    assert treepack.serialization.decompress_bytes(stream) == data
    member = zlib.decompressobj(wbits=31)
    found = sum(len(member.decompress(stream[i : i + 4096])) for i in range(0, len(stream), 4096))
    assert found == len(data)


@tiers.parametrize("level", [None, 1, 6])
def test_the_bytes_do_not_depend_on_threads(level: int | None, monkeypatch: pytest.MonkeyPatch):
    data = CORPORA["mixed"]
    expected = treepack.serialization.compress_bytes(data, level=level, threads=1)
    for threads in (2, 3, 8, None):
        assert treepack.serialization.compress_bytes(data, level=level, threads=threads) == expected
        assert treepack.serialization.decompress_bytes(expected, threads=threads) == data
    monkeypatch.setenv("TREEPACK_NUM_THREADS", "5")
    assert treepack.serialization.compress_bytes(data, level=level) == expected


SHRUNK = """
import gc, hashlib, pickle, sys
import numpy as np, treepack

for scale in (1, 20, 60, 255):  # from a copy of what is left to hardly any room that is left
    data = np.random.default_rng(0).integers(0, scale, 3 << 20, dtype=np.uint8).tobytes()
    for size in (len(data), 2 << 20, 100_000, 0):
        data = data[:size]
        stream = treepack.serialization.compress_bytes(data)
        copy = bytes(memoryview(stream))
        assert type(stream) is bytes and len(stream) == len(copy) == memoryview(stream).nbytes
        assert stream == copy and hash(stream) == hash(copy) and {stream: 1}[copy] == 1
        assert stream + b"x" == copy + b"x" and stream[-5:] == copy[-5:] and 2 * stream == 2 * copy
        assert pickle.loads(pickle.dumps(stream)) == copy
        assert hashlib.sha256(stream).digest() == hashlib.sha256(copy).digest()
        assert stream.find(b"not there, certainly") == -1 and int(b"%d" % len(stream)) == len(copy)
        assert sys.getrefcount(stream) == 2 and gc.collect() >= 0
        assert treepack.serialization.decompress_bytes(stream) == data
        del stream, copy
"""


@tiers.parametrize("allocator", ["default", "debug", "malloc_debug"])
def test_a_stream_is_like_any_bytes(allocator: str):
    environment = {**os.environ, "PYTHONMALLOC": allocator}
    subprocess.run([sys.executable, "-X", "dev", "-c", SHRUNK], env=environment, check=True)


@pytest.mark.campaign
def test_the_ratio_is_that_of_the_content():
    def ratio(name: str) -> float:
        return len(CORPORA[name]) / len(treepack.serialization.compress_bytes(CORPORA[name]))

    def ratio_of_zlib(name: str) -> float:
        return len(CORPORA[name]) / len(gzip.compress(CORPORA[name], 6))

    for name in ("bfloat16", "float32", "small", "mixed"):
        assert ratio(name) > 0.99 * ratio_of_zlib(name), name
    assert ratio("indices") > 0.95 * ratio_of_zlib("indices")
    for name, data in CORPORA.items():  # samples decide, so a few percent can be missed
        matched = len(treepack.serialization.compress_bytes(data, level=2))
        assert len(treepack.serialization.compress_bytes(data)) <= matched + matched / 16 + 100, (
            name
        )
    assert ratio("noise") > 0.999
    assert ratio("zeros") > 100


@tiers.parametrize("level", range(1, 10), quick=2)
def test_no_level_is_worse_than_literals(level: int):
    for name in ("bfloat16", "float32", "noise"):
        data = CORPORA[name]
        stream = treepack.serialization.compress_bytes(data, level=level)
        assert len(stream) <= len(treepack.serialization.compress_bytes(data)) * 1.0001, name


def test_trees_go_straight_to_gzip_and_back(tmp_path: Path):
    tree = {
        "w": RNG.standard_normal((1000, 1000)).astype(np.float32),
        "layers": [{"mask": RNG.random(10**6) < 0.5, "step": 3} for _ in range(3)],
    }
    encoded = treepack.serialization.to_bytes(tree)
    stream = treepack.serialization.to_compressed_bytes(tree)
    assert stream == treepack.serialization.compress_bytes(encoded)
    assert_same(treepack.serialization.from_compressed_bytes(tree, stream), tree)
    assert_same(treepack.serialization.from_compressed_bytes(tree, gzip.compress(encoded, 1)), tree)
    path = tmp_path / "tree"
    treepack.serialization.save_to_file(tree, path, compress=True)
    assert gzip.decompress(path.read_bytes()) == treepack.serialization.to_bytes(tree, align=64)
    for mmap in (True, False):
        assert_same(treepack.serialization.load_from_file(tree, path, mmap=mmap), tree)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes with names")
def test_compressing_into_a_pipe(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    tree = {"w": RNG.standard_normal(BLOCK)}
    copy = tmp_path / "copy"
    with copy.open("wb") as file, subprocess.Popen(["cat", str(pipe)], stdout=file) as reader:
        treepack.serialization.save_to_file(tree, pipe, compress=True)
        assert reader.wait(timeout=600) == 0
    assert gzip.decompress(copy.read_bytes()) == treepack.serialization.to_bytes(tree, align=64)


@pytest.mark.campaign
@pytest.mark.parametrize("name", ["mixed", "short"])
def test_every_damage_is_an_error(name: str):
    check_damages(treepack.serialization.compress_bytes(CORPORA[name]))
    check_damages(gzip.compress(CORPORA[name]))


def check_damages(stream: bytes) -> None:
    for end in sorted({*range(0, len(stream), len(stream) // 50 + 1)} - {0}):
        with pytest.raises(EOFError):
            treepack.serialization.decompress_bytes(stream[:end])
    for at in range(0, len(stream), len(stream) // 50 + 1):
        if 4 <= at < 10:
            continue  # time stamp and system, which mean nothing
        damaged = bytearray(stream)
        damaged[at] ^= 0x55
        with pytest.raises(treepack.CorruptionError):
            treepack.serialization.decompress_bytes(damaged)


@given(st.binary(max_size=3000), st.sampled_from(LEVELS))
def test_any_bytes_come_back(data: bytes, level: int | None):
    stream = treepack.serialization.compress_bytes(data, level=level)
    assert gzip.decompress(stream) == data
    assert treepack.serialization.decompress_bytes(stream) == data


def test_output_is_bounded():
    data = CORPORA["zeros"]
    for stream in (treepack.serialization.compress_bytes(data), gzip.compress(data)):
        assert treepack.serialization.decompress_bytes(stream, max_size=len(data)) == data
        with pytest.raises(ValueError, match=f"max_size={len(data) - 1}"):
            treepack.serialization.decompress_bytes(stream, max_size=len(data) - 1)


def test_claims_are_not_believed():
    """An index that promises a terabyte of a few bytes."""
    stream = bytearray(treepack.serialization.compress_bytes(CORPORA["zeros"]))
    size = len(CORPORA["zeros"]).to_bytes(8, "little")
    at = stream.rindex(size)  # in the record of the index
    stream[at + 5] = 0x7F
    assert (
        treepack.serialization.decompress_bytes(stream) == CORPORA["zeros"]
    )  # the index is ignored
    stream[-1] = 0x7F  # the size in the trailer
    with pytest.raises(treepack.CorruptionError):
        treepack.serialization.decompress_bytes(stream)


MEMORY = """
import sys
import numpy as np, treepack
from pathlib import Path
path = Path(sys.argv[1])
data = np.random.default_rng(0).integers(0, 100, 128 << 20, dtype=np.uint8)
treepack.serialization.save_to_file({"w": data[:4 << 20]}, path, compress=True)
treepack.serialization.load_from_file(None, path)

def peak(work):
    Path("/proc/self/clear_refs").write_text("5")
    status = lambda field: int(Path("/proc/self/status").read_text().split(field)[1].split()[1])
    before = status("VmRSS")
    result = work()
    return (status("VmHWM") - before) // 1024

print(peak(lambda: treepack.serialization.save_to_file({"w": data}, path, compress=True)))
print(peak(lambda: treepack.serialization.load_from_file(None, path)))
stream = path.read_bytes()
print(peak(lambda: treepack.serialization.decompress_bytes(stream)))
# With several threads, blocks may wait for the one that takes them.
for threads in (1, 2):
    more = peak(lambda: treepack.serialization.compress_bytes(data, threads=threads))
    print(more - len(stream) // 2**20)

def refuse(stream):
    try:
        treepack.serialization.decompress_bytes(stream)
    except EOFError:
        return None
    raise AssertionError("a stream without its end was taken")

import gzip
claim = (1 << 30).to_bytes(4, "little")  # of a stream that ends too early, 1 GiB is claimed
foreign = gzip.compress(data[:16 << 20].tobytes(), 1)
print(peak(lambda: refuse(foreign[:-999] + claim)))
print(peak(lambda: refuse(stream[:16 << 20] + claim)))
"""


@pytest.mark.campaign
@pytest.mark.skipif(sys.platform != "linux", reason="measures memory by /proc")
def test_memory_is_that_of_the_output(tmp_path: Path):
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "tree")]
    # What each thread has does not depend on how many cores there are.
    environment = {**os.environ, "TREEPACK_NUM_THREADS": "2"}
    found = map(int, subprocess.check_output(command, env=environment).split())
    save, load, decompress, compress, compress_ahead, *refused = found
    assert save <= 64
    assert load <= 128 + 64
    assert decompress <= 128 + 64
    assert compress <= 16  # more than the output
    assert compress_ahead <= 16 + 32  # which may wait
    assert max(refused) <= 64  # what came out, and no more


def test_the_largest_bound() -> None:
    for bound in (2**64 - 1, 2**63):
        assert (
            treepack.serialization.decompress_bytes(2 * gzip.compress(b"abc"), max_size=bound)
            == b"abcabc"
        )


def reported(work: Callable[..., Any]) -> list[tuple[int, int]]:
    calls: list[tuple[int, int]] = []
    work(progress=lambda done, total: calls.append((done, total)))
    return calls


def test_progress_is_reported(tmp_path: Path):
    data = bytes(40 << 20)
    tree = {"w": np.zeros(40 << 20, np.uint8)}
    stream, path, plain = (
        treepack.serialization.compress_bytes(data),
        tmp_path / "gz",
        tmp_path / "plain",
    )
    theirs = gzip.compress(RNG.bytes(20 << 20), 1)
    encoded = treepack.serialization.to_bytes(tree, align=64)
    treepack.serialization.save_to_file(tree, plain)
    treepack.serialization.save_to_file(tree, path, compress=True)
    works = {
        "compress_bytes": (
            lambda **kw: treepack.serialization.compress_bytes(data, **kw),
            len(data),
        ),
        "decompress_bytes": (
            lambda **kw: treepack.serialization.decompress_bytes(stream, **kw),
            len(data),
        ),
        # How much comes out of streams of others is not known, but how long they are.
        "gzip": (lambda **kw: treepack.serialization.decompress_bytes(theirs, **kw), len(theirs)),
        "members": (
            lambda **kw: treepack.serialization.decompress_bytes(2 * theirs, **kw),
            2 * len(theirs),
        ),
        "to_compressed": (
            lambda **kw: treepack.serialization.to_compressed_bytes(tree, align=64, **kw),
            len(encoded),
        ),
        "save": (lambda **kw: treepack.serialization.save_to_file(tree, plain, **kw), len(encoded)),
        "save gzip": (
            lambda **kw: treepack.serialization.save_to_file(tree, path, compress=True, **kw),
            len(encoded),
        ),
        "read": (
            lambda **kw: treepack.serialization.load_from_file(None, plain, mmap=False, **kw),
            len(encoded),
        ),
        "load gzip": (
            lambda **kw: treepack.serialization.load_from_file(None, path, **kw),
            len(encoded),
        ),
    }
    for name, (work, total) in works.items():
        calls = reported(work)
        assert calls[-1] == (total, total), name
        assert [done for done, _ in calls] == sorted({done for done, _ in calls}), name
        few = name in ("save", "read")  # which take large steps
        assert (1 if few else 4) <= len(calls) <= 101, name


def test_an_exception_in_progress_ends_the_work(tmp_path: Path):
    class StopError(Exception):
        pass

    def stop(done: int, total: int) -> None:
        raise StopError

    tree = {"w": RNG.bytes(40 << 20)}
    path = tmp_path / "tree"
    treepack.serialization.save_to_file({"old": 1}, path)
    for compress in (False, True):
        with pytest.raises(StopError):
            treepack.serialization.save_to_file(tree, path, compress=compress, progress=stop)
        assert list(tmp_path.iterdir()) == [path]
        assert treepack.serialization.load_from_file(None, path) == {"old": 1}
    theirs = gzip.compress(tree["w"][: 10 << 20], 0)
    for stream in (treepack.serialization.compress_bytes(tree["w"]), theirs, 2 * theirs):
        with pytest.raises(StopError):
            treepack.serialization.decompress_bytes(stream, progress=stop)
    with pytest.raises(StopError):
        treepack.serialization.compress_bytes(tree["w"], progress=stop)


def test_a_bar_is_shown_if_tqdm_is_there(capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("tqdm")
    treepack.serialization.compress_bytes(bytes(10 << 20), progress=True)
    assert "compress: 100%" in capsys.readouterr().err
    with pytest.raises(TypeError, match="progress"):
        treepack.serialization.compress_bytes(b"", progress=3)  # type: ignore[arg-type]


@pytest.mark.campaign
def test_data_that_change_during_compression_give_a_valid_stream():
    """What is compressed is a mix of old and new, but the checksum is that of the mix."""
    data = RNG.integers(0, 255, 32 << 20, dtype=np.uint8)
    done = threading.Event()
    changes = 0

    def change() -> None:
        nonlocal changes
        while not done.is_set():
            changes += 1
            data[::4096] = changes % 256
            data[: 1 << 20] = changes % 256

    def is_changed_meanwhile(level: int | None) -> bool:
        before = changes
        stream = treepack.serialization.compress_bytes(data, level=level)
        after = changes
        assert len(gzip.decompress(stream)) == data.size
        return after > before + 1

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for level in (None, 1):
            assert in_time(lambda level=level: is_changed_meanwhile(level))
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("compress", [None, True, False])
@pytest.mark.parametrize("name", ["x.treepack.gz", "x.treepack", "x.gz.bak"])
def test_the_suffix_tells_whether_to_compress(
    tmp_path: Path, name: str, compress: bool | None
) -> None:
    path = tmp_path / name
    treepack.save(path, {"a": np.zeros(3)}, compress=compress)
    is_gzip = path.read_bytes()[:2] == b"\x1f\x8b"
    assert is_gzip == (name.endswith(".gz") if compress is None else compress)
    np.testing.assert_array_equal(treepack.load(path)["a"], np.zeros(3))


def test_the_suffix_allows_a_level_and_counts_in_the_background_and_for_iterators(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.gz"
    treepack.save(path, {"a": 1}, level=9, background=True).result()
    assert path.read_bytes()[:2] == b"\x1f\x8b"
    treepack.save(path, iter([("a", 1)]))
    assert path.read_bytes()[:2] == b"\x1f\x8b"
    assert treepack.load(path) == {"a": 1}


def test_a_sharded_save_ignores_the_suffix(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    treepack.save(path, {"a": np.zeros(3)}, sharded=True)
    assert path.is_dir()
    assert all(file.read_bytes()[:2] != b"\x1f\x8b" for file in path.iterdir())


def test_no_bar_is_shown_without_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tqdm")
    path = tmp_path / "mapped"
    treepack.save(path, {"w": np.ones(1000)}, progress=True)
    assert "save: 100%" in capsys.readouterr().err
    treepack.load(path, progress=True)
    assert capsys.readouterr().err == ""
