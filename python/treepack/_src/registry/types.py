from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import treepack._core as core
from treepack._src.advice import advised, check_parameters
from treepack._src.interop import jax as _jax
from treepack._src.leaves.absent import ABSENT
from treepack._src.printable import short_repr
from treepack._src.pytree.handlers import handlers_of
from treepack._src.pytree.kinds import flatten, kind_of
from treepack._src.registry import placeholders as _placeholders
from treepack._src.registry.fields import Fields, default_of
from treepack._src.registry.names import Names, reads_nothing
from treepack.errors import UnregisteredTypeError

# The static data, names and children of a node.
Parts = tuple[Any, list[str], list[Any]]

# Takes static data by name, children by name, and their version; returns both in the current
# version.
Upgrade = Callable[[dict[str, Any], dict[str, Any], int], tuple[dict[str, Any], dict[str, Any]]]


class NodeType(NamedTuple):
    """A registered node type.

    The core reads `ty`, `decode`, `unflatten`, `unflatten_abstract`, `fields`, `order` and
    `foreign` by name.

    Attributes:
      flatten: Takes a node, and what the save leaves out; returns its encoded static data, and its
        children by name.
      unflatten_abstract: `unflatten` for placeholders as children, which code of the type might
        reject.
      fields: The names of the children and of the static data, if all nodes have the same. Nodes
        saved with other fields must be converted; see `evolved`.
      checked: Whether nodes have exactly these children and static data; otherwise `fields` only
        lists the fields of a dataclass.
      split: If `fields` do not tell which are static: takes fields, and the parts of a node that
        was saved with them; returns these fields and the type's, split into children and static
        data, and the parts split accordingly. A static field named "" is a mark of the type's
        library.
      order: The indices into `fields` (children first) in the order of the type's arguments, if
        calling the type with them equals `unflatten` (it is faster).
      writes_auxdata: Whether JAX's auxdata are stored unchanged.
      static_of: Takes a node, returns the static data that replace placeholders in nodes like it.
      check: Takes static data of a file; raises if code that rebuilds nodes must not receive them.
      foreign: Whether unknown code of a library rebuilds nodes: it must not receive functions,
        neither in static data nor below its children.
    """

    ty: type
    name: str
    flatten: Callable[[Any, _placeholders.LeftOut], tuple[bytes, dict[str, Any]]]
    unflatten: Callable[[Any, list[str], list[Any]], Any]
    unflatten_abstract: Callable[[Any, list[str], list[Any]], Any]
    decode: Callable[[bytes], Any] = core.decode_value
    fields: Fields | None = None
    checked: bool = False
    split: Callable[[Fields, Parts], tuple[Fields, Fields, Parts]] | None = None
    version: int = 0
    upgrade: Upgrade | None = None
    order: list[int] | None = None
    writes_auxdata: bool = False
    static_of: _placeholders.StaticOf = lambda _: {}
    check: Callable[[Any], None] = lambda _: None
    foreign: bool = False

    @property
    def by_field(self) -> bool:
        return self.checked or self.split is not None


def _writing(entry: NodeType) -> NodeType:
    return entry._replace(ty=object, unflatten=reads_nothing, unflatten_abstract=reads_nothing)


TYPES: Names[NodeType] = Names("node type", _writing)


@advised
def registered_types() -> dict[str, type]:
    """Returns the node types that are registered with treepack, by name.

    Examples:
      >>> import treepack
      >>> from typing import NamedTuple
      >>> class Point(NamedTuple):
      ...     x: float
      >>> _ = treepack.register_namedtuple(Point, serialized_name="doc.Point")
      >>> treepack.registered_types()["doc.Point"] is Point
      True
    """
    return TYPES.things()


def check_children(expected: list[str], names: list[str]) -> None:
    if names != expected:
        raise ValueError(f"expected the children {expected}, found {names}")


def check_static(expected: list[str], static: Any) -> None:
    if type(static) is not tuple or len(static) != len(expected):
        raise ValueError(
            f"expected a tuple of the static data {expected}, found {short_repr(static)}"
        )


def evolved(entry: NodeType, saved: Fields | None, version: int) -> NodeType:
    if version != entry.version:
        if entry.upgrade is None or version > entry.version:
            raise _refusal(
                entry,
                f"was saved in version {version}, and is registered in version {entry.version}"
                + ("" if entry.upgrade else ", without upgrade="),
            )
    elif saved is not None and entry.fields is not None:
        _check_fields(entry, saved, entry.fields)
    elif saved != entry.fields:
        raise _refusal(
            entry, f"was saved with {fields_text(saved)}, and now has {fields_text(entry.fields)}"
        )
    convert = _converter(entry, saved, version, entry.upgrade)
    abstractly = None if entry.upgrade is None else _on_structs(entry.upgrade)
    convert_abstract = _converter(entry, saved, version, abstractly)

    def unflatten(static: Any, names: list[str], children: list[Any]) -> Any:
        node = entry.unflatten(*convert(static, names, children))
        if version == entry.version and not entry.by_field and handlers_of(entry.ty) is None:
            _check_rebuilt(node, entry, names, None if saved == entry.fields else children)
        return node

    return entry._replace(
        unflatten=unflatten,
        unflatten_abstract=lambda *parts: entry.unflatten_abstract(*convert_abstract(*parts)),
        order=None,
    )


def _check_rebuilt(
    node: Any, entry: NodeType, names: list[str], children: list[Any] | None
) -> None:
    """Raises unless code of the type, which gets the children in order, kept their names.

    `children` is `None` if the type is unchanged: its code may convert them, so only names are
    compared.
    """
    rebuilt, *_ = flatten(node)
    if children is None:
        same = list(rebuilt) == names
    else:
        same = all(rebuilt.get(name) is child for name, child in zip(names, children, strict=True))
    if not same:
        reason = f"was saved with the children {names}, and now has the children {list(rebuilt)}"
        raise _refusal(entry, reason)


def _converter(
    entry: NodeType, saved: Fields | None, version: int, upgrade: Upgrade | None
) -> Callable[[Any, list[str], list[Any]], Parts]:
    upgrade = upgrade if version != entry.version else None

    def upgraded(static: Any, children: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if upgrade is None:
            return static, children
        try:
            pair = upgrade(static, children, version)
        except TypeError:
            check_parameters(upgrade, "upgrade=", "static data, children and a version", 3)
            raise
        try:
            static, children = pair
            return static, dict(children)
        except (TypeError, ValueError):
            reason = f"upgrade= must return a pair of static data and children, got {pair!r:.100}"
            raise TypeError(reason) from None

    def convert(static: Any, names: list[str], children: list[Any]) -> Parts:
        if saved is None or entry.fields is None or not entry.by_field:
            # The static data have a form that only the type knows.
            static, values = upgraded(static, dict(zip(names, children, strict=True)))
            return static, list(values), list(values.values())
        was, now = saved, entry.fields
        if entry.split is not None:
            was, now, (static, names, children) = entry.split(was, (static, names, children))
        check_static(was.meta, static)
        if version == entry.version:
            if was == now:
                return static, names, children
            _check_fields(entry, was, now)
        data = dict(zip(was.meta, static, strict=True))
        head = {name: data.pop(name) for name in was.meta if name == ""}
        data, values = upgraded(data, dict(zip(names, children, strict=True)))
        _check_upgraded(now, data, values)
        if ABSENT.is_default:
            values = dict.fromkeys(now.data, ABSENT) | values
        values = {name: _value(entry, name, values) for name in now.data}
        data = {name: _value(entry, name, data | head) for name in now.meta}
        return tuple(data.values()), list(values), list(values.values())

    return convert


def _on_structs(upgrade: Upgrade) -> Upgrade:
    """Nodes have `ShapeDtypeStruct`s for arrays, which JAX traces."""

    def upgraded(static: dict[str, Any], children: dict[str, Any], version: int) -> Any:
        import jax

        structs: list[Any] = []
        _mapped(lambda leaf: structs.append(leaf) if _jax.is_traceable(leaf) else None, children)
        result: Any = None
        same: dict[int, Any] = {}

        def traced(arrays: list[Any]) -> list[Any]:
            nonlocal result
            left = iter(arrays)
            same.update(zip(map(id, arrays), structs, strict=True))
            given = _mapped(lambda leaf: next(left) if _jax.is_traceable(leaf) else leaf, children)
            result = upgrade(static, given, version)
            results: list[Any] = []
            with contextlib.suppress(TypeError, ValueError):  # the caller raises for such a result
                _, after = result
                _mapped(lambda leaf: results.append(leaf) if _jax.is_array(leaf) else None, after)
            return results

        # As JAX makes them, from 0.12 on with a warning.
        dtypes = [
            jax.dtypes.canonicalize_dtype(struct.dtype, allow_extended_dtype=True)
            for struct in structs
        ]
        given = [struct.update(dtype=dtype) for struct, dtype in zip(structs, dtypes, strict=True)]
        try:
            shapes = iter(jax.eval_shape(traced, given))
        except jax.errors.JAXTypeError as error:
            reason = "upgrade= uses the values of arrays, which are not read here: load the tree"
            raise TypeError(reason) from error

        def struct(leaf: Any) -> Any:
            if _jax.is_array(leaf):
                shape = next(shapes)
                return same.get(id(leaf), shape)
            struct_type: Any = jax.ShapeDtypeStruct
            is_array = isinstance(leaf, np.ndarray)
            return struct_type(leaf.shape, leaf.dtype) if is_array else leaf

        try:
            after, values = result
        except (TypeError, ValueError):
            return result
        return after, _mapped(struct, values)

    return upgraded


def _mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    kind = kind_of(tree)
    if kind is None or kind.final:
        return function(tree)
    children, make = kind.opened(tree)
    return make({name: _mapped(function, child) for name, child in children.items()})


def _check_upgraded(fields: Fields, data: Any, values: dict[str, Any]) -> None:
    if not isinstance(data, dict):
        raise TypeError(f"upgrade= must return static data as a dict by name, got {data!r:.100}")
    for names, parts in zip(fields, (values, data), strict=True):
        more = parts.keys() - set(names)
        if more:
            raise ValueError(
                f"upgrade= returned values for unknown fields {sorted(map(str, more))}: the "
                f"fields are {names}"
            )


def _check_fields(entry: NodeType, saved: Fields, now: Fields) -> None:
    before, after = (
        dict.fromkeys(fields.data, "child") | dict.fromkeys(fields.meta, "static")
        for fields in (saved, now)
    )
    for name, kind in before.items():
        if name not in after:
            raise _refusal(entry, f"was saved with the field {name!r}, which it no longer has")
        if after[name] != kind:
            raise _refusal(
                entry,
                f"was saved with {name!r} as a {kind} field, and now has it as a {after[name]} "
                "field",
            )
    for name in after:
        if name not in before and not default_of(entry.ty, name):
            raise _refusal(entry, f"was saved without the field {name!r}, which has no default")


def _value(entry: NodeType, name: str, values: dict[str, Any]) -> Any:
    if name in values:
        return values[name]
    default = default_of(entry.ty, name)
    if not default:
        raise ValueError(f"missing the field {name!r}, which has no default")
    return default[0]()


def _refusal(entry: NodeType, reason: str) -> UnregisteredTypeError:
    return UnregisteredTypeError(
        f"the type {entry.name!r} {reason}: register it with version= and upgrade=, load into a "
        'template with load(..., target, missing="target", unexpected="ignore"), or pass '
        'unknown="dict"',
        entry.name,
    )


def fields_text(fields: Fields | None) -> str:
    if fields is None:
        return "no fixed fields"
    static = f" and the static fields {fields.meta}" if fields.meta else ""
    return f"the fields {fields.data}{static}"
