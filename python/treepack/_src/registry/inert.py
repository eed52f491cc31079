"""Decides which data of a file may reach code of libraries and of the program.

A file chooses the type of a node and its static data. Other code than treepack's may evaluate
`data[0]`, `data.keys()` or `data(...)`, where a hostile file could have put a function. So it
receives only values from the lists here, whose methods call nothing that a file can choose
(docs/design.md).
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import pathlib
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np

import treepack._core as core
from treepack._src.interop import equinox, flax
from treepack._src.interop import jax as _jax
from treepack._src.interop.libraries import library_of_type
from treepack._src.interop.modules import found_at
from treepack._src.registry.definitions import AUXDATA, FUNCTIONS, has_setter, is_definition
from treepack._src.registry.fields import Fields, fields_of
from treepack._src.registry.placeholders import Placeholder
from treepack._src.registry.python_codecs import ATOMS
from treepack.errors import DecodeError

_ATOMS = frozenset(
    {
        *(type(None), bool, float, complex, str, bytes, np.ndarray),
        *(type(pathlib.Path()), pathlib.PurePosixPath, pathlib.PureWindowsPath),
        *(codec.fits for codec in ATOMS),
    }
)

# The most numbers of a range: other code may make a list of it, which takes 2 MiB.
_MOST_STEPS = 1 << 16

_SEQUENCES = frozenset({tuple, list, set, frozenset, deque})

_MAPPINGS = frozenset({dict, types.MappingProxyType, OrderedDict, defaultdict, Counter})

# Types of JAX whose values codecs build from checked parts.
_OF_JAX = {
    "jax": ("ShapeDtypeStruct",),
    "jax.lax": ("ConvDimensionNumbers", "DotAlgorithm"),
    "jax.sharding": ("NamedSharding", "PartitionSpec"),
}


def is_inert(value: Any, more: Callable[[Any], bool] | None = None) -> bool:
    """Whether code of a library may receive a value from a file; `more` accepts others."""
    ty = type(value)
    if ty in _ATOMS or isinstance(value, (np.generic, np.dtype)) or _jax.is_array(value):
        return True
    if ty is range:
        return not value[_MOST_STEPS:]  # `len` raises an error above 64 bits
    if ty in _SEQUENCES:
        return all(is_inert(part, more) for part in value)
    if ty in _MAPPINGS or flax.is_mapping_type(ty):
        return all(is_inert(part, more) for part in (*value.keys(), *value.values()))
    if ty is types.SimpleNamespace:  # its attributes could replace methods
        return all(map(is_inert, vars(value).values()))
    if ty is Placeholder:
        # The program replaces it; parts with a type name become a value of that type.
        return value.name is None or (more is not None and is_inert(value.parts, more))
    if _jax.is_treedef(value):
        node = value.node_data()
        return node is None or all(map(is_inert, (node[1], *value.children())))
    if is_member(value) or _is_of_jax(ty) or value is equinox.missing():
        return True
    return more is not None and more(value)


def is_given(value: Any) -> bool:
    """Returns whether code of the program may receive a value from a file.

    Allowed are inert values and, in plain containers, functions, classes, and values of registered
    types of static data: the program named these, and expects them.
    """
    return is_inert(value, _is_named)


def decode_given(data: bytes) -> Any:
    value = core.decode_value(data)
    if not is_given(value):
        raise DecodeError(
            "static data hold functions, or long ranges, that code of the program must not receive"
        )
    return value


def _is_named(value: Any) -> bool:
    ty = type(value)
    if isinstance(value, type) or is_function(value) or AUXDATA.named(ty) is not None:
        return True
    if isinstance(value, functools.partial):
        return all(map(is_given, (value.func, value.args, value.keywords)))
    if not is_definition(ty):
        return _jax.is_treedef(value)  # its codec checks each node
    if isinstance(value, tuple):
        return all(map(is_inert, tuple.__iter__(value)))
    return all(map(is_inert, fields_of(value).values()))


def is_function(value: Any) -> bool:
    return FUNCTIONS.name_of(value) is not None or _jax.is_of_nn(value)


def is_member(value: Any) -> bool:
    """Returns whether a value is an enum member without code that the interpreter calls."""
    ty = type(value)
    return isinstance(ty, enum.EnumMeta) and not callable(value) and _hashes_like(ty, enum.Enum)


def _is_of_jax(ty: type) -> bool:
    return any(ty is found_at(module, name) for module, names in _OF_JAX.items() for name in names)


def _hashes_like(ty: type, *bases: type) -> bool:
    bases = (*bases, object, int, str, tuple)
    return any(ty.__hash__ is base.__hash__ for base in bases) and any(
        ty.__eq__ is base.__eq__ for base in bases
    )


def is_key(value: Any) -> bool:
    """Whether Python may hash and compare a value from a file, without code that the file chose."""
    ty = type(value)
    if ty in (tuple, frozenset) or (isinstance(value, tuple) and _hashes_like(ty)):
        return all(map(is_key, tuple.__iter__(value) if isinstance(value, tuple) else value))
    if isinstance(value, type):
        # The scalars of JAX have a metaclass with its own hash.
        return _hashes_like(type(value), type) or found_at("jax.numpy", value.__name__) is value
    if ty is range or isinstance(value, functools.partial) or is_function(value):
        return True
    if AUXDATA.named(ty) is not None or ty in _SEQUENCES or ty in _MAPPINGS:
        return True  # builtin containers raise when hashed
    if not isinstance(value, tuple) and _hashes_like(ty) and library_of_type(ty) is not None:
        return True
    if flax.is_mapping_type(ty):
        return all(map(is_key, (*value.keys(), *value.values())))
    for module, name, parts in _HASHED:
        if isinstance(value, found_at(module, name) or ()):
            return all(map(is_key, parts(value)))
    if dataclasses.is_dataclass(ty) and is_definition(ty):
        generated = _hashes_like(ty) or (_is_generated(ty.__hash__) and _is_generated(ty.__eq__))
        return generated and all(map(is_key, fields_of(value).values()))
    return is_inert(value)


# Types of libraries whose hash depends on the parts of a value only, and these parts.
_HASHED: list[tuple[str, str, Callable[[Any], tuple[Any, ...]]]] = [
    ("flax.nnx", "StateAxes", lambda axes: (*axes.filters, *axes.axes)),
    ("astropy.units", "UnitBase", lambda _: ()),
    ("mujoco.mjx._src.dataclasses", "_NumPyArrayHashWrapper", lambda _: ()),
]


def checked_keys(keys: list[Any]) -> list[Any]:
    """Raises if hashing a key would run code that the file chose."""
    for key in keys:
        if not is_key(key):
            raise ValueError(f"a {type(key).__name__} from a file cannot be a key")
    return keys


# Checks whether functions that rebuild nodes only store static data.
Stores = Callable[[Any], bool]


def storing(ty: Any, fields: Fields | None) -> Stores | None:
    """Returns a check for static data that rebuilding only stores; `None` for unknown code."""
    registered = _jax.Registration.of(ty)
    if registered is None:
        return None
    if fields is not None and registered.is_by_dataclass:
        return (lambda _: True) if _init_stores(ty) else None
    made_by = getattr(registered.unflatten, "func", registered.unflatten)
    names = equinox.static_names(ty)
    if names is not None and made_by.__code__.co_filename.startswith("<"):
        return _is_module
    check = _STORING.get((made_by.__module__, made_by.__qualname__))
    return None if check is None else functools.partial(check, ty)


def _is_generated(function: Any) -> bool:
    return getattr(getattr(function, "__code__", None), "co_filename", "") == "<string>"


def _init_stores(ty: Any) -> bool:
    return (
        _is_generated(ty.__init__)
        and not hasattr(ty, "__post_init__")
        and ty.__new__ is object.__new__
        and type(ty).__call__ is type.__call__
        and (ty.__setattr__ is object.__setattr__ or _is_generated(ty.__setattr__))
        and not any(has_setter(ty, field.name) for field in dataclasses.fields(ty))
    )


def _is_module(static: Any) -> bool:
    return (
        type(static) is tuple
        and bool(static)
        and (static[0] is equinox.missing() or type(static[0]) is tuple)
    )


def _is_variable(_: type, static: Any) -> bool:
    return type(static) is tuple and all(
        type(item) is tuple and len(item) == 2 and type(item[0]) is str for item in static
    )


def _is_state(_: type, static: Any) -> bool:
    return type(static) is tuple and all(type(key) in (str, int) for key in static)


def _is_object(ty: type, static: Any) -> bool:
    kinds = [*map(type, static)] if type(static) is tuple else []
    if kinds == [tuple] * 2 and _is_variable(ty, static[1]):  # of older versions of flax
        names = [*static[0], *(name for name, _ in static[1])]
    elif kinds == [tuple] * 3:
        names = [*static[0], *static[1]]
    else:
        return False
    return all(
        type(name) is int
        or (type(name) is str and not name.startswith("__") and not has_setter(ty, name))
        for name in names
    )


# Functions of libraries that rebuild nodes and only store static data of this form.
_STORING: dict[tuple[str, str], Callable[[type, Any], bool]] = {
    ("flax.nnx.variablelib", "_variable_unflatten"): _is_variable,
    ("flax.nnx.statelib", "_state_unflatten"): _is_state,
    ("flax.nnx.pytreelib", "Pytree._pytree__unflatten"): _is_object,
    ("jax._src.tree_util", "register_static.<locals>.<lambda>"): lambda ty, data: type(data) is ty,
}
