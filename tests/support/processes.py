"""Programs that run in several processes of `jax.distributed`.

Most of them take less time than importing jax does. So two processes have it imported, and fork to
run a program: two, since processes beside each other have other hashes of strings, too.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO

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
_held = contextlib.ExitStack()
atexit.register(_held.close)


def own_port() -> int:
    """Returns a port that no other program gets, even before a program listens on it.

    A program that binds it must share it (SO_REUSEPORT), as the server of jax does; the system does
    not choose it when a program binds any port.
    """
    held = _held.enter_context(socket.socket())
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind(("127.0.0.1", 0))
    port: int = held.getsockname()[1]
    return port


# Receives a byte for each program, with files: the request, stdin, stdout and where to say how the
# program ends. The fork runs it as its own `__main__`, and ends as any program does.
SERVER = """
import contextlib, json, os, socket, sys, warnings
import jax, jax.numpy, numpy, treepack

def received():
    control = socket.socket(fileno=int(sys.argv[1]))
    while True:
        message, files, _, _ = socket.recv_fds(control, 1, 4)
        if not message:
            os._exit(0)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # who waited for earlier programs
                pass
        if os.fork() == 0:
            break
        for file in files:
            os.close(file)
    control.close()
    request, stdin, stdout, status = files
    program = os.fork()
    if program:
        os.close(stdin), os.close(stdout)
        os.write(status, b"%d\\n" % program)
        code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
        os.write(status, b"%d\\n" % code)
        os._exit(0)
    os.close(status)
    os.dup2(stdin, 0), os.dup2(stdout, 1), os.dup2(stdout, 2)
    os.close(stdin), os.close(stdout)
    with open(request) as file:
        job = json.load(file)
    os.chdir(job["directory"])
    os.environ.clear()
    os.environ.update(job["environment"])
    sys.argv[1:] = job["args"]
    return job["program"]

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # jax warns of forks: it is not in use yet
    program = received()
exec(compile(program, "<program>", "exec"))
"""


@functools.cache
def _server(_: int) -> socket.socket:
    """Starts one that forks, and returns the pipe that takes programs."""
    ours, theirs = socket.socketpair()
    with theirs:
        server = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )

    def stop() -> None:
        ours.close()
        server.wait()

    atexit.register(stop)
    return ours


class Forked:
    """A program in a fork, with as much of `subprocess.Popen` as is used here."""

    def __init__(self, program: str, args: list[str], index: int, stdin: int | None) -> None:
        self.returncode: int | None = None
        self.stdin: IO[str] | None = None
        request = {
            "program": program,
            "args": args,
            "directory": str(Path.cwd()),
            "environment": dict(os.environ),
        }
        read_output, output = os.pipe()
        read_status, status = os.pipe()
        if stdin is None:
            given = os.open(os.devnull, os.O_RDONLY)
        else:
            given, write_input = os.pipe()
            self.stdin = os.fdopen(write_input, "w")
        with tempfile.TemporaryFile("w+") as file:
            json.dump(request, file)
            file.flush()
            file.seek(0)
            files = [file.fileno(), given, output, status]
            socket.send_fds(_server(index % 2), [b"."], files)
        for one in (given, output, status):
            os.close(one)
        self.stdout = os.fdopen(read_output)
        self._status = os.fdopen(read_status, "rb", buffering=0)
        self.pid = int(self._status.readline())

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            self.returncode = int(self._status.readline())
        return self.returncode

    def kill(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and soon tells how
                os.kill(self.pid, signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """Returns the rest of what the program prints; kills it when the time is over."""
        if self.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.stdin.close()
        timer = threading.Timer(timeout or threading.TIMEOUT_MAX, self.kill)
        timer.start()
        with self.stdout:
            output = self.stdout.read()
        self.wait()
        timer.cancel()
        timer.join()
        self._status.close()
        return output, None


def start(
    program: str,
    count: int,
    *args: object,
    devices: int = 1,
    stdin: int | None = None,
    fresh: bool = False,
) -> list[Forked] | list[subprocess.Popen[str]]:
    """Starts a program in so many processes, which have so many devices each.

    Args:
      program: What follows `START`.
      count: How many processes.
      *args: The program has them as `args`.
      devices: How many each process has.
      stdin: `subprocess.PIPE`, if the program is to read what is written to it.
      fresh: Whether the processes import jax by themselves.
    """
    port = own_port()
    commands = [[*map(str, (port, count, index, devices, *args))] for index in range(count)]
    if not fresh:
        return [
            Forked(START + program, command, index, stdin) for index, command in enumerate(commands)
        ]
    return [
        subprocess.Popen(
            [sys.executable, "-c", START + program, *command],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )
        for command in commands
    ]


def run(
    program: str,
    count: int,
    *args: object,
    devices: int = 1,
    timeout: float = 1800,
    fresh: bool = False,
) -> str:
    """Runs a program in so many processes, and returns what the first of them has printed.

    Raises:
      AssertionError: If one of them fails.
    """
    processes = start(program, count, *args, devices=devices, fresh=fresh)
    try:
        outputs = [process.communicate(timeout=timeout)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output
    return outputs[0]
