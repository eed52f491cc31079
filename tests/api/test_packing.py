"""Encoding into given memory, in pieces, and with a given number of threads."""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import serialization as flax
from hypothesis import given
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import tiers
import treepack
from trees import assert_same, state_trees
from waiting import in_time

ALIGNMENTS = [1, 2, 4, 8, 16, 32, 64]


def large(nbytes: int = 40 << 20) -> dict[str, np.ndarray]:
    """Returns a tree that is worth several threads and streaming stores."""
    rng = np.random.default_rng(0)
    return {
        "a": rng.standard_normal(nbytes // 16),
        "b": {"c": rng.integers(0, 255, 12345, np.uint8), "d": rng.standard_normal(nbytes // 16)},
        "e": np.zeros(7),
    }


def packed(tree: Any, **options: Any) -> bytes:
    """Returns what `pack_into` writes."""
    buffer = bytearray(treepack.packed_size(tree, **options))
    assert treepack.pack_into(tree, buffer, threads=1, **options) == len(buffer)
    return bytes(buffer)


@given(state_trees())
def test_all_ways_to_encode_agree(tree: Any):
    assert packed(tree, align=1) == treepack.serialization.to_bytes(tree, align=1)
    for align in (1, 16, 64):
        expected = packed(tree, align=align)
        assert_same(flax.msgpack_restore(expected), flax.msgpack_restore(flax.to_bytes(tree)))
        buffer = bytearray(b"\xaa" * (len(expected) + 10))
        assert treepack.pack_into(tree, buffer, offset=3, align=align) == len(expected)
        assert buffer == b"\xaa" * 3 + expected + b"\xaa" * 7
        assert b"".join(treepack.buffers(tree, align=align)) == expected


@pytest.mark.campaign
def test_all_ways_to_encode_agree_on_large_trees():
    tree = large()
    del tree["e"]  # small arrays are aligned in buffers alone
    expected = treepack.serialization.to_bytes(tree, align=64, threads=1)
    buffer = bytearray(len(expected) + 100)
    for threads in (1, 2, 5, None):
        assert treepack.serialization.to_bytes(tree, align=64, threads=threads) == expected
        for offset in (0, 1, 64):
            buffer[:] = bytes(len(buffer))
            size = treepack.pack_into(tree, buffer, offset=offset, threads=threads)
            assert memoryview(buffer)[offset : offset + size] == expected
            assert not any(buffer[:offset])
            assert not any(buffer[offset + size :])
        assert_same(
            treepack.serialization.from_bytes(tree, expected, copy=True, threads=threads), tree
        )
    assert b"".join(treepack.buffers(tree, align=64)) == expected


def test_packed_arrays_are_views_of_the_buffer():
    tree = {f"w{i}": np.arange(1000.0) + i for i in range(5)}
    memory = mmap.mmap(-1, treepack.packed_size(tree))
    size = treepack.pack_into(tree, memory)
    views = treepack.serialization.msgpack_restore(memoryview(memory)[:size], copy=False)
    assert_same(views, tree)
    for view in views.values():
        assert np.shares_memory(view, np.frombuffer(memory, np.uint8))
        assert view.ctypes.data % 64 == 0


DTYPES = (
    *("bool", "int8", "uint16", "float16", "int32", "float32", "int64", "float64", "complex64"),
    *("complex128", "longdouble", "datetime64[s]", ml_dtypes.bfloat16, ml_dtypes.int4),
)


@pytest.mark.parametrize("described", [False, True])
@tiers.parametrize("align", [16, 64])
def test_packed_arrays_of_any_size_are_views_that_are_aligned(described: bool, align: int):
    of_dtypes = [np.zeros((), dtype) for dtype in DTYPES]
    for before in range(0, 66, 5):
        sizes = {
            f"{dtype} {size}": np.full(size, 1, dtype) for dtype in DTYPES for size in range(101)
        }
        shapes = {"n": {"m": [np.ones((1,) * ndim, np.float32) for ndim in range(9)]}}
        tree = {"x" * before: sizes, "y": shapes, "z": of_dtypes}
        size = treepack.packed_size(tree, align=align, described=described)
        memory = mmap.mmap(-1, size)
        assert treepack.pack_into(tree, memory, align=align, described=described) == size
        restore = treepack.loads if described else treepack.serialization.msgpack_restore
        views = restore(memoryview(memory)[:size], copy=False)
        whole = np.frombuffer(memory, np.uint8)
        found = [view for view in jax.tree.leaves(views) if view.size > 0]
        assert len(found) == len(DTYPES) * 101 + 9  # of each dtype one in z, and an empty one
        for view in found:
            assert np.shares_memory(view, whole), (view.dtype, view.shape)
            assert view.flags.aligned
        assert_same(views, tree if described else flax.to_state_dict(tree))


READ_SHARED = """
import sys
from multiprocessing import resource_tracker, shared_memory
import numpy as np, treepack

memory = shared_memory.SharedMemory(sys.argv[1])
resource_tracker.unregister(memory._name, "shared_memory")  # the other process removes it
tree = treepack.loads(memory.buf[: int(sys.argv[2])], copy=False)
assert [array.sum() for array in tree["w"]] == [*range(20)]
tree = {"w": [np.shares_memory(array, np.asarray(memory.buf)) for array in tree["w"][1:]]}
print(all(tree["w"]))
memory.close()
"""


@pytest.mark.campaign
def test_another_process_views_small_arrays_in_shared_memory():
    tree = {"w": [np.ones(size, np.float32) for size in range(20)]}
    memory = SharedMemory(create=True, size=treepack.packed_size(tree, described=True))
    try:
        size = treepack.pack_into(tree, memory.buf, described=True)
        command = [sys.executable, "-c", READ_SHARED, memory.name, str(size)]
        assert subprocess.check_output(command, timeout=600) == b"True\n"
    finally:
        memory.close()
        memory.unlink()


def test_small_arrays_are_not_aligned_elsewhere():
    tree = {"b": np.zeros(3), "c": [np.zeros((), np.float32)]}
    for align in (16, 64):
        assert treepack.serialization.to_bytes(tree, align=align) == flax.to_bytes(tree)
        assert len(packed(tree, align=align)) > len(flax.to_bytes(tree))


def test_a_buffer_of_any_type_is_filled():
    tree = {"w": np.arange(100.0)}
    expected = packed(tree)
    floats = np.zeros((len(expected) + 7) // 8)
    size = treepack.pack_into(tree, floats)
    assert floats.tobytes()[:size] == expected


def test_arrays_of_ctypes_are_buffers():
    tree, larger = {"w": np.arange(1000.0)}, {"w": np.arange(1000.0) + 1}
    array = multiprocessing.RawArray("B", treepack.packed_size(tree, described=True))
    treepack.pack_into(tree, array, described=True)
    assert bytes(array) == packed(tree, described=True)
    patch = b"".join(treepack.buffers(larger, base=tree, described=True))
    treepack.apply_delta((ctypes.c_char * len(patch)).from_buffer_copy(patch), array)
    for read in (treepack.loads, treepack.load, lambda data: treepack.open(data).load()):
        assert_same(read(array), larger)
    with pytest.raises(BufferError, match="writable"):
        treepack.pack_into(tree, memoryview(array).toreadonly())


@pytest.mark.parametrize("offset", [-1, 101, 2**40, -(2**40)])
def test_an_offset_outside_is_refused(offset: int):
    with pytest.raises(ValueError, match="offset must be from 0 to the length of the buffer, 100"):
        treepack.pack_into({}, bytearray(100), offset=offset)


def test_a_buffer_that_is_too_small_is_left_alone():
    tree = {"w": np.ones(1000)}
    size = treepack.packed_size(tree)
    for buffer, offset in ((bytearray(size - 1), 0), (bytearray(size), 1), (bytearray(0), 0)):
        with pytest.raises(ValueError, match=f"too small: {size} bytes are needed"):
            treepack.pack_into(tree, buffer, offset=offset)
        assert not any(buffer)


def test_a_buffer_that_cannot_be_written_is_refused():
    backwards = np.zeros(1000, np.uint8)[::-1]
    for buffer in (bytes(1000), memoryview(bytearray(1000)).toreadonly(), backwards):
        with pytest.raises(BufferError, match="writable and contiguous"):
            treepack.pack_into({}, buffer)
    with pytest.raises(TypeError):
        treepack.pack_into({}, None)  # type: ignore[arg-type]


def test_arrays_that_lie_in_the_buffer_are_packed_as_they_were():
    tree = {"a": np.arange(1000.0), "b": np.arange(2000.0)}
    buffer = bytearray(2 * treepack.packed_size(tree))
    size = treepack.pack_into(tree, buffer)
    views = treepack.serialization.msgpack_restore(memoryview(buffer)[:size], copy=False)
    swapped = {"x": views["b"], "y": views["a"]}
    size = treepack.pack_into(swapped, buffer, offset=1024)
    packed = memoryview(buffer)[1024 : 1024 + size]
    assert_same(treepack.serialization.msgpack_restore(packed), {"x": tree["b"], "y": tree["a"]})


def test_arrays_of_jax_that_lie_in_the_buffer_are_packed_as_they_were():
    memory = np.frombuffer(mmap.mmap(-1, 1 << 20), np.uint8)
    tree = {"w": np.arange(4096, dtype=np.float32)}
    size = treepack.pack_into(tree, memory)
    view = treepack.serialization.msgpack_restore(memoryview(memory)[:size], copy=False)["w"]
    array = jax.device_put(view, jax.devices()[0], may_alias=True)
    assert array.unsafe_buffer_pointer() == view.ctypes.data
    size = treepack.pack_into({"before": np.ones(100), "w": array}, memory)
    packed = treepack.serialization.msgpack_restore(memoryview(memory)[:size])
    np.testing.assert_array_equal(packed["w"], tree["w"])


def test_small_restored_arrays_hold_on_to_little():
    message = treepack.serialization.to_bytes({"obs": np.zeros(4, np.float32), "reward": 1.0})
    restored = treepack.serialization.msgpack_restore(message)
    base = restored["obs"].base
    assert base is None or isinstance(base, bytes) or base.nbytes <= 256


def test_small_restored_arrays_are_apart():
    tree = {"x" * at: np.full(5, at, np.float64) for at in range(100)}
    restored = treepack.serialization.msgpack_restore(flax.msgpack_serialize(tree))
    assert_same(restored, tree)


@pytest.mark.parametrize("dtype", ["int4", "uint4", "float32", "bfloat16", "float8_e4m3fn", "bool"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (300, 500)])
def test_arrays_of_jax_of_any_kind(dtype: str, shape: tuple[int, ...]):
    values = np.arange(np.prod(shape)).reshape(shape).astype(jnp.dtype(dtype))
    arrays = [jnp.asarray(values), jax.device_put(values, jax.devices()[2])]
    tree, host = {"a": arrays, "b": arrays}, {"a": [values, values], "b": [values, values]}
    assert treepack.serialization.to_bytes(tree, align=1) == flax.to_bytes(host)
    assert treepack.serialization.msgpack_serialize(
        tree
    ) == treepack.serialization.msgpack_serialize(host)
    assert all(array._npy_value is None for array in arrays), "jax has cached a copy"


def test_what_stops_jax_is_raised_with_the_path(monkeypatch: pytest.MonkeyPatch):
    deleted = jnp.ones(300, jnp.bfloat16)
    deleted.delete()
    with pytest.raises(ValueError, match=r"a/0: the array has been deleted or donated"):
        treepack.serialization.to_bytes({"a": [deleted]})

    def interrupt(self: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(deleted), "__array__", interrupt)
    with pytest.raises(KeyboardInterrupt):
        treepack.serialization.to_bytes({"a": [jnp.ones(300, jnp.bfloat16)]})


def test_large_arrays_are_not_copied_into_the_pieces():
    tree = {"w": np.arange(10_000.0), "small": np.ones(3), "j": jnp.arange(5_000)}
    pieces = treepack.buffers(tree, align=16)
    arrays = [np.frombuffer(piece, np.uint8) for piece in pieces]
    assert any(np.shares_memory(array, tree["w"]) for array in arrays)
    assert any(np.shares_memory(array, np.asarray(tree["j"])) for array in arrays)
    assert all(piece.readonly for piece in pieces)
    assert len(pieces) == 4  # headers, w, what is small, j
    expected = packed(tree, align=16)
    del tree, arrays
    assert b"".join(pieces) == expected  # they keep the arrays alive


def test_frames_are_loaded():
    tree = {"w": np.arange(5000.0), "b": np.ones(3), "n": 1}
    frames = treepack.buffers(tree, described=True)
    assert len(frames) > 1
    for received in (frames, [bytes(frame) for frame in frames]):
        for loaded in (treepack.loads(received), treepack.loads(received, tree)):
            np.testing.assert_equal(loaded, tree)
    with pytest.raises(TypeError, match=r"item 1: .* got int"):
        treepack.loads([frames[0], 1])


def test_the_pieces_are_what_a_socket_sends():
    tree = large(1 << 20)
    pieces = treepack.buffers(tree, align=16)
    ours, theirs = socket.socketpair()
    received = bytearray()

    def receive() -> None:
        while data := theirs.recv(1 << 16):
            received.extend(data)

    thread = threading.Thread(target=receive)
    thread.start()
    while pieces:
        sent = ours.sendmsg(pieces)
        while pieces and sent >= len(pieces[0]):
            sent -= len(pieces.pop(0))
        if sent:
            pieces[0] = pieces[0][sent:]
    ours.close()
    thread.join()
    theirs.close()
    assert received == packed(tree, align=16)


def test_wrong_numbers_of_threads_are_refused(monkeypatch: pytest.MonkeyPatch):
    tree = large()
    for threads in (0, -1):
        with pytest.raises(ValueError, match=f"threads .*65536, got {threads}"):
            treepack.serialization.to_bytes({}, threads=threads)
        with pytest.raises(ValueError, match=f"threads .*65536, got {threads}"):
            treepack.serialization.msgpack_restore(b"\x80", copy=True, threads=threads)
    for text in ("x", "0", "-2"):
        monkeypatch.setenv("TREEPACK_NUM_THREADS", text)
        with pytest.raises(
            ValueError, match=f"TREEPACK_NUM_THREADS must be .* got {text!r}".replace("'", '"')
        ):
            treepack.serialization.to_bytes(tree)
    assert treepack.serialization.to_bytes(tree, threads=1)  # the variable is not read then


COUNT_THREADS = """
import os, sys, threading, numpy as np, treepack
from treepack._src.arrays.deferred import Computed

expected = int(sys.argv[2])
here, lock, counted, more = set(), threading.Lock(), threading.Event(), []

def tasks():
    return len(os.listdir("/proc/self/task"))

def read(first, last):
    # Called by each thread that copies. All wait here until the last has come, and the first of
    # all, which has started the others then.
    with lock:
        here.add(threading.get_ident())
        are_all_here = len(here) > expected and threading.main_thread().ident in here
        if are_all_here and not counted.is_set():
            more.append(tasks() - idle)
            counted.set()
    assert counted.wait(300), "so many threads do not come"
    return np.zeros(last - first, np.uint8)

tree = {"w": Computed((64 << 20,), np.dtype(np.uint8), read)}
idle = tasks()
treepack.serialization.to_bytes(tree, threads=eval(sys.argv[1]))
assert len(here) == expected + 1
print(*more)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads by /proc")
@tiers.parametrize(
    ("argument", "variable", "started"),
    [("None", "3", 2), ("None", "1", 0), ("4", "1", 3), ("1", None, 0)],
)
def test_the_requested_number_of_threads_is_started(
    argument: str, variable: str | None, started: int
):
    environment = {**os.environ}
    environment.pop("TREEPACK_NUM_THREADS", None)
    if variable:
        environment["TREEPACK_NUM_THREADS"] = variable
    command = [sys.executable, "-c", COUNT_THREADS, argument, str(started)]
    assert int(subprocess.check_output(command, env=environment)) == started


FORK = """
import os, sys, warnings, numpy as np, treepack
warnings.simplefilter("ignore")  # jax warns of any fork
tree = {"w": np.arange(4 << 20, dtype=np.float64)}
encoded = treepack.serialization.to_bytes(tree, threads=3)
child = os.fork()
if child == 0:
    same = treepack.serialization.to_bytes(tree, threads=3) == encoded
    copied = treepack.serialization.msgpack_restore(encoded, copy=True, threads=3)
    os._exit(0 if same and (copied["w"] == tree["w"]).all() else 1)
assert os.waitpid(child, 0)[1] == 0
assert treepack.serialization.to_bytes(tree, threads=3) == encoded
print("done")
"""


@pytest.mark.campaign
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_a_forked_process_goes_on_working():
    command = [sys.executable, "-c", FORK]
    assert subprocess.check_output(command, timeout=600) == b"done\n"


def _operations(path: Path) -> dict[str, Callable[[], Any]]:
    tree = large(200 << 20)
    encoded = treepack.serialization.to_bytes(tree)
    buffer = bytearray(treepack.packed_size(tree))
    treepack.serialization.save_to_file(tree, path, durable=False)
    return {
        "to_bytes": lambda: treepack.serialization.to_bytes(tree, threads=1),
        "pack_into": lambda: treepack.pack_into(tree, buffer, threads=1),
        "from_bytes": lambda: treepack.serialization.from_bytes(
            tree, encoded, copy=True, threads=1
        ),
        "save_to_file": lambda: treepack.serialization.save_to_file(tree, path, durable=False),
        "load_from_file": lambda: treepack.serialization.load_from_file(
            tree, path, copy=True, threads=1
        ),
    }


@pytest.mark.campaign
def test_other_threads_continue_during_a_copy(tmp_path: Path):
    """The main thread is never made to hand over Python, so only a release lets others run."""
    interval = sys.getswitchinterval()
    count = 0
    done = False

    def work() -> None:
        nonlocal count
        while not done:
            count += 1
            time.sleep(0)  # hands Python over at once

    operations = _operations(tmp_path / "tree")
    thread = threading.Thread(target=work)
    sys.setswitchinterval(1000)
    try:
        thread.start()
        for name, operation in operations.items():

            def is_counted(operation: Callable[[], Any] = operation) -> bool:
                before = count
                operation()
                return count > before + 10

            # The system may not let the other thread run before the operation is over.
            assert in_time(is_counted), name
        before = count
        sum(range(5_000_000))  # which is how it looks if Python is not released
        assert count == before
    finally:
        done = True
        sys.setswitchinterval(interval)
        thread.join()


@pytest.mark.parametrize(
    ("shape", "mesh", "spec"),
    [
        ((8, 6), (4,), ("x",)),
        ((6, 8), (4,), (None, "x")),
        ((4, 6, 8), (2, 2), ("x", None, "y")),
        ((4, 6, 8), (2, 2), (None, "y")),  # with replicas
        ((8, 3), (2, 2), (("x", "y"),)),
        ((400, 800), (2, 2), ("x", "y")),
        ((0, 8), (4,), (None, "x")),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool"])
def test_sharded_arrays_are_gathered_from_their_shards(
    shape: tuple[int, ...],
    mesh: tuple[int, ...],
    spec: tuple[Any, ...],
    dtype: str,
    chunk_size: Callable[[int], None],
):
    values = np.arange(np.prod(shape)).reshape(shape).astype(jnp.dtype(dtype))
    devices = np.array(jax.devices()[: np.prod(mesh)]).reshape(mesh)
    sharding = NamedSharding(Mesh(devices, ("x", "y")[: len(mesh)]), PartitionSpec(*spec))
    array = jax.device_put(values, sharding)
    tree = {"w": array, "b": jax.device_put(values, jax.devices()[1])}
    host = {"w": values, "b": values}
    for limit in (2**30, 100):
        chunk_size(limit)
        assert treepack.serialization.to_bytes(tree, align=1) == flax.to_bytes(host)
        assert treepack.serialization.to_bytes(tree, align=64) == treepack.serialization.to_bytes(
            host, align=64
        )
        assert b"".join(treepack.buffers(tree, align=16)) == packed(host, align=16)
    assert array._npy_value is None, "jax has cached the whole array"


@pytest.mark.campaign
@pytest.mark.skipif(sys.platform != "linux", reason="measures memory by /proc")
def test_a_sharded_array_is_not_assembled(tmp_path: Path):
    """The shards lie in host memory already, so that saving needs none."""
    program = f"""
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
import jax, numpy as np, treepack
from pathlib import Path
mesh = jax.sharding.Mesh(np.array(jax.devices()), "x")
sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "x"))
array = jax.device_put(np.ones((4096, 16384), np.float32), sharding).block_until_ready()
treepack.serialization.save_to_file({{"w": np.ones(9)}}, {str(tmp_path / "small")!r})
Path("/proc/self/clear_refs").write_text("5")
status = lambda field: int(Path("/proc/self/status").read_text().split(field)[1].split()[1])
before = status("VmRSS")
treepack.serialization.save_to_file({{"w": array}}, {str(tmp_path / "sharded")!r})
print(status("VmHWM") - before)
"""
    extra = int(subprocess.check_output([sys.executable, "-c", program]))
    assert extra < 32 << 10, f"{extra} KiB more"  # the array has 256 MiB
    assert treepack.serialization.load_from_file(None, tmp_path / "sharded")["w"].shape == (
        4096,
        16384,
    )
