"""Where a restore is in the tree, and what it has found wrong so far.

Both belong to the thread that restores. Handlers of the program call
`from_state_dict` in the middle of it, and take part in the same restore.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Literal

from treepack.errors import Mismatch, MismatchError

Strict = bool | Literal["exact"]


class Restore:
    """One restore, from the outermost call to its end.

    Attributes:
      strict: How strict it is; inner calls inherit it.
      path: The names from the root to where it is.
      mismatches: The differences so far by path, so that none is told twice.
    """

    def __init__(self, strict: Strict, path: list[str]):
        if strict not in (True, False, "exact"):
            raise ValueError(f"strict must be True, False or 'exact', got {strict!r}")
        self.strict = strict
        self.path = path
        self.mismatches: dict[str, Mismatch] = {}

    def note(self, name: str, expected: str, found: str) -> None:
        """Notes a difference at the child `name` of the current path."""
        path = "/".join([*self.path, name])
        self.mismatches.setdefault(path, Mismatch(path, expected, found))

    def finish(self) -> None:
        """Raises an error that lists all differences, if there are any."""
        if not self.mismatches:
            return
        found = list(self.mismatches.values())
        count = "1 leaf does" if len(found) == 1 else f"{len(found)} leaves do"
        lines = [f"\n  {m.path}: expected {m.expected}, found {m.found}" for m in found]
        raise MismatchError(
            f"{count} not match the template:{''.join(lines)}\n"
            "Pass strict=False to restore what is found regardless.",
            found,
        )


class _Local(threading.local):
    def __init__(self) -> None:
        self.path: list[str] = []
        self.restore: Restore | None = None


_local = _Local()


def current_path() -> str:
    """Returns the path in the state dict during a restore, for error messages.

    Example:
      >>> import treepack
      >>> treepack.current_path()
      ''
    """
    return "/".join(_local.path)


def mismatch(expected: str, found: str, message: str) -> MismatchError:
    """Returns the error for a difference that makes it impossible to go on."""
    return MismatchError(message, [Mismatch(current_path(), expected, found)])


@contextlib.contextmanager
def restoring(strict: Strict) -> Iterator[Restore]:
    """Joins the restore that this thread is in, or runs a new one."""
    if _local.restore is not None:
        yield _local.restore
        return
    _local.restore = Restore(strict, _local.path)
    try:
        yield _local.restore
        _local.restore.finish()
    finally:
        _local.restore = None


@contextlib.contextmanager
def separate() -> Iterator[None]:
    """Sets the current restore aside while another, unrelated one runs inside it."""
    outer, _local.restore = _local.restore, None
    path, _local.path = _local.path, []
    try:
        yield
    finally:
        _local.restore, _local.path = outer, path
