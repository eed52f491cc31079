"""Decides which values are code: only the program can make them, and they hold no data.

Functions, classes, modules, definitions of models and objects of libraries are code. So are
callables, namedtuples and dataclasses that consist only of code, such as optax's optimizers.
Numbers that a function closes over are constants of its code; arrays are data, except in closures
of libraries, such as optax's schedules.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import inspect
import itertools
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from treepack._core import Class
from treepack._src.interop import flax
from treepack._src.interop import jax as _jax
from treepack._src.interop.libraries import PLAIN_BYTES, is_marker, library_at, library_of_type
from treepack._src.interop.modules import has_array_protocol, instance_of
from treepack._src.leaves.leaves import classify
from treepack._src.leaves.prng import is_key_like
from treepack._src.pytree.kinds import kind_of
from treepack._src.pytree.state_dict import leaves_of
from treepack._src.registry.definitions import attributes, slots_of
from treepack._src.registry.fields import fields_of

_DEFINITIONS = (
    *(type, types.ModuleType, types.FunctionType, types.GenericAlias, inspect.Signature),
    type(functools.lru_cache(len)),
    type(datetime.datetime_CAPI),  # to which functions of pybind11 are bound
)

_PLAIN = frozenset({str, bytes, int, float, bool, complex, type(None), types.FunctionType})

_BOUND = (functools.partial, types.MethodType, types.BuiltinMethodType, types.MethodWrapperType)


def _needs_arguments(function: Any) -> bool:
    try:
        inspect.signature(function).bind()
    except TypeError:
        return True
    except ValueError:  # it has no signature
        pass
    return False


def is_code(value: Any) -> bool:
    if callable(value) or isinstance(value, (types.ModuleType, inspect.Signature)):
        return all(_parts(part) is not None for part in _walk(value, _parts))
    if flax.is_graph_definition(value) or flax.is_linen_module(value) or is_marker(value):
        return True
    if not _jax.is_namedtuple(type(value)) and not dataclasses.is_dataclass(value):
        return False
    parts = [part for part in fields_of(value).values() if part is not None]
    return bool(parts) and all(map(is_code, parts))


def check_is_tree(target: Any) -> None:
    """Raises a TypeError if a template is an object without leaves, such as code that makes it."""
    ty = type(target)
    is_plain = ty in _PLAIN and not callable(target)
    if is_plain or ty in (dict, list, tuple, np.ndarray):
        return
    if kind_of(target) is not None and not flax.is_graph_definition(target):
        return
    name = getattr(target, "__name__", ty.__name__)
    if flax.is_linen_module(target):
        remedy = "pass its variables, such as jax.eval_shape(module.init, key, x)"
    elif flax.is_graph_definition(target):
        remedy = "pass nnx.state(model)"
    elif isinstance(target, type):
        remedy = f"pass an object of it, such as jax.eval_shape(lambda: {name}(...))"
    elif callable(target):
        remedy = f"call it, as jax.eval_shape({name}) does"
        if _needs_arguments(target):
            remedy = f"call it with its arguments, as jax.eval_shape({name}, ...) does"
    elif is_code(target):
        remedy = "pass a tree of arrays"
    elif _is_unknown(target):
        remedy = "pass a tree of arrays, or register its type with treepack.register_node"
        if _jax.is_treedef(target):
            remedy = "pass a tree, such as jax.tree.unflatten(treedef, leaves)"
        elif _is_file(target):
            remedy = "pass its abstract()"
    else:
        return
    raise TypeError(f"the target must be a tree, got a {ty.__name__} ({name}): {remedy}")


_is_file = instance_of("treepack", "Tree")


def _is_unknown(value: Any) -> bool:
    is_array = hasattr(value, "shape") and hasattr(value, "dtype")
    is_plain = type(value) in _PLAIN or is_array or value is ...
    return not is_plain and classify(value) is Class.UNSUPPORTED


def holds_arrays(value: Any) -> bool:
    return any(map(_is_array, itertools.islice(_walk(value, _held), _MOST_HELD)))


# A method may be bound to an object that refers to all others of the program.
_MOST_HELD = 20_000


def _walk(value: Any, parts: Callable[[Any], Iterable[Any] | None]) -> Iterator[Any]:
    left = [value]
    seen = {}
    while left:
        value = left.pop()
        if id(value) not in seen:
            seen[id(value)] = value  # keeps temporary objects alive, so that ids stay unique
            yield value
            left.extend(parts(value) or ())


def _parts(value: Any) -> Iterable[Any] | None:
    ty = type(value)
    if value is None or isinstance(value, _DEFINITIONS) or flax.is_linen_module(value):
        return ()
    if isinstance(value, _BOUND):
        return _bound(value)
    if _jax.is_array(value):
        return None
    if kind_of(value) is not None:
        return [leaf for _, leaf in leaves_of(value, ())]
    # The type of functions from other languages computes their name.
    if library_of_type(ty) is not None or (
        callable(value)
        and (
            ty.__module__ in ("numpy", "typing")
            or any("__name__" in vars(base) for base in ty.__mro__)
        )
    ):
        return ()
    return _attributes(value) if _has_all_in_attributes(ty) else None


def _bound(value: Any) -> tuple[Any, ...]:
    if isinstance(value, functools.partial):
        return value.func, *value.args, *value.keywords.values()
    return (value.__self__,)


def _has_all_in_attributes(ty: type) -> bool:
    """Objects of compiled types do not."""
    largest = PLAIN_BYTES + 8 * len(slots_of(ty))
    return all(map(_is_of_class, ty.__mro__[:-1])) and ty.__basicsize__ <= largest


def _is_of_class(ty: type) -> bool:
    return bool(ty.__flags__ & 1 << 9)  # Py_TPFLAGS_HEAPTYPE


def _held(value: Any) -> Iterable[Any]:
    ty = type(value)
    if ty is types.FunctionType:
        return _of_function(value)
    if ty in _PLAIN:
        return ()
    if isinstance(value, (type, types.ModuleType, np.ndarray)) or _jax.is_array(value):
        return ()
    if flax.is_graph_definition(value):
        return ()
    if isinstance(value, _BOUND):
        return _bound(value)
    if flax.is_linen_module(value):
        return [part for name, part in vars(value).items() if name != "_state"]
    items: Iterable[Any] = ()
    if isinstance(value, (dict, tuple, list, set, frozenset)):
        items = value.values() if isinstance(value, dict) else value
    wrapped = getattr(value, "__wrapped__", None) if callable(value) else None
    slots = [name for name in slots_of(ty) if name[:2] != "__"] if _is_of_class(ty) else ()
    return (
        *itertools.islice(items, _MOST_HELD),
        *getattr(value, "__dict__", {}).values(),
        *(getattr(value, name, None) for name in slots),
        wrapped,
    )


def _of_function(function: types.FunctionType) -> Iterable[Any]:
    held = list(vars(function).values())
    if library_at(str(function.__globals__.get("__name__"))) is not None:
        return held
    if "<" in function.__qualname__:  # module-level functions are defined once
        held += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for cell in function.__closure__ or ():
        if cell != types.CellType():  # an empty cell: its name has no value yet
            held.append(cell.cell_contents)
    return held


def _attributes(value: Any) -> list[Any]:
    names = [name for name in attributes(value) if name not in functools.WRAPPER_ASSIGNMENTS]
    return [getattr(value, name, None) for name in names]


def _is_array(value: Any) -> bool:
    if type(value) in _PLAIN or isinstance(value, (type, np.generic)):
        return False
    known = isinstance(value, np.ndarray) or _jax.is_array(value)
    if known and is_key_like(value):
        return True
    return (known or has_array_protocol(value)) and getattr(value, "ndim", 1) != 0
