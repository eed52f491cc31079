"""Assigns the shards of arrays to the processes that write them."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable
from typing import Any

import treepack._core as core
from treepack._src.interop import jax as _jax
from treepack._src.printable import printable, warn
from treepack._src.registry.static import metadata_in
from treepack._src.storage.place import shown
from treepack.errors import TreepackError

# The name of the manifest, which makes a directory a checkpoint.
MANIFEST = "manifest.treepack"

# The names of files with shards.
NAME = r"[0-9a-f]{8}-\d{5,}\.treepack"
FILE = re.compile(NAME)


def save_of(name: str) -> str:
    """Returns the random start of a file's name, shared by all files that one save writes."""
    return name.partition("-")[0]


def about_in(catalog: core.Catalog) -> dict[str, Any]:
    """Returns the metadata of a file with shards: of its process, and of the save."""
    record = catalog.record
    about = None if record is None else metadata_in(record, unknown_as_dict=True)
    return about if isinstance(about, dict) else {}


def warn_of_part(source: Any) -> None:
    """Warns of a path that is one file of a sharded checkpoint: it has parts of arrays."""
    if isinstance(source, str) and FILE.fullmatch(os.path.basename(source)):  # noqa: PTH119
        warn(
            f"{printable(shown(source))!r} is one file of a sharded checkpoint, with parts of its "
            "arrays: pass its directory, or if the manifest is lost treepack.open(directory, "
            "salvage=True)"
        )


def plan_of(arrays: Iterable[Any]) -> core.ShardPlan:
    """Assigns the shards of arrays to processes; the plan is the same in all of them.

    An array on a process's own devices, such as the result of `jnp.zeros`, counts as equal in all
    processes, like numbers and NumPy arrays: process 0 writes it.
    """
    return _plan(
        tuple(
            (array.shape, array.nbytes, array.sharding, array.is_fully_addressable)
            if _jax.is_array(array)
            else (array.shape, array.nbytes, None, True)
            for array in arrays
        )
    )


def readers_of(arrays: Iterable[tuple[tuple[int, ...], int, Any]]) -> core.ShardPlan:
    """Assigns shards to the processes that read them, by shape, size and sharding of the arrays."""
    return _plan(tuple((*array, False) for array in arrays))


@functools.lru_cache(maxsize=4)  # the next save has the same arrays
def _plan(arrays: tuple[tuple[tuple[int, ...], int, Any, bool], ...]) -> core.ShardPlan:
    splits = []
    numbered: dict[int, tuple[int, _Holders]] = {}
    for shape, nbytes, sharding, is_local in arrays:
        counts, holders = _split(sharding, shape)
        if is_local:
            holders = _shared(((0,),) * len(holders))
        number, _ = numbered.setdefault(id(holders), (len(numbered), holders))
        splits.append((counts, number, nbytes // len(holders), sharding is None))
    return core.ShardPlan(splits, [holders for _, holders in numbered.values()])


_Holders = tuple[tuple[int, ...], ...]
"""The processes that hold each shard."""


@functools.lru_cache(maxsize=1024)
def _split(sharding: Any, shape: tuple[int, ...]) -> tuple[tuple[int, ...], _Holders]:
    """Returns the number of shards in each dimension, and their holders."""
    if sharding is None:
        return (1,) * len(shape), ((0,),)
    _, counts, by_shard = division(sharding, shape)
    processes = (sorted({device.process_index for device in devices}) for devices in by_shard)
    return counts, _shared(tuple(map(tuple, processes)))


def division(
    sharding: Any, shape: tuple[int, ...]
) -> tuple[core.ShardGrid, tuple[int, ...], list[list[Any]]]:
    """Divides an array; returns also the number of shards in each dimension, and their devices.

    Raises:
      TreepackError: If the shards would not have one shape.
    """
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
    """Returns the index of the first element of a shard from its JAX index."""
    return tuple(part.start or 0 for part in index)
