"""Loads shards that several processes need: one process reads each, the others receive it.

    plan, the same in all ──▶ each reads its shards ──▶ all agree ──▶ a sum over the devices
                                                                      that hold the same shard

Devices that do not read contribute zeros, and the sum is over unsigned integers, which preserves
all bits. A process that fails reports it at the agreement, since a sum needs all processes.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from treepack._src.interop import jax as _jax
from treepack._src.placing.casting import LeafToPlace, Replicas, index_key
from treepack._src.processes.group import Group, Message, check_not_forked
from treepack._src.readers.shard_boxes import Box, ShardedArray
from treepack._src.sharded.plan import division, readers_of
from treepack._src.sharded.reading import ReplacedError
from treepack.errors import OthersError

if TYPE_CHECKING:
    import jax

# The number of bytes that each device receives at a time, unless a shard is larger. The device
# holds them twice during that.
BATCH_BYTES = 1 << 28

# The number of loads that processes began together, by their members.
_rounds: dict[str, Iterator[int]] = defaultdict(itertools.count)


class Together:
    def __init__(self, members: Sequence[int], timeout: float):
        check_not_forked("load")
        self._members, self._timeout = members, timeout
        self._who = f"load/{zlib.crc32(json.dumps([*members]).encode())}"
        self._round, self._step = next(_rounds[self._who]), 0
        self._is_over = False
        self.index = _jax.processes()[0]

    def agree(self, plan: str) -> None:
        """Waits until all processes call this with the same plan.

        Raises an OthersError, or a ReplacedError if the checkpoint was replaced for any process.
        """
        self._is_over = True  # unless all agree: failures are reported here
        group = self._group()
        try:
            if group.index == 0:
                _lead(group, plan)
            else:
                _follow(group, plan)
        except OthersError as error:
            if ReplacedError.__name__ in str(error):  # all processes retry
                raise ReplacedError(str(error)) from None
            raise
        self._is_over = False
        self._step += 1

    def fail(self, error: BaseException) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._group().abandon(error)

    def _group(self) -> Group:
        # A process in this round has finished the previous one.
        last = f"{self._round}/{self._step - 1}" if self._step else f"{self._round - 1}"
        return Group(
            self._timeout,
            members=self._members,
            folder=f"{self._who}/{self._round}/{self._step}",
            old=f"{self._who}/{last}",
            call="load",
        )


def _lead(group: Group, plan: str) -> None:
    try:
        group.announce(plan)
        messages = group.gather()
        errors = [
            f"process {group.members[at]}: {message.error or _difference(plan, message.differs)}"
            for at, message in sorted(messages.items())
            if message.error or message.differs
        ]
        if errors:
            raise group.failed(errors)
    except BaseException as error:
        group.end(error)
        raise
    group.end()


def _follow(group: Group, plan: str) -> None:
    expected = group.announced()
    if expected:
        group.tell(Message(differs="" if plan == expected else plan))
    group.wait()


def _difference(plan: str, other: str) -> str:
    if plan.split()[0] != other.split()[0]:
        return f"{ReplacedError.__name__}: it reads another save of the checkpoint"
    return (
        "its load differs from the first process's: replicas='broadcast' requires the same "
        "target, shardings and options in all processes"
    )


@contextlib.contextmanager
def together(members: Sequence[int], timeout: float) -> Iterator[Together | None]:
    if len(members) < 2 or _jax.processes()[0] not in members:
        yield None
        return
    group = Together(members, timeout)
    try:
        yield group
    except BaseException as error:
        with contextlib.suppress(Exception):  # the error of this process is more useful
            group.fail(error)
        raise


def shard_bytes(item: LeafToPlace) -> int:
    return int(math.prod(item.place.shard_shape(item.leaf.shape)) * item.leaf.dtype.itemsize)


def _replicas_of(array: Any, sharding: Any) -> Replicas | None:
    """Returns `None` for arrays that every process must read itself, or whose bits JAX changes."""
    import jax

    if not isinstance(array, ShardedArray) or not isinstance(sharding, jax.sharding.Sharding):
        return None
    if array.size == 0 or jax.dtypes.canonicalize_dtype(array.dtype) != array.dtype:
        return None
    return _replicas(sharding, array.shape)


@functools.lru_cache(maxsize=1024)
def _replicas(sharding: Any, shape: tuple[int, ...]) -> Replicas | None:
    import jax

    kind = jax.local_devices()[0].default_memory().kind
    if sharding.memory_kind not in (None, kind):
        return None
    try:
        _, _, devices = division(sharding, shape)
    except Exception:  # placing the array raises the proper error
        return None
    is_shared = any(len({device.process_index for device in row}) > 1 for row in devices)
    is_even = len({len(row) for row in devices}) == 1
    return tuple(map(tuple, devices)) if is_shared and is_even else None


def share(group: Together, items: Iterable[LeafToPlace]) -> None:
    shared = []
    for item in items:
        item.replicas = _replicas_of(item.leaf, item.place)
        if item.replicas is not None:
            shared.append((item, item.leaf, item.replicas))
    plan = readers_of((array.shape, array.nbytes, item.place) for item, array, _ in shared)
    saves = {array.reader.identity for _, array, _ in shared}
    checksum = plan.checksum
    for item, array, replicas in shared:
        about = [str(item.path), array.shape, array.dtype.name, _checksum(replicas)]
        checksum = zlib.crc32(json.dumps(about).encode(), checksum)
    group.agree(f"save:{','.join(sorted(saves))} {checksum}")
    for number, (item, array, replicas) in enumerate(shared):
        grid, _, _ = division(item.place, array.shape)
        for cell in plan.shards_of(number, group.index):
            device = next(
                replica for replica in replicas[cell] if replica.process_index == group.index
            )
            item.sources[device] = tuple(slice(*bound) for bound in grid.bounds(cell))


@functools.lru_cache(maxsize=64)
def _checksum(replicas: Replicas) -> int:
    return zlib.crc32(json.dumps([[device.id for device in row] for row in replicas]).encode())


def spread(
    group: Together, items: Sequence[LeafToPlace], read: Callable[[Box], np.ndarray]
) -> list[jax.Array]:
    import jax

    replicas = items[0].replicas
    assert replicas is not None, "they are shared"
    takes_part = any(device.process_index == group.index for row in replicas for device in row)
    parts = _parts(items, replicas, read, group.index) if takes_part else []
    jax.block_until_ready(parts)  # type: ignore[no-untyped-call]
    group.agree("- read")
    if not takes_part:
        return [
            jax.make_array_from_callback(
                item.leaf.shape, item.place, lambda _: np.empty(0), dtype=item.leaf.dtype
            )
            for item in items
        ]
    kinds = tuple((item.leaf.dtype, item.leaf.ndim) for item in items)
    sums = _summing(replicas, kinds)(parts)
    return [
        jax.make_array_from_single_device_arrays(
            item.leaf.shape, item.place, [shard.data for shard in whole.addressable_shards]
        )
        for item, whole in zip(items, sums, strict=True)
    ]


def _parts(
    items: Sequence[LeafToPlace],
    replicas: Replicas,
    read: Callable[[Box], np.ndarray],
    process: int,
) -> list[Any]:
    import jax

    here = [device for row in replicas for device in row if device.process_index == process]
    sources = [(number, device) for number, item in enumerate(items) for device in item.sources]
    boxes = (items[at].boxes[index_key(items[at].sources[device])] for at, device in sources)
    read_here = [_words(read(box)) for box in boxes]
    put = jax.device_put(read_here, [device for _, device in sources])
    by_source = dict(zip(sources, put, strict=True))
    shapes = tuple(map(_word_shape, items))
    arrays = []
    for number, zeros in enumerate(_zeros(tuple(here), shapes)()):
        parts = {shard.device: shard.data for shard in zeros.addressable_shards}
        parts |= {device: part for (at, device), part in by_source.items() if at == number}
        shape = (_mesh(replicas).size, *zeros.shape[1:])
        where = jax.sharding.NamedSharding(_mesh(replicas), _spec(_EACH))
        arrays.append(jax.make_array_from_single_device_arrays(shape, where, [*parts.values()]))
    return arrays


@functools.lru_cache(maxsize=64)
def _mesh(replicas: Replicas) -> Any:
    import jax

    return jax.sharding.Mesh(np.array(replicas), _EACH)


def _spec(*axes: Any) -> Any:
    import jax

    return jax.sharding.PartitionSpec(*axes)  # type: ignore[no-untyped-call]


# One part for each device.
_EACH = ("shard", "copy")


@functools.lru_cache(maxsize=64)
def _zeros(devices: tuple[jax.Device, ...], shapes: tuple[Any, ...]) -> Callable[[], Any]:
    import jax

    mesh = jax.sharding.Mesh(np.array(devices), ("device",))
    where = jax.sharding.NamedSharding(mesh, _spec("device"))

    def zeros() -> Any:
        return [jax.numpy.zeros((len(devices), *shape[1:]), word) for shape, word in shapes]

    return _in_mesh(mesh, jax.jit(zeros, out_shardings=where))


@functools.lru_cache(maxsize=64)
def _summing(
    replicas: Replicas, kinds: tuple[tuple[np.dtype[Any], int], ...]
) -> Callable[[Any], Any]:
    import jax

    psum: Any = jax.lax.psum

    def add(parts: list[Any]) -> list[Any]:
        # Each device has one row of each part.
        return [
            _typed(psum(part[0], "copy"), dtype)
            for part, (dtype, _) in zip(parts, kinds, strict=True)
        ]

    added = jax.shard_map(
        add,
        mesh=_mesh(replicas),
        in_specs=_spec(_EACH),
        out_specs=[_spec("shard") if ndim else _spec() for _, ndim in kinds],
        check_vma=False,  # a scalar has a single shard
    )
    return _in_mesh(_mesh(replicas), jax.jit(added, donate_argnums=0))


def _in_mesh(mesh: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    import jax

    def called(*args: Any) -> Any:
        with jax.set_mesh(mesh):
            return function(*args)

    return called


# Unsigned integers with the bits of arrays


def _words(array: np.ndarray) -> np.ndarray:
    """Returns the bits of an array, in one more dimension; of complex numbers, in two more."""
    if array.dtype.kind == "c":
        array = np.stack([array.real, array.imag])
    return array.view(_word(array.dtype))[None]


def _word(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(f"u{dtype.itemsize}")


def _word_shape(item: LeafToPlace) -> tuple[tuple[int, ...], np.dtype[Any]]:
    dtype, shape = item.leaf.dtype, item.place.shard_shape(item.leaf.shape)
    if dtype.kind == "c":
        return (1, 2, *shape), np.dtype(f"u{dtype.itemsize // 2}")
    return (1, *shape), _word(dtype)


def _typed(words: Any, dtype: np.dtype[Any]) -> Any:
    import jax

    bits = jax.lax.bitcast_convert_type
    if dtype.kind == "c":
        part = np.dtype(f"f{dtype.itemsize // 2}")
        return jax.lax.complex(bits(words[0], part), bits(words[1], part))
    if dtype == np.bool_:
        return words != 0
    info = jax.numpy.iinfo if jax.numpy.issubdtype(dtype, np.integer) else jax.numpy.finfo
    used = info(dtype).bits
    return bits(words.astype(f"uint{used}") if used < 8 else words, dtype)
