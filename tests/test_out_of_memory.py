"""Where there is not enough memory, that is a MemoryError, and never the end of the program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import treepack

HELPERS = '''
import os, resource

def size():
    return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()

def told(name, work, more):
    """Tells what becomes of work in another process that has so many megabytes more."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        limit = size() + int(more * (1 << 20))
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        try:
            work()
            found = b"enough"
        except MemoryError:
            found = b"MemoryError"
        except BaseException as error:
            found = repr(error).encode()[:200]
        os.write(writing, found)
        os._exit(0)
    os.close(writing)
    found = os.read(reading, 1000).decode()
    os.close(reading)
    _, status = os.waitpid(child, 0)
    return found if status == 0 else f"status {status}"
'''

SCRIPT = '''
import gzip, os, resource, struct, sys, warnings
import msgpack, numpy as np, treepack
from treepack import serialization

warnings.simplefilter("ignore")  # of the threads of jax, which do nothing here
treepack.serialization.msgpack_restore(treepack.serialization.to_bytes({"a": np.zeros(9)}))
ZEROS = bytes(100 << 20)
NOISE = np.random.default_rng(0).bytes(100 << 20)

def ignore(*_):
    """Makes nothing of progress."""

def many(count, one, kind=0xDD):
    return struct.pack(">BI", kind, count) + one * count

def long(kind, size, *more):
    return struct.pack(">BI", kind, size) + bytes(more) + bytes(size)

def array(shape, payload):
    return msgpack.ExtType(1, msgpack.packb((shape, "float32", payload)))

SCALAR = msgpack.packb(msgpack.ExtType(3, msgpack.packb(([], "float32", bytes(4)))))

def small_arrays(count):
    one = msgpack.packb(array([64], bytes(256)))
    pairs = (msgpack.packb(f"k{index}") + one for index in range(count))
    return struct.pack(">BI", 0xDF, count) + b"".join(pairs)

def numbered(count):
    return struct.pack(">BI", 0xDF, count) + b"".join(
        struct.pack(">BIB", 0xCE, index, 0xC0) for index in range(count)
    )

def chunks(count):
    one = array([1], bytes(4))
    parts = {str(index): one for index in range(count)}
    return msgpack.packb({"__msgpack_chunked_array__": 1, "shape": {"0": count}, "chunks": parts})

def read(data, **options):
    return lambda: treepack.serialization.msgpack_restore(data, **options)

def inflate(stream, **options):
    return lambda: treepack.serialization.decompress_bytes(stream, **options)

def write(tree, save=treepack.serialization.to_bytes):
    return lambda: save(tree)

def leaves(count):
    return {f"k{index}": np.zeros(64, np.float32) for index in range(count)}

CASES = {
    "own gzip": lambda: inflate(treepack.serialization.compress_bytes(ZEROS)),
    "gzip of others": lambda: inflate(gzip.compress(ZEROS, 1)),
    "gzip of others, in steps": lambda: inflate(gzip.compress(ZEROS, 1), progress=ignore),
    "members": lambda: inflate(gzip.compress(ZEROS[: 25 << 20], 1) * 4),
    "small arrays": lambda: read(small_arrays(300_000)),
    "small arrays, copied": lambda: read(small_arrays(300_000), copy=True),
    "nils": lambda: read(many(8_000_000, b"\\xc0")),
    "integers": lambda: read(many(2_500_000, b"\\xce\\x7f\\xff\\xff\\xff")),
    "floats": lambda: read(many(2_500_000, b"\\xcb\\x7f\\xff\\xff\\xff\\0\\0\\0\\0")),
    "complex numbers": lambda: read(many(3_000_000, b"\\xc7\\x05\\x02\\x92\\xcc\\xf0\\xcc\\xf1")),
    "strings": lambda: read(many(3_000_000, b"\\xa8abcdefgh")),
    "nested lists": lambda: read(many(2_000_000, b"\\x91\\x90")),
    "maps": lambda: read(many(3_000_000, b"\\x80")),
    "a map": lambda: read(numbered(3_000_000)),
    "a byte string": lambda: read(long(0xC6, 100 << 20)),
    "a string": lambda: read(long(0xDB, 100 << 20)),
    "an extension": lambda: read(long(0xC9, 100 << 20, 0x50)),
    "scalars": lambda: read(many(2_000_000, SCALAR)),
    "chunks": lambda: read(chunks(300_000)),
    "a copy": lambda: read(treepack.serialization.to_bytes({"a": np.zeros(25 << 20)}), copy=True),
    "one array": lambda: write({"a": np.zeros(25 << 20)}),
    "many leaves": lambda: write(leaves(150_000)),
    "many larger leaves": lambda: write([np.zeros(300)] * 1_000_000),
    "many integers": lambda: write([2**40] * 8_000_000, treepack.serialization.msgpack_serialize),
    "with structure": lambda: write(leaves(150_000), treepack.dumps),
    "compressing": lambda: write(NOISE, treepack.serialization.compress_bytes),
}

failed = 0
for name, make in CASES.items():
    work = make()
    for more in (3, 20):
        found = told(name, work, more)
        if found != "MemoryError":
            print(f"{name} with {more} MB: {found}", flush=True)
            failed += 1
sys.exit(failed > 0)
'''


def test_there_is_a_memory_error():
    done = subprocess.run(
        [sys.executable, "-c", HELPERS + SCRIPT], capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, done.stdout + done.stderr


class Pair(NamedTuple):
    """A node."""

    a: int
    b: int


# In a process that has no memory left from other work.
STEPS = """
import sys
from typing import NamedTuple
import treepack

class Pair(NamedTuple):
    a: int
    b: int

treepack.register_namedtuple(Pair, serialized_name="memory.Pair")
treepack.loads(treepack.dumps([Pair(1, (1, [1])), {1: 2}]))  # imports all that is needed
data = open(sys.argv[1], "rb").read()
read = {"metadata": treepack.read_metadata}.get(sys.argv[2], treepack.loads)
found = {told("", lambda: read(data), more / 4) for more in range(2, 160, 7)}
sys.exit(0 if {"MemoryError"} <= found <= {"MemoryError", "enough"} else str(found))
"""


@pytest.mark.parametrize("kind", ["keys", "sequences", "nodes", "metadata"])
def test_there_is_a_memory_error_at_every_step(kind: str, tmp_path: Path):
    treepack.register_namedtuple(Pair, serialized_name="memory.Pair")
    tree: Any = {
        "keys": {i * 1000: {"a": float(i)} for i in range(60_000)},
        "sequences": [(i, [i]) for i in range(50_000)],
        "nodes": [Pair(i, i) for i in range(40_000)],
        "metadata": {},
    }[kind]
    path = tmp_path / "data"
    path.write_bytes(treepack.dumps(tree, metadata=list(range(200_000 * (kind == "metadata")))))
    done = subprocess.run(
        [sys.executable, "-c", HELPERS + STEPS, str(path), kind],
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout + done.stderr
