"""Registering types of nodes: once, for JAX, for `jax.export`, and by name for files."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, overload

from treepack import _auxdata, _core, _holes, _jax_export, _node_types
from treepack._evolution import fields_text
from treepack._fields import Fields, dataclass_fields
from treepack._libraries.jax import (
    is_node,
    is_node_type,
    is_partial,
    needed,
    partial_function,
    registered_unflatten,
    unflattener,
)
from treepack._names import default_name, is_unstable, registering
from treepack._node_types import FieldNames, NodeType, Upgrade, check_children
from treepack._nodes import code, is_plain_namedtuple, kind_of
from treepack._nodes.builtin import is_namedtuple
from treepack._nodes.dataclass import DATACLASS
from treepack._nodes.pytree import flatten

T = TypeVar("T", bound=type)


@overload
def register_dataclass(
    nodetype: T,
    data_fields: Sequence[str] | None = None,
    meta_fields: Sequence[str] | None = None,
    drop_fields: Sequence[str] = (),
    *,
    serialized_name: str | None = None,
    aliases: Sequence[str] = (),
    version: int = 0,
    upgrade: Upgrade | None = None,
) -> T: ...


@overload
def register_dataclass(
    nodetype: None = None,
    data_fields: Sequence[str] | None = None,
    meta_fields: Sequence[str] | None = None,
    drop_fields: Sequence[str] = (),
    *,
    serialized_name: str | None = None,
    aliases: Sequence[str] = (),
    version: int = 0,
    upgrade: Upgrade | None = None,
) -> Callable[[T], T]: ...


def register_dataclass(
    nodetype: Any = None,
    data_fields: Sequence[str] | None = None,
    meta_fields: Sequence[str] | None = None,
    drop_fields: Sequence[str] = (),
    *,
    serialized_name: str | None = None,
    aliases: Sequence[str] = (),
    version: int = 0,
    upgrade: Upgrade | None = None,
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
        name, or the shortest public path to it. Give one to be free to move the class.
      aliases: Other names, which files of before may have.
      version: Counts the definitions of the class. Fields may be reordered, and new ones have
        defaults, without another version.
      upgrade: Takes the static fields and the children of a node by name, and the older version
        that it was saved in; returns both as they are in this version.

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
            aliases=aliases,
            version=version,
            upgrade=upgrade,
        )
    _check_is_type(nodetype)
    if is_namedtuple(nodetype):
        raise ValueError(
            f"{default_name(nodetype)} is a namedtuple: call treepack.register_namedtuple"
        )
    if (data_fields is None) != (meta_fields is None):
        raise TypeError("data_fields and meta_fields must both be given, or none of them")
    _check_dropped(nodetype, drop_fields)
    with registering:
        name = _node_types.chosen_name(nodetype, serialized_name)
        _check_claims(nodetype, name, aliases, version)
        given = None
        if data_fields is not None and meta_fields is not None:
            given = Fields(nodetype, list(data_fields), list(meta_fields))
        if is_node_type(nodetype):
            fields = _adopted(nodetype, given, drop_fields)
        else:
            if given is None and dataclasses.is_dataclass(nodetype):
                given = Fields.marked(nodetype, drop_fields)
            data, meta = (None, None) if given is None else (given.data, given.meta)
            jax = needed("register_dataclass makes a type a node for JAX")
            register_with_jax = jax.tree_util.register_dataclass
            register_with_jax(nodetype, data, meta, drop_fields=[*map(_Whole, drop_fields)])
            fields = given
        build = None if fields is None else fields.build
        _jax_export.register(nodetype, name, _encode_auxdata, _core.decode_value, build)
        _register(nodetype, name, fields, aliases=aliases, version=version, upgrade=upgrade)
        if dataclasses.is_dataclass(nodetype):
            _auxdata.register_fields(nodetype, name, aliases)
    return nodetype


class _Whole(str):
    """The name of a field to drop, which JAX before 0.10 takes for several names."""

    __slots__ = ()

    def __iter__(self) -> Iterator[str]:
        yield str(self)


def _check_claims(nodetype: type, name: str, aliases: Sequence[str], version: int) -> None:
    """Raises if a name cannot be had, before anything is told of it."""
    if not isinstance(version, int) or not 0 <= version < 2**32:
        raise ValueError(f"version must be an integer from 0 to 2**32-1, got {version!r}")
    _node_types.check(nodetype, name, aliases)
    _jax_export.check(nodetype, name)


def register_node(
    nodetype: T,
    *,
    serialized_name: str,
    serialize_auxdata: Callable[[Any], bytes] | None = None,
    deserialize_auxdata: Callable[[bytes], Any] | None = None,
    from_children: Callable[[Any, Sequence[Any]], Any] | None = None,
    aliases: Sequence[str] = (),
    version: int = 0,
    upgrade: Callable[[Any, dict[str, Any], int], tuple[Any, dict[str, Any]]] | None = None,
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
      aliases: See `register_dataclass`.
      version: See `register_dataclass`.
      upgrade: See `register_dataclass`. Static data are by name if JAX takes the type apart by
        its fields, and the auxdata otherwise.

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
    with registering:
        _check_claims(nodetype, serialized_name, aliases, version)
        if is_plain_namedtuple(nodetype):
            raise ValueError(
                f"{default_name(nodetype)} is a namedtuple: call treepack.register_namedtuple"
            )
        if not is_node_type(nodetype):
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
        more: dict[str, Any] = {"aliases": aliases, "version": version, "upgrade": upgrade}
        if serialize_auxdata is None:
            _register(nodetype, serialized_name, fields, **more)
        else:
            _register(
                nodetype,
                serialized_name,
                fields,
                lambda aux: _core.encode_value(encode(aux)),
                lambda data: decode(_core.decode_value(data)),
                **more,
            )
    return nodetype


@overload
def register_namedtuple(
    nodetype: T,
    *,
    serialized_name: str | None = None,
    aliases: Sequence[str] = (),
    version: int = 0,
    upgrade: Upgrade | None = None,
) -> T: ...


@overload
def register_namedtuple(
    nodetype: None = None,
    *,
    serialized_name: str | None = None,
    aliases: Sequence[str] = (),
    version: int = 0,
    upgrade: Upgrade | None = None,
) -> Callable[[T], T]: ...


def register_namedtuple(
    nodetype: Any = None,
    *,
    serialized_name: str | None = None,
    aliases: Sequence[str] = (),
    version: int = 0,
    upgrade: Upgrade | None = None,
) -> Any:
    """Registers a namedtuple by name, for `dumps` and `jax.export`.

    It can be used as a decorator, with or without arguments.

    Args:
      nodetype: The type. JAX knows namedtuples by themselves.
      serialized_name: What it is written as; by default its module and qualified name.
      aliases: See `register_dataclass`.
      version: See `register_dataclass`.
      upgrade: See `register_dataclass`.

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
        return functools.partial(
            register_namedtuple,
            serialized_name=serialized_name,
            aliases=aliases,
            version=version,
            upgrade=upgrade,
        )
    _check_is_type(nodetype)
    if not is_namedtuple(nodetype):
        raise ValueError(f"{default_name(nodetype)} is no namedtuple: call treepack.register_node")
    if not is_plain_namedtuple(nodetype):
        name = _node_types.chosen_name(nodetype, serialized_name)
        return register_node(
            nodetype, serialized_name=name, aliases=aliases, version=version, upgrade=upgrade
        )
    fields: FieldNames = (list(nodetype._fields), [])

    def reduce(node: Any) -> tuple[bytes, dict[str, Any]]:
        return _core.encode_value(()), dict(zip(fields[0], node, strict=True))

    def rebuild(_: Any, names: list[str], children: list[Any]) -> Any:
        check_children(fields[0], names)
        return nodetype._make(children)

    def from_children(_: Any, children: Iterable[Any]) -> Any:
        return nodetype._make(children)

    with registering:
        name = _node_types.chosen_name(nodetype, serialized_name)
        _check_claims(nodetype, name, aliases, version)
        decode = _core.decode_value
        _jax_export.register(nodetype, name, _encode_auxdata, decode, from_children)
        added = NodeType(
            nodetype, name, fields, version, upgrade, True, reduce, decode, rebuild, rebuild, True
        )
        _node_types.add(added, aliases)
        _auxdata.register_fields(nodetype, name, aliases)
    return nodetype


def register_tree(tree: Any, *, prefix: str | None = None) -> dict[str, type]:
    """Registers every type of nodes in a tree that is not registered yet.

    So everything in a tree of types that others have made, such as an optimizer state, can be
    saved: namedtuples, nodes that JAX knows, and what is in their static data: enums,
    dataclasses, functions that have a name or are the default of a parameter. The program that
    loads calls it with a tree of the same types.

    Args:
      tree: Any tree; its leaves do not matter.
      prefix: What stands before the names of the types, instead of their modules.

    Returns:
      The types that were registered, by name.

    Raises:
      ValueError: If a name belongs to another type.

    Warns:
      UserWarning: If a name may not last; or if there is a dataclass that JAX does not know, which
        `register_dataclass` would make a node.

    Example:
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
                f"two types in the tree have the name {name!r}: register one of them by another"
            )
        if is_plain_namedtuple(ty):
            register_namedtuple(ty, serialized_name=name)
        else:
            register_node(ty, serialized_name=name)
        added[name] = ty

    def visit(node: Any) -> None:
        ty = type(node)
        if ty is code.Pruned:
            state, functions = node.children(), node.functions()
        elif is_node(node):
            own = _node_types.own(ty)
            if own is not None:
                _jax_export.register(ty, own.name, _encode_auxdata, _core.decode_value, None)
            elif _node_types.registered(ty) is None and ty not in _node_types.BY_JAX:
                register(ty)
            if ty in _node_types.BY_JAX:
                for child in node.values() if ty is dict else node or ():
                    visit(child)
                return
            children, treedef = flatten(node)
            state, functions = code.split(node, children)
            static = partial_function(node) if is_partial(node) else treedef.node_data()[1]
            _register_static(static, ty)
        else:
            if kind_of(node) is DATACLASS:
                unknown[ty] = None
            return
        for function in functions.values():
            _register_static(function, ty)
        for child in state.values():
            visit(child)

    with registering:
        visit(tree)
    for name, ty in added.items():
        if prefix is None and is_unstable(ty):
            warnings.warn(
                f"{name!r} is no lasting name for files: another program may have something else "
                "there. Give a prefix, or register the type by itself with a serialized_name",
                stacklevel=2,
            )
    for ty in unknown:
        warnings.warn(
            f"{default_name(ty)} is a dataclass that JAX does not know, so it was not registered: "
            "call treepack.register_dataclass on it",
            stacklevel=2,
        )
    return added


def _register_static(value: Any, owner: type) -> None:
    """Registers what is in static data of a type, and has a name that will last."""
    try:
        _core.encode_value(value)
        return
    except (TypeError, ValueError):
        pass
    if isinstance(value, (tuple, list, set, frozenset)):
        for part in value:
            _register_static(part, owner)
    elif isinstance(value, Mapping):
        for part in (*value.keys(), *value.values()):
            _register_static(part, owner)
    elif isinstance(value, functools.partial):
        for part in (value.func, value.args, value.keywords):
            _register_static(part, owner)
    elif isinstance(value, enum.Enum):
        _auxdata.register_auxdata(type(value), default_name(type(value)))
    elif callable(value):
        name = _auxdata.function_name(value)
        if name is None or "<locals>" in name:
            name = _name_of_default(value, owner)
        if name is not None:
            _auxdata.register_function(value, serialized_name=name)
    elif dataclasses.is_dataclass(value):
        _auxdata.register_auxdata(type(value), default_name(type(value)))
        _register_static(tuple(_auxdata.fields_of(value).values()), owner)


def _name_of_default(value: Any, owner: type) -> str | None:
    """Returns a name for what is the default of a parameter of a type, such as a lambda."""
    try:
        initializer: Any = owner.__init__  # type: ignore[misc]
        parameters = list(inspect.signature(initializer).parameters.values())
    except (TypeError, ValueError):
        return None
    for parameter in parameters:
        if parameter.default is value:
            return f"{default_name(owner)}.__init__.{parameter.name}"
    return None


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
        fields = "unknown fields" if found is None else fields_text((found.data, found.meta))
        raise ValueError(f"{default_name(nodetype)} is registered with JAX already, with {fields}")
    return found


def _register(
    nodetype: type,
    name: str,
    fields: Fields | None,
    encode: Callable[[Any], bytes] | None = None,
    decode: Callable[[bytes], Any] = _core.decode_value,
    *,
    aliases: Sequence[str],
    version: int,
    upgrade: Any,
) -> None:
    """Adds a type that JAX knows."""
    meta = None if fields is None else fields.meta
    plain = encode is None
    encode = encode or functools.partial(_encode_auxdata, nodetype=nodetype, meta=meta)

    def reduce(node: Any) -> tuple[bytes, dict[str, Any]]:
        children, treedef = flatten(node)
        state, functions = code.split(node, children)
        data = encode(treedef.node_data()[1])
        if fields is not None and list(children) != fields.data:
            return _core.encode_value((_VARIABLE, data, list(children))), children
        if functions:
            data = _add_functions(nodetype, data, list(children), functions)
        return data, state

    def decode_all(data: bytes) -> Any:
        found = _taken(data)
        return decode(data) if found is None else found._replace(static=decode(found.static))

    def completed(static: Any, names: list[str], children: list[Any]) -> tuple[Any, list[Any]]:
        """Returns auxdata and children as JAX has them, which it does not check itself."""
        if isinstance(static, _WithFunctions):
            static, names, children = static.merge(names, children)
        if fields is not None:
            check_children(fields.data, names)
            if type(static) is not tuple or len(static) != len(fields.meta):
                raise ValueError(f"its static data should be {fields.meta}, not {static!r:.100}")
        return static, children

    def made_by(make: Callable[[Any, list[Any]], Any]) -> Callable[..., Any]:
        def rebuild(static: Any, names: list[str], children: list[Any]) -> Any:
            if (
                fields is not None
                and names == fields.data
                and type(static) is tuple
                and len(static) == len(fields.meta)
            ):
                return make(static, children)  # nearly always
            if isinstance(static, _Variable):
                return static.make(nodetype, names, children)
            return make(*completed(static, names, children))

        return rebuild

    all_fields = None if fields is None else [*fields.data, *fields.meta]
    rebuild = made_by(unflattener(nodetype, all_fields))
    build = rebuild if fields is None else made_by(fields.build)

    field_names: FieldNames | None = None
    if fields is not None:
        field_names = fields.data, fields.meta
    elif dataclasses.is_dataclass(nodetype):
        field_names = [field.name for field in dataclass_fields(nodetype)], []
    checked = fields is not None
    added = NodeType(
        nodetype,
        name,
        field_names,
        version,
        upgrade,
        checked,
        reduce,
        decode_all,
        rebuild,
        build,
        plain,
    )
    _node_types.add(added, aliases)


# Marks static data of a node that has other children than most of its type.
_VARIABLE = "treepack.variable"


class _Variable(NamedTuple):
    """Static data of a node whose type has children only on conditions, and their names."""

    static: Any
    names: list[str]

    def make(self, nodetype: type, names: list[str], children: list[Any]) -> Any:
        """Makes the node by the function that the program gave to JAX."""
        check_children(self.names, names)
        return registered_unflatten(nodetype)(self.static, children)


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
    functions = _holes.left_out(functions)
    for name, function in functions.items():
        _holes.check_field(name, function, f"{default_name(nodetype)}: ")
    return _core.encode_value((_FUNCTIONS, data, names, functions))


def _taken(data: bytes) -> _Variable | _WithFunctions | None:
    """Returns the parts of static data that have more than a node's own."""
    if not any(mark.encode() in data for mark in (_VARIABLE, _FUNCTIONS)):  # nearly always
        return None
    match _core.decode_value(data):
        case (mark, bytes(static), list(names)) if mark == _VARIABLE:
            return _Variable(static, names)
        case (mark, bytes(static), list(names), dict(functions)) if mark == _FUNCTIONS:
            return _WithFunctions(static, names, functions)
    return None


def _encode_auxdata(auxdata: Any, nodetype: type | None = None, meta: Any = None) -> bytes:
    """Returns auxdata as bytes; an error names type and field."""
    try:
        return _core.encode_value(auxdata)
    except (TypeError, ValueError) as error:
        if _holes.allowed():
            return _core.encode_value(_holes.dug(auxdata, meta))
        where = "" if nodetype is None else f"{default_name(nodetype)}: "
        if meta and isinstance(auxdata, tuple) and len(auxdata) == len(meta):
            for field, value in zip(meta, auxdata, strict=True):
                _holes.check_field(field, value, where)
        raise TypeError(f"{where}{error}{_holes.OR_HOLES}") from None
