"""Finds the functions that convert a type to a state dict and back, in several registries.

Handlers of treepack come first, then flax's, then those in the two registries of eformer.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from treepack._src.interop import jax as _jax
from treepack._src.interop.modules import is_from


class Handlers(NamedTuple):
    to_state: Callable[[Any], Any]
    from_state: Callable[[Any, Any], Any]


_CONTAINERS: frozenset[type] = frozenset({dict, list, tuple})

# Types that the core handles without Python unless they have a handler.
WALKED_NATIVELY: frozenset[type] = frozenset(
    {dict, list, tuple, str, bytes, int, float, bool, complex, type(None), np.ndarray}
)

# Modules with registries like ours, in order of precedence.
_FOREIGN = ("flax.serialization", "eformer.pytree._serialization", "eformer.pytree._xtree")
_REGISTRY = "_STATE_DICT_REGISTRY"

_handlers: dict[type, Handlers] = {}

# Per module: the number of types with handlers, and the handlers of builtin containers, when the
# module last overrode no natively walked type.
_default: dict[str, tuple[Any, ...]] = {}


def register_serialization_state(
    ty: type,
    ty_to_state_dict: Callable[[Any], Any],
    ty_from_state_dict: Callable[[Any, Any], Any],
    override: bool = False,
) -> None:
    """Registers functions that convert objects of a type to a state dict and back.

    Args:
      ty: The type. Subclasses must be registered separately.
      ty_to_state_dict: Takes an instance, returns its state: a dict with string keys. May call
        `to_state_dict` on parts.
      ty_from_state_dict: Takes an instance as the template and a state, returns a new instance. May
        call `from_state_dict` on parts.
      override: Whether to replace an existing handler, including flax's.

    Raises:
      ValueError: If the type has a handler and `override` is false.

    Examples:
      >>> import treepack
      >>> class Point:
      ...     def __init__(self, x): self.x = x
      >>> treepack.serialization.register_serialization_state(
      ...     Point, lambda p: {"x": p.x}, lambda p, state: Point(state["x"]))
      >>> treepack.serialization.from_bytes(Point(0), treepack.serialization.to_bytes(Point(3))).x
      3
    """
    if not isinstance(ty, type):
        raise TypeError(f"expected a class, got {ty!r:.100}: pass type(...) of it")
    new = Handlers(ty_to_state_dict, ty_from_state_dict)
    if override:
        _handlers[ty] = new
        return
    # Only one of several threads that register a type at once succeeds.
    is_taken = is_builtin(ty) or ty in _registry_of("flax.serialization")
    if is_taken or _handlers.setdefault(ty, new) is not new:
        raise ValueError(
            f'a serialization handler for "{ty.__name__}" is already registered: pass '
            "override=True to replace it"
        )


def is_builtin(ty: type) -> bool:
    return ty in _CONTAINERS or _jax.is_partial_type(ty)


def handlers_of(ty: type) -> Handlers | None:
    own = _handlers.get(ty)
    if own is not None:
        return own
    for module in _FOREIGN:
        functions = _registry_of(module).get(ty) if module in sys.modules else None
        if functions is not None and not (is_from(functions[0], module) and is_builtin(ty)):
            return Handlers(*functions)
    return None


def overridden() -> list[type]:
    types = _walked_natively(_handlers) if _handlers else None
    # Runs in every call, nearly always with the same result.
    modules = sys.modules
    for module in _FOREIGN:
        registry = getattr(modules[module], _REGISTRY, None) if module in modules else None
        if not registry:
            continue
        seen = len(registry), registry.get(dict), registry.get(list), registry.get(tuple)
        if seen != _default.get(module):
            others = _overridden_in(module, registry)
            if others:
                types = others | (types or set())
            else:
                _default[module] = seen
    return list(types) if types else []


def _overridden_in(module: str, registry: dict[Any, Any]) -> set[type]:
    return {
        ty
        for ty in _walked_natively(registry)
        if not (is_builtin(ty) and is_from(registry[ty][0], module))
    }


def _walked_natively(registry: dict[type, Any]) -> set[type]:
    return {ty for ty in WALKED_NATIVELY if ty in registry}


@contextlib.contextmanager
def foreign_path(path: list[str]) -> Iterator[None]:
    modules = [sys.modules.get(module) for module in _FOREIGN]
    contexts: list[Any] = [getattr(module, "_error_context", None) for module in modules]
    contexts = [context for context in contexts if context is not None]
    lengths = [len(context.path) for context in contexts]
    for context in contexts:
        context.path.extend(path)
    try:
        yield
    finally:
        for context, length in zip(contexts, lengths, strict=True):
            del context.path[length:]


def _registry_of(module: str) -> dict[Any, Any]:
    registry: dict[Any, Any] = getattr(sys.modules.get(module), _REGISTRY, {})
    return registry
