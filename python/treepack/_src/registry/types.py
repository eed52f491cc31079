"""Types of nodes by name, and the versions of their fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from treepack._src.pytree.containers import default_of
from treepack._src.registry import holes as _holes
from treepack._src.registry.names import Names
from treepack.errors import UnregisteredTypeError

# The names of children and of static data.
FieldNames = tuple[list[str], list[str]]

# Static data and children by name, and their version, to both in today's.
Upgrade = Callable[[dict[str, Any], dict[str, Any], int], tuple[dict[str, Any], dict[str, Any]]]


class NodeType(NamedTuple):
    """One type of nodes, and what becomes of them.

    Attributes:
      ty: The type.
      name: What it is written as.
      fields: The names of its children and of its static data, if all nodes have the same:
        nodes that were saved with others cannot be made.
      version: Counts the definitions of the type, as the program does.
      upgrade: Takes static data and children by name, and the version they were saved in;
        returns both as they are in this version. `None` if there is nothing to do.
      checked: Whether nodes have exactly these children and static data; otherwise these are
        just the fields of a dataclass.
      reduce: Takes a node, returns its encoded static data and its children by name.
      decode: Takes encoded static data, returns the data.
      rebuild: Takes static data, names and children, returns a node.
      build: Does so with placeholders as children, which code of the type might not like.
      plain: Whether the static data are written as JAX has them.
      static: Takes a node, returns what fills holes in the static data of nodes like it; see
        `_holes.StaticOf`.
    """

    ty: type
    name: str
    fields: FieldNames | None
    version: int
    upgrade: Upgrade | None
    checked: bool
    reduce: Callable[[Any], tuple[bytes, dict[str, Any]]]
    decode: Callable[[bytes], Any]
    rebuild: Callable[[Any, list[str], list[Any]], Any]
    build: Callable[[Any, list[str], list[Any]], Any]
    plain: bool = False
    static: _holes.StaticOf = lambda _: {}


TYPES: Names[NodeType] = Names("node type")


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
    return TYPES.things()


def add(found: NodeType, aliases: Iterable[str] = ()) -> None:
    """Adds a type, or puts it in the place of its older self."""
    TYPES.add(found.ty, found.name, found, aliases)


def registered(ty: type) -> NodeType | None:
    """Returns a type that the program has registered."""
    return TYPES.entry_of(ty)


def name_of(ty: type) -> str | None:
    """Returns the name by which the program has registered a type."""
    return TYPES.name_of(ty)


def type_named(name: str) -> type | None:
    """Returns the type that the program has registered with a name or alias."""
    found = TYPES.by_name(name)
    return None if found is None else found.ty


# The name that a type is to have: the given one, its own, or a default. (No function of its own,
# since a warning tells who called the one that calls this.)
chosen_name = TYPES.chosen


def check_children(expected: list[str], names: list[str]) -> None:
    """Raises unless a node has the children that those of its type have."""
    if names != expected:
        raise ValueError(f"it has the children {expected}, not {names}")


def upgrades(name: str, version: int) -> bool:
    """Tells whether what was saved of a type in a version is upgraded when it is loaded."""
    found = TYPES.by_name(name)
    return found is not None and found.upgrade is not None and version < found.version


def evolved(found: NodeType, saved: FieldNames | None, version: int) -> NodeType:
    """Returns a type that makes its nodes of what nodes with other fields consisted of.

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
        rebuild=lambda *parts: found.rebuild(*convert(*parts)),
        build=lambda *parts: found.build(*convert(*parts)),
    )


# Takes static data, names and children as they were; returns them as they are today.
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
            # What the static data are is known to the program alone.
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
    """Raises if there is something that no field is for."""
    if not isinstance(data, dict):
        raise TypeError(f"upgrade= must return static data by name, not {data!r:.100}")
    for names, made in zip(fields, (values, data), strict=True):
        more = made.keys() - set(names)
        if more:
            raise ValueError(f"there are no fields for {sorted(map(str, more))}")


def _check_fields(found: NodeType, saved: FieldNames) -> None:
    """Raises unless nodes with the saved fields can become nodes with the fields of today."""
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
                raise _refusal(found, f"was saved with the field {name!r}, and has it no more")
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


def _refusal(found: NodeType, what: str) -> UnregisteredTypeError:
    return UnregisteredTypeError(
        f"the type {found.name!r} {what}; register it with version= and upgrade=, restore it into "
        'a template with loads(data, target), or pass unknown="dict"',
        found.name,
    )


def fields_text(fields: FieldNames | None) -> str:
    """Returns what fields a type has, in words."""
    if fields is None:
        return "no fixed fields"
    return f"the fields {fields[0]}" + (f" and the static fields {fields[1]}" if fields[1] else "")
