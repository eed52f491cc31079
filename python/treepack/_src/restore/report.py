from __future__ import annotations

import difflib
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from treepack._src import paths as _paths
from treepack._src.advice import hint_for, unknown_attribute
from treepack._src.interop import jax as _jax
from treepack._src.leaves.absent import ABSENT
from treepack._src.leaves.signature import signature
from treepack._src.paths import PathBudget, Trail
from treepack._src.printable import MOST_ROWS, path_end, printable, shortened, warn
from treepack._src.pytree.state_dict import leaves_of
from treepack._src.restore.compare import NOTHING, described, is_opaque
from treepack.errors import Mismatch, MismatchError

# Converts leaves: takes a (trail, leaf of the template, leaf found) for each. Without a template,
# the second item is `None`, and two more items follow: whether the dtype was weak, and the
# sharding.
Convert = Callable[[list[Any]], list[Any]]


class Coverage:
    """The leaves of a template that a restore covers; the others stay unchanged.

    Attributes:
      keeps_missing: Whether wanted leaves that the state lacks stay unchanged.
      takes_more: Whether the state may have leaves that the template lacks; `None` allows them only
        in mappings of the template.
      lacks: By path, why a mapping does not make leaves.
      names: With a mapping, the paths of leaves in the file by those in the tree.
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
        self.lacks: dict[str, str] = {}
        self.names: Mapping[str, str] | None = None
        self.has_function = False
        self._budget = PathBudget()
        # Dicts, since some restores walk the tree twice.
        self._loaded: dict[str, None] = {}
        self._kept: dict[str, Any] = {}  # with the leaves
        self._unexpected: dict[str, None] = {}
        self._cast: dict[str, None] = {}
        self._left: dict[str, None] = {}

    def _note(self, noted: dict[str, None], paths: Iterable[str | Trail]) -> None:
        if self.notes:
            noted.update((self._budget.text(path), None) for path in paths)

    def loaded(self, path: Trail) -> None:
        self._note(self._loaded, [path])

    def restored(self, loaded: list[Trail], kept: list[tuple[Trail, Any]]) -> None:
        self._note(self._loaded, loaded)
        for path, part in kept:
            self.kept(part, path)

    def was_cast(self, path: Trail) -> None:
        self._note(self._cast, [path])

    def watching(self, convert: Convert) -> Convert:
        def watched(leaves: list[Any]) -> list[Any]:
            converted = convert(leaves)
            for (path, _, old, *_), new in zip(leaves, converted, strict=True):
                before, after = signature(old), signature(new)
                if before is not None and after is not None and before.dtype != after.dtype:
                    self.was_cast(path)
            return converted

        return watched

    def keeps(self, target: Any, path: Trail | list[str]) -> bool:
        return self.keeps_missing or not any(
            self.is_wanted(leaf) and leaf not in self.skipped for leaf, _ in _leaves(target, path)
        )

    def kept(self, target: Any, path: Trail) -> None:
        if self.notes:
            self._kept.update(self._budget.all(_leaves(target, path)))

    def unexpected(self, state: Any, path: Trail) -> bool:
        leaves = (leaf for leaf, value in state_leaves(state, path) if value is not ABSENT)
        first = next(leaves, None)
        if first is not None:
            self._note(self._unexpected, itertools.chain([first], leaves))
        return first is not None

    def unused(self, paths: Collection[str], refusal: str | None) -> None:
        if paths and refusal is not None:
            raise MismatchError(refusal, [Mismatch(path, NOTHING, "a leaf") for path in paths])
        self._note(self._unexpected, paths)

    def left(self, paths: Iterable[str]) -> None:
        self._note(self._left, paths)

    def check_values(self, corrupt: Collection[str]) -> None:
        """Raises a MismatchError if a wanted, undamaged leaf stays a `ShapeDtypeStruct`.

        Only warns if the whole state is loaded: it may be one of several files.
        """
        lacking = [leaf for leaf in self.wanted(corrupt) if _jax.is_struct(self._kept[leaf.path])]
        if lacking and self._loaded and not (self._unexpected or self.skipped):
            paths = _listed([leaf.path for leaf in lacking])
            warn(f"jax.ShapeDtypeStructs stay in the tree where the file has no leaf: {paths}")
        elif lacking:
            raise MismatchError(
                "the template has no values to keep: pass a template with arrays, not "
                f"jax.ShapeDtypeStructs, for {_listed([leaf.path for leaf in lacking])}",
                lacking,
            )

    def check_loads(self, target: Any) -> None:
        """Raises a MismatchError if the state has leaves, but the target comes back unchanged."""
        kept = self.wanted()
        skipped = (f"{path} of another shape" for path in self.skipped)
        there = [*self._unexpected, *skipped] or [*self._left]
        stays = kept and there and not self._loaded
        if stays and all(
            _paths.text(parts) in self._kept or is_opaque(leaf)
            for parts, leaf in leaves_of(target, ())
        ):
            raise MismatchError(
                "no leaf of the file fits the template, so nothing is loaded: pass mapping= if "
                "leaves have other names (treepack.load with return_report=True allows it); the "
                "template has "
                f"{_listed([leaf.path for leaf in kept])}, "
                f"the file {_listed(there)}",
                [*kept, *(Mismatch(path, NOTHING, "a leaf") for path in self._unexpected)],
            )

    def warn_of_unlike(self) -> bool:
        """Returns whether it has warned."""
        kept = {leaf.path for leaf in self.wanted()}
        ours = self._kept.keys() | self._loaded.keys()
        unused = self._unexpected.keys() | self._left.keys() - ours
        names: list[str] = []
        for depth in (1, 2):
            ours, theirs, loaded = (
                {"/".join(path.split("/")[:depth]) for path in paths if path.count("/") >= depth}
                for paths in (kept, unused, self._loaded)
            )
            names += [path for path in (ours & theirs) - loaded if path.split("/")[0] not in names]
        if names:
            name = min(names)
            warn(
                f'missing="target" keeps all of {name}, as the file has only other leaves there: '
                f"pass mapping= if they have other names, or exclude={name!r} to keep it"
            )
            return True
        if moved := _moved(kept, unused):
            new, old = (path_end(printable(path)) for path in moved)
            there, change = ("the file has", f"pass mapping={{{new!r}: {old!r}}}")
            if self.names is not None:  # a rule may make this path
                there, change = "mapping= gives", "change mapping="
            warn(
                f'missing="target" keeps {new}, and {there} leaves at {old} that are not used: '
                f"{change} if they are the same, or exclude={new!r} to keep it"
            )
            return True
        return False

    def wanted(self, corrupt: Collection[str] = ()) -> list[Mismatch]:
        return [
            Mismatch(path, described(leaf), "another shape" if path in self.skipped else NOTHING)
            for path, leaf in self._kept.items()
            if path not in corrupt and self.is_wanted(path)
        ]

    def report(self, corrupt: list[str], unverified: list[str]) -> Report:
        return Report(
            list(self._loaded),
            list(self._kept),
            list(self._unexpected),
            list(self._cast),
            corrupt,
            unverified,
        )


def _leaves(tree: Any, path: Trail | list[str]) -> Iterator[tuple[str, Any]]:
    leaves = leaves_of(tree, tuple(_paths.parts(path)))
    return ((_paths.text(parts), leaf) for parts, leaf in leaves)


def state_leaves(state: Any, path: Trail, *, ends: bool = False) -> Iterator[tuple[Trail, Any]]:
    if not isinstance(state, Mapping) or (ends and not state):
        yield path, state
        return
    for key, child in state.items():
        yield from state_leaves(child, Trail(path, str(key)), ends=ends)


def _moved(ours: Collection[str], theirs: Collection[str]) -> tuple[str, str] | None:
    for deep, flat in ((theirs, ours), (ours, theirs)):
        for path in deep:
            rest = path.partition("/")[2]
            for tail in (rest, rest.partition("/")[2]):
                if "/" in tail and tail in flat:
                    return _without_tail(*((tail, path) if deep is theirs else (path, tail)))
            for above, name, below in _names(path):  # one name more in the middle
                if above and len(below) > 1 and "/".join((*above, *below)) in flat:
                    long, short = ("/".join((*above, *more, below[0])) for more in ([name], []))
                    return (short, long) if deep is theirs else (long, short)
    return _alike(ours, theirs)


def _alike(ours: Collection[str], theirs: Collection[str]) -> tuple[str, str] | None:
    rests: dict[tuple[str, ...], list[str]] = {}
    for path in sorted(theirs)[:_MOST_COMPARED]:
        for head, name, rest in _names(path):
            rests.setdefault((*head, "", *rest), []).append(name)
    beside = None
    for path in sorted(ours)[:_MOST_COMPARED]:
        for head, name, rest in _names(path):
            names = rests.get((*head, "", *rest), [])[:10]
            begun = [it for it in names if rest and (it.startswith(name) or name.startswith(it))]
            for near in difflib.get_close_matches(name, names, n=1, cutoff=0.75) or begun[:1]:
                return "/".join((*head, name)), "/".join((*head, near))
            if names and head and not rest:
                beside = beside or (path, "/".join((*head, names[0])))
    return beside


def _names(path: str) -> Iterator[tuple[list[str], str, list[str]]]:
    """Yields each name, between those before and after it; numbers are always similar."""
    parts = path.split("/") if len(path) <= _MOST_PATH else []
    for at, name in enumerate(parts) if len(parts) > 1 else ():
        if not name.isdecimal():
            yield parts[:at], name, parts[at + 1 :]


def _without_tail(one: str, other: str) -> tuple[str, str]:
    ours, theirs = one.split("/"), other.split("/")
    while min(len(ours), len(theirs)) > 1 and ours[-1] == theirs[-1]:
        del ours[-1], theirs[-1]
    return "/".join(ours), "/".join(theirs)


# The maximum number of paths in each list of a report's repr.
_MOST_LISTED = MOST_ROWS // 6

# The maximum number of characters of a path in a list.
_MOST_PATH = 200

# Limits the search for similar names, which is slow.
_MOST_COMPARED = 1000


def _listed(paths: Collection[str]) -> str:
    return shortened((printable(path[:_MOST_PATH]) for path in paths), len(paths))


class Report(NamedTuple):
    """The paths of leaves by outcome, as `load(return_report=True)` returns them.

    Attributes:
      loaded: Leaves from the file.
      kept: Leaves of the template that stayed unchanged.
      unexpected: Leaves of the file that the template lacks.
      cast: Leaves of `loaded` whose dtype differs from the dtype in the file.
      corrupt: Leaves that were skipped: damaged, or their checksum is lost.
      unverified: Leaves of `loaded` whose checksums a damaged file has lost.

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
    unverified: list[str]

    def __repr__(self) -> str:
        fields = zip(self._fields, self, strict=True)
        lists = [
            f"{name}=[{shortened(map(repr, map(path_end, paths)), len(paths), _MOST_LISTED)}]"
            for name, paths in fields
        ]
        return f"Report({', '.join(lists)})"


def _unknown(report: Report, name: str) -> Any:
    raise unknown_attribute(report, name, hint_for(Report, name))


if not TYPE_CHECKING:  # type checkers would accept any attribute; a named tuple has no other base
    Report.__getattr__ = _unknown
