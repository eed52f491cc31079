"""Limits of time and memory, and guards of files, imports and output."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MIB = 1 << 20

# Seconds of CPU that a use may take for each MiB, and at least.
SECONDS = 1.0

# Memory that a use may take for each byte, and beside that.
TIMES = 8
FLOOR = 16 * MIB

# Address space above what there is at the start: untouched memory counts here.
SPACE = 2 << 30

# A case that takes so many seconds of CPU is ended by the system.
HANG_S = 60


class Limits:
    """What a use may take.

    Attributes:
      slowest: The most seconds of CPU of a use, and its name.
      largest: The most bytes of memory of a use, its seed and its name.
    """

    def __init__(self) -> None:
        self._clear = os.open("/proc/self/clear_refs", os.O_WRONLY)
        self.slowest: tuple[float, str] = (0.0, "")
        self.largest: tuple[int, str] = (0, "")

    @contextlib.contextmanager
    def time(self, name: str, nbytes: int) -> Iterator[list[str]]:
        """Measures a use of so many bytes; appends to the list what has been exceeded."""
        found: list[str] = []
        begun = time.process_time()
        try:
            yield found
        finally:
            seconds = time.process_time() - begun
            if seconds > SECONDS * max(1.0, nbytes / MIB):
                found.append(f"{seconds:.2f} s of CPU for {nbytes} bytes")
            if seconds > self.slowest[0]:
                self.slowest = (seconds, name)

    @contextlib.contextmanager
    def memory(self, name: str, nbytes: int, max_size: int) -> Iterator[list[str]]:
        """Measures the memory that a use takes, at its peak."""
        found: list[str] = []
        os.pwrite(self._clear, b"5", 0)  # the peak begins here
        before = _peak()
        try:
            yield found
        finally:
            memory = _peak() - before
            if memory > TIMES * nbytes + max_size + FLOOR:
                found.append(f"{memory / MIB:.0f} MiB of memory for {nbytes} + {max_size} bytes")
            if memory > self.largest[0]:
                self.largest = (memory, name)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def limit_space() -> None:
    """Lets the process have so much address space."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + SPACE, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def allow_time() -> None:
    """Lets the process run for as long as a case may take."""
    soft = int(time.process_time()) + HANG_S
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))


# Rights of Landlock: to write, to remove, to make, to rename, to truncate.
_WRITES = 1 << 1 | sum(1 << bit for bit in range(4, 15))
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446


def write_only_in(folder: Path) -> bool:
    """Lets this process write below a folder only; returns whether the system can do that."""
    libc = ctypes.CDLL(None, use_errno=True)
    handled = ctypes.c_uint64(_WRITES)
    ruleset = libc.syscall(_CREATE_RULESET, ctypes.byref(handled), ctypes.sizeof(handled), 0)
    if ruleset < 0:
        return False
    for path, rights in ((folder, _WRITES), (Path("/dev/null"), 1 << 1)):
        parent = os.open(path, os.O_PATH)
        rule = rights.to_bytes(8, "little") + parent.to_bytes(4, "little")
        if libc.syscall(_ADD_RULE, ruleset, 1, rule, 0) != 0:
            return False
        os.close(parent)
    libc.prctl(38, 1, 0, 0, 0)  # no new privileges, which it asks for
    done = libc.syscall(_RESTRICT_SELF, ruleset, 0) == 0
    os.close(ruleset)
    return done


# What no file may cause. Libraries of the command line import parts of themselves late.
_FORBIDDEN = ("import", "exec", "compile", "pickle.find_class", "subprocess.Popen", "os.system")
_FORBIDDEN += ("os.exec", "os.fork", "os.posix_spawn", "socket.connect", "ctypes.dlopen")
_BY_COMMANDS = ("exec", "compile", "import")


class Audit:
    """Collects what a file may not cause, while it is switched on.

    Attributes:
      seen: What has happened since then.
    """

    def __init__(self) -> None:
        self.seen: list[str] | None = None
        self._is_command = False
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if self.seen is None or event not in _FORBIDDEN:
            return
        if event == "compile" and args[1] == "<unknown>":  # `ast.parse`, of a header of npz
            return
        if not (self._is_command and event in _BY_COMMANDS):
            self.seen.append(f"{event} {args[0]!r:.100}")

    @contextlib.contextmanager
    def watching(self, name: str) -> Iterator[list[str]]:
        """Yields a list of what happens in a use."""
        self._is_command = name.startswith("cli ")
        self.seen = found = []
        try:
            yield found
        finally:
            self.seen = None


class Output:
    """What is written to the standard error and output of the system, not of Python."""

    def __init__(self, folder: Path):
        self._file = os.open(folder / "output", os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self.own = os.dup(1)
        os.dup2(self._file, 1)
        os.dup2(self._file, 2)

    def taken(self) -> str:
        """Returns what has been written since."""
        if os.fstat(self._file).st_size == 0:
            return ""
        text = os.pread(self._file, 1 << 20, 0).decode(errors="replace")
        os.ftruncate(self._file, 0)
        return text


Report = Callable[[str, str], None]
"""Takes the name of a use, and what is wrong."""
