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
from typing import Any

from treepack._src.registry.codec import (
    Codec,
    checked_factory,
    codec,
    instance,
    is_inert_factory,
    of_attributes,
    of_value,
)


def _functools_partial(function: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    if not callable(function):
        raise ValueError(f"a {type(function).__name__} is not a function")
    return functools.partial(function, *args, **keywords)


# Collections


def _defaultdict_parts(it: collections.defaultdict[Any, Any]) -> tuple[Any, dict[Any, Any]]:
    if not is_inert_factory(it.default_factory):
        raise TypeError(
            f"the default factory {it.default_factory!r:.100} of static data cannot be saved: use "
            "a builtin type, such as list"
        )
    return it.default_factory, dict(it)


# Dates and times


def _zone_name(zone: Any) -> str:
    if zone.key is None:
        raise TypeError("a time zone without a key cannot be saved as static data")
    return str(zone.key)


@functools.cache
def _zones() -> set[str]:
    return zoneinfo.available_timezones()


def _zone(name: str) -> Any:
    if name not in _zones():  # limits lookups to the time zone database
        raise ValueError(f"unknown time zone {name!r:.100}")
    return zoneinfo.ZoneInfo(name)


def _zone_of(time: Any) -> Any:
    zone = time.tzinfo
    if zone is None or type(zone) in _ZONES:
        return zone
    raise TypeError(f"the time zone {zone!r:.100} cannot be saved as static data")


_ZONES = (datetime.timezone, zoneinfo.ZoneInfo)


def _time_parts(time: Any) -> tuple[str, int, Any]:
    return time.replace(tzinfo=None).isoformat(), time.fold, _zone_of(time)


def _times(ty: Any) -> Codec:
    def make(text: str, fold: int, zone: Any) -> Any:
        if zone is not None and type(zone) not in _ZONES:
            raise ValueError(f"a {type(zone).__name__} is not a time zone")
        time = ty.fromisoformat(text)
        if time.tzinfo is not None:
            raise ValueError("unexpected time zone in the text")
        return time.replace(tzinfo=zone, fold=fold)

    return codec(f"datetime.{ty.__name__}", ty, _time_parts, (str, int, object), make)


def _timezone(offset: datetime.timedelta, name: str | None) -> datetime.timezone:
    return datetime.timezone(offset) if name is None else datetime.timezone(offset, name)


def _timezone_parts(zone: Any) -> tuple[Any, ...]:
    offset, *name = zone.__getinitargs__()
    return offset, name[0] if name else None


_BOUND = (int, type(None), str)


def _singleton(name: str, value: Any) -> Codec:
    return codec(name, type(value), lambda _: None, type(None), lambda _: value)


# Values that hold no other values which a file could choose; see `inert.py`.
ATOMS = [
    # Integers beyond 64 bits.
    of_value("int", int, str),
    of_value("bytearray", bytearray, bytes),
    of_attributes("slice", slice, start=_BOUND, stop=_BOUND, step=_BOUND),
    _singleton("Ellipsis", ...),
    _singleton("NotImplemented", NotImplemented),
    of_attributes("fractions.Fraction", fractions.Fraction, numerator=int, denominator=int),
    of_value("decimal.Decimal", decimal.Decimal, str),
    codec("uuid.UUID", uuid.UUID, "bytes", bytes, lambda content: uuid.UUID(bytes=content)),
    codec(
        "datetime.date", datetime.date, datetime.date.isoformat, str, datetime.date.fromisoformat
    ),
    _times(datetime.time),
    _times(datetime.datetime),
    of_attributes(
        "datetime.timedelta", datetime.timedelta, days=int, seconds=int, microseconds=int
    ),
    codec(
        "datetime.timezone",
        datetime.timezone,
        _timezone_parts,
        (datetime.timedelta, (str, type(None))),
        _timezone,
    ),
    codec("zoneinfo.ZoneInfo", zoneinfo.ZoneInfo, _zone_name, str, _zone),
]

CODECS = [
    *ATOMS,
    # A concrete path becomes a path of the system that reads it.
    *(
        of_value(f"pathlib.{ty.__name__}", ty, str)._replace(fits=instance(ty))
        for ty in (pathlib.Path, pathlib.PureWindowsPath, pathlib.PurePosixPath)
    ),
    of_value("set", set, frozenset),
    of_attributes("range", range, start=int, stop=int, step=int),
    of_value("types.MappingProxyType", types.MappingProxyType, dict),
    codec(
        "functools.partial",
        functools.partial,
        lambda partial: (partial.func, partial.args, dict(partial.keywords)),
        (object, tuple, dict),
        _functools_partial,
    ),
    *(
        of_value(f"collections.{ty.__name__}", ty, dict)
        for ty in (collections.OrderedDict, collections.Counter)
    ),
    codec(
        "collections.defaultdict",
        collections.defaultdict,
        _defaultdict_parts,
        (object, dict),
        lambda factory, items: collections.defaultdict(checked_factory(factory), items),
    ),
    codec(
        "collections.deque",
        collections.deque,
        lambda deque: (tuple(deque), deque.maxlen),
        (tuple, (int, type(None))),
        collections.deque,
    ),
    codec(
        "types.SimpleNamespace",
        types.SimpleNamespace,
        lambda value: dict(vars(value)),
        dict,
        lambda items: types.SimpleNamespace(**items),
    ),
]
