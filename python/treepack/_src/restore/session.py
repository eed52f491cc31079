"""One restore: where it is in a tree, and all that it has found wrong so far.

It belongs to the thread that restores. Handlers of the program call `from_state_dict` in the middle
of it, and take part in it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from treepack._src import paths as _paths
from treepack._src.options import Strict, check_choice
from treepack._src.printable import printable
from treepack._src.restore.report import Convert, Partial
from treepack.errors import Mismatch, MismatchError

# Takes a child of the template, its state, its name and the restore it is part of.
RestoreChild = Callable[[Any, Any, str, "Restore"], Any]

# What a mismatch has in the place of what is not there.
NOTHING = "nothing"


class Restore:
    """One restore, from the outermost call to its end, as a context manager.

    While it is entered, it is what this thread restores; another one that was under
    way is set aside meanwhile. Leaving it raises an error for what it found wrong.

    Attributes:
      strict: How strict it is; inner calls inherit it.
      cast: Whether floats may have another dtype than the template's.
      in_words: Whether its error says first what flax says.
      partial: What stays as the template has it, if not all is restored.
      kinds: What was saved where, if that is compared: see `_core.other_kinds`.
      child: The function that restores a child of the template.
      path: The names from the root to where it is.
      mismatches: The differences so far by path, so that none is told twice.
      sentence: What flax says of the first difference in structure.
      convert: Converts leaves, if that is asked for: then it goes through the tree two times.
      found: The leaves so far that are to be converted, while it collects them.
      converted: By path, what was found and what takes its place, once they are converted.
      handled: By path, the state that a handler makes of its template, if it makes one.
    """

    def __init__(
        self,
        strict: Strict,
        child: RestoreChild,
        *,
        cast: bool = False,
        in_words: bool = True,
        partial: Partial | None = None,
        kinds: dict[str, str] | None = None,
        convert: Convert | None = None,
    ):
        self.convert = convert
        self.partial = partial
        self.kinds = kinds
        check_choice("strict", strict)
        self.strict = strict
        self.cast = cast
        self.in_words = in_words
        self.child = child
        self.path: list[str] = []
        self.mismatches: dict[str, Mismatch] = {}
        self.sentence: str | None = None
        self.found: list[tuple[str, Any, Any]] | None = None
        self.converted: dict[str, list[tuple[Any, Any]]] | None = None
        self.handled: dict[str, tuple[Any, ...]] = {}
        self._outer: Restore | None = None

    def __enter__(self) -> Restore:
        self._outer, _local.restore = _local.restore, self
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        _local.restore = self._outer
        if kind is None and self.mismatches:
            raise self.error()

    def error(self) -> MismatchError:
        """Returns the error that tells all differences so far."""
        found = list(self.mismatches.values())
        singular, plural = ("leaf", "leaves") if self.sentence is None else ("place", "places")
        count = f"1 {singular} does" if len(found) == 1 else f"{len(found)} {plural} do"
        lines = [f"\n  {printable(_line(mismatch))}" for mismatch in found[:_MOST_LINES]]
        if len(found) > _MOST_LINES:
            lines.append(f"\n  and {len(found) - _MOST_LINES} more, in the error's mismatches")
        text = f"{count} not match the template:{''.join(lines)}"
        if self.sentence is None:
            of_names = any(NOTHING in (it.expected, it.found) for it in found)
            hint = "" if of_names else "\nPass strict=False to restore what is found regardless."
            return MismatchError(f"{text}{hint}", found)
        if not self.in_words:
            return MismatchError(text, found)
        error = MismatchError(self.sentence, found)
        error.add_note(text)
        return error

    def below(self, child: Any, state: Any, name: str) -> Any:
        """Returns a child of the template with its state."""
        return self.child(child, state, name, self)

    def whole(self, target: Any, state: Any, name: str) -> Any:
        """Returns a tree with its state, and with converted leaves if that is asked for.

        Then it goes through the tree once to compare and to collect the leaves, without any code
        of the types in it, and once more to make the tree.
        """
        if self.convert is None:
            return self.below(target, state, name)
        outer = self.found, self.converted, self.handled
        self.found, self.converted, self.handled = [], None, {}
        try:
            self.below(target, state, name)
            if self.mismatches:
                return target  # an error follows
            found, self.found, self.converted = self.found, None, {}
            for (path, _, leaf), made in zip(found, self.convert(found), strict=True):
                self.converted.setdefault(path, []).append((leaf, made))
            return self.below(target, state, name)
        finally:
            self.found, self.converted, self.handled = outer

    @property
    def converts(self) -> bool:
        """Whether leaves are converted, so that none may be missed."""
        return self.found is not None or self.converted is not None

    @property
    def collects(self) -> bool:
        """Whether it only compares and collects leaves: no code of the types runs."""
        return self.found is not None

    @contextlib.contextmanager
    def part(self, strict: Strict) -> Iterator[None]:
        """Is more or less strict for a part of the tree.

        What a part found wrong is forgotten if it ends in an error: whoever catches
        that may go another way.
        """
        outer = self.strict, self.sentence
        found = dict(self.mismatches)
        check_choice("strict", strict)
        self.strict = strict
        try:
            yield
        except BaseException:
            self.mismatches, self.sentence = found, outer[1]
            raise
        finally:
            self.strict = outer[0]

    def path_of(self, name: str) -> str:
        """Returns how the child `name` of the current place is written."""
        return _paths.text(part for part in [*self.path, name] if part is not _HERE)

    def note(self, name: str, expected: str, found: str, similar: str = "") -> None:
        """Notes a difference at the child `name` of the current place."""
        path = self.path_of(name)
        self.mismatches.setdefault(path, Mismatch(path, expected, found, similar))

    def keep(self, target: Any, name: str) -> Any:
        """Returns a part of the template that stays as it is."""
        if self.partial is not None:
            self.partial.kept(target, self.path_of(name))
        return target

    def leaf(self, target: Any, state: Any, name: str) -> Any:
        """Returns a leaf, or what it is converted to, or keeps it for that."""
        path = self.path_of(name)
        if self.found is not None:
            self.found.append((path, target, state))
        elif self.converted is not None:
            for found, made in self.converted.get(path, ()):
                if found is state:
                    return made
        return state

    @contextlib.contextmanager
    def without_kinds(self) -> Iterator[None]:
        """Compares no kinds of containers: what is below is not as it was saved."""
        outer, self.kinds = self.kinds, None
        try:
            yield
        finally:
            self.kinds = outer

    @contextlib.contextmanager
    def as_found(self) -> Iterator[None]:
        """Leaves all leaves below as they are."""
        outer = self.convert, self.found, self.converted
        self.convert = self.found = self.converted = None
        try:
            yield
        finally:
            self.convert, self.found, self.converted = outer


class _Name(str):
    """A name that is told from an equal key of a dict."""


# What `name="."` is inside: the place where it is said, and no child of it.
_HERE = _Name(_paths.ROOT)


def as_part(name: str) -> str:
    """Returns a name that a caller gave, for a path."""
    return _HERE if name == _HERE else name


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
      >>> treepack.serialization.current_path()
      ''
    """
    return "" if _local.restore is None else "/".join(_local.restore.path)


# The most lines of differences that a message has; all are in its `mismatches`.
_MOST_LINES = 50


def _line(found: Mismatch) -> str:
    if found.found == NOTHING:
        hint = f"; is it {found.similar}?" if found.similar else ""
        return f"{found.path}: missing (expected {found.expected}){hint}"
    if found.expected == NOTHING:
        return f"{found.path}: unexpected (found {found.found})"
    return f"{found.path}: expected {found.expected}, found {found.found}"
