"""Types of nodes by name: registering them, taking nodes apart, making them again.

A type is registered once, with what JAX needs to know (its children and its static data,
which JAX calls auxdata), with `jax.export`, and with treepack: trees that are saved with
their structure (`dumps`) name it, and only what is registered is ever made from a file.

Types of the standard library, of JAX and of flax that cannot be registered by the program
are known by themselves: OrderedDict, defaultdict, FrozenDict and `jax.tree_util.Partial`.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar, overload

import jax

from treepack import _auxdata, _core
from treepack._auxdata import default_name, with_attributes
from treepack._nodes import check_unique_keys, flatten, is_code, is_known_to_jax, unflatten
from treepack.errors import UnregisteredTypeError

T = TypeVar("T", bound=type)


# The names of children and of static data.
FieldNames = tuple[list[str], list[str]]


class NodeType(NamedTuple):
    """One type of nodes, and what becomes of them.

    Attributes:
      ty: The type.
      name: What it is written as.
      fields: The names of its children and of its static data, if all nodes have the same:
        nodes that were saved with others cannot be made.
      reduce: Takes a node, returns its encoded static data and its children by name.
      decode: Takes encoded static data, returns the data.
      rebuild: Takes static data, names and children, returns a node.
      build: Does so with placeholders as children, which code of the type might not like.
    """

    ty: type
    name: str
    fields: FieldNames | None
    reduce: Callable[[Any], tuple[bytes, dict[str, Any]]]
    decode: Callable[[bytes], Any]
    rebuild: Callable[[Any, list[str], list[Any]], Any]
    build: Callable[[Any, list[str], list[Any]], Any]


_by_name: dict[str, NodeType] = {}
_names: dict[type, str] = {}


# What the program calls


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
      data_fields: The fields that are children. By default those of a dataclass that are
        not marked by `metadata=dict(static=True)`.
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
    if (data_fields is None) != (meta_fields is None):
        raise TypeError("data_fields and meta_fields must both be given, or none of them")
    _check_dropped(nodetype, drop_fields)
    name = serialized_name or default_name(nodetype)
    with _auxdata.registering:
        _check_claim(nodetype, name)
        given = None
        if data_fields is not None and meta_fields is not None:
            given = _Fields(nodetype, list(data_fields), list(meta_fields))
        if is_known_to_jax(nodetype):
            fields = _adopted(nodetype, given, drop_fields)
        else:
            fields = given or _Fields.marked(nodetype)
            jax.tree_util.register_dataclass(
                nodetype, data_fields, meta_fields, drop_fields=list(drop_fields)
            )
        build = None if fields is None else fields.build
        _export(nodetype, name, _encode_auxdata, _core.decode_value, build)
        _register(nodetype, name, fields)
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
      serialized_name: What it is written as.
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
        _check_claim(nodetype, serialized_name)
        if _is_namedtuple(nodetype):
            raise ValueError(
                f"{default_name(nodetype)} is a namedtuple: call treepack.register_namedtuple"
            )
        if not is_known_to_jax(nodetype):
            raise ValueError(
                f"{default_name(nodetype)} is not registered with JAX: call "
                "jax.tree_util.register_pytree_node before, or treepack.register_dataclass"
            )
        fields = _Fields.of(nodetype)
        encode = serialize_auxdata or _encode_auxdata
        decode = deserialize_auxdata or _core.decode_value
        if from_children is None and fields is not None:
            from_children = fields.build
        _export(nodetype, serialized_name, encode, decode, from_children)
        if _own(nodetype) is not None:
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
    if not _is_namedtuple(nodetype):
        raise ValueError(f"{default_name(nodetype)} is no namedtuple: call treepack.register_node")
    name = serialized_name or default_name(nodetype)
    fields: FieldNames = (list(nodetype._fields), [])

    def reduce(node: Any) -> tuple[bytes, dict[str, Any]]:
        return _NOTHING, dict(zip(fields[0], node, strict=True))

    def rebuild(_: Any, names: list[str], children: list[Any]) -> Any:
        _check_children(fields[0], names)
        return nodetype._make(children)

    def from_children(_: Any, children: Iterable[Any]) -> Any:
        return nodetype._make(children)

    with _auxdata.registering:
        _check_claim(nodetype, name)
        _export(nodetype, name, _encode_auxdata, _core.decode_value, from_children)
        _add(NodeType(nodetype, name, fields, reduce, _core.decode_value, rebuild, rebuild))
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
        if _is_namedtuple(ty):
            register_namedtuple(ty, serialized_name=name)
        else:
            register_node(ty, serialized_name=name)
        added[name] = ty

    def visit(node: Any) -> None:
        if jax.tree_util.all_leaves([node]) and node is not None:
            return
        ty = type(node)
        if _own(ty) is not None:
            _export_own(ty)
        elif ty not in _names and ty not in _BY_JAX:
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


def registered_types() -> dict[str, type]:
    """Returns the types of nodes that are registered with treepack, by name.

    Example:
      >>> import treepack
      >>> from typing import NamedTuple
      >>> class Point(NamedTuple):
      ...     x: float
      >>> _ = treepack.register_namedtuple(Point, serialized_name="doc.Point")
      >>> treepack.registered_types()["doc.Point"] is Point
      True
    """
    return {name: found.ty for name, found in _by_name.copy().items()}


def is_registered(ty: type) -> bool:
    """Tells whether a type is registered, or known without."""
    return ty in _names or _own(ty) is not None


# What the core calls


def reduce(node: Any) -> tuple[str, FieldNames | None, bytes, dict[str, Any]]:
    """Returns the name of the type of a node, its fields, its static data and its children.

    Raises:
      TypeError: If the type has no name, or the static data cannot be written.
    """
    ty = type(node)
    name = _names.get(ty)
    if name is not None:
        found = _by_name[name]
    else:
        own = _own(ty)
        if own is None:
            raise TypeError(
                f"the type {default_name(ty)} is not registered, so it could not be found again "
                f"in a file; call {_how_to_register(ty, node)}"
            )
        found = own
    data, children = found.reduce(node)
    return found.name, found.fields, data, children


def find(name: str, fields: FieldNames | None, or_none: bool) -> NodeType | None:
    """Returns the type with a name.

    Raises:
      UnregisteredTypeError: If there is none, or it has other fields now; unless `or_none`.
    """
    found = _by_name.get(name)
    if found is None and name in _OWN_NAMES:
        found = _own(_OWN_NAMES[name]())
    if found is not None and found.fields == fields:
        return found
    if or_none:
        return None
    if found is None:
        raise UnregisteredTypeError(
            f"no type is registered with the name {name!r}; import or register it (see "
            'treepack.register_dataclass), or pass unknown="dict" to get dicts in its place',
            name,
        )
    raise UnregisteredTypeError(
        f"the type {name!r} was saved with {_text(fields)}, and has {_text(found.fields)} now; "
        'restore it into a template with loads(data, target), or pass unknown="dict"',
        name,
    )


def _text(fields: FieldNames | None) -> str:
    if fields is None:
        return "no fixed fields"
    return f"the fields {fields[0]}" + (f" and the static fields {fields[1]}" if fields[1] else "")


# How a type is registered


def _is_namedtuple(ty: type) -> bool:
    return issubclass(ty, tuple) and hasattr(ty, "_fields")


def _check_is_type(nodetype: Any) -> None:
    if not isinstance(nodetype, type):
        raise TypeError(f"expected a class, got {nodetype!r:.100}")


def _check_claim(nodetype: type, name: str) -> None:
    if nodetype in _BY_JAX:
        raise ValueError(f"{default_name(nodetype)} is known by itself")
    if name in _OWN_NAMES and _OWN_NAMES[name]() is not nodetype:
        raise ValueError(f"the node type name {name!r} is treepack's own")
    known = _by_name.get(name)
    _auxdata.check_claim(nodetype, name, _names, None if known is None else known.ty, "node type")


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


def _adopted(nodetype: type, given: _Fields | None, dropped: Sequence[str]) -> _Fields | None:
    """Returns the fields of a type as JAX knows them, which must be those that are given."""
    found = _Fields.of(nodetype)
    known = _by_name.get(_names.get(nodetype, ""))
    if found is None and known is not None and known.fields is not None:
        found = _Fields(nodetype, *known.fields)
    if (given is not None and given != found) or (
        found is not None and {*dropped} & {*found.data, *found.meta}
    ):
        fields = "unknown fields" if found is None else _text((found.data, found.meta))
        raise ValueError(f"{default_name(nodetype)} is registered with JAX already, with {fields}")
    return found


def _check_children(expected: list[str], names: list[str]) -> None:
    if names != expected:
        raise ValueError(f"it has the children {expected}, not {names}")


def _add(found: NodeType) -> None:
    known = _by_name.get(found.name)
    _by_name[found.name] = found
    _auxdata.rename(found.ty, found.name, _names, None if known is None else known.ty)


def _register(
    nodetype: type,
    name: str,
    fields: _Fields | None,
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
            _check_children(fields.data, names)
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
        field_names = [field.name for field in dataclasses.fields(nodetype)], []
    _add(NodeType(nodetype, name, field_names, reduce, decode_all, rebuild, build))


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
        try:
            _core.encode_value(function)
        except TypeError as error:
            raise TypeError(f"{default_name(nodetype)}: the field {name!r}: {error}") from None
    return _core.encode_value((_FUNCTIONS, data, names, functions))


def _take_functions(data: bytes) -> _WithFunctions | None:
    """Returns the parts of static data with functions."""
    if _FUNCTIONS.encode() not in data:  # nearly always, and cheap
        return None
    match _core.decode_value(data):
        case (mark, bytes(static), list(names), dict(functions)) if mark == _FUNCTIONS:
            return _WithFunctions(static, names, functions)
    return None


class _Fields(NamedTuple):
    """Which fields of a type are its children, and which its static data, in order."""

    ty: type
    data: list[str]
    meta: list[str]

    @classmethod
    def marked(cls, nodetype: Any) -> _Fields:
        """Returns the fields of a dataclass as they are marked, which is what JAX goes by."""
        static = {field.name: field.metadata.get("static", False) for field in _fields(nodetype)}
        return cls(
            nodetype,
            [name for name, is_static in static.items() if not is_static],
            [name for name, is_static in static.items() if is_static],
        )

    @classmethod
    def of(cls, nodetype: type) -> _Fields | None:
        """Finds out how JAX takes a dataclass apart, from an object with marks in its fields.

        `None` if it is not by its fields, and a tuple of them as static data.
        """
        marks = {field.name: object() for field in _fields(nodetype)}
        try:
            children, treedef = flatten(with_attributes(nodetype, marks))
        except Exception:  # whatever a flatten function does with what it does not expect
            return None
        static = treedef.node_data()[1]
        if type(static) is not tuple or any(
            marks.get(name) is not child for name, child in children.items()
        ):
            return None
        name_of = {id(mark): name for name, mark in marks.items()}
        meta = [name_of.get(id(value)) for value in static]
        if not children and not meta:
            return None
        found = [name for name in meta if name is not None]
        return cls(nodetype, list(children), found) if len(found) == len(meta) else None

    def build(self, auxdata: Any, children: Sequence[Any]) -> Any:
        """Makes a node without a call to its `__init__`, which might not like placeholders."""
        attributes = zip([*self.data, *self.meta], [*children, *auxdata], strict=True)
        return with_attributes(self.ty, dict(attributes))


def _fields(nodetype: Any) -> Sequence[dataclasses.Field[Any]]:
    return dataclasses.fields(nodetype) if dataclasses.is_dataclass(nodetype) else ()


def _encode_auxdata(auxdata: Any, nodetype: type | None = None, meta: Any = None) -> bytes:
    """Returns auxdata as bytes; an error names type and field."""
    try:
        return _core.encode_value(auxdata)
    except TypeError as error:
        where = "" if nodetype is None else f"{default_name(nodetype)}: "
        if meta and isinstance(auxdata, tuple) and len(auxdata) == len(meta):
            for field, value in zip(meta, auxdata, strict=True):
                try:
                    _core.encode_value(value)
                except TypeError as reason:
                    raise TypeError(f"{where}the field {field!r}: {reason}") from None
        raise TypeError(f"{where}{error}") from None


# jax.export


def _export(
    nodetype: type,
    name: str,
    encode: Callable[[Any], bytes],
    decode: Callable[[bytes], Any],
    from_children: Callable[[Any, Sequence[Any]], Any] | None,
) -> None:
    """Registers a type with `jax.export`, unless somebody else has."""
    from jax import export

    known = _exported.get(name)
    if known is not None:
        _exported[name] = known._replace(current=nodetype, from_children=from_children)
        if known.ty is not nodetype:
            _export_again(nodetype, name, encode)
        return

    def build(auxdata: Any, children: Sequence[Any]) -> Any:
        current = _exported[name]
        if current.from_children is not None:
            return current.from_children(auxdata, children)
        return unflatten(current.current, auxdata, children)

    try:
        export.register_pytree_node_serialization(
            nodetype,
            serialized_name=name,
            serialize_auxdata=encode,
            deserialize_auxdata=decode,
            from_children=build,  # type: ignore[arg-type]  # it is called by position
        )
    except ValueError as error:
        # There is no way to ask. If it is about the type, somebody else has registered it.
        if f"for type `{nodetype}`" in str(error):
            return
        raise ValueError(f"{default_name(nodetype)} with the name {name!r}: {error}") from None
    _exported[name] = _Exported(nodetype, nodetype, from_children)


class _Exported(NamedTuple):
    """What `jax.export` was told by us: of which type, and which has its name now."""

    ty: type
    current: type
    from_children: Callable[[Any, Sequence[Any]], Any] | None


_exported: dict[str, _Exported] = {}


def _export_again(nodetype: type, name: str, encode: Callable[[Any], bytes]) -> None:
    """Lets a class that was defined again take the place of its older self.

    `jax.export` has no way to do that, and a cell of a notebook is run many times.
    """
    try:
        from jax._src.export import _export as internals

        internals.serialization_registry.setdefault(nodetype, (name, encode))
    except (ImportError, AttributeError):  # then JAX says that the type is not registered
        pass


def _export_own(ty: type) -> None:
    own = _own(ty)
    if own is not None:
        _export(ty, own.name, _encode_auxdata, _core.decode_value, None)


def _register_named(function: Any) -> None:
    """Registers a function that has a name and is not known yet."""
    name = _auxdata.function_name(function)
    try:
        _core.encode_value(function)
    except TypeError:
        if name is not None and "<locals>" not in name:
            _auxdata.register_function(function, serialized_name=name)


def _how_to_register(ty: type, node: Any) -> str:
    if _is_namedtuple(ty):
        return "treepack.register_namedtuple, or treepack.register_tree on the tree"
    if not jax.tree_util.all_leaves([node]):
        return "treepack.register_node, or treepack.register_tree on the tree"
    if dataclasses.is_dataclass(ty):
        return "treepack.register_dataclass"
    return "jax.tree_util.register_pytree_node and treepack.register_node"


# Types that are known by themselves

_NOTHING = _core.encode_value(None)

# JAX takes these apart without a registry.
_BY_JAX: frozenset[type] = frozenset({dict, list, tuple, type(None)})


def _mapping(
    ty: type, name: str, make: Callable[[Any, dict[Any, Any]], Any], extra: Any
) -> NodeType:
    """A mapping with any keys, and something besides its items."""

    def reduce(mapping: Any) -> tuple[bytes, dict[str, Any]]:
        check_unique_keys(mapping)
        keys = None if all(type(key) is str for key in mapping) else list(mapping)
        children = {str(key): value for key, value in mapping.items()}
        return _core.encode_value((keys, extra(mapping))), children

    def rebuild(static: Any, names: list[str], children: list[Any]) -> Any:
        keys, more = static
        items = dict(zip(names if keys is None else keys, children, strict=True))
        if len(items) != len(children):
            raise ValueError("a key occurs twice")
        return make(more, items)

    return NodeType(ty, name, None, reduce, _core.decode_value, rebuild, rebuild)


def _reduce_partial(partial: Any) -> tuple[bytes, dict[str, Any]]:
    return _core.encode_value(partial.func), {"args": partial.args, "keywords": partial.keywords}


def _rebuild_partial(function: Any, names: list[str], children: list[Any]) -> Any:
    _check_children(["args", "keywords"], names)
    args, keywords = children
    return jax.tree_util.Partial(function, *args, **keywords)  # type: ignore[no-untyped-call]


def _frozen_dict() -> Any:
    flax = sys.modules.get("flax.core")
    return None if flax is None else flax.FrozenDict


_OWN: dict[type, NodeType] = {
    collections.OrderedDict: _mapping(
        collections.OrderedDict,
        "collections.OrderedDict",
        lambda _, items: collections.OrderedDict(items),
        lambda _: None,
    ),
    collections.defaultdict: _mapping(
        collections.defaultdict,
        "collections.defaultdict",
        collections.defaultdict,
        lambda mapping: mapping.default_factory,
    ),
    jax.tree_util.Partial: NodeType(
        jax.tree_util.Partial,
        "jax.tree_util.Partial",
        None,
        _reduce_partial,
        _core.decode_value,
        _rebuild_partial,
        _rebuild_partial,
    ),
}

_OWN_NAMES: dict[str, Callable[[], Any]] = {
    **{own.name: functools.partial(lambda ty: ty, ty) for ty, own in _OWN.items()},
    "flax.core.FrozenDict": _frozen_dict,
}


def _own(ty: Any) -> NodeType | None:
    """Returns what is known of a type by itself; of flax's only if flax is imported."""
    if ty is not None and ty is _frozen_dict():
        _OWN.setdefault(
            ty, _mapping(ty, "flax.core.FrozenDict", lambda _, items: ty(items), lambda _: None)
        )
    return _OWN.get(ty)
