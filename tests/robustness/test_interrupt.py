"""Ctrl-C is answered while work goes on, not when it is over, and leaves everything as it was.

`signals.py` tells how that is seen on fast and on slow machines.
"""

from __future__ import annotations

import collections
import ctypes
import fcntl
import functools
import gc
import gzip
import operator
import os
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiers
import treepack
from signals import answered, interrupted, soon
from trees import assert_same

BLOCK = np.random.default_rng(0).integers(0, 255, 16 << 20, np.uint8)


def large(size: int) -> dict[str, np.ndarray]:
    """Returns a tree of 64 MiB, or of so many times as much, which has the memory of one array."""
    return {str(i): BLOCK for i in range(4 * size)}


# Makes nothing of progress, and is no code of Python, which would answer signals itself.
IGNORE: Callable[[int, int], int] = max


def pack_into(size: int) -> Callable[[], Any]:
    tree = large(size)
    buffer = bytearray(treepack.packed_size(tree))
    return lambda: treepack.pack_into(tree, buffer, threads=1)


def loads(size: int, dtype: str | None = None) -> Callable[[], Any]:
    pairs = treepack.dumps([(1, 2)] * (size * 50_000))
    return lambda: treepack.loads(pairs, dtype=dtype)  # a dtype needs a state


def from_state_dict(size: int) -> Callable[[], Any]:
    count = size * 100_000
    state = treepack.serialization.to_state_dict([0.5] * count)
    target = [0.5] * (count - 1) + [0]
    return lambda: treepack.serialization.from_state_dict(target, state, strict=False)


def restore(size: int) -> Callable[[], Any]:
    many = treepack.serialization.msgpack_serialize(list(range(size * 1_000_000)))
    return lambda: treepack.serialization.msgpack_restore(many)


def copy(size: int) -> Callable[[], Any]:
    encoded = treepack.serialization.to_bytes(large(size), align=64)
    return lambda: treepack.serialization.msgpack_restore(encoded, copy=True, threads=1)


def compress(size: int) -> Callable[[], Any]:
    data = np.concatenate([BLOCK] * size)
    return lambda: treepack.serialization.compress_bytes(data, level=6)


def decompress(size: int) -> Callable[[], Any]:
    own = treepack.serialization.compress_bytes(np.concatenate([BLOCK // 2] * 4 * size))
    return lambda: treepack.serialization.decompress_bytes(own, threads=1)


def decompress_of_others(size: int, **options: Any) -> Callable[[], Any]:
    stream = gzip.compress(np.concatenate([BLOCK // 64] * size).tobytes(), 1)
    return lambda: treepack.serialization.decompress_bytes(stream, **options)


def load(path: Path, size: int, **options: Any) -> Callable[[], Any]:
    treepack.serialization.save_to_file(large(size), path, durable=False)
    return lambda: treepack.serialization.load_from_file(
        None, path, copy=True, mmap=False, **options
    )


def load_gzip(path: Path, size: int) -> Callable[[], Any]:
    tree = {str(i): BLOCK // 64 for i in range(size)}
    path.write_bytes(gzip.compress(treepack.serialization.to_bytes(tree), 1))
    return lambda: treepack.serialization.load_from_file(None, path)


def cases(path: Path) -> dict[str, tuple[str, Callable[[int], Callable[[], Any]]]]:
    """Returns calls by names: which function of the core takes long, and what makes a call.

    The second is called with how large the work is to be.
    """
    save = functools.partial(treepack.serialization.save_to_file, filepath=path)
    return {
        "packed_size": (
            "walk",
            lambda size: lambda: treepack.packed_size([[[0.5] * 1000] * 100] * size),
        ),
        "validate": (
            "problems",
            lambda size: (
                lambda: treepack.serialization.validate_serializable([[[0.5] * 1000] * 100] * size)
            ),
        ),
        "loads": ("restore_recorded", loads),
        "the state of loads": ("restore", functools.partial(loads, dtype="float32")),
        "the tree of that": ("assemble", functools.partial(loads, dtype="float32")),
        "from_state_dict": ("restore_state", from_state_dict),
        "metadata": (
            "encode_value",
            lambda size: lambda: treepack.dumps([], metadata=list(range(size * 50_000))),
        ),
        "to_bytes": (
            "to_bytes",
            lambda size: lambda: treepack.serialization.to_bytes(large(size), threads=1),
        ),
        "pack_into": ("pack_into", pack_into),
        "restore": ("restore", restore),
        "copy": ("restore", copy),
        "compress": ("to_gzip", compress),
        "decompress": ("decompress", decompress),
        "decompress a stream of others": ("decompress", decompress_of_others),
        "the same in steps": (
            "decompress",
            functools.partial(decompress_of_others, progress=IGNORE),
        ),
        "load": ("read", functools.partial(load, path)),
        "load with progress": ("read", functools.partial(load, path, progress=IGNORE)),
        "load gzip": ("inflate", functools.partial(load_gzip, path)),
        "save": ("save", lambda size: lambda: save(large(size))),
        "save with progress": ("save", lambda size: lambda: save(large(size), progress=IGNORE)),
    }


@tiers.parametrize("name", cases(Path()), quick=5)
def test_every_long_call_is_interrupted(name: str, tmp_path: Path):
    function, make = cases(tmp_path / "model")[name]
    assert soon(lambda size: interrupted(function, make(size)))


@pytest.mark.parametrize("enabled", [False, True])
def test_the_collector_does_not_swallow_it(enabled: bool) -> None:
    """Python ignores errors of its callbacks, such as jax's, and runs them as objects are made."""
    work, calls = loads(1), []
    gc.callbacks.append(lambda *_: calls.append(1))
    try:
        if not enabled:
            gc.disable()
        work()
        assert len(calls) < 10
        assert gc.isenabled() is enabled
    finally:
        gc.enable()
        gc.callbacks.pop()


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("durable", [False, True])
def test_an_interrupted_save_leaves_the_old_file(tmp_path: Path, compress: bool, durable: bool):
    path = tmp_path / "model"

    def attempt(size: int) -> bool:
        treepack.serialization.save_to_file({"a": 1}, path)
        save = functools.partial(
            treepack.serialization.save_to_file,
            large(size),
            path,
            compress=compress,
            durable=durable,
        )
        return interrupted("save", save)

    assert soon(attempt)
    assert treepack.serialization.load_from_file(None, path) == {"a": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


def test_a_pipe_without_a_peer_is_interrupted(tmp_path: Path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    # Both would wait for ever.
    assert interrupted("save", lambda: treepack.serialization.save_to_file({"a": 1}, path))
    assert interrupted("read", lambda: treepack.serialization.load_from_file(None, path))


def waiting(pipe: int) -> int:
    """Returns how many bytes are in a pipe."""
    count: int = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0]
    return count


def test_a_pipe_whose_peer_is_slow(tmp_path: Path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    tree = {"w": np.arange(1 << 20)}
    found = []
    waited = threading.Event()

    def read() -> None:
        waited.wait()
        found.append(treepack.serialization.load_from_file(tree, path))

    reader = threading.Thread(target=read)
    reader.start()
    # The save answers ticks for as long as it waits for the reader, who waits for the first.
    assert answered("save", lambda: treepack.serialization.save_to_file(tree, path), waited.set)
    reader.join()
    assert_same(found[0], tree)
    # One that goes away is an error, and one that comes back to nothing is interrupted.
    peers = [os.open(path, os.O_RDONLY | os.O_NONBLOCK)]
    assert interrupted("save", lambda: treepack.serialization.save_to_file(tree, path))

    def close() -> None:
        if peers and waiting(peers[0]):
            os.close(peers.pop())

    os.read(peers[0], 1 << 20)  # what was written before
    assert not waiting(peers[0])
    with pytest.raises(BrokenPipeError):
        answered("save", lambda: treepack.serialization.save_to_file(tree, path), close)


def test_a_signal_that_raises_nothing_does_not_stop_the_work():
    def attempt(size: int) -> bool:
        tree = large(size)
        encoded = []
        found = answered(
            "to_bytes",
            lambda: encoded.append(treepack.serialization.to_bytes(tree, threads=1)),
            lambda: None,
        )
        assert_same(treepack.serialization.msgpack_restore(encoded[0]), tree)
        return found

    assert soon(attempt)


def test_a_timer_does_not_keep_a_file_from_being_saved(tmp_path: Path):
    """Room is reserved by a call that every signal interrupts."""
    code = (
        "import signal, sys, numpy, treepack\n"
        "signal.signal(signal.SIGALRM, lambda *_: None)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)\n"
        "tree = {'w': numpy.zeros(30_000_000)}\n"
        "treepack.serialization.save_to_file(tree, sys.argv[1], durable=False)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0)\n"
    )
    path = tmp_path / "model"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, timeout=600)
    assert path.stat().st_size > 240_000_000


@pytest.mark.campaign
def test_room_that_signals_never_let_be_reserved(tmp_path: Path):
    """The same where no attempt is fast enough, which takes no timer."""
    path, trace = tmp_path / "model", tmp_path / "trace"
    try:
        subprocess.run(["strace", "-V"], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("needs strace")
    code = (
        "import sys, numpy, treepack\n"
        "tree = {'w': numpy.zeros(100_000)}\n"
        "treepack.serialization.save_to_file(tree, sys.argv[1], durable=False)\n"
    )
    command = ["strace", "-f", "-e", "trace=fallocate", "-e", "inject=fallocate:error=EINTR"]
    command += ["-o", str(trace), sys.executable, "-c", code, str(path)]
    subprocess.run(command, check=True, timeout=600)
    assert trace.read_text().count("EINTR") > 1
    assert treepack.serialization.load_from_file(None, path)["w"].size == 100_000


def test_what_a_handler_raises_is_not_swallowed():
    def attempt(size: int) -> bool:
        template = [0] * (size * 200_000)
        data = treepack.serialization.to_bytes(template)
        work = functools.partial(treepack.serialization.from_bytes, template, data)
        return interrupted("restore_encoded", work, TimeoutError)

    assert soon(attempt)


def answered_inside(work: Callable[[], object]) -> bool:
    """Does work with a signal that comes right before; tells whether that ended it.

    Python looks at signals between its own instructions, of which there are none here from the
    signal until the work is done.
    """
    done: list[object] = []
    send = functools.partial(ctypes.PyDLL(None)["raise"], signal.SIGALRM)
    steps: list[Callable[[], object]] = [send, work, functools.partial(done.append, 1)]

    def handler(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handler)
    gc.disable()  # others have code that runs then, which a signal might interrupt
    try:
        collections.deque(map(operator.call, steps), 0)
    except KeyboardInterrupt:
        pass
    finally:
        gc.enable()
        signal.signal(signal.SIGALRM, before)
    return not done


def test_signals_are_answered_among_leaves() -> None:
    leaves = {f"k{index}": index for index in range(10_000)}
    file = treepack.open(treepack.dumps(leaves))
    catalog = file._catalog
    find = functools.partial(catalog.find, ["k5"], 0)
    assert answered_inside(find)
    assert catalog.find(["k5"], 0) == 6
    assert not answered_inside(find), "it is found at once from then on"
    assert answered_inside(functools.partial(collections.deque, catalog.leaves(0), 0))
    assert answered_inside(functools.partial(collections.deque, catalog.ends(0), 0))
    assert answered_inside(functools.partial(catalog.children, 0))
    read = functools.partial(catalog.read, 0, copy=None, threads=None)
    assert answered_inside(read)
