"""Memory that others release or change, files that others could read, work that is hostile."""

from __future__ import annotations

import collections
import contextlib
import gzip
import mmap
import os
import re
import stat
import struct
import subprocess
import sys
import types
import warnings
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import msgpack
import numpy as np
import pytest

import treepack
import treepack._core as core
from treepack import serialization
from treepack._src import dtypes as _dtypes
from treepack._src.leaves import prng as _prng
from trees import assert_same

# Memory of others


def memory_of_a_bytearray(data: bytes) -> Any:
    return bytearray(data)


def memory_of_a_map(data: bytes) -> Any:
    memory = mmap.mmap(-1, len(data))
    memory[:] = data
    return memory


@pytest.mark.parametrize("make", [memory_of_a_bytearray, memory_of_a_map])
def test_the_base_of_an_array_holds_its_memory(make: Any):
    tree = {"w": np.arange(1000.0)}
    memory = make(treepack.serialization.to_bytes(tree, align=64))
    view = treepack.serialization.msgpack_restore(memory, copy=False)["w"]
    base = view.base
    assert not hasattr(base, "release")  # as a memoryview has, which lets go of it
    with pytest.raises(BufferError):
        memory.resize(10) if isinstance(memory, mmap.mmap) else memory.clear()
    np.testing.assert_array_equal(view, tree["w"])
    del view, base
    memory.close() if isinstance(memory, mmap.mmap) else memory.clear()


def test_an_array_over_shared_memory_keeps_it_open():
    tree = {"w": np.arange(1000.0)}
    memory = shared_memory.SharedMemory(create=True, size=treepack.packed_size(tree))
    treepack.pack_into(tree, memory.buf)
    view = treepack.serialization.msgpack_restore(memory.buf[: treepack.packed_size(tree)])["w"]
    with pytest.raises(BufferError):
        memory.close()
    np.testing.assert_array_equal(view, tree["w"])
    del view
    memory.close()
    memory.unlink()


CHANGING = """
import mmap, os, random, signal
import numpy as np, treepack

tree = {"a": {"\u00e4" * 20: [1, "text" * 5, b"bytes"], "n": 2 + 3j}, "w": np.arange(300.0)}
encoded = treepack.serialization.msgpack_serialize(tree)
memory = mmap.mmap(-1, len(encoded))  # shared with the other process
memory[:] = encoded
treepack.serialization.msgpack_restore(memory)
child = os.fork()
if child == 0:
    random.seed(0)
    while True:
        at = random.randrange(120)
        memory[at] = random.randrange(256)
        memory[at] = encoded[at]
found, rounds = set(), 200_000
try:
    # Until the system has let the other process run often enough that both are seen.
    while len(found) < 2 or rounds > 0:
        rounds -= 1
        try:
            treepack.serialization.msgpack_restore(memory)
            found.add("read")
        except treepack.DecodeError:
            found.add("refused")
finally:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""


@pytest.mark.campaign
def test_memory_that_changes_while_it_is_parsed_is_read_or_refused():
    subprocess.run([sys.executable, "-c", CHANGING], check=True, timeout=1800)


def test_each_reference_is_given_back_once():
    tree = {f"key {at}": np.full(at, at, np.float32) for at in range(200)}
    tree["large"] = np.asfortranarray(np.ones((300, 300), np.float32))
    objects = [*tree, *tree.values(), np.dtype(np.float32), tree]

    def use() -> None:
        for write in (treepack.dumps, serialization.to_bytes):
            data = write(tree)
            serialization.from_bytes(tree, data)
            serialization.msgpack_restore(data, copy=True)

    use()
    before = [sys.getrefcount(it) for it in objects]
    for _ in range(10):
        use()
    assert [sys.getrefcount(it) for it in objects] == before


def test_a_buffer_with_gaps_is_refused():
    data = memoryview(bytes(2 * len(treepack.dumps(1))))[::2]
    for read in (treepack.loads, serialization.msgpack_restore, serialization.decompress_bytes):
        with pytest.raises((TypeError, BufferError), match="contiguous"):
            read(data)


@pytest.mark.parametrize("dtype", ["<f4", ">f4"])
@pytest.mark.parametrize(
    ("attribute", "value"), [("shape", (2, 300)), ("dtype", np.uint8), ("strides", (0,))]
)
def test_an_array_that_changes_while_its_dtype_is_read(dtype: str, attribute: str, value: Any):
    # Python describes a dtype when it first occurs.
    fresh: Any = np.dtype(np.dtype(dtype), metadata={})  # type: ignore[call-overload]
    array = np.arange(600).astype(fresh)
    others = []

    def trace(frame: types.FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is _dtypes.describe.__code__:
            sys.setprofile(None)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                setattr(array, attribute, value)
            # These get the memory that the shape was in.
            others.extend(np.broadcast_to(np.zeros(1), (7,)) for _ in range(20))

    refused = pytest.raises(treepack.UnserializableLeafError, match="at a: the dtype of the array")
    data = None
    sys.setprofile(trace)
    try:
        with refused if attribute == "dtype" else contextlib.nullcontext():
            data = treepack.serialization.to_bytes({"a": array})
    finally:
        sys.setprofile(None)
    assert others
    if data is not None:
        assert_same(treepack.serialization.msgpack_restore(data)["a"], array.astype("<f4"))


class Key(int):
    """A key that cannot be sorted, since that is interrupted."""

    def __lt__(self, other: object) -> bool:
        raise KeyboardInterrupt

    __hash__ = int.__hash__


class Auxdata:
    """Static data, the hash of which is interrupted."""

    def __hash__(self) -> int:
        raise KeyboardInterrupt


class WithAuxdata:
    """A node with static data."""

    def __init__(self, auxdata: Auxdata):
        self.auxdata = auxdata


def test_an_interrupt_in_code_of_keys_and_static_data_is_not_swallowed():
    with pytest.raises(KeyboardInterrupt):
        treepack.serialization.msgpack_serialize({Key(2): 1, Key(1): 2})
    jax.tree_util.register_pytree_node(
        WithAuxdata, lambda it: ((), it.auxdata), lambda auxdata, _: WithAuxdata(auxdata)
    )
    treepack.register_node(WithAuxdata, serialized_name="defenses.WithAuxdata")
    treepack.register_auxdata(Auxdata, "defenses.Auxdata", lambda _: 1, lambda _: Auxdata())
    data = treepack.dumps(WithAuxdata(Auxdata()))
    with pytest.raises(KeyboardInterrupt):
        treepack.loads(data)


def test_static_data_that_a_codec_changes_while_it_is_walked():
    changing: dict[str, Any] = {}

    class Grows:
        pass

    def encode(_: Grows) -> int:
        changing[f"more{len(changing)}"] = 1
        return 1

    treepack.register_auxdata(Grows, "defenses.Grows", encode, lambda _: Grows())
    changing.update({"a": Grows(), "b": 1})
    elements = [Grows()]
    changing["c"] = elements
    found = treepack.read_metadata(treepack.dumps([], metadata=changing))
    assert list(found) == ["a", "b", "c"]


# Files


def test_a_private_file_stays_private_while_it_is_replaced(tmp_path: Path):
    path = tmp_path / "model"
    treepack.serialization.save_to_file({"w": np.zeros(1_000_000)}, path)
    path.chmod(0o600)
    seen = []

    def look(*_: int) -> None:
        seen.append([stat.S_IMODE(entry.stat().st_mode) for entry in os.scandir(tmp_path)])

    treepack.serialization.save_to_file({"w": np.zeros(4_000_000)}, path, progress=look)
    assert len(seen) > 2
    assert all(modes == [0o600, 0o600] for modes in seen)
    look()
    assert seen[-1] == [0o600]


@pytest.mark.campaign
def test_what_replaces_a_private_file_is_private_from_the_first(tmp_path: Path):
    path, trace = tmp_path / "model", tmp_path / "trace"
    treepack.serialization.save_to_file({}, path)
    path.chmod(0o600)
    traced("openat", "import sys, treepack; treepack.save(sys.argv[1], {})", path, trace)
    modes = re.findall(rf"{path.name}\.treepack-\S+, \S*O_CREAT\S*, (\d+)\)", trace.read_text())
    assert modes == ["0600"]


@pytest.mark.campaign
def test_files_of_killed_writers_are_removed_by_the_next(tmp_path: Path):
    path = tmp_path / "model"
    code = (
        "import signal, sys, numpy, treepack\n"
        "def report(done, total):\n"
        "    print('saving', flush=True)\n"
        "    signal.pause()\n"
        "tree = {'a': numpy.ones(4_000_000)}\n"
        "treepack.serialization.save_to_file(tree, sys.argv[1], durable=False, progress=report)\n"
    )
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE
        ) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"saving\n"
            writer.kill()
        # One, since each writer begins by removing those before.
        [left] = tmp_path.iterdir()
        assert left.name.startswith(".model.treepack-")
    (tmp_path / ".model2.treepack-x.tmp").touch()  # of another file
    treepack.serialization.save_to_file({"a": 1}, path)
    assert {entry.name for entry in tmp_path.iterdir()} == {"model", ".model2.treepack-x.tmp"}


FAULTS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int wanted(const char *what) {
    const char *fault = getenv("FAULT");
    return fault && strcmp(fault, what) == 0;
}

static int is_directory(int fd) {
    struct stat found;
    return fstat(fd, &found) == 0 && S_ISDIR(found.st_mode);
}

int fsync(int fd) {
    if (is_directory(fd) && wanted("directory refuses")) { errno = EINVAL; return -1; }
    if (is_directory(fd) && wanted("directory fails")) { errno = EIO; return -1; }
    return ((int (*)(int)) dlsym(RTLD_NEXT, "fsync"))(fd);
}

int close(int fd) {
    struct stat found;
    int large = fstat(fd, &found) == 0 && S_ISREG(found.st_mode) && found.st_size > 8000000;
    int done = ((int (*)(int)) dlsym(RTLD_NEXT, "close"))(fd);
    if (large && wanted("close fails")) { errno = EDQUOT; return -1; }
    return done;
}

static int is_temporary(int fd) {
    char link[64], name[4096] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    return readlink(link, name, sizeof name - 1) > 0 && strstr(name, ".treepack-");
}

int statx(int fd, const char *path, int flags, unsigned mask, struct statx *found) {
    int is_fstat = path && !*path && flags & AT_EMPTY_PATH;
    if (is_fstat && is_temporary(fd) && wanted("fstat fails")) { errno = EIO; return -1; }
    int (*next)(int, const char *, int, unsigned, struct statx *) = dlsym(RTLD_NEXT, "statx");
    return next(fd, path, flags, mask, found);
}
"""


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that lets calls of the system fail."""
    folder = tmp_path_factory.mktemp("faults")
    (folder / "faults.c").write_text(FAULTS)
    command = ["cc", "-shared", "-fPIC", "-o", str(folder / "faults.so"), str(folder / "faults.c")]
    try:
        subprocess.run([*command, "-ldl"], check=True)
    except FileNotFoundError:
        pytest.skip("needs a C compiler")
    return folder / "faults.so"


@pytest.mark.parametrize(
    ("fault", "durable", "error", "replaced"),
    [
        ("directory refuses", True, None, True),
        ("directory fails", True, "OSError: [Errno 5] the new file is in place, but", True),
        ("close fails", False, "OSError: [Errno 122]", False),
        ("close fails", True, "OSError: [Errno 122]", False),
        ("fstat fails", False, "OSError: [Errno 5]", False),
    ],
)
def test_faults_of_the_file_system(
    faults: Path, tmp_path: Path, fault: str, durable: bool, error: str | None, replaced: bool
):
    path = tmp_path / "model"
    treepack.serialization.save_to_file({"a": 1}, path)
    code = (
        "import os, sys, numpy, treepack\n"
        "os.environ['FAULT'] = sys.argv[2]\n"
        "tree = {'w': numpy.zeros(1_000_000)}\n"
        "save = treepack.serialization.save_to_file\n"
        f"save(tree, sys.argv[1], align=1, durable={durable})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), fault],
        env={**os.environ, "LD_PRELOAD": str(faults)},
        capture_output=True,
        text=True,
    )
    if error is None:
        assert done.returncode == 0, done.stderr
    else:
        last = done.stderr.splitlines()[-1]
        assert last.startswith(error), done.stderr
        assert last.endswith(repr(str(path)))
    assert (path.stat().st_size > 1000) == replaced
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


def traced(calls: str, code: str, path: Path, trace: Path) -> None:
    """Runs a program with an argument, and writes which calls of the system it makes to a file."""
    try:
        subprocess.run(["strace", "-V"], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("needs strace")
    command = ["strace", "-f", "-y", "-e", f"trace={calls}", "-o", str(trace)]
    subprocess.run([*command, sys.executable, "-c", code, str(path)], check=True)


@pytest.mark.campaign
def test_new_directories_are_synced(tmp_path: Path):
    trace = tmp_path / "trace"
    code = "import sys, treepack; treepack.serialization.save_to_file({}, sys.argv[1])"
    path = tmp_path / "a" / "b" / "model"
    traced("fsync", code, path, trace)
    synced = trace.read_text()
    for directory in (tmp_path, tmp_path / "a", tmp_path / "a" / "b"):
        assert f"<{directory}>" in synced


@pytest.mark.parametrize("compress", [False, True])
def test_paths_that_there_cannot_be(compress: bool):
    with pytest.raises(ValueError, match="NUL"):
        treepack.serialization.save_to_file({}, "a\0b", compress=compress)
    with pytest.raises(ValueError, match="NUL"):
        treepack.serialization.load_from_file(None, "a\0b")


# Options


def test_integers_beyond_all_bounds():
    for call in (
        lambda: treepack.serialization.to_bytes({}, threads=2**70),
        lambda: treepack.serialization.msgpack_restore(b"\xc0", threads=2**70),
        lambda: treepack.serialization.compress_bytes(b"", threads=-(2**70)),
        lambda: treepack.serialization.decompress_bytes(gzip.compress(b"a"), threads=2**70),
        lambda: treepack.serialization.to_bytes({}, align=2**70),
        lambda: treepack.serialization.compress_bytes(b"", level=2**70),
        lambda: treepack.serialization.decompress_bytes(b"", max_size=-1),
        lambda: treepack.pack_into({}, bytearray(9), offset=2**70),
    ):
        with pytest.raises(ValueError):  # noqa: PT011
            call()
    assert treepack.serialization.decompress_bytes(b"", max_size=2**70) == b""


@pytest.mark.parametrize("limit", [-1, -(2.0**70), 0, 2**33, float("inf"), float("nan")])
def test_absurd_chunk_sizes(limit: float, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(serialization, "MAX_CHUNK_SIZE", limit)
    tree = {"a": np.arange(3), "empty": np.zeros((0, 2)), "scalar": np.float32(1)}
    assert_same(treepack.serialization.msgpack_restore(treepack.serialization.to_bytes(tree)), tree)


# Depth


@flax.struct.dataclass
class Struct:
    inner: Any


Pair = collections.namedtuple("Pair", ["inner"])


@pytest.mark.parametrize("kind", [Struct, Pair])
def test_nodes_may_be_nested_as_deep_as_dicts(kind: Any):
    tree: Any = np.arange(3)
    for _ in range(511):
        tree = kind(tree)
    found = treepack.serialization.from_bytes(tree, treepack.serialization.to_bytes(tree))
    for _ in range(511):
        found, tree = found.inner, tree.inner
    assert_same(found, tree)
    too_deep: Any = 1
    for _ in range(600):
        too_deep = kind(too_deep)
    with pytest.raises(ValueError, match="nested more than 512 levels"):
        treepack.serialization.to_bytes(too_deep)


class Box:
    def __init__(self, inner: Any):
        self.inner = inner


def test_nodes_with_handlers_count_one_level():
    serialization.register_serialization_state(
        Box, lambda box: {"inner": box.inner}, lambda _, state: Box(state["inner"]), override=True
    )
    tree: Any = 1
    for _ in range(500):
        tree = Box(tree)
    state = treepack.serialization.msgpack_restore(treepack.serialization.to_bytes(tree))
    for _ in range(500):
        state = state["inner"]
    assert state == 1


# Hostile input


def complex_keys(count: int) -> bytes:
    """A map whose keys are different and have one hash."""
    modulus = sys.hash_info.modulus
    pairs = []
    for imaginary in range(count):
        real = float((-sys.hash_info.imag * imaginary) % modulus % 2**53)
        body = struct.pack(">BBdBd", 0x92, 0xCB, real, 0xCB, float(imaginary))
        pairs.append(struct.pack(">BBb", 0xC7, len(body), 2) + body + b"\xc0")
    return struct.pack(">BI", 0xDF, count) + b"".join(pairs)


def test_keys_of_one_hash_do_not_take_long():
    assert treepack.serialization.msgpack_restore(complex_keys(1000)).keys()
    with pytest.raises(treepack.DecodeError, match="more than 1024 keys"):
        treepack.serialization.msgpack_restore(complex_keys(40_000))


@pytest.mark.campaign
def test_late_chunk_markers_around_much_take_no_longer_than_it_does():
    much = msgpack.packb([None] * 3_000_000)
    data = much
    array = np.arange(3.0)
    chunked = {
        "__msgpack_chunked_array__": True,
        "shape": {"0": 3},
        "chunks": {"0": msgpack.ExtType(1, msgpack.packb(([3], "float64", array.tobytes())))},
    }
    late = msgpack.packb(chunked)[1:]
    for _ in range(500):
        data = b"\x84\xa1x" + data + late
    read = 0

    def count(start: int, length: int) -> bytes:
        nonlocal read
        read += length
        return data[start : start + length]

    found = core.restore(core.Content.elsewhere(count, len(data), 2 << 20), None, None)
    np.testing.assert_array_equal(found, array)
    # Every level would be as long as all if it was read again.
    assert len(much) <= read < 2 * len(data)


def test_abstract_keys_are_made_once(monkeypatch: pytest.MonkeyPatch):
    key = {"__prng_key__": "threefry2x32", "data": np.zeros(2, np.uint32)}
    one = treepack.serialization.msgpack_serialize(key, in_place=True)
    many = struct.pack(">BI", 0xDD, 20_000) + one * 20_000
    calls, eval_shape = [], jax.eval_shape

    def count(*args: Any) -> Any:
        calls.append(args)
        return eval_shape(*args)

    monkeypatch.setattr(jax, "eval_shape", count)
    _prng._implementation.cache_clear()
    assert len(treepack.open(many).abstract()) == 20_000
    assert len(calls) == 1  # which takes 300 microseconds


@pytest.mark.parametrize("name", ["float128", "complex256", ">f4", "float6_e2m3fn", "M8[s]"])
def test_arrays_that_jax_does_not_have_are_one_clear_error(name: str):
    saved = treepack.dumps({"w": jnp.zeros(4, jnp.float32)}, align=1)
    dtype = np.dtype(name)
    if name == "float6_e2m3fn":
        with contextlib.suppress(Exception):  # which says that XLA does not have it
            jnp.zeros(1, dtype)
            pytest.skip("this version of jax has it")
    array = msgpack.packb(([4], name, bytes(4 * dtype.itemsize)))
    plain = treepack.serialization.to_bytes({"w": np.zeros(4, np.float32)}, align=1)
    forged = saved.replace(plain[1:], b"\xa1w" + msgpack.packb(msgpack.ExtType(1, array)))
    assert forged != saved
    assert treepack.loads(forged, arrays="numpy")["w"].dtype == dtype
    with pytest.raises(treepack.DecodeError, match=r"^JAX .*\(at w"):
        treepack.loads(forged)
    with pytest.raises(treepack.DecodeError, match=r"^JAX .*\(at w"):
        treepack.loads(forged, device=jax.devices()[0])
