"""Keeps the names of objects in files, which stay valid when an object is redefined."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import (
    Any,
    Concatenate,
    Generic,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    overload,
)

from treepack._src.advice import advised
from treepack._src.printable import warn
from treepack.errors import UnregisteredTypeError

T = TypeVar("T")


def not_registered(sort: str, name: str, remedy: str) -> UnregisteredTypeError:
    return UnregisteredTypeError(f"unregistered {sort} {name!r}: {remedy}", name)


class _Registering:
    """A lock for all registrations; a registration that fails leaves no names behind."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._depth = 0
        self._owner = 0
        self._tables: list[Names[Any]] = []
        self._before: list[tuple[dict[Any, Any], ...]] = []
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        """Resets the lock in a forked process, unless the forking thread is registering."""
        if self._depth and self._owner != threading.get_ident():
            for table, before in zip(self._tables, self._before, strict=True):
                table.put_back(before)
            self._depth = 0
        if self._depth == 0:
            self._lock = threading.RLock()

    def watch(self, table: Names[Any]) -> None:
        self._tables.append(table)

    def __enter__(self) -> None:
        self._lock.acquire()
        if self._depth == 0:
            self._before = [table.copy() for table in self._tables]
            self._owner = threading.get_ident()
        self._depth += 1

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0 and kind is not None:
            for table, before in zip(self._tables, self._before, strict=True):
                table.put_back(before)
        self._lock.release()


registering = _Registering()


P = ParamSpec("P")

# A class or a function.
D = TypeVar("D", bound=Callable[..., Any])


class _Decorating(Protocol[P]):
    @overload
    def __call__(self, thing: D, /, *args: P.args, **options: P.kwargs) -> D: ...

    @overload
    def __call__(
        self, thing: None = None, /, *args: P.args, **options: P.kwargs
    ) -> Callable[[D], D]: ...


def or_decorator(function: Callable[Concatenate[Any, P], Any]) -> _Decorating[P]:
    first, *_ = inspect.signature(function).parameters
    register = advised(function)

    @functools.wraps(register)
    def call(*given: Any, **options: Any) -> Any:
        thing = given[0] if given else options.pop(first, None)
        if thing is None:
            return lambda thing: register(thing, *given[1:], **options)
        return register(thing, *given[1:], **options)

    return cast("_Decorating[P]", call)


def check_is_type(thing: Any) -> None:
    if isinstance(thing, type):
        return
    cure = f"pass type(...) of it, {type(thing).__name__}"
    if isinstance(thing, str):
        cure = "pass it as serialized_name="
    elif callable(thing) and hasattr(thing, "__qualname__"):
        cure = "call register_function for a function"
    raise TypeError(f"expected a class, got {thing!r:.100}: {cure}")


class OlderDefinitionError(TypeError):
    """A function lost its name to a newer definition."""


def reads_nothing(*_: Any) -> Any:
    raise TypeError("an older definition of a type cannot read values")


class _Named(NamedTuple):
    thing: Any
    entry: Any


_GONE = "an alias is the name of a type that is gone: leave it out, or restart without that type"


class Names(Generic[T]):
    """Maps names to objects of one sort, and back; each has one.

    Aliases are read and never written. Objects are compared by identity, since not all are
    hashable.
    """

    def __init__(self, sort: str, writing: Callable[[T], T] = lambda entry: entry):
        """`sort` is the word for such an object in messages.

        `writing` makes the entry of an object that lost its name one that can only write, without a
        reference to the object.
        """
        # The number of completed changes. A cache reads it before a lookup, to detect stale
        # entries.
        self.changes = 0
        self._sort = sort
        self._by_name: dict[str, _Named] = {}
        self._aliases: dict[str, str] = {}
        self._names: dict[int, str] = {}
        self._writing = writing
        self._older: dict[int, tuple[weakref.ref[Any], str, T]] = {}
        registering.watch(self)

    def copy(self) -> tuple[dict[Any, Any], ...]:
        return self._by_name.copy(), self._aliases.copy(), self._names.copy()

    def put_back(self, before: tuple[dict[Any, Any], ...]) -> None:
        self._by_name, self._aliases, self._names = before
        self.changes += 1

    def check(self, thing: Any, name: str, aliases: Iterable[str] = ()) -> None:
        """Raises a ValueError if a name is taken, except by an older definition of the object."""
        if isinstance(aliases, str):
            raise TypeError(f"aliases must be a list of names, got {aliases!r}")
        for claimed in (name, *aliases):
            if not isinstance(claimed, str) or not claimed:
                raise ValueError(f"a name must be a non-empty string, got {claimed!r:.100}")
        current = self.name_of(thing)
        if current is not None and current != name:
            raise ValueError(
                f"{_label(thing)} is already registered as {self._sort} with the name {current!r}: "
                f"it cannot also have the name {name!r}; to read files with both, register it "
                f"once, with aliases=[{name!r}]"
            )
        for claimed in (name, *aliases):
            owner = self._by_name.get(self._aliases.get(claimed, claimed))
            if owner is not None and not _replaces(owner.thing, thing):
                cure = f"choose another name for {_label(thing)}"
                raise ValueError(
                    f"the {self._sort} name {claimed!r} is already registered for "
                    f"{_label(owner.thing)}: {cure if claimed == name else _GONE}"
                )

    def check_alias(self, thing: Any, alias: str) -> None:
        owner = self._by_name.get(alias)
        if owner is not None and not _replaces(owner.thing, thing):
            raise ValueError(f"{alias!r} is the {self._sort} {_label(owner.thing)}: {_GONE}")

    def add(self, thing: Any, name: str, entry: T, aliases: Iterable[str] = ()) -> None:
        older = self._by_name.get(name)
        self._aliases.pop(name, None)
        self._by_name[name] = _Named(thing, entry)
        self._names[id(thing)] = name
        for alias in aliases:
            self._aliases[alias] = name
        if older is not None and older.thing is not thing:
            self._names.pop(id(older.thing), None)
            number, kept = id(older.thing), self._older
            with contextlib.suppress(TypeError):  # it allows no weak references, so it is dropped
                ref = weakref.ref(older.thing, lambda _: kept.pop(number, None))
                kept[number] = ref, name, self._writing(older.entry)
        self.changes += 1

    def chosen(self, thing: Any, given: str | None) -> str:
        if given is not None:
            if not isinstance(given, str):
                raise TypeError(f"serialized_name must be a string, got {given!r:.100}")
            return given
        name = self.name_of(thing)
        if name is None:
            name = default_name(thing)
            if is_unstable(thing):
                warn(unstable_text(name, "pass serialized_name="))
        return name

    def name_of(self, thing: Any) -> str | None:
        return (self.named(thing) or (None,))[0]

    def entry_of(self, thing: Any) -> T | None:
        return (self.named(thing) or (None, None))[1]

    def named(self, thing: Any) -> tuple[str, T] | None:
        name = self._names.get(id(thing))
        if name is None:
            return None
        row = self._by_name.get(name)  # another thread may have removed or reassigned it
        return None if row is None or row.thing is not thing else (name, row.entry)

    def by_name(self, name: str) -> T | None:
        row = self._by_name.get(self._aliases.get(name, name))
        return None if row is None else row.entry

    def older(self, thing: Any) -> tuple[str, T] | None:
        """Returns the name that an object lost to a newer definition, and an entry that writes it.

        It is written as before, and read as the newer definition.
        """
        row = self._older.get(id(thing))
        return None if row is None or row[0]() is not thing else row[1:]

    def things(self) -> dict[str, Any]:
        return {name: row.thing for name, row in self._by_name.copy().items()}


def function_name(function: Any) -> str | None:
    if inspect.ismethod(function):  # other bindings of the function have the same name
        return None
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or "<lambda>" in name:
        return None
    return default_name(function)


def default_name(thing: Any) -> str:
    module, name = str(thing.__module__), thing.__qualname__
    parts = module.split(".")
    if any(part.startswith("_") for part in parts) and module != "__main__":
        for count in range(1, len(parts)):
            public = ".".join(parts[:count])
            if parts[count - 1].startswith("_"):
                break
            if _held(public, name) is thing:
                return f"{public}.{name}"
    return f"{module}.{name}"


def is_unstable(thing: Any) -> bool:
    return thing.__module__ == "__main__" or "<locals>" in thing.__qualname__


def unstable_text(name: str, remedy: str) -> str:
    return f"{name!r} may name another type or function in other programs: {remedy}"


def _label(thing: Any) -> str:
    place = _place(thing)
    return repr(thing) if place is None else ".".join(place)


def _place(thing: Any) -> tuple[str, str] | None:
    place = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    return None if None in place or inspect.ismethod(thing) else place  # type: ignore[return-value]


def _replaces(old: Any, new: Any) -> bool:
    """Returns whether an object is a redefinition of another one.

    The older one must be gone from its module, or the module be running, as when a cell or a
    reloaded module redefines it.
    """
    if old is new:
        return True
    place = _place(old)
    if place is None or place != _place(new):
        return False
    # Modules do not hold lambdas or inner functions, and each call makes a new one.
    if "<lambda>" in place[1] or ("<locals>" in place[1] and not isinstance(old, type)):
        return _is_running(place[0])
    return _held(*place) is not old or _is_running(place[0])


def _held(module: str, qualname: str) -> Any:
    """Calls no `__getattr__` of the module."""
    value: Any = vars(sys.modules[module]) if module in sys.modules else {}
    first, *rest = qualname.split(".")
    value = value.get(first)
    for part in rest:
        value = getattr(value, part, None)
    return value


def _is_running(module: str) -> bool:
    scope = vars(sys.modules[module]) if module in sys.modules else None
    frame = sys._getframe()
    while frame is not None:
        if frame.f_globals is scope and frame.f_code.co_name.startswith(("<module", "<cell")):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
