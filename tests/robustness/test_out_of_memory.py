"""Where there is not enough memory, that is a MemoryError, and never the end of the program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tiers
import treepack

pytestmark = pytest.mark.campaign

HELPERS = '''
import os, resource

def size():
    return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()

def outcome(name, work, more):
    """Tells what becomes of work in another process that has so many megabytes more."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        limit = size() + int(more * (1 << 20))
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CPU, (100, 100))  # rather than to work for ever
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

def failed(name, work):
    found = {more: outcome(name, work, more) for more in (3, 20)}
    for more, what in found.items():
        if what != "MemoryError":
            print(f"{name} with {more} MB: {what}", flush=True)
    return {*found.values()} != {"MemoryError"}

# What a case leaves free in the heap would be there for the next one, beside its few megabytes.
statuses = []
for name, make in CASES.items():
    child = os.fork()
    if child == 0:
        os._exit(failed(name, make()))
    statuses.append(os.waitpid(child, 0)[1])
sys.exit(any(statuses))
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
found = {outcome("", lambda: read(data), more / 8) for more in range(2, 160, 7)}
sys.exit(0 if {"MemoryError"} <= found <= {"MemoryError", "enough"} else str(found))
"""


@pytest.mark.parametrize("kind", ["keys", "sequences", "nodes", "metadata"])
def test_there_is_a_memory_error_at_every_step(kind: str, tmp_path: Path):
    treepack.register_namedtuple(Pair, serialized_name="memory.Pair")
    tree: Any = {
        "keys": {i * 1000: {"a": float(i)} for i in range(30_000)},
        "sequences": [(i, [i]) for i in range(25_000)],
        "nodes": [Pair(i, i) for i in range(20_000)],
        "metadata": {},
    }[kind]
    path = tmp_path / "data"
    path.write_bytes(treepack.dumps(tree, metadata=list(range(100_000 * (kind == "metadata")))))
    done = subprocess.run(
        [sys.executable, "-c", HELPERS + STEPS, str(path), kind],
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout + done.stderr


SWEEP = """
import contextlib, ctypes, gc, gzip, resource, sys, tempfile
import numpy as np, jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import treepack
from treepack import serialization

step = float(sys.argv[1])  # in megabytes
folder = tempfile.mkdtemp(dir=sys.argv[2]) + "/"
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]

def fill():
    "Takes all memory that is free in the heap, so that only the limit tells how much there is."
    gc.collect()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size(), hard))
    block = 1 << 20
    while block >= 64:
        with contextlib.suppress(ctypes.ArgumentError):  # newer versions allocate arguments
            while libc.malloc(block):
                pass
        block //= 2
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))

def leaves(count):
    layer = lambda i: {"w": np.zeros((3, i % 50 + 1), np.float32), "name": f"x{i}", "n": i}
    return {f"layer{i}": layer(i) for i in range(count)}

def put(value, *axes):
    mesh = Mesh(np.array(jax.devices()).reshape(4), ("x",))
    return jax.device_put(value, NamedSharding(mesh, PartitionSpec(*axes)))

def opened(path, use=len, **options):
    def work():
        with treepack.open(path, **options) as file:
            use(file)
    return work

save, load = treepack.save, treepack.load
tree, sharded = leaves(4000), {f"k{i}": put(np.full((8, 8), i), "x") for i in range(20)}
sharded["host"] = leaves(700)
saved, gz, plain, stream = (folder + name for name in ("saved", "gz", "plain", "stream"))
save(saved, tree, metadata=list(range(3000)))
save(gz, tree, compress=True)
save("memory://saved", tree)
half = jax.tree.map(lambda leaf: leaf.astype("f2") if hasattr(leaf, "astype") else leaf, tree)
save(folder + "shards", sharded, sharded=True)
serialization.save_to_file(tree, plain)
treepack.write_stream(stream, ((("a", key), node["w"]) for key, node in tree.items()))
data, buffer = open(saved, "rb").read(), bytearray(treepack.packed_size(tree))
noise = np.random.default_rng(0).bytes(1 << 20)
text = (b"hello world %d " * 100_000)[: 1 << 20]
few = np.random.default_rng(0).integers(0, 4, 2 << 20, np.uint8).tobytes()
own, foreign = serialization.compress_bytes(text), gzip.compress(text)
compress, decompress = serialization.compress_bytes, serialization.decompress_bytes

VERBS = {
    "save": lambda: save(folder + "new", tree, durable=False),
    "save an iterator": lambda: save(
        folder + "new", iter([((key,), node["w"]) for key, node in tree.items()]), durable=False
    ),
    "save as gzip": lambda: save(folder + "new", tree, compress=True, durable=False),
    "to_bytes": lambda: serialization.to_bytes(tree),
    "dumps": lambda: treepack.dumps(tree),
    "metadata": lambda: treepack.dumps({}, metadata=[(i, str(i)) for i in range(4000)]),
    "load": lambda: load(saved),
    "load gzip": lambda: load(gz),
    "load into a target": lambda: load(saved, tree),
    "load a part": lambda: load(saved, select="layer1*/w"),
    "loads": lambda: treepack.loads(data),
    "from_bytes": lambda: serialization.from_bytes(tree, data),
    "open": opened(saved),
    "open without index": opened(plain),
    "open gzip": opened(gz),
    "salvage": opened(plain, salvage=True),
    "a slice": opened(saved, lambda file: file["layer7/w"][1:2]),
    "keys": opened(saved, lambda file: [len(file[key]) for key in file]),
    "repr": opened(saved, repr),
    "verify": lambda: treepack.verify(saved),
    "verify without index": lambda: treepack.verify(plain),
    "verify gzip": lambda: treepack.verify(gz),
    "read_metadata": lambda: treepack.read_metadata(saved),
    "abstract": lambda: treepack.abstract(saved),
    "read_stream": lambda: list(treepack.read_stream(stream)),
    "write_stream": lambda: treepack.write_stream(
        folder + "new", ((("a", key), node["w"]) for key, node in tree.items())
    ),
    "packed_size": lambda: treepack.packed_size(tree),
    "pack_into": lambda: treepack.pack_into(tree, buffer),
    "buffers": lambda: treepack.buffers(tree),
    "compress text": lambda: compress(text, threads=4),
    "compress noise": lambda: compress(noise, threads=4),
    "compress few values": lambda: compress(few, threads=4),
    "compress slowly": lambda: compress(text, level=6),
    "decompress": lambda: decompress(own, threads=4),
    "decompress what others made": lambda: decompress(foreign),
    "decompress in steps": lambda: decompress(foreign, progress=lambda *_: None),
    "save shards": lambda: save(folder + "new shards", sharded, sharded=True, durable=False),
    "load shards": lambda: load(folder + "shards"),
    "open shards": opened(folder + "shards"),
    "a slice of shards": opened(folder + "shards", lambda file: np.asarray(file["k1"][1:3])),
    "verify shards": lambda: treepack.verify(folder + "shards"),
    "metadata of shards": lambda: treepack.read_metadata(folder + "shards"),
    "save in the background": lambda: save(folder + "new", tree, background=True).result(),
    "save shards in the background": lambda: save(
        folder + "new shards", sharded, sharded=True, background=True
    ).result(),
    "save elsewhere": lambda: save("memory://new", tree),
    "load from elsewhere": lambda: load("memory://saved"),
    "load with casts": lambda: load(saved, half, cast=True),
}

# CPython loses its MemoryError where there is none for a frame or for the place in a traceback, and
# a thread that has no room for its stack is a RuntimeError.
LOST = repr(SystemError("error return without exception set"))
FINE = {"enough", "MemoryError", LOST, repr(RuntimeError("can't start new thread"))}
# The same for a frame of a Python function that the core calls.
NO_FRAME = " returned NULL without setting an exception')"
failed = 0
for name, work in VERBS.items():
    work()  # imports all that is needed
    fill()
    more, enough = 0.1, 0
    while enough < 2 and more < 30:
        found = outcome(name, work, more)
        enough += found == "enough"
        is_lost = found.startswith("SystemError('<function ") and found.endswith(NO_FRAME)
        if found not in FINE and not is_lost and "errno 12" not in found.lower():
            print(f"{name} with {more:.3f} MB: {found}", flush=True)
            failed += 1
        more += step
sys.exit(failed > 0)
"""


def test_there_is_a_memory_error_in_every_verb(tmp_path: Path):
    """With `TREEPACK_SWEEP=0.03` or so, the limits are that many megabytes apart."""
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        # So that nothing is taken from what has been given back.
        "PYTHONMALLOC": "malloc",
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "MALLOC_TOP_PAD_": "4096",
        # A backtrace needs memory, too: it must not be waited for.
        "RUST_BACKTRACE": "1",
    }
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)  # in which parts of entries might stay
    step = os.environ.get("TREEPACK_SWEEP", "1.3")
    done = subprocess.run(
        [sys.executable, "-c", HELPERS + SWEEP, step, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=None if "TREEPACK_SWEEP" in os.environ else 1800,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr


LONG_KEYS = """
import msgpack, numpy as np, sys
import treepack
from treepack import serialization

LONG = "k" * (800 << 10)
array = lambda dtype: msgpack.ExtType(1, msgpack.packb(([1], dtype, bytes(4))))
below = lambda leaf: {LONG: {f"x{number}": leaf for number in range(50)}}
FILES = {
    "whole": msgpack.packb(below(array("float32"))),
    "bad": msgpack.packb(below(array("no dtype"))),
    "not ASCII": msgpack.packb({"\\x1b" * (200 << 10): array("no dtype")}),
    "cut short": msgpack.packb(below(array("float32")))[:-2],
    "dtype": msgpack.packb({"a": array(LONG)}),
}

def read(data, **options):
    with treepack.open(data, **options) as file:
        return repr(file), [np.asarray(leaf) for _, leaf in file.leaves()]

VERBS = {
    "load": treepack.loads,
    "template": lambda data: treepack.loads(data, {"k": {"x1": np.ones(1)}}, strict="exact"),
    "select": lambda data: treepack.load(data, select="*/x1"),
    "open": read,
    "salvage": lambda data: read(data, salvage=True),
    "verify": lambda data: treepack.verify(data).corrupt,
    "from_bytes": lambda data: serialization.from_bytes({"k": 1}, data),
}

def tried(work, data):
    try:
        work(data)
    except ValueError:
        pass

# CPython loses its MemoryError where there is none for a frame.
LOST = repr(SystemError("error return without exception set"))
failed = 0
for verb, work in VERBS.items():
    for name, data in FILES.items():
        tried(work, data)  # imports all that is needed
        for more in range(1, 12, int(sys.argv[1])):
            found = outcome("", lambda: tried(work, data), more / 2)
            if found not in ("enough", "MemoryError", LOST):
                print(f"{verb} of {name} with {more / 2} MB: {found}", flush=True)
                failed += 1
sys.exit(failed > 0)
"""


def test_there_is_a_memory_error_where_keys_are_long() -> None:
    """Errors have paths, for which there may be no memory."""
    command = [sys.executable, "-c", HELPERS + LONG_KEYS, tiers.either("7", "7", nightly="1")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
