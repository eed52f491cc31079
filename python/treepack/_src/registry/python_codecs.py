"""Codecs for values of Python's standard library."""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import functools
import pathlib
import types
import uuid
import zoneinfo
from collections.abc import Callable
from typing import Any

from treepack._src.pytree.containers import is_inert_factory
from treepack._src.registry.codec import Codec, as_parts, checked_factory, instance, one


def _callable(function: Any) -> Any:
    if not callable(function):
        raise ValueError(f"a {type(function).__name__} is not a function")
    return function


def _functools_partial(parts: Any) -> Any:
    function, args, keywords = as_parts((object, tuple, dict), parts)
    return functools.partial(_callable(function), *args, **keywords)


def _path(ty: type[pathlib.PurePath]) -> Codec:
    return Codec(f"pathlib.{ty.__name__}", instance(ty), str, lambda path: ty(one(str, path)))


# Collections


def _defaultdict_parts(it: collections.defaultdict[Any, Any]) -> tuple[Any, dict[Any, Any]]:
    if not is_inert_factory(it.default_factory):
        raise TypeError(
            f"the default factory {it.default_factory!r:.100} of static data cannot be saved: use "
            "a builtin type, such as list"
        )
    return it.default_factory, dict(it)


def _defaultdict(made_of: Any) -> Any:
    factory, items = as_parts((object, dict), made_of)
    return collections.defaultdict(checked_factory(factory), items)


def _deque(made_of: Any) -> Any:
    items, most = as_parts((tuple, (int, type(None))), made_of)
    return collections.deque(items, most)


# Dates and times


def _zone_name(zone: Any) -> str:
    if zone.key is None:
        raise TypeError("a time zone without a key cannot be saved as static data")
    return str(zone.key)


@functools.cache
def _zones() -> set[str]:
    return zoneinfo.available_timezones()


def _zone(name: Any) -> Any:
    if one(str, name) not in _zones():  # limits lookups to the time zone database
        raise ValueError(f"unknown time zone {name!r:.100}")
    return zoneinfo.ZoneInfo(name)


def _zone_of(time: Any) -> Any:
    """Returns the time zone of a time; raises unless it is of the standard library."""
    zone = time.tzinfo
    if zone is None or type(zone) in _ZONES:
        return zone
    raise TypeError(f"the time zone {zone!r:.100} cannot be saved as static data")


_ZONES = (datetime.timezone, zoneinfo.ZoneInfo)


def _time_parts(time: Any) -> tuple[str, int, Any]:
    return time.replace(tzinfo=None).isoformat(), time.fold, _zone_of(time)


def _time_of(ty: Any) -> Callable[[Any], Any]:
    def decode(made_of: Any) -> Any:
        text, fold, zone = as_parts((str, int, object), made_of)
        if zone is not None and type(zone) not in _ZONES:
            raise ValueError(f"a {type(zone).__name__} is not a time zone")
        time = ty.fromisoformat(text)
        if time.tzinfo is not None:
            raise ValueError("unexpected time zone in the text")
        return time.replace(tzinfo=zone, fold=fold)

    return decode


def _timezone(made_of: Any) -> datetime.timezone:
    offset, name = as_parts((datetime.timedelta, (str, type(None))), made_of)
    return datetime.timezone(offset) if name is None else datetime.timezone(offset, name)


def _timezone_parts(zone: Any) -> tuple[Any, ...]:
    offset, *name = zone.__getinitargs__()
    return offset, name[0] if name else None


_BOUND = (int, type(None), str)


def _singleton(name: str, value: Any) -> Codec:
    def decode(made_of: Any) -> Any:
        one(type(None), made_of)
        return value

    return Codec(name, type(value), lambda _: None, decode)


CODECS = [
    # Integers beyond 64 bits.
    Codec("int", int, str, lambda text: int(one(str, text))),
    Codec("set", set, frozenset, lambda items: set(one(frozenset, items))),
    Codec("bytearray", bytearray, bytes, lambda data: bytearray(one(bytes, data))),
    Codec(
        "range",
        range,
        lambda it: (it.start, it.stop, it.step),
        lambda parts: range(*as_parts((int, int, int), parts)),
    ),
    Codec(
        "slice",
        slice,
        lambda it: (it.start, it.stop, it.step),
        lambda parts: slice(*as_parts((_BOUND, _BOUND, _BOUND), parts)),
    ),
    Codec(
        "types.MappingProxyType",
        types.MappingProxyType,
        dict,
        lambda items: types.MappingProxyType(one(dict, items)),
    ),
    Codec(
        "functools.partial",
        functools.partial,
        lambda it: (it.func, it.args, dict(it.keywords)),
        _functools_partial,
    ),
    # A concrete path becomes a path of the system that reads it.
    _path(pathlib.Path),
    _path(pathlib.PureWindowsPath),
    _path(pathlib.PurePosixPath),
    _singleton("Ellipsis", ...),
    _singleton("NotImplemented", NotImplemented),
    Codec(
        "collections.OrderedDict",
        collections.OrderedDict,
        dict,
        lambda items: collections.OrderedDict(one(dict, items)),
    ),
    Codec(
        "collections.defaultdict",
        collections.defaultdict,
        _defaultdict_parts,
        _defaultdict,
    ),
    Codec(
        "collections.Counter",
        collections.Counter,
        dict,
        lambda items: collections.Counter(one(dict, items)),
    ),
    Codec("collections.deque", collections.deque, lambda it: (tuple(it), it.maxlen), _deque),
    Codec(
        "types.SimpleNamespace",
        types.SimpleNamespace,
        lambda it: dict(vars(it)),
        lambda items: types.SimpleNamespace(**one(dict, items)),
    ),
    Codec(
        "fractions.Fraction",
        fractions.Fraction,
        lambda it: (it.numerator, it.denominator),
        lambda parts: fractions.Fraction(*as_parts((int, int), parts)),
    ),
    Codec("decimal.Decimal", decimal.Decimal, str, lambda text: decimal.Decimal(one(str, text))),
    Codec(
        "uuid.UUID",
        uuid.UUID,
        lambda it: it.bytes,
        lambda content: uuid.UUID(bytes=one(bytes, content)),
    ),
    Codec(
        "datetime.date",
        datetime.date,
        lambda it: it.isoformat(),
        lambda text: datetime.date.fromisoformat(one(str, text)),
    ),
    Codec("datetime.time", datetime.time, _time_parts, _time_of(datetime.time)),
    Codec("datetime.datetime", datetime.datetime, _time_parts, _time_of(datetime.datetime)),
    Codec(
        "datetime.timedelta",
        datetime.timedelta,
        lambda it: (it.days, it.seconds, it.microseconds),
        lambda made_of: datetime.timedelta(*as_parts((int, int, int), made_of)),
    ),
    Codec("datetime.timezone", datetime.timezone, _timezone_parts, _timezone),
    Codec("zoneinfo.ZoneInfo", zoneinfo.ZoneInfo, _zone_name, _zone),
]
