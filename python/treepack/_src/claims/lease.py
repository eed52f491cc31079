"""Implements the lease of a directory: a file that only one job can hold while it saves there.

It names host, process and time, is renewed during the save, and is locked where the file system
has locks. The next process replaces it if it is not locked, its process has ended on this machine,
or another host has not renewed it for `EXPIRY_S`. So `commit` checks the lease first.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import secrets
import socket
import stat
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import treepack._core as core
from treepack._src.calls import close, mode_of, repeated, unlink
from treepack._src.interop import jax as _jax
from treepack._src.printable import utc
from treepack._src.storage.address import Address
from treepack._src.storage.naming import naming
from treepack._src.tasks import Task, Thread
from treepack.errors import BusyError

FILE = "lease.treepack"


def make_directory(path: Path) -> None:
    if stat.S_ISREG(mode_of(path)):
        text = (
            "A file has this name, and sharded=True, format= or Series writes a directory: choose "
            "another name"
        )
        raise NotADirectoryError(errno.ENOTDIR, text, str(path))
    core.make_directories(path)


# The seconds between renewals, and until a lease expires whose lock cannot be tested.
RENEW_S = 10.0

EXPIRY_S = 120.0

# A lease can vanish while it is examined, and another one appear.
_ATTEMPTS = 10

# The seconds that its holder needs to write a new one.
_WRITING_S = 0.01


class OwnBusyError(BusyError):
    def __init__(self, text: str, thread: int, token: str):
        super().__init__(text)
        self.thread, self.token = thread, token


class _UnknownError(BusyError):
    """The lease of that job is empty, perhaps not yet written."""


class Permit:
    """Allows a save to complete; always at a URL, where conditions decide."""

    is_held = True

    def __init__(self, directory: str | None = None, name: str = ""):
        """With a local directory, process 0 of the job holds its lease for the save of a name."""
        self._directory, self._name = directory, name

    @classmethod
    @contextlib.contextmanager
    def taken(cls, path: Address, name: str) -> Iterator[Permit]:
        if not path.is_local:
            yield cls()
            return
        directory = Path(path)
        make_directory(directory)
        lease = Lease(directory)
        try:
            with naming(directory):
                lease.take(name)
            yield lease
        finally:
            lease.release()

    def release(self) -> None:
        pass  # only a lease has anything to release

    def check(self) -> None:
        """Raises a BusyError if another job took this process, or process 0, for dead."""
        if self._directory is None:
            return
        data = b""
        with contextlib.suppress(OSError):
            data = Path(self._directory, FILE).read_bytes()
        if _about(data).get("name") != self._name:
            raise BusyError(f"the lease of process 0 on {self._directory} is gone: save again")

    def commit(self, path: Address, data: bytes, before: Any = None, *, durable: bool) -> None:
        """Writes the small file that completes a save; see `Store.put` and `check`.

        Checks the lease after it, too: without locks, another job may save in between.
        """
        self.check()
        path.write_bytes(data, before, durable=durable)
        self.check()


class Lease(Permit):
    """The lease that this process holds while it saves to a directory.

    `spared` is a save whose lease has expired, but whose process may be alive.
    """

    def __init__(self, directory: Path):
        self._path = directory / FILE
        self.spared: str | None = None
        self._stopped = threading.Event()
        self._renewer: Thread | None = None
        self._data = b""
        # The file, while it is open: apart, so that the lock ends with this object, whatever has
        # interrupted `release`.
        self._files: list[int] = []
        weakref.finalize(self, _end, self._files, self._stopped).atexit = False

    def take(self, name: str) -> None:
        """The caller must `release` it."""
        # The file gets its name when it is locked and written: a process that is killed leaves no
        # empty one.
        temporary = self._path.with_name(f".{FILE}.treepack-{secrets.token_hex(8)}.tmp")
        try:
            try:
                self._take(temporary, name)
            finally:
                unlink(temporary)
        except BaseException:
            self.release()
            raise

    def _take(self, temporary: Path, name: str) -> None:
        self._files.append(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666))
        about = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": time.time(),
            "system": _system(),
            "machine": _machine(),
            "processes": _namespace(),
            "is_locked": _lock(self._files[0], wait=True) is True,
            "name": name,
            "token": f"{_process}-{threading.get_ident()}-{secrets.token_hex(8)}",
        }
        self._data = json.dumps(about).encode()
        self._write()
        _held.add(self)
        self._take_name(temporary)
        with contextlib.suppress(RuntimeError, MemoryError):  # then the lock must be enough
            target = self._files[0] if os.utime in os.supports_fd else self._path
            self._renewer = Thread(functools.partial(_renew, target, self._stopped))

    def _write(self) -> None:
        if os.write(self._files[0], self._data) < len(self._data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        close(repeated(os.dup, self._files[0]))  # which is when NFS shows it to other hosts

    def _take_name(self, temporary: Path) -> None:
        """Only one job can give the file its final name."""
        busy = BusyError(f"{self._path.parent} is being saved to by several other jobs")
        for _ in range(_ATTEMPTS):
            try:
                try:
                    repeated(os.link, temporary, self._path)
                except FileExistsError:
                    raise
                except OSError:  # no links here
                    self._create()
                return
            except FileExistsError:
                try:
                    self._remove_dead()
                except _UnknownError as error:
                    busy = error
                    time.sleep(_WRITING_S)  # until its holder has written it
        raise busy

    def _create(self) -> None:
        """Creates the file where the file system has no hard links.

        In a thread, so that a signal handler which also saves here soon finds it written.
        """

        def create() -> None:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            close(self._files[0])
            self._files[0] = file
            _lock(file, wait=True)
            self._write()

        creating = Task(create)
        try:
            with contextlib.suppress(RuntimeError, MemoryError):
                Thread(creating.attempt).join()
            creating.result()
        finally:
            creating.end()

    def _remove_dead(self) -> None:
        try:
            if not stat.S_ISREG(repeated(self._path.lstat).st_mode):
                text = "This is not a regular file, so not the lease of a save: remove it"
                raise FileExistsError(errno.EEXIST, text, str(self._path))
            file = _open(self._path)
        except FileNotFoundError:
            return  # it is gone by now
        try:
            about = _about(os.read(file, _MOST))
            age = repeated(_now, self._path.parent) - os.fstat(file).st_mtime
            if age < 0:  # the clock was set back: the lease expires from now on
                with contextlib.suppress(OSError):
                    repeated(os.utime, file if os.utime in os.supports_fd else self._path)
                    age = 0
            if not about and age <= EXPIRY_S:
                raise _UnknownError(self._text(about, age))
            # Other processes do not remove a file that is locked here.
            lock = _lock(file)
            if lock is False:
                raise self._busy(about)
            is_here = about.get("is_locked") and about.get("system") == _system()
            if (lock is None or not is_here) and not _has_ended(about):
                if age <= EXPIRY_S:
                    raise self._busy(about, age)
                self.spared = str(about.get("name"))
            self._remove(os.fstat(file))
        finally:
            close(file)

    def _remove(self, dead: os.stat_result) -> None:
        aside = self._path.with_name(f".{FILE}.treepack-{secrets.token_hex(8)}.tmp")
        with contextlib.suppress(FileNotFoundError):
            if not os.path.samestat(dead, repeated(self._path.lstat)):
                return
            # Without locks, others may do the same now: one of them succeeds.
            repeated(self._path.rename, aside)
            try:
                if not os.path.samestat(dead, repeated(aside.lstat)):
                    with contextlib.suppress(OSError):  # else its holder finds it gone
                        repeated(os.link, aside, self._path)
            finally:
                unlink(aside)

    def _busy(self, about: dict[str, Any], age: float | None = None) -> BusyError:
        text, token = self._text(about, age), str(about.get("token"))
        process, _, rest = token.partition("-")
        if process != _process:
            return BusyError(text)
        return OwnBusyError(text, int(rest.partition("-")[0]), token)

    def _text(self, about: dict[str, Any], age: float | None) -> str:
        text = f"{self._path.parent} is being saved to by {_holder(about)}"
        if age is not None:
            when = f"renewed {age:.0f} s ago, expires after {EXPIRY_S:.0f} s: wait, or"
            if age < 0:
                when = f"renewed {-age:.0f} s in the future, is from before the clock was set back:"
            text += f". Its lease, {when} remove {self._path} if that process has ended"
        return text + among_processes()

    def check(self) -> None:
        current = self._content()
        if current != self._data:
            by = f"{_holder(_about(current))} saves there now" if current else "it was removed"
            raise BusyError(
                f"the lease of this process on {self._path.parent} is gone: {by}. It was not "
                f"renewed for more than {EXPIRY_S:.0f} s, or removed by hand"
            )

    @property
    def is_held(self) -> bool:  # type: ignore[override]
        return bool(self._data) and self._content() == self._data

    def _content(self) -> bytes:
        if not self._files:
            return b""  # this is a fork of its holder
        with contextlib.suppress(OSError):
            file = _open(self._path)
            try:
                return os.read(file, _MOST)
            finally:
                with contextlib.suppress(OSError):  # nothing was written
                    os.close(file)
        return b""

    def release(self) -> None:
        # Whatever interrupts it, the lock ends, and with it the lease.
        try:
            self._stopped.set()
            if self._renewer is not None:
                self._renewer.join()
            is_held = self.is_held
            if os.name == "nt":
                _close(self._files)  # Windows removes no open file
            if is_held:
                with contextlib.suppress(OSError):  # it is unlocked all the same
                    repeated(self._path.unlink)
        finally:
            _close(self._files)
            _held.discard(self)


def _renew(target: int | Path, stopped: threading.Event) -> None:
    while not stopped.wait(RENEW_S):
        with contextlib.suppress(OSError):
            repeated(os.utime, target)


def _close(files: list[int]) -> None:
    while files:
        with contextlib.suppress(OSError):  # it is closed all the same, and nothing is lost
            os.close(files.pop())


def _end(files: list[int], stopped: threading.Event) -> None:
    stopped.set()
    _close(files)


_held: weakref.WeakSet[Lease] = weakref.WeakSet()

# The random name of this process, in its leases.
_process = secrets.token_hex(8)

# The maximum size of a lease in bytes.
_MOST = 4096


def _leave_all() -> None:
    """Leaves all leases to the parent; otherwise a lock would last as long as this process."""
    global _process
    _process = secrets.token_hex(8)
    for lease in [*_held]:
        _close(lease._files)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_all)


def _open(path: Path) -> int:
    flags = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        return os.open(path, os.O_RDWR | flags)  # NFS locks only files open for writing
    except PermissionError:
        return os.open(path, os.O_RDONLY | flags)


def _lock(file: int, *, wait: bool = False) -> bool | None:
    """Returns `None` if the file system has no locks."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return None
    return True


def _about(data: bytes) -> dict[str, Any]:
    try:
        about = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return about if isinstance(about, dict) else {}


def among_processes() -> str:
    if _jax.processes()[1] == 1:
        return ""
    return (
        ". Processes of one JAX program save together with sharded=True in all of them, or process "
        "0 saves alone"
    )


def _holder(about: dict[str, Any]) -> str:
    try:
        when = utc(about["since"])
    except (KeyError, TypeError, ValueError, OverflowError, OSError):
        return "another job"
    return f"process {about.get('pid')} on {about.get('host')} since {when}"


def _has_ended(about: dict[str, Any]) -> bool:
    here = socket.gethostname(), _machine()
    seen, process = about.get("processes"), about.get("pid")
    if None in (*here, seen, _namespace()) or (about.get("host"), about.get("machine")) != here:
        return False
    if about.get("system") != _system():
        return True  # before this machine was started
    if seen != _namespace() or type(process) is not int or process <= 0:
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass
    return False


def _system() -> str:
    return _text_of("/proc/sys/kernel/random/boot_id") or socket.gethostname()


def _machine() -> str | None:
    """A restart keeps the identity."""
    return _text_of("/etc/machine-id")


def _namespace() -> str | None:
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115
    except OSError:
        return None


def _text_of(path: str) -> str | None:
    try:
        return Path(path).read_text().strip() or None
    except OSError:
        return None


def _now(directory: Path) -> float:
    with tempfile.TemporaryFile(dir=directory) as file:
        return os.fstat(file.fileno()).st_mtime
