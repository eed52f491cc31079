"""Options that many functions have."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Literal

Strict = bool | Literal["exact"]
"""How strict a template is; see `_compare`."""

Progress = Callable[[int, int], object] | bool | None
"""Who is told of long work: a callable of bytes done and in all, `True` for a bar, or nobody."""


def check_strict(strict: Strict) -> Strict:
    """Returns the option, if it is one."""
    if strict not in (True, False, "exact"):
        raise ValueError(f"strict must be True, False or 'exact', got {strict!r}")
    return strict


@contextlib.contextmanager
def telling(progress: Progress, what: str) -> Iterator[Callable[[int, int], object] | None]:
    """Gives the callable to pass on, and ends the bar if there is one.

    Raises:
      ImportError: If a bar is asked for, and tqdm is not installed.
      TypeError: If `progress` is nothing of the kind.
    """
    if progress is None or progress is False:
        yield None
    elif progress is True:
        with _bar(what) as bar:

            def tell(done: int, total: int) -> None:
                bar.total = total
                bar.update(done - bar.n)

            yield tell
    elif callable(progress):
        yield progress
    else:
        raise TypeError(f"progress must be a callable or True, not {progress!r}")


def _bar(what: str) -> Any:
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise ImportError("progress=True shows a bar of tqdm: pip install tqdm") from error
    return tqdm(desc=what, unit="B", unit_scale=True, unit_divisor=1024)
