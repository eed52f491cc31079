"""Records shardings in files: names and sizes of mesh axes, without devices."""

from __future__ import annotations

import math
from typing import Any

from treepack._src.interop.modules import imported

Parts = tuple[list[tuple[str, int, bool]], list[list[str]], list[str]]
"""The axes of a mesh (name, size, whether explicit), the axes of each dimension, and a memory kind.
"""

_MOST_AXES = 32  # the maximum for NumPy arrays in older versions


def describe(sharding: Any) -> Parts | None:
    jax: Any = imported("jax")
    if type(sharding) is not jax.sharding.NamedSharding or sharding.mesh.size < 2:
        return None
    mesh, spec = sharding.mesh, sharding.spec
    if isinstance(mesh, jax.sharding.AbstractMesh) or any(
        getattr(spec, kind, None) for kind in ("unreduced", "reduced")
    ):
        return None
    kinds = [ty.name for ty in mesh.axis_types]
    axes = [
        [] if names is None else [*names] if isinstance(names, tuple) else [names] for names in spec
    ]
    is_named = all(isinstance(name, str) for names in (mesh.axis_names, *axes) for name in names)
    if not is_named or not {*kinds} <= {"Auto", "Explicit"}:
        return None
    # All processes must get the same result, also processes without devices in the mesh.
    default = _device(mesh).default_memory().kind
    memory = [kind for kind in [sharding.memory_kind] if kind not in (None, default)]
    explicit = [kind == "Explicit" for kind in kinds]
    return [*zip(mesh.axis_names, mesh.axis_sizes, explicit, strict=True)], axes, memory


def resolve(mesh: list[tuple[str, int, bool]], spec: list[list[str]], memory: list[str]) -> Any:
    from jax.sharding import NamedSharding, PartitionSpec

    names = [name for name, _, _ in mesh]
    used = [name for axes in spec for name in axes]
    # JAX raises various errors for invalid meshes.
    if not len({*names}) == len(names) <= _MOST_AXES or len({*used}) != len(used):
        return None
    if not {*used} <= {*names}:
        return None
    device_mesh = _mesh(mesh)
    if device_mesh is None:
        return None
    entries = [axes[0] if len(axes) == 1 else tuple(axes) or None for axes in spec]
    kinds = {kind.kind for kind in _device(device_mesh).addressable_memories()}
    kind = next((kind for kind in memory if kind in kinds), None)
    return NamedSharding(device_mesh, PartitionSpec(*entries), memory_kind=kind)  # type: ignore[no-untyped-call]


def _device(mesh: Any) -> Any:
    import jax

    return jax.local_devices(backend=mesh.devices.flat[0].platform)[0]


def _mesh(axes: list[tuple[str, int, bool]]) -> Any:
    """Returns the current mesh if it has these axes, or a mesh of the present devices.

    That has all devices of all processes, or else of this process. `None` if there are too few
    devices, or one is enough.
    """
    import jax

    names, sizes, explicit = zip(*axes, strict=True) if axes else ((), (), ())
    get_mesh: Any = getattr(jax.sharding, "get_mesh", None)
    current = None if get_mesh is None else get_mesh()
    if current is not None and (current.axis_names, current.axis_sizes) == (names, sizes):
        return None if current.empty else current
    count = math.prod(sizes)
    devices = jax.devices() if count == jax.device_count() else jax.local_devices()[:count]
    if not 1 < count == len(devices):
        return None
    types = tuple(
        jax.sharding.AxisType["Explicit" if is_explicit else "Auto"] for is_explicit in explicit
    )
    return jax.make_mesh(sizes, names, axis_types=types, devices=devices)


def fitting(sharding: Any, shape: tuple[int, ...]) -> Any:
    if sharding is None or len(sharding.spec) > len(shape):
        return None
    try:
        sharding.shard_shape(shape)
    except ValueError:
        return None
    return sharding
