from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator

from treepack._src.storage.urls import without_secrets


@contextlib.contextmanager
def hiding(url: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        cleaned = _cleaned(error, lambda text: without_secrets(text, url), {})
        if cleaned is error:
            raise
        raise cleaned from cleaned.__cause__


def _cleaned(
    error: BaseException, hide: Callable[[str], str], memo: dict[int, BaseException]
) -> BaseException:
    if id(error) in memo:
        return memo[id(error)]
    memo[id(error)] = error
    with contextlib.suppress(Exception):  # some classes raise
        for name in ("filename", "filename2"):
            value = getattr(error, name, None)
            if isinstance(value, str) and hide(value) != value:
                setattr(error, name, hide(value))
        args = tuple(
            hide(argument) if isinstance(argument, str) else argument for argument in error.args
        )
        if args != error.args:
            error.args = args
        notes = getattr(error, "__notes__", [])
        notes[:] = map(hide, notes)
    text = "".join(traceback.format_exception_only(error))
    cleaned = error
    if isinstance(error, BaseExceptionGroup):
        inner = [_cleaned(inner, hide, memo) for inner in error.exceptions]
        is_same = all(a is b for a, b in zip(inner, error.exceptions, strict=True))
        if not is_same or hide(error.message) != error.message:
            group = BaseExceptionGroup(hide(error.message), inner)  # or one of Exceptions
            cleaned = memo[id(error)] = group.with_traceback(error.__traceback__)
    elif hide(text) != text:  # its class computes the message differently
        cleaned = memo[id(error)] = _substitute(error, hide)
    cause, context = error.__cause__, error.__context__
    if cause is not None:
        cleaned.__cause__ = _cleaned(cause, hide, memo)  # also handles the next cause
    if context is not None:
        cleaned.__context__ = _cleaned(context, hide, memo)
    cleaned.__suppress_context__ = error.__suppress_context__
    return cleaned


def _substitute(error: BaseException, hide: Callable[[str], str]) -> BaseException:
    text = f"{type(error).__name__}: {hide(str(error))}"
    kind = next(base for base in type(error).__mro__ if base.__module__ == "builtins")
    try:
        substitute: BaseException = kind(text)
    except TypeError:  # such as a UnicodeDecodeError
        substitute = ValueError(text) if isinstance(error, ValueError) else Exception(text)
    return substitute.with_traceback(error.__traceback__)
