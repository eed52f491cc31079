"""What becomes of leaves where only some of a template are restored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from treepack._src.pytree.state_dict import leaf_paths, state_leaves
from treepack._src.restore.compare import signature

# What becomes of leaves: takes their paths, those of the template, and those that were found.
Convert = Callable[[list[tuple[str, Any, Any]]], list[Any]]


class _Absent:
    """Stands in a state for what is not to be loaded."""

    def __repr__(self) -> str:
        return "absent"


ABSENT = _Absent()


class Partial:
    """A restore of which some leaves stay as the template has them, and what became of all.

    Attributes:
      is_wanted: Tells of a path whether it is to be loaded.
      keeps_missing: Whether what is wanted and not there stays as well.
      refuses_more: Whether there may be nothing that the template lacks.
      skipped: Paths that stay in any case.
      notes: Whether anybody will ask for a report.
    """

    def __init__(
        self,
        is_wanted: Callable[[str], bool],
        keeps_missing: bool,
        refuses_more: bool,
        *,
        notes: bool = True,
    ) -> None:
        self.is_wanted = is_wanted
        self.keeps_missing = keeps_missing
        self.refuses_more = refuses_more
        self.skipped: set[str] = set()
        self.notes = notes
        # Without order and twice: some restores go through the tree two times.
        self._loaded: dict[str, None] = {}
        self._kept: dict[str, None] = {}
        self._unexpected: dict[str, None] = {}
        self._cast: dict[str, None] = {}

    def loaded(self, path: str) -> None:
        """Takes note of a leaf that was loaded."""
        self._loaded[path] = None

    def watching(self, convert: Convert) -> Convert:
        """Returns a function that converts leaves, and takes note of other dtypes."""

        def watched(leaves: list[tuple[str, Any, Any]]) -> list[Any]:
            converted = convert(leaves)
            for (path, _, found), made in zip(leaves, converted, strict=True):
                before, after = signature(found), signature(made)
                if before is not None and after is not None and before.dtype != after.dtype:
                    self._cast[path] = None
            return converted

        return watched

    def keeps(self, target: Any, path: str) -> bool:
        """Tells whether a part of the template that was not found stays as it is."""
        return self.keeps_missing or not any(
            self.is_wanted(leaf) and leaf not in self.skipped for leaf in leaf_paths(target, path)
        )

    def kept(self, target: Any, path: str) -> None:
        """Takes note of a part of the template that stays as it is."""
        if self.notes:
            self._kept.update(dict.fromkeys(leaf_paths(target, path)))

    def unexpected(self, state: Any, path: str) -> bool:
        """Takes note of a part of the state that the template lacks; tells if there was any."""
        found = [leaf for leaf, value in state_leaves(state, path) if value is not ABSENT]
        self._unexpected.update(dict.fromkeys(found))
        return bool(found)

    def report(self, corrupt: list[str]) -> Report:
        """Returns what became of all leaves."""
        return Report(
            list(self._loaded), list(self._kept), list(self._unexpected), list(self._cast), corrupt
        )


class Report(NamedTuple):
    """What became of the leaves of a file and of a template, by path.

    Attributes:
      loaded: Those that are from the file.
      kept: Those of the template that stayed as they were.
      unexpected: Those of the file that the template lacks.
      cast: Those of `loaded` whose dtype is another one than the file's.
      corrupt: Those of the file that were skipped, because they are damaged.
    """

    loaded: list[str]
    kept: list[str]
    unexpected: list[str]
    cast: list[str]
    corrupt: list[str]
