"""The exceptions of treepack.

All of them except [`UnserializableLeafError`][], [`StateDictKeyError`][] and [`MissingPathError`][]
are `ValueError`s, as flax raises for the same mistakes. Errors while reading name the file.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from typing import Any, NamedTuple

from treepack._src.printable import printable, printable_lines

__all__ = [
    "BaseMismatchError",
    "BusyError",
    "CorruptionError",
    "DamagedFileError",
    "DecodeError",
    "GzipCorruptionError",
    "GzipError",
    "GzipTruncatedError",
    "InvalidCheckpointError",
    "Mismatch",
    "MismatchError",
    "MissingPathError",
    "MultiprocessArrayError",
    "NewerVersionError",
    "NoIndexError",
    "NoManifestError",
    "OthersError",
    "PlaceholderError",
    "StateDictKeyError",
    "TreepackError",
    "UnregisteredTypeError",
    "UnserializableLeafError",
    "UnsummedError",
]


# The advice of the core in errors of truncated files.
SALVAGE_ADVICE = "; copy it again, or read its intact leaves with `treepack salvage`"


class TreepackError(ValueError):
    """Base class of most errors here: a tree cannot be saved or loaded.

    Attributes:
      filename: The file that was read, as the caller named it (a URL without its secrets). `None`
        for data in memory, and when nothing was read.
      means_damage: Whether the bytes of the file, or of its base, are wrong, as opposed to the
        call, a limit, or a version, type or kind of leaf that this program lacks.
    """

    filename: str | None = None
    means_damage: bool = False

    @property
    def reason(self) -> str:
        """The message without the name of the file."""
        # `super()` may be another library's class. Keys may contain unprintable characters.
        return printable_lines(ValueError.__str__(self))

    def __str__(self) -> str:
        return self.reason if self.filename is None else f"{self.filename!r}: {self.reason}"


class DecodeError(TreepackError):
    """The bytes do not encode a pytree.

    Once the program has imported msgpack, it is also msgpack's error for the same bytes:
    `ExtraData`, `FormatError` or `StackError`.

    Attributes:
      message: The message without the place.
      offset: Byte offset of the offending value from the start, or `None`.
      path: The path of the leaf or node, such as `params/Dense_0/kernel`.
    """

    means_damage = True

    def __init__(self, message: str, offset: int | None = None, path: str | None = None):
        self.message = message
        self.offset = offset
        self.path = path
        places = [
            "" if offset is None else f"byte {offset}",
            "" if path is None else f"at {printable(path)}",
        ]
        where = ", ".join(filter(None, places))
        ValueError.__init__(self, f"{message} ({where})" if where else message)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.offset, self.path), vars(self)


class NewerVersionError(DecodeError):
    """A newer version of treepack wrote the data, which are not damaged: upgrade to read them."""

    means_damage = False


class Mismatch(NamedTuple):
    """One difference between a template and a state; a `MismatchError` lists all of them.

    Attributes:
      path: The path of the leaf or node, such as `params/Dense_0/kernel`.
      expected: A description of the template there, or `nothing`.
      found: A description of the state there, or `nothing`.
      similar: The path of an unexpected value with a similar name, or an empty string.
    """

    path: str
    expected: str
    found: str
    similar: str = ""


class MismatchError(TreepackError):
    """A state does not match the template that it is restored into.

    Attributes:
      mismatches: All differences.

    Examples:
      >>> import numpy as np, treepack
      >>> try:
      ...     treepack.loads(treepack.dumps({"w": np.ones(3)}), {"w": np.ones(4)})
      ... except treepack.MismatchError as error:
      ...     print(error.mismatches[0].path, error.mismatches[0].expected)
      w float64[4]
    """

    def __init__(self, message: str, mismatches: list[Mismatch]):
        self.mismatches = mismatches
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (*self.args, self.mismatches), vars(self)


class NoManifestError(DecodeError):
    """A directory is not a checkpoint: it has no manifest.

    Attributes:
      names: The names in it.
      is_above: Whether it contains a directory with a manifest.
    """

    means_damage = False
    names: Sequence[str] = ()
    is_above: bool = False


class DamagedFileError(DecodeError):
    """A file of a directory is damaged or missing, so that the directory cannot be opened."""


class BusyError(TreepackError):
    """Another job saves to the same directory, or publishes to it."""


class OthersError(TreepackError):
    """Another process failed, so that a save or load of all processes did."""


class BaseMismatchError(TreepackError):
    """A patch was made against another base, or its base cannot be used or was not passed.

    A missing file is a `FileNotFoundError`.

    Attributes:
      paths: The first hundred leaves that the base lacks, or has with another dtype, shape or
        content.
    """

    means_damage = True

    def __init__(self, message: str, paths: list[str]):
        self.paths = paths
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (*self.args, self.paths), vars(self)


class CorruptionError(TreepackError):
    """Stored data are damaged, or do not match their checksums."""

    means_damage = True


class UnsummedError(TreepackError):
    """A file without checksums, such as one of another library, is to be verified."""


class GzipError(TreepackError, gzip.BadGzipFile):
    """A gzip stream cannot be read. Python's own `gzip` raises a `BadGzipFile`."""

    means_damage = True


class GzipCorruptionError(CorruptionError, GzipError):
    """A gzip stream is damaged, or the data are not a gzip stream."""


class NoIndexError(GzipError):
    """A gzip stream of more than 1 MiB lacks an index of its blocks, so it is only read whole.

    `load` reads it, `open` cannot.
    """

    means_damage = False


class GzipTruncatedError(CorruptionError, EOFError):
    """A gzip stream ends early. Python's own `gzip` raises an `EOFError`."""


class UnserializableLeafError(TypeError):
    """A leaf has a type or dtype that cannot be saved.

    Attributes:
      message: The message without the path.
      path: The path of the leaf or node, such as `params/Dense_0/kernel`.
    """

    def __init__(self, message: str, path: str):
        self.message = message
        self.path = path
        super().__init__(f"at {printable(path)}: {message}")

    def __str__(self) -> str:
        return printable_lines(super().__str__())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.path)


class StateDictKeyError(AssertionError, TypeError):
    """A handler returned a state dict with a key that is not a string.

    flax raises an `AssertionError` for this, eformer a `TypeError`; this class is both.
    """


class UnregisteredTypeError(DecodeError):
    """Saved data name a type or function that this program has not registered.

    Attributes:
      name: The name in the file.
    """

    means_damage = False

    def __init__(self, message: str, name: str = "", path: str | None = None):
        self.name = name
        super().__init__(message, path=path)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.name, self.path), vars(self)


class MissingPathError(KeyError):
    """An open file has no leaf or container at a path.

    Attributes:
      path: The path.
      filename: The file, as the caller named it; `None` for data in memory.
      hint: A suggestion, such as a similar path, or an empty string.
    """

    def __init__(self, path: str, filename: str | None = None, hint: str = ""):
        self.path = path
        self.filename = filename
        self.hint = hint
        super().__init__(path)

    def __str__(self) -> str:
        where = "" if self.filename is None else f"{self.filename!r}: "
        hint = f": {self.hint}" if self.hint else ""
        return printable_lines(f"{where}there is nothing at {self.path}{hint}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.filename, self.hint), vars(self)


class PlaceholderError(TreepackError):
    """Saved data lack code or static data, and neither a template nor `static=` supplies them."""


class InvalidCheckpointError(TreepackError):
    """A series already has a checkpoint of this step or of a later one.

    Once the program has imported flax, it is also flax's error of this name.
    """


class MultiprocessArrayError(TreepackError):
    """A file of flax refers to arrays of several processes, which are in TensorStore beside it.

    Once the program has imported flax, it is also a `flax.errors.MPACheckpointingRequiredError`.
    """


def __dir__() -> list[str]:
    return sorted(__all__)
