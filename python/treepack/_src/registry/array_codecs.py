from __future__ import annotations

import dataclasses
import enum
import inspect
import math
from typing import Any

import numpy as np

from treepack._src import dtypes as _dtypes
from treepack._src.interop import jax as _jax
from treepack._src.interop.modules import imported, instance_of
from treepack._src.leaves.leaves import as_plain, remedy
from treepack._src.printable import short_repr
from treepack._src.registry.codec import counts, needed_at
from treepack._src.registry.library_types import find, library_name
from treepack._src.registry.names import default_name, function_name, not_registered

# JAX compares and hashes static data; larger arrays should be leaves.
MAX_ARRAY_BYTES = 64 << 10

# The limit of NumPy.
MOST_DIMENSIONS = 64


def dtype_of(name: str) -> np.dtype:
    dtype = _dtypes.resolve(name.encode())
    if dtype is None:
        raise ValueError(_dtypes.unsupported(name))
    return dtype


def dtype_name(dtype: np.dtype) -> str:
    name, native = _dtypes.describe(dtype)
    if name is None or not native:
        raise TypeError(
            f"the dtype {dtype!r} cannot be saved as static data: save its .descr, or of an array "
            "the .tolist()"
        )
    return name


def array_parts(value: Any) -> tuple[str, tuple[int, ...], bytes]:
    try:
        array = value if isinstance(value, np.ndarray) else _jax.on_host(value)
    except RuntimeError as error:  # it is deleted, or in other processes
        raise TypeError(f"{error}: pass a value that this process has") from error
    if array.nbytes > MAX_ARRAY_BYTES or type(array) is not np.ndarray:
        raise TypeError(refusal(array))
    return dtype_name(array.dtype), array.shape, array.tobytes()


def array_of(name: str, shape: tuple[int, ...], content: bytes) -> np.ndarray:
    dtype = dtype_of(name)
    sizes = counts(shape)
    if len(sizes) > MOST_DIMENSIONS or math.prod(sizes) * dtype.itemsize != len(content):
        raise ValueError(
            f"size mismatch: an array of dtype {name} and shape {shape} cannot have "
            f"{len(content)} bytes"
        )
    return np.frombuffer(content, dtype).reshape(sizes).copy()


def scalar_of(*parts: Any) -> Any:
    array = array_of(*parts)
    if array.ndim:
        raise ValueError(f"a scalar cannot have the shape {array.shape}")
    return array[()]


# types

_TYPES: dict[str, type] = {
    ty.__name__: ty
    for ty in (
        *(bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset),
        *(bytearray, range, slice, type(None), type(...)),
    )
}

# Modules whose classes are found by public names, such as kinds of variables and results.
# jnp.float32 and similar are separate types.
_MODULES = ("jax.numpy", "flax.nnx", "diffrax", "lineax", "optimistix")


def type_parts(ty: type) -> tuple[str, str]:
    if _TYPES.get(ty.__name__) is ty:
        return "builtins", ty.__name__
    if issubclass(ty, np.generic) and np.dtype(ty).type is ty:
        return "numpy", dtype_name(np.dtype(ty))
    for module in _MODULES:
        if getattr(imported(module), ty.__name__, None) is ty:
            return module, ty.__name__
    name = library_name(ty)
    if name is None:
        raise TypeError(refusal(ty))
    return "library", name


def type_of(module: str, name: str) -> Any:
    if module == "builtins":
        return _TYPES[name]
    if module == "numpy":
        return dtype_of(name).type
    if module == "library":
        node = find(name)
        if node is None:
            raise not_registered("type", name, "import its library")
        return node
    if module in _MODULES and not name.startswith("_"):
        value = needed_at(module, name)
        if isinstance(value, type):
            return value
    raise ValueError(f"{module}.{name} is not a type that static data may have")


def _is_of_process(value: Any) -> bool:
    """Only this process has the value, so another one is saved for it."""
    return any(is_one(value) for is_one in _OF_PROCESS)


_OF_PROCESS = [
    instance_of("jax", "Device"),
    *(instance_of("numpy.random", name) for name in ("Generator", "BitGenerator", "RandomState")),
    instance_of("io", "IOBase"),
]


def refusal(value: Any) -> str:
    text = f"static data of type {default_name(type(value))} cannot be saved: {short_repr(value)}"
    if _jax.is_tracer(value) or _is_of_process(value):
        return f"{text}; {remedy(value)}"
    if type(value) is np.ndarray:
        return (
            f"{text}; arrays in static data may have up to {MAX_ARRAY_BYTES} bytes: save larger "
            "ones as leaves of the tree"
        )
    has_name = callable(value) and function_name(value)
    if has_name or inspect.isroutine(value):
        named = "" if has_name else ", with serialized_name="
        return f"{text}; call treepack.register_function on it{named}, if it is defined once"
    if isinstance(value, (enum.Enum, tuple)) or dataclasses.is_dataclass(value):
        return f"{text}; call treepack.register_auxdata on its type"
    bases = (str, bytes, int, float, complex)
    base = next((base.__name__ for base in bases if isinstance(value, base)), "")
    functions = f"encode={base} and decode={type(value).__name__ if base else ''}"
    plain = as_plain(value)
    return (
        f"{text}; {'' if plain is None else f'save {plain[0]}, or '}call treepack.register_auxdata "
        f"on its type, with {functions}"
    )
