"""Programs whose calls of the system are traced, and replayed: see `tracer.c`."""

from __future__ import annotations

import functools
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from waiting import HANG_S

is_traced = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64" or not shutil.which("cc"),
    reason="traces calls of Linux on x86-64, and needs a C compiler",
)


def ask(text: str) -> bool:
    """Tells the tracer something, and returns what it says."""
    return os.access(f"/@{text}", os.F_OK)


@functools.cache
def _tracer() -> Path:
    made = Path(tempfile.mkdtemp()) / "tracer"
    source = Path(__file__).with_name("tracer.c")
    subprocess.run(["cc", "-O1", "-o", made, source], check=True)
    return made


def run(module: str, call: str, folder: Path, *, traced: bool = True) -> tuple[str, list[str]]:
    """Runs a function of a module, perhaps under the tracer; returns its output and the log."""
    log_path = folder / "log"
    log_path.write_text("no log\n")
    command = [_tracer(), log_path] if traced else []
    code = f"import {module} as it, pathlib, sys; it.{call}"
    done = subprocess.run(
        [*command, sys.executable, "-W", "ignore", "-c", code, folder],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=20 * HANG_S,
    )
    if done.returncode == 3:
        pytest.skip("processes cannot be traced here")
    log = log_path.read_text().splitlines()
    # asm/unistd_64.h lists the numbers of calls.
    assert done.returncode == 0, f"{done.stderr}\n{str(log[-1:])[:200]}"
    return done.stdout, log


class Disk:
    """A folder as a disk has it: what was synced, and what was changed since.

    Nothing but what was synced is there for certain. A file that was written since has what was
    synced, nothing, zeros, or a part; names changed since are as before or after, in order or one
    alone.
    """

    VARIANTS = 4

    def __init__(self, folder: str, before: Path):
        self.folder = folder
        self.content: dict[int, bytearray] = {}  # by a number of ours
        self.synced: dict[int, bytes] = {}
        self.inodes: dict[str, int] = {}
        self.names: dict[str, int | None] = {}  # a directory is None
        self.durable: dict[str, int | None] = {}
        self.pending: list[tuple[str, str, str, int | None]] = []
        for path in sorted(before.rglob("*")):
            name = f"{folder}/{path.relative_to(before)}"
            self.names[name] = None if path.is_dir() else self._new(path.read_bytes())
        self.durable = dict(self.names)

    def _new(self, content: bytes) -> int:
        number = len(self.content)
        self.content[number] = bytearray(content)
        self.synced[number] = content
        return number

    def apply(self, line: str) -> None:
        """Does what a line of the log says."""
        what, _, rest = line.partition(" ")
        if what == "create":
            inode, name = rest.split(" ", 1)
            if name not in self.names:
                self._change("link", name, "", self._new(b""))
            number = self.names[name]
            assert number is not None
            self.inodes[inode] = number
        elif what in ("write", "truncate", "extend"):
            inode, at, *data = rest.split(" ")
            content = self.content[self.inodes[inode]]
            if what == "write":
                new = bytes.fromhex(data[0])
                content.extend(bytes(max(0, int(at) + len(new) - len(content))))
                content[int(at) : int(at) + len(new)] = new
            elif what == "truncate":
                del content[int(at) :]
                content.extend(bytes(int(at) - len(content)))
            else:
                content.extend(bytes(max(0, int(at) - len(content))))
        elif what == "sync":
            inode, name = rest.split(" ", 1)
            if name == self.folder or self.names.get(name, 0) is None:
                self._sync_directory(name)
            else:
                # A file that is older than the log is found by its name, perhaps as a new link.
                number = self.inodes.get(inode, self.names.get(name))
                assert number is not None, f"{name} was synced, but never created"
                self.synced[number] = bytes(self.content[number])
        elif what in ("rename", "link"):
            old, new = rest.split("\t")
            self._change(what, old, new, self.names[old])
        elif what in ("unlink", "rmdir", "mkdir"):
            self._change(what, rest, "", None)
        else:
            assert what in ("say", "fails"), line

    def _change(self, what: str, old: str, new: str, number: int | None) -> None:
        change = (what, old, new, number)
        self.pending.append(change)
        self._changed(self.names, change)

    @staticmethod
    def _changed(names: dict[str, int | None], change: tuple[str, str, str, int | None]) -> None:
        what, old, new, number = change
        if what == "rename":
            names.pop(old, None)
            names[new] = number
            for name in [*names]:  # in a directory
                if name.startswith(old + "/"):
                    names[new + name.removeprefix(old)] = names.pop(name)
        elif what == "link":
            names[new or old] = number
        elif what == "mkdir":
            names[old] = None
        else:
            names.pop(old, None)

    def _sync_directory(self, name: str) -> None:
        rest = []
        for change in self.pending:
            if str(Path(change[2] or change[1]).parent) == name:
                self._changed(self.durable, change)
            else:
                rest.append(change)
        self.pending = rest

    def now(self) -> dict[str, bytes | None]:
        """Returns what is there when a process has been killed now."""
        return {
            name: None if number is None else bytes(self.content[number])
            for name, number in self.names.items()
        }

    def states(self) -> Iterator[dict[str, bytes | None]]:
        """Yields what may be there after the power has been lost now."""
        chosen = [self.pending[:end] for end in range(len(self.pending) + 1)]
        chosen += [[change] for change in self.pending[1:]]
        for changes in chosen:
            names = dict(self.durable)
            for change in changes:
                self._changed(names, change)
            # Nothing is in a directory that is not there.
            there = {
                name: number
                for name, number in names.items()
                if all(
                    str(above) in names
                    for above in Path(name).parents
                    if str(above).startswith(self.folder + "/")
                )
            }
            for variant in range(self.VARIANTS):
                yield {
                    name: None if number is None else self._variant(number, variant)
                    for name, number in there.items()
                }

    def _variant(self, number: int, variant: int) -> bytes:
        content, synced = bytes(self.content[number]), self.synced[number]
        if content == synced:
            return content
        half = len(content) // 2
        return (synced, content, bytes(len(content)), content[:half] + bytes(half))[variant]


def write_state(state: dict[str, bytes | None], disk: Disk, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in sorted(state.items()):
        path = folder / Path(name).relative_to(disk.folder)
        if content is None:
            path.mkdir()
        else:
            path.write_bytes(content)
