"""Errors of calls and attributes that name the replacement of an unknown name."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from treepack._src.elsewhere import OF_CLASSES, OPTIONS

V = TypeVar("V", bound=Callable[..., Any])


def unknown_option(verb: Callable[..., Any], name: str) -> TypeError:
    names = [each for each in inspect.signature(verb).parameters if each != "self"]
    near = difflib.get_close_matches(name, names, n=1)
    rows = ((needed, hint) for others, needed, hint in OPTIONS if name in others.split())
    hints = (hint for needed, hint in rows if needed in names)
    hint = next(hints, f"is it {near[0]!r}?" if near else "")
    end = f": {hint}" if hint else f"; it has {', '.join(names) or 'none'}"
    return TypeError(f"{_name_of(verb)}() got an unexpected keyword argument {name!r}{end}")


def advised(verb: V) -> V:
    @functools.wraps(verb)
    def call(*args: Any, **options: Any) -> Any:
        try:
            return verb(*args, **options)
        except TypeError as error:
            advise(verb, error, options)
            raise

    return cast(V, call)


def advise(verb: Callable[..., Any], error: TypeError, options: Iterable[str]) -> None:
    trace = error.__traceback__
    if trace is None or trace.tb_next is not None:
        return
    parameters = inspect.signature(verb).parameters
    if "unexpected keyword" in str(error):
        raise unknown_option(verb, min({*options} - {*parameters})) from None
    needed = [
        f"{each.name}=..." if each.kind is each.KEYWORD_ONLY else each.name
        for each in parameters.values()
        if each.default is each.empty
        and each.name[0] != "_"
        and each.name != "self"
        and each.kind is not each.VAR_KEYWORD
    ]
    named = [each.name for each in parameters.values() if each.kind is each.KEYWORD_ONLY]
    rest = f", and name the rest, as in {named[0]}=" if "were given" in str(error) and named else ""
    by_place = (it for it in parameters.values() if it.kind is it.POSITIONAL_OR_KEYWORD)
    if "were given" in str(error) and not needed:  # all are optional
        needed = [it.name for it in by_place if it.name != "self"]
    raise TypeError(f"{error}: call it as {_name_of(verb)}({', '.join(needed)}){rest}") from None


def _name_of(verb: Callable[..., Any]) -> str:
    kind, _, name = verb.__qualname__.rpartition(".")
    return kind if name == "__init__" else verb.__name__


def check_parameters(function: Callable[..., Any], option: str, arguments: str, count: int) -> None:
    try:
        inspect.signature(function).bind(*(None,) * count)
    except TypeError as error:
        raise TypeError(f"{option} is called with {arguments}: {error}") from None
    except ValueError:  # it has no signature
        pass


class Hinting:
    """Objects whose errors for unknown attributes name a replacement."""

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers would accept any attribute

        def __getattr__(self, name: str) -> Any:
            raise unknown_attribute(self, name, self._hint_for(name))

    def _hint_for(self, name: str) -> str:
        return hint_for(type(self), name)


class Advising(Hinting):
    def __init_subclass__(cls, lists: str = "") -> None:
        """Advises the methods of a class of treepack, not of one that a program derives from it.

        `lists` names a method that returns a list: `run.steps[-1]` says to call it.
        """
        super().__init_subclass__()
        for name, method in [*vars(cls).items()] if Advising in cls.__bases__ else ():
            is_public = name[0] != "_" and inspect.isfunction(method)
            if name == lists:
                setattr(cls, name, _ListMethod(method))
            elif is_public and not hasattr(method, "__wrapped__"):  # `takes` advises as well
                setattr(cls, name, advised(method))

    if not TYPE_CHECKING:  # type checkers would accept any index

        def __getitem__(self, _: Any) -> Any:
            """Refuses an index, and so an iteration, which looks for one."""
            raise TypeError(f"a {type(self).__name__} has no items: {self._hint_for('[]')}")


def hint_for(kind: type, name: str) -> str:
    hints = (OF_CLASSES.get(each.__name__, {}) for each in kind.__mro__)
    return next((rows[name] for rows in hints if name in rows), "")


def unknown_attribute(thing: object, name: str, hint: str) -> AttributeError:
    text = f"{type(thing).__name__!r} object has no attribute {name!r}{hint and ': '}{hint}"
    return AttributeError(text, name=name, obj=thing)


def read_only(*_: Any) -> None:
    raise TypeError(
        'open files are read-only: change the arrays of file.load(arrays="numpy", copy=True), and '
        "save that tree"
    )


class _BoundListMethod(functools.partial[Any]):
    def _misuse(self, *_: Any) -> Any:
        name = self.func.__name__
        raise TypeError(f"{name} is a method: call it, as in {name}()[-1]")

    __getitem__ = __iter__ = __len__ = _misuse


class _ListMethod:
    def __init__(self, method: Callable[[Any], Any]):
        functools.update_wrapper(self, method)
        self._method = method

    def __get__(self, owner: Any, _: type | None = None) -> Any:
        return self if owner is None else _BoundListMethod(self._method, owner)

    def __call__(self, owner: Any) -> Any:
        return self._method(owner)
