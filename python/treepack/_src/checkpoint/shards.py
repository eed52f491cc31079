"""The shards of arrays, and the process that writes each."""

from __future__ import annotations

import functools
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import treepack._core as core
from treepack._src.interop import jax as _jax
from treepack.errors import TreepackError

# The file that makes a directory a checkpoint.
MANIFEST = "manifest.treepack"


class Split(NamedTuple):
    """How an array is split into shards of one shape.

    Attributes:
      counts: The number of shards in each dimension.
      holders: For each shard, the last dimension varying fastest, the processes that have it.
      nbytes: The size of a shard in bytes.
      is_host: Whether it is an array of the host, which all processes have.
    """

    counts: tuple[int, ...]
    holders: tuple[tuple[int, ...], ...]
    nbytes: int
    is_host: bool


class Plan(NamedTuple):
    """The assignment of shards to processes.

    Attributes:
      writers: For each shard of each array, the process that writes it.
      processes: The processes that write. Their indices in this list are the numbers of files.
      grids: The same for a manifest; see `Manifest.grid`.
      checksum: A checksum of the plan.
    """

    writers: list[list[int]]
    processes: list[int]
    grids: list[tuple[list[int], list[int], bool]]
    checksum: int


def plan_of(arrays: Iterable[Any]) -> Plan:
    """Assigns the shards of arrays to processes; the plan is the same in all of them.

    An array that a process has on its own devices, such as the result of `jnp.zeros`, counts as
    equal in all processes, as numbers and arrays of NumPy do: process 0 writes it.
    """
    return _plan(
        tuple(
            (array.shape, array.nbytes, array.sharding, array.is_fully_addressable)
            if _jax.is_array(array)
            else (array.shape, array.nbytes, None, True)
            for array in arrays
        )
    )


@functools.lru_cache(maxsize=16)  # the next save has the same arrays
def _plan(arrays: tuple[tuple[tuple[int, ...], int, Any, bool], ...]) -> Plan:
    splits = []
    for shape, nbytes, sharding, is_local in arrays:
        if sharding is None:
            splits.append(Split((1,) * len(shape), ((0,),), nbytes, True))
            continue
        counts, holders = _split(sharding, shape)
        holders = ((0,),) * len(holders) if is_local else holders
        splits.append(Split(counts, holders, nbytes // len(holders), False))
    found = writers(splits)
    processes = sorted({process for files in found for process in files})
    numbers = {process: number for number, process in enumerate(processes)}
    grids = [
        (list(split.counts), [numbers[process] for process in files], split.is_host)
        for split, files in zip(splits, found, strict=True)
    ]
    return Plan(found, processes, grids, zlib.crc32(repr((processes, grids)).encode()))


@functools.lru_cache(maxsize=1024)
def _split(
    sharding: Any, shape: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    found: dict[tuple[int, ...], set[int]] = defaultdict(set)
    for device, index in sharding.devices_indices_map(shape).items():
        found[start_of(index)].add(device.process_index)
    part = sharding.shard_shape(shape)
    counts = tuple(size // step for size, step in zip(shape, part, strict=True))
    uneven = TreepackError(f"an array of the shape {shape} is not split evenly by {sharding}")
    try:
        grid = core.ShardGrid(shape, counts)
        cells = {grid.shard_at(start): holders for start, holders in found.items()}
    except ValueError:
        raise uneven from None
    if len(cells) != len(grid):
        raise uneven
    return counts, tuple(tuple(sorted(cells[cell])) for cell in range(len(cells)))


def start_of(index: Iterable[slice]) -> tuple[int, ...]:
    """Returns the index of the first element of a shard, from its index in jax."""
    return tuple(part.start or 0 for part in index)


def writers(splits: Sequence[Split]) -> list[list[int]]:
    """Returns for each shard of each array the process that writes it: one that has it.

    Balances the bytes of the processes as far as possible. The result is the same in all of them.
    """
    loads: dict[int, int] = defaultdict(int)
    found = [[holders[0] for holders in split.holders] for split in splits]
    shared: list[tuple[int, int, int]] = []
    for array, split in enumerate(splits):
        for cell, holders in enumerate(split.holders):
            if len(holders) == 1:
                loads[holders[0]] += split.nbytes
            else:
                shared.append((-split.nbytes, array, cell))
    for minus_nbytes, array, cell in sorted(shared):  # the largest first
        writer = min(splits[array].holders[cell], key=lambda process: (loads[process], process))
        found[array][cell] = writer
        loads[writer] -= minus_nbytes
    return found
