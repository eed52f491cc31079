"""How static data of types that are not the program's are written, by name.

`encode` finds the name of a value and what it is made of; `DECODERS` has the way back for each
name. They are known to every program, so a file may have them without any registration.
"""

from __future__ import annotations

import functools
import pathlib
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from treepack import _dtypes
from treepack._holes import Hole
from treepack._libraries import equinox, flax, imported
from treepack._libraries.jax import partial_function, treedef_with
from treepack._names import default_name

# Static data are compared and hashed by JAX; more than this belongs into leaves.
MAX_ARRAY_BYTES = 64 << 10

# How a value is written: its name, and what it is made of.
Parts = tuple[str, Any]


def encode(value: Any) -> Parts | None:
    """Returns the name of a value and what it is made of, or `None` if it has no name here.

    Raises:
      TypeError: If it is of a type that has one, and cannot be written.
    """
    ty = type(value)
    if ty is Hole:
        return "treepack.hole", tuple(value)
    if ty in _PLAIN:
        return _PLAIN[ty](value)
    if isinstance(value, pathlib.PurePath):
        return _path_name(value), str(value)
    if isinstance(value, np.dtype):
        return "numpy.dtype", _dtype_name(value)
    if isinstance(value, np.generic):
        return "numpy.generic", _array_parts(np.asarray(value))
    if isinstance(value, np.ndarray):
        return "numpy.ndarray", _array_parts(value)
    if isinstance(value, type):
        return "type", _type_parts(value)
    return _encode_of_jax(value)


def _encode_of_jax(value: Any) -> Parts | None:
    jax = imported("jax")
    if jax is None:
        return None
    if isinstance(value, jax.sharding.PartitionSpec):
        return "jax.sharding.PartitionSpec", _spec_parts(value)
    if isinstance(value, jax.sharding.NamedSharding):
        mesh = value.mesh
        axes = tuple(mesh.axis_names), tuple(mesh.axis_sizes)
        parts: tuple[Any, ...] = (*axes, value.spec, value.memory_kind)
        kinds = tuple(kind.name for kind in mesh.axis_types)
        return "jax.sharding.NamedSharding", parts if {*kinds} <= {"Auto"} else (*parts, kinds)
    if type(value) is jax.tree_util.Partial:
        return "jax.tree_util.Partial", (
            partial_function(value),
            value.args,
            dict(value.keywords),
        )
    if isinstance(value, jax.tree_util.PyTreeDef):
        return "jax.tree_util.PyTreeDef", _treedef_parts(value)
    if isinstance(value, jax.lax.Precision):
        return "jax.lax.Precision", value.name
    if isinstance(value, jax.Array) and not jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended):
        return "jax.Array", _array_parts(np.asarray(value))
    name = getattr(value, "__name__", None)
    if isinstance(name, str) and callable(value) and getattr(jax.nn, name, None) is value:
        return "jax.nn", name
    if value.__class__ is flax.hashable_mapping():
        return "flax.typing.HashableMapping", dict(value)
    missing = equinox.missing()
    return ("equinox.Missing", None) if missing is not None and missing is value else None


def _treedef_parts(treedef: Any) -> Any:
    """Returns a treedef as a tree of its type, its auxdata and its children; `None` for a leaf."""
    node = treedef.node_data()
    if node is None:
        return None
    ty, auxdata = node
    from treepack import _node_types

    name = _TREEDEFS.get(ty) or _node_types.name_of(ty)
    if name is None:
        raise TypeError(
            f"a PyTreeDef with nodes of the type {default_name(ty)}, which is not registered, "
            "cannot be saved"
        )
    return name, auxdata, [_treedef_parts(child) for child in treedef.children()]


def _treedef(parts: Any) -> Any:
    import jax

    from treepack import _node_types

    if parts is None:
        return jax.tree_util.tree_structure(0)
    name, auxdata, children = parts
    types = {known: ty for ty, known in _TREEDEFS.items()}
    ty = types.get(name) or _node_types.registered_types().get(name)
    if ty is None:
        raise ValueError(f"no type is registered with the name {name!r}")
    # JAX reads beyond the end of what is too short.
    found = _node_types.registered(ty)
    if ty is type(None):
        return jax.tree_util.tree_structure(None)
    if ty is dict:
        fits = type(auxdata) is list and len(auxdata) == len(children)
    elif found is not None and found.fields is not None and found.checked:
        data, meta = found.fields
        fits = len(data) == len(children) and (not meta or len(auxdata) == len(meta))
    else:
        fits = ty not in (list, tuple) or auxdata is None
    if not fits:
        raise ValueError(f"a node of the type {name} has other children or static data")
    return treedef_with(ty, auxdata, [_treedef(child) for child in children])


_TREEDEFS: dict[type, str] = {type(None): "none", dict: "dict", list: "list", tuple: "tuple"}


def _partial_parts(value: functools.partial[Any]) -> Parts:
    return "functools.partial", (value.func, value.args, dict(value.keywords))


def _path_name(path: pathlib.PurePath) -> str:
    """Returns the class of a path: one that can open files is what the reading system has."""
    if isinstance(path, pathlib.Path):
        return "pathlib.Path"
    if isinstance(path, pathlib.PureWindowsPath):
        return "pathlib.PureWindowsPath"
    return "pathlib.PurePosixPath"


_PLAIN: dict[type, Callable[[Any], Parts]] = {
    int: lambda value: ("int", str(value)),  # one that 64 bits cannot hold
    set: lambda value: ("set", frozenset(value)),
    bytearray: lambda value: ("bytearray", bytes(value)),
    range: lambda value: ("range", (value.start, value.stop, value.step)),
    types.MappingProxyType: lambda value: ("types.MappingProxyType", dict(value)),
    slice: lambda value: ("slice", (value.start, value.stop, value.step)),
    functools.partial: _partial_parts,
}


# dtypes and arrays


def _dtype(name: str) -> np.dtype:
    dtype = _dtypes.resolve(name.encode())
    if dtype is None:
        raise ValueError(f"{name!r} is no dtype that an array can have")
    return dtype


def _dtype_name(dtype: np.dtype) -> str:
    name, native = _dtypes.describe(dtype)
    if name is None or not native:
        raise TypeError(f"the dtype {dtype!r} cannot be saved as static data")
    return name


def _array_parts(array: np.ndarray) -> tuple[str, tuple[int, ...], bytes]:
    if array.nbytes > MAX_ARRAY_BYTES or type(array) is not np.ndarray:
        raise TypeError(refusal(array))
    return _dtype_name(array.dtype), array.shape, array.tobytes()


def _array(parts: tuple[str, tuple[int, ...], bytes]) -> np.ndarray:
    name, shape, content = parts
    return np.frombuffer(content, _dtype(name)).reshape(shape).copy()


# types

_TYPES = {
    ty.__name__: ty
    for ty in (bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset)
}


def _type_parts(ty: type) -> tuple[str, str]:
    if _TYPES.get(ty.__name__) is ty:
        return "builtins", ty.__name__
    jax = imported("jax")
    # jnp.float32 and the like are types of their own.
    if jax is not None and getattr(jax.numpy, ty.__name__, None) is ty:
        return "jax.numpy", ty.__name__
    if issubclass(ty, np.generic) and np.dtype(ty).type is ty:
        return "numpy", _dtype_name(np.dtype(ty))
    raise TypeError(refusal(ty))


def _type(parts: tuple[str, str]) -> Any:
    module, name = parts
    if module == "builtins":
        return _TYPES[name]
    if module == "numpy":
        return _dtype(name).type
    if module == "jax.numpy" and not name.startswith("_"):
        import jax.numpy as jnp

        found = getattr(jnp, name)
        if isinstance(found, type):
            return found
    raise ValueError(f"{module}.{name} is no type that static data may have")


# jax


def _spec_parts(spec: Any) -> tuple[Any, ...]:
    # Older versions of JAX have tuples, and nothing besides.
    axes = tuple(getattr(spec, "partitions", spec))
    return axes, *(frozenset(getattr(spec, kind, ())) for kind in ("unreduced", "reduced"))


def _spec(parts: tuple[Any, ...]) -> Any:
    from jax.sharding import PartitionSpec

    axes, unreduced, reduced = parts
    more = {"unreduced": unreduced, "reduced": reduced}
    more = {kind: names for kind, names in more.items() if names}
    return PartitionSpec(*axes, **more)  # type: ignore[no-untyped-call]


def _named_sharding(parts: tuple[Any, ...]) -> Any:
    """Makes a mesh with these axes of the devices that are here, or of none in particular."""
    import math

    import jax
    from jax.sharding import AbstractMesh, NamedSharding

    names, sizes, spec, memory_kind, *more = _one(tuple, parts)
    _of((int,), sizes)
    axis_types = tuple(jax.sharding.AxisType[kind] for kinds in more for kind in kinds)
    kinds = {"axis_types": axis_types} if axis_types else {}
    mesh: Any = AbstractMesh(sizes, names, **kinds)
    if math.prod(sizes) <= jax.device_count():
        devices = np.asarray(jax.devices()[: math.prod(sizes)]).reshape(sizes)
        mesh = jax.sharding.Mesh(devices, names, **kinds)
    return NamedSharding(mesh, spec, memory_kind=memory_kind)


def _partial(parts: tuple[Any, ...]) -> Any:
    from jax.tree_util import Partial

    function, args, keywords = parts
    args, keywords = _one(tuple, args), _one(dict, keywords)
    return Partial(function, *args, **keywords)  # type: ignore[no-untyped-call]


def _jax_array(parts: tuple[str, tuple[int, ...], bytes]) -> Any:
    import jax.numpy as jnp

    saved = _array(parts)
    made = jnp.asarray(saved)
    if made.dtype != saved.dtype:
        raise ValueError(f"jax makes {made.dtype} of {saved.dtype} here; set jax_enable_x64")
    return made


def _precision(name: str) -> Any:
    from jax.lax import Precision

    return Precision[name]


def _jax_nn(name: str) -> Any:
    import jax

    function = None if name.startswith("_") else getattr(jax.nn, name, None)
    if not callable(function):
        raise ValueError(f"jax.nn has no function {name!r}")
    return function


def _one(ty: type, value: Any) -> Any:
    """Returns a value of a type; others might take forever to be made something of."""
    if type(value) is not ty:
        raise ValueError(f"a {ty.__name__} is needed, not a {type(value).__name__}")
    return value


def _of(types_of_parts: tuple[type, ...], parts: Any) -> Any:
    for part in _one(tuple, parts):
        if type(part) not in types_of_parts:
            raise ValueError(f"a {type(part).__name__} is no part of it")
    return parts


DECODERS: dict[str, Callable[[Any], Any]] = {
    "treepack.hole": lambda parts: Hole(*_of((str, type(None)), parts)),
    "int": lambda text: int(_one(str, text)),
    "set": lambda items: set(_one(frozenset, items)),
    "bytearray": lambda data: bytearray(_one(bytes, data)),
    "range": lambda parts: range(*_of((int,), parts)),
    "slice": lambda parts: slice(*_of((int, type(None), str), parts)),
    "functools.partial": lambda parts: functools.partial(
        parts[0], *_one(tuple, parts[1]), **_one(dict, parts[2])
    ),
    "pathlib.Path": pathlib.Path,
    "pathlib.PurePosixPath": pathlib.PurePosixPath,
    "pathlib.PureWindowsPath": pathlib.PureWindowsPath,
    "numpy.dtype": _dtype,
    "numpy.generic": lambda parts: _array(parts)[()],
    "numpy.ndarray": _array,
    "type": _type,
    "jax.sharding.PartitionSpec": _spec,
    "jax.sharding.NamedSharding": _named_sharding,
    "jax.Array": _jax_array,
    "jax.lax.Precision": _precision,
    "jax.tree_util.Partial": _partial,
    "jax.tree_util.PyTreeDef": _treedef,
    "types.MappingProxyType": lambda items: types.MappingProxyType(dict(items)),
    "flax.typing.HashableMapping": lambda items: flax.hashable_mapping()(items),
    "jax.nn": _jax_nn,
    "equinox.Missing": lambda _: equinox.missing(),
}


def refusal(value: Any) -> str:
    """Returns why a value cannot be saved, and what to do about it."""
    text = f"static data of type {default_name(type(value))} cannot be saved: {value!r:.100}"
    if type(value) is np.ndarray:
        return f"{text}; arrays among static data may have {MAX_ARRAY_BYTES} bytes"
    if callable(value):
        return f"{text}; call treepack.register_function on it, if it is defined once"
    return f"{text}; call treepack.register_auxdata on its type"
