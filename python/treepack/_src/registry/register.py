from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import treepack._core as core
from treepack._src.advice import advised
from treepack._src.interop import jax as _jax
from treepack._src.registry import jax_export as _jax_export
from treepack._src.registry import nodes as _nodes
from treepack._src.registry import static as _static
from treepack._src.registry.codec import exactly
from treepack._src.registry.fields import Fields
from treepack._src.registry.inert import decode_given
from treepack._src.registry.jax_nodes import encode_auxdata, jax_node_type, plain_type
from treepack._src.registry.names import check_is_type, default_name, or_decorator, registering
from treepack._src.registry.types import TYPES, Upgrade, fields_text

T = TypeVar("T", bound=type)


@or_decorator
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

    Takes the parameters of `jax.tree_util.register_dataclass`, and calls it unless the type is
    already registered with JAX, such as structs of flax and eformer, and equinox modules. Works as
    a decorator, with or without arguments. Registering the same definition again is a no-op.

    Args:
      nodetype: The class. Subclasses must be registered separately.
      data_fields: The names of the fields that are children. By default, the fields that `__init__`
        takes and that are not marked with `metadata=dict(static=True)`.
      meta_fields: The names of the fields that are static data; required with `data_fields`.
      drop_fields: The names of the fields that are neither: they have their defaults in nodes that
        JAX rebuilds.
      serialized_name: The name in files; by default the module and qualified name of the class, or
        its shortest public path. With an explicit name, the class can be moved.
      aliases: Further names that older files may use.
      version: The version of the definition, from 0 to 2**32-1. Reordering fields, or adding fields
        with defaults, requires no new version.
      upgrade: Takes the static fields of a node by name, its children by name, and the older
        version in which it was saved; returns both in this version. `abstract` traces it, as
        `jax.eval_shape` does.

    Returns:
      The class.

    Raises:
      ValueError: If the name belongs to another type, the type is registered under another name,
        the fields differ from the registration with JAX, or a dropped field lacks a default.

    Examples:
      >>> import dataclasses, numpy as np, treepack
      >>> @treepack.register_dataclass(serialized_name="doc.Layer")
      ... @dataclasses.dataclass
      ... class Layer:
      ...     w: np.ndarray
      ...     act: str = dataclasses.field(default="relu", metadata=dict(static=True))
      >>> treepack.loads(treepack.dumps([Layer(np.ones(2), "tanh")]))
      [Layer(w=array([1., 1.]), act='tanh')]
    """
    check_is_type(nodetype)
    if _jax.is_namedtuple(nodetype):
        raise ValueError(
            f"{default_name(nodetype)} is a namedtuple: use treepack.register_namedtuple"
        )
    if isinstance(data_fields, str):
        raise TypeError(
            f"data_fields must be a list of names, got {data_fields!r:.100}: the name in files is "
            "serialized_name="
        )
    if (data_fields is None) != (meta_fields is None):
        raise TypeError("data_fields and meta_fields must be passed together, or neither of them")
    _check_dropped(nodetype, drop_fields)
    with registering:
        name = TYPES.chosen(nodetype, serialized_name)
        _check_claims(nodetype, name, aliases, version, upgrade)
        given = None
        if data_fields is not None and meta_fields is not None:
            given = Fields(list(data_fields), list(meta_fields))
        if _jax.is_node_type(nodetype):
            fields = _adopted(nodetype, given, drop_fields)
        else:
            if given is None and dataclasses.is_dataclass(nodetype):
                # `__init__` sets the fields that it does not take.
                given = Fields.marked(
                    field
                    for field in dataclasses.fields(nodetype)
                    if field.init and field.name not in drop_fields
                )
            if given is None:
                raise TypeError(
                    f"{default_name(nodetype)} is not a dataclass: put @register_dataclass above "
                    "@dataclass, or pass data_fields and meta_fields"
                )
            jax = _jax.needed("register_dataclass registers the type with JAX")
            register_with_jax = jax.tree_util.register_dataclass
            register_with_jax(
                nodetype, given.data, given.meta, drop_fields=[*map(_Whole, drop_fields)]
            )
            fields = given
        build = None if fields is None else functools.partial(fields.make, nodetype)
        added = jax_node_type(nodetype, name, fields, version=version, upgrade=upgrade)
        _jax_export.register(nodetype, name, encode_auxdata, added.decode, build)
        TYPES.add(nodetype, name, added, aliases)
        if dataclasses.is_dataclass(nodetype):
            _static.register_fields(nodetype, name, aliases)
    return nodetype


class _Whole(str):
    """The name of a field to drop. JAX before 0.10 iterates over it: this yields one name."""

    __slots__ = ()

    def __iter__(self) -> Iterator[str]:
        yield str(self)


def _check_claims(
    nodetype: type, name: str, aliases: Sequence[str], version: int, upgrade: Any
) -> None:
    if not isinstance(version, int) or isinstance(version, bool) or not 0 <= version < 2**32:
        raise ValueError(f"version must be an integer from 0 to 2**32-1, got {version!r}")
    if upgrade is not None and not callable(upgrade):
        raise TypeError(
            "upgrade must be a function of static data, children and a version, got "
            f"{upgrade!r:.100}"
        )
    if upgrade is not None and version == 0:
        raise ValueError(
            "upgrade= converts nodes of older versions, and version 0 has none: pass version=1"
        )
    _nodes.check_name(nodetype, name, aliases)
    _jax_export.check_name(nodetype, name)


@advised
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
    """Registers a pytree node type of JAX by name, for `dumps` and `jax.export`.

    Takes the parameters of `jax.export.register_pytree_node_serialization`, and calls it. Those
    about auxdata are optional: treepack can store most static data (see `register_auxdata`).

    Args:
      nodetype: The type. It must already be registered with `jax.tree_util`.
      serialized_name: The name in files; for built-in types such as OrderedDict, only the name in
        `jax.export`.
      serialize_auxdata: Takes the auxdata of a node, returns them as bytes.
      deserialize_auxdata: Takes these bytes, returns the auxdata.
      from_children: Takes auxdata and children, returns a node. Only `jax.export` calls it, with
        placeholders as children, to learn the structure.
      aliases: See `register_dataclass`.
      version: See `register_dataclass`.
      upgrade: See `register_dataclass`. Static data are a dict if JAX flattens the type by its
        fields, and the auxdata otherwise.

    Returns:
      The type.

    Raises:
      ValueError: If the type is not registered with JAX, or as for `register_dataclass`.

    Examples:
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
    check_is_type(nodetype)
    if (serialize_auxdata is None) != (deserialize_auxdata is None):
        raise TypeError(
            "serialize_auxdata and deserialize_auxdata must be passed together, or neither of them"
        )
    with registering:
        _check_claims(nodetype, serialized_name, aliases, version, upgrade)
        if _jax.is_plain_namedtuple(nodetype):
            raise ValueError(
                f"{default_name(nodetype)} is a namedtuple: use treepack.register_namedtuple"
            )
        if not _jax.is_node_type(nodetype):
            _jax.needed("register_node takes types that are registered with JAX")
            raise ValueError(
                f"{default_name(nodetype)} is not registered with JAX: call "
                "jax.tree_util.register_pytree_node first, or use treepack.register_dataclass"
            )
        fields = Fields.of(nodetype)
        encode: Callable[[Any], bytes] = serialize_auxdata or encode_auxdata
        decode: Callable[[bytes], Any] | None = deserialize_auxdata
        added = jax_node_type(
            nodetype,
            serialized_name,
            fields,
            None if decode is None else lambda aux: core.encode_value(encode(aux)),
            None if decode is None else functools.partial(_decode_bytes, decode),
            version=version,
            upgrade=upgrade,
        )
        if from_children is None and fields is not None:
            from_children = functools.partial(fields.make, nodetype)
        own = _nodes.own(nodetype)
        decode = decode or (added.decode if own is None else decode_given)
        _jax_export.register(nodetype, serialized_name, encode, decode, from_children)
        if own is None:  # built-in types need no registration
            TYPES.add(nodetype, serialized_name, added, aliases)
    return nodetype


@or_decorator
def register_namedtuple(
    nodetype: Any = None,
    *,
    serialized_name: str | None = None,
    aliases: Sequence[str] = (),
    version: int = 0,
    upgrade: Upgrade | None = None,
) -> Any:
    """Registers a namedtuple by name, for `dumps` and `jax.export`.

    Takes the options of `register_dataclass` about names and versions. JAX itself needs no
    registration of namedtuples. Works as a decorator, with or without arguments.

    Returns:
      The type.

    Raises:
      ValueError: If the type is not a namedtuple, or as for `register_dataclass`.

    Examples:
      >>> from typing import NamedTuple
      >>> import treepack
      >>> @treepack.register_namedtuple(serialized_name="doc.State")
      ... class State(NamedTuple):
      ...     step: int
      >>> treepack.loads(treepack.dumps(State(3)))
      State(step=3)
    """
    check_is_type(nodetype)
    if not _jax.is_namedtuple(nodetype):
        verb = "dataclass" if dataclasses.is_dataclass(nodetype) else "node"
        raise ValueError(
            f"{default_name(nodetype)} is not a namedtuple: use treepack.register_{verb}"
        )
    if not _jax.is_plain_namedtuple(nodetype):
        name = TYPES.chosen(nodetype, serialized_name)
        return register_node(
            nodetype, serialized_name=name, aliases=aliases, version=version, upgrade=upgrade
        )
    with registering:
        name = TYPES.chosen(nodetype, serialized_name)
        _check_claims(nodetype, name, aliases, version, upgrade)
        fields = Fields([*nodetype._fields], [])
        build = functools.partial(fields.make, nodetype)
        _jax_export.register(nodetype, name, encode_auxdata, decode_given, build)
        added = plain_type(nodetype, name, fields, version=version, upgrade=upgrade)
        TYPES.add(nodetype, name, added, aliases)
        _static.register_fields(nodetype, name, aliases)
    return nodetype


def _decode_bytes(decode: Callable[[bytes], Any], data: bytes) -> Any:
    return decode(exactly(bytes, core.decode_value(data)))


def _check_dropped(nodetype: type, dropped: Sequence[str]) -> None:
    if not dataclasses.is_dataclass(nodetype):
        return
    fields = {field.name: field for field in dataclasses.fields(nodetype)}
    for name in dropped:
        if name not in fields:
            raise ValueError(
                f"drop_fields has {name!r}, which is not a field of {default_name(nodetype)}: its "
                f"fields are {[*fields]}"
            )
        field = fields[name]
        no_default = (
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        )
        if field.init and no_default:
            raise ValueError(
                f"drop_fields has {name!r}, which has no default, so JAX could not rebuild a "
                f"{default_name(nodetype)}: give the field a default"
            )


def _adopted(nodetype: type, given: Fields | None, dropped: Sequence[str]) -> Fields | None:
    current = Fields.of(nodetype)
    entry = TYPES.entry_of(nodetype)
    if current is None and entry is not None and entry.checked:
        current = entry.fields
    if (given is not None and given != current) or (
        current is not None and {*dropped} & {*current.data, *current.meta}
    ):
        fields = "unknown fields" if current is None else fields_text(current)
        raise ValueError(
            f"{default_name(nodetype)} is already registered with JAX with {fields}: pass the "
            "same fields, or leave out data_fields, meta_fields and drop_fields"
        )
    return current
