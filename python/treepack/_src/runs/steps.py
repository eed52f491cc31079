from __future__ import annotations

import contextlib
import itertools
import operator
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self, TypeVar

from treepack._src.api.structure import is_checkpoint
from treepack._src.claims.directory import Directory, Names, warn_of_kept
from treepack._src.interop import jax as _jax
from treepack._src.options import StorageOptions
from treepack._src.printable import warn
from treepack._src.sharded.reading import unless_replaced
from treepack._src.storage.address import Address, Location
from treepack._src.storage.naming import naming
from treepack._src.storage.store import Entry
from treepack.errors import TreepackError

T = TypeVar("T")

# An integer as Python writes it, so that a step has one name; of at most 63 bits.
_INTEGER = re.compile(r"0|[1-9][0-9]{0,17}")

# A prefix, such an integer, and the suffix of a file of `save`.
_NUMBERED = re.compile(
    rf"(.*\D|)({_INTEGER.pattern})((?:\.treepack|\.msgpack)?(?:\.gz)?)", re.DOTALL
)

# A file of a publisher.
_VERSION = re.compile(r"version_\d+-[0-9a-f]{16}\.(treepack|patch)")

# The suffix of the file that pins a checkpoint, after the checkpoint's name.
_PIN = ".keep"


# The maximum number of other prefixes of which one file is opened, and of inner directories.
_MOST_OTHERS = 5

# Numbers with more digits are not found in names.
_MOST_NUMBER = 10**18


def checked(name: str, number: Any, cure: str, *, least: int = 0) -> int:
    """An error ends with the `cure`."""
    try:
        if isinstance(number, bool):
            raise TypeError("a bool is an integer, too")
        integer = operator.index(_jax.fetched(number))
    except TypeError:  # arrays of NumPy and JAX have the method, of any shape
        raise TypeError(f"{name} must be an integer, got {number!r:.100}: {cure}") from None
    if not least <= integer < _MOST_NUMBER:
        raise ValueError(f"{name} must be an integer from {least} to 10**18 - 1, got {integer}")
    return integer


class Folder:
    def __init__(self, directory: Address, prefix: str):
        inner, self.begin = os.path.split(prefix)
        self.directory = directory / inner if inner else directory

    @classmethod
    def of(cls, location: Location, prefix: str, storage_options: StorageOptions = None) -> Self:
        return cls(Address.of(location, storage_options).fixed(), prefix)

    @classmethod
    def given(cls, location: Location, prefix: str, storage_options: StorageOptions = None) -> Self:
        return cls(Address.directory(location, storage_options), prefix)

    @property
    def is_local(self) -> bool:
        return self.directory.is_local

    def name(self, step: object) -> str:
        return f"{self.begin}{_jax.fetched(step)}"

    def path(self, name: str = "") -> Address:
        return self.directory / name if name else self.directory

    def fixed(self) -> Self:
        directory = self.directory.absolute()
        return self if directory == self.directory else type(self)(directory, self.begin)

    def warn_of_others(self, caller: str) -> None:
        listing, start = self.listing(), f"{self.path().shown} has no checkpoint of the prefix"
        if (text := _other_content(listing.names())) is not None:
            warn(f"{start} {self.begin!r}: {text}")
            return
        for name, cure in itertools.islice(listing.others(caller).items(), _MOST_OTHERS):
            if self._has_checkpoint(name):
                warn(f"{start} {self.begin!r}, but {name!r}: {cure}")
        if (run := self._run_in(listing)) is not None:
            warn(f"{start} {self.begin!r}, but {run!r} in it has: pass that to {caller}")
        elif self.is_local and self._has_checkpoint():  # of another library
            warn(f"{start} {self.begin!r}: {_ITSELF}")

    def _has_checkpoint(self, name: str = "") -> bool:
        with contextlib.suppress(OSError, ImportError, TreepackError):  # it cannot be read
            return is_checkpoint(self.path(name))
        return False

    def _run_in(self, listing: Listing) -> str | None:
        names = (entry.name for entry in listing.entries if entry.is_directory and self.is_local)
        for name in itertools.islice(names, _MOST_OTHERS):
            with contextlib.suppress(OSError):
                if type(self)(self.path(name), self.begin).numbered():
                    return name
        return None

    def entry(self, name: str = "") -> CheckpointEntry:
        inside = self.path(name).listed()
        return CheckpointEntry(self, Entry(name, inside is not None), inside)

    def pin(self, name: str) -> None:
        self.write(name + _PIN, b"")

    def write(self, name: str, data: bytes) -> None:
        self.path(name).write_bytes(data, durable=True)

    def read(self, name: str) -> bytes | None:
        try:
            return self.path(name).read_bytes()
        except FileNotFoundError:
            return None

    def step(self, name: str) -> int | None:
        text = name.removeprefix(self.begin)
        is_step = name.startswith(self.begin) and _INTEGER.fullmatch(text)
        return int(text) if is_step else None

    def listing(self, entries: list[Entry] | None = None) -> Listing:
        if entries is None:
            entries = self.directory.entries(hidden=self.begin.startswith("."))
        return Listing(self, entries)

    @contextlib.contextmanager
    def tidying(self, done: str) -> Iterator[None]:
        """Lets a block remove old checkpoints; an error is a warning, which begins with `done`."""
        try:
            yield
        except (OSError, TreepackError) as error:
            warn(f"{done}, but older checkpoints could not be removed: {error}")

    def numbered(self) -> dict[int, CheckpointEntry]:
        return self.listing().numbered()


_ITSELF = "it is a checkpoint itself: load it, or pass the directory above it"


def _other_content(names: list[str]) -> str | None:
    if Names(names).are_sharded:
        return _ITSELF
    if any(map(_VERSION.fullmatch, names)):
        return "it has the versions of a treepack.Publisher, which a treepack.Subscriber loads"
    return None


class CheckpointEntry:
    def __init__(self, folder: Folder, entry: Entry, inside: list[Entry] | None = None):
        self.name, self.is_directory = entry.name, entry.is_directory
        self._folder, self._inside = folder, inside
        self._names: Names | None = None

    @property
    def path(self) -> Address:
        return self._folder.path(self.name)

    def inside(self) -> list[Entry] | None:
        if self.is_directory and self._inside is None:
            self._inside = self.path.entries()
        return self._inside

    def read(self, work: Callable[[Address], T]) -> T:
        return read_at(self.path, work)

    def names(self) -> Names:
        if self._names is None:
            self._names = Names([entry.name for entry in self.inside() or ()])
        return self._names

    @property
    def is_complete(self) -> bool:
        return not (self.is_directory and self.names().are_unfinished)

    @property
    def is_sharded(self) -> bool:
        return self.is_directory and self.names().are_sharded

    @property
    def is_foreign(self) -> bool:
        return self.is_directory and self.names().has_others


class Listing:
    def __init__(self, folder: Folder, entries: list[Entry]):
        self.folder, self.entries = folder, entries

    def begun(self) -> list[CheckpointEntry]:
        begin = self.folder.begin
        return [
            CheckpointEntry(self.folder, entry)
            for entry in self.entries
            if entry.name.startswith(begin) and not entry.is_temporary
        ]

    def numbered(self) -> dict[int, CheckpointEntry]:
        """Returns the entries that are named by the prefix and an integer, in order.

        Not `step_7.bak` or `step_007`. In a store, a file comes before a directory of its name.
        """
        numbered: dict[int, CheckpointEntry] = {}
        for entry in sorted(self.begun(), key=lambda entry: entry.is_directory):
            if (step := self.folder.step(entry.name)) is not None:
                numbered.setdefault(step, entry)
        return dict(sorted(numbered.items()))

    def pinned(self) -> set[int]:
        names = (entry.name for entry in self.entries if entry.name.endswith(_PIN))
        steps = {self.folder.step(name.removesuffix(_PIN)) for name in names}
        return {step for step in steps if step is not None}

    def names(self) -> list[str]:
        return [entry.name for entry in self.entries]

    def others(self, caller: str) -> dict[str, str]:
        """Returns the last name of each prefix and suffix, with a cure."""
        matches = filter(None, map(_NUMBERED.fullmatch, self.names()))
        begin, others = self.folder.begin, dict[tuple[str, str], tuple[str, str]]()
        for match in sorted(matches, key=lambda match: (match[1], int(match[2]))):
            prefix, number, suffix = match.groups()
            if suffix:
                cure = f"names of its checkpoints have no suffix: rename it {begin + number!r}"
            else:
                cure = f"pass prefix={prefix!r:.100} to {caller}"
            if suffix or prefix != begin:
                others[prefix, suffix] = match[0], f"{cure}, or load it"
        return dict(others.values())

    def remove(self, gone: Iterable[str], unfinished: Iterable[str]) -> None:
        """Removes checkpoints, in order, and unfinished directories of killed saves if possible.

        Without permission for checkpoints, warns. Another OSError is raised; of a local directory,
        after the others are removed.
        """
        path_of, kept, failed = self.folder.path, [], list[OSError]()
        directories = {entry.name for entry in self.entries if entry.is_directory}
        for name in gone:
            path = path_of(name)
            try:
                if name in directories:
                    Directory.at(path).remove()
                else:
                    self.folder.directory.remove_files([name])
            except PermissionError:
                kept.append(path)
            except OSError as error:
                failed.append(error)
                if not self.folder.is_local:  # it may not answer: each request takes long
                    break
        if kept:
            warn_of_kept(kept)
        for name in unfinished:
            Directory.at(path_of(name)).remove_unfinished()
        for entry in self.entries:
            if entry.name.startswith(f".{self.folder.begin}") and entry.is_temporary:
                path_of(entry.name).remove_dead()
        if failed:
            raise failed[0]


def read_at(path: Address, work: Callable[[Address], T]) -> T:
    def attempt() -> T:
        with naming(path):
            return work(path)

    return unless_replaced(attempt)
