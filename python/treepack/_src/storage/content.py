from __future__ import annotations

import errno
import gzip
import inspect
import io
import mmap as mmap_module
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, overload

import treepack._core as core
from treepack._src import formats
from treepack._src.forks import Locked
from treepack._src.options import Buffer, Opening, Tell, progress_bar
from treepack._src.storage import remote as _remote
from treepack._src.storage.address import Address
from treepack._src.storage.fetch import Blocks
from treepack._src.storage.naming import naming
from treepack._src.storage.urls import shown
from treepack.errors import (
    BaseMismatchError,
    DecodeError,
    GzipCorruptionError,
    GzipTruncatedError,
    NoIndexError,
    TreepackError,
)

# Gzip without an index up to this size in bytes is inflated whole instead of an error.
_SMALL_BYTES = 1 << 20

# Gzip up to this size in bytes is inflated before an error, to find out whether it is damaged.
_CHECKED_BYTES = 64 << 20

# The number of bytes that take as long to read as a seek in a file object.
_NEAR_BYTES = 2 << 20

# The number of bytes with which a patch begins.
_HEAD_BYTES = 11

# The first bytes of gzip.
_GZIP = b"\x1f\x8b"


Openable = Address | Any
"""An address, a bytes-like object, or a file object that can seek."""


@overload
def content_of(
    source: Address, opening: Opening, *, may_be_empty: bool = False
) -> core.Content: ...


@overload
def content_of(
    source: Any, opening: Opening, *, is_bytes: bool = False
) -> core.Content | Buffer: ...


def content_of(
    source: Openable, opening: Opening, *, may_be_empty: bool = False, is_bytes: bool = False
) -> core.Content | Buffer:
    """Reads a whole source: decompressed if it is gzip, joined with its base if it is a patch.

    With `is_bytes`, only bytes-like objects are sources.
    """
    if isinstance(source, Address) and not is_bytes:
        return _content_of_file(source, opening, may_be_empty)
    data: Any = source
    if not is_bytes:
        if isinstance(source, core.Content):
            return source
        if _is_file_object(source):
            content, _ = _of_file_object(source)
            data = content.read_range(0, content.nbytes)
        else:
            check_data(source)
    try:
        is_wrapped = core.is_wrapped(data)
    except TypeError:
        check_is_bytes(data)
        raise  # it is not contiguous
    if is_wrapped and core.is_compressed(data):
        with progress_bar(opening.progress, "load") as tell:
            data = core.decompress(
                data, max_size=opening.max_size, threads=opening.threads, progress=tell
            )
    if is_wrapped and core.is_patch(data):
        return _joined(core.Content.lent(data), opening, None)[0]
    return data  # type: ignore[no-any-return]


def _content_of_file(path: Address, opening: Opening, may_be_empty: bool) -> core.Content:
    with progress_bar(opening.progress, "load") as tell:
        if path.url is None:
            content = _local_content(path, opening.mmap, tell, whole=True)
        else:
            content = _remote.downloaded(path.url, tell)
        if content.nbytes == 0 and not may_be_empty:
            raise _empty()
        if core.is_compressed(content):
            content = content.inflate(
                max_size=opening.max_size, threads=opening.threads, progress=tell
            )
    return _joined(content, opening, path)[0] if core.is_patch(content) else content


def _empty() -> DecodeError:
    return DecodeError("the file is empty (0 bytes): write or copy it again", 0)


# The descriptions of `src/foreign/sniff.rs` begin so.
_ENCODED = ("base64", "hexadecimal")


_CURES: list[tuple[Callable[[Any], bool], str]] = [
    (lambda data: hasattr(data, "read"), ": pass the result of its read(), or call treepack.load"),
    (lambda data: hasattr(data, "write"), ": treepack.save(path, tree) writes a file"),
    (lambda data: hasattr(data, "buf"), ": pass its buf, or for reading its buf[:size]"),
    (
        lambda data: isinstance(data, (tuple, list, Iterator)),
        ': pass b"".join(...) of the pieces',
    ),
]


def check_is_bytes(data: Any, order: str = "", *, name: str = "") -> None:
    if isinstance(data, (str, os.PathLike)):
        if isinstance(data, str) and not data.isprintable():
            raise TypeError(f"{name}expected a bytes-like object, got text: pass undecoded bytes")
        path = shown(data)
        encoded = core.described(core.Content.lent(os.fsencode(data))) or ""
        if encoded.startswith(_ENCODED):
            raise TypeError(f"{name}expected a bytes-like object, got {encoded}")
        raise TypeError(
            f"{name}expected a bytes-like object, got the path {path!r:.100}: use treepack.load "
            "for files"
        )
    try:
        memoryview(data)
    except TypeError:
        how = next((cure for fits, cure in _CURES if fits(data)), order)
        raise TypeError(
            f"{name}expected a bytes-like object, such as dumps returns, got "
            f"{type(data).__name__}{how}"
        ) from None


def _joined(
    patch: core.Content, opening: Opening, path: Openable | None, *, salvage: bool = False
) -> tuple[core.Content, str | None]:
    """Joins a patch with its base; returns any damage, and sets `unchanged` of the options."""
    base, file, unusable, reason = opening.base, None, None, None
    if base is None:
        name, lost = _name_of_base(patch, salvage=salvage)
        # A file may only name others in its own directory.
        is_name = name not in {"", ".", ".."} and not any(it in name for it in ("/", os.sep, "\0"))
        if not isinstance(path, Address) or not is_name:
            raise lost or BaseMismatchError(
                "this is a patch: pass base=, the tree or data that it was made against, to load "
                "or loads, or --base to `treepack convert`",
                [],
            )
        file = path.beside(name)
        try:
            base = Opened.base(file, opening.max_size)
        except FileNotFoundError as error:
            raise lost or FileNotFoundError(
                errno.ENOENT,
                f"{path.shown} is a patch of this file, which is missing: put it there, call "
                "load with base=, or run `treepack convert` with --base",
                error.filename,
            ) from None
        except TreepackError as error:
            reason = f"the base cannot be used: {error}"
            unusable = lost or BaseMismatchError(reason, [])
            if not salvage:
                raise unusable from error
    try:
        if unusable is not None:
            base = Opened.base(file, opening.max_size, salvage=True)
        content, opening.unchanged, damage = core.join(
            patch, base, max_size=opening.max_size, threads=opening.threads, salvage=salvage
        )
    except TreepackError as error:
        raise unusable or error from None
    return content, damage or reason


def _name_of_base(patch: core.Content, *, salvage: bool) -> tuple[str, DecodeError | None]:
    try:
        return core.patch_parts(patch)[0], None
    except DecodeError as error:
        if not salvage:
            raise
        advice = "to read its intact leaves, pass base= to load, with on_corrupt='skip'"
        lost = DecodeError(f"{error.message}; {advice}")
        try:
            return core.patch_parts(patch, salvage=True)[0], lost
        except DecodeError:
            raise lost from None


# The maximum number of bytes of a patch, or of its base, to fetch at once: as many are buffered
# while a remote file is read.
_MOST_FETCHED = 512 << 20


class Opened(NamedTuple):
    """Data that are read in parts.

    Attributes:
      damage: A description of damage to the gzip stream, or `None`.
      inflated: The number of bytes decompressed from gzip.
      blocks: The reader of a remote file or file object.
      is_patch: Whether a patch was joined with its base.
    """

    content: core.Content
    damage: str | None = None
    inflated: int = 0
    blocks: Blocks | None = None
    nbytes: int = 0
    is_patch: bool = False

    @classmethod
    def of(
        cls,
        source: Openable,
        *,
        mmap: bool = True,
        salvage: bool = False,
        max_size: int | None = None,
        regular: bool = False,
        base: Any = None,
        join: bool = True,
        place: Openable | None = None,
    ) -> Opened:
        """Opens a file or buffer, decompressed if it is gzip.

        `salvage` allows empty files, and inflates gzip up to its first damage. `max_size` bounds
        the decompressed bytes of gzip, and of a patch and its base, by default the file that the
        patch names. With `regular`, a local file must be a regular one. `place` is the file if
        `source` is its content.

        Raises a NoIndexError if gzip can only be read whole, a GzipCorruptionError, or an
        IsADirectoryError, of perhaps a sharded checkpoint.
        """
        opened = cls.raw(source, mmap, regular)
        if opened.nbytes == 0 and not salvage and isinstance(source, Address):
            raise _empty()
        if salvage or core.is_compressed(opened.content):
            opened = opened.inflating(salvage, max_size)
        if not join or not core.is_patch(opened.content):
            return opened
        opening = Opening(base=base, max_size=max_size)
        # Names in a stream without intact blocks may be garbled, which the checksums do not cover.
        salvage = salvage and opened.damage is None
        content, damage = _joined(opened.fetched(), opening, place or source, salvage=salvage)
        damage = opened.damage or damage
        return cls(content, damage, content.nbytes, nbytes=opened.nbytes, is_patch=True)

    @classmethod
    def raw(cls, source: Openable, mmap: bool = True, regular: bool = False) -> Opened:
        blocks = None
        if isinstance(source, Address) and source.url is not None:
            content, blocks = _remote.remote(source.url)
        elif isinstance(source, Address):
            content = _local_content(source, mmap, regular=regular)
        elif isinstance(source, core.Content):
            content = source
        elif _is_file_object(source):
            content, blocks = _of_file_object(source)
        else:
            check_data(source)
            content = core.Content.lent(source)
        return cls(content, blocks=blocks, nbytes=content.nbytes)

    @classmethod
    def base(
        cls, source: Openable, max_size: int | None = None, *, salvage: bool = False
    ) -> core.Content:
        with naming(source):
            if isinstance(source, Address) and source.is_special():
                raise DecodeError("it is not a regular file")
            try:
                opened = cls.of(source, max_size=max_size, join=False, salvage=salvage)
                content = opened.fetched()
            except IsADirectoryError:
                raise cls.not_a_base("a directory") from None
            if core.is_patch(content):
                raise cls.not_a_base("a patch itself")
            if (format := formats.of_content(content)) is not None:
                raise cls.not_a_base(format.title)
            core.Catalog.open(content, salvage=salvage)
        return content

    @staticmethod
    def not_a_base(form: str) -> TreepackError:
        return TreepackError(
            f"the base is {form}: pass the tree that treepack.load returns for it as base=, or one "
            "file of treepack or flax that was saved without base="
        )

    def fetched(self) -> core.Content:
        """Returns the content, in memory if it is remote and small."""
        blocks, content = self.blocks, self.content
        nbytes = max(content.nbytes, self.nbytes)
        if blocks is None or blocks.at_once == 1 or nbytes > _MOST_FETCHED:
            return content
        return _remote.in_memory(content, blocks)

    @classmethod
    def record_of_patch(cls, source: Openable, max_size: int | None) -> bytes | None:
        try:
            content = cls.raw(source).content
            if core.is_compressed(content):
                content = content.inflate(max_size=max_size, threads=None, progress=None)
            return core.patch_parts(content)[1] if core.is_patch(content) else None
        except (TreepackError, OSError):
            return None

    def inflating(self, salvage: bool, max_size: int | None) -> Opened:
        content = self.content
        if salvage and (mended := content.mended(max_size=max_size)) is not None:
            return Opened(mended, _DAMAGED_HEADER, mended.nbytes, self.blocks, self.nbytes)
        # Of a damaged file, the same is salvaged here and elsewhere.
        if not core.is_compressed(content, by_start=salvage):
            return self
        indexed = content.indexed(max_size=max_size)
        if indexed is not None:
            return Opened(indexed, None, indexed.nbytes, self.blocks, self.nbytes)
        damage = _DAMAGED_INDEX if content.has_traces_of_index() else None
        if salvage:
            salvaged, cut = content.salvage(max_size=max_size)
            return Opened(salvaged, cut or damage, salvaged.nbytes, nbytes=self.nbytes)
        if self.nbytes > _SMALL_BYTES:
            if damage is not None:
                raise GzipCorruptionError(
                    f"{damage}, so the file cannot be read in parts: load it whole, and save it "
                    "again"
                )
            if content.read_range(0, 2) != _GZIP:  # numbers, which always have an index
                raise GzipCorruptionError("the index of the compressed blocks is missing")
            if self.nbytes <= _CHECKED_BYTES:
                self.check_gzip()
            raise NoIndexError(
                "this gzip file has no index, so it cannot be read in parts: load it whole, or "
                "convert it with `treepack convert` or gunzip"
            )
        decompressed = content.inflate(max_size=max_size, threads=None, progress=None)
        return Opened(decompressed, damage, decompressed.nbytes, nbytes=self.nbytes)

    def file(self) -> io.BufferedReader:
        return io.BufferedReader(_Raw(self.content))

    def begins_as_tree(self) -> bool | None:
        if not core.is_compressed(self.content):
            return None
        if self.content.read_range(0, 2) != _GZIP:  # numbers, which only trees have
            return True
        with gzip.GzipFile(fileobj=self.file()) as file:
            try:
                head = file.read(_HEAD_BYTES)
            except (OSError, EOFError, zlib.error):
                return False
        is_map = head != b"" and (0x80 <= head[0] <= 0x8F or head[0] in (0xDE, 0xDF))
        return is_map or core.is_patch(head)

    def check_gzip(self) -> None:
        try:
            with gzip.open(self.file()) as file:
                while file.read(_SMALL_BYTES):
                    pass
        except EOFError as error:
            raise GzipTruncatedError(str(error)) from error
        except (zlib.error, gzip.BadGzipFile) as error:
            raise GzipCorruptionError(str(error)) from error


def check_data(source: Any) -> None:
    try:
        memoryview(source).release()
    except TypeError:
        hint = ": open it first, in binary mode" if hasattr(source, "open") else ""
        if hasattr(source, "abstract"):  # a `File` or `Tree`
            hint = ": pass its path, or call its methods, such as load and abstract"
        elif hasattr(source, "should_save"):  # a `Series`
            hint = ": call its resume(target), or treepack.load(run.path(step), target) for a step"
        elif inspect.ismethod(source):
            hint = f": call it, as {source.__name__}(...)"
        elif callable(source) and not hint:
            hint = ": for the shapes of the result of a function, call jax.eval_shape"
        if isinstance(source, (list, set, tuple)):
            hint = ": pass one of them at a time"
        elif isinstance(source, dict):
            hint = (
                ": pass the result of dumps(tree); for the shapes of a tree, call "
                "jax.eval_shape(lambda: tree)"
            )
        raise TypeError(
            "expected a path, a URL, a bytes-like object or a file object, got "
            f"{type(source).__name__}{hint}"
        ) from None


class _Raw(io.RawIOBase):
    def __init__(self, content: core.Content):
        self._content = content
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        at = offset + (0, self._at, self._content.nbytes)[whence]
        if at < 0:
            raise io.UnsupportedOperation("cannot seek before the start")
        self._at = at
        return at

    def readinto(self, target: Any) -> int:
        stop = max(self._at, min(self._content.nbytes, self._at + len(target)))
        part = self._content.read_range(self._at, stop) if self._at < stop else b""
        target[: len(part)] = part
        self._at = stop
        return len(part)


_DAMAGED_HEADER = "the header of the compressed stream is damaged"

_DAMAGED_INDEX = "the index of the compressed blocks is damaged"


def is_source(value: Any) -> bool:
    kinds = (str, os.PathLike, bytes, bytearray, memoryview, mmap_module.mmap)
    return isinstance(value, kinds) or _is_file_object(value)


def _is_file_object(source: Any) -> bool:
    return hasattr(source, "read") and not isinstance(source, mmap_module.mmap)


def _of_file_object(file: Any) -> tuple[core.Content, Blocks]:
    try:
        text = file.read(0)
    except io.UnsupportedOperation as error:
        raise TypeError("the file object cannot be read: open the file with mode 'rb'") from error
    if isinstance(text, str):
        raise TypeError("the file object is in text mode: open the file with mode 'rb'")
    turns = Locked()
    try:
        with turns.lock:
            file.seek(0, os.SEEK_END)
            length: int = file.tell()
    except io.UnsupportedOperation as error:
        raise io.UnsupportedOperation(
            "the file object is not seekable, such as a pipe: pass the result of its read()"
        ) from error

    def read(start: int, stop: int) -> bytes:
        parts = []
        with turns.lock:
            file.seek(start)
            while start < stop and (part := file.read(stop - start)):
                parts.append(part)  # an unbuffered file may return a short read
                start += len(part)
        return b"".join(parts)

    blocks = Blocks(read, length, near=_NEAR_BYTES)
    return core.Content.elsewhere(blocks.read, length, _NEAR_BYTES), blocks


def is_device(mode: int) -> bool:
    """Devices may have no end."""
    return stat.S_ISCHR(mode) or stat.S_ISBLK(mode)


def _local_content(
    path: Address,
    mmap: bool,
    tell: Tell | None = None,
    *,
    regular: bool = False,
    whole: bool = False,
) -> core.Content:
    try:
        status = os.stat(str(path))  # noqa: PTH116  # a `Path` takes a tenth of a small load
    except FileNotFoundError:
        path.check()
        raise
    except InterruptedError:
        return _local_content(path, mmap, tell, regular=regular, whole=whole)
    except ValueError:  # an invalid name, for which the core raises an error
        return core.Content.read(path, progress=tell)
    is_file = stat.S_ISREG(status.st_mode)
    if stat.S_ISDIR(status.st_mode) and not regular:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not is_file and is_device(status.st_mode) and not regular:
        raise DecodeError("it is a device, not a file: write its bytes to a file")
    if mmap and is_file and status.st_size > 0:  # files in /proc cannot be mapped
        content = core.Content.map(path)
        if content.has_memory or not whole:
            return content
    return core.Content.read(path, progress=tell, regular=regular)
