"""Files: what is saved is loaded, by flax as well, and nothing is lost on the way."""

from __future__ import annotations

import errno
import functools
import gzip
import os
import pickle
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from eformer.pytree import serialization as eformer
from flax import serialization as flax

import tiers
import treepack
from treepack._src.storage import disk
from treepack._src.storage.address import Address
from trees import assert_same
from waiting import in_time

TREE = {
    "large": np.arange(100_000, dtype=np.float32).reshape(100, 1000),
    "small": [np.arange(5), 3, "text"],
    "jax": jnp.arange(3000, dtype=jnp.bfloat16),
}
EXPECTED = {**TREE, "jax": np.asarray(TREE["jax"])}


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("copy", [None, True])
@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("durable", [False, True])
def test_round_trip(tmp_path: Path, mmap: bool, copy: bool | None, compress: bool, durable: bool):
    path = tmp_path / "new" / "directory" / "model.msgpack"
    treepack.serialization.save_to_file(TREE, str(path), compress=compress, durable=durable)
    assert os.listdir(path.parent) == ["model.msgpack"]  # noqa: PTH208
    content = gzip.decompress(path.read_bytes()) if compress else path.read_bytes()
    assert content == treepack.serialization.to_bytes(TREE, align=64)
    found = treepack.serialization.load_from_file(TREE, path, mmap=mmap, copy=copy)
    assert_same(found, EXPECTED)
    assert found["large"].flags.writeable is (copy is True)


def test_files_of_others(tmp_path: Path):
    path = tmp_path / "model"
    eformer.save_to_file(TREE, str(path))
    assert_same(treepack.serialization.load_from_file(TREE, path), EXPECTED)
    treepack.serialization.save_to_file(TREE, path)
    assert_same(eformer.load_from_file(TREE, str(path)), EXPECTED)
    assert_same(flax.from_bytes(TREE, path.read_bytes()), EXPECTED)
    path.write_bytes(eformer.to_compressed_bytes(TREE))
    assert_same(treepack.serialization.load_from_file(TREE, path), EXPECTED)
    assert_same(treepack.serialization.from_compressed_bytes(TREE, path.read_bytes()), EXPECTED)
    assert_same(
        eformer.from_compressed_bytes(TREE, treepack.serialization.to_compressed_bytes(TREE)),
        EXPECTED,
    )


def test_large_arrays_of_a_mapped_file_are_aligned_and_aliased_by_jax(tmp_path: Path):
    path = tmp_path / "model"
    tree = {f"{'k' * i}{i}": np.arange(1000.0 + i) for i in range(70)}
    treepack.serialization.save_to_file(tree, path)
    for array in treepack.serialization.load_from_file(None, path, copy=False).values():
        assert array.ctypes.data % 64 == 0
        on_device = jax.device_put(array)
        if array.dtype == on_device.dtype:
            assert on_device.unsafe_buffer_pointer() == array.ctypes.data


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc/self/maps")
def test_files_are_mapped_privately(tmp_path: Path):
    """FUSE with direct I/O maps no other way."""
    path = tmp_path / "model"
    treepack.save(path, TREE)
    found = treepack.load(path)
    maps = Path("/proc/self/maps").read_text().splitlines()
    assert [line.split()[1] for line in maps if line.endswith(str(path))] == ["r--p"]
    assert found["large"][99, 999] == 99_999


LIMITED = """
import resource, sys
import numpy as np, treepack
path = sys.argv[1]
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (96 << 20), -1))
assert treepack.open(path)["w"][3].tolist() == [0] * 1024
assert treepack.load(path, select="b") == {"b": 3}
assert treepack.verify(path).ok
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc/self/statm")
@tiers.parametrize("sharded", [False, True])
def test_parts_of_files_are_read_below_a_limit_of_addresses(tmp_path: Path, sharded: bool):
    path = tmp_path / "model"
    tree = {"w": np.zeros((1 << 17, 1024), np.uint8), "b": 3}
    treepack.save(path, tree, sharded=sharded, durable=False)
    subprocess.run([sys.executable, "-c", LIMITED, path], check=True, timeout=600)


def test_a_loaded_tree_survives_the_replacement_of_its_file(tmp_path: Path):
    path = tmp_path / "model"
    treepack.serialization.save_to_file(TREE, path)
    found = treepack.serialization.load_from_file(TREE, path)
    treepack.serialization.save_to_file({"large": np.zeros((100, 1000))}, path)
    assert_same(found, EXPECTED)
    path.unlink()
    assert_same(found, EXPECTED)


def test_a_file_can_be_loaded_changed_and_saved_in_place(tmp_path: Path):
    path = tmp_path / "model"
    treepack.serialization.save_to_file({"a": np.arange(10_000), "b": 1}, path)
    tree = treepack.serialization.load_from_file(None, path)
    tree["b"] = 2
    treepack.serialization.save_to_file(tree, path)
    assert_same(treepack.serialization.load_from_file(None, path), {"a": np.arange(10_000), "b": 2})


@tiers.parametrize("compress", [False, True])
def test_a_failure_leaves_the_old_file_and_no_litter(tmp_path: Path, compress: bool):
    path = tmp_path / "model"
    treepack.serialization.save_to_file({"a": 1}, path)
    with pytest.raises(TypeError):
        treepack.serialization.save_to_file({"a": object()}, path, compress=compress)
    limited = (
        "import os, resource, signal, sys, numpy, treepack\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "noise = numpy.random.default_rng(0).bytes(300_000)\n"
        "try:\n"
        "    save = treepack.serialization.save_to_file\n"
        f"    save({{'a': noise}}, sys.argv[1], compress={compress})\n"
        "except OSError as error:\n"
        "    assert error.filename == sys.argv[1], error.filename\n"
        "    assert 'large' in str(error), error\n"
        "    # The file is closed by now, so that its room on the disk is free.\n"
        "    files = [f'/proc/self/fd/{it}' for it in os.listdir('/proc/self/fd')]\n"
        "    links = [os.readlink(it) for it in files if os.path.lexists(it)]\n"
        "    assert not any(it.startswith(os.path.dirname(sys.argv[1])) for it in links), links\n"
        "else:\n"
        "    raise AssertionError('no error')\n"
    )
    subprocess.run([sys.executable, "-c", limited, str(path)], check=True)
    assert treepack.serialization.load_from_file(None, path) == {"a": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


def test_a_process_that_is_killed_while_it_saves_leaves_the_old_file(tmp_path: Path):
    path = tmp_path / "model"
    treepack.serialization.save_to_file({"a": np.zeros(10)}, path)
    code = (
        "import signal, sys, numpy, treepack\n"
        "left = int(sys.argv[2])\n"
        "def report(done, total):\n"
        "    global left\n"
        "    left -= 1\n"
        "    if left == 0:\n"
        "        print('saving', flush=True)\n"
        "        signal.pause()\n"
        "tree = {'a': numpy.ones(4_000_000)}\n"
        "treepack.serialization.save_to_file(tree, sys.argv[1], progress=report)\n"
    )
    for times in (1, 2, 4):  # reports of progress before the kill
        with subprocess.Popen(
            [sys.executable, "-c", code, str(path), str(times)], stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"saving\n"
            process.kill()
        found = treepack.serialization.load_from_file(None, path)["a"]
        assert (found.size, found.sum()) == (10, 0)


def test_modes(tmp_path: Path):
    path = tmp_path / "model"
    old = os.umask(0o027)
    try:
        treepack.serialization.save_to_file({}, path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    path.chmod(0o604)
    treepack.serialization.save_to_file({"a": 1}, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o604


def test_links_and_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    treepack.serialization.save_to_file({"a": 1}, "model")
    Path("link").symlink_to("model")
    treepack.serialization.save_to_file({"a": 2}, "link")
    assert Path("link").is_symlink()
    assert treepack.serialization.load_from_file(None, "model") == {"a": 2}
    assert treepack.serialization.load_from_file({"a": 0}, Path("link")) == {"a": 2}


def test_errors_of_the_system(tmp_path: Path):
    with pytest.raises(FileNotFoundError) as caught:
        treepack.serialization.load_from_file(None, tmp_path / "none")
    assert caught.value.filename == str(tmp_path / "none")
    for mmap in (True, False):
        with pytest.raises(IsADirectoryError):
            treepack.serialization.load_from_file(None, tmp_path, mmap=mmap)
    with pytest.raises(IsADirectoryError):
        treepack.serialization.save_to_file({}, tmp_path)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="file"):
        treepack.serialization.save_to_file({}, tmp_path / "file" / "model")


FORKED = """
import os, sys
from pathlib import Path
import numpy as np, treepack

def names(folder):
    found = set()
    def look(done, total):
        found.update(path.name for path in folder.iterdir())
    treepack.save(folder / "model", np.zeros(1 << 20), durable=False, progress=look)
    return found - {"model"}

before = names(Path(sys.argv[1]))  # now the state of what is random is there
for folder in map(Path, sys.argv[2:]):
    child = os.fork()
    if child == 0:
        (folder / "names").write_text("\\n".join(names(folder) - {"names"}))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    new = set((folder / "names").read_text().split("\\n"))
    assert len(new) == 1 and not new & before, (new, before)
    before |= new
"""


@pytest.mark.campaign
def test_forked_processes_draw_other_temporary_names(tmp_path: Path):
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    subprocess.run([sys.executable, "-c", FORKED, *map(str, folders)], check=True)


def test_errors_of_the_temporary_file(tmp_path: Path):
    with pytest.raises(FileNotFoundError) as caught:
        treepack.serialization.save_to_file({}, "/proc/none")
    assert caught.value.filename == "/proc/none"
    (tmp_path / "link").symlink_to("none/model")
    with pytest.raises(FileNotFoundError):
        treepack.serialization.save_to_file({}, tmp_path / "link")


def test_long_names(tmp_path: Path):
    path = tmp_path / ("x" * 255)
    treepack.serialization.save_to_file({"a": 1}, path)
    assert treepack.serialization.load_from_file(None, path) == {"a": 1}


def test_files_of_the_system():
    with pytest.raises(treepack.DecodeError):
        treepack.serialization.load_from_file(None, "/proc/version")


def test_pipes_and_devices(tmp_path: Path):
    treepack.serialization.save_to_file(TREE, "/dev/null")
    with pytest.raises(OSError, match="space"):
        treepack.serialization.save_to_file(TREE, "/dev/full", compress=True)
    reader, writing = os.pipe()
    treepack.serialization.save_to_file({"a": 1}, f"/dev/fd/{writing}")
    assert treepack.serialization.from_bytes(None, os.read(reader, 100)) == {"a": 1}
    os.close(reader)
    os.close(writing)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=treepack.serialization.save_to_file, args=(TREE, pipe))
    writer.start()
    assert_same(treepack.serialization.load_from_file(TREE, pipe), EXPECTED)
    writer.join()


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/random", "/dev/null"])
def test_devices_are_not_read(device: str):
    """They may have no end."""
    reads = (
        treepack.load,
        treepack.open,
        treepack.abstract,
        treepack.read_metadata,
        treepack.load_exported,
        functools.partial(treepack.open, salvage=True),
        functools.partial(treepack.load, mmap=False),
        functools.partial(treepack.serialization.load_from_file, TREE),
        lambda path: list(treepack.read_stream(path)),
        lambda path: treepack.diff(path, TREE),
    )
    for read in reads:
        with pytest.raises(treepack.DecodeError, match=f"{device}': it is a device"):
            read(device)
    assert treepack.verify(device).damage == "it is a device, not a file: write its bytes to a file"
    assert not treepack.is_checkpoint(device)


def test_gzip_functions():
    data = np.random.default_rng(0).integers(0, 9, 100_000, np.uint8).tobytes()
    for level in (None, 0, 1, 6, 9):
        compressed = treepack.serialization.compress_bytes(data, level=level)
        assert gzip.decompress(compressed) == data
        assert treepack.serialization.decompress_bytes(compressed) == data
        assert compressed == treepack.serialization.compress_bytes(bytearray(data), level=level)
    for level in (10, -1):
        with pytest.raises(ValueError, match=f"level .*9, got {level}"):
            treepack.serialization.compress_bytes(data, level=level)
    theirs = gzip.compress(data)
    many = theirs + bytes(7) + gzip.compress(b"more") + b"\0"
    for stream in (b"", theirs, many, memoryview(many)):
        assert treepack.serialization.decompress_bytes(stream) == gzip.decompress(stream)
    for end in range(2, len(theirs), 97):
        with pytest.raises(EOFError):
            gzip.decompress(theirs[:end])
        with pytest.raises(EOFError):
            treepack.serialization.decompress_bytes(theirs[:end])
    for stream in (b"hello", theirs + b"junk"):
        with pytest.raises(OSError, match="gzip"):
            treepack.serialization.decompress_bytes(stream)
    damaged = bytearray(theirs)
    damaged[-5] ^= 1
    with pytest.raises(treepack.CorruptionError):
        treepack.serialization.decompress_bytes(damaged)
    for max_size in (len(data), 2**63, 2**64 - 1):
        assert treepack.serialization.decompress_bytes(theirs, max_size=max_size) == data
    with pytest.raises(treepack.TreepackError, match="max_size"):
        treepack.serialization.decompress_bytes(theirs, max_size=len(data) - 1)


@pytest.mark.campaign
def test_other_threads_run_during_long_work(tmp_path: Path):
    """A thread counts; while everything else is detached it gets on."""
    tree = {"a": np.ones(2**26, np.float32), "b": np.ones(2**22, np.float16)}
    encoded = treepack.serialization.to_bytes(tree, align=1)
    path = tmp_path / "model"
    sys_interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # so that only what is detached lets others run
    try:
        for work in (
            lambda: treepack.serialization.to_bytes(tree),
            lambda: treepack.serialization.msgpack_restore(encoded, copy=True),
            lambda: treepack.serialization.save_to_file(tree, path, durable=False),
            lambda: treepack.serialization.compress_bytes(tree["b"], level=1),
        ):
            # The system may not let the thread run before the work is over.
            assert in_time(lambda work=work: _progress_during(work) > 0)
    finally:
        sys.setswitchinterval(sys_interval)


def _progress_during(work: Any) -> int:
    """Returns how far a counting thread got from the start of some work to its end."""
    counted, stop = [0], threading.Event()

    def count() -> None:
        while not stop.is_set():
            counted[0] += 1
            stop.wait(0.0001)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        before = counted[0]
        work()
        return counted[0] - before
    finally:
        stop.set()
        thread.join()


def test_a_pickled_file_is_found_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    treepack.save("model", {"w": np.arange(3)})
    treepack.save("sharded", {"w": np.arange(3000)}, sharded=True)
    treepack.save(tmp_path / "elsewhere" / "model", {"w": np.zeros(3)})
    treepack.save("memory://pickled/model", {"w": np.arange(3)})
    names = ["model", "sharded", Path("model"), "memory://pickled/model"]
    files = [treepack.open(name) for name in [*names, (tmp_path / "model").as_uri()]]
    monkeypatch.chdir(tmp_path / "elsewhere")
    for file in files:
        assert np.asarray(file["w"])[2] == 2
        for again in (pickle.loads(pickle.dumps(file)), pickle.loads(pickle.dumps(file["w"]))):
            assert np.asarray(again["w"] if isinstance(again, treepack.File) else again)[2] == 2
        assert repr(pickle.loads(pickle.dumps(file))) == repr(file)
    assert "treepack.File 'model'" in repr(files[0])


@pytest.mark.parametrize(
    "name", ["m.safetensors.gz", "m.NPZ", "m.pt.gz", "m.h5", "m.json", "m.zst"]
)
def test_suffixes_of_other_formats_are_refused(tmp_path: Path, name: str) -> None:
    suffix = Path(name.removesuffix(".gz").lower()).suffix
    for options in ({}, {"sharded": True}, {"background": True}):
        with pytest.raises(ValueError, match=f"{suffix} file, .*: choose .treepack"):
            treepack.save(tmp_path / name, {"a": 1}, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"choose .treepack or .msgpack"):
        treepack.save(f"memory://{name}", iter([("a", 1)]))
    with pytest.raises(ValueError, match=f"{suffix} file, .*: choose .treepack"):
        treepack.write_stream(tmp_path / name, [("a", 1)])
    assert list(tmp_path.iterdir()) == []


def test_others_may_change_a_directory_that_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As threads do that remove it as well, or claim it."""
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    for name in ("a", "b", "inner/c"):
        (folder / name).touch()

    def before(call: str, change: Callable[[], object]) -> None:
        original, changes = getattr(os, call), [change]

        def wrapped(*args: Any, **options: Any) -> Any:
            if changes:
                changes.pop()()
            return original(*args, **options)

        monkeypatch.setattr(os, call, wrapped)

    before("unlink", lambda: [it.unlink() for it in folder.rglob("*") if it.is_file()])
    before("rmdir", (folder / "inner" / "lease.treepack").touch)
    disk.Disk().remove(str(folder))
    assert not folder.exists()


def test_out_of_memory_names_the_file_and_its_size(tmp_path: Path) -> None:
    path = tmp_path / "f"
    treepack.save(path, {"w": np.ones(3)})
    os.truncate(path, 1 << 43)  # sparse
    for load in (treepack.load, treepack.open):
        with pytest.raises(MemoryError, match=rf"{path}', which has {1 << 43} bytes"):
            load(path, mmap=False)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems copy the bytes here")
@pytest.mark.parametrize("fails_after", [0, 1, 3, None])
def test_the_system_copies_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_after: int | None
) -> None:
    """Where it cannot, or no longer, the rest is written."""
    data = np.random.default_rng(0).bytes(9 << 20)
    (tmp_path / "source").write_bytes(data)
    calls: list[int] = []

    def copies(source: int, target: int, count: int, real: Any = os.copy_file_range) -> int:
        if len(calls) == fails_after:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        calls.append(real(source, target, count))
        return calls[-1]

    monkeypatch.setattr(os, "copy_file_range", copies)
    assert Address.of(tmp_path / "source").copy_to(Address.of(tmp_path / "copy")) == len(data)
    assert (tmp_path / "copy").read_bytes() == data
    assert (sum(calls) == len(data)) is (fails_after is None or fails_after == 3)
