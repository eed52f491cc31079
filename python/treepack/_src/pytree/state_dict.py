from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from treepack._src.pytree.kinds import Kinds, is_container_type, kind_of
from treepack.errors import StateDictKeyError


def to_state_dict(target: Any) -> Any:
    """Returns the state of a tree: nested dicts with string keys.

    Lists and tuples become dicts with the keys `'0'`, `'1'`, ...; namedtuples, dataclasses and
    registered pytree nodes become dicts of their fields. Leaves are returned unchanged.

    Args:
      target: Any tree, which is not modified.

    Returns:
      The state dict, or the target itself if it is a leaf.

    Raises:
      ValueError: If a dict has two keys that are equal as strings.
      StateDictKeyError: If a registered handler returns keys that are not strings.

    Examples:
      >>> import treepack
      >>> treepack.serialization.to_state_dict({"layers": [1, (2, 3)]})
      {'layers': {'0': 1, '1': {'0': 2, '1': 3}}}
    """
    return _state(target, Kinds())


def _state(node: Any, kinds: Kinds) -> Any:
    kind = kinds.of(node)
    if kind is None:
        return node
    children = kind.children(node)
    if kind.final:
        return map_leaves(lambda child: _state(child, kinds), _checked(children))
    return {name: _state(child, kinds) for name, child in children.items()}


def is_serializable(target: Any) -> bool:
    """Returns whether a type, or the type of an object, is a container that can be saved.

    As in flax, false for leaves. `validate_serializable` checks a whole tree.

    Examples:
      >>> import treepack
      >>> treepack.serialization.is_serializable({}), treepack.serialization.is_serializable(1.0)
      (True, False)
    """
    if isinstance(target, type):
        return is_container_type(target)
    return kind_of(target) is not None


def expand(node: Any) -> tuple[Any, bool]:
    """Returns children and `False`; or the state of a registered handler and `True`."""
    kind = kind_of(node)
    if kind is None:
        return node, False
    children = kind.children(node)
    return (_checked(children), True) if kind.final else (children, False)


def _checked(state: Any) -> Any:
    if isinstance(state, dict):
        for key in state:
            if not isinstance(key, str):
                raise StateDictKeyError("A state dict must only have string keys.")
    return state


_NOTHING = object()


def map_leaves(f: Callable[[Any], Any], state: Any, absent: Any = _NOTHING) -> Any:
    """Leaves out children of dicts that become `absent`, and dicts with only such children."""
    ty = type(state)
    if ty is dict:
        kept = {}  # no comprehension: it would add a frame per level
        for key, child in state.items():
            result = map_leaves(f, child, absent)
            if result is not absent:
                kept[key] = result
        return kept if kept or not state else absent
    if ty is list or ty is tuple:
        children = []
        for child in state:
            children.append(map_leaves(f, child, absent))
        return children if ty is list else tuple(children)
    return f(state)


def leaves_of(node: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    return _leaves_of(node, path, Kinds())


def _leaves_of(
    node: Any, path: tuple[str, ...], kinds: Kinds
) -> Iterator[tuple[tuple[str, ...], Any]]:
    kind = kinds.of(node)
    if kind is None:
        yield path, node
        return
    try:
        children = kind.children(node)
    except Exception:
        if not kind.final:
            raise
        yield path, node  # a template for which the handler fails
        return
    if kind.final and not isinstance(children, Mapping):
        yield path, children
        return
    for name, child in children.items():
        yield from _leaves_of(child, (*path, str(name)), kinds)
