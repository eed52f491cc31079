"""Ctrl-C is answered while work goes on, not when it is over, and leaves everything as it was."""

from __future__ import annotations

import collections
import ctypes
import functools
import gc
import gzip
import operator
import os
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treepack
from trees import assert_same

BLOCK = np.random.default_rng(0).integers(0, 255, 64 << 20, np.uint8)
LARGE = {str(i): BLOCK for i in range(8)}  # 512 MiB


def stopped(
    work: Callable[[], Any], handler: Callable[..., object], after: float, every: float = 0
) -> bool:
    """Does work under a timer whose signals go to a handler; tells whether that interrupted it."""
    before = signal.signal(signal.SIGALRM, handler)
    gc.disable()  # others have code that runs then, which a signal might interrupt
    try:
        signal.setitimer(signal.ITIMER_REAL, after, every)
        work()
    except KeyboardInterrupt:
        return True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.enable()
    return False


def interrupted(work: Callable[[], Any], after: float) -> bool:
    """Does work, and tells whether it was interrupted after so many seconds."""

    def handler(*_: object) -> None:
        raise KeyboardInterrupt

    return stopped(work, handler, after)


def answered(work: Callable[[], Any]) -> bool:
    """Does work under a signal a millisecond; tells whether two are answered during one call.

    Work that looks at signals only when it is over answers one there, however many came.
    """
    places = collections.Counter[tuple[int, int]]()

    def handler(_: int, frame: types.FrameType | None) -> None:
        assert frame is not None
        place = id(frame), frame.f_lasti
        places[place] += 1
        if places[place] == 2:
            raise KeyboardInterrupt

    return stopped(work, handler, 0.001, 0.001)


def ignore(*_: object) -> None:
    """Makes nothing of progress."""


def cases(tmp_path: Path) -> dict[str, Callable[[], Any]]:
    """Returns calls that take a tenth of a second, or more."""
    path, compressed = tmp_path / "model", tmp_path / "model.gz"
    treepack.serialization.save_to_file(LARGE, path, durable=False)
    stream = gzip.compress(bytes(300 << 20), 1)
    compressed.write_bytes(
        gzip.compress(treepack.serialization.to_bytes({"w": np.zeros(50 << 20)}), 1)
    )
    own = treepack.serialization.compress_bytes(np.concatenate([BLOCK // 2] * 8))
    encoded = treepack.serialization.to_bytes(LARGE, align=64)
    many = treepack.serialization.msgpack_serialize(list(range(6_000_000)))
    buffer = bytearray(len(encoded))
    numbers = [[[0.5] * 1000] * 1000] * 3
    pairs = treepack.dumps([(1, 2)] * 400_000)
    state = treepack.serialization.to_state_dict([0.5] * 800_000)
    metadata = list(range(400_000))
    return {
        "packed_size": lambda: treepack.packed_size(numbers),
        "validate": lambda: treepack.serialization.validate_serializable(numbers),
        "loads": lambda: treepack.loads(pairs),
        "from_state_dict": lambda: treepack.serialization.from_state_dict(
            [0.5] * 799_999 + [0], state, strict=False
        ),
        "metadata": lambda: treepack.dumps([], metadata=metadata),
        "to_bytes": lambda: treepack.serialization.to_bytes(LARGE, threads=1),
        "pack_into": lambda: treepack.pack_into(LARGE, buffer, threads=1),
        "restore": lambda: treepack.serialization.msgpack_restore(many),
        "copy": lambda: treepack.serialization.msgpack_restore(encoded, copy=True, threads=1),
        "compress": lambda: treepack.serialization.compress_bytes(BLOCK, level=6),
        "decompress": lambda: treepack.serialization.decompress_bytes(own, threads=1),
        "decompress a stream of others": lambda: treepack.serialization.decompress_bytes(stream),
        "the same in steps": lambda: treepack.serialization.decompress_bytes(
            stream, progress=ignore
        ),
        "load": lambda: treepack.serialization.load_from_file(None, path, copy=True, mmap=False),
        "load with progress": lambda: treepack.serialization.load_from_file(
            None, path, copy=True, mmap=False, progress=ignore
        ),
        "load gzip": lambda: treepack.serialization.load_from_file(None, compressed),
        "save": lambda: treepack.serialization.save_to_file(LARGE, path),
        "save with progress": lambda: treepack.serialization.save_to_file(
            LARGE, path, progress=ignore
        ),
    }


def test_every_long_call_is_interrupted(tmp_path: Path):
    for name, work in cases(tmp_path).items():
        assert answered(work), name


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("durable", [False, True])
def test_an_interrupted_save_leaves_the_old_file(tmp_path: Path, compress: bool, durable: bool):
    path = tmp_path / "model"
    treepack.serialization.save_to_file({"a": 1}, path)
    save = functools.partial(
        treepack.serialization.save_to_file, LARGE, path, compress=compress, durable=durable
    )
    assert interrupted(save, 0.02)
    assert treepack.serialization.load_from_file(None, path) == {"a": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


def test_a_pipe_without_a_peer_is_interrupted(tmp_path: Path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    assert interrupted(lambda: treepack.serialization.save_to_file({"a": 1}, path), 0.1)
    assert interrupted(lambda: treepack.serialization.load_from_file(None, path), 0.1)


def test_a_pipe_whose_peer_is_slow(tmp_path: Path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    tree = {"w": np.arange(1 << 20)}
    found = []

    def read() -> None:
        time.sleep(0.1)
        found.append(treepack.serialization.load_from_file(tree, path))

    reader = threading.Thread(target=read)
    reader.start()
    treepack.serialization.save_to_file(tree, path)
    reader.join()
    assert_same(found[0], tree)
    # One that goes away is an error, and one that comes back to nothing is interrupted.
    peer = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    assert interrupted(lambda: treepack.serialization.save_to_file(tree, path), 0.1)
    threading.Timer(0.1, os.close, [peer]).start()
    with pytest.raises(BrokenPipeError):
        treepack.serialization.save_to_file(tree, path)


def test_a_signal_that_raises_nothing_does_not_stop_the_work():
    calls = []
    before = signal.signal(signal.SIGALRM, lambda *_: calls.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        encoded = treepack.serialization.to_bytes(LARGE)
        while not calls:  # not even one yet
            pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert treepack.serialization.msgpack_restore(encoded).keys() == LARGE.keys()


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
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, timeout=60)
    assert path.stat().st_size > 240_000_000


def test_what_a_handler_raises_is_not_swallowed():
    template = [0] * 2_000_000
    data = treepack.serialization.to_bytes(template)

    def handler(*_: object) -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        stopped(lambda: treepack.serialization.from_bytes(template, data), handler, 0.02)


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
    gc.disable()  # as above
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
    catalog = file._catalog()
    find = functools.partial(catalog.find, ["k5"], 0)
    assert answered_inside(find)
    assert catalog.find(["k5"], 0) == 6
    assert not answered_inside(find), "it is found at once from then on"
    assert answered_inside(functools.partial(catalog.leaves, 0))
    assert answered_inside(functools.partial(catalog.ends, 0))
    assert answered_inside(functools.partial(catalog.children, 0))
    read = functools.partial(catalog.read, 0, copy=None, threads=None)
    assert answered_inside(read)
