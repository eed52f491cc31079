"""Registering types of nodes: once, for JAX, for `jax.export`, and by name for files."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar, overload

import jax

from treepack import _auxdata, _core, _jax_export, _node_types
from treepack._auxdata import default_name
from treepack._fields import Fields, dataclass_fields
from treepack._node_types import FieldNames, NodeType, check_children, check_claim, is_namedtuple
from treepack._nodes import flatten, is_code, is_known_to_jax, unflatten

T = TypeVar("T", bound=type)


@overload
def register_dataclass(
    nodetype: T,
    data_fields: Sequence[str] | None = None,
    meta_fields: Sequence[str] | None = None,
    drop_fields: Sequence[str] = (),
    *,
    serialized_name: str | None = None,
) -> T: ...


@overload
def register_dataclass(
    nodetype: None = None,
    data_fields: Sequence[str] | None = None,
    meta_fields: Sequence[str] | None = None,
    drop_fields: Sequence[str] = (),
    *,
    serialized_name: str | None = None,
) -> Callable[[T], T]: ...


def register_dataclass(
    nodetype: Any = None,
    data_fields: Sequence[str] | None = None,
    meta_fields: Sequence[str] | None = None,
    drop_fields: Sequence[str] = (),
    *,
    serialized_name: str | None = None,
) -> Any:
    """Registers a dataclass as a pytree node, with `jax.export`, and by name for `dumps`.

    The parameters are those of `jax.tree_util.register_dataclass`, which this calls unless
    JAX knows the type already (as it does the structs of flax and eformer, and equinox
    modules). It can be used as a decorator, with or without arguments. To register the
    same definition again does nothing.

    Args:
      nodetype: The class. Subclasses are not covered.
      data_fields: The fields that are children. By default those of a dataclass that
        `__init__` takes and that are not marked by `metadata=dict(static=True)`.
      meta_fields: The fields that are static data; given together with `data_fields`.
      drop_fields: Fields that are neither, and take their defaults when a node is made.
      serialized_name: What it is written as in files; by default its module and qualified
        name. Give one to be free to move the class.

    Returns:
      The class.

    Raises:
      ValueError: If the name belongs to another type, the type has another name, the fields
        are not those that JAX knows, or a dropped field has no default.

    Example:
      >>> import dataclasses, numpy as np, treepack
      >>> @treepack.register_dataclass(serialized_name="doc.Layer")
      ... @dataclasses.dataclass
      ... class Layer:
      ...     w: np.ndarray
      ...     act: str = dataclasses.field(default="relu", metadata=dict(static=True))
      >>> treepack.loads(treepack.dumps([Layer(np.ones(2), "tanh")]))
      [Layer(w=array([1., 1.]), act='tanh')]
    """
    if nodetype is None:
        return functools.partial(
            register_dataclass,
            data_fields=data_fields,
            meta_fields=meta_fields,
            drop_fields=drop_fields,
            serialized_name=serialized_name,
        )
    _check_is_type(nodetype)
    if is_namedtuple(nodetype):
        raise ValueError(
            f"{default_name(nodetype)} is a namedtuple: call treepack.register_namedtuple"
        )
    if (data_fields is None) != (meta_fields is None):
        raise TypeError("data_fields and meta_fields must both be given, or none of them")
    _check_dropped(nodetype, drop_fields)
    name = serialized_name or default_name(nodetype)
    with _auxdata.registering:
        check_claim(nodetype, name)
        given = None
        if data_fields is not None and meta_fields is not None:
            given = Fields(nodetype, list(data_fields), list(meta_fields))
        if is_known_to_jax(nodetype):
            fields = _adopted(nodetype, given, drop_fields)
        else:
            if given is None and dataclasses.is_dataclass(nodetype):
                given = Fields.marked(nodetype, drop_fields)
            data, meta = (None, None) if given is None else (given.data, given.meta)
            jax.tree_util.register_dataclass(nodetype, data, meta, drop_fields=list(drop_fields))
            fields = given
        build = None if fields is None else fields.build
        _jax_export.register(nodetype, name, _encode_auxdata, _core.decode_value, build)
        _register(nodetype, name, fields)
        if dataclasses.is_dataclass(nodetype):
            _register_as_auxdata(nodetype, name)
    return nodetype


def register_node(
    nodetype: T,
    *,
    serialized_name: str,
    serialize_auxdata: Callable[[Any], bytes] | None = None,
    deserialize_auxdata: Callable[[bytes], Any] | None = None,
    from_children: Callable[[Any, Sequence[Any]], Any] | None = None,
) -> T:
    """Registers a type that JAX knows as a pytree node by name, for `dumps` and `jax.export`.

    The parameters are those of `jax.export.register_pytree_node_serialization`, which this
    calls; those about auxdata may be left out, because treepack can write most static data
    (see `register_auxdata`).

    Args:
      nodetype: The type, registered with `jax.tree_util` before.
      serialized_name: What it is written as; for types that need no registration (such as
        OrderedDict) by `jax.export` alone.
      serialize_auxdata: Takes the auxdata of a node, returns bytes.
      deserialize_auxdata: The reverse.
      from_children: Takes auxdata and children, returns a node. Only `jax.export` uses it,
        with placeholders as children, to find out the structure.

    Returns:
      The type.

    Raises:
      ValueError: If JAX does not know the type, the name belongs to another type, or the type
        has another name.

    Example:
      >>> import jax, treepack
      >>> @jax.tree_util.register_pytree_node_class
      ... class Pair:
      ...     def __init__(self, a, b): self.a, self.b = a, b
      ...     def tree_flatten(self): return (self.a, self.b), None
      ...     @classmethod
      ...     def tree_unflatten(cls, aux, children): return cls(*children)
      >>> _ = treepack.register_node(Pair, serialized_name="doc.Pair")
      >>> treepack.loads(treepack.dumps(Pair(1, 2))).b
      2
    """
    _check_is_type(nodetype)
    if (serialize_auxdata is None) != (deserialize_auxdata is None):
        raise TypeError("serialize_auxdata and deserialize_auxdata must both be given, or none")
    with _auxdata.registering:
        check_claim(nodetype, serialized_name)
        if is_namedtuple(nodetype):
            raise ValueError(
                f"{default_name(nodetype)} is a namedtuple: call treepack.register_namedtuple"
            )
        if not is_known_to_jax(nodetype):
            raise ValueError(
                f"{default_name(nodetype)} is not registered with JAX: call "
                "jax.tree_util.register_pytree_node before, or treepack.register_dataclass"
            )
        fields = Fields.of(nodetype)
        encode = serialize_auxdata or _encode_auxdata
        decode = deserialize_auxdata or _core.decode_value
        if from_children is None and fields is not None:
            from_children = fields.build
        _jax_export.register(nodetype, serialized_name, encode, decode, from_children)
        if _node_types.own(nodetype) is not None:
            return nodetype  # known by itself
        if serialize_auxdata is None:
            _register(nodetype, serialized_name, fields)
        else:
            _register(
                nodetype,
                serialized_name,
                fields,
                lambda aux: _core.encode_value(encode(aux)),
                lambda data: decode(_core.decode_value(data)),
            )
    return nodetype


@overload
def register_namedtuple(nodetype: T, *, serialized_name: str | None = None) -> T: ...


@overload
def register_namedtuple(
    nodetype: None = None, *, serialized_name: str | None = None
) -> Callable[[T], T]: ...


def register_namedtuple(nodetype: Any = None, *, serialized_name: str | None = None) -> Any:
    """Registers a namedtuple by name, for `dumps` and `jax.export`.

    It can be used as a decorator, with or without arguments.

    Args:
      nodetype: The type. JAX knows namedtuples by themselves.
      serialized_name: What it is written as; by default its module and qualified name.

    Returns:
      The type.

    Raises:
      ValueError: If it is no namedtuple, the name belongs to another type, or the type has
        another name.

    Example:
      >>> from typing import NamedTuple
      >>> import treepack
      >>> @treepack.register_namedtuple(serialized_name="doc.State")
      ... class State(NamedTuple):
      ...     step: int
      >>> treepack.loads(treepack.dumps(State(3)))
      State(step=3)
    """
    if nodetype is None:
        return functools.partial(register_namedtuple, serialized_name=serialized_name)
    _check_is_type(nodetype)
    if not is_namedtuple(nodetype):
        raise ValueError(f"{default_name(nodetype)} is no namedtuple: call treepack.register_node")
    name = serialized_name or default_name(nodetype)
    fields: FieldNames = (list(nodetype._fields), [])

    def reduce(node: Any) -> tuple[bytes, dict[str, Any]]:
        return _core.encode_value(None), dict(zip(fields[0], node, strict=True))

    def rebuild(_: Any, names: list[str], children: list[Any]) -> Any:
        check_children(fields[0], names)
        return nodetype._make(children)

    def from_children(_: Any, children: Iterable[Any]) -> Any:
        return nodetype._make(children)

    with _auxdata.registering:
        check_claim(nodetype, name)
        _jax_export.register(nodetype, name, _encode_auxdata, _core.decode_value, from_children)
        decode = _core.decode_value
        _node_types.add(NodeType(nodetype, name, fields, True, reduce, decode, rebuild, rebuild))
        _auxdata.register_fields(nodetype, name, tuple, nodetype._make)
    return nodetype


def register_tree(tree: Any, *, prefix: str | None = None) -> dict[str, type]:
    """Registers every type of nodes in a tree that is not registered yet.

    So everything in a tree of types that others have made, such as an optimizer state, can be
    saved: namedtuples, nodes that JAX knows, and the functions in `Partial`s and equinox
    modules that have a name. The program that loads calls it with a tree of the same types.

    Args:
      tree: Any tree; its leaves do not matter.
      prefix: What stands before the names of the types, instead of their modules.

    Returns:
      The types that were registered, by name.

    Raises:
      ValueError: If a name belongs to another type.

    Example:
      >>> import optax, treepack
      >>> state = optax.sgd(0.1, momentum=0.9).init({"w": 0.0})
      >>> _ = treepack.register_tree(state, prefix="optax")
      >>> [type(part).__name__ for part in treepack.loads(treepack.dumps(state))]
      ['TraceState', 'EmptyState']
    """
    added: dict[str, type] = {}

    def register(ty: type) -> None:
        name = f"{prefix}.{ty.__qualname__}" if prefix else default_name(ty)
        if added.get(name, ty) is not ty:
            raise ValueError(
                f"two types in the tree have the name {name!r}: register one of them by another"
            )
        if is_namedtuple(ty):
            register_namedtuple(ty, serialized_name=name)
        else:
            register_node(ty, serialized_name=name)
        added[name] = ty

    def visit(node: Any) -> None:
        if jax.tree_util.all_leaves([node]) and node is not None:
            return
        ty = type(node)
        own = _node_types.own(ty)
        if own is not None:
            _jax_export.register(ty, own.name, _encode_auxdata, _core.decode_value, None)
        elif _node_types.registered(ty) is None and ty not in _node_types.BY_JAX:
            register(ty)
        if isinstance(node, jax.tree_util.Partial):
            _register_named(node.func)
        children, _ = flatten(node)
        for child in children.values():
            if is_code(node, child):
                _register_named(child)
            else:
                visit(child)

    visit(tree)
    return added


def _check_is_type(nodetype: Any) -> None:
    if not isinstance(nodetype, type):
        raise TypeError(f"expected a class, got {nodetype!r:.100}")


def _check_dropped(nodetype: type, dropped: Sequence[str]) -> None:
    """Raises for dropped fields that do not exist, or that nobody could fill in again."""
    if not dataclasses.is_dataclass(nodetype):
        return
    fields = {field.name: field for field in dataclasses.fields(nodetype)}
    for name in dropped:
        if name not in fields:
            raise ValueError(f"drop_fields has {name!r}, which is no field of the class")
        field = fields[name]
        no_default = (
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        )
        if field.init and no_default:
            raise ValueError(
                f"drop_fields has {name!r}, which has no default: JAX could not make a "
                f"{default_name(nodetype)} again. Give the field a default"
            )


def _adopted(nodetype: type, given: Fields | None, dropped: Sequence[str]) -> Fields | None:
    """Returns the fields of a type as JAX knows them, which must be those that are given."""
    found = Fields.of(nodetype)
    known = _node_types.registered(nodetype)
    if found is None and known is not None and known.fields is not None and known.checked:
        found = Fields(nodetype, *known.fields)
    if (given is not None and given != found) or (
        found is not None and {*dropped} & {*found.data, *found.meta}
    ):
        fields = (
            "unknown fields" if found is None else _node_types.fields_text((found.data, found.meta))
        )
        raise ValueError(f"{default_name(nodetype)} is registered with JAX already, with {fields}")
    return found


def _register(
    nodetype: type,
    name: str,
    fields: Fields | None,
    encode: Callable[[Any], bytes] | None = None,
    decode: Callable[[bytes], Any] = _core.decode_value,
) -> None:
    """Adds a type that JAX knows."""
    meta = None if fields is None else fields.meta
    encode = encode or functools.partial(_encode_auxdata, nodetype=nodetype, meta=meta)

    def reduce(node: Any) -> tuple[bytes, dict[str, Any]]:
        children, treedef = flatten(node)
        if fields is not None and list(children) != fields.data:
            raise TypeError(
                f"a {default_name(nodetype)} has the children {list(children)}, and others have "
                f"{fields.data}"
            )
        functions = {name: child for name, child in children.items() if is_code(node, child)}
        data = encode(treedef.node_data()[1])
        if functions:
            data = _add_functions(nodetype, data, list(children), functions)
            children = {name: child for name, child in children.items() if name not in functions}
        return data, children

    def decode_all(data: bytes) -> Any:
        functions = _take_functions(data)
        if functions is None:
            return decode(data)
        return functions._replace(static=decode(functions.static))

    def completed(static: Any, names: list[str], children: list[Any]) -> tuple[Any, list[Any]]:
        """Returns auxdata and children as JAX has them, which it does not check itself."""
        if isinstance(static, _WithFunctions):
            static, names, children = static.merge(names, children)
        if fields is not None:
            check_children(fields.data, names)
            if type(static) is not tuple or len(static) != len(fields.meta):
                raise ValueError(f"its static data should be {fields.meta}, not {static!r:.100}")
        return static, children

    def rebuild(static: Any, names: list[str], children: list[Any]) -> Any:
        return unflatten(nodetype, *completed(static, names, children))

    def build(static: Any, names: list[str], children: list[Any]) -> Any:
        static, children = completed(static, names, children)
        make = functools.partial(unflatten, nodetype) if fields is None else fields.build
        return make(static, children)

    field_names: FieldNames | None = None
    if fields is not None:
        field_names = fields.data, fields.meta
    elif dataclasses.is_dataclass(nodetype):
        field_names = [field.name for field in dataclass_fields(nodetype)], []
    checked = fields is not None
    _node_types.add(
        NodeType(nodetype, name, field_names, checked, reduce, decode_all, rebuild, build)
    )


# Marks static data of a node that has functions among its children, which are no state.
_FUNCTIONS = "treepack.functions"


class _WithFunctions(NamedTuple):
    """Static data of a node, and the functions among its children of these names."""

    static: Any
    names: list[str]
    functions: dict[str, Any]

    def merge(self, names: list[str], children: list[Any]) -> tuple[Any, list[str], list[Any]]:
        found = dict(zip(names, children, strict=True)) | self.functions
        if found.keys() != set(self.names):
            raise ValueError(f"it has the children {self.names}, not {list(found)}")
        return self.static, self.names, [found[name] for name in self.names]


def _add_functions(
    nodetype: type, data: bytes, names: list[str], functions: dict[str, Any]
) -> bytes:
    """Returns static data with the functions among the children of these names."""
    for name, function in functions.items():
        _check_field(name, function, f"{default_name(nodetype)}: ")
    return _core.encode_value((_FUNCTIONS, data, names, functions))


def _take_functions(data: bytes) -> _WithFunctions | None:
    """Returns the parts of static data with functions."""
    if _FUNCTIONS.encode() not in data:  # nearly always, and cheap
        return None
    match _core.decode_value(data):
        case (mark, bytes(static), list(names), dict(functions)) if mark == _FUNCTIONS:
            return _WithFunctions(static, names, functions)
    return None


def _register_as_auxdata(nodetype: Any, name: str) -> None:
    from_fields = functools.partial(_auxdata.from_fields, nodetype)
    _auxdata.register_fields(nodetype, name, _auxdata.fields_of, from_fields)


def _check_field(field: str, value: Any, where: str) -> None:
    """Raises a TypeError with the name of a field if its value cannot be written."""
    try:
        _core.encode_value(value)
    except (TypeError, ValueError) as reason:
        raise TypeError(f"{where}the field {field!r}: {reason}") from None


def _encode_auxdata(auxdata: Any, nodetype: type | None = None, meta: Any = None) -> bytes:
    """Returns auxdata as bytes; an error names type and field."""
    try:
        return _core.encode_value(auxdata)
    except (TypeError, ValueError) as error:
        where = "" if nodetype is None else f"{default_name(nodetype)}: "
        if meta and isinstance(auxdata, tuple) and len(auxdata) == len(meta):
            for field, value in zip(meta, auxdata, strict=True):
                _check_field(field, value, where)
        raise TypeError(f"{where}{error}") from None


def _register_named(function: Any) -> None:
    """Registers a function that has a name and is not known yet."""
    name = _auxdata.function_name(function)
    try:
        _core.encode_value(function)
    except TypeError:
        if name is not None and "<locals>" not in name:
            _auxdata.register_function(function, serialized_name=name)
