"""The options of several functions: each is declared, checked and described here, once."""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np

from treepack._src.dtypes import is_float

if TYPE_CHECKING:
    import jax
    import typing_extensions

    Buffer = typing_extensions.Buffer
else:
    Buffer = getattr(collections.abc, "Buffer", Any)  # Python 3.11 has no name for it

Strict = bool | Literal["exact"]
"""How leaves are compared with a template: shapes and dtypes as JAX sees them, exactly, or not."""

Progress = Callable[[int, int], object] | bool | None
"""Where work reports: to a callable (bytes done, bytes in all), in a bar (`True`), or nowhere."""

StorageOptions = Mapping[str, Any] | None
"""Options of obstore or fsspec for the store of a URL."""

Arrays = Literal["saved", "numpy"]
"""The types of arrays: as they were saved, or all as NumPy's."""

Unknown = Literal["error", "dict"]
"""Nodes of unregistered types: an error, or dicts of their children."""

Missing = Literal["error", "target"]
"""Leaves of a template that the file lacks: an error, or kept from the template."""

Unexpected = Literal["ignore", "error"]
"""Leaves of a file that the template lacks: ignored, or an error."""

Static = Literal["skip-code", "skip", "error"]
"""Static data that have no form in files: code is left out, all of it is, or it is an error."""

OnCorrupt = Literal["error", "skip"]
"""Leaves that differ from their checksum: an error, or treated as missing."""

Status = Literal["ok", "corrupt", "unchecked"]
"""The state of a leaf's bytes: `unchecked` if the file has no checksum of them."""

_CHOICES: dict[str, tuple[Any, ...]] = {
    "strict": (True, False, "exact"),
    "arrays": ("saved", "numpy"),
    "unknown": ("error", "dict"),
    "missing": ("error", "target"),
    "unexpected": ("ignore", "error"),
    "on_corrupt": ("error", "skip"),
    "static": ("skip-code", "skip", "error"),
}


def check_choice(name: str, value: Any) -> None:
    """Raises a ValueError unless a value is one that the option may have."""
    choices = _CHOICES[name]
    if value not in choices:
        raise ValueError(f"{name} must be one of {choices}, got {value!r}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Writing:
    """How files are written; see `save`.

    Attributes:
      max_chunk_size: Arrays of more bytes are split, as in flax: `serialization.MAX_CHUNK_SIZE`.
    """

    compress: bool = False
    level: int | None = None
    align: int = 64
    durable: bool = True
    threads: int | None = None
    max_chunk_size: float

    def __post_init__(self) -> None:
        check_level(self.level, self.compress)


def check_level(level: int | None, compress: bool) -> None:
    """Raises a ValueError if a level is given without compression."""
    if level is not None and not compress:
        raise ValueError("level needs compress=True")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """How trees are read; see `load`."""

    strict: Strict = True
    cast: bool = False
    dtype: Any = None
    arrays: Arrays = "saved"
    device: Any = None
    sharding: Any = None
    copy: bool | None = None
    unknown: Unknown = "error"
    static: Any = None
    threads: int | None = None
    progress: Progress = None

    def __post_init__(self) -> None:
        for name in ("strict", "arrays", "unknown"):
            check_choice(name, getattr(self, name))
        if self.dtype is not None:
            dtype = np.dtype(self.dtype)
            if not is_float(dtype):
                raise ValueError(f"dtype= is for floats, and {dtype.name} is none")
            object.__setattr__(self, "dtype", dtype)
        if self.device is not None and self.sharding is not None:
            raise ValueError("device and sharding exclude each other")
        if self.arrays == "numpy" and (self.device is not None or self.sharding is not None):
            raise ValueError("device and sharding need arrays of jax: pass arrays='saved'")

    def check(self, target: Any) -> None:
        """Raises a ValueError if an option needs a target that is missing, or excludes it."""
        if self.cast and target is None:
            raise ValueError("cast=True needs a target, which has the dtypes: or pass dtype=")
        if self.dtype is not None and target is not None:
            raise ValueError("a target has the dtypes: pass cast=True in place of dtype=")
        if self.static is not None and target is not None:
            raise ValueError("static= fills what a file lacks; a target has its own static data")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selection:
    """Which leaves are loaded, and how the others are handled; see `load`."""

    select: Any = None
    rename: Any = None
    missing: Missing = "error"
    unexpected: Unexpected = "ignore"
    verify: bool = False
    on_corrupt: OnCorrupt = "error"
    return_report: bool = False

    def __post_init__(self) -> None:
        for name in ("missing", "unexpected", "on_corrupt"):
            check_choice(name, getattr(self, name))

    @property
    def verifies(self) -> bool:
        """Whether leaves are checked against their checksums."""
        return self.verify or self.on_corrupt == "skip"

    @property
    def is_whole(self) -> bool:
        """Whether everything is loaded, with no other option."""
        return self == Selection()


class SaveOptions(TypedDict, total=False):
    """The options of `save` that do not change the type of its result."""

    sharded: bool | None
    step: int | None
    timeout: float
    metadata: Any
    static: Static
    select: Any
    compress: bool | None
    level: int | None
    align: int
    durable: bool
    threads: int | None
    progress: Progress
    storage_options: StorageOptions


class ReadOptions(TypedDict, total=False):
    """The options of `Reading`; see `load`."""

    strict: Strict
    cast: bool
    dtype: Any
    arrays: Arrays
    device: jax.Device | None
    sharding: Any
    copy: bool | None
    unknown: Unknown
    static: Any
    threads: int | None
    progress: Progress


class BytesOptions(ReadOptions, total=False):
    """The options of `loads`."""

    max_size: int | None


class RestoreOptions(TypedDict, total=False):
    """The options of `serialization.from_bytes`; see there."""

    copy: bool | None
    strict: Strict
    threads: int | None


class InflateOptions(RestoreOptions, total=False):
    """The options of `serialization.from_compressed_bytes`; see there."""

    max_size: int | None
    progress: Progress


class FileOptions(InflateOptions, total=False):
    """The options of `serialization.load_from_file`; see there."""

    mmap: bool


class PartOptions(ReadOptions, total=False):
    """The options of `Reading` and `Selection` without `return_report`; see `load`."""

    select: Any
    rename: Any
    missing: Missing
    unexpected: Unexpected
    verify: bool
    on_corrupt: OnCorrupt


class LoadOptions(PartOptions, total=False):
    """The options of `load` that do not change the type of its result."""

    mmap: bool
    max_size: int | None
    storage_options: StorageOptions


def part_options(options: PartOptions, *, return_report: bool) -> tuple[Selection, Reading]:
    """Splits the options of a load: which leaves, and how they are read.

    Raises:
      TypeError: If an option is unknown.
    """
    about: dict[str, Any] = {**options}
    names = [field.name for field in dataclasses.fields(Reading)]
    how = Reading(**{name: about.pop(name) for name in names if name in about})
    return Selection(**about, return_report=return_report), how


@contextlib.contextmanager
def progress_bar(progress: Progress, title: str) -> Iterator[Callable[[int, int], object] | None]:
    """Yields the callable to report to; closes the bar, if any, at the end.

    Raises:
      ImportError: If a bar is asked for, and tqdm is not installed.
      TypeError: If `progress` is neither a callable nor a bool.
    """
    if progress is None or progress is False:
        yield None
    elif progress is True:
        try:
            from tqdm import tqdm
        except ImportError as error:
            raise ImportError("progress=True needs tqdm: pip install tqdm") from error
        with tqdm(desc=title, unit="B", unit_scale=True, unit_divisor=1024) as bar:

            def tell(done: int, total: int) -> None:
                bar.total = total
                bar.update(done - bar.n)

            yield tell
    elif callable(progress):
        yield progress
    else:
        raise TypeError(f"progress must be a callable or True, not {progress!r}")


# What happens to static data without a form in files: a switch of the thread, since the core stands
# between the function that has the option and the hooks that need it.


class _Local(threading.local):
    static: Static = "error"


_local = _Local()


@contextlib.contextmanager
def leaving_out(static: Static) -> Iterator[None]:
    """Sets which static data without a form this thread leaves out when it saves."""
    check_choice("static", static)
    outer, _local.static = _local.static, static
    try:
        yield
    finally:
        _local.static = outer


def left_out() -> Static:
    """Returns which static data without a form this thread leaves out."""
    return _local.static
