from __future__ import annotations

import contextlib
import difflib
import errno
import functools
import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, MappingView, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

import treepack._core as core
from treepack._src import formats
from treepack._src.calls import repeated
from treepack._src.options import Compress, Progress, Writing, progress_bar
from treepack._src.printable import printable, warn
from treepack._src.storage import remote as _remote
from treepack._src.storage import write as _write
from treepack._src.storage.disk import Disk
from treepack._src.storage.naming import naming
from treepack._src.storage.store import NO_FILE, Entry, Store, is_hidden
from treepack._src.storage.stores import file_at, remote_store
from treepack._src.storage.urls import Url, local, shown
from treepack.errors import CorruptionError

_DISK = Disk()


class RemotePath(Protocol):
    @property
    def protocol(self) -> str: ...

    @property
    def storage_options(self) -> Mapping[str, Any]: ...


Location = str | os.PathLike[str] | RemotePath
"""The location of a file or directory: a path, a URL, or a `UPath`."""


class Address(str):
    """A local path, or a URL with the options of its store.

    Made once, where a caller passes a path, and normal from there on: a `file://` URL is the path,
    a leading `~` the home folder, and a `UPath` the URL with its file system.
    """

    url: Url | None = None

    # Making one

    @classmethod
    def of(
        cls,
        path: Any,
        storage_options: Mapping[str, Any] | None = None,
        *,
        for_file: str = "pass its path",
    ) -> Address:
        """Like `or_data`, but raises for data; `for_file` is the remedy for a file object."""
        address = cls.or_data(path, storage_options)
        if not isinstance(address, Address):
            remedy = "pass it as a str or a pathlib.Path"
            if isinstance(path, (Mapping, MappingView, list, tuple)) or hasattr(path, "dtype"):
                remedy = (
                    "the path comes first, as in save(path, tree), or second, as in "
                    "serialization.load_from_file(tree, path)"
                )
            elif isinstance(path, (bytes, bytearray)):
                remedy = "pass os.fsdecode(path)"
            elif hasattr(path, "write"):
                remedy = for_file
            raise TypeError(f"expected a path or a URL, got {type(path).__name__}: {remedy}")
        if not address:
            address.check()
        return address

    @staticmethod
    def or_data(source: Any, storage_options: Mapping[str, Any] | None = None) -> Any:
        """Returns data and file objects unchanged; NUL, or options without a URL, a ValueError."""
        if storage_options is not None and not isinstance(storage_options, Mapping):
            # Shows only the type: the value may be a secret.
            kind = type(storage_options).__name__
            raise TypeError(f'storage_options= must be a dict, such as {{"region": …}}, got {kind}')
        if not isinstance(source, Address):
            own = getattr(source, "storage_options", None)
            protocol = getattr(source, "protocol", "")
            if own is not None and isinstance(protocol, str) and protocol not in _LOCAL:
                options = {**own, **(storage_options or {})}
                file_system = None if storage_options else getattr(source, "fs", None)
                return _of_url(Url(str(source), options, file_system))
            if isinstance(source, (str, os.PathLike)):
                source = _of_text(os.fsdecode(source))
        if storage_options is None:
            return source
        if not isinstance(source, Address) or source.url is None:
            raise ValueError(
                "storage_options= apply only to URLs, and this is not a URL: leave them out"
            )
        _, own, file_system = source.url
        return _of_url(Url(str(source), {**own, **storage_options}, file_system))

    @classmethod
    def further(cls, source: Any, storage_options: Mapping[str, Any] | None) -> Any:
        if source is None:
            return None
        has_own = getattr(source, "storage_options", None) is not None
        address = cls.or_data(source)
        is_url = isinstance(address, Address) and not address.is_local
        is_bare = is_url and not has_own and address is not source
        return cls.or_data(address, storage_options) if is_bare else address

    @classmethod
    def directory(cls, given: Any, storage_options: Mapping[str, Any] | None = None) -> Address:
        directory = cls.or_data(given, storage_options)
        if not isinstance(directory, Address):
            kind = type(directory).__name__
            raise TypeError(f"expected the path of a directory, which comes first, got {kind}")
        return directory

    def check(self) -> None:
        """Raises a FileNotFoundError for an empty path, which would be the working directory."""
        if self == "":
            raise FileNotFoundError(errno.ENOENT, "The path is empty", "")

    def like(self, text: str) -> Address:
        return Address(text) if self.url is None else _of_url(self.url._replace(text=text))

    # Names

    @property
    def is_local(self) -> bool:
        return self.url is None

    @property
    def shown(self) -> str:
        """For messages: a URL without its login and the values of its query."""
        return str(self) if self.url is None else self.url.shown

    @property
    def plain(self) -> str:
        """For results of public functions: the path, or the URL with its options."""
        return str(self) if self.url is None else self

    def __truediv__(self, name: str) -> Address:
        if self.url is None:
            return Address(os.path.join(self, name))  # noqa: PTH118
        return self._changed(lambda link: f"{link}{'' if link.endswith('/') else '/'}{name}")

    def beside(self, name: str) -> Address:
        if self.url is None:
            return Address(os.path.join(os.path.dirname(self), name))  # noqa: PTH118, PTH120
        return self._changed(lambda link: f"{link.rpartition('/')[0]}/{name}")

    def _changed(self, change: Callable[[str], str]) -> Address:
        # In a chain, the first link with a path has it.
        links = self.split("::")
        at = next(at for at, link in enumerate(links) if "://" in link)
        links[at] = change(links[at])
        return self.like("::".join(links))

    def normal(self) -> Address:
        """Removes `.` and empty parts, but not `..`, which may follow a link."""
        if self.url is None:
            return Address(os.fspath(Path(self)))
        if "::" in self:
            return self
        scheme, _, rest = self.partition("://")
        host, slash, path = rest.partition("/")
        path = os.path.normpath(f"/{path.lstrip('/')}")[1:]  # never of another host or bucket
        return self.like(f"{scheme}://{host}{slash if path or not host else ''}{path}")

    def absolute(self) -> Address:
        """Returns a path that stays valid when the working directory changes; a URL unchanged."""
        if self.url is not None or os.path.isabs(self):  # noqa: PTH117
            return self  # the working directory may be gone
        try:
            # Not `abspath`, which resolves `..` after a link differently.
            return Address(os.path.join(os.getcwd(), self))  # noqa: PTH109, PTH118
        except FileNotFoundError as error:
            text = "The working directory was removed: pass an absolute path"
            raise FileNotFoundError(errno.ENOENT, text, str(self)) from error

    def fixed(self) -> Address:
        return self.normal().absolute()

    def real(self) -> Address:
        if self.url is None:
            return Address(os.path.realpath(self.absolute()))
        return self.like(self.rstrip("/"))

    def spellings(self) -> list[str]:
        if self.url is None:
            return [str(self), os.path.abspath(self)]  # noqa: PTH100
        return [str(self), self.rstrip("/")]

    @property
    def has_flax_suffix(self) -> bool:
        return self.has_suffix(".msgpack")

    def has_suffix(self, suffix: str) -> bool:
        return formats.file_name(self).lower().removesuffix(".gz").endswith(suffix)

    def compression(self, compress: Compress | None = None) -> Compress:
        """Returns the compression of a file of msgpack: as chosen, or as its name says.

        The suffix of another format or compression is a ValueError.
        """
        name = formats.file_name(self)
        is_gzip = name.endswith(".gz")
        if compress == "numbers" and is_gzip:
            raise ValueError(
                f'{self.shown!r}: .gz is for gzip, and "numbers" is another compression: choose a '
                "name without .gz"
            )
        suffix = os.path.splitext(name.lower().removesuffix(".gz"))[1]  # noqa: PTH122
        format = formats.of_suffix(suffix)
        library = _FOREIGN.get(suffix) if format is None else format.library
        if library is None:
            if near := _near(suffix):
                raise ValueError(
                    f"{self.shown!r}: is {suffix} to be {near}? Choose it, or a name that is less "
                    "like it"
                )
            return is_gzip if compress is None else compress
        others = [each for each in formats.known() if each.is_saved and each is not format]
        arrays = "".join(f", or {each.suffixes[0]} for arrays alone" for each in others)
        is_converted = format is not None and not format.is_saved
        hint = (
            ", and run `treepack convert` on it, or `with treepack.open(...) as file: "
            f"treepack.save({self.shown!r}, file)`; or call numpy.savez or numpy.save"
        )
        raise ValueError(
            f"{self.shown!r}: cannot write msgpack to a {suffix} file, which is for {library}: "
            f"choose .treepack or .msgpack{arrays}{hint if is_converted else ''}"
        )

    # Directories

    def store(self) -> tuple[Store, str]:
        return (_DISK, str(self)) if self.url is None else remote_store(self.url)

    @property
    def at_once(self) -> int:
        return 1 if self.url is None else remote_store(self.url)[0].at_once

    def entries(self, *, hidden: bool = False) -> list[Entry]:
        store, path = self.store()
        with _of_directory():
            all_entries = store.entries(path)
        return [entry for entry in all_entries if hidden or not is_hidden(entry.name)]

    def listed(self) -> list[Entry] | None:
        store, path = self.store()
        entries = store.listed(path)
        return entries and [entry for entry in entries if not is_hidden(entry.name)]

    def names(self) -> list[str]:
        """Returns sorted names; none if the directory cannot be listed."""
        # File systems may raise any type; it is only for an error message.
        with contextlib.suppress(Exception):
            return sorted(entry.name for entry in self.entries())
        return []

    def exists(self) -> bool:
        store, path = self.store()
        return store.exists(path)

    def is_directory(self) -> bool:
        store, path = self.store()
        return store.is_directory(path)

    def is_special(self) -> bool:
        """Whether it is a local pipe, which blocks its reader, a device or the like."""
        if self.url is not None:
            return False
        try:
            mode = repeated(os.stat, self).st_mode
        except OSError as error:
            return error.errno == errno.ELOOP
        return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))

    def nbytes(self) -> int:
        if self.url is None:
            return repeated(os.stat, str(self)).st_size
        return _remote.remote(self.url)[0].nbytes

    def check_nbytes(self, found: int, expected: int) -> None:
        if found != expected:
            raise CorruptionError(
                f"{self.shown} has the wrong size: expected {expected} bytes, found {found}"
            )

    def is_object(self) -> bool:
        if self.url is not None:
            store, path = remote_store(self.url)
            if path and store.has_conditions:  # file systems raise their own errors
                with contextlib.suppress(OSError):  # usually it does not exist
                    return len(memoryview(store.range(path.rstrip("/"), 0, 1, None))) > 0
        return False

    # Removing and linking

    def remove(self) -> None:
        store, path = self.store()
        store.remove(path)

    def remove_files(self, names: Iterable[str]) -> None:
        places = [(self / name).store() for name in names]
        if places:
            places[0][0].delete([path for _, path in places])

    def remove_dead(self) -> None:
        if self.url is None:
            with contextlib.suppress(OSError):
                core.remove_if_dead(Path(self))

    def link_to(self, target: Address, nbytes: int, *, durable: bool) -> None:
        """Links the file to another name, or has its store copy it.

        Raises an OSError or, from libraries, a NotImplementedError if the store cannot, and a
        CorruptionError if a local file does not have `nbytes` bytes.
        """
        if self.url is None:  # in a store this would take a request
            self.check_nbytes(self.nbytes(), nbytes)
        (store, old), (_, new) = self.store(), target.store()
        if self.real() == target.real() and store.exists(old):  # a checkpoint is saved again
            return
        store.link(old, new, durable=durable)

    # Small files

    def read_bytes(self) -> bytes:
        if self.url is not None:
            return _remote.read_small(self.url)
        return bytes(_DISK.get(str(self)).data)

    def read_files(self, names: Sequence[str]) -> list[bytes]:
        """Reads small files of this directory, or, if this is a file, itself and its neighbours.

        All except the first may be missing, and are empty then.
        """
        with naming(self):
            first = self / names[0] if self.is_directory() else self
            files = [first.read_bytes()]
            for name in names[1:]:
                files.append(b"")
                with contextlib.suppress(FileNotFoundError):
                    files[-1] = first.beside(name).read_bytes()
        return files

    def versioned(self) -> tuple[bytes | None, Any]:
        store, path = self.store()
        try:
            with _of_directory():
                response = store.get(path)
        except FileNotFoundError:
            return None, NO_FILE
        return bytes(response.data), response.version

    def write_bytes(self, data: bytes, before: Any = None, *, durable: bool) -> None:
        store, path = self.store()
        store.put(path, data, before, durable=durable)

    # Files of any size

    def downloaded(self, progress: Progress = None) -> Address | core.Content:
        """Reads a remote file without decompressing it; returns a local path unchanged."""
        return self if self.url is None else _remote.downloaded(self.url, progress)

    def save(
        self,
        layout: core.Layout,
        writing: Writing,
        progress: Progress = None,
        check: Check | None = None,
    ) -> None:
        nbytes = layout.nbytes + (layout.nbytes >> 10) + 1024  # compression may add a little
        layouts = [layout]  # the traceback of an error must not keep the arrays alive
        del layout
        with progress_bar(progress, "save") as tell:

            def each(done: int, total: int) -> None:
                if check is not None and done == total:
                    check()
                if tell is not None:
                    tell(done, total)

            def save(place: str | core.Pipe) -> int:
                return layouts.pop().save(
                    place,
                    compress=writing.compress,
                    level=writing.level,
                    durable=writing.durable,
                    threads=writing.threads,
                    progress=tell if check is None else each,
                )

            try:
                if self.url is not None:
                    return _remote.write(self.url, save, nbytes)
                save(self)
            except (IsADirectoryError, NotADirectoryError) as error:
                is_inside = isinstance(error, NotADirectoryError) and os.path.basename(self)  # noqa: PTH119
                error.add_note(
                    "a folder above it is a file: choose another folder"
                    if is_inside
                    else "choose a file in it; save(..., sharded=True) writes a directory"
                )
                raise

    def write_content(
        self, content: core.Content, *, durable: bool, check: Check | None = None
    ) -> None:
        def parts() -> Iterator[bytes]:
            yield from _write.pieces(content)
            if check is not None:
                check()

        if self.url is None:
            with self.replacing(durable=durable) as file:
                file.writelines(parts())
        else:
            store, path = file_at(self.url)
            store.upload(path, parts(), content.nbytes)

    def copy_to(self, target: Address, check: Check | None = None) -> int:
        """Copies this local file atomically; returns its number of bytes.

        The system copies to a local path, and shares blocks on disk where it can.
        """
        content = core.Content.map(self)
        if target.url is not None:
            target.write_content(content, durable=True, check=check)
            return content.nbytes
        with target.replacing() as file:
            copied = _write.copied(self, file.fileno(), content.nbytes)
            file.seek(copied)
            file.writelines(_write.pieces(content, copied))
            if check is not None:
                check()
        return content.nbytes

    @contextlib.contextmanager
    def replacing(self, *, durable: bool = True) -> Iterator[IO[bytes]]:
        """Yields a file that replaces this one, or is uploaded, on success; makes directories."""
        if self.url is not None:
            with self.spool() as file:
                yield file
                file.flush()
                content = core.Content.map(file.name) if file.tell() else core.Content.lent(b"")
                self.write_content(content, durable=durable)
            return
        with _write.temporary(self, self, private=False) as (replacement, file):
            yield file
            with naming(self):
                file.close()
                replacement.complete(durable=durable)

    @contextlib.contextmanager
    def spool(self) -> Iterator[IO[bytes]]:
        """Yields a private temporary file beside a local path; for URLs, in the usual directory."""
        place = self if self.url is None else f"{tempfile.gettempdir()}/treepack"
        with _write.temporary(place, self, private=True) as (_, file):
            yield file


# Raises an error if a file must not get its name; called when its bytes are written.
Check = Callable[[], None]

# The protocols of file systems whose paths are local.
_LOCAL = ("", "file", "local")


def _of_url(url: Url) -> Address:
    address = Address(url.text)
    address.url = url
    return address


def _of_text(text: str) -> Address:
    if "\0" in text:
        raise ValueError(f"{shown(text)!r} contains NUL, which no path has: leave it out")
    path = local(text)
    if path is None:
        return _of_url(Url(text, {}, None))
    path = os.path.expanduser(path)  # noqa: PTH111  # Path.expanduser raises for unknown users
    if "$" in path:
        _warn_of_variables(path)
    return Address(path)


def _warn_of_variables(path: str) -> None:
    if os.path.expandvars(path) != path and not os.path.lexists(path):
        warn(
            f"{printable(path)!r} has a variable of the environment, which is part of the name "
            "here: pass os.path.expandvars(path) for its value"
        )


@contextlib.contextmanager
def _of_directory() -> Iterator[None]:
    try:
        yield
    except NotADirectoryError as error:
        error.add_note("treepack: pass a directory; treepack.load reads a file")
        raise


# Of shorter suffixes, a letter more or less is another one.
_SHORT = 4


@functools.lru_cache(256)
def _near(suffix: str) -> str:
    known = [each for each in formats.readable_suffixes() if len(each) > _SHORT]
    near = [] if suffix in known else difflib.get_close_matches(suffix, known, n=1, cutoff=0.85)
    return "".join(near)


# The suffixes of other formats.
_FORMATS = {
    "PyTorch": ".pt .pth",
    "HDF5": ".h5 .hdf5",
    "Keras": ".keras",
    "pickle": ".pkl .pickle",
    "JSON": ".json",
    "GGUF": ".gguf",
    "ONNX": ".onnx",
    "equinox": ".eqx",
    "zip": ".zip",
    "tar": ".tar .tgz",
    "Zstandard": ".zst .zstd",
    "Zarr": ".zarr",
    "gzip, written as .gz": ".gzip",
    "bzip2": ".bz2",
    "xz": ".xz",
    "LZ4": ".lz4",
    "Parquet": ".parquet",
    "Arrow": ".arrow .feather",
    "CSV": ".csv",
    "YAML": ".yaml .yml",
    "TOML": ".toml",
}
_FOREIGN = {suffix: name for name, suffixes in _FORMATS.items() for suffix in suffixes.split()}
