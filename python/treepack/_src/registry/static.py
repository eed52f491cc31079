"""Typed values: static data of nodes (JAX's auxdata), dict keys, metadata.

The core writes plain Python types (`None`, bool, int, float, complex, str, bytes, tuple, list,
dict, frozenset). Any other value is *named*: written as a name from `codecs`, `register_auxdata` or
`register_function`, and the parts from which it is rebuilt. An unknown name is an error.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import treepack._core as core
from treepack._src.interop import jax as _jax
from treepack._src.interop.modules import imported
from treepack._src.printable import short_repr
from treepack._src.registry import codecs as _codecs
from treepack._src.registry.array_codecs import refusal
from treepack._src.registry.definitions import (
    AUXDATA,
    FUNCTIONS,
    MADE_BY_NEW,
    Auxdata,
    is_definition,
    made_of,
    member,
    member_name,
    more_attributes,
    parts_of,
)
from treepack._src.registry.fields import fields_of, from_fields
from treepack._src.registry.inert import is_given, is_key  # noqa: F401  # the core calls it
from treepack._src.registry.library_types import find, library_name, library_of, remedy
from treepack._src.registry.names import (
    OlderDefinitionError,
    check_is_type,
    default_name,
    function_name,
    not_registered,
    or_decorator,
    registering,
)
from treepack._src.registry.types import TYPES
from treepack.errors import DecodeError, TreepackError


@or_decorator
def register_auxdata(
    ty: Any = None,
    serialized_name: str | None = None,
    encode: Callable[[Any], Any] | None = None,
    decode: Callable[[Any], Any] | None = None,
    *,
    aliases: Sequence[str] = (),
) -> Any:
    """Registers a type of static data, so that nodes with such data can be saved by name.

    Enums, dataclasses and subclasses of tuple need no `encode` and `decode`: members are stored by
    name, fields and elements by value. Types of `register_dataclass` and `register_namedtuple` need
    no further registration. Works as a decorator, with or without arguments.

    Args:
      ty: The type. Subclasses must be registered separately.
      serialized_name: The name in files; by default the module and qualified name of the type, or
        its shortest public path.
      encode: Takes a value, returns its parts: a value of plain Python types or registered types.
      decode: Takes the result of `encode`, returns the value. Its input comes from files, which may
        be hostile: validate it.
      aliases: Further names that older files may use.

    Returns:
      The type.

    Raises:
      ValueError: If the name belongs to another type, or the type is registered under another name.
      TypeError: If `encode` and `decode` are missing for a type that needs them.

    Examples:
      >>> import enum, treepack
      >>> @treepack.register_auxdata(serialized_name="doc.Mode")
      ... class Mode(enum.Enum):
      ...     TRAIN = 1
      >>> treepack.loads(treepack.dumps({Mode.TRAIN: 0}))
      {<Mode.TRAIN: 1>: 0}
    """
    check_is_type(ty)
    if (encode is None) != (decode is None):
        raise TypeError("encode and decode must be passed together, or neither of them")
    if encode is not None and not (callable(encode) and callable(decode)):
        raise TypeError(f"encode and decode must be functions, got {encode!r:.50}, {decode!r:.50}")
    by_code = True
    if encode is None or decode is None:
        encode, decode = _by_definition(ty)
        by_code = False
    name = AUXDATA.chosen(ty, serialized_name)
    if is_own_name(name):
        raise ValueError(
            f"the auxdata name {name!r} is reserved for treepack: pass another serialized_name"
        )
    with registering:
        AUXDATA.check(ty, name, aliases)
        for alias in aliases:
            TYPES.check_alias(ty, alias)
        AUXDATA.add(ty, name, Auxdata(encode, decode, by_code=by_code), aliases)
    return ty


def _by_definition(ty: type) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    if issubclass(ty, enum.Enum):
        return member_name, functools.partial(member, ty)
    is_plain = dataclasses.is_dataclass(ty) and not issubclass(ty, MADE_BY_NEW)
    if is_plain or _jax.is_namedtuple(ty):
        return fields_of, functools.partial(from_fields, ty)
    if issubclass(ty, tuple) and ty is not tuple:
        return tuple, functools.partial(made_of, ty)
    base = next((base.__name__ for base in MADE_BY_NEW if issubclass(ty, base)), "")
    if base and dataclasses.is_dataclass(ty):
        raise TypeError(
            f"{default_name(ty)} is a {base} besides its fields: pass encode= and decode="
        )
    raise TypeError(
        f"{default_name(ty)} is not an enum, a dataclass or a subclass of tuple: pass encode= and "
        "decode="
    )


def register_fields(ty: Any, name: str, aliases: Sequence[str]) -> None:
    entry = AUXDATA.entry_of(ty)
    if entry is not None and entry.by_program:
        return
    try:
        AUXDATA.check(ty, name, aliases)
    except ValueError:  # another type of static data has this name
        return
    by_name = Auxdata(fields_of, functools.partial(from_fields, ty), by_program=False)
    AUXDATA.add(ty, name, by_name, aliases)


@or_decorator
def register_function(
    function: Any = None, *, serialized_name: str | None = None, aliases: Sequence[str] = ()
) -> Any:
    """Registers a function by name, so that static data and `Partial`s with it can be saved.

    Functions of `jax.nn` need no registration. Works as a decorator, with or without arguments.

    Args:
      function: Any callable that is defined once, such as a module-level function.
      serialized_name: The name in files; by default the module and qualified name of the function.
      aliases: Further names that older files may use.

    Returns:
      The function.

    Raises:
      ValueError: If the name belongs to another function, or the function has another name.
      TypeError: If `serialized_name` is missing for a function without a name, such as a lambda.

    Examples:
      >>> import jax, treepack
      >>> @treepack.register_function(serialized_name="doc.scale")
      ... def scale(factor, x):
      ...     return factor * x
      >>> saved = treepack.dumps(jax.tree_util.Partial(scale, 2.0))
      >>> treepack.loads(saved)(3.0)
      6.0
    """
    if serialized_name is None and function_name(function) is None:
        if isinstance(function, str):
            raise TypeError(f"expected a function, got {function!r}: pass it as serialized_name=")
        raise TypeError(f"{function!r} has no name of its own: pass serialized_name=")
    name = FUNCTIONS.chosen(function, serialized_name)
    with registering:
        FUNCTIONS.check(function, name, aliases)
        FUNCTIONS.add(function, name, function, aliases)
    return function


def is_own_name(name: str) -> bool:
    return name in _codecs.NAMES or name == "function"


# Hooks


def reduce_value(value: Any) -> tuple[str, Any]:
    if _jax.is_tracer(value):
        raise TypeError(refusal(value))
    named = AUXDATA.named(type(value)) or AUXDATA.older(type(value))
    if named is not None:
        if not named[1].by_code:
            _check_attributes(value)
        return named[0], named[1].encode(value)
    name = FUNCTIONS.name_of(value)
    if name is not None:
        return "function", name
    parts = _codecs.encode(value) or _of_library(value)
    if parts is not None:
        return parts
    older = FUNCTIONS.older(value)
    if older is not None:
        raise OlderDefinitionError(
            f"{short_repr(value)} is an older definition of {older[0]!r}, which was redefined "
            "since: use the new definition"
        )
    if isinstance(value, tuple) or dataclasses.is_dataclass(type(value)):
        _check_attributes(value)
    raise TypeError(refusal(value))


def _check_attributes(value: Any) -> None:
    more = more_attributes(value)
    if more:
        raise TypeError(
            f"static data of type {default_name(type(value))} cannot be saved: {more[0]!r} is not "
            "a field, and would be lost: make it one, or a functools.cached_property, or pass "
            "encode= and decode= to treepack.register_auxdata"
        )


def metadata_in(record: bytes | None, *, unknown_as_dict: bool = True) -> Any:
    """Starts no backends of JAX for the meshes in the metadata."""
    if record is None:
        return None
    with _jax.without_start():
        return core.record_metadata(record, unknown_as_dict=unknown_as_dict)


def rebuild_value(name: str, parts: Any, *saved: Any) -> Any:
    """`saved` has the parts before placeholders in them were replaced, if there were any."""
    auxdata = AUXDATA.by_name(name)
    if auxdata is not None:
        decode: Callable[[Any], Any] | None = auxdata.decode
        if auxdata.by_code and not is_given(saved[0] if saved else parts):
            raise DecodeError(
                f"cannot restore static data of type {name}: they hold objects with functions, "
                "or long ranges, which decode= must not receive from a file"
            )
    else:
        decode = (
            _function if name == "function" else _codecs.decoder(name) or _library_decoder(name)
        )
    if decode is None:
        library = library_of(name) if ":" in name else None
        way = (
            f"call treepack.register_auxdata on it (aliases= takes its name before a move)"
            f"{remark_on_main(name)}"
        )
        if library is not None and imported(library) is None:
            way = remedy(library)
        more = 'or pass unknown="dict" to get dicts in place of nodes with such data'
        raise not_registered("static data type", name, f"{way}, {more}")
    try:
        return decode(parts)
    except (TreepackError, MemoryError):
        raise
    except Exception as error:  # a codec may raise any error on invalid parts
        raise DecodeError(f"static data of type {name} cannot be restored: {error}") from error


def _of_library(value: Any) -> tuple[str, Any] | None:
    ty = type(value)
    if ty not in _library_names:
        _library_names[ty] = library_name(ty, is_definition)
    name = _library_names[ty]
    parts = None if name is None else parts_of(value)
    return None if name is None or parts is None else (name, parts)


# The names of types in known libraries. Threads may add the same entry at once, here and below.
_library_names: weakref.WeakKeyDictionary[type, str | None] = weakref.WeakKeyDictionary()


def _library_decoder(name: str) -> Callable[[Any], Any] | None:
    library = library_of(name) if ":" in name else None
    if library is None or imported(library) is None:
        return None
    ty = _library_types.get(name)
    if ty is None:
        ty = find(name, is_definition)
        if ty is None:
            return None
        if len(_library_types) < _MOST_NAMES:
            _library_types[name] = ty
    return functools.partial(made_of, ty)


# The types by names in files. Limited, since files may use many names for one type.
_library_types: weakref.WeakValueDictionary[str, type] = weakref.WeakValueDictionary()
_MOST_NAMES = 1000


def known_type(name: str, saved: Any, parts: Any) -> tuple[Any] | None:
    if AUXDATA.by_name(name) is None and _library_decoder(name) is None:
        return None
    return (rebuild_value(name, parts, saved),)


def remark_on_main(name: str) -> str:
    if not name.startswith("__main__.") and "<locals>" not in name:
        return ""
    return (
        " (the name is from the main module or a function of the program that saved it; register "
        "it with serialized_name= in both programs)"
    )


def _function(name: str) -> Any:
    function = FUNCTIONS.by_name(name) if type(name) is str else None
    if function is None:
        raise not_registered(
            "function",
            str(name),
            "call treepack.register_function on it (aliases= takes its name before a move)"
            f'{remark_on_main(str(name))}, or pass unknown="dict" to get dicts in place of '
            "nodes with it",
        )
    return function
