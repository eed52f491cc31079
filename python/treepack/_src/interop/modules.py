"""What is known of other libraries, none of which is imported because of it.

Each module here is about one library. It looks at the library only if the program has
imported it already: otherwise no value can be of its types. Names of theirs that are not public
are looked up in one place, and where one is missing, what depends on it is left out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType


def imported(name: str) -> ModuleType | None:
    """Returns a module if the program has imported it to the end."""
    module = sys.modules.get(name)
    if module is None:
        return None
    spec = getattr(module, "__spec__", None)
    return None if getattr(spec, "_initializing", False) else module


def instance_of(module: str, name: str) -> Callable[[object], bool]:
    """Returns a predicate: whether a value is of a class of a module that may not be imported."""

    def is_instance(value: object) -> bool:
        found = getattr(imported(module), name, None)
        return found is not None and isinstance(value, found)

    return is_instance
