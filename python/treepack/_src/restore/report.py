"""Coverage: the leaves that a partial restore loads, keeps and casts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from treepack._src.paths import Room, Trail
from treepack._src.pytree.state_dict import leaf_paths, state_leaves
from treepack._src.restore.compare import signature

# Converts leaves: takes (trail, the template's leaf, the leaf found) of each. Without a template,
# the second is `None`, and two more say whether the dtype of the array was weak, and its sharding.
Convert = Callable[[list[Any]], list[Any]]


class _Absent:
    """Marks parts of a state that are not to be loaded."""

    def __repr__(self) -> str:
        return "absent"


ABSENT = _Absent()


class Coverage:
    """The leaves of a template that a restore covers; the others stay.

    Attributes:
      is_wanted: Returns whether the leaf at a path is to be loaded.
      keeps_missing: Whether wanted leaves that the state lacks stay as well.
      takes_more: Whether the state may have leaves that the template lacks; `None` if only where
        the template has a mapping.
      skipped: Paths that stay in any case.
      notes: Whether a report will be asked for.
      absent: Stands in the state for parts that are not to be loaded.
    """

    absent = ABSENT

    def __init__(
        self,
        is_wanted: Callable[[str], bool],
        keeps_missing: bool,
        takes_more: bool | None,
        *,
        notes: bool = True,
    ) -> None:
        self.is_wanted = is_wanted
        self.keeps_missing = keeps_missing
        self.takes_more = takes_more
        self.skipped: set[str] = set()
        self.notes = notes
        self._room = Room()
        # Dicts, since some restores walk the tree twice.
        self._loaded: dict[str, None] = {}
        self._kept: dict[str, None] = {}
        self._unexpected: dict[str, None] = {}
        self._cast: dict[str, None] = {}

    def _note(self, noted: dict[str, None], paths: Iterable[str | Trail]) -> None:
        if self.notes:
            noted.update((self._room.text(path), None) for path in paths)

    def loaded(self, path: Trail) -> None:
        """Notes a loaded leaf."""
        self._note(self._loaded, [path])

    def restored(self, loaded: list[Trail], kept: list[tuple[Trail, Any]]) -> None:
        """Notes loaded leaves, and parts of the template that stay, for the core."""
        for path in loaded:
            self.loaded(path)
        for path, part in kept:
            self.kept(part, path)

    def was_cast(self, path: Trail) -> None:
        """Notes a leaf whose dtype changes."""
        self._note(self._cast, [path])

    def watching(self, convert: Convert) -> Convert:
        """Wraps a function that converts leaves: it notes those whose dtype changes."""

        def watched(leaves: list[Any]) -> list[Any]:
            converted = convert(leaves)
            for (path, _, found, *_), made in zip(leaves, converted, strict=True):
                before, after = signature(found), signature(made)
                if before is not None and after is not None and before.dtype != after.dtype:
                    self.was_cast(path)
            return converted

        return watched

    def keeps(self, target: Any, path: Trail) -> bool:
        """Returns whether a part of the template that the state lacks stays."""
        return self.keeps_missing or not any(
            self.is_wanted(leaf) and leaf not in self.skipped for leaf in leaf_paths(target, path)
        )

    def kept(self, target: Any, path: Trail) -> None:
        """Notes a part of the template that stays."""
        self._note(self._kept, leaf_paths(target, path))

    def unexpected(self, state: Any, path: Trail) -> bool:
        """Notes leaves of the state that the template lacks; returns whether there are any."""
        found = (leaf for leaf, value in state_leaves(state, path) if value is not ABSENT)
        first = next(found, None)
        if first is not None:
            self._note(self._unexpected, itertools.chain([first], found))
        return first is not None

    def report(self, corrupt: list[str]) -> Report:
        """Returns the report on all leaves."""
        return Report(
            list(self._loaded), list(self._kept), list(self._unexpected), list(self._cast), corrupt
        )


class Report(NamedTuple):
    """The outcome for each leaf of a file and of a template, by path.

    Attributes:
      loaded: Leaves from the file.
      kept: Leaves of the template that stayed.
      unexpected: Leaves of the file that the template lacks.
      cast: Leaves of `loaded` whose dtype differs from the file's.
      corrupt: Damaged leaves of the file, which were skipped.

    Examples:
      >>> import numpy as np, treepack
      >>> data, template = treepack.dumps({"w": np.ones(3)}), {"w": np.zeros(3), "b": np.zeros(1)}
      >>> _, report = treepack.load(data, template, missing="target", return_report=True)
      >>> report.loaded, report.kept
      (['w'], ['b'])
    """

    loaded: list[str]
    kept: list[str]
    unexpected: list[str]
    cast: list[str]
    corrupt: list[str]
