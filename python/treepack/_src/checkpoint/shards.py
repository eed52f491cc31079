"""Assigns the shards of arrays to the processes that write them."""

from __future__ import annotations

import functools
import itertools
import math
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

import treepack._core as core
from treepack._src.checkpoint.info import totals
from treepack._src.checkpoint.reader import dtype_and_shape
from treepack._src.interop import jax as _jax
from treepack._src.printable import printable, warn
from treepack._src.registry.static import metadata_in
from treepack._src.storage.address import Address
from treepack.errors import TreepackError

# The name of the manifest, which makes a directory a checkpoint.
MANIFEST = "manifest.treepack"

DIGEST_BYTES = 16

# The names of files with shards.
NAME = r"[0-9a-f]{8}-\d{5,}\.treepack"
FILE = re.compile(NAME)

# The name of the first file of a process, with its number; further files have longer names.
_FILE_OF = re.compile(r"[0-9a-f]{8}-(\d{5,9})\.treepack")


def save_of(name: str) -> str:
    """Returns the random start of a file's name, shared by all files that one save writes."""
    return name.partition("-")[0]


def process_of(name: str) -> int:
    """Returns the number of the process that has written a file; -1 if its name has none."""
    match = _FILE_OF.fullmatch(name)
    return -1 if match is None else int(match[1])


class ShardFile:
    """A file with shards; `about` are its metadata: of its process, and of the save."""

    def __init__(self, catalog: core.Catalog):
        self._catalog = catalog
        about = metadata_in(catalog.record)
        self.about: dict[str, Any] = about if isinstance(about, dict) else {}

    @property
    def nbytes(self) -> int:
        return totals(self._catalog, 0)[1]

    def digests(self) -> dict[str, bytes]:
        record = self._catalog.record
        leaves = [path for path, _ in self._catalog.leaves(0)]
        stored = None if record is None else core.record_digests(record)
        if stored is None or len(stored) != DIGEST_BYTES * len(leaves):
            return {}
        starts = range(0, len(stored), DIGEST_BYTES)
        return {
            path: stored[at : at + DIGEST_BYTES] for path, at in zip(leaves, starts, strict=True)
        }

    def shards(self) -> Iterator[tuple[str, tuple[str, tuple[int, ...]], bytes]]:
        digests = self.digests()
        for path, value in self._catalog.leaves(0) if digests else ():
            yield path, dtype_and_shape(self._catalog.leaf(value)[1]), digests[path]


def warn_of_part(source: Any) -> None:
    """Warns of a path that is one file of a sharded checkpoint: it has parts of arrays."""
    if isinstance(source, Address) and FILE.fullmatch(os.path.basename(source)):  # noqa: PTH119
        warn(
            f"{printable(source.shown)!r} is one file of a sharded checkpoint, with parts of its "
            "arrays: pass its directory, or if the manifest is lost treepack.open(directory, "
            "salvage=True)"
        )


def plan_of(arrays: Iterable[Any], block: int | None = None) -> core.ShardPlan:
    """Assigns the shards of arrays to processes; the plan is the same in all of them.

    An array on a process's own devices, such as the result of `jnp.zeros`, counts as equal in all
    processes, like NumPy arrays: process 0 writes it. With `block`, larger shards are divided into
    blocks of rows of about this size in bytes.
    """
    return _plan(
        tuple(
            (array.shape, array.nbytes, array.sharding, array.is_fully_addressable, block)
            if _jax.is_array(array)
            else (array.shape, array.nbytes, _readable_by(array), False, _block_of(array, block))
            for array in arrays
        )
    )


def _readable_by(array: Any) -> tuple[int, ...]:
    is_everywhere = getattr(array, "is_everywhere", False)
    return tuple(range(_jax.processes()[1])) if is_everywhere else (0,)


def _block_of(array: Any, block: int | None) -> int | None:
    return block if isinstance(array, np.ndarray) else None  # others are read when written


def readers_of(arrays: Iterable[tuple[tuple[int, ...], int, Any]]) -> core.ShardPlan:
    """Assigns shards to the processes that read them, by shape, size and sharding of the arrays."""
    return _plan(tuple((*array, False, None) for array in arrays))


@functools.lru_cache(maxsize=4)  # the next save has the same arrays
def _plan(
    arrays: tuple[tuple[tuple[int, ...], int, Any, bool, int | None], ...],
) -> core.ShardPlan:
    splits = []
    numbered: dict[int, tuple[int, _Holders]] = {}
    for shape, nbytes, sharding, is_local, block in arrays:
        counts, holders = _split(sharding, shape)
        if is_local:
            holders = _shared(((0,),) * len(holders))
        if block is not None and nbytes // len(holders) > block:
            counts, holders = _in_blocks(shape, counts, holders, nbytes, block)
        number, _ = numbered.setdefault(id(holders), (len(numbered), holders))
        is_host = sharding is None or isinstance(sharding, tuple)
        splits.append((counts, number, nbytes // len(holders), is_host))
    return core.ShardPlan(splits, [holders for _, holders in numbered.values()])


_Holders = tuple[tuple[int, ...], ...]
"""The processes that hold each shard."""


@functools.lru_cache(maxsize=1024)
def _split(sharding: Any, shape: tuple[int, ...]) -> tuple[tuple[int, ...], _Holders]:
    """Returns the number of shards in each dimension, and their holders.

    In place of a sharding, `None` or processes are of an array of the host.
    """
    if sharding is None or isinstance(sharding, tuple):
        return (1,) * len(shape), (sharding or (0,),)
    _, counts, by_shard = division(sharding, shape)
    processes = (sorted({device.process_index for device in devices}) for devices in by_shard)
    return counts, _shared(tuple(map(tuple, processes)))


@functools.lru_cache(maxsize=64)
def _in_blocks(
    shape: tuple[int, ...], counts: tuple[int, ...], holders: _Holders, nbytes: int, block: int
) -> tuple[tuple[int, ...], _Holders]:
    """Divides shards into blocks of rows of one size, which are contiguous in memory.

    The last block of a dimension that has no shards may be shorter. In others, a shard without such
    blocks of a quarter to four times the size stays whole.
    """
    part = [size // count for size, count in zip(shape, counts, strict=True)]
    each, nbytes = [1] * len(part), nbytes // math.prod(counts)
    for axis, size in enumerate(part):
        row = nbytes // size
        if row > block:
            each[axis], nbytes = size, row
            continue
        if counts[axis] == 1:
            rows = math.ceil(size / max(1, round(nbytes / block)))
            each[axis] = math.ceil(size / rows)
            break
        divisors = (rows for low in range(1, math.isqrt(size) + 1) for rows in (low, size // low))
        fitting = [rows for rows in divisors if size % rows == 0 and rows * row <= 4 * block]
        rows = min(fitting, key=lambda rows: abs(math.log(rows * row / block)))
        if rows * row >= block / 4:
            each[axis] = size // rows
        break
    cells = core.ShardGrid(shape, counts)
    fine = [count * more for count, more in zip(counts, each, strict=True)]
    step = [-(-size // count) for size, count in zip(shape, fine, strict=True)]
    places = itertools.product(*(range(0, size, n) for size, n in zip(shape, step, strict=True)))
    corners = ([at - at % n for at, n in zip(place, part, strict=True)] for place in places)
    return tuple(fine), _shared(tuple(holders[cells.shard_at(corner)] for corner in corners))


def division(
    sharding: Any, shape: tuple[int, ...]
) -> tuple[core.ShardGrid, tuple[int, ...], list[list[Any]]]:
    part = sharding.shard_shape(shape)
    counts = tuple(size // step for size, step in zip(shape, part, strict=True))
    places = sharding.devices_indices_map(shape)
    try:
        grid = core.ShardGrid(shape, counts)
        devices: list[list[Any]] = [[] for _ in range(len(grid))]
        for device, index in places.items():
            devices[grid.shard_at(start_of(index))].append(device)
    except ValueError:
        devices = [[]]
    if not all(devices):
        raise TreepackError(
            f"the sharding {sharding} does not split the shape {shape} evenly: use a sharding that "
            "does"
        )
    return grid, counts, devices


@functools.lru_cache(maxsize=64)  # arrays of different shapes often share a division
def _shared(holders: _Holders) -> _Holders:
    return holders


def start_of(index: Iterable[slice]) -> tuple[int, ...]:
    return tuple(part.start or 0 for part in index)
