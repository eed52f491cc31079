"""Links the files of a run's last step whose shards are unchanged: `Series(unchanged="link")`.

    shards of this process, of large arrays blocks of rows
        ──▶ probes, digests ──▶ unchanged: where most of a file is, link the file
                           └──▶ the rest: changed shards to one file, others to a second

Each manifest names linked files like its own; names start with the random name of the save that
wrote them. Only files of the step that the same object saved or resumed last are linked. Records
have the digests of shards, so no earlier array is read.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import time
import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

import treepack._core as core
from treepack._src import paths as _paths
from treepack._src.arrays.deferred import Deferred
from treepack._src.claims.directory import Directory
from treepack._src.interop import jax as _jax
from treepack._src.leaves.leaves import Transfer
from treepack._src.printable import warn
from treepack._src.sharded.files import ShardFile
from treepack._src.sharded.reading import ShardedReader
from treepack._src.storage.address import Address
from treepack.errors import CorruptionError, TreepackError

# The maximum number of linked files of a process and step; with the two that it writes, 20.
_MOST_LINKED = 18

# Larger shards are divided into blocks of rows, of which only those that changed are written.
BLOCK_BYTES = 8 << 20

# The number of elements that show most changes of a shard, without a digest of all.
_SAMPLE = 1024

# By default, all files are written again after both this number of checkpoints and of seconds.
_FULL_CHECKPOINTS = 50

_FULL_S = 86_400


class Part(NamedTuple):
    """A shard that this process saves.

    Attributes:
      cell: Its number in the array.
      keys: The keys of its leaf in a file of shards.
      text: The path of that leaf.
      source: The JAX array that it is a shard of, if any.
    """

    path: str
    cell: int
    keys: list[str]
    text: str
    kind: tuple[str, tuple[int, ...]]
    data: Any
    source: weakref.ref[Any] | None

    @property
    def may_change(self) -> bool:
        return self.source is None and not isinstance(self.data, Deferred)


@functools.lru_cache(maxsize=64)
def name_of(dtype: Any) -> str:
    return str(dtype)


def parts_of(
    path: list[str], array: Any, shards: Iterable[tuple[int, list[str], Any]]
) -> list[Part]:
    text = _paths.text(path)
    source = weakref.ref(array) if _jax.is_array(array) else None
    parts = []
    for cell, name, data in shards:
        keys = [*path, *name]
        kind = name_of(data.dtype), tuple(data.shape)
        parts.append(Part(text, cell, keys, _paths.text(keys), kind, data, source))
    return parts


FileRow = tuple[str, int, int]
"""The name of a file, its size in bytes, and the CRC-32 of its record."""


class StoredShard(NamedTuple):
    kind: tuple[str, tuple[int, ...]]
    digest: bytes
    file: str


class Step(NamedTuple):
    """The files of a saved step that have shards of this process.

    Attributes:
      sizes: The bytes of all shards in each file.
      probes: Digests of a few elements of each shard by `Part.text`; `None` if unknown.
      full: The number of checkpoints since the last one without links, and its time.
      age: The number of steps before it in the run.
      is_shared: Whether several processes may have shards in one of the files.
    """

    path: Address
    files: dict[str, FileRow]
    sizes: dict[str, int]
    shards: dict[str, StoredShard]
    sources: dict[str, weakref.ref[Any]]
    probes: dict[str, bytes | None]
    full: tuple[int, float]
    age: int
    is_shared: bool

    def add(
        self,
        row: FileRow,
        parts: Sequence[Part],
        digests: dict[str, bytes],
        size: int | None = None,
    ) -> None:
        name = row[0]
        self.files[name] = row
        self.sizes[name] = sum(part.data.nbytes for part in parts) if size is None else size
        for part in parts:
            self.shards[part.text] = StoredShard(part.kind, digests[part.text], name)
            if part.source is not None:
                self.sources[part.path] = part.source

    def is_same_array(self, part: Part) -> bool:
        """JAX arrays cannot change, so equal objects have equal elements."""
        before = self.sources.get(part.path)
        array = None if before is None or part.source is None else part.source()
        return array is not None and before is not None and before() is array

    def unchanged(
        self, parts: Sequence[Part], probes: Sequence[bytes | None], threads: int | None
    ) -> dict[int, str]:
        files, likely = {}, []
        for number, (part, probe) in enumerate(zip(parts, probes, strict=True)):
            stored = self.shards.get(part.text)
            if stored is None or stored.kind != part.kind:
                continue
            before = self.probes.get(part.text)
            if self.is_same_array(part):
                files[number] = stored.file
            elif probe is None or before is None or probe == before:
                likely.append(number)
        digests = digests_of([parts[number].data for number in likely], threads)
        for number, digest in zip(likely, digests, strict=True):
            stored = self.shards[parts[number].text]
            if stored.digest == digest:
                files[number] = stored.file
        return files

    def alive(self, parts: Sequence[Part], unchanged: dict[int, str]) -> Alive:
        counter = Counter[str]()
        for number, file in unchanged.items():
            counter[file] += parts[number].data.nbytes
        return [(file, nbytes, self.sizes[file]) for file, nbytes in counter.items()]


# The bytes of unchanged shards in files, and of all: rows of a name and both.
Alive = Sequence[tuple[str, int, int]]


def worth_linking(alive: Sequence[Alive]) -> tuple[list[str], bool]:
    """Returns the files of which most is unchanged in all together, and if several share one."""
    sizes = {file: size for rows in alive for file, _, size in rows}
    counter = Counter[str]()
    for file, nbytes, _ in itertools.chain.from_iterable(alive):
        counter[file] += nbytes
    most = [file for file, nbytes in counter.most_common() if 2 * nbytes >= sizes[file] > 0]
    linked = most[:_MOST_LINKED]
    places = Counter(file for rows in alive for file, _, _ in rows)
    return linked, any(places[file] > 1 for file in linked)


class Terms(NamedTuple):
    """The choices of process 0 about the links of a step; `is_shared` if all agree on them."""

    full: tuple[int, float]
    is_shared: bool


class LinkErrors:
    """Suppresses the errors of `Address.link_to`; warns of a damaged file."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if isinstance(error, CorruptionError):
            warn(
                f"{error}. It is not linked again, but every earlier step that shares it is damaged"
            )
        return isinstance(error, (CorruptionError, OSError, NotImplementedError))


class Linking:
    """`step` was saved or resumed last, once its files are known.

    If it `has_damage`, the next save writes all files again.
    """

    def __init__(self, full_every: int | None):
        self._full_every = full_every
        self.step: Step | None = None
        self.has_damage = False
        self._resumed: Address | None = None
        self._has_warned = False

    def has_saved(self, step: Step) -> None:
        self.step = step
        self.has_damage &= step.full[0] > 1

    def resume(self, path: Address) -> None:
        self.step, self._resumed = None, path

    def previous(self, parts: Sequence[Part]) -> Step | None:
        path, self._resumed = self._resumed, None
        if path is not None:
            with contextlib.suppress(OSError, TreepackError):  # removed, replaced or damaged
                self.step = _read(path, parts)
        return self.step

    def terms(self, last: Step | None) -> Terms:
        now = time.time()
        if last is None:
            return Terms((1, now), False)
        count, since = last.full
        is_old = count >= _FULL_CHECKPOINTS and abs(now - since) >= _FULL_S
        is_due = is_old if self._full_every is None else count >= self._full_every
        is_due |= self.has_damage
        return Terms((1, now) if is_due else (count + 1, since), last.is_shared)

    def link(
        self,
        last: Step,
        step: Step,
        unchanged: dict[int, str],
        parts: Sequence[Part],
        files: Iterable[str],
        directory: Directory,
        *,
        durable: bool,
    ) -> set[int]:
        done: set[int] = set()
        mine = {*unchanged.values()}
        # The two tiers may be in different file systems, so copies between them are no surprise.
        warns = os.path.dirname(last.path) == os.path.dirname(step.path)  # noqa: PTH120
        for name in filter(mine.__contains__, files):
            directory.linked.add(name)
            with LinkErrors():  # then its leaves are written
                source, target, nbytes = last.path / name, directory.file(name), last.files[name][1]
                self._link(source, target, nbytes, warns, durable=durable)
                numbers = [number for number, file in unchanged.items() if file == name]
                done.update(numbers)
                shards = [parts[number] for number in numbers]
                digests = {shard.text: last.shards[shard.text].digest for shard in shards}
                step.add(last.files[name], shards, digests, last.sizes[name])
        return done

    def _link(
        self, source: Address, target: Address, nbytes: int, warns: bool, *, durable: bool
    ) -> None:
        try:
            source.link_to(target, nbytes, durable=durable)
        except FileNotFoundError:
            raise
        except OSError as error:
            if not source.is_local:
                raise
            source.copy_to(target)
            if warns and not self._has_warned:
                self._has_warned = True
                warn(
                    f"{target.shown} is a copy of an unchanged file, since it cannot be a hard "
                    f"link: {error.strerror}. Keep the run in a file system with hard links, or "
                    "pass unchanged='write'"
                )


def _read(path: Address, parts: Sequence[Part]) -> Step | None:
    with contextlib.closing(ShardedReader(path)) as reader:
        about = ShardFile(reader.file(0).catalog).about
        if "full" not in about:
            return None
        catalog = reader.catalog
        values: dict[str, int] = dict(catalog.leaves(0))
        saved = {
            path: None
            if values.get(path) is None
            else reader.manifest.shards(catalog, values[path])
            for path in {part.path for part in parts}
        }
        places: dict[str, int] = {}
        for part in parts:
            if (array := saved[part.path]) is None:
                continue
            shards, is_host = array
            is_one = is_host and len(shards) == 1
            if part.cell < len(shards) and (is_one or shards.name(part.cell) == part.keys[-1]):
                places[part.text] = shards.files[part.cell]
        needed = sorted({*places.values()})
        reader.open_files(needed)
        full, is_shared = (about["full"][0], about["full"][1]), _jax.processes()[1] > 1
        step = Step(path, {}, {}, {}, {}, {}, full, about["age"], is_shared)
        for number in needed:
            row = reader.manifest.files[number]
            file = ShardFile(reader.file(number).catalog)
            step.files[row[0]], step.sizes[row[0]] = row, file.nbytes
            for text, kind, digest in file.shards():
                if places.get(text) == number:
                    step.shards[text] = StoredShard(kind, digest, row[0])
        return step


def fixed(parts: Sequence[Part], *, on_host: bool) -> list[Part]:
    """Copies NumPy arrays, which other threads may change.

    With `on_host`, JAX arrays are on the host as well, and may be donated.
    """
    moved = [on_host and _jax.is_array(part.data) for part in parts]
    for part in itertools.compress(parts, moved):
        Transfer(part.data).start()

    def one(part: Part, is_moved: bool) -> Part:
        if is_moved:
            return part._replace(data=in_host_memory(part.data))
        return part._replace(data=np.array(part.data)) if part.may_change else part

    return [*map(one, parts, moved)]


def in_host_memory(array: Any) -> np.ndarray:
    view = Transfer.view(array)
    return Transfer(array).start().finish()[0][1] if view is None else view


def probes_of(parts: Sequence[Part], last: Step | None, threads: int | None) -> list[bytes | None]:
    probes: list[bytes | None] = [None] * len(parts)
    samples = {}
    for number, part in enumerate(parts):
        if last is not None and last.is_same_array(part):
            probes[number] = last.probes.get(part.text)
        elif (sample := _sample(part.data)) is not None:
            samples[number] = sample
    for number, digest in zip(samples, digests_of([*samples.values()], threads), strict=True):
        probes[number] = digest
    return probes


def _sample(data: Any) -> np.ndarray | None:
    view = Transfer.view(data) if _jax.is_array(data) else data
    if not isinstance(view, np.ndarray) or not view.flags.c_contiguous:
        return None
    middle = view.size // 2
    return view.reshape(-1)[middle : middle + _SAMPLE]


def digests_of(arrays: list[Any], threads: int | None) -> list[bytes]:
    return ShardFile.split(core.digests(arrays, threads=threads))
