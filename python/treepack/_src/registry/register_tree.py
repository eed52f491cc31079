from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import treepack._core as core
from treepack._src.advice import advised
from treepack._src.interop import jax as _jax
from treepack._src.printable import warn
from treepack._src.pytree.kinds import Pruned, flatten, kind_of
from treepack._src.registry import jax_export as _jax_export
from treepack._src.registry import nodes as _nodes
from treepack._src.registry import static as _static
from treepack._src.registry.definitions import MADE_BY_NEW
from treepack._src.registry.fields import fields_of
from treepack._src.registry.inert import decode_given
from treepack._src.registry.jax_nodes import encode_auxdata
from treepack._src.registry.names import (
    default_name,
    function_name,
    is_unstable,
    registering,
    unstable_text,
)
from treepack._src.registry.register import register_namedtuple, register_node
from treepack._src.registry.types import TYPES


@advised
def register_tree(tree: Any, *, prefix: str | None = None) -> dict[str, type]:
    """Registers every unregistered node type in a tree.

    Prepares trees with types of other libraries, such as optimizer states, for saving. Registers
    namedtuples, nodes that are registered with JAX, and the types in their static data: enums,
    dataclasses, and functions that have a name or are the default of a parameter. A program that
    loads such trees must call it, too, with a tree of the same types.

    Args:
      tree: Any tree; its leaves do not matter.
      prefix: A prefix for the names of the types, instead of their modules.

    Returns:
      The newly registered types, by name.

    Raises:
      ValueError: If a name belongs to another type.
      TypeError: If the tree is a class.

    Warns:
      UserWarning: If a name may differ in another program, or a dataclass is not registered with
        JAX (`register_dataclass` registers it).

    Examples:
      >>> import optax, treepack
      >>> state = optax.sgd(0.1, momentum=0.9).init({"w": 0.0})
      >>> _ = treepack.register_tree(state, prefix="optax")
      >>> [type(part).__name__ for part in treepack.loads(treepack.dumps(state))]
      ['TraceState', 'EmptyState']
    """
    added: dict[str, type] = {}
    unknown: dict[type, None] = {}

    def register(ty: type) -> None:
        name = f"{prefix}.{ty.__qualname__}" if prefix else default_name(ty)
        if added.get(name, ty) is not ty:
            raise ValueError(
                f"two types in the tree have the name {name!r}: register one of them with another "
                "serialized_name"
            )
        if _jax.is_plain_namedtuple(ty):
            register_namedtuple(ty, serialized_name=name)
        else:
            register_node(ty, serialized_name=name)
        added[name] = ty

    def visit(node: Any) -> None:
        ty = type(node)
        if ty in _nodes.BY_JAX:
            for child in node.values() if ty is dict else node or ():
                visit(child)
            return
        if ty is Pruned:
            state, functions = node.children(), node.functions()
        elif _jax.is_node(node):
            own = _nodes.own(ty)
            if own is not None:
                _jax_export.register(ty, own.name, encode_auxdata, decode_given, None)
            elif TYPES.name_of(ty) is None:
                register(ty)
            _, state, functions, treedef = flatten(node)
            static = (
                _jax.partial_function(node) if _jax.is_partial(node) else treedef.node_data()[1]
            )
            _register_static(static, ty)
        else:
            kind = kind_of(node)
            if kind is not None and kind.sort == "dataclass":
                unknown[ty] = None
            return
        for function in functions.values():
            _register_static(function, ty)
        for child in state.values():
            visit(child)

    if isinstance(tree, type):
        raise TypeError(
            f"expected a tree, got a class: pass an object of {default_name(tree)}, or call "
            "register_dataclass, register_namedtuple or register_node on it"
        )
    with registering:
        visit(tree)
    for name, ty in added.items():
        if prefix is None and is_unstable(ty):
            warn(unstable_text(name, "pass prefix=, or register the type with serialized_name="))
    for ty in unknown:
        warn(
            f"did not register the dataclass {default_name(ty)}, which is not registered with "
            "JAX: call treepack.register_dataclass on it"
        )
    return added


def _register_static(value: Any, owner: type) -> None:
    try:
        core.encode_value(value)
        return
    except (TypeError, ValueError):
        pass
    parts: Iterable[Any] = ()
    if isinstance(value, tuple):
        parts = tuple.__iter__(value)
    elif isinstance(value, (list, set, frozenset)):
        parts = value
    elif isinstance(value, Mapping):
        parts = (*value.keys(), *value.values())
    elif isinstance(value, functools.partial):
        parts = value.func, value.args, value.keywords
    elif isinstance(value, enum.Enum):
        _static.register_auxdata(type(value), default_name(type(value)))
    elif callable(value):
        name = function_name(value)
        if name is None or "<locals>" in name:
            name = _name_of_default(value, owner)
        if name is not None:
            _static.register_function(value, serialized_name=name)
    elif dataclasses.is_dataclass(value) and not isinstance(value, MADE_BY_NEW):
        _static.register_auxdata(type(value), default_name(type(value)))
        parts = fields_of(value).values()
    for part in parts:
        _register_static(part, owner)


def _name_of_default(value: Any, owner: type) -> str | None:
    try:
        initializer: Any = owner.__init__  # type: ignore[misc]
        parameters = list(inspect.signature(initializer).parameters.values())
    except (TypeError, ValueError):
        return None
    for parameter in parameters:
        if parameter.default is value:
            return f"{default_name(owner)}.__init__.{parameter.name}"
    return None
