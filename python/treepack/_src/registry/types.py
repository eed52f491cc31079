"""Types of nodes by name, and the versions of their fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import treepack._core as core
from treepack._src.pytree.containers import default_of
from treepack._src.registry import holes as _holes
from treepack._src.registry.names import Names
from treepack.errors import UnregisteredTypeError

# The names of children and of static data.
FieldNames = tuple[list[str], list[str]]

# Takes static data and children by name, and their version; returns both in the current version.
Upgrade = Callable[[dict[str, Any], dict[str, Any], int], tuple[dict[str, Any], dict[str, Any]]]


class NodeType(NamedTuple):
    """One type of nodes.

    The core asks for `ty`, `decode`, `unflatten`, `unflatten_abstract`, `fields`, `order` and
    `foreign` by name.

    Attributes:
      ty: The type.
      name: Its name in files.
      flatten: Takes a node, returns its encoded static data and its children by name.
      unflatten: Takes static data, names and children, returns a node.
      unflatten_abstract: Does so with placeholders as children, which code of the type might not
        accept.
      decode: Takes encoded static data, returns the data.
      fields: The names of the children and of the static data, if all nodes have the same:
        nodes saved with other fields cannot be made.
      checked: Whether nodes have exactly these children and static data; otherwise `fields` are
        just those of a dataclass.
      version: The version of the type's definition, as the program counts it.
      upgrade: Takes static data and children by name, and the version they were saved in;
        returns both in this version. `None` if there is nothing to do.
      order: The numbers of `fields`, children first, in the order in which the type takes them
        as arguments: calling it so is the same as `unflatten`, and faster. `None` if it is not.
      writes_auxdata: Whether JAX's auxdata are written unchanged.
      static_of: Takes a node, returns the static data that fill holes in nodes like it.
      check: Takes static data of a file; raises if code that makes nodes must not receive them.
      foreign: Whether unknown code of a library makes nodes: it receives no functions, neither
        in static data nor below its children.
    """

    ty: type
    name: str
    flatten: Callable[[Any], tuple[bytes, dict[str, Any]]]
    unflatten: Callable[[Any, list[str], list[Any]], Any]
    unflatten_abstract: Callable[[Any, list[str], list[Any]], Any]
    decode: Callable[[bytes], Any] = core.decode_value
    fields: FieldNames | None = None
    checked: bool = False
    version: int = 0
    upgrade: Upgrade | None = None
    order: list[int] | None = None
    writes_auxdata: bool = False
    static_of: _holes.StaticOf = lambda _: {}
    check: Callable[[Any], None] = lambda _: None
    foreign: bool = False


def _writing(found: NodeType) -> NodeType:
    return found._replace(ty=object, unflatten=_reads_nothing, unflatten_abstract=_reads_nothing)


def _reads_nothing(*_: Any) -> Any:
    raise TypeError("an older definition of a type makes no nodes")


TYPES: Names[NodeType] = Names("node type", _writing)


def registered_types() -> dict[str, type]:
    """Returns the types of nodes that are registered with treepack, by name.

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


def add(found: NodeType, aliases: Iterable[str] = ()) -> None:
    """Adds a type, or replaces its older definition."""
    TYPES.add(found.ty, found.name, found, aliases)


def registered(ty: type) -> NodeType | None:
    """Returns the entry of a type that the program has registered."""
    return TYPES.entry_of(ty)


def name_of(ty: type) -> str | None:
    """Returns the name by which the program has registered a type."""
    return TYPES.name_of(ty)


# Chooses the name of a type: the given one, its own, or a default. (Not a function of its own,
# since a warning points at the caller of its caller.)
chosen_name = TYPES.chosen


def check_children(expected: list[str], names: list[str]) -> None:
    """Raises unless a node has the children of its type."""
    if names != expected:
        raise ValueError(f"it has the children {expected}, not {names}")


def upgrades(name: str, version: int) -> bool:
    """Returns whether nodes saved in a version of their type are upgraded when they are loaded."""
    found = TYPES.by_name(name)
    return found is not None and found.upgrade is not None and version < found.version


def evolved(found: NodeType, saved: FieldNames | None, version: int) -> NodeType:
    """Returns a type that makes its nodes from those saved with other fields.

    Raises:
      UnregisteredTypeError: If it cannot.
    """
    if version != found.version:
        if found.upgrade is None or version > found.version:
            raise _refusal(
                found,
                f"was saved in version {version}, and is registered in version {found.version} "
                "now" + ("" if found.upgrade else ", without upgrade="),
            )
    elif saved is None or found.fields is None:
        raise _refusal(
            found, f"was saved with {fields_text(saved)}, and has {fields_text(found.fields)} now"
        )
    else:
        _check_fields(found, saved)
    convert = _converter(found, saved, version)
    return found._replace(
        unflatten=lambda *parts: found.unflatten(*convert(*parts)),
        unflatten_abstract=lambda *parts: found.unflatten_abstract(*convert(*parts)),
        order=None,
    )


# Takes static data, names and children as saved; returns them in the current version.
Converter = Callable[[Any, list[str], list[Any]], tuple[Any, list[str], list[Any]]]


def _converter(found: NodeType, saved: FieldNames | None, version: int) -> Converter:
    upgrade = found.upgrade if version != found.version else None

    def upgraded(static: Any, children: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if upgrade is None:
            return static, children
        made = upgrade(static, children, version)
        try:
            static, children = made
            return static, dict(children)
        except (TypeError, ValueError):
            reason = f"upgrade= must return static data and children, not {made!r:.100}"
            raise TypeError(reason) from None

    def convert(static: Any, names: list[str], children: list[Any]) -> tuple[Any, ...]:
        values = dict(zip(names, children, strict=True))
        if saved is None or found.fields is None:
            # Only the program knows the form of these static data.
            static, values = upgraded(static, values)
            return static, list(values), list(values.values())
        if type(static) is not tuple or len(static) != len(saved[1]):
            raise ValueError(f"its static data should be {saved[1]}, not {static!r:.100}")
        data, values = upgraded(dict(zip(saved[1], static, strict=True)), values)
        _check_upgraded(found.fields, data, values)
        values = {name: _value(found, name, values) for name in found.fields[0]}
        data = {name: _value(found, name, data) for name in found.fields[1]}
        return tuple(data.values()), list(values), list(values.values())

    return convert


def _check_upgraded(fields: FieldNames, data: Any, values: dict[str, Any]) -> None:
    """Raises for values that belong to no field."""
    if not isinstance(data, dict):
        raise TypeError(f"upgrade= must return static data by name, not {data!r:.100}")
    for names, made in zip(fields, (values, data), strict=True):
        more = made.keys() - set(names)
        if more:
            raise ValueError(f"there are no fields for {sorted(map(str, more))}")


def _check_fields(found: NodeType, saved: FieldNames) -> None:
    """Raises unless nodes with the saved fields can become nodes with the current ones."""
    now: Any = found.fields
    for index, other in ((0, 1), (1, 0)):
        for name in saved[index]:
            if name in now[other]:
                kinds = "child", "static"
                raise _refusal(
                    found,
                    f"was saved with {name!r} as a {kinds[index]} field, and has it as a "
                    f"{kinds[other]} field now",
                )
            if name not in now[index]:
                raise _refusal(found, f"was saved with the field {name!r}, and no longer has it")
        for name in now[index]:
            if (
                name not in saved[index]
                and name not in saved[other]
                and not default_of(found.ty, name)
            ):
                raise _refusal(
                    found,
                    f"was saved without the field {name!r}, which has no default",
                )


def _value(found: NodeType, name: str, values: dict[str, Any]) -> Any:
    if name in values:
        return values[name]
    default = default_of(found.ty, name)
    if not default:
        raise ValueError(f"there is no field {name!r}, which has no default")
    return default[0]()


def _refusal(found: NodeType, reason: str) -> UnregisteredTypeError:
    return UnregisteredTypeError(
        f"the type {found.name!r} {reason}; register it with version= and upgrade=, restore it "
        'into a template with loads(data, target), or pass unknown="dict"',
        found.name,
    )


def fields_text(fields: FieldNames | None) -> str:
    """Describes the fields of a type."""
    if fields is None:
        return "no fixed fields"
    return f"the fields {fields[0]}" + (f" and the static fields {fields[1]}" if fields[1] else "")
