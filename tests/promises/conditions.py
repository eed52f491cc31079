"""What is wrong, or unusual, around a call, and which outcomes are right then."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax

from treepack._src.claims import lease

VALUE, ERROR, EITHER = "the value", "an error", "the value or an error"
ANYTHING = "no crash"  # of verbs that do not promise to notice damage


class Condition(NamedTuple):
    """A condition.

    Attributes:
      around: Runs the call in it.
      prepare: Changes the files of the form before the call.
      outcome: The outcome: `VALUE`, `ERROR`, or `EITHER`.
      takes: The groups of sources that can be in it.
      is_of_writers: Whether only verbs that write can be in it.
      option: The option that it passes to the verb.
    """

    around: Callable[[Callable[[], Any]], Any] = lambda call: call()
    prepare: Callable[[Path, random.Random], None] = lambda _, rng: None
    outcome: str = VALUE
    takes: frozenset[str] = frozenset({"path", "URL", "data", "file object", "open"})
    is_of_writers: bool = False
    option: tuple[str, Any] | None = None
    name: str = ""

    @property
    def is_of_files(self) -> bool:
        """Whether the saved files are damaged."""
        return self.outcome != VALUE and not self.is_of_writers and self.option is None


def largest(path: Path) -> Path:
    """Returns the largest file of a form."""
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return max(sorted(files), key=lambda each: each.stat().st_size)


def hidden(path: Path, _: random.Random) -> None:
    """Puts files beside each entry: of macOS, editors, NFS and other programs."""
    folders = {path.parent, *(each for each in path.rglob("*") if each.is_dir())}
    if path.is_dir():
        folders.add(path)
    for folder in folders:
        for each in list(folder.iterdir()):
            for name in (f"._{each.name}", f".#{each.name}"):
                (folder / name).write_bytes(b"\0\5\x16\7\0\2\0\0Mac OS X")
        (folder / ".DS_Store").write_bytes(b"\0\0\0\1Bud1")
        (folder / ".nfs0000000000000001").write_bytes(b"")
        for name in ("README.md", "config.json", "events.out.tfevents.1"):
            (folder / name).write_bytes(b"{}")


def flip(path: Path, rng: random.Random) -> None:
    """Flips a bit of the largest file."""
    file = largest(path)
    data = bytearray(file.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)


def cut(path: Path, rng: random.Random) -> None:
    """Truncates the largest file."""
    file = largest(path)
    os.truncate(file, rng.randrange(file.stat().st_size))


def zero_tail(path: Path, rng: random.Random) -> None:
    """Zeroes the last sectors of the largest file."""
    file = largest(path)
    data = file.read_bytes()
    kept = rng.randrange(len(data)) // 512 * 512
    file.write_bytes(data[:kept] + bytes(len(data) - kept))


def fifo(path: Path, _: random.Random) -> None:
    """Replaces the largest file of a directory, or the base of a patch, by a pipe."""
    base = path.with_name("base")
    file = largest(path) if path.is_dir() else base
    file.unlink()
    os.mkfifo(file)


def device(path: Path, _: random.Random) -> None:
    """Replaces the largest file by a link to a device that has no end."""
    file = largest(path)
    file.unlink()
    file.symlink_to("/dev/zero")


def in_no_directory(call: Callable[[], Any]) -> Any:
    folder = tempfile.mkdtemp()
    with contextlib.chdir("/"):
        os.chdir(folder)
        Path(folder).rmdir()
        try:
            return call()
        finally:
            os.chdir("/")


def guarded(call: Callable[[], Any]) -> Any:
    with jax.transfer_guard("disallow"):
        return call()


def by_eight_threads(call: Callable[[], Any]) -> Any:
    results: list[Any] = []
    start = threading.Barrier(8)

    def run() -> None:
        start.wait()
        try:
            results.append((call(), None))
        except BaseException as error:
            results.append((None, error))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _, error in results:
        if error is not None:
            raise error
    assert all(result == results[0][0] for result, _ in results)
    return results[0][0]


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 1e-3, 1e-3)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def among_signals(call: Callable[[], Any]) -> Any:
    """Interrupts system calls (EINTR) a thousand times a second."""
    with _signals():
        return call()


def interrupted(call: Callable[[], Any]) -> Any:
    """Sends Ctrl-C when the fiftieth function of the package begins, then calls it once more."""
    count = 0

    def profile(frame: Any, event: str, _: Any) -> None:
        nonlocal count
        if event == "call" and frame.f_globals.get("__name__", "").startswith("treepack"):
            count += 1
            if count == 50:
                signal.raise_signal(signal.SIGINT)

    with contextlib.suppress(KeyboardInterrupt):
        sys.setprofile(profile)
        try:
            call()
        finally:
            sys.setprofile(None)
    return call()


def on_a_full_disk(call: Callable[[], Any]) -> Any:
    """Lets no file grow above 1,000 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        return call()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def without_locks(call: Callable[[], Any]) -> Any:
    with mock.patch.object(lease, "_lock", return_value=None):
        return call()


CONDITIONS: dict[str, Condition] = {
    "nothing": Condition(),
    "other files beside": Condition(prepare=hidden, takes=frozenset({"path", "URL"})),
    "no working directory": Condition(in_no_directory),
    "jax.transfer_guard": Condition(guarded),
    "eight threads": Condition(by_eight_threads, takes=frozenset({"path", "URL"})),
    "flipped bit": Condition(prepare=flip, outcome=EITHER),
    "cut": Condition(prepare=cut, outcome=EITHER),
    "zeroed tail": Condition(prepare=zero_tail, outcome=EITHER),
    "FIFO in it": Condition(prepare=fifo, outcome=EITHER, takes=frozenset({"path"})),
    "device in it": Condition(prepare=device, outcome=EITHER, takes=frozenset({"path"})),
    "small max_size": Condition(option=("max_size", 1000), outcome=ERROR),
    "signals": Condition(among_signals),
    "Ctrl-C": Condition(interrupted, takes=frozenset({"path", "URL"})),
    "full disk": Condition(on_a_full_disk, outcome=EITHER, is_of_writers=True),
    "no locks": Condition(without_locks, is_of_writers=True),
}

CONDITIONS = {name: each._replace(name=name) for name, each in CONDITIONS.items()}
