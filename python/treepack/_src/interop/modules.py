"""Looks up names in modules of other libraries without importing them.

No value has a type of a library that the program has not imported. Private names are looked up in
one place; if a name is missing, the features that need it are off.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar


def imported(name: str) -> ModuleType | None:
    module = sys.modules.get(name)
    if module is None:
        return None
    spec = getattr(module, "__spec__", None)
    return None if getattr(spec, "_initializing", False) else module


def found_at(module: str, name: str) -> Any:
    """Returns the attribute of an imported module, or `None`, without `__getattr__`."""
    return vars(imported(module) or object).get(name)


def instance_of(module: str, name: str) -> Callable[[object], bool]:
    def is_instance(value: object) -> bool:
        ty = getattr(imported(module), name, None)
        return ty is not None and isinstance(value, ty)

    return is_instance


def subclass_of(module: str, name: str) -> Callable[[type], bool]:
    def is_subclass(ty: type) -> bool:
        base = getattr(imported(module), name, None)
        return base is not None and issubclass(ty, base)

    return is_subclass


E = TypeVar("E", bound=Exception)


def error_class(ours: type[E], module: str, name: str) -> type[E]:
    theirs = getattr(imported(module), name, None)
    if theirs is None:
        return ours
    own: Any = ours
    both: type[E] = _both(own, theirs)
    return both


@functools.cache
def _both(ours: Any, theirs: Any) -> Any:
    def reduce(self: Any) -> tuple[Any, ...]:
        return ours, *ours.__reduce__(self)[1:]

    # From Python 3.14 on, ValueError does not define `__init__`, so theirs would be next.
    own = {"__module__": ours.__module__, "__init__": ours.__init__, "__reduce__": reduce}
    return type(ours.__name__, (ours, theirs), own)


def is_from(function: Any, module: str) -> bool:
    """Whether a function is defined in a module, regardless of its `__module__`."""
    # functools.wraps copies __module__, but not the namespace.
    scope = getattr(function, "__globals__", None)
    return module in sys.modules and scope is vars(sys.modules[module])


def has_array_protocol(value: Any) -> bool:
    return any(hasattr(type(value), name) for name in ("__array__", "__dlpack__"))
