from __future__ import annotations

import contextlib
import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np

import treepack._core as core
from treepack._src import dtypes as _dtypes
from treepack._src import paths as _paths
from treepack._src.advice import check_parameters
from treepack._src.interop import jax as _jax
from treepack._src.interop import shardings
from treepack._src.interop.modules import imported
from treepack._src.leaves.signature import like_scalar
from treepack._src.options import Reading, Sharing
from treepack._src.paths import PathBudget, Trail
from treepack._src.placing.casting import LeafToPlace, cast_items, index_key
from treepack._src.placing.replicas import Together, share, together
from treepack._src.placing.transfer import parts_of, transfer
from treepack._src.printable import printable
from treepack._src.pytree.kinds import kind_of
from treepack._src.pytree.state_dict import leaves_of
from treepack._src.readers.reader import LazyArray
from treepack._src.readers.shard_boxes import ShardedArray, expect, find
from treepack.errors import DecodeError, TreepackError

if TYPE_CHECKING:
    import jax


def sharing(
    target: Any, reading: Reading, options: Sharing
) -> AbstractContextManager[Together | None]:
    _, count, _ = _jax.processes() if options.replicas == "broadcast" else (0, 1, None)
    if count == 1 or reading.arrays == "numpy" or reading.device is not None:
        return contextlib.nullcontext()
    return together(_processes(target, reading.sharding, count), options.timeout)


def _processes(target: Any, sharding: Any, count: int) -> Sequence[int]:
    import jax

    if _is_function(sharding) or (target is None and sharding is None):
        return range(count)
    if sharding is None:
        places = (getattr(leaf, "sharding", None) for _, leaf in leaves_of(target, ()))
    else:
        places = (leaf for _, leaf in leaves_of(sharding, ()))
    shardings = {_concrete(place) for place in places if isinstance(place, jax.sharding.Sharding)}
    shardings.discard(None)
    return sorted({device.process_index for place in shardings for device in place.device_set})


def converter(
    reading: Reading,
    *,
    may_change: bool = False,
    group: Together | None = None,
    held: Mapping[str, Any] | None = None,
) -> Callable[[list[Any]], list[Any]] | None:
    """Compiles the options about arrays into a function that converts all leaves, or `None`.

    Other code may change the memory of arrays if `may_change`. `held` are JAX arrays by path, which
    replace equal ones.
    """
    # JAX aliases memory where possible, and relies on it not changing.
    may_change = may_change and reading.copy is not True
    placed = reading.arrays != "numpy"
    if reading.arrays == "jax":
        _jax.needed("arrays='jax' makes JAX arrays")
    if not placed and not reading.cast:
        return None
    is_placed = reading.device is not None or reading.sharding is not None
    where = _where(reading) if is_placed else None

    def convert(leaves: list[Any]) -> list[Any]:
        items = [LeafToPlace(*leaf) for leaf in leaves]
        if reading.cast:
            cast_items(items, reading.threads, overflow=reading.cast == "overflow")
        if placed:
            _place(items, where, may_change, reading, group, held or {})
            if items and isinstance(where, _Shardings) and where.is_unused:
                raise ValueError(
                    "the tree of shardings in sharding= fits no leaf: it has "
                    f"{printable(_paths.text(next(iter(where.tree))))}, the file "
                    f"{printable(str(items[0].path))}: give it the paths of the file, or pass one "
                    "device="
                )
        for item in items:
            if isinstance(item.leaf, LazyArray):
                item.leaf = item.leaf.__array__(copy=reading.copy)
            if not reading.is_drop_in:
                item.leaf = like_scalar(item.target, item.leaf)
        return [item.leaf for item in items]

    return convert


# Placing

# Takes a path, a `jax.ShapeDtypeStruct`, and whether a result is required; returns a device, a
# sharding, or `None`.
Where = Callable[[Trail, Any, bool], Any]


def _where(reading: Reading) -> Where:
    device, sharding = reading.device, reading.sharding
    given = sharding if device is None else device
    jax = _jax.needed(f"{'sharding' if device is None else 'device'}= makes JAX arrays")
    if _is_function(given) and device is None:
        check_parameters(given, "sharding=", "a path and a ShapeDtypeStruct", 2)
        budget = PathBudget()

        def call(path: Trail, struct: Any, _: bool) -> Any:
            try:
                return given(budget.text(path), struct)
            except Exception as error:
                error.add_note(
                    "treepack: sharding= was called with a path and a ShapeDtypeStruct, "
                    f"{budget.text(path)!r:.100} and {struct}"
                )
                raise

        return call
    shardings: dict[tuple[str, ...], Any] = {(): device}
    if device is None:
        shardings = dict(leaves_of(sharding, ()))
    for parts, leaf in shardings.items():
        if leaf is not None and not isinstance(leaf, (jax.sharding.Sharding, jax.Device)):
            option = "sharding=" if device is None else "device="
            at = f" at {_paths.text(parts)}" if parts else ""
            raise ValueError(
                f"{option}{at} must be a JAX device or sharding, such as jax.devices()[0], got "
                f"{leaf!r:.100}{_numbered(leaf) or (_wrapped(leaf) if device is None else '')}"
            )
    if () in shardings:
        return lambda *_: given
    return _Shardings(shardings)


class _Shardings:
    """A pytree of shardings, each for everything below it; `is_unused` until a leaf had one."""

    def __init__(self, tree: dict[tuple[str, ...], Any]):
        self.tree, self.is_unused = tree, bool(tree) and None not in tree.values()
        is_list = [*tree] == [(str(at),) for at in range(len(tree))]
        is_list &= all(hasattr(leaf, "platform") for leaf in tree.values())
        devices = " (a list of devices; for all, pass NamedSharding(mesh, spec))" * is_list
        self._entries = f"shardings{devices}"

    def __call__(self, path: Trail, _: Any, is_needed: bool) -> Any:
        found = _paths.at_or_above(self.tree, path, self._entries if is_needed else None)
        self.is_unused &= found is None
        return found


def _numbered(leaf: Any) -> str:
    platform, _, number = leaf.partition(":") if isinstance(leaf, str) else ("", "", "")
    is_known = platform in ("cpu", "cuda", "gpu", "rocm", "tpu")
    return f": pass jax.devices({platform!r})[{number or '0':.9}]" * is_known


def _wrapped(leaf: Any) -> str:
    import jax

    if isinstance(leaf, (jax.sharding.PartitionSpec, str)):
        names = ", ".join(map(repr, [leaf] if isinstance(leaf, str) else leaf))
        return f": wrap it, as NamedSharding(mesh, PartitionSpec({names:.100}))"
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return ": pass templates as target="
    return ": wrap it, as NamedSharding(mesh, PartitionSpec(...))" * hasattr(leaf, "axis_names")


def _is_function(sharding: Any) -> bool:
    # Modules and structs may be callable, and are trees. Shardings and devices are neither, and
    # meshes are decorators.
    is_plain = callable(sharding) and kind_of(sharding) is None and not isinstance(sharding, type)
    is_mesh = hasattr(sharding, "axis_names")
    return (is_plain and not is_mesh) or _jax.is_partial(sharding)


def _place(
    items: Iterable[LeafToPlace],
    where: Where | None,
    may_change: bool,
    reading: Reading,
    together: Together | None,
    held: Mapping[str, Any],
) -> None:
    placed: list[LeafToPlace] = []
    ties: dict[int, LeafToPlace] = {}  # by the array in the file
    twins: list[tuple[LeafToPlace, LeafToPlace]] = []
    of_numpy = where is not None or reading.arrays == "jax"
    for item in items:
        is_abstract = _jax.is_abstract(item.target)
        if is_abstract:
            item.leaf = like_scalar(item.target, item.leaf)
        target, array = item.target, item.leaf
        is_jax = _is_jax(item, is_abstract=is_abstract)
        if not is_jax and not (of_numpy and _may_be_jax(item)):
            continue
        recorded = shardings.fitting(item.place, array.shape)
        item.place = _place_of(item.path, target, array, where, recorded, is_jax)
        if is_jax or reading.arrays == "jax" or item.place is not None:
            if isinstance(item.leaf, LazyArray):
                tied = ties.setdefault(id(item.leaf), item)
                is_twin = tied.place == item.place and _is_weak(tied) == _is_weak(item)
                if tied is not item and is_twin:
                    twins.append((item, tied))
                    continue
            same = held.get(str(item.path)) if held else None
            if same is not None and _is_like(same, item):
                item.leaf = same
            else:
                placed.append(item)
    if together is not None:
        share(together, placed)
    groups: dict[Any, list[LeafToPlace]] = defaultdict(list)
    for item in placed:
        groups[item.replicas or item.place].append(item)
    for item in placed:
        _plan(item)
    boxes = [box for item in placed for box in item.boxes.values()]
    find(boxes)
    expect(boxes)
    del boxes
    for place, group in groups.items():
        with _jax.explicit():
            put = transfer(group, place, may_change, reading.threads, together)
            for item, on_device in zip(group, put, strict=True):
                leaf = item.leaf
                _check_integers(item.path, leaf, on_device)
                if reading.cast != "overflow":
                    _check_floats(item.path, leaf, on_device)
                if on_device.dtype != leaf.dtype and not _jax.is_abstract(item.target):
                    remedy = "arrays='numpy'"
                    if where is not None:
                        remedy = "neither device= nor sharding=, or None in sharding= for it"
                    raise TreepackError(
                        f"at {item.path}: JAX would convert {leaf.dtype.name} to "
                        f"{on_device.dtype.name}: set jax_enable_x64, or load with {remedy}"
                    )
                item.leaf, item.boxes = _jax.weak(on_device) if _is_weak(item) else on_device, {}
    for item, tied in twins:
        item.leaf = tied.leaf


def device_leaves(base: Any, paths: Sequence[str]) -> dict[str, Any]:
    chosen = {*paths}
    if not chosen or isinstance(base, (core.Layout, core.Content, core.Catalog)):
        return {}
    leaves = ((_paths.text(parts), leaf) for parts, leaf in leaves_of(base, ()))
    return {path: leaf for path, leaf in leaves if path in chosen and _jax.is_array(leaf)}


def _is_like(array: jax.Array, item: LeafToPlace) -> bool:
    import jax

    if _jax.is_tracer(array) or array.is_deleted() or not isinstance(item.leaf, np.ndarray):
        return False
    place, committed = item.place, getattr(array, "committed", True)
    if isinstance(place, jax.Device):
        place = jax.sharding.SingleDeviceSharding(place)
    is_placed = not committed if place is None else committed and array.sharding == place
    return (
        is_placed
        and array.dtype == item.leaf.dtype
        and array.shape == item.leaf.shape
        and array.weak_type == _is_weak(item)
    )


def _is_weak(item: LeafToPlace) -> bool:
    return bool(item.weak if item.target is None else getattr(item.target, "weak_type", False))


def _is_jax(item: LeafToPlace, *, is_abstract: bool) -> bool:
    target, array = item.target, item.leaf
    if target is None and item.weak is not None:
        _check_array(item.path, array)
        return True
    return is_abstract and _is_array(array) and _can_be(target, array)


def _may_be_jax(item: LeafToPlace) -> bool:
    target, array = item.target, item.leaf
    if not isinstance(array, _HOST):
        return False
    if target is None:
        return _jax_has(array.dtype)
    return isinstance(target, _HOST) and _can_be(target, array)


def _plan(item: LeafToPlace) -> None:
    if isinstance(item.leaf, ShardedArray):
        in_place = _is_on_cpu(item.place)
        for index in parts_of(item):
            key = index_key(index)
            if key not in item.boxes:
                item.boxes[key] = item.leaf.plan(index, in_place=in_place)


def _is_on_cpu(place: Any) -> bool:
    import jax

    if place is None:
        return bool(jax.default_backend() == "cpu")
    devices = place.addressable_devices if isinstance(place, jax.sharding.Sharding) else [place]
    return all(device.platform == "cpu" for device in devices)


def _check_integers(path: Trail, leaf: Any, on_device: Any) -> None:
    if leaf.dtype == on_device.dtype or leaf.dtype.kind not in "iu" or leaf.size == 0:
        return
    limits = np.iinfo(on_device.dtype)
    leaf = np.asarray(leaf)
    if leaf.min() < limits.min or leaf.max() > limits.max:
        raise TreepackError(
            f"at {path}: integers of {leaf.dtype.name} do not fit into {on_device.dtype.name}: set "
            "jax_enable_x64, or load with arrays='numpy'"
        )


def _check_floats(path: Trail, leaf: Any, on_device: Any) -> None:
    if leaf.dtype == on_device.dtype or leaf.dtype not in (np.float64, np.complex128):
        return
    if isinstance(leaf, np.ndarray):
        parts = [leaf.real, leaf.imag] if leaf.dtype.kind == "c" else [leaf]
        ends = [end for part in parts for end in (part.min(initial=0), part.max(initial=0))]
    else:  # read from the file for each device: not to be read again
        ends = [_jax.on_host(shard.data).sum() for shard in on_device.addressable_shards]
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(np.asarray(ends, on_device.dtype)).all():
            return
        leaf = np.asarray(leaf)
        count = _dtypes.overflows(leaf, leaf.astype(on_device.dtype))
    if count:
        remedy = f"by jax_enable_x64 or a template of NumPy arrays, {_dtypes.OVERFLOW_REMEDY}"
        raise _dtypes.overflow_error({path: count}, leaf.dtype, on_device.dtype, remedy)


def _is_array(value: Any) -> bool:
    return isinstance(value, _HOST) or _jax.is_array(value)


# Types of arrays whose bytes are or will be in host memory.
_HOST = (np.ndarray, LazyArray)


def _check_array(path: Trail, value: Any) -> None:
    if imported("jax") is None:
        _jax.needed(f"at {path}: a JAX array was saved", "pass arrays='numpy'")
    if not _is_array(value):
        hint = " (perhaps a PRNG key of an unknown implementation)"
        raise DecodeError(
            f"expected an array, found a {type(value).__name__}" + hint * isinstance(value, dict),
            path=str(path),
        )
    if isinstance(value, _HOST) and not _jax_has(value.dtype):
        raise DecodeError(
            f"JAX does not support dtype {value.dtype}, but the file has a JAX array of it",
            path=str(path),
        )


def _can_be(target: Any, value: Any) -> bool:
    import jax

    if _jax.is_extended(target.dtype) or not isinstance(value, _HOST):
        return True
    canonical = jax.dtypes.canonicalize_dtype
    return _jax_has(value.dtype) and bool(canonical(target.dtype) == target.dtype)


@functools.cache
def _jax_has(dtype: np.dtype) -> bool:
    import jax

    try:
        with jax.transfer_guard_host_to_device("allow"):  # nothing is transferred
            jax.device_put(np.zeros(0, dtype))
    except (TypeError, ValueError, RuntimeError):
        return False
    return dtype.isnative


def _place_of(
    path: Trail, target: Any, array: Any, where: Where | None, recorded: Any, is_needed: bool
) -> Any:
    import jax

    if where is not None:
        struct = jax.ShapeDtypeStruct(array.shape, array.dtype)  # type: ignore[no-untyped-call]
        place = where(path, struct, is_needed)
        if place is None or isinstance(place, (jax.sharding.Sharding, jax.Device)):
            return place
        raise ValueError(
            f"at {path}: expected a sharding or device, got {place!r:.100}{_wrapped(place)}"
        )
    if target is None:
        return recorded
    if _jax.is_tracer(target):
        return None
    if _jax.is_array(target) and not getattr(target, "committed", True):
        return None
    return _concrete(getattr(target, "sharding", None))


def _concrete(sharding: Any) -> Any:
    import jax

    if not isinstance(getattr(sharding, "mesh", None), jax.sharding.AbstractMesh):
        return sharding
    get_mesh = getattr(jax.sharding, "get_mesh", None)
    mesh = None if get_mesh is None else get_mesh()
    if mesh is None or mesh.empty or mesh.axis_names != sharding.mesh.axis_names:
        return None
    return jax.sharding.NamedSharding(mesh, sharding.spec)
