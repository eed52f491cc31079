from __future__ import annotations

import contextlib
from typing import Any, Literal, cast

import treepack._core as core
from treepack._src import formats
from treepack._src.formats import Format
from treepack._src.options import check
from treepack._src.readers.reader import Reader
from treepack._src.sharded.alone import ShardsReader
from treepack._src.sharded.files import FILE, MANIFEST
from treepack._src.sharded.reading import ShardedReader
from treepack._src.storage.address import Address
from treepack._src.storage.content import Openable, Opened
from treepack._src.storage.foreign import WithoutManifest
from treepack.errors import (
    CorruptionError,
    DamagedFileError,
    DecodeError,
    NewerVersionError,
    NoIndexError,
    NoManifestError,
    TreepackError,
)


def open_reader(
    source: Openable,
    *,
    is_directory: bool = False,
    salvage: bool | Literal["alone"] = False,
    max_size: int | None = None,
    base: Any = None,
    place: Openable | None = None,
    join: bool = True,
    **options: Any,
) -> Reader:
    """`base`, `place` and `join` are as for `Opened.of`; an unjoined patch has only metadata.

    With `salvage`, shards with a damaged manifest are opened; with `"alone"`, also without one.
    """
    check("max_size", max_size)
    options |= {"salvage": bool(salvage), "max_size": max_size}
    if not is_directory:
        with contextlib.suppress(IsADirectoryError):
            # A file of treepack is first read at its end.
            named = formats.of_suffix(source)
            if named is not None and named.reads_paths:
                return cast(Reader, named.open(source, None, **options))
            opened = Opened.of(source, base=base, place=place, join=join, **options)
            if not join and core.is_patch(opened.content):
                return _PatchReader(source, opened)
            format = _recognized(opened) if salvage else None
            if format is None:
                try:
                    reader = Reader(source, opened, **options)
                except DecodeError:
                    if (format := _recognized(opened)) is None:
                        raise
                else:
                    # A few first bytes of another format may be a whole value of msgpack.
                    if named is not None and _recognized(opened) is None:
                        raise DecodeError(
                            f"not {named.title}, as its name says: copy it again, or rename it"
                        )
                    return reader
            try:
                return cast(Reader, format.open(source, opened, **options))
            except DecodeError as error:
                if opened.damage is None:
                    raise
                reason = f"{opened.damage}, and of what is left: {error.message}"
                raise DecodeError(reason, error.offset, error.path) from error
    try:
        return ShardedReader(source, **options)
    except NewerVersionError:
        raise
    except NoManifestError:
        found = WithoutManifest(source, MANIFEST)
        opening = formats.in_directory(source, found.names, found.has_checkpoint)
        if opening is None:
            has_shards = any(map(FILE.fullmatch, found.names))
            if salvage == "alone" and has_shards and not found.has_checkpoint():
                return ShardsReader(source, lost=f"{MANIFEST} is missing", **options)
            raise found.error() from None
    except DecodeError as error:
        if not salvage:
            raise
        with contextlib.suppress(CorruptionError):
            return ShardsReader(source, lost=error.reason, **options)
        raise DamagedFileError(error.message, error.offset, error.path) from error
    return cast(Reader, opening(**options))


def open_regular(
    path: Address, *, is_directory: bool = False, is_whole: bool = False, **options: Any
) -> Reader:
    """A pipe or device is a DecodeError.

    With `is_whole`, all of a remote file is read, in one request.
    """
    if path.is_special():
        raise DecodeError("it is not a regular file")
    source = path.downloaded() if is_whole and not is_directory else path
    try:
        reader = open_reader(source, is_directory=is_directory, **options)
    except NoIndexError:
        Opened.raw(source).check_gzip()  # it may be torn, of any size
        raise
    reader.given = path
    return reader


class _PatchReader(Reader):
    def __init__(self, source: Openable, opened: Opened):
        super().__init__(source, Opened(core.Content.lent(_EMPTY_MAP)))
        self._record = core.patch_parts(opened.content)[1]

    @property
    def metadata_record(self) -> bytes | None:
        return self._record


_EMPTY_MAP = b"\x80"


def _recognized(opened: Opened) -> Format | None:
    with contextlib.suppress(TreepackError):
        return formats.of_content(opened.content)
    return None
