"""Reads sharded checkpoints: assembles arrays from the shards that are needed.

manifest ──▶ encoding with gaps ──▶ catalog, as of a file
    └──────▶ the file of each shard ──▶ ShardedArray.box ──▶ a device, or memory
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import os
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np

import treepack._core as core
from treepack._src import paths as _paths
from treepack._src.forks import Locked
from treepack._src.leaves.prng import Key
from treepack._src.options import Reading, Status, Tell, tell_from
from treepack._src.readers.reader import (
    DAMAGED_REST,
    LazyArray,
    Place,
    Reader,
    StayLazy,
    Verified,
)
from treepack._src.readers.shard_boxes import DAMAGE, Files, ShardedArray, find, ranges_of
from treepack._src.sharded.files import DIGEST_BYTES, MANIFEST, ShardFile, process_of, save_of
from treepack._src.storage.address import Address
from treepack._src.storage.content import Opened
from treepack._src.storage.fetch import fetching
from treepack._src.storage.naming import naming
from treepack._src.storage.store import ConditionError
from treepack._src.tasks import Task, run
from treepack.errors import (
    CorruptionError,
    DecodeError,
    NewerVersionError,
    NoManifestError,
    TreepackError,
)

T = TypeVar("T")

# The maximum size of files that replace shards by accident, such as git-LFS pointers.
_MOST_FOREIGN_BYTES = 1024

# The end of a manifest (docs/sharded.md).
_MARK = b"\x93treepm\n"

# The maximum compression ratio of gzip.
_MOST_INFLATED = 1032


class ReplacedError(CorruptionError):
    """The checkpoint was saved again."""

    means_damage = False


def unless_replaced(work: Callable[[], T]) -> T:
    for _ in range(_ATTEMPTS):
        try:
            return work()
        except ReplacedError:
            continue
    return work()


# The maximum number of retries. Each follows another complete save, of which signal handlers may
# make several while one attempt runs.
_ATTEMPTS = 50


class ShardedReader(Files):
    format = "treepack, a sharded directory"
    is_one_file = False
    is_summed = True

    def __init__(
        self, source: Address, *, mmap: bool = True, max_size: int | None = None, **options: Any
    ):
        """`max_size` limits the decompressed manifest and all files together."""
        self._locked = Locked()
        # The working directory may change before all files are open.
        self._path: Address = source.absolute()
        self._max_size, self._mmap = max_size, mmap
        self._data, self.manifest = self._read_manifest(source)
        self._expected = self.manifest.files
        self.linked = {
            name: nbytes
            for name, nbytes, _ in self._expected
            if save_of(name) != save_of(self._expected[0][0])
        }
        nbytes = len(self._data) + sum(nbytes for _, nbytes, _ in self._expected)
        if self.manifest.content.nbytes > _MOST_INFLATED * nbytes:
            raise DecodeError(
                f"the manifest is damaged: its arrays cannot fit into files of {nbytes} bytes"
            )
        opened = Opened(self._encoding(), inflated=self.manifest.inflated, nbytes=nbytes)
        super().__init__(source, opened, mmap=mmap, max_size=max_size, **options)
        self.is_local = self._path.is_local
        self._remembers = False
        self._digests: dict[int, dict[str, bytes]] = {}  # of the leaves of each file
        self._files: list[Task[Reader] | None] = [None] * len(self._expected)
        self.catalogs: list[core.Catalog | None] = [None] * len(self._expected)

    def _place(self, name: str) -> Address:
        return self._path / name

    def _read_manifest(self, source: Address) -> tuple[bytes, core.Manifest]:
        """Returns bytes that differ between checkpoints, and the manifest."""
        try:
            data = self._place(MANIFEST).read_bytes()
        except FileNotFoundError:
            raise NoManifestError(f"the directory has no {MANIFEST}") from None
        try:
            manifest = core.Manifest.decode(data, max_size=self._max_size)
        except NewerVersionError:
            raise
        except DecodeError as error:
            text = core.described(core.Content.lent(data))
            if text is None or data.endswith(_MARK):
                raise
            raise DecodeError(f"{MANIFEST} is {text}; {error.reason}") from error
        for name, _, _ in manifest.files:
            if name in ("", ".", "..") or "\0" in name or os.path.basename(name) != name:  # noqa: PTH119
                raise DecodeError(
                    f"the manifest is damaged: {name!r} is not a file name in its directory"
                )
        return data, manifest

    def _encoding(self) -> core.Content:
        return self.manifest.content

    def salvaging(self) -> Reader:
        reader = super().salvaging()
        if isinstance(reader, ShardedReader) and reader is not self:
            reader._locked = Locked()
            reader._files = [None] * len(self._expected)
            reader.catalogs = [None] * len(self._expected)
        return reader

    def processes(self) -> dict[int, int]:
        names = [name for name, _, _ in self._expected]
        # Linked files of earlier saves may be of processes with the same numbers.
        mine = [at for at, name in enumerate(names) if save_of(name) == save_of(names[0])]
        numbers = {process_of(names[at]): at for at in reversed(mine)}
        numbers.pop(-1, None)
        return numbers

    def file(self, number: int) -> Reader:
        with self._locked.lock:
            if self.is_closed:
                raise ValueError(f"the file {self.name} is closed")
            task = self._files[number]
            if task is None or task.is_suspended:
                opening = functools.partial(self._checked, *self._expected[number])
                task = self._files[number] = Task(opening)
        try:
            file = task.result()
        except BaseException:
            with self._locked.lock:
                if self._files[number] is task:
                    self._files[number] = None  # it may be possible to open it later
            raise
        with self._locked.lock:
            if self._files[number] is task:
                self.catalogs[number] = file.catalog
        return file

    def need_files(self, numbers: Iterable[int]) -> None:
        closed = [number for number in numbers if self.catalogs[number] is None]
        self.open_files(closed)
        for number in closed:
            self.file(number)

    def open_files(self, numbers: Iterable[int]) -> None:
        """Opens remote files, many at a time; local files are opened when used."""
        if not self._path.is_local:
            at_once = self._path.at_once
            run([functools.partial(self._open_early, number) for number in numbers], at_once)

    def _open_early(self, number: int) -> None:
        with contextlib.suppress(TreepackError):  # raised where the file is used
            self.file(number)

    def _checked(self, name: str, nbytes: int, record: int) -> Reader:
        place = self._place(name)

        def check_size(size: int) -> None:
            if size == nbytes:
                return
            is_small = size < _MOST_FOREIGN_BYTES
            if is_small and (text := core.described(core.Content.lent(place.read_bytes()))):
                raise CorruptionError(f"{name} is {text}")
            raise CorruptionError(
                f"{name} has the wrong size: expected {nbytes} bytes, found {size}"
            )

        salvages = self._options["salvage"]
        if self.is_local and not salvages:  # before reading its end, which would be misleading
            with contextlib.suppress(FileNotFoundError):
                check_size(place.nbytes())
        try:
            left = None if self._max_size is None else max(0, self._max_size - self.inflated)
            file = Reader.open(place, **(self._options | {"max_size": left}), regular=True)
        except FileNotFoundError:
            raise self.gone(name) from None
        except DAMAGE as error:
            raise CorruptionError(f"{name} is damaged: {error.reason}") from error
        except ConditionError:  # the file was replaced
            raise
        except TreepackError as error:
            if self._max_size is None:
                raise
            raise TreepackError(
                f"{name}: the decompressed checkpoint exceeds max_size={self._max_size} bytes: "
                "pass a larger max_size=, if you trust the data"
            ) from error
        with self._locked.lock:
            self.inflated += file.inflated
            if self._remembers:
                file.remember()
        file_record = file.catalog.record
        if salvages and file_record is None and file.damage is not None:
            return file  # with leaves that are not verified, or have checksums of their own
        check_size(file.nbytes)
        if zlib.crc32(file_record or b"") != record:
            raise CorruptionError(
                f"{name} is not the file that was saved: its record does not match the manifest"
            )
        return file

    def gone(self, name: str) -> CorruptionError:
        with contextlib.suppress(FileNotFoundError, DecodeError):
            if self._place(MANIFEST).read_bytes() != self._data:
                return ReplacedError("the checkpoint was replaced by another save: open it again")
        return CorruptionError(
            f"{name} is missing: copy it, too, or read the other leaves with "
            "treepack.open(directory, salvage=True) or `treepack salvage`"
        )

    def explained(self, number: int, error: BaseException) -> BaseException:
        name, _, _ = self._expected[number]
        if isinstance(error, FileNotFoundError):
            corruption: CorruptionError = self.gone(name)
        elif isinstance(error, DAMAGE):
            corruption = CorruptionError(f"{name} is damaged: {error.reason}")
        else:
            naming(self._place(name)).add_to(error)
            return error
        corruption.__cause__ = error
        return corruption

    def close(self) -> None:
        with self._locked.lock:
            super().close()
            for number, task in enumerate(self._files):
                self._files[number] = self.catalogs[number] = None
                if task is not None and not task.is_suspended and task.end():
                    with contextlib.suppress(TreepackError):
                        task.result().close()

    @property
    def identity(self) -> str:
        # CRC-32 would be constant, since the manifest ends with its own CRC.
        return hashlib.blake2b(self._data, digest_size=8).hexdigest()

    @property
    def damage(self) -> str | None:
        files = self._damage_of_files() if self.salvages else ()
        return "; ".join(filter(None, [super().damage, *files])) or None

    def _damage_of_files(self) -> Iterator[str]:
        self.open_files(range(len(self._expected)))
        for number in range(len(self._expected)):
            try:
                file = self.file(number)
            except CorruptionError as error:
                yield str(error)
            else:
                if file.damage is not None:
                    yield f"{file.short_name}: {file.damage}"

    def unverified(self) -> list[int]:
        lost: dict[int, set[int]] = {}
        for number in range(len(self._expected)):
            with contextlib.suppress(CorruptionError):
                lost[number] = {*self.file(number).unverified()}
        values = []

        def note(value: int, parts: list[str]) -> None:
            with contextlib.suppress(DecodeError):  # then it is corrupt
                array = self._sharded(value, parts)
                if array is not None and array.is_in(lost):
                    values.append(value)

        if any(lost.values()):
            Place(self, 0, []).state(note)
        return values

    def array(self, value: int, parts: list[str], kind: tuple[Any, ...]) -> LazyArray:
        shards = self.manifest.shards(self.catalog, value)
        if shards is None:
            return super().array(value, parts, kind)
        return ShardedArray(self, value, parts, kind, shards)

    def _sharded(self, value: int, parts: list[str]) -> ShardedArray | None:
        kind = self.kind(value, parts)
        array = self.array(value, parts, kind) if kind[0] in ("array", "prng_key") else None
        return array if isinstance(array, ShardedArray) else None

    def stored_digest(self, array: LazyArray) -> bytes | None:
        """`None` if records lack digests, or the shards are not contiguous parts of the array."""
        number = self.manifest.array_of(self.catalog, array.number)
        if number is None or not isinstance(array, ShardedArray) or array.dtype != array.stored:
            return None
        counts, is_host = self.manifest.grid(number)
        counts = [*counts] or [1] * array.ndim  # a host array in one shard has no counts
        last = max((axis for axis, count in enumerate(counts) if count > 1), default=0)
        if tuple(counts[:last]) != array.shape[:last]:
            return None
        files, cells = array.files(), core.ShardGrid(array.shape, counts)
        whole, itemsize = bytes(DIGEST_BYTES), array.nbytes // max(1, array.size)
        for cell, file in enumerate(files):
            name = [] if is_host and len(files) == 1 else [cells.name(cell)]
            if file not in self._digests:
                self._digests[file] = ShardFile(self.file(file).catalog).digests()
            digest = self._digests[file].get(_paths.text([*array.parts, *name]))
            if digest is None:
                return None
            elements = math.prod(end - start for start, end in cells.bounds(cell))
            whole = core.join_digests(whole, digest, elements * itemsize)
        return whole

    def compare(self, value: int, parts: list[str]) -> None:
        """Leaves in the manifest share one checksum."""
        if (array := self._sharded(value, parts)) is not None:
            array.compare()

    def prng_key(self, value: int, parts: list[str], kind: tuple[Any, ...]) -> Any:
        data = self.array(value, parts, kind)
        if not isinstance(data, ShardedArray):
            return super().prng_key(value, parts, kind)
        return Key(kind[1], np.asarray(data)).restored()

    def read(
        self, place: Place, reading: Reading, marks: core.Marks | None, stays: StayLazy | None
    ) -> Any:
        read_now: list[ShardedArray] = []

        def waits(array: LazyArray) -> bool:
            if not isinstance(array, ShardedArray):
                return False
            if stays is not None:
                return stays(array.parts[len(place.parts) :])
            return reading.arrays != "numpy" and (reading.everywhere or not array.is_host)

        def expected(value: int, parts: list[str]) -> None:
            array = self._sharded(value, parts)
            if array is None:
                return
            is_key = self.kind(value, parts)[0] == "prng_key"
            if is_key or not waits(array):
                read_now.append(array)

        def leaf(value: int, parts: list[str]) -> Any:
            saved = self.leaf(value, parts)
            if isinstance(saved, LazyArray) and not waits(saved):
                return saved.__array__(copy=reading.copy)
            return saved

        if not self.is_local:
            place.state(expected, marks)
        boxes = [array.plan([slice(None)] * array.ndim) for array in read_now]
        find(boxes)
        with fetching(ranges_of(boxes)):
            return place.state(leaf, marks)

    def remember(self) -> None:
        with self._locked.lock:
            self._remembers = True
            opened = [task for task in self._files if task is not None and not task.is_suspended]
        for task in opened:
            task.result().remember()

    def verify(self, *, threads: int | None, progress: Tell | None) -> Verified:
        """Raises a ReplacedError if another save replaced the checkpoint."""
        catalog = self.catalog
        leaves = []
        arrays = {}
        unplaced: dict[int, Status] = {}  # the manifest has no shards of them

        def note(value: int, parts: list[str]) -> None:
            leaves.append(value)
            try:
                array = self._sharded(value, parts)
            except DecodeError:
                unplaced[value] = "corrupt"
            else:
                if array is not None:
                    arrays[value] = array

        Place(self, 0, []).state(note)
        array_statuses, damage = self._verify_files(arrays, threads, progress or (lambda *_: None))
        own = [super().damage, self.damaged_record(), damage]
        damage = "; ".join(filter(None, own)) or None
        # Other leaves are in the manifest, whose checksum was compared.
        statuses = {value: array_statuses.get(value, "ok") for value in leaves} | unplaced
        for number in catalog.unlike_index():
            if number < len(leaves):
                statuses[leaves[number]] = "corrupt"
            else:
                damage = damage or DAMAGED_REST
        return statuses, damage

    def _verify_files(
        self, arrays: dict[int, ShardedArray], threads: int | None, progress: Tell
    ) -> Verified:
        total = sum(nbytes for _, nbytes, _ in self._expected)
        done = 0
        self.damaged_files = ()
        worst: dict[int, Status] = dict.fromkeys(arrays, "ok")
        damage = []
        cells: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.open_files(range(len(self._expected)))
        for key, array in arrays.items():
            for cell, number in enumerate(array.files()):
                cells[number].append((key, cell))
        for number, (_, nbytes, _) in enumerate(self._expected):
            statuses: dict[int, Status] = {}
            wrong: str | None
            tell = tell_from(progress, done, total)
            try:
                statuses, wrong = self._verify_file(number, threads, tell)
            except ReplacedError:
                raise
            except CorruptionError as error:
                wrong = str(error)
            damage.extend([] if wrong is None else [wrong])
            if "corrupt" in statuses.values():
                self.damaged_files = [*self.damaged_files, self._expected[number][0]]
            for key, cell in cells[number]:
                status = arrays[key].status(cell, number, statuses)
                worst[key] = max(worst[key], status, key=_BADNESS.index)
            done += nbytes
        return worst, "; ".join(damage) or None

    def _verify_file(self, number: int, threads: int | None, progress: Tell) -> Verified:
        file = self.file(number)
        try:
            statuses, wrong = file.verify(threads=threads, progress=progress)
        except FileNotFoundError as error:  # the file was deleted in between
            raise self.gone(self._expected[number][0]) from error
        return statuses, None if wrong is None else f"{file.short_name}: {wrong}"


_BADNESS: list[Status] = ["ok", "unchecked", "corrupt"]
