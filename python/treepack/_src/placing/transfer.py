"""Transfers arrays to devices, a window at a time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np

from treepack._src.interop import jax as _jax
from treepack._src.paths import Trail
from treepack._src.placing.casting import LeafToPlace, index_key
from treepack._src.placing.replicas import BATCH_BYTES, Together, shard_bytes, spread
from treepack._src.readers.boxed import BoxedArray
from treepack._src.readers.reader import LazyArray
from treepack._src.readers.shard_boxes import Box, ranges_of, reading
from treepack._src.storage.fetch import fetching
from treepack.errors import TreepackError

if TYPE_CHECKING:
    import jax

# The maximum number of bytes in flight to devices at a time.
_WINDOW = 1 << 30


def _is_split(place: Any) -> bool:
    import jax

    return isinstance(place, jax.sharding.Sharding) and len(place.device_set) > 1


def parts_of(item: LeafToPlace) -> Iterable[tuple[slice, ...]]:
    if item.replicas is not None:
        return item.sources.values()
    array, place = item.leaf, item.place
    if not _is_split(place):
        return [(slice(None),) * array.ndim]
    try:
        parts = place.addressable_devices_indices_map(array.shape).values()
    except Exception as error:  # JAX may raise any type for an invalid sharding
        raise _misplaced(item.path, array, place, error) from error
    return [part for part in parts if part is not None]


def transfer(
    items: list[LeafToPlace],
    place: Any,
    may_change: bool,
    threads: int | None,
    together: Together | None,
) -> Iterator[jax.Array]:
    import jax

    before: list[jax.Array] = []
    for batch in _batches(items):
        for item in batch:
            if may_change and isinstance(item.leaf, np.ndarray):
                item.leaf = np.array(item.leaf)
            if isinstance(item.leaf, LazyArray):
                for index in parts_of(item):
                    item.leaf.begin(item.leaf.box_at(index))
        boxes = [box for item in batch for box in item.boxes.values()]
        others = [item for item in batch if isinstance(item.leaf, BoxedArray) and not item.boxes]
        both = ((item.leaf, index) for item in others for index in parts_of(item))
        more = (each for leaf, index in both for each in leaf.ahead(leaf.box_at(index)))
        wanted = itertools.chain(ranges_of(boxes), more)
        with fetching(wanted), reading(boxes, threads) as read:
            if together is not None and items[0].replicas is not None:
                placed = spread(together, batch, read)
            elif _is_split(place):
                placed = [_put_parts(item, place, read) for item in batch]
            else:
                placed = _put_whole(batch, place, read)
        jax.block_until_ready(before)  # type: ignore[no-untyped-call]
        before = placed
        yield from placed
    if items[0].replicas is not None:  # raises errors of other processes here, not at the first use
        jax.block_until_ready(before)  # type: ignore[no-untyped-call]


def _put_whole(
    batch: list[LeafToPlace], place: Any, read: Callable[[Box], np.ndarray]
) -> list[Any]:
    import jax

    def whole(item: LeafToPlace) -> Any:
        for box in item.boxes.values():
            return read(box)
        return np.asarray(item.leaf) if isinstance(item.leaf, LazyArray) else item.leaf

    arrays = [whole(item) for item in batch]
    # PRNG keys are already on the default device, and slow to move.
    rest = [at for at, array in enumerate(arrays) if place is not None or not _jax.is_array(array)]
    placed: list[Any] = list(arrays)
    try:
        with _narrowing():
            moved = jax.device_put([arrays[at] for at in rest], place)
        for at, put in zip(rest, moved, strict=True):
            placed[at] = put
    except Exception as error:
        if len(batch) == 1:
            raise _misplaced(batch[0].path, batch[0].leaf, place, error) from error
        # One by one, to find the array that fails.
        return [_put_whole([item], place, read)[0] for item in batch]
    return placed


def _put_parts(item: LeafToPlace, place: Any, read: Callable[[Box], np.ndarray]) -> Any:
    import jax

    array = item.leaf
    parts = {key: read(box) for key, box in item.boxes.items()}

    def part(index: Any) -> Any:
        key = index_key(index)
        if key not in parts:
            parts[key] = array[index]
        return parts[key]

    try:
        if _jax.is_array(array) and place.is_fully_addressable:
            return jax.device_put(array, place)  # a typed PRNG key cannot be split
        dtype: Any = None  # inferred from the parts, unless this process has none
        if not place.addressable_devices:
            dtype = jax.dtypes.canonicalize_dtype(array.dtype, allow_extended_dtype=True)
        with _narrowing():
            return jax.make_array_from_callback(array.shape, place, part, dtype=dtype)
    except Exception as error:
        raise _misplaced(item.path, array, place, error) from error


def _narrowing() -> AbstractContextManager[None]:
    """The caller checks for overflow where JAX makes 64-bit floats 32-bit ones."""
    return np.errstate(over="ignore", invalid="ignore")


def _misplaced(path: Trail, array: Any, place: Any, error: Exception) -> TreepackError:
    hint = "; pass a function of path and shape as sharding=, or a pytree of shardings"
    reason = f"{type(error).__name__}: {error}"
    if len(spec := getattr(place, "spec", ())) > len(array.shape):
        reason = f"its spec has {len(spec)} dimensions, the array {len(array.shape)}"
    return TreepackError(
        f"at {path}: cannot place an array of shape {array.shape} on {place}: "
        f"{reason}{'' if isinstance(error, RuntimeError) else hint}"
    )


def _batches(items: list[LeafToPlace]) -> Iterable[list[LeafToPlace]]:
    if items[0].replicas is not None:  # the same batches in all processes
        ends, window = itertools.accumulate(map(shard_bytes, items)), BATCH_BYTES
    else:
        sizes = (getattr(item.leaf, "nbytes", 0) for item in items)
        ends, window = itertools.accumulate(sizes), _WINDOW
    numbered = zip((size // window for size in ends), items, strict=True)
    for _, group in itertools.groupby(numbered, key=lambda numbered: numbered[0]):
        yield [item for _, item in group]
