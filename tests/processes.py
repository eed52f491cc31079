"""Programs that run in several processes of `jax.distributed`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

START = """
import os, sys
port, count, index, devices = map(int, sys.argv[1:5])
args = sys.argv[5:]
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
import jax, jax.numpy as jnp, numpy as np, treepack
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_cpu_collectives_implementation", "gloo")
if count > 1:
    address = f"127.0.0.1:{port}"
    jax.distributed.initialize(address, count, index, initialization_timeout=1800)
"""

# Those that hold ports, until this process ends.
_held: list[socket.socket] = []


def own_port() -> int:
    """Returns a port that nobody else gets, even before a program listens on it.

    Who binds it has to ask to share it, as the server of jax does; the system gives it to nobody
    who asks for any port.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind(("127.0.0.1", 0))
    _held.append(held)
    port: int = held.getsockname()[1]
    return port


def start(
    program: str, count: int, *args: object, devices: int = 1, stdin: int | None = None
) -> list[subprocess.Popen[str]]:
    """Starts a program in so many processes, which have so many devices each."""
    port = own_port()
    return [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                START + program,
                *map(str, (port, count, index, devices, *args)),
            ],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )
        for index in range(count)
    ]


def run(program: str, count: int, *args: object, devices: int = 1, timeout: float = 1800) -> str:
    """Runs a program in so many processes, and returns what the first of them has printed.

    Raises:
      AssertionError: If one of them fails.
    """
    processes = start(program, count, *args, devices=devices)
    try:
        outputs = [process.communicate(timeout=timeout)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output
    return outputs[0]
