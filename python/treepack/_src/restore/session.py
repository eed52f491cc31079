"""The state of one restore: its current path and all mismatches so far.

It belongs to the thread that restores, where handlers of the program call `from_state_dict`.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import treepack._core as core
from treepack._src import paths as _paths
from treepack._src.leaves.signature import like_scalar, signature
from treepack._src.options import Reading, Strict
from treepack._src.paths import PathBudget, Trail
from treepack._src.printable import printable
from treepack._src.restore.compare import EMPTY, NOTHING, difference
from treepack._src.restore.hints import (
    Level,
    about_axes,
    about_beginnings,
    about_leaves,
    about_names,
    about_root,
    is_reshaped,
)
from treepack._src.restore.report import Convert, Coverage
from treepack.errors import Mismatch, MismatchError

# Restores a child: takes the template's child, its state, its name, and the current restore.
RestoreChild = Callable[[Any, Any, str, "Restore"], Any]

# A leaf of a template and the leaf found there: (trail, the template's leaf, the leaf found).
FoundLeaf = tuple[Trail, Any, Any]


class Restore:
    """One restore, from the outermost call to its end, as a context manager.

    While entered, it is the restore of this thread; an outer one is suspended. Exiting raises an
    error for its mismatches. The core reads `path`, `strict`, `partial`, `kinds`, `mismatches`,
    `converts`, `everywhere` and `collects`, and calls `path_of`, `settle`, `convert_found` and
    `restore_child`.

    Attributes:
      everywhere: Whether it also converts leaves where the template has NumPy arrays.
      kinds: The kinds of the saved containers; see `_core.mark_older`.
      convert: Converts leaves. If it is set, walks over states visit the tree twice.
      cells: For each of `collected`, a one-element list that receives its conversion.
      conversions: Leaves and their conversions that are not in `converted` yet.
      converted: Leaves and their conversions by path, once another walk looks one up.
      deeper: Old and new path of a leaf that is one level deeper in the state, or in the template.
      level: The first node whose children are one level away from it in the state.
      has_shareable: Whether the template has nodes that may be in several places; see `ties.py`.
    """

    def __init__(
        self,
        reading: Reading,
        restore_child: RestoreChild,
        *,
        in_core: bool = True,
        partial: Coverage | None = None,
        kinds: dict[int, str] | None = None,
        convert: Convert | None = None,
    ):
        self.reading = reading
        self.strict = reading.strict
        self.everywhere = reading.everywhere
        self.restore_child = restore_child
        self.child: RestoreChild = core.restore_state if in_core else restore_child
        self.partial = partial
        self.kinds = kinds
        self.convert = convert
        self.path: list[str] = []
        self.mismatches: dict[str, Mismatch] = {}
        self.flax_message: str | None = None
        self.collected: list[FoundLeaf] | None = None
        self.cells: list[list[Any]] = []
        self.conversions: list[tuple[FoundLeaf, Any]] = []
        self.converted: dict[Trail, list[tuple[Any, Any]]] | None = None
        self.deeper: tuple[Trail, Trail] | None = None
        self.level: Level | None = None
        self.has_shareable = False
        self._budget = PathBudget()
        self._is_cut = False
        # The parts of `path` at the last call of `here`, and the trail of each.
        self._trails: list[tuple[str, Trail]] = []
        self._outer: Restore | None = None

    def __enter__(self) -> Restore:
        self._outer, _local.restore = _local.restore, self
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        _local.restore = self._outer
        if kind is None and self.mismatches:
            raise self.error()

    def error(self) -> MismatchError:
        mismatches = list(self.mismatches.values())
        singular, plural = ("leaf", "leaves") if self.flax_message is None else ("place", "places")
        count = f"1 {singular} does" if len(mismatches) == 1 else f"{len(mismatches)} {plural} do"
        count = f"at least {count}" if self._is_cut else count
        lines = [f"\n  {printable(_line(mismatch))}" for mismatch in mismatches[:_MOST_LINES]]
        if len(mismatches) > _MOST_LINES:
            lines.append(f"\n  and {len(mismatches) - _MOST_LINES} more, in the error's mismatches")
        text = f"{count} not match the template:{''.join(lines)}"
        if hint := about_root(mismatches):
            return MismatchError(f"{text}\n{hint}", mismatches)
        is_native = not self.reading.is_drop_in  # the drop-in functions have fewer options
        names, hints = mismatches, []
        if is_native and self.level is not None:
            names = [each for each in mismatches if not self.level.explains(each)]
            hints = [self.level.hint]
        names_of, lacks, has_function = None, {}, False
        if self.partial is not None:
            names_of, lacks = self.partial.names, self.partial.lacks
            has_function = self.partial.has_function
        if is_native:
            hints += about_names(
                names, self.deeper, names_of, has_function=has_function, unruled=lacks
            )
        hints += about_beginnings(mismatches)
        if is_native:
            hints += about_axes(mismatches, names_of, has_function=has_function)
        texts = [
            f"{printable(path)}: {printable(text)}"
            for path, text in lacks.items()
            if any(f"{path}/".startswith(f"{each.path}/") for each in mismatches)
        ]
        hints += texts[:_MOST_LACKS]
        hints += about_leaves(mismatches) if is_native else ()
        if self.flax_message is None and not any(
            NOTHING in mismatch[1:3]
            or (is_native and (mismatch.found in ("None", EMPTY) or is_reshaped(mismatch)))
            for mismatch in mismatches
        ):
            hints.append("Pass strict=False to take the shapes and dtypes of the file.")
        text = "\n".join([text, *hints])
        if self.flax_message is None or is_native:
            return MismatchError(text, mismatches)
        error = MismatchError(self.flax_message, mismatches)
        error.add_note(text)
        return error

    def takes_more(self, in_mapping: bool) -> bool:
        if self.partial is not None and self.partial.takes_more is not None:
            return self.partial.takes_more
        return in_mapping and self.strict != "exact"

    def below(self, child: Any, state: Any, name: str) -> Any:
        return self.child(child, state, name, self)

    def whole(self, target: Any, state: Any, name: str) -> Any:
        """Restores a tree, and converts its leaves if `convert` is set.

        Then it walks twice: to compare and collect the leaves, without code of the types, and to
        build the tree.
        """
        if self.convert is None:
            return self.below(target, state, name)
        with self.conversion():
            self.below(target, state, name)
            if self.mismatches:
                return target  # an error follows
            self.convert_found()
            return self.below(target, state, name)

    def conversion(self) -> AbstractContextManager[None]:
        """Collects leaves until `convert_found` converts them; a no-op without `convert`."""
        if self.convert is None:
            return contextlib.nullcontext()
        return self._with(collected=[], cells=[], conversions=[], converted=None)

    def convert_found(self) -> None:
        assert self.collected is not None
        assert self.convert is not None
        self.converted, conversions = {}, self.convert(self.collected)
        for cell, value in zip(self.cells, conversions, strict=True):
            cell[0] = value
        self.conversions, self.collected = [*zip(self.collected, conversions, strict=True)], None

    def settle(self, leaves: list[FoundLeaf]) -> list[Any]:
        for path, target, state in leaves:
            texts = difference(target, state, self.strict, cast=self.reading.casts)
            if texts is not None:
                self.note_at(path, *texts)
        return [self._settled(*leaf) for leaf in leaves]

    @property
    def converts(self) -> bool:
        """Whether leaves are converted, so that the walk must not skip any."""
        return self.collected is not None or self.converted is not None

    @property
    def collects(self) -> bool:
        """Whether it only compares and collects leaves, without running code of the types."""
        return self.collected is not None

    @contextlib.contextmanager
    def part(self, strict: Strict) -> Iterator[None]:
        """Changes `strict` for a part of the tree.

        Drops the mismatches of a part that raises: its handler may try something else.
        """
        message, mismatches = self.flax_message, dict(self.mismatches)
        try:
            with self._with(strict=strict):
                yield
        except BaseException:
            self.mismatches, self.flax_message = mismatches, message
            raise

    def path_of(self, name: str) -> Trail:
        return _below(self.here(), name)

    def here(self) -> Trail:
        trails = self._trails
        pairs = zip(trails, self.path, strict=False)
        shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0][0] is pair[1], pairs))
        del trails[shared:]
        trail = trails[-1][1] if trails else Trail()
        for part in self.path[shared:]:
            trail = _below(trail, part)
            trails.append((part, trail))
        return trail

    def note(self, name: str, expected: str, found: str, similar: str = "") -> None:
        self.note_at(self.path_of(name), expected, found, similar)

    def note_here(self, expected: str, found: str) -> None:
        self.note_at(self.here(), expected, found)

    def note_at(self, trail: Trail, expected: str, found: str, similar: str = "") -> None:
        path = str(trail)
        if self.mismatches and not self._budget.takes(path):
            self._is_cut = True  # the list would become too long
            raise self.error()
        self.mismatches.setdefault(path, Mismatch(path, expected, found, similar))

    def use_flax_message(self, message: str) -> None:
        self.flax_message = self.flax_message or message

    def keep(self, target: Any, name: str) -> Any:
        if self.partial is not None:
            self.partial.kept(target, self.path_of(name))
        return target

    def leaf(self, target: Any, state: Any, name: str) -> Any:
        return self._settled(self.path_of(name), target, state)

    def _settled(self, path: Trail, target: Any, state: Any) -> Any:
        value = state if self.reading.is_drop_in else like_scalar(target, state)
        is_array = self.converts and signature(target) is not None
        if self.collected is not None:
            cell = [value]
            if is_array:
                self.collected.append((path, target, state))
                self.cells.append(cell)
            return cell
        if self.converted is not None and is_array:
            for (place, _, leaf), conversion in self.conversions:
                self.converted.setdefault(place, []).append((leaf, conversion))
            self.conversions = []
            pairs = self.converted.get(path, ())
            return next((conversion for leaf, conversion in pairs if leaf is state), value)
        return value

    def without_conversion(self) -> AbstractContextManager[None]:
        return self._with(convert=None, collected=None, converted=None)

    @contextlib.contextmanager
    def _with(self, **values: Any) -> Iterator[None]:
        outer = {name: getattr(self, name) for name in values}
        vars(self).update(values)
        try:
            yield
        finally:
            vars(self).update(outer)


class _Name(str):
    """A name that is distinguishable from an equal dict key."""


# Represents `name="."`: the current node instead of a child.
_HERE = _Name(_paths.ROOT)


def as_part(name: str) -> str:
    return _HERE if name == _HERE else name


def _below(trail: Trail, name: str) -> Trail:
    return trail if name is _HERE else Trail(trail, name)


class _Local(threading.local):
    restore: Restore | None = None


_local = _Local()


def current() -> Restore | None:
    return _local.restore


def current_path() -> str:
    """Returns the current path in the state dict during a restore, for error messages.

    Examples:
      >>> import treepack
      >>> treepack.serialization.current_path()
      ''
    """
    return "" if _local.restore is None else "/".join(_local.restore.path)


# The maximum number of differences in a message; `mismatches` has all.
_MOST_LINES = 50

# The maximum number of reasons why a mapping lacks leaves.
_MOST_LACKS = 3

# The maximum number of characters of a path in a message.
_MOST_PATH = 1000


def _line(mismatch: Mismatch) -> str:
    path = mismatch.path
    if len(path) > _MOST_PATH:
        path = f"{path[: _MOST_PATH // 2]}…{path[-_MOST_PATH // 2 :]}"
    if mismatch.found == NOTHING:
        hint = f"; is it {mismatch.similar}?" if mismatch.similar else ""
        return f"{path}: missing (expected {mismatch.expected}){hint}"
    if mismatch.expected == NOTHING:
        return f"{path}: unexpected (found {mismatch.found})"
    return f"{path}: expected {mismatch.expected}, found {mismatch.found}"
