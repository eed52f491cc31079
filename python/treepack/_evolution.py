"""Nodes that were saved with another definition of their type.

| what changed | what becomes of it |
|---|---|
| the order of fields | nothing |
| a field is new | it gets its default; without one, an error |
| a field is gone, or became static data or a child | an error that tells it |
| the version that the type is registered with | `upgrade` of the registration is asked |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from treepack._auxdata import default_of
from treepack.errors import UnregisteredTypeError

if TYPE_CHECKING:
    from treepack._node_types import FieldNames, NodeType


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
