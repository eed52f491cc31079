"""Where arrays go when a tree is loaded: to host memory, or to the devices of jax."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from treepack import _paths
from treepack._compare import signature
from treepack._lazy import LazyArray
from treepack._libraries import jax as _jax
from treepack._nodes import kind_of
from treepack._sharded.reading import ShardedArray
from treepack.errors import DecodeError, TreepackError

if TYPE_CHECKING:
    import jax

Arrays = Literal["saved", "numpy"]
"""What becomes of arrays: those of jax again what they were, or all of them NumPy's."""

# The most bytes on their way to devices at a time.
_WINDOW = 1 << 30

# Arrays are cast in parts of so many elements.
_CAST_ELEMENTS = 1 << 20

# Leaves: their paths, those of the template (or `None`), and those that were found.
Leaves = list[tuple[str, Any, Any]]


def converter(
    arrays: Arrays,
    device: Any,
    sharding: Any,
    *,
    cast: bool = False,
    threads: int | None = None,
    may_change: bool = False,
    copy: bool | None = None,
) -> Callable[[Leaves], list[Any]] | None:
    """Returns what makes of the leaves that were found what the caller asked for.

    Args:
      arrays: What becomes of arrays.
      device: Where to put all that become arrays of jax.
      sharding: How to put them: a sharding, a pytree of shardings whose leaves stand for all
        below them, or a callable that takes a path and a `jax.ShapeDtypeStruct`.
      cast: Whether floats become those of the template.
      threads: How many threads cast, at most.
      may_change: Whether arrays that are found lie in memory that others may change.
      copy: What is asked of arrays that are read at last, and do not go to devices.

    Returns:
      A function of all leaves, or `None` if there is nothing to do.
    """
    if arrays not in ("saved", "numpy"):
        raise ValueError(f"arrays must be 'saved' or 'numpy', got {arrays!r}")
    if device is not None and sharding is not None:
        raise ValueError("device and sharding exclude each other")
    placed = arrays == "saved"
    if not placed and (device is not None or sharding is not None):
        raise ValueError("device and sharding are for arrays of jax: pass arrays='saved'")
    if not placed and not cast:
        return None

    def convert(leaves: Leaves) -> list[Any]:
        found = _cast(leaves, threads) if cast else [found for _, _, found in leaves]
        if not placed:
            return found
        made = _place(leaves, found, _where(device, sharding), may_change)
        return [it.__array__(copy=copy) if isinstance(it, LazyArray) else it for it in made]

    return convert


# Casting


def _cast(leaves: Leaves, threads: int | None) -> list[Any]:
    """Returns what was found, with floats in the dtypes of the template."""
    results: list[Any] = []
    work: list[tuple[np.ndarray, np.ndarray]] = []
    for _, target, found in leaves:
        expected, actual = signature(target), signature(found)
        if (
            expected is None
            or actual is None
            or expected.dtype == actual.dtype
            or not expected.kind == actual.kind == "float"
        ):
            results.append(found)
            continue
        if isinstance(found, ShardedArray):  # as each device reads it
            results.append(found.astype(expected.dtype))
            continue
        source = np.asarray(found)
        made = np.empty(source.shape, expected.dtype)
        starts = range(0, source.size, _CAST_ELEMENTS)
        parts = [slice(start, start + _CAST_ELEMENTS) for start in starts]
        flat = source.reshape(-1), made.reshape(-1)
        work.extend((flat[0][part], flat[1][part]) for part in parts)
        results.append(made)
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        for _ in pool.map(_cast_part, work):
            pass
    return results


def _cast_part(part: tuple[np.ndarray, np.ndarray]) -> None:
    source, target = part
    with np.errstate(over="ignore"):  # too large a number becomes infinite, as in JAX
        np.copyto(target, source, casting="unsafe")


# Placing

# Takes a path and a `jax.ShapeDtypeStruct`, returns a device or a sharding, or nothing.
Where = Callable[[str, Any], Any]


def _where(device: Any, sharding: Any) -> Where | None:
    """Returns what tells where a leaf goes, or `None` if nobody said."""
    if device is not None:
        return lambda *_: device
    if sharding is None:
        return None
    import jax

    if isinstance(sharding, (jax.sharding.Sharding, jax.Device)):
        return lambda *_: sharding
    # Modules and structs may be callable as well, and are trees.
    if callable(sharding) and (kind_of(sharding) is None or _jax.is_partial(sharding)):
        where: Where = sharding
        return where
    return _by_prefix(sharding)


def _by_prefix(tree: Any) -> Where:
    """Returns what looks up a leaf in a tree of shardings, each of which is for all below it."""
    prefixes = dict(leaves_of(tree, ()))

    def where(path: str, _: Any) -> Any:
        parts = tuple(_paths.parts(path))
        for count in range(len(parts), -1, -1):
            if parts[:count] in prefixes:
                return prefixes[parts[:count]]
        raise ValueError(f"at {path}: the tree of shardings has none for it")

    return where


def leaves_of(node: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields the leaves of a tree with the paths that they have in a state dict."""
    kind = kind_of(node)
    if kind is None:
        yield path, node
        return
    for name, child in kind.children(node).items():
        yield from leaves_of(child, (*path, name))


def _place(leaves: Leaves, found: list[Any], where: Where | None, may_change: bool) -> list[Any]:
    """Returns arrays of jax in place of those that are to be some."""
    results = list(found)
    groups: dict[Any, list[int]] = {}
    for index, ((path, target, _), array) in enumerate(zip(leaves, found, strict=True)):
        if target is None:
            _check_array(path, array)
        elif not (_jax.is_abstract(target) and _is_array(array) and _can_be(target, array)):
            continue
        groups.setdefault(_place_of(path, target, array, where), []).append(index)
    for place, indices in groups.items():
        group = [found[index] for index in indices]
        if may_change:
            group = [np.array(it) if isinstance(it, np.ndarray) else it for it in group]
        placed = _put(group, place)
        for index in indices:
            path, target, _ = leaves[index]
            try:
                made = next(placed)
            except TreepackError:
                raise
            except Exception as error:  # jax raises all kinds for what does not fit
                raise TreepackError(
                    f"at {path}: an array with the shape {found[index].shape} cannot be put as "
                    f"{place}: {type(error).__name__}: {error}"
                ) from error
            _check_integers(path, found[index], made)
            if target is None and made.dtype != found[index].dtype:
                raise TreepackError(
                    f"at {path}: an array of {found[index].dtype.name} was saved, which jax makes "
                    f"{made.dtype.name} here; set jax_enable_x64, or load with arrays='numpy'"
                )
            results[index] = made
    return results


def _check_integers(path: str, found: Any, made: Any) -> None:
    """Raises if integers of 64 bits have become others of 32."""
    if found.dtype == made.dtype or found.dtype.kind not in "iu" or found.size == 0:
        return
    limits = np.iinfo(made.dtype)
    found = np.asarray(found)
    if found.min() < limits.min or found.max() > limits.max:
        raise TreepackError(
            f"at {path}: integers of {found.dtype.name} do not fit {made.dtype.name}; set "
            "jax_enable_x64, or load with arrays='numpy'"
        )


def _is_array(value: Any) -> bool:
    return isinstance(value, _HOST) or _jax.is_array(value)


# Arrays whose bytes are in host memory, or will be.
_HOST = (np.ndarray, LazyArray)


def _check_array(path: str, value: Any) -> None:
    try:
        import jax  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"at {path}: an array of jax was saved, and jax is not installed here: pass "
            "arrays='numpy'"
        ) from error
    if not _is_array(value):
        hint = " (perhaps a PRNG key of an implementation that is not known here)"
        raise DecodeError(
            f"there is a {type(value).__name__} where an array was saved"
            + hint * isinstance(value, dict),
            path=path,
        )
    if isinstance(value, _HOST) and not _jax_has(value.dtype):
        raise DecodeError(f"jax has no arrays of {value.dtype}, which was saved as such", path=path)


def _can_be(target: Any, value: Any) -> bool:
    """Tells whether jax can have what the template asks for, which may be an array of NumPy's."""
    import jax

    if _jax.is_extended(target.dtype) or not isinstance(value, _HOST):
        return True
    canonical = jax.dtypes.canonicalize_dtype
    return _jax_has(value.dtype) and bool(canonical(target.dtype) == target.dtype)


@functools.cache
def _jax_has(dtype: np.dtype) -> bool:
    """Tells whether jax can have arrays of a dtype, in this byte order."""
    import jax

    try:
        jax.device_put(np.zeros(0, dtype))
    except (TypeError, ValueError, RuntimeError):
        return False
    return dtype.isnative


def _place_of(path: str, target: Any, array: Any, where: Where | None) -> Any:
    """Returns the device or sharding for a leaf; `None` is the default device."""
    import jax

    if where is not None:
        place = where(path, jax.ShapeDtypeStruct(array.shape, array.dtype))  # type: ignore[no-untyped-call]
        if place is None or isinstance(place, (jax.sharding.Sharding, jax.Device)):
            return place
        raise ValueError(f"at {path}: a sharding or device is needed, not {place!r:.100}")
    if _jax.is_tracer(target):
        return None
    if _jax.is_array(target) and not getattr(target, "committed", True):
        return None
    return _concrete(getattr(target, "sharding", None))


def _concrete(sharding: Any) -> Any:
    """Returns a sharding of devices; one of a mesh without any is of the current mesh."""
    import jax

    if not isinstance(getattr(sharding, "mesh", None), jax.sharding.AbstractMesh):
        return sharding
    get_mesh = getattr(jax.sharding, "get_mesh", None)
    mesh = None if get_mesh is None else get_mesh()
    if mesh is None or mesh.empty or mesh.axis_names != sharding.mesh.axis_names:
        return None
    return jax.sharding.NamedSharding(mesh, sharding.spec)


def _put(arrays: Sequence[Any], place: Any) -> Iterator[jax.Array]:
    """Puts arrays on devices, a window of them at a time."""
    import jax

    def put(batch: list[Any]) -> list[jax.Array]:
        if not isinstance(place, jax.sharding.Sharding) or len(place.device_set) == 1:
            batch = [np.asarray(it) if isinstance(it, LazyArray) else it for it in batch]
            made: list[jax.Array] = jax.device_put(batch, place)
            return made
        for array in batch:  # all that is needed, before any of it is waited for
            if isinstance(array, LazyArray):
                indices = place.addressable_devices_indices_map(array.shape).values()
                for index in {_key(index): index for index in indices if index}.values():
                    array.prefetch(index)
        return [
            # Each device reads its part; typed PRNG keys are arrays of jax already.
            jax.device_put(array, place)
            if _jax.is_array(array) and place.is_fully_addressable
            else jax.make_array_from_callback(array.shape, place, _parts_of(array))
            for array in batch
        ]

    before: list[jax.Array] = []
    for batch in _batches(arrays):
        made = put(batch)
        jax.block_until_ready(before)  # type: ignore[no-untyped-call]
        before = made
        yield from made


def _key(index: tuple[slice, ...]) -> tuple[tuple[Any, Any], ...]:
    """Returns an index in a form that can be compared and hashed."""
    return tuple((at.start, at.stop) for at in index)


def _parts_of(array: Any) -> Callable[[Any], np.ndarray]:
    """Returns what returns a part of an array; devices with the same part share it."""
    read = array.box if isinstance(array, LazyArray) else array.__getitem__
    known: dict[Any, np.ndarray] = {}

    def part(index: tuple[slice, ...]) -> np.ndarray:
        key = _key(index)
        if key not in known:
            known[key] = read(index)
        return known[key]

    return part


def _batches(arrays: Sequence[Any]) -> Iterable[list[Any]]:
    sizes = itertools.accumulate(getattr(array, "nbytes", 0) for array in arrays)
    numbered = zip((size // _WINDOW for size in sizes), arrays, strict=True)
    for _, group in itertools.groupby(numbered, key=lambda item: item[0]):
        yield [array for _, array in group]
