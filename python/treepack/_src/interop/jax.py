"""JAX, which takes half a second and 100 MB to import.

A program that has NumPy's arrays alone does not pay for it.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from treepack._src.interop.modules import imported, instance_of

if TYPE_CHECKING:
    import jax
    import numpy as np


def needed(what: str) -> Any:
    """Returns jax, which is imported now.

    Raises:
      ImportError: If it is not installed; `what` says what it is needed for.
    """
    try:
        import jax
    except ImportError as error:
        raise ImportError(f"{what}, and jax is not installed here") from error
    return jax


def like(array: np.ndarray) -> Any:
    """Returns an array of jax, or the one of NumPy where jax has no such, or is not installed."""
    try:
        import jax.numpy as jnp

        made = jnp.asarray(array)
    except (ImportError, TypeError):
        return array
    return made if made.dtype == array.dtype else array


is_array = instance_of("jax", "Array")
"""Tells whether a value is an array of jax, a traced one as well."""

is_tracer = instance_of("jax.core", "Tracer")
"""Tells whether a value is traced."""


def is_abstract(value: object) -> bool:
    """Tells whether a value is a leaf of jax with a shape and a dtype."""
    jax = imported("jax")
    return jax is not None and isinstance(value, (jax.Array, jax.ShapeDtypeStruct))


def is_extended(dtype: object) -> bool:
    """Tells whether a dtype is one that only jax has, such as that of PRNG keys."""
    jax = imported("jax")
    return jax is not None and bool(jax.numpy.issubdtype(dtype, jax.dtypes.extended))


def processes() -> tuple[int, int, Any]:
    """Returns what is known of the processes of `jax.distributed`.

    That is the number of this one, how many there are, and the client of their key-value store,
    which jax has no public name for.
    """
    jax = imported("jax")
    if jax is None or not jax.distributed.is_initialized():
        return 0, 1, None
    return jax.process_index(), jax.process_count(), client()


def client() -> Any:
    """Returns the client of the processes of `jax.distributed`; `None` if there are none."""
    distributed = imported("jax._src.distributed")
    return None if distributed is None else distributed.global_state.client


def is_node(value: object) -> bool:
    """Tells whether jax takes a value apart; `None` does not count."""
    jax = imported("jax")
    return jax is not None and value is not None and not jax.tree_util.all_leaves([value])


def is_partial_type(ty: object) -> bool:
    """Tells whether a type is `jax.tree_util.Partial`."""
    jax = imported("jax")
    return jax is not None and ty is jax.tree_util.Partial


is_partial = instance_of("jax.tree_util", "Partial")
"""Tells whether a value is a `jax.tree_util.Partial`."""


def partial_function(partial: Any) -> Any:
    """Returns the function of a `Partial`; that of a partial of a partial is in a wrapper."""
    function = partial.func
    return function.fun if type(function).__name__ == "_HashableCallableShim" else function


is_treedef = instance_of("jax.tree_util", "PyTreeDef")
"""Tells whether a value is the structure of a pytree."""


def is_node_type(ty: type) -> bool:
    """Tells whether jax has a type in its registry of pytree nodes."""
    if imported("jax") is None:
        return False
    from jax.tree_util import default_registry

    try:
        _treedef_maker()(default_registry, (ty, None), [])
    except (RuntimeError, ValueError, TypeError):
        return False
    return True


def is_plain_namedtuple(ty: Any) -> bool:
    """Tells whether jax takes objects of a namedtuple apart by their fields, as it does by itself.

    Some are registered as nodes of another form.
    """
    if imported("jax") is None:
        return True
    from jax.tree_util import tree_flatten

    fields = [object() for _ in ty._fields]
    node: Any = tuple.__new__(ty, fields)
    try:
        found, treedef = tree_flatten(node, is_leaf=lambda part: part is not node)
    except Exception:  # whatever a flatten function does with what it does not expect
        return False
    same = len(found) == len(fields) and all(map(operator.is_, found, fields))
    definition: Any = treedef
    return same and definition.node_data()[1] is None


def treedef_with(ty: type, auxdata: Any, children: Sequence[Any]) -> jax.tree_util.PyTreeDef:
    """Returns the treedef of a node with children of these treedefs."""
    from jax.tree_util import default_registry

    treedef: jax.tree_util.PyTreeDef = _treedef_maker()(default_registry, (ty, auxdata), children)
    return treedef


def unflatten(ty: type, auxdata: Any, children: Sequence[Any]) -> Any:
    """Returns a node with these children, as JAX makes it."""
    from jax.tree_util import tree_structure

    if hasattr(ty, "_fields") and not is_plain_namedtuple(ty):
        return registered_unflatten(ty)(auxdata, children)
    leaves = [tree_structure(0)] * len(children)
    return treedef_with(ty, auxdata, leaves).unflatten(children)


def node_functions(ty: type) -> tuple[Any, Any] | None:
    """Returns the functions that take nodes of a type apart and make them, as jax was given them.

    `None` if this version of jax does not tell.
    """
    try:
        from jax._src.tree_util import _registry

        found = _registry[ty]
        return found.to_iter, found.from_iter
    except (ImportError, AttributeError, KeyError):
        return None


def is_by_dataclass(flatten: Any) -> bool:
    """Tells whether a function is what `register_dataclass` of jax takes nodes apart with."""
    code = getattr(flatten, "__qualname__", None), getattr(flatten, "__module__", None)
    return code == ("register_dataclass.<locals>.flatten_func", "jax._src.tree_util")


def unflattener(ty: type, fields: Sequence[str] | None) -> Any:
    """Returns what makes nodes of a type: it takes static data and children.

    Args:
      ty: The type.
      fields: The names of its children and of its static data, if all nodes have the same.
    """
    functions = node_functions(ty)
    if functions is None:
        return functools.partial(unflatten, ty)
    flatten, make = functions
    if fields is not None and is_by_dataclass(flatten):
        # What jax does, in fewer steps.
        return lambda auxdata, children: ty(**dict(zip(fields, (*children, *auxdata), strict=True)))
    return lambda auxdata, children: make(auxdata, tuple(children))


def registered_unflatten(ty: type) -> Any:
    """Returns the function that makes nodes of a type, as a program has given it to jax.

    It is for nodes that no treedef can be made for: namedtuples, and those whose number of
    children varies, which jax does not compare with what is there.
    """
    functions = node_functions(ty)
    if functions is None:
        raise TypeError(
            f"this version of JAX does not tell how to make a {ty.__qualname__}, which is a "
            "namedtuple with a registration of its own, or has children only on conditions"
        )
    return functions[1]


@functools.cache
def _treedef_maker() -> Any:
    from jax.tree_util import PyTreeDef

    # Older versions of JAX call it by another name.
    name = "from_node_data_and_children"
    return getattr(PyTreeDef, name, None) or getattr(PyTreeDef, f"make_{name}")
