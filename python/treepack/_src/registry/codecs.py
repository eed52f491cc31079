"""Finds codecs of static data by name; defines codecs for types of other libraries.

Each codec is a row of `_CODECS`, or of `CODECS` in `python_codecs`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

import treepack._core as core
from treepack._src.interop import equinox, flax
from treepack._src.interop import jax as _jax
from treepack._src.interop.modules import imported, instance_of
from treepack._src.registry.array_codecs import (
    MOST_DIMENSIONS,
    array_of,
    array_parts,
    dtype_name,
    dtype_of,
    refusal,
    scalar_of,
    type_of,
    type_parts,
)
from treepack._src.registry.codec import (
    as_parts,
    codec,
    counts,
    exactly,
    instance,
    needed_at,
    of_class,
    of_value,
)
from treepack._src.registry.inert import checked_keys, is_member
from treepack._src.registry.library_types import library_name, library_of, remedy
from treepack._src.registry.names import default_name, not_registered
from treepack._src.registry.placeholders import Placeholder
from treepack._src.registry.python_codecs import CODECS
from treepack._src.registry.types import TYPES
from treepack._src.registry.unregistered import of_library
from treepack.errors import UnregisteredTypeError


def encode(value: Any) -> tuple[str, Any] | None:
    codec = _BY_TYPE.get(type(value))
    if codec is None:
        codec = next((codec for codec in _BY_PREDICATE if codec.fits(value)), None)
    return None if codec is None else (codec.name, codec.encode(value))


def decoder(name: str) -> Callable[[Any], Any] | None:
    codec = _BY_NAME.get(name)
    return None if codec is None else codec.decode


def _treedef_parts(treedef: Any) -> Any:
    node = treedef.node_data()
    if node is None:
        return None
    ty, auxdata = node
    name = _TREEDEFS.get(ty) or TYPES.name_of(ty) or library_name(ty)
    if name is None:
        raise TypeError(
            f"cannot save a PyTreeDef with nodes of the unregistered type {default_name(ty)}: call "
            "treepack.register_node on it"
        )
    return name, auxdata, [_treedef_parts(child) for child in treedef.children()]


def _treedef(parts: Any) -> Any:
    structure = needed_at("jax.tree_util", "tree_structure")
    if parts is None:
        return structure(0)
    name, auxdata, children = as_parts((str, object, list), parts)
    # JAX reads out of bounds if there are too few children or auxdata.
    entry = TYPES.by_name(name) or of_library(name)
    ty = _TREEDEF_TYPES.get(name) or getattr(entry, "ty", None)
    if ty is None:
        library = library_of(name)
        is_here = library is None or imported(library)
        way = "call treepack.register_node on it" if is_here else remedy(str(library))
        raise not_registered("type", name, way)
    if ty is type(None):
        fits = auxdata is None and not children
    elif ty is dict:
        fits = type(auxdata) is list and len(auxdata) == len(children) == len(_set(auxdata))
    elif _jax.is_plain_namedtuple(ty):
        fits = len(children) == len(getattr(ty, "_fields", ()))
    elif entry is not None and entry.fields is not None and entry.checked:
        data, meta = entry.fields
        static = type(auxdata) is tuple and len(auxdata) == len(meta)
        fits = len(data) == len(children) and (not meta or static)
    else:
        fits = ty not in (list, tuple) or auxdata is None
    if not fits:
        raise ValueError(f"invalid children or static data for a node of the type {name}")
    if ty is type(None):
        return structure(None)
    if entry is not None:
        entry.check(auxdata)  # unflattening the treedef rebuilds nodes from it
    return _jax.treedef_with(ty, auxdata, [_treedef(child) for child in children])


def _set(keys: list[Any]) -> set[Any]:
    core.check_hashes(checked_keys(keys))
    return set(keys)


_TREEDEFS: dict[type, str] = {type(None): "none", dict: "dict", list: "list", tuple: "tuple"}

_TREEDEF_TYPES = {name: ty for ty, name in _TREEDEFS.items()}


# jax


def _spec_parts(spec: Any) -> tuple[Any, ...]:
    # Older versions of JAX have plain tuples.
    axes = tuple(getattr(spec, "partitions", spec))
    _check_spec(axes)
    return axes, *(frozenset(getattr(spec, kind, ())) for kind in ("unreduced", "reduced"))


def _check_spec(axes: Any) -> None:
    for axis in axes:
        _check_axes(axis if type(axis) is tuple else () if axis is None else (axis,))


def _spec(ty: Any, axes: Any, unreduced: Any, reduced: Any) -> Any:
    _check_spec(axes)
    more = {"unreduced": _check_axes(unreduced), "reduced": _check_axes(reduced)}
    more = {kind: names for kind, names in more.items() if names}
    return ty(*axes, **more)


def _named_sharding_parts(sharding: Any) -> tuple[Any, ...]:
    mesh = sharding.mesh
    axes = tuple(_check_axes(mesh.axis_names)), tuple(mesh.axis_sizes)
    parts: tuple[Any, ...] = (*axes, sharding.spec, sharding.memory_kind)
    axis_types = tuple(ty.name for ty in mesh.axis_types)
    return parts if {*axis_types} <= {"Auto"} else (*parts, axis_types)


def _named_sharding(ty: Any, parts: tuple[Any, ...]) -> Any:
    spec_type = needed_at("jax.sharding", "PartitionSpec")
    jax: Any = imported("jax")
    types = (tuple, tuple, spec_type, (str, type(None)), tuple)
    names, sizes, spec, memory_kind, *more = as_parts(types[: 5 if len(parts) > 4 else 4], parts)
    _check_axes(names)
    # JAX aborts the program for a mesh without devices, or if their number overflows.
    if 0 in counts(sizes) or math.prod(sizes) > _MOST_DEVICES:
        raise ValueError(f"invalid mesh sizes {sizes}")
    if not len({*names}) == len(names) == len(sizes) <= MOST_DIMENSIONS:
        raise ValueError(f"a mesh must have one size per axis, found {sizes} for {names}")
    axis_types = tuple(jax.sharding.AxisType[exactly(str, ty)] for part in more for ty in part)
    if len(axis_types) not in (0, len(names)):
        raise ValueError(f"a mesh must have one type per axis, found {axis_types} for {names}")
    options = {"axis_types": axis_types} if axis_types else {}
    mesh: Any = jax.sharding.AbstractMesh(sizes, names, **options)
    present = _jax.devices()
    if math.prod(sizes) <= len(present):
        chosen = np.asarray(present[: math.prod(sizes)]).reshape(sizes)
        mesh = jax.sharding.Mesh(chosen, names, **options)
    return ty(mesh, spec, memory_kind=memory_kind)


def _is_jax_array(value: Any) -> bool:
    return _jax.is_array(value) and not _jax.is_extended(value.dtype)


def _jax_array(*parts: Any) -> Any:
    saved = array_of(*parts)
    array = needed_at("jax", "device_put")(saved)  # `asarray` compiles a copy for each shape
    if array.dtype != saved.dtype:
        raise ValueError(f"JAX would convert {saved.dtype} to {array.dtype}: set jax_enable_x64")
    return array


def _struct_parts(struct: Any) -> tuple[Any, ...]:
    if _jax.is_extended(struct.dtype):
        raise TypeError(refusal(struct))
    parts = tuple(struct.shape), dtype_name(struct.dtype), bool(struct.weak_type), struct.sharding
    # Structs with symbolic shapes, layouts and the like are not supported.
    if type(struct.sharding) not in _shardings() or _struct(type(struct), parts) != struct:
        raise TypeError(refusal(struct))
    return parts


def _struct(ty: Any, parts: Any) -> Any:
    shape, name, weak, sharding = as_parts((tuple, str, bool, _shardings()), parts)
    if len(counts(shape)) > MOST_DIMENSIONS:
        raise ValueError(
            f"an array cannot have {len(shape)} dimensions: the maximum is {MOST_DIMENSIONS}"
        )
    more = {"sharding": sharding, "weak_type": True} if weak else {"sharding": sharding}
    return ty(shape, dtype_of(name), **more)


def _shardings() -> tuple[type, ...]:
    return type(None), needed_at("jax.sharding", "NamedSharding")


def _dot_algorithm(ty: Any, *parts: Any) -> Any:
    if not all(isinstance(dtype, (np.dtype, type)) for dtype in parts[:3]):
        raise ValueError("expected dtypes as its types")
    return ty(*parts)


def _dimension_numbers(ty: Any, *numbers: Any) -> Any:
    return ty(*map(counts, numbers))


def _jax_nn(name: str) -> Any:
    function = needed_at("jax.nn", name)
    if name.startswith("_") or not callable(function):
        raise ValueError(f"jax.nn has no function {name!r}")
    return function


def _check_axes(names: Any) -> Any:
    """Checks the types of names of axes, nearly always strings, since JAX hashes them."""
    for name in names:
        if type(name) not in (str, int) and not is_member(name):
            raise ValueError(f"a {type(name).__name__} cannot be the name of an axis")
    return names


# flax, equinox, and libraries built on them


def _state_axes_parts(value: Any) -> tuple[Any, ...]:
    return tuple(value.filters), tuple(value.axes)


def _state_axes(ty: Any, filters: tuple[Any, ...], axes: tuple[Any, ...]) -> Any:
    return ty([*zip(filters, axes, strict=True)])


_MJX = "mujoco.mjx._src.dataclasses"

_PENZAI = "penzai.core.struct"

# astropy could take forever to compute longer numbers.
_UNIT = re.compile(r"(?:[^\W\d]|\d{1,3}(?!\d)|[ ./*^()%+-])*")


def _unit_text(unit: Any) -> str:
    text = unit.to_string()
    if not _UNIT.fullmatch(text) or _unit(text) != unit:
        raise TypeError(refusal(unit))
    return str(text)


def _unit(text: str) -> Any:
    if len(text) > _MOST_LETTERS or not _UNIT.fullmatch(text):
        raise ValueError(f"{text!r:.100} is not a unit")
    return needed_at("astropy.units", "Unit")(text)


_MOST_LETTERS = 200


def _is_tag(value: Any) -> bool:
    tag = getattr(imported("lineax"), "symmetric_tag", None)
    return tag is not None and type(value) is type(tag)


def _tag_name(tag: Any) -> str:
    lineax = imported("lineax")
    for name in dir(lineax):
        if name.endswith("_tag") and getattr(lineax, name) is tag:
            return name
    raise TypeError(refusal(tag))


def _tag(name: str) -> Any:
    if not name.endswith("_tag") or not _is_tag(tag := needed_at("lineax", name)):
        raise ValueError(f"lineax has no tag {name!r:.100}")
    return tag


def _is_missing(value: object) -> bool:
    return equinox.missing() is value


def _missing(_: None) -> Any:
    missing = equinox.missing()
    if missing is None:
        raise UnregisteredTypeError(
            "unregistered marker of a missing field in an equinox module: import equinox",
            "equinox.Missing",
        )
    return missing


def _placeholder_parts(placeholder: Placeholder) -> tuple[Any, ...]:
    return tuple(placeholder[: 2 if placeholder.name is None else 4])


def _placeholder(parts: Any) -> Placeholder:
    types: tuple[Any, ...] = ((str, type(None)), str, str, object)
    return Placeholder(
        *as_parts(types[: 4 if type(parts) is tuple and len(parts) > 2 else 2], parts)
    )


_MOST_DEVICES = 2**31 - 1


_ARRAY = str, tuple, bytes

# The first predicate that accepts a value counts.
_CODECS = [
    *CODECS,
    codec("treepack.hole", Placeholder, _placeholder_parts, object, _placeholder),
    codec("numpy.dtype", instance(np.dtype), dtype_name, str, dtype_of),
    of_value("numpy.str_", np.str_, str),
    of_value("numpy.bytes_", np.bytes_, bytes),
    codec("numpy.generic", instance(np.generic), array_parts, _ARRAY, scalar_of),
    codec("numpy.ndarray", instance(np.ndarray), array_parts, _ARRAY, array_of),
    codec("type", instance(type), type_parts, (str, str), type_of),
    of_class("jax.sharding.PartitionSpec", _spec_parts, (tuple, frozenset, frozenset), _spec),
    of_class("jax.sharding.NamedSharding", _named_sharding_parts, object, _named_sharding),
    of_class(
        "jax.tree_util.Partial",
        lambda partial: (_jax.partial_function(partial), partial.args, dict(partial.keywords)),
        (object, tuple, dict),
        lambda ty, function, args, keywords: ty(function, *args, **keywords),
    ),
    codec("jax.tree_util.PyTreeDef", _jax.is_treedef, _treedef_parts, object, _treedef),
    *(
        of_class(f"jax.lax.{name}", "name", str, lambda ty, member: ty[member])
        for name in ("Precision", "DotAlgorithmPreset", "RoundingMethod")
    ),
    of_class("jax.lax.DotAlgorithm", tuple, (*[object] * 3, int, int, int, bool), _dot_algorithm),
    of_class("jax.lax.ConvDimensionNumbers", tuple, (tuple, tuple, tuple), _dimension_numbers),
    of_class("jax.ShapeDtypeStruct", _struct_parts, object, _struct),
    codec("jax.Array", _is_jax_array, array_parts, _ARRAY, _jax_array),
    codec("jax.nn", _jax.is_of_nn, "__name__", str, _jax_nn),
    codec(
        "flax.typing.HashableMapping",
        lambda value: value.__class__ is flax.hashable_mapping(),
        dict,
        dict,
        lambda items: (flax.hashable_mapping() or needed_at("flax.typing", "HashableMapping"))(
            items
        ),
    ),
    of_class("flax.core.FrozenDict", dict, dict),
    of_class("flax.nnx.StateAxes", _state_axes_parts, (tuple, tuple), _state_axes),
    of_class("flax.nnx.DiffState", "argnum filter", (int, object)),
    of_class(f"{_MJX}._NumPyArrayHashWrapper", "array", np.ndarray, name="mujoco.mjx.array"),
    codec("astropy.units", instance_of("astropy.units", "UnitBase"), _unit_text, str, _unit),
    codec("lineax.tag", _is_tag, _tag_name, str, _tag),
    of_class(f"{_PENZAI}.StructStaticMetadata", "child_field_names static_fields", (list, dict)),
    # `missing` may return `None`, but `None` is a plain value and never gets here.
    codec("equinox.Missing", _is_missing, lambda _: None, type(None), _missing),
]

_BY_NAME = {codec.name: codec for codec in _CODECS}
_BY_TYPE = {codec.fits: codec for codec in _CODECS if isinstance(codec.fits, type)}
_BY_PREDICATE = [codec for codec in _CODECS if not isinstance(codec.fits, type)]

NAMES = frozenset(_BY_NAME)
