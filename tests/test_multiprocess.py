"""Arrays of a program that runs in several processes, each with devices of its own."""

from __future__ import annotations

import socket
import subprocess
import sys

PROGRAM = """
import sys
import jax, numpy as np, treepack
from flax import serialization as flax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

port, index = sys.argv[1:]
jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=int(index))
mesh = Mesh(np.array(jax.devices()), "x")
assert len(jax.devices()) == 2 * len(jax.local_devices())
value = np.arange(8.0, dtype=np.float32)

def array(spec):
    sharding = NamedSharding(mesh, spec)
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

replicated, sharded = array(PartitionSpec()), array(PartitionSpec("x"))
assert not replicated.is_fully_addressable
assert treepack.serialization.to_bytes({"w": replicated}, align=1) == flax.to_bytes({"w": value})
assert treepack.serialization.validate_serializable({"w": replicated}) == (True, [])
for save in (treepack.serialization.to_bytes, treepack.serialization.msgpack_serialize):
    try:
        save({"a": {"w": sharded}})
    except ValueError as error:
        assert "a/w" in str(error) and "other processes" in str(error), error
    else:
        raise AssertionError("no error")
valid, issues = treepack.serialization.validate_serializable({"a": {"w": sharded}})
assert not valid and issues[0].startswith("a/w: the array has shards on devices of other"), issues
print("done")
"""


def test_replicated_arrays_are_saved_and_sharded_ones_refused():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, port, str(index)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output
        assert "done" in output
