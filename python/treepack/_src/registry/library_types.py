"""Finds types of known libraries, which need no registration.

A file names such a type by its library and its shortest path: `optax:ScaleByAdamState`. Only
imported modules of the library are searched, for node types, and for static data that are rebuilt
without running their code (`definitions.py`). A type that moved is found by the name of its class.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from treepack._src.interop import jax as _jax
from treepack._src.interop.libraries import library_at, library_of_type
from treepack._src.interop.modules import imported
from treepack._src.registry.names import default_name

# Modules whose nodes have static data in the order of a set, which differs between processes:
# another process would confuse them.
_UNORDERED = ("numpyro.distributions",)


def is_node(ty: type) -> bool:
    # `__del__` would run on nodes that are made without `__init__`.
    if ty.__module__.startswith(_UNORDERED) or hasattr(ty, "__del__"):
        return False
    return _jax.is_namedtuple(ty) or _jax.is_node_type(ty)


def library_name(ty: type, fits: Callable[[type], bool] = is_node) -> str | None:
    library = library_of_type(ty)
    if library is None or "<locals>" in ty.__qualname__:
        return None
    path = default_name(ty).removeprefix(f"{library}.")
    if any(part.startswith("_") for part in path.split(".")[:-1]):
        path = ty.__qualname__  # no public path, and private modules move
    name = f"{library}:{path}"
    return name if find(name, fits) is ty else None


def find(name: str, fits: Callable[[type], bool] = is_node) -> type | None:
    library = library_of(name)
    if library is None or imported(library) is None:
        return None
    path = name[len(library) + 1 :]
    parts = path.split(".")
    ty = _at(library, parts, fits)
    if ty is not None:
        return ty
    # Under another path; if several match, the name is ambiguous.
    modules = map(sys.modules.get, _modules(library, len(sys.modules)).get(parts[-1], ()))
    named = [vars(module).get(parts[-1]) for module in modules if module is not None]
    candidates = {_typed(library, value, fits) for value in named} - {None}
    return candidates.pop() if len(candidates) == 1 else None


@functools.lru_cache(maxsize=64)
def _modules(library: str, _count: int) -> dict[str, list[str]]:
    """Names of types, with a library's modules that have them.

    Cached by the number of modules: there are thousands, and a file may name as many types.
    """
    by_name: dict[str, list[str]] = {}
    for name, module in list(sys.modules.items()):
        if f"{name}.".startswith(f"{library}.") and isinstance(module, ModuleType):
            for key, value in list(vars(module).items()):
                if isinstance(value, type):
                    by_name.setdefault(key, []).append(name)
    return by_name


def library_of(name: str) -> str | None:
    library = library_at(name.partition(":")[0])
    is_path = library is not None and len(library) + 1 < len(name) <= _MAX_NAME
    return library if is_path else None


def remedy(library: str) -> str:
    try:
        is_here = library != "jax" or importlib.util.find_spec("jax") is not None
    except ImportError:
        is_here = False
    return f"import {library}" + ", once it is installed (pip install jax)" * (not is_here)


# Longer than the name of any type; lookups take quadratic time.
_MAX_NAME = 500


def _at(library: str, parts: list[str], fits: Callable[[type], bool]) -> type | None:
    """Calls no module's `__getattr__`."""
    for count in range(len(parts), 0, -1):
        value: Any = sys.modules.get(".".join([library, *parts[: count - 1]]))
        for part in parts[count - 1 :]:
            value = vars(value).get(part) if isinstance(value, (ModuleType, type)) else None
        if _typed(library, value, fits) is not None:
            return value  # type: ignore[no-any-return]
    return None


def _typed(library: str, value: Any, fits: Callable[[type], bool]) -> type | None:
    if not isinstance(value, type) or library_of_type(value) != library:
        return None
    return value if fits(value) else None
