"""Typed values: static data of nodes (what JAX calls auxdata), dict keys, metadata.

The core writes the plain types of Python (`None`, bool, int, float, complex, str, bytes,
tuple, list, dict, frozenset), each as itself. Anything else is *named*: a name, and another
value that it is made of. What has which name is said here, or by the program with
`register_auxdata` and `register_function`. Nothing is ever imported or called because data
say so: a name that is not known is an error.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from treepack import _dtypes
from treepack.errors import DecodeError, TreepackError, UnregisteredTypeError

# Static data are compared and hashed by JAX; more than this belongs into leaves.
MAX_ARRAY_BYTES = 64 << 10


class Codec(NamedTuple):
    """How the values of one type are written.

    Attributes:
      type: The type.
      encode: Takes a value, returns what it is made of.
      decode: Takes that, returns the value.
    """

    type: type
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


# Held while something is registered, here and in `_registration`.
registering = threading.RLock()

_by_name: dict[str, Codec] = {}
_names: dict[type, str] = {}

_functions: dict[str, Any] = {}
_function_names: dict[int, str] = {}  # by identity, because not all are hashable


def register_auxdata(
    ty: type,
    name: str | None = None,
    encode: Callable[[Any], Any] | None = None,
    decode: Callable[[Any], Any] | None = None,
) -> type:
    """Registers a type of static data, so that nodes that have some can be saved.

    Enums and dataclasses need no functions: their members are written by name, their
    fields by value. It can be used as a decorator. Types of nodes that `register_dataclass`
    or `register_namedtuple` knows may be static data without.

    Args:
      ty: The type. Subclasses are not covered.
      name: What values of it are written under; by default module and name of the type.
      encode: Takes a value, returns what it is made of: a value of the plain types of
        Python, or of types that are registered.
      decode: Takes what `encode` returned, returns the value. It is called with data from
        files, so it must not trust them more than the program does.

    Returns:
      The type.

    Raises:
      ValueError: If the name belongs to another type, or the type has another name.
      TypeError: If there are no functions for a type that needs them.

    Example:
      >>> import enum, treepack
      >>> @treepack.register_auxdata
      ... class Mode(enum.Enum):
      ...     TRAIN = 1
      >>> treepack.loads(treepack.dumps({Mode.TRAIN: 0}))
      {<Mode.TRAIN: 1>: 0}
    """
    name = name or default_name(ty)
    if (encode is None) != (decode is None):
        raise TypeError("encode and decode must both be given, or none of them")
    if encode is None or decode is None:
        if issubclass(ty, enum.Enum):
            encode, decode = _member_name, functools.partial(_member, ty)
        elif dataclasses.is_dataclass(ty):
            encode, decode = fields_of, functools.partial(from_fields, ty)
        else:
            raise TypeError(
                f"encode and decode are needed for {default_name(ty)}, which is neither an enum "
                "nor a dataclass"
            )
    if is_own_name(name):
        raise ValueError(f"the auxdata name {name!r} is treepack's own")
    with registering:
        known = _by_name.get(name)
        check_claim(ty, name, _names, None if known is None else known.type, "auxdata")
        _by_name[name] = Codec(ty, encode, decode)
        rename(ty, name, _names, None if known is None else known.type)
    return ty


def register_fields(
    ty: type, name: str, encode: Callable[[Any], Any], decode: Callable[[Any], Any]
) -> None:
    """Registers a type of nodes as one of static data, too, unless the program has done so."""
    known = _by_name.get(name)
    if ty not in _names and (known is None or _same_definition(known.type, ty)):
        _by_name[name] = Codec(ty, encode, decode)
        rename(ty, name, _names, None if known is None else known.type)


def register_function(function: Any, *, serialized_name: str | None = None) -> Any:
    """Registers a function by name, so that static data and `Partial`s that hold it can be saved.

    Functions of `jax.nn` are known without. It can be used as a decorator.

    Args:
      function: Any callable that is defined once, such as a function of a module.
      serialized_name: What it is written as; by default its module and qualified name.

    Returns:
      The function.

    Raises:
      ValueError: If the name belongs to another function, or the function has another name.
      TypeError: If there is no name for it, as for a lambda.

    Example:
      >>> import jax, treepack
      >>> @treepack.register_function
      ... def scale(factor, x):
      ...     return factor * x
      >>> saved = treepack.dumps(jax.tree_util.Partial(scale, 2.0))
      >>> treepack.loads(saved)(3.0)
      6.0
    """
    name = serialized_name or function_name(function)
    if name is None:
        raise TypeError(f"serialized_name is needed for {function!r}, which has no name of its own")
    with registering:
        known = _function_names.get(id(function))
        if known is not None and known != name and _functions.get(known) is function:
            raise ValueError(
                f"{function!r} is already registered with the name {known!r}, not {name!r}"
            )
        other = _functions.get(name)
        if other is not None and not _same_definition(other, function):
            raise ValueError(
                f"the name {name!r} is already registered for {other!r}, and cannot be for "
                f"{function!r} as well"
            )
        _functions[name] = function
        _function_names[id(function)] = name
    return function


def function_name(function: Any) -> str | None:
    """Returns module and qualified name of a function, or `None` if it has none of its own."""
    if inspect.ismethod(function):  # others have the name of the function that it binds, too
        return None
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or "<lambda>" in name:
        return None
    return f"{module}.{name}"


def default_name(ty: type) -> str:
    """Returns the name that a type has unless the program gives it another one."""
    return f"{ty.__module__}.{ty.__qualname__}"


def is_own_name(name: str) -> bool:
    """Tells whether a name stands for something that the program cannot change."""
    return name in _BUILTIN or name in _DECODERS


def check_claim(ty: type, name: str, names: dict[type, str], other: type | None, what: str) -> None:
    """Raises a ValueError if a type has another name, or a name is that of another type.

    A type that was defined again, because its module was loaded again, may take the name
    of its older self.
    """
    if names.get(ty, name) != name:
        raise ValueError(
            f"{default_name(ty)} is already registered as {what} with the name {names[ty]!r}, "
            f"not {name!r}"
        )
    if other is not None and not _same_definition(other, ty):
        raise ValueError(
            f"the {what} name {name!r} is already registered for {default_name(other)}, and "
            f"cannot be for {default_name(ty)} as well"
        )


def rename(ty: type, name: str, names: dict[type, str], other: type | None) -> None:
    """Gives a type its name, which the older self of the type loses."""
    if other is not None:
        names.pop(other, None)
    names[ty] = name


def _same_definition(one: Any, other: Any) -> bool:
    """Tells whether two types or functions come from the same place in the code."""

    def place(thing: Any) -> tuple[Any, Any]:
        return getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)

    return one is other or (None not in place(one) and place(one) == place(other))


# What the core calls


def reduce(value: Any) -> tuple[str, Any]:
    """Returns the name of a value that is not of a plain type, and what it is made of.

    Raises:
      TypeError: If it has none.
    """
    name = _names.get(type(value))
    if name is not None:
        return name, _by_name[name].encode(value)
    known = _function_names.get(id(value))
    if known is not None and _functions[known] is value:
        return "function", known
    if type(value) is int:
        return "int", str(value)
    for name, codec in _BUILTIN.items():
        if isinstance(value, codec.type):
            return name, codec.encode(value)
    name = getattr(value, "__name__", None)
    if isinstance(name, str) and callable(value) and getattr(jax.nn, name, None) is value:
        return "jax.nn", name
    if _missing() is value:
        return "equinox.Missing", None
    raise TypeError(_explain(value))


def rebuild(name: str, value: Any) -> Any:
    """Returns the value that `reduce` was given.

    Raises:
      UnregisteredTypeError: A DecodeError. If nothing has this name.
      DecodeError: If nothing can be made of the value.
    """
    codec = _by_name.get(name) or _BUILTIN.get(name)
    decode = _DECODERS.get(name) if codec is None else codec.decode
    if decode is None:
        raise UnregisteredTypeError(
            f"no static data are registered with the name {name!r}; call "
            'treepack.register_auxdata on their type, or pass unknown="dict" to get dicts in '
            "place of the nodes that have them",
            name,
        )
    try:
        return decode(value)
    except TreepackError:
        raise
    except Exception as error:  # whatever a codec raises for what it cannot read
        raise DecodeError(f"static data of type {name} cannot be restored: {error}") from error


def _explain(value: Any) -> str:
    ty = type(value)
    text = f"static data of type {default_name(ty)} cannot be saved: {value!r:.100}"
    if type(value) is np.ndarray:
        return f"{text}; arrays among static data may have {MAX_ARRAY_BYTES} bytes"
    if callable(value):
        return f"{text}; call treepack.register_function on it, if it is defined once"
    return f"{text}; call treepack.register_auxdata on its type"


# Codecs


def _member_name(member: enum.Enum) -> str | int:
    # Combinations of flags have no name.
    value = member.value
    if isinstance(member, enum.Flag) and isinstance(value, int):
        return value
    return member.name


def _member(ty: type[enum.Enum], name: str | int) -> enum.Enum:
    return ty(name) if isinstance(name, int) else ty[name]


def fields_of(value: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass, by name."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def from_fields(ty: type, fields: dict[str, Any]) -> Any:
    """Returns a dataclass with these fields, which must be all."""
    names = {field.name for field in dataclasses.fields(ty)}
    if set(fields) != names:
        raise ValueError(f"it has the fields {sorted(names)}, not {sorted(fields)}")
    return with_attributes(ty, fields)


def with_attributes(ty: type, attributes: dict[str, Any]) -> Any:
    """Returns an object with these attributes, of which no code of its type has run."""
    new: Any = object.__new__(ty)
    for name, value in attributes.items():
        object.__setattr__(new, name, value)
    return new


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
        raise TypeError(_explain(array))
    return _dtype_name(array.dtype), array.shape, array.tobytes()


def _array(parts: tuple[str, tuple[int, ...], bytes]) -> np.ndarray:
    name, shape, content = parts
    return np.frombuffer(content, _dtype(name)).reshape(shape).copy()


def _spec_parts(spec: PartitionSpec) -> tuple[Any, ...]:
    # Older versions of JAX have tuples, and nothing besides.
    axes = tuple(getattr(spec, "partitions", spec))
    return axes, *(frozenset(getattr(spec, kind, ())) for kind in ("unreduced", "reduced"))


def _spec(parts: tuple[Any, ...]) -> PartitionSpec:
    axes, unreduced, reduced = parts
    more = {"unreduced": unreduced, "reduced": reduced}
    more = {kind: names for kind, names in more.items() if names}
    return PartitionSpec(*axes, **more)  # type: ignore[no-untyped-call]


_TYPES = {
    ty.__name__: ty
    for ty in (bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset)
}


def _type_parts(ty: type) -> tuple[str, str]:
    if _TYPES.get(ty.__name__) is ty:
        return "builtins", ty.__name__
    if getattr(jnp, ty.__name__, None) is ty:  # jnp.float32 and the like are types of their own
        return "jax.numpy", ty.__name__
    if issubclass(ty, np.generic) and np.dtype(ty).type is ty:
        return "numpy", _dtype_name(np.dtype(ty))
    raise TypeError(_explain(ty))


def _type(parts: tuple[str, str]) -> Any:
    module, name = parts
    if module == "builtins":
        return _TYPES[name]
    if module == "numpy":
        return _dtype(name).type
    found = getattr(jnp, name) if module == "jax.numpy" and not name.startswith("_") else None
    if not isinstance(found, type):
        raise ValueError(f"{module}.{name} is no type that static data may have")
    return found


def _function(name: str) -> Any:
    if name not in _functions:
        raise UnregisteredTypeError(
            f"no function is registered with the name {name!r}; call treepack.register_function "
            'on it, or pass unknown="dict" to get dicts in place of the nodes that have it',
            str(name),
        )
    return _functions[name]


def _jax_nn(name: str) -> Any:
    function = None if name.startswith("_") else getattr(jax.nn, name, None)
    if not callable(function):
        raise ValueError(f"jax.nn has no function {name!r}")
    return function


def _missing() -> Any:
    """Returns the object in the static data of equinox modules that stands for nothing."""
    equinox = sys.modules.get("equinox")
    if equinox is None:
        return None
    treedef: Any = jax.tree_util.tree_structure(equinox.nn.Identity())
    return treedef.node_data()[1][0]


_BUILTIN = {
    "numpy.dtype": Codec(np.dtype, _dtype_name, _dtype),
    "numpy.generic": Codec(
        np.generic,
        lambda scalar: _array_parts(np.asarray(scalar)),
        lambda parts: _array(parts)[()],
    ),
    "numpy.ndarray": Codec(np.ndarray, _array_parts, _array),
    "jax.sharding.PartitionSpec": Codec(PartitionSpec, _spec_parts, _spec),
    "type": Codec(type, _type_parts, _type),
}

# Values that are no matter of their type.
_DECODERS: dict[str, Callable[[Any], Any]] = {
    "int": int,  # one that 64 bits cannot hold
    "function": _function,
    "jax.nn": _jax_nn,
    "equinox.Missing": lambda _: _missing(),
}
