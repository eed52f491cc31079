"""Looks at the modules of other libraries without importing them.

Each module of this package is about one library. Unless the program has imported that library, no
value can have a type of it. Names that are not public are looked up in one place; where one is
missing, the features that need it are off.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType


def imported(name: str) -> ModuleType | None:
    """Returns a module if the program has completely imported it."""
    module = sys.modules.get(name)
    if module is None:
        return None
    spec = getattr(module, "__spec__", None)
    return None if getattr(spec, "_initializing", False) else module


def instance_of(module: str, name: str) -> Callable[[object], bool]:
    """Returns an `isinstance` check for a class of a module that may not be imported."""

    def is_instance(value: object) -> bool:
        found = getattr(imported(module), name, None)
        return found is not None and isinstance(value, found)

    return is_instance
