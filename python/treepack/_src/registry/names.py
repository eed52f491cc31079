"""Names of things in files: which thing has which name, and what becomes of those defined again."""

from __future__ import annotations

import inspect
import os
import sys
import threading
import warnings
from collections.abc import Iterable
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")


class _Registering:
    """Held while anything is registered: what an error interrupts leaves no names behind."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._depth = 0
        self._owner = 0
        self._tables: list[Names[Any]] = []
        self._before: list[tuple[dict[Any, Any], ...]] = []
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        """Begins anew in a forked process, unless the thread that forked is registering."""
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


class _Named(NamedTuple):
    """What has a name, and what is known of it."""

    thing: Any
    entry: Any


class Names(Generic[T]):
    """Things of one sort by name, and names by thing.

    A thing has one name, and a name one thing. Besides, a thing may have aliases, which are
    read and never written. Things are told apart by identity, since not all are hashable.
    """

    def __init__(self, sort: str):
        """`sort` is for messages, such as `node type`."""
        self._sort = sort
        self._by_name: dict[str, _Named] = {}
        self._aliases: dict[str, str] = {}
        self._names: dict[int, str] = {}
        registering.watch(self)

    def copy(self) -> tuple[dict[Any, Any], ...]:
        """Returns all that is known, for `put_back`."""
        return self._by_name.copy(), self._aliases.copy(), self._names.copy()

    def put_back(self, before: tuple[dict[Any, Any], ...]) -> None:
        """Knows again what it knew before, and nothing else."""
        self._by_name, self._aliases, self._names = before

    def check(self, thing: Any, name: str, aliases: Iterable[str] = ()) -> None:
        """Raises a ValueError if a thing cannot have a name.

        A thing that was defined again, because its module or cell ran again, may take the name
        of its older self.
        """
        if isinstance(aliases, str):
            raise TypeError(f"aliases is a list of names, not {aliases!r}")
        for claimed in (name, *aliases):
            if not isinstance(claimed, str) or not claimed:
                raise ValueError(f"a {self._sort} needs a name, not {claimed!r}")
        known = self.name_of(thing)
        if known is not None and known != name:
            raise ValueError(
                f"{text(thing)} is already registered as {self._sort} with the name {known!r}, "
                f"not {name!r}"
            )
        for claimed in (name, *aliases):
            found = self._by_name.get(self._aliases.get(claimed, claimed))
            if found is not None and not _replaces(found.thing, thing):
                raise ValueError(
                    f"the {self._sort} name {claimed!r} is already registered for "
                    f"{text(found.thing)}, and cannot be for {text(thing)} as well"
                )

    def add(self, thing: Any, name: str, entry: T, aliases: Iterable[str] = ()) -> None:
        """Gives a thing its name, which the older self of the thing loses."""
        older = self._by_name.get(name)
        self._aliases.pop(name, None)
        self._by_name[name] = _Named(thing, entry)
        self._names[id(thing)] = name
        for alias in aliases:
            self._aliases[alias] = name
        if older is not None and older.thing is not thing:
            self._names.pop(id(older.thing), None)

    def chosen(self, thing: Any, given: str | None) -> str:
        """Returns the name that a thing is to have: the given one, its own, or a default."""
        if given is not None:
            return given
        known = self.name_of(thing)
        if known is None:
            known = default_name(thing)
            _warn_if_unstable(thing, known)
        return known

    def name_of(self, thing: Any) -> str | None:
        """Returns the name of a thing."""
        name = self._names.get(id(thing))
        if name is None or self._by_name[name].thing is not thing:
            return None
        return name

    def entry_of(self, thing: Any) -> T | None:
        """Returns what is known of a thing."""
        name = self.name_of(thing)
        return None if name is None else self._by_name[name].entry

    def by_name(self, name: str) -> T | None:
        """Returns what is known of the thing with a name or an alias."""
        found = self._by_name.get(self._aliases.get(name, name))
        return None if found is None else found.entry

    def newer(self, thing: Any) -> str | None:
        """Returns the name that a thing has lost because it was defined again."""
        place = _place(thing)
        for name, found in self._by_name.copy().items():
            if found.thing is not thing and place is not None and _place(found.thing) == place:
                return name
        return None

    def things(self) -> dict[str, Any]:
        """Returns all things by name."""
        return {name: found.thing for name, found in self._by_name.copy().items()}


def default_name(thing: Any) -> str:
    """Returns the name that a type or function has unless the program gives it another one.

    It is the module and the qualified name; for what lies in a private module, the shortest
    public one that leads to it: `optax.EmptyState`.
    """
    module, name = thing.__module__, thing.__qualname__
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
    """Tells whether the default name of a thing may be that of another one in other programs."""
    return thing.__module__ == "__main__" or "<locals>" in thing.__qualname__


def _warn_if_unstable(thing: Any, name: str) -> None:
    """Warns of a default name that another program may have as well, for another thing."""
    if is_unstable(thing):
        warnings.warn(
            f"{name!r} is no lasting name for files: another program may have something else "
            "there. Give it a serialized_name",
            stacklevel=4,
        )


def text(thing: Any) -> str:
    """Returns how a thing is called in messages."""
    place = _place(thing)
    return repr(thing) if place is None else ".".join(place)


def _place(thing: Any) -> tuple[str, str] | None:
    """Returns module and qualified name of a thing that has both."""
    place = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    return None if None in place or inspect.ismethod(thing) else place  # type: ignore[return-value]


def _replaces(old: Any, new: Any) -> bool:
    """Tells whether a thing is another one, defined again.

    Two that are alive at the same place are not: the first must be gone from its module, or
    the module be running, which is how a cell or a reloaded module defines things again.
    """
    if old is new:
        return True
    place = _place(old)
    if place is None or place != _place(new):
        return False
    # No module holds a lambda or a function of a function, and each call makes another one.
    if "<lambda>" in place[1] or ("<locals>" in place[1] and not isinstance(old, type)):
        return _is_running(place[0])
    return _held(*place) is not old or _is_running(place[0])


def _held(module: str, qualname: str) -> Any:
    """Returns what a module has at a qualified name."""
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


def _is_running(module: str) -> bool:
    """Tells whether code at the top of a module is running in this thread."""
    scope = vars(sys.modules[module]) if module in sys.modules else None
    frame = sys._getframe()
    while frame is not None:
        if frame.f_globals is scope and frame.f_code.co_name.startswith(("<module", "<cell")):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
