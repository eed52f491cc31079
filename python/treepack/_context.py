"""Where a restore is in the tree, and what it has found wrong so far.

Both belong to the thread that restores. Handlers of the program call
`from_state_dict` in the middle of it, and take part in the same restore.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal

from treepack.errors import Mismatch, MismatchError

Strict = bool | Literal["exact"]

# Takes a child of the template, its state, its name and the restore it is part of.
RestoreChild = Callable[[Any, Any, str, "Restore"], Any]


class Restore:
    """One restore, from the outermost call to its end, as a context manager.

    While it is entered, it is what this thread restores; another one that was under
    way is set aside meanwhile. Leaving it raises an error for what it found wrong.

    Attributes:
      strict: How strict it is; inner calls inherit it.
      child: The function that restores a child of the template.
      path: The names from the root to where it is.
      mismatches: The differences so far by path, so that none is told twice.
    """

    def __init__(self, strict: Strict, child: RestoreChild):
        self.strict = _checked(strict)
        self.child = child
        self.path: list[str] = []
        self.mismatches: dict[str, Mismatch] = {}
        self._outer: Restore | None = None

    def __enter__(self) -> Restore:
        self._outer, _local.restore = _local.restore, self
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        _local.restore = self._outer
        if kind is None:
            self._finish()

    def below(self, child: Any, state: Any, name: str) -> Any:
        """Returns a child of the template with its state."""
        return self.child(child, state, name, self)

    @contextlib.contextmanager
    def part(self, strict: Strict, child: RestoreChild) -> Iterator[None]:
        """Is more or less strict for a part of the tree.

        What a part found wrong is forgotten if it ends in an error: whoever catches
        that may go another way.
        """
        outer = self.strict, self.child
        found = dict(self.mismatches)
        self.strict, self.child = _checked(strict), child
        try:
            yield
        except BaseException:
            self.mismatches = found
            raise
        finally:
            self.strict, self.child = outer

    def note(self, name: str, expected: str, found: str) -> None:
        """Notes a difference at the child `name` of the current path."""
        path = "/".join([*self.path, name])
        self.mismatches.setdefault(path, Mismatch(path, expected, found))

    def _finish(self) -> None:
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


def _checked(strict: Strict) -> Strict:
    if strict not in (True, False, "exact"):
        raise ValueError(f"strict must be True, False or 'exact', got {strict!r}")
    return strict


class _Local(threading.local):
    restore: Restore | None = None


_local = _Local()


def current() -> Restore | None:
    """Returns the restore that this thread is in."""
    return _local.restore


def current_path() -> str:
    """Returns the path in the state dict during a restore, for error messages.

    Example:
      >>> import treepack
      >>> treepack.current_path()
      ''
    """
    return "" if _local.restore is None else "/".join(_local.restore.path)


def mismatch(expected: str, found: str, message: str) -> MismatchError:
    """Returns the error for a difference that makes it impossible to go on."""
    return MismatchError(message, [Mismatch(current_path(), expected, found)])
