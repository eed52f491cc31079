from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import treepack._core as core
from treepack._src.interop import equinox
from treepack._src.interop import jax as _jax
from treepack._src.interop.libraries import library_of_type
from treepack._src.pytree.kinds import flatten
from treepack._src.registry import placeholders as _placeholders
from treepack._src.registry.fields import Fields, dataclass_fields, fields_of
from treepack._src.registry.inert import is_given, is_inert, storing
from treepack._src.registry.names import default_name
from treepack._src.registry.placeholders import KEEPS_ALL, LeftOut
from treepack._src.registry.types import (
    NodeType,
    Parts,
    Upgrade,
    check_children,
    check_static,
)
from treepack.errors import TreepackError, UnregisteredTypeError


def jax_node_type(
    nodetype: type,
    name: str,
    fields: Fields | None,
    encode: Callable[[Any], bytes] | None = None,
    decode: Callable[[bytes], Any] | None = None,
    *,
    version: int = 0,
    upgrade: Upgrade | None = None,
) -> NodeType:
    meta = None if fields is None else fields.meta
    stores = storing(nodetype, fields)
    library = library_of_type(nodetype)
    foreign = stores is None and library is not None

    def flatten_node(node: Any, left_out: LeftOut) -> tuple[bytes, dict[str, Any]]:
        children, state, functions, treedef = flatten(node)
        auxdata = treedef.node_data()[1]
        data = encode(auxdata) if encode else encode_auxdata(auxdata, left_out, nodetype, meta)
        if fields is not None and list(children) != fields.data:
            return core.encode_value((_VARIABLE, data, list(children))), children
        if functions:
            functions = _placeholders.storable(functions, left_out, f"{default_name(nodetype)}: ")
            data = core.encode_value((_FUNCTIONS, data, list(children), functions))
        return data, state

    def static_of(node: Any) -> dict[str, Any]:
        *_, functions, treedef = flatten(node)
        auxdata = treedef.node_data()[1]
        return {**functions, **_placeholders.by_field(auxdata, meta, nodetype), "": auxdata}

    def check(static: Any) -> None:
        if type(static) is _Marked:
            if foreign and static.functions is not None:
                check(static.functions)
            static = static.static
        if stores is not None and upgrade is None and stores(static):
            return
        if not (is_given(static) if library is None else is_inert(static)):
            raise UnregisteredTypeError(
                f"nodes of the type {name!r} are rebuilt by code of {library or 'the program'}, "
                "which must not receive functions from files or static=, objects that could hold "
                "them, nor long ranges: "
                'pass a template as target, or unknown="dict" to get dicts in their place',
                name,
            )

    def decode_checked(data: bytes) -> Any:
        marked = _marked(data)
        data = data if marked is None else marked.static
        static = core.decode_value(data) if decode is None else decode(data)
        static = static if marked is None else marked._replace(static=static)
        if decode is None:
            check(static)
        return static

    def made_by(make: Callable[[Any, list[Any]], Any]) -> Callable[..., Any]:
        def unflatten(static: Any, names: list[str], children: list[Any]) -> Any:
            if type(static) is _Marked:
                is_variable = static.functions is None
                static, names, children = static.merge(names, children)
                if is_variable:
                    return _jax.registration(nodetype).unflatten(static, children)
            if fields is not None:  # JAX does not check them
                check_children(fields.data, names)
                check_static(fields.meta, static)
            return make(static, children)

        return unflatten

    registered = _jax.Registration.of(nodetype)
    make: Callable[[Any, list[Any]], Any] = functools.partial(_jax.unflatten, nodetype)
    order = None
    if registered is not None:
        make = registered.make
        if fields is not None and not foreign:
            order = registered.argument_order([*fields.data, *fields.meta])
    unflatten = unflatten_abstract = made_by(make)
    field_names = fields
    if fields is not None:
        unflatten_abstract = made_by(functools.partial(fields.make, nodetype))
    elif dataclasses.is_dataclass(nodetype):
        field_names = Fields([field.name for field in dataclass_fields(nodetype)], [])
    return NodeType(
        nodetype,
        name,
        flatten_node,
        unflatten,
        unflatten_abstract,
        decode=decode_checked,
        fields=field_names,
        checked=fields is not None,
        split=_module_split(nodetype),
        version=version,
        upgrade=upgrade,
        order=order,
        writes_auxdata=encode is None,
        static_of=static_of,
        check=check,
        foreign=foreign,
    )


def plain_type(
    nodetype: type, name: str, fields: Fields, *, version: int = 0, upgrade: Upgrade | None = None
) -> NodeType:
    data, meta = fields

    def flatten_node(node: Any, left_out: LeftOut) -> tuple[bytes, dict[str, Any]]:
        if isinstance(node, tuple):  # whose attributes may be others
            return core.encode_value(()), dict(zip(data, tuple.__iter__(node), strict=True))
        values = fields_of(node)
        auxdata = tuple(values.pop(name) for name in meta)
        return encode_auxdata(auxdata, left_out, nodetype, meta), values

    def unflatten(static: Any, names: list[str], children: list[Any]) -> Any:
        check_children(data, names)
        return fields.make(nodetype, static, children)

    return NodeType(
        nodetype,
        name,
        flatten_node,
        unflatten,
        unflatten_abstract=unflatten,
        fields=fields,
        checked=True,
        version=version,
        upgrade=upgrade,
        writes_auxdata=True,
        static_of=lambda node: {field: getattr(node, field) for field in meta},
    )


def _module_split(nodetype: type) -> Callable[[Fields, Parts], tuple[Fields, Fields, Parts]] | None:
    meta = equinox.static_names(nodetype)
    if meta is None:
        return None
    data = [field.name for field in dataclass_fields(nodetype) if field.name not in meta]

    def split(saved: Fields, parts: Parts) -> tuple[Fields, Fields, Parts]:
        static, names, children = parts
        if isinstance(static, _Marked):
            static, names, children = static.merge(names, children)
        was = Fields(names, ["", *(name for name in saved[0] if name not in names)])
        return was, Fields(data, meta), (static, names, children)

    return split


# Marks static data of a node whose type has children only on conditions.
_VARIABLE = "treepack.variable"

# Marks static data of a node with functions among its children, which are not state.
_FUNCTIONS = "treepack.functions"


class _Marked(NamedTuple):
    """`functions` among the children are `None` if these are conditional."""

    static: Any
    names: list[str]
    functions: dict[str, Any] | None = None

    def merge(self, names: list[str], children: list[Any]) -> tuple[Any, list[str], list[Any]]:
        all_children = dict(zip(names, children, strict=True)) | (self.functions or {})
        if all_children.keys() != set(self.names):
            raise ValueError(f"expected the children {self.names}, found {list(all_children)}")
        return self.static, self.names, [all_children[name] for name in self.names]


def _marked(data: bytes) -> _Marked | None:
    if not any(mark.encode() in data for mark in (_VARIABLE, _FUNCTIONS)):  # nearly always
        return None
    match core.decode_value(data):
        case (mark, bytes(), list()) as parts if mark == _VARIABLE:
            return _Marked(*parts[1:])
        case (mark, bytes(), list(), dict()) as parts if mark == _FUNCTIONS:
            return _Marked(*parts[1:])
    return None


# Part of all encoded placeholders.
_PLACEHOLDER = b"treepack.hole"


def holds_code(data: bytes) -> bool:
    """Placeholders count as code, since objects of the program replace them."""
    if _PLACEHOLDER in data:
        return True
    try:
        marked = _marked(data)
        static = core.decode_value(data if marked is None else marked.static)
    except TreepackError:
        return True
    return (marked is not None and marked.functions is not None) or not is_inert(static)


def encode_auxdata(
    auxdata: Any,
    left_out: LeftOut = KEEPS_ALL,
    nodetype: type | None = None,
    meta: Any = None,
) -> bytes:
    try:
        return core.encode_value(auxdata)
    except (TypeError, ValueError) as error:
        where = "" if nodetype is None else f"{default_name(nodetype)}: "
        auxdata = _placeholders.auxdata_with_placeholders(auxdata, left_out, meta, nodetype, where)
        try:
            return core.encode_value(auxdata)
        except (TypeError, ValueError):
            for field, value in _placeholders.by_field(auxdata, meta, nodetype).items():
                _placeholders.check_field(field, value, where)
            raise TypeError(f"{where}{error}{_placeholders.OR_SKIP}") from None
