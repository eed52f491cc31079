"""How arrays are split into shards, and which process writes which."""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from treepack._libraries import jax as _jax
from treepack.errors import TreepackError

# The name of the file that makes a directory a checkpoint.
MANIFEST = "manifest.treepack"


class Split(NamedTuple):
    """How an array is split into shards of one shape.

    Attributes:
      counts: How many there are in each dimension.
      holders: For each shard, the last dimension varying fastest, the processes that have it.
      nbytes: How many bytes one has.
      is_host: Whether it is an array of the host, which all processes have.
    """

    counts: tuple[int, ...]
    holders: tuple[tuple[int, ...], ...]
    nbytes: int
    is_host: bool


def split_of(array: Any) -> Split:
    """Returns how an array is split: one of jax by its sharding, others not at all.

    What a process has on its devices alone, such as the result of `jnp.zeros`, all processes are
    taken to have alike, as they have numbers and arrays of NumPy: that of process 0 counts.
    """
    if not _jax.is_array(array):
        return Split((1,) * array.ndim, ((0,),), array.nbytes, True)
    counts, holders = _split(array.sharding, array.shape)
    if array.is_fully_addressable:
        holders = ((0,),) * len(holders)
    return Split(counts, holders, array.nbytes // max(1, len(holders)), False)


@functools.lru_cache(maxsize=1024)
def _split(
    sharding: Any, shape: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    found: dict[tuple[int, ...], set[int]] = defaultdict(set)
    for device, index in sharding.devices_indices_map(shape).items():
        found[start_of(index)].add(device.process_index)
    if 0 in shape:
        return (1,) * len(shape), (tuple(sorted(set().union(*found.values()))),)
    part = sharding.shard_shape(shape)
    counts = tuple(size // step for size, step in zip(shape, part, strict=True))
    cells = {cell_of(start, shape, counts): holders for start, holders in found.items()}
    is_even = all(size % step == 0 for size, step in zip(shape, part, strict=True))
    if not is_even or sorted(cells) != list(range(math.prod(counts))):
        raise TreepackError(f"an array of the shape {shape} is not split evenly by {sharding}")
    return counts, tuple(tuple(sorted(cells[cell])) for cell in range(len(cells)))


def start_of(index: Iterable[slice]) -> tuple[int, ...]:
    """Returns the index of the first element of a shard, as `jax` tells where it is."""
    return tuple(part.start or 0 for part in index)


def cell_of(start: Sequence[int], shape: Sequence[int], counts: Sequence[int]) -> int:
    """Returns the number of the shard that begins at an index."""
    cell = 0
    for first, size, count in zip(start, shape, counts, strict=True):
        cell = cell * count + (first * count // size if size else 0)
    return cell


def bounds(cell: int, shape: Sequence[int], counts: Sequence[int]) -> tuple[slice, ...]:
    """Returns the index of a shard in its array."""
    found = []
    for size, count in zip(reversed(shape), reversed(counts), strict=True):
        cell, place = divmod(cell, count)
        step = size // count
        found.append(slice(place * step, (place + 1) * step))
    return tuple(reversed(found))


def name_of(index: Iterable[slice]) -> str:
    """Returns the key of a shard in its file: `[0:4,8:16]`."""
    return f"[{','.join(f'{part.start}:{part.stop}' for part in index)}]"


def writers(splits: Sequence[Split]) -> list[list[int]]:
    """Returns for each shard of each array the process that writes it: one that has it.

    Each process gets about as many bytes, as far as that can be. The answer is the same in all
    processes.
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
