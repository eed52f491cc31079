"""Types of nodes by name, and the versions of their fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import treepack._core as core
from treepack._src.pytree import handlers
from treepack._src.pytree.containers import default_of
from treepack._src.pytree.kinds import flatten
from treepack._src.registry import holes as _holes
from treepack._src.registry.names import Names, reads_nothing
from treepack.errors import UnregisteredTypeError

# The names of children and of static data.
FieldNames = tuple[list[str], list[str]]

# The static data, names and children of a node.
Parts = tuple[Any, list[str], list[Any]]

# Takes static data and children by name, and their version; returns both in the current version.
Upgrade = Callable[[dict[str, Any], dict[str, Any], int], tuple[dict[str, Any], dict[str, Any]]]


class Split(NamedTuple):
    """Fields split into children and static data, and the parts of a node by them.

    A static field named "" is a mark of the type's library, of which programs know nothing.

    Attributes:
      saved: The fields as saved.
      now: The fields of the type.
      parts: The parts of the node.
    """

    saved: FieldNames
    now: FieldNames
    parts: Parts


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
      split: For a type whose `fields` do not say which of them are static: takes fields, and the
        parts of a node that was saved with them; see `Split`.
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
    split: Callable[[FieldNames, Parts], Split] | None = None
    version: int = 0
    upgrade: Upgrade | None = None
    order: list[int] | None = None
    writes_auxdata: bool = False
    static_of: _holes.StaticOf = lambda _: {}
    check: Callable[[Any], None] = lambda _: None
    foreign: bool = False

    @property
    def by_field(self) -> bool:
        """Whether static data are values of fields, rather than of a form of the type's own."""
        return self.checked or self.split is not None


def _writing(found: NodeType) -> NodeType:
    return found._replace(ty=object, unflatten=reads_nothing, unflatten_abstract=reads_nothing)


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
    elif saved is not None and found.fields is not None:
        _check_fields(found, saved, found.fields)
    elif saved != found.fields:
        raise _refusal(
            found, f"was saved with {fields_text(saved)}, and has {fields_text(found.fields)} now"
        )
    convert = _converter(found, saved, version)

    def unflatten(static: Any, names: list[str], children: list[Any]) -> Any:
        node = found.unflatten(*convert(static, names, children))
        if version == found.version and not found.by_field and handlers.find(found.ty) is None:
            _check_made(node, found, names, None if saved == found.fields else children)
        return node

    return found._replace(
        unflatten=unflatten,
        unflatten_abstract=lambda *parts: found.unflatten_abstract(*convert(*parts)),
        order=None,
    )


def _check_made(node: Any, found: NodeType, names: list[str], children: list[Any] | None) -> None:
    """Raises unless code of the type has made a node with these children, by their order alone.

    It may have converted children of nodes whose type has not changed: only names are given then.
    """
    made, _ = flatten(node)
    if children is None:
        same = list(made) == names
    else:
        same = all(made.get(name) is child for name, child in zip(names, children, strict=True))
    if not same:
        reason = f"was saved with the children {names}, and takes {list(made)} in their places now"
        raise _refusal(found, reason)


# Takes static data, names and children as saved; returns them in the current version.
Converter = Callable[[Any, list[str], list[Any]], Parts]


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

    def convert(static: Any, names: list[str], children: list[Any]) -> Parts:
        if saved is None or found.fields is None or not found.by_field:
            # Only the type knows the form of these static data.
            static, values = upgraded(static, dict(zip(names, children, strict=True)))
            return static, list(values), list(values.values())
        was, now = saved, found.fields
        if found.split is not None:
            was, now, (static, names, children) = found.split(was, (static, names, children))
        if type(static) is not tuple or len(static) != len(was[1]):
            raise ValueError(
                f"its static data should be {was[1]}, not this {type(static).__name__}"
            )
        if version == found.version:
            if was == now:
                return static, names, children
            _check_fields(found, was, now)
        data = dict(zip(was[1], static, strict=True))
        head = {name: data.pop(name) for name in was[1] if name == ""}
        data, values = upgraded(data, dict(zip(names, children, strict=True)))
        _check_upgraded(now, data, values)
        values = {name: _value(found, name, values) for name in now[0]}
        data = {name: _value(found, name, data | head) for name in now[1]}
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


def _check_fields(found: NodeType, saved: FieldNames, now: FieldNames) -> None:
    """Raises unless nodes with the saved fields can become nodes with the current ones."""
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
        'into a template with load(..., target, missing="target", unexpected="ignore"), or pass '
        'unknown="dict"',
        found.name,
    )


def fields_text(fields: FieldNames | None) -> str:
    """Describes the fields of a type."""
    if fields is None:
        return "no fixed fields"
    return f"the fields {fields[0]}" + (f" and the static fields {fields[1]}" if fields[1] else "")
