"""Calls of the system that are repeated if a signal interrupts them (EINTR).

Python repeats `open`, `read`, `write`, `fsync` and `flock` (PEP 475), but not calls that only some
file systems interrupt, such as FUSE and CIFS: `stat`, `rename`, `link`, `unlink`, listings.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")

_Path = str | os.PathLike[str]

# The errors of `stat` where nothing is, or only a link to itself.
_NOTHING = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}


def repeated(
    call: Callable[_Params, _Result], *args: _Params.args, **kwargs: _Params.kwargs
) -> _Result:
    while True:
        try:
            return call(*args, **kwargs)
        except InterruptedError:
            pass


def mode_of(path: _Path, *, follow_symlinks: bool = True) -> int:
    try:
        return repeated(os.stat, path, follow_symlinks=follow_symlinks).st_mode
    except ValueError:  # an invalid name
        return 0
    except OSError as error:
        if error.errno not in _NOTHING:
            raise
        return 0


def unlink(path: _Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        repeated(os.unlink, path)


def close(file: int) -> None:
    """An interrupted call has closed the file all the same."""
    with contextlib.suppress(InterruptedError):
        os.close(file)
