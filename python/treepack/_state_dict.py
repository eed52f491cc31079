"""State dicts: a tree of any containers as nested dicts with string keys, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from treepack import _context, _core, _prng, _registry
from treepack._context import Restore, RestoreChild, Strict
from treepack._nodes import NodeKind, check_unique_keys, is_container_type, kind_of
from treepack.errors import StateDictKeyError

__all__ = [
    "check_unique_keys",
    "expand",
    "from_state_dict",
    "is_serializable",
    "restore_child",
    "restore_tree",
    "to_state_dict",
]


def to_state_dict(target: Any) -> Any:
    """Returns the state of a tree: nested dicts with string keys.

    Lists and tuples become dicts with the keys `'0'`, `'1'`, ...; namedtuples,
    dataclasses and registered pytree nodes become dicts of their fields. What is no
    container is returned as it is. The target is not changed.

    Args:
      target: Any tree.

    Returns:
      The state dict, or the target itself if it is a leaf.

    Raises:
      ValueError: If keys of a dict are the same as strings.
      StateDictKeyError: If a registered handler returns keys that are no strings.

    Example:
      >>> import treepack
      >>> treepack.to_state_dict({"layers": [1, (2, 3)]})
      {'layers': {'0': 1, '1': {'0': 2, '1': 3}}}
    """
    kind = kind_of(target)
    if kind is None:
        return target
    if kind.final:
        return _finish(_checked(kind.children(target)))
    return {name: to_state_dict(child) for name, child in kind.children(target).items()}


def from_state_dict(target: Any, state: Any, name: str = ".", *, strict: Strict = True) -> Any:
    """Returns a tree like the target, with leaves from a state dict.

    Args:
      target: The template. Its containers are what the result is made of; of its
        leaves only shape and dtype matter, so `jax.ShapeDtypeStruct`s will do.
        `None` and classes take any state as it is.
      state: What `to_state_dict` or `msgpack_restore` returned.
      name: The name of this part of the tree, for error messages.
      strict: `True` compares the shape and dtype of each leaf with the
        template's, where both have them. `False` compares nothing, as flax.
        `"exact"` also reports keys of the state that a dict of the template lacks.

    Returns:
      The new tree. Its leaves are those of the state.

    Raises:
      MismatchError: A ValueError. If containers do not match, or leaves do not (all
        of them are listed).

    Example:
      >>> import numpy as np, treepack
      >>> template = {"w": np.zeros(2), "n": (0, 0)}
      >>> treepack.from_state_dict(template, {"w": np.ones(2), "n": {"0": 1, "1": 2}})
      {'w': array([1., 1.]), 'n': (1, 2)}
    """
    restore = _context.current()
    if restore is None:
        return restore_tree(target, state, name, strict)
    # A handler calls in the midst of a restore, which it takes part in.
    if strict is True:
        strict = restore.strict
    with restore.part(strict, _child_restorer(strict)):
        return restore.below(target, state, name)


def restore_tree(target: Any, state: Any, name: str, strict: Strict) -> Any:
    """Returns a tree as `from_state_dict` does, apart from any restore under way."""
    described = type(state) is dict and _core.TRAILER_KEY in state
    if described and target is not None and _core.TRAILER_KEY not in _keys(target):
        state = without_structure(state)
    child = _child_restorer(strict)
    if child is _core.rebuild and isinstance(strict, bool) and name == ".":
        # Most trees are plain, and need nothing of what follows.
        restored = _core.rebuild_plain(target, state, strict)
        if restored is not None:
            return restored
    with _context.Restore(strict, child) as restore:
        return restore.below(target, state, name)


def without_structure(state: Any) -> Any:
    """Returns the state of a tree that was saved with its structure, without that."""
    if type(state) is not dict or _core.TRAILER_KEY not in state:
        return state
    if state.keys() == {_core.ROOT_KEY, _core.TRAILER_KEY}:
        return state[_core.ROOT_KEY]
    return {key: value for key, value in state.items() if key != _core.TRAILER_KEY}


def _keys(target: Any) -> Any:
    return target.keys() if isinstance(target, Mapping) else ()


def is_serializable(target: Any) -> bool:
    """Tells whether a type, or the type of an object, is a container that can be saved.

    As in flax this asks about containers: arrays and numbers are leaves, which
    need no handler, and the answer for them is false. See
    `validate_serializable` for whether a whole tree can be saved.

    Example:
      >>> import treepack
      >>> treepack.is_serializable({}), treepack.is_serializable(1.0)
      (True, False)
    """
    if isinstance(target, type):
        return is_container_type(target)
    return kind_of(target) is not None


def expand(node: Any) -> tuple[Any, bool]:
    """Returns one level of a container for the native walk.

    Returns:
      The children by name and false; or the complete state, which a registered
      handler has made, and true.
    """
    kind = kind_of(node)
    if kind is None:
        return node, False
    children = kind.children(node)
    return (_checked(children), True) if kind.final else (children, False)


def _checked(state: Any) -> Any:
    """Returns the state that a handler made, if its keys are strings."""
    if isinstance(state, dict):
        for key in state:
            if not isinstance(key, str):
                raise StateDictKeyError("A state dict must only have string keys.")
    return state


def _finish(state: Any) -> Any:
    """Returns a handler's state with what the handler left as containers expanded."""
    if type(state) is dict:
        return {key: _finish(value) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(_finish(value) for value in state)
    return to_state_dict(state)


def _child_restorer(strict: Strict) -> RestoreChild:
    """Returns what restores children: the native function, unless it knows too little."""
    if strict == "exact" or _registry.overridden():
        return restore_child
    return _core.rebuild


def restore_child(target: Any, state: Any, name: str, restore: Restore) -> Any:
    """Returns a part of the template with its state: any container or leaf."""
    kind = kind_of(target)
    if kind is None:
        return _restore_leaf(target, state, name, restore)
    if kind.final:
        return _restore_by_handler(kind, target, state, name, restore)
    restore.path.append(name)
    try:
        if restore.strict == "exact" and isinstance(target, Mapping):
            _note_extra_keys(target, state, restore)
        return kind.restore(target, state, restore.below)
    finally:
        restore.path.pop()


def _restore_by_handler(
    kind: NodeKind, target: Any, state: Any, name: str, restore: Restore
) -> Any:
    """Returns what a registered handler makes of a state.

    The handler compares nothing, so the state is compared with that of the template
    before, if the handler can tell it: templates are not always complete.
    """
    strict = restore.strict
    if strict:
        try:
            expected = kind.children(target)
        except Exception:  # whatever a handler raises
            pass
        else:
            _compare(expected, state, name, restore)
            strict = False  # all of it has been compared
    restore.path.append(name)
    try:
        with restore.part(strict, _child_restorer(strict)), _registry.foreign_path(restore.path):
            return kind.restore(target, state, restore.below)
    finally:
        restore.path.pop()


def _restore_leaf(target: Any, state: Any, name: str, restore: Restore) -> Any:
    if isinstance(state, Mapping) and _prng.MARKER in state and _prng.is_key_like(target):
        key = _prng.wrap(state[_prng.MARKER], state.get("data"))
        state = state if key is None else key
    if restore.strict:
        _compare_leaf(target, state, name, restore)
    return state


def _compare(template: Any, state: Any, name: str, restore: Restore) -> None:
    """Compares what a handler will restore, since it will not do so itself."""
    if not isinstance(template, Mapping) or not isinstance(state, Mapping):
        return _compare_leaf(template, state, name, restore)
    restore.path.append(name)
    try:
        for key in template:
            if key in state:
                _compare(template[key], state[key], key, restore)
    finally:
        restore.path.pop()


def _compare_leaf(target: Any, state: Any, name: str, restore: Restore) -> None:
    expected = _shape_and_dtype(target)
    if expected is None or expected[1] == np.dtype(object):
        return
    if isinstance(state, Mapping):
        restore.note(
            name, _signature(*expected), f"a subtree with the keys {sorted(map(str, state))}"
        )
        return
    found = _shape_and_dtype(state)
    if found is not None and found != expected:
        restore.note(name, _signature(*expected), _signature(*found))


def _note_extra_keys(target: Mapping[Any, Any], state: Any, restore: Restore) -> None:
    if isinstance(state, Mapping):
        known = {str(key) for key in target}
        for key in state:
            if key not in known:
                restore.note(str(key), "nothing", "a key that the template lacks")


def _shape_and_dtype(leaf: Any) -> tuple[tuple[int, ...], Any] | None:
    shape = getattr(leaf, "shape", None)
    dtype = getattr(leaf, "dtype", None)
    if shape is None or dtype is None or isinstance(leaf, type):
        return None
    try:
        if not jnp.issubdtype(dtype, jax.dtypes.extended):
            dtype = np.dtype(dtype)
            # What is saved is in native byte order.
            dtype = dtype if dtype.isnative else dtype.newbyteorder("=")
        return tuple(shape), dtype
    except TypeError:
        return None


def _signature(shape: tuple[int, ...], dtype: Any) -> str:
    """Returns a shape and dtype as JAX abbreviates them, such as `float32[3,4]`."""
    name = getattr(dtype, "name", str(dtype))
    return f"{name}[{','.join(map(str, shape))}]"
