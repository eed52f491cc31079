"""Safetensors files and repositories of them as checkpoints.

header ──▶ layout of arrays in the file ──▶ content ──▶ catalog, as of any file
headers ──▶ layout with gaps ──▶ manifest, as of a sharded checkpoint
"""

from __future__ import annotations

import bisect
import functools
import itertools
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import treepack._core as core
from treepack._src import paths as _paths
from treepack._src.calls import mode_of
from treepack._src.formats import SEPARATOR
from treepack._src.formats.safetensors.header import (
    INDEX,
    INDEX_SUFFIX,
    SHARD,
    WHOLE,
    has_suffix,
)
from treepack._src.leaves.absent import ABSENT
from treepack._src.options import Reading
from treepack._src.printable import printable
from treepack._src.readers.reader import Place, Reader, StayLazy
from treepack._src.readers.unchecked import UncheckedReader
from treepack._src.sharded.reading import ShardedReader
from treepack._src.storage.address import Address
from treepack._src.storage.content import Openable, Opened
from treepack._src.storage.foreign import substitute
from treepack._src.storage.naming import naming
from treepack._src.tasks import run
from treepack.errors import DamagedFileError, DecodeError, NoManifestError, TreepackError


def _header_of(content: core.Content, *, salvage: bool) -> core.Tensors:
    try:
        return core.Tensors.read(content, salvage=salvage)
    except DecodeError as error:
        if (text := substitute(content)) is None:
            raise
        raise DecodeError(f"it is {text}; {error.reason}") from error


def _damage_of(header: core.Tensors) -> str | None:
    return None if header.damage is None else printable(header.damage)


class SafetensorsReader(Reader):
    format = "safetensors"
    separator = SEPARATOR
    has_types = False
    bytes_after = 0  # the headers around arrays are in memory

    def __init__(
        self,
        source: Openable,
        opened: Opened,
        header: core.Tensors | None = None,
        beside: list[str] | None = None,
        **options: Any,
    ):
        if header is None:
            header = _header_of(opened.content, salvage=options.get("salvage", False))
        metadata = header.metadata
        encoded = None if metadata is None else core.encode_value(metadata)
        layout = header.layout(opened.content, encoded, beside=beside or [])
        laid = core.Content.laid(layout, [opened.content])
        opened = opened._replace(content=laid, damage=opened.damage or _damage_of(header))
        super().__init__(source, opened, **options)


class RepositoryReader(UncheckedReader, ShardedReader):
    format = "safetensors"
    separator = SEPARATOR
    has_types = False

    def __init__(
        self,
        source: Address,
        names: Sequence[str] | None = None,
        *,
        salvage: bool = False,
        **options: Any,
    ):
        """`names` are of all files in a directory, if they are known."""
        self._names = names
        self._lost: list[DamagedFileError] | None = [] if salvage else None
        super().__init__(source, salvage=salvage, **options)
        self.nbytes = sum(nbytes for _, nbytes, _ in self._expected)
        self._damage = "; ".join(error.reason for error in self._lost or ()) or None

    def _lose(self, error: DamagedFileError) -> None:
        if self._lost is None:
            raise error
        self._lost.append(error)

    def _damage_of_files(self) -> Iterator[str]:
        return iter(())  # noted when their headers are read

    def _place(self, name: str) -> Address:
        return self._path / name if name else self._path

    def _read_manifest(self, source: Openable) -> tuple[bytes, core.Manifest]:
        name = None
        if has_suffix(source, (INDEX_SUFFIX,)):
            name = os.path.basename(self._path)  # noqa: PTH119
            self._path = self._path.beside("")
        names, is_file = self._names, has_suffix(source)
        if names is None and (name or not is_file):
            names = _names_in(self._path)
        index = _read_index(self._path, names, name, self._lose)
        files = sorted(set(index.values())) or _files_in(names or (), self._lose)
        if not files and is_file:
            files = [_ITSELF]
        self._opened = opened = self._open_all(files)
        if self._lost:
            index = _those_in(opened, index)
        arrays = [*index] or [row[0] for _, header in opened.values() for row in header.arrays()]
        self._beginnings = _beginnings(arrays)
        metadata: dict[str, str] = {}
        for _, header in opened.values():
            metadata.update(header.metadata or {})
        contents = [data.content for data, _ in opened.values()]

        def joined_by(index: dict[str, str]) -> tuple[core.Manifest, core.Layout]:
            return core.Tensors.manifest(
                [header for _, header in opened.values()],
                contents,
                [(file, data.nbytes) for file, (data, _) in opened.items()],
                index,
                core.encode_value(metadata) if metadata else None,
                max_size=self._max_size,
            )

        try:
            manifest, layout = joined_by(index)
        except DecodeError as error:
            if not index:  # files of several models have the same names
                raise
            self._lose(DamagedFileError(error.message, error.offset, error.path))
            manifest, layout = joined_by(_those_in(opened, index))
        self._laid = core.Content.laid(layout, contents)
        identity = [(file, header.checksum) for file, (_, header) in opened.items()]
        return repr(identity).encode(), manifest

    def _encoding(self) -> core.Content:
        laid = self._laid
        del self._laid  # the catalog keeps it
        return laid if self._path.is_local else self.manifest.content

    def lazily(
        self, place: Place, reading: Reading, marks: core.Marks | None, stays: StayLazy | None
    ) -> dict[int, Any] | None:
        if not self.is_local:
            return None
        if reading.arrays == "numpy" or (stays is None and not reading.everywhere):
            return {}
        catalog, arrays = self.catalog, {}
        for value in catalog.leaf_values(place.value, _PARTED_BYTES):
            if marks is None or value in marks:
                parts = _paths.parts(catalog.path_of(value, place.value))
                if stays is None or stays(parts):
                    arrays[value] = self.leaf(value, [*place.parts, *parts])
        return arrays

    def read(
        self, place: Place, reading: Reading, marks: core.Marks | None, stays: StayLazy | None
    ) -> Any:
        given = self.lazily(place, reading, marks, stays)
        if given is None:
            return super().read(place, reading, marks, stays)
        return self.catalog.read(
            place.value,
            copy=reading.copy,
            threads=reading.threads,
            marks=marks,
            absent=ABSENT,
            given=given,
        )

    def close(self) -> None:
        super().close()
        self._opened = {}

    def _open_all(self, names: list[str]) -> dict[str, tuple[Opened, core.Tensors]]:
        """Opens all files and reads their headers, of remote ones many at a time."""
        opening: list[Callable[[], tuple[Opened, core.Tensors] | DamagedFileError]]
        opening = [functools.partial(self._open, name) for name in names]
        opened = {}
        results = run(opening, self._path.at_once)
        for name, result in zip(names, results, strict=True):
            if isinstance(result, DamagedFileError):
                self._lose(result)
                continue
            data, header = opened[name] = result
            if damage := data.damage or _damage_of(header):
                self._lose(DamagedFileError(": ".join(filter(None, [name, damage]))))
        if not opened:
            reasons = [error.reason for error in self._lost or ()]
            raise DamagedFileError("; ".join(reasons) or "the directory has no safetensors file")
        inflated = sum(data.inflated for data, _ in opened.values())
        if self._max_size is not None and inflated > self._max_size:
            raise TreepackError(f"the decompressed files exceed max_size={self._max_size} bytes")
        return opened

    def _open(self, name: str) -> tuple[Opened, core.Tensors] | DamagedFileError:
        place = self._place(name)
        with naming(place):
            try:
                salvage = self._lost is not None
                opened = Opened.of(
                    place,
                    mmap=self._mmap,
                    salvage=salvage,
                    max_size=self._max_size,
                    regular=name != _ITSELF,
                )
                return opened, _header_of(opened.content, salvage=salvage)
            except DecodeError as error:
                if name == _ITSELF:
                    raise
                return DamagedFileError(f"{name}: {error.message}", error.offset, error.path)
            except FileNotFoundError:
                # Of huggingface_hub's cache, which has links; other files may have been replaced.
                if name == _ITSELF or not stat.S_ISLNK(mode_of(place, follow_symlinks=False)):
                    raise
                return DamagedFileError(
                    f"{name} is a link to a file that is not there: download it, too"
                )

    def _checked(self, name: str, nbytes: int, record: int) -> Reader:
        place = self._place(name)
        if name not in self._opened:  # another thread has closed it
            raise ValueError(f"the file {self.name} is closed")
        opened, header = self._opened[name]
        with naming(place):
            options = self._options | {"salvage": False, "max_size": None}
            return SafetensorsReader(place, opened, header, self._beginnings, **options)


def _beginnings(names: list[str]) -> list[str]:
    ordered = sorted({*names})

    def begins_another(name: str) -> bool:
        start = f"{name}{SEPARATOR}"
        after = bisect.bisect_left(ordered, start)
        return ordered[after : after + 1] != [] and ordered[after].startswith(start)

    pairs = itertools.pairwise(ordered)  # what a name begins follows it
    return [name for name, after in pairs if after.startswith(name) and begins_another(name)]


# The name of a file that is the checkpoint itself.
_ITSELF = ""

# Smaller arrays are read whole.
_PARTED_BYTES = 1 << 20


def _those_in(
    opened: Mapping[str, tuple[Opened, core.Tensors]], index: dict[str, str]
) -> dict[str, str]:
    there = {file: {row[0] for row in header.arrays()} for file, (_, header) in opened.items()}
    return {array: file for array, file in index.items() if array in there.get(file, ())}


# Names of several files without an index, and the number of these files.
_NUMBERED = re.compile(r"(.*)-(\d{5,})-of-(\d{5,})\.safetensors")


# The name that PEFT gives to the file of an adapter.
_ADAPTER = "adapter_model.safetensors"


def _files_in(names: Sequence[str], lose: Callable[[DamagedFileError], None]) -> list[str]:
    """Returns the safetensors files of a directory without an index.

    Variants and other models beside `model.safetensors`, or beside its parts, and adapters beside
    any model are left out: each is read by its own path.
    """
    if WHOLE in names:  # beside it, parts are of a save that was interrupted
        return [WHOLE]
    files = [name for name in names if has_suffix(name)]
    files = [name for name in files if SHARD.fullmatch(name)] or files
    files = [name for name in files if name != _ADAPTER] or files
    for name in files:
        numbered = _NUMBERED.fullmatch(name)
        if numbered is None:
            continue
        before, width, count = numbered[1], len(numbered[2]), numbered[3]
        for number in range(1, int(count) + 1):
            part = f"{before}-{number:0{width}}-of-{count}.safetensors"
            if part not in files:
                text = f"the directory has {name}, but lacks {part} and an index: its save or "
                lose(DamagedFileError(f"{text}download has not finished"))
                return files
    return files


def _names_in(path: Address) -> list[str] | None:
    """Returns `None` if the directory may not be listed, as of a web server."""
    entries = path.listed()
    return None if entries is None else [entry.name for entry in entries]


def _read_index(
    path: Address,
    names: Sequence[str] | None,
    given: str | None,
    lose: Callable[[DamagedFileError], None],
) -> dict[str, str]:
    indices = [name for name in names or () if name.endswith(INDEX_SUFFIX)]
    if given is not None or INDEX in indices:
        indices = [given or INDEX]
    elif not indices or WHOLE in (names or ()):
        return {}
    if len(indices) > 1:
        raise NoManifestError(
            f"the directory has several indices: {', '.join(indices)}: load one of them by its path"
        )
    data = (path / indices[0]).read_bytes()
    try:
        files = json.loads(data)["weight_map"]
        if not isinstance(files, dict) or not {*map(type, files.values())} <= {str}:
            raise TypeError("weight_map must be a map of strings to strings")
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        text = substitute(data) or f"not an index of safetensors: {error}"
        lose(DamagedFileError(f"{indices[0]} is {text}"))
        return {}
    there, missing = {"": names}, set()
    for file in sorted(set(files.values())):
        folder, _, name = file.rpartition("/")
        is_inside = {"", ".", ".."}.isdisjoint(file.split("/"))
        if is_inside and folder not in there:
            there[folder] = None if names is None else _names_in(path / folder) or []
        listed = there[folder] if is_inside else ()
        if listed is not None and name not in listed:
            text = f"{indices[0]} names {file}, which is not in the directory: download it, too"
            lose(DamagedFileError(text))
            missing.add(file)
    return {array: file for array, file in files.items() if file not in missing}
