"""Reads the metadata of a checkpoint of a series: step, time, metrics, local items.

    file         metadata: {"series": {"step", "time", "metrics", "local"}, "metadata": ...}
    directory    metadata of the manifest: {"series": {"step"}, "metadata": ...}
                 metadata of the file of each process: {..., "own": {"time", "metrics", "local"}}

Process 0's `own` counts as the checkpoint's. A local item is a tree, as `dumps` encodes it.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from treepack._src.api.bytes import dumps, loads
from treepack._src.checkpoint.file import File
from treepack._src.checkpoint.load import unsummed
from treepack._src.checkpoint.opening import open_regular
from treepack._src.interop import jax as _jax
from treepack._src.options import Saved
from treepack._src.printable import short_repr
from treepack._src.readers.reader import Reader
from treepack._src.readers.shard_boxes import DAMAGE
from treepack._src.registry.static import metadata_in
from treepack._src.runs.steps import read_at
from treepack._src.sharded.reading import ShardedReader
from treepack._src.storage.address import Address
from treepack.errors import (
    CorruptionError,
    NewerVersionError,
    NoIndexError,
    PlaceholderError,
    TreepackError,
    UnregisteredTypeError,
    UnserializableLeafError,
    UnsummedError,
)

T = TypeVar("T")

_KEY = "series"

# The year 9999, in seconds since 1970.
_END_OF_TIME = 253_402_300_800

# Errors in reading that come from the bytes of a checkpoint, or from missing files.
_DAMAGE = (*DAMAGE, CorruptionError, FileNotFoundError, EOFError)


class Summary(NamedTuple):
    """A checkpoint as the rules see it; `time` in seconds since 1970, if `Series` saved it."""

    step: int
    time: float | None
    metrics: Mapping[str, float]


def describe(saved: Saved, step: int, seconds: float, metrics: Any, local: Any) -> Summary:
    """Metrics are in the result once they are encoded: their errors are the save's."""
    summary = Summary(step, seconds, stored := dict[str, float]())

    def own() -> dict[str, Any]:
        stored.update(_numbers(metrics))
        item = {} if local is None else {"local": _encoded(local)}
        return {"time": seconds, "metrics": {**stored}, **item}

    saved.step = step
    saved.own = own if saved.sharded else None
    series = {"step": step} if saved.sharded else {"step": step, **own()}
    saved.metadata = {_KEY: series, "metadata": saved.metadata}
    return summary


def _numbers(metrics: Any) -> dict[str, float]:
    if not isinstance(metrics, Mapping):
        raise TypeError(
            f'metrics must be numbers by name, such as {{"loss": loss}}, got {metrics!r:.100}'
        )
    floats = {}
    for name, value in metrics.items():
        if not isinstance(name, str):
            raise TypeError(
                f'the names of metrics must be strings, such as "loss", got {name!r:.100}'
            )
        try:
            if isinstance(value, (str, bytes, bytearray)):
                raise TypeError("it is text, which float() takes as well")
            floats[name] = float(_jax.fetched(value))
        except RuntimeError as error:  # a JAX array that is deleted, or in other processes
            raise TypeError(
                f"metrics[{name!r:.100}] must be a number: {error}: pass one that this process "
                "has, such as float(value.mean())"
            ) from error
        except (TypeError, ValueError, OverflowError) as error:
            cure = "pass one number, such as float(value.mean())"
            if getattr(value, "size", 1) == 1:
                cure = "leave it out" if value is None else "pass float(value)"
            if isinstance(value, Mapping):
                cure = f"pass each of its numbers by its own name, such as '{name:.100}/loss'"
            if np.iscomplexobj(value):
                cure = "pass a real one, such as float(abs(value))"
            if isinstance(value, str) and not _is_number(value):
                cure = "pass text in metadata="
            raise TypeError(
                f"metrics[{name!r:.100}] must be a number, got {value!r:.100}: {cure}"
            ) from error
    return floats


def _is_number(text: str) -> bool:
    with contextlib.suppress(ValueError):
        float(text)
        return True
    return False


def _encoded(local: Any) -> bytes:
    try:
        data = dumps(local, static="error")
    except UnserializableLeafError as error:
        path = "local" if error.path == "." else f"local/{error.path}"
        message = error.message.replace(', or leave it out with treepack.save(static="skip")', "")
        reason, is_node, _ = message.partition("; if it is a container, ")
        message = f"{reason}: save a dict of its state, as vars(...) of it" if is_node else message
        raise UnserializableLeafError(message, path) from error.__cause__
    except Exception as error:
        error.add_note("treepack: while encoding the argument local")
        raise
    _check_loads(data)
    return data


def _check_loads(data: bytes) -> None:
    """Raises if local items, which load without a template, could not be loaded."""
    try:
        loads(data, arrays="numpy")
        return
    except UnregisteredTypeError as error:
        cause: TreepackError = error
        cure = "call treepack.register_dataclass, register_namedtuple or register_tree on it, here"
        cure += " and before resume"
    except PlaceholderError as error:
        cause = error
        cure = "pass dict(...), list(...) or treepack.serialization.to_state_dict(...) of it"
    reason = str(cause).partition(": pass ")[0]
    message = f"resume has no template for it: {reason}; {cure}"
    raise UnserializableLeafError(message, "local") from cause


class Contents:
    def __init__(self, reader: Reader, step: int):
        """Raises a CorruptionError if the metadata are of another step: the file was moved here."""
        self.step = step
        self._reader = reader
        # The files of processes, by their numbers.
        self._files: dict[int, Callable[[], Reader]] = {0: lambda: reader}
        self._all = [*self._files.values()]
        if isinstance(reader, ShardedReader):
            processes = reader.processes()
            self._files = {number: partial(reader.file, at) for number, at in processes.items()}
            self._all = [partial(reader.file, at) for at in range(len(reader.manifest.files))]
        metadata = metadata_in(reader.catalog.record)
        self._is_ours = (
            isinstance(metadata, dict)
            and metadata.keys() == {_KEY, "metadata"}
            and isinstance(metadata[_KEY], dict)
        )
        catalog = reader.catalog
        if catalog.record is None and catalog.children(0) is None:
            raise CorruptionError("it is a single value without a record: it may be truncated")
        self._series: dict[str, Any] = metadata[_KEY] if self._is_ours else {}
        saved_step = self._series.get("step", step)
        if type(saved_step) is not int or saved_step != step:
            raise CorruptionError(
                f"it is the checkpoint of step {short_repr(saved_step)}, with the name of step "
                f"{step}"
            )

    @staticmethod
    def is_damage(error: BaseException) -> bool:
        """Not damage are unknown types and versions, silent stores, and gzip without index."""
        if isinstance(error, (NewerVersionError, NoIndexError, UnregisteredTypeError)):
            return False
        is_unreadable = isinstance(error, OSError) and error.errno == errno.EIO
        return isinstance(error, _DAMAGE) or is_unreadable

    def load(self, template: Any, **options: Any) -> Any:
        try:
            return File(self._reader).load(template, **options)
        except UnsummedError:
            raise unsummed('pass verify="manifest" to resume, which then reads it') from None

    @property
    def files(self) -> list[tuple[str, int]]:
        if not isinstance(self._reader, ShardedReader):
            return []
        return [(name, nbytes) for name, nbytes, _ in self._reader.manifest.files]

    @property
    def nbytes(self) -> int:
        return sum(nbytes for _, nbytes in self.files) if self.files else self._reader.nbytes

    def metadata(self) -> Any:
        metadata = metadata_in(self._reader.catalog.record, unknown_as_dict=False)
        return metadata["metadata"] if self._is_ours else metadata

    def summary(self) -> Summary:
        own = self._own(0)
        time, metrics = own.get("time"), own.get("metrics")
        items = metrics.items() if isinstance(metrics, dict) else ()
        is_time = isinstance(time, float) and 0 <= time < _END_OF_TIME
        metrics = {key: item for key, item in items if type(key) is str and isinstance(item, float)}
        return Summary(self.step, time if is_time else None, metrics)

    def locals(self, index: int, count: int) -> tuple[Any, int]:
        """Returns the local item of process `index` of `count`, and the number that have saved.

        The item is a list of all if these numbers differ.
        """
        saved = len(self._files)
        if not self._is_ours:
            return None, count
        if saved == count:
            return _item(self._own(index)), saved
        items = [_item(self._own(process)) for process in range(saved)]
        return (items if any(item is not None for item in items) else None), saved

    def verify(self, index: int, count: int) -> None:
        for opening in self._all[index::count]:
            file = opening()
            statuses, damage = file.verify(threads=None, progress=None)
            bad = [value for value, status in statuses.items() if status == "corrupt"]
            if bad and damage is None:
                damage = f"checksum mismatch at {file.catalog.path_of(bad[0], 0)}"
            if damage is not None:
                raise CorruptionError(f"{file.short_name} is damaged: {damage}")

    def _own(self, process: int) -> dict[str, Any]:
        if not isinstance(self._reader, ShardedReader):
            return self._series
        if process not in self._files:
            return {}
        metadata = metadata_in(self._files[process]().catalog.record)
        mine = metadata.get("own") if isinstance(metadata, dict) else None
        return mine if isinstance(mine, dict) else {}


def _item(own: Mapping[str, Any]) -> Any:
    data = own.get("local")
    if not isinstance(data, (bytes, type(None))):
        raise CorruptionError(f"the local item is not a tree: {short_repr(data)}")
    return None if data is None else loads(data, copy=True)


def read(
    path: Address,
    step: int,
    work: Callable[[Contents], T],
    *,
    is_directory: bool = False,
    is_whole: bool = False,
    **options: Any,
) -> T:
    def opened(path: Address) -> T:
        reader = open_regular(path, is_directory=is_directory, is_whole=is_whole, **options)
        with contextlib.closing(reader):
            return work(Contents(reader, step))

    return read_at(path, opened)
