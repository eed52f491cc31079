from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import treepack._core as core
from treepack._src import dtypes as _dtypes
from treepack._src.arrays.deferred import InContent
from treepack._src.formats import SEPARATOR, Format, Leaves, Write, readable_suffixes
from treepack._src.formats.exchange import Alone, exchange_folder_of
from treepack._src.formats.named import named, nested
from treepack._src.formats.safetensors.header import INDEX_SUFFIX, SUFFIXES, has_suffix
from treepack._src.formats.safetensors.reading import RepositoryReader, SafetensorsReader
from treepack._src.formats.safetensors.writing import (
    DEFAULT_SIZE,
    Save,
    leaves_to_save,
    size_of,
    text_metadata,
)
from treepack._src.options import Export, Saved, Writing
from treepack._src.storage.address import Address
from treepack._src.storage.content import Openable, Opened
from treepack.errors import DecodeError


class Safetensors(Format):
    name = library = "safetensors"
    title = "a safetensors file"
    suffixes = SUFFIXES
    separators = (SEPARATOR,)
    reads_paths = is_saved = is_split = True
    directories = "Hugging Face"

    def recognizes(self, content: core.Content) -> bool:
        return core.convertible(content) == self.name

    def open(self, source: Openable, opened: Opened | None, **options: Any) -> Any:
        if opened is None:
            return RepositoryReader(source, **options)
        return SafetensorsReader(source, opened, **options)

    def find(
        self, path: Address, names: Sequence[str], has_checkpoint: Callable[[], bool]
    ) -> Callable[..., Any] | None:
        is_one = any(has_suffix(name, SUFFIXES) for name in names)
        return functools.partial(RepositoryReader, path, names) if is_one else None

    def check(self, path: Address, export: Export, options: Mapping[str, Any]) -> None:
        for name, reason in _NOT_HERE.items():
            if options.get(name) not in (None, False):
                raise ValueError(f"{name}= does not apply to safetensors, {reason}: leave it out")
        if has_suffix(path, (INDEX_SUFFIX,)):
            raise ValueError(f"{INDEX_SUFFIX} is the suffix of an index: choose another path")
        if export.max_shard_size is None:
            return
        for suffix in readable_suffixes():
            if has_suffix(path, (suffix,)):
                raise ValueError(
                    f"max_shard_size= applies to directories, and the suffix {suffix} is for one "
                    "file: choose another path"
                )

    def exchange_folder(self, path: Address) -> Address | None:
        return exchange_folder_of(path) if has_suffix(path) else path

    def content_of(self, tree: Any, saved: Saved) -> tuple[Leaves, Mapping[str, str] | None]:
        return leaves_to_save(tree, saved.static), text_metadata(saved.metadata)

    def write(
        self,
        path: Address,
        leaves: Leaves,
        metadata: Mapping[str, str] | None,
        writing: Writing,
        export: Export,
        *,
        snapshot: bool = False,
        exchange: Any = None,
    ) -> Write:
        arrays = named(leaves, export.separator)
        size = DEFAULT_SIZE if export.max_shard_size is None else export.max_shard_size
        most = None if has_suffix(path) else size_of(size)
        more: Any = {"snapshot": snapshot, "exchange": exchange or Alone()}
        return Save(path, arrays, metadata, writing, most, **more)

    def tree_of(self, content: core.Content, separator: str, max_size: int | None) -> Any:
        header = core.Tensors.read(content)
        arrays = {}
        for name, dtype, shape, start in header.arrays():
            if (resolved := _dtypes.resolve(dtype.encode())) is None:
                raise DecodeError(_dtypes.unsupported(dtype), path=name)
            arrays[name] = InContent(shape, resolved, content, start)
        return nested(arrays, separator), header.metadata


_NOT_HERE = {
    "compress": "which are never compressed",
    "level": "which are never compressed",
    "align": "which are aligned to 8 bytes",
    "base": "which have no differences",
}

FORMAT = Safetensors()
