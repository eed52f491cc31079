from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

import treepack._core as core
from treepack._src.interop import jax as _jax
from treepack.errors import TreepackError


def plan_of(arrays: Iterable[Any], block: int | None = None) -> core.ShardPlan:
    """Assigns the shards of arrays to processes; the plan is the same in all of them.

    Arrays on a process's own devices, such as of `jnp.zeros`, count as equal in all processes, like
    NumPy arrays: process 0 writes them. With `block`, larger shards are divided into blocks of rows
    of about this size in bytes.
    """
    return _plan(
        tuple(
            (array.shape, _nbytes(array), array.sharding, array.is_fully_addressable, block)
            if _jax.is_array(array)
            else (array.shape, array.nbytes, _readable_by(array), False, _block_of(array, block))
            for array in arrays
        )
    )


def _nbytes(array: Any) -> int:
    # Like `nbytes`, which JAX computes slowly.
    nbytes: int = math.prod(array.shape) * array.dtype.itemsize
    return nbytes


def _readable_by(array: Any) -> tuple[int, ...]:
    is_everywhere = getattr(array, "is_everywhere", False)
    return tuple(range(_jax.processes()[1])) if is_everywhere else (0,)


def _block_of(array: Any, block: int | None) -> int | None:
    return block if isinstance(array, np.ndarray) else None  # others are read when written


def readers_of(arrays: Iterable[tuple[tuple[int, ...], int, Any]]) -> core.ShardPlan:
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

    The last block of a dimension without shards may be shorter. In others, a shard without such
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
