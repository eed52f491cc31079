"""What verbs tell of one file: the same tree, or that it is damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import treepack
from hostile.cases import Case
from treepack import errors

HOW: dict[str, Any] = {"arrays": "numpy", "unknown": "dict"}


class Outcome(NamedTuple):
    """The result of a use, or its error."""

    value: Any = None
    error: BaseException | None = None

    @property
    def is_ok(self) -> bool:
        """Whether there was no error."""
        return self.error is None

    def __str__(self) -> str:
        return f"{type(self.error).__name__}: {self.error}" if self.error else "a tree"


Use = Callable[[str, Callable[[], Any]], Outcome]
"""Runs a use of a name."""


_WITH_TEXT = (str, int, float, complex, bool, type(None))
"""Keys of these types have a text in paths."""


def content(value: Any) -> Any:
    """Returns a value that is equal for trees of equal types and bits."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype.str, value.dtype.name, value.shape, value.tobytes()
    if isinstance(value, jax.Array):
        if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            return str(value.dtype), content(jax.random.key_data(value))
        return content(np.asarray(value))
    if isinstance(value, dict):
        # Where no record tells of other keys, `open` has them as text; of equal ones the last.
        names = (str(key) if type(key) in _WITH_TEXT else "?" for key in value)
        items = dict(zip(names, map(content, value.values()), strict=True))
        return type(value).__name__, [*items.items()]
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [content(child) for child in value]
    if isinstance(value, memoryview):
        return "memoryview", value.tobytes()
    return type(value).__name__, repr(value)


def _opened(source: Any, max_size: int) -> Any:
    with treepack.open(source, max_size=max_size) as file:
        return file.load(**HOW)


def _leaves(source: Any, max_size: int, *, salvage: bool) -> Any:
    with treepack.open(source, max_size=max_size, salvage=salvage, unknown="dict") as file:
        found = [(path, content(_whole(leaf))) for path, leaf in file.leaves()]
        return found, file.damage


def _whole(leaf: Any) -> Any:
    return np.asarray(leaf) if isinstance(leaf, treepack.LazyArray) else leaf


# What types, functions, implementations of PRNG keys and extensions of MessagePack make of data,
# `verify` knows nothing of.
_OF_PROGRAM = (errors.UnregisteredTypeError, errors.PlaceholderError)
_OF_TYPES = ("static data of type", "a node of the type", "of an unknown implementation")
_OF_TYPES += ("extension ", "key cannot be hashed", "keys have the same hash", "a key occurs twice")
_OF_TYPES += ("hashing a key of the file", "paths together much longer than the file")


def _is_of_program(error: BaseException | None) -> bool:
    return isinstance(error, _OF_PROGRAM) or any(phrase in str(error) for phrase in _OF_TYPES)


def check(data: bytes, path: str, max_size: int, use: Use, *, compare: bool) -> list[str]:
    """Reads a file in the ways that have to agree; returns where they do not.

    Args:
      data: The file.
      path: Where it is.
      max_size: What may be in it.
      use: Runs a use.
      compare: Whether the results are trees that `content` knows.
    """
    same = content if compare else lambda _: None
    whole = use("loads", lambda: treepack.loads(data, max_size=max_size, **HOW))
    file = use("load", lambda: treepack.load(path, max_size=max_size, **HOW))
    opened = use("open.load", lambda: _opened(data, max_size))
    verified = use("verify", lambda: treepack.verify(data, max_size=max_size))
    found = []
    if whole.is_ok != file.is_ok or (whole.is_ok and same(whole.value) != same(file.value)):
        found.append(f"loads: {whole}; load: {file}")
    # Only errors in the bytes are of msgpack's classes, too.
    if type(whole.error).__name__ != type(file.error).__name__:
        found.append(f"loads: {whole}; load: {file}")
    # Where all types are known, most trees are built by their record, and not of a state.
    known = use("loads, known", lambda: treepack.loads(data, max_size=max_size, arrays="numpy"))
    if known.is_ok and whole.is_ok:
        if same(known.value) != same(whole.value):
            found.append("loads makes different trees by a record and of a state")
    elif known.is_ok or not isinstance(known.error, (type(whole.error), *_OF_PROGRAM)):
        found.append(f"loads: {whole}; where all types are known: {known}")
    is_damaged = not verified.is_ok or not verified.value.ok
    if whole.is_ok and opened.is_ok:
        # A forged index, which only `verify` compares with the headers, may show another tree.
        if not is_damaged and same(whole.value) != same(opened.value):
            found.append("verify is ok, but loads and open tell different trees")
    elif is_damaged or isinstance(opened.error, errors.NoIndexError):
        pass
    elif whole.is_ok != opened.is_ok and not _is_of_program(whole.error or opened.error):
        found.append(f"verify is ok; loads: {whole}; open: {opened}")
    elif not _is_of_program(whole.error):
        found.append(f"verify is ok, but neither loads nor open is: {whole}")
    if not is_damaged and data[:2] == b"\x1f\x8b":
        stock = use("gzip", lambda: treepack.serialization.decompress_bytes(data))
        found += [] if stock.is_ok else [f"verify is ok; decompress_bytes: {stock}"]
    return found


def check_patch(case: Case, path: str, use: Use) -> list[str]:
    """Loads a patch with its base by each form of `base=`; returns where the results differ."""
    max_size, beside = case.max_size, str(Path(path).with_name("base"))
    options: dict[str, Any] = {"max_size": max_size, **HOW}

    def with_open_base() -> Any:
        with treepack.open(beside, max_size=max_size, unknown="dict") as base:
            return treepack.load(path, base=base, **options)

    outcomes = {
        "load": use("load", lambda: treepack.load(path, **options)),
        "base=path": use("load, base", lambda: treepack.load(path, base=beside, **options)),
        "base=File": use("load, open base", with_open_base),
    }
    if isinstance(case.base, bytes):
        base = case.base
        outcomes["base=bytes"] = use("loads, base", lambda: treepack.loads(
            case.data, base=base, **options
        ))  # fmt: skip
    verified = use("verify", lambda: treepack.verify(path, max_size=max_size))
    opened = use("open.load", lambda: _opened(path, max_size))
    selected = use("load, selected", lambda: treepack.load(path, select="**", **options))
    found = []
    [first, *others] = [it for it in outcomes.items() if it[1].is_ok] or [("", Outcome())]
    for name, other in others:
        if content(other.value) != content(first[1].value):
            found.append(f"{first[0]} and {name} tell different trees")
    is_ok = verified.is_ok and verified.value.ok
    for name, other in {**outcomes, "open": opened, "select": selected}.items():
        if is_ok and not other.is_ok and not _is_of_program(other.error):
            found.append(f"verify is ok; {name}: {other}")
    if is_ok and opened.is_ok and content(opened.value) != content(first[1].value):
        found.append("verify is ok, but load and open tell different trees")
    return found


def _is_part(few: list[Any], many: list[Any]) -> bool:
    """Returns whether a list has the elements of another one, in order."""
    rest = iter(many)
    return all(each in rest for each in few)


def check_salvage(data: bytes, max_size: int, use: Use) -> list[str]:
    """Compares the leaves of an open file with those that are salvaged."""
    salvaged = use("open, salvage", lambda: _leaves(data, max_size, salvage=True))
    opened = use("open.leaves", lambda: _leaves(data, max_size, salvage=False))
    verified = use("verify", lambda: treepack.verify(data, max_size=max_size))
    if not opened.is_ok:
        is_ok = verified.is_ok and verified.value.ok
        is_known = isinstance(opened.error, errors.NoIndexError) or _is_of_program(opened.error)
        if is_ok and not is_known:
            return [f"verify is ok; the leaves: {opened}"]
        return []
    if not salvaged.is_ok:
        return [f"open has all leaves; with salvage: {salvaged}"]
    corrupt = {*verified.value.corrupt} if verified.is_ok else set()
    intact = [(path, leaf) for path, leaf in opened.value[0] if path not in corrupt]
    # Only `verify` compares keys and containers with the index, so salvage may have more leaves.
    if not (_is_part(intact, salvaged.value[0]) and _is_part(salvaged.value[0], opened.value[0])):
        return ["open has other intact leaves than with salvage"]
    return []
