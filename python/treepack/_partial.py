"""Loading a part of a tree, or a tree from parts: what `load` and `File.load` do with `select=`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from treepack import _core, _paths
from treepack._described import Unknown, check_unknown
from treepack._options import Progress, Strict, telling
from treepack._patterns import renamer, selector
from treepack._placement import Arrays, converter
from treepack._restore import ABSENT, Partial, Report, restore_tree
from treepack.errors import CorruptionError, TreepackError

if TYPE_CHECKING:
    from treepack._open import Tree

Missing = Literal["error", "target"]
"""What becomes of leaves of a template that the file lacks: an error, or they stay as they are."""

Unexpected = Literal["ignore", "error"]
"""What becomes of leaves of a file that a template lacks."""

OnCorrupt = Literal["error", "skip"]
"""What becomes of leaves with another checksum: an error, or they count as missing."""


@dataclasses.dataclass(frozen=True)
class Part:
    """Which leaves are loaded, and what becomes of the others; see `load`."""

    select: Any = None
    rename: Any = None
    missing: Missing = "error"
    unexpected: Unexpected = "ignore"
    verify: bool = False
    on_corrupt: OnCorrupt = "error"
    return_report: bool = False

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {choices}, got {getattr(self, name)!r}")

    @property
    def is_whole(self) -> bool:
        """Whether all is loaded, and nothing more is asked."""
        return self == Part()


_CHOICES: dict[str, tuple[str, ...]] = {
    "missing": ("error", "target"),
    "unexpected": ("ignore", "error"),
    "on_corrupt": ("error", "skip"),
}


@dataclasses.dataclass(frozen=True)
class How:
    """How leaves are loaded; see `load`."""

    strict: Strict = True
    cast: bool = False
    arrays: Arrays = "saved"
    device: Any = None
    sharding: Any = None
    copy: bool | None = None
    unknown: Unknown = "error"
    static: Any = None
    threads: int | None = None
    progress: Progress = None


def load_part(tree: Tree, target: Any, part: Part, how: How) -> Any:
    """Returns a part of a file, alone or in the place of leaves of a target."""
    check_unknown(how.unknown)
    if part.rename is not None and target is None:
        raise ValueError("rename is for a target, whose names are taken")
    catalog = tree._catalog()
    new_path, is_wanted = renamer(part.rename), selector(part.select)
    ends = [(new_path(path), value) for path, value in catalog.ends(tree._value)]
    if len(dict(ends)) < len(ends):
        raise ValueError("rename gives two leaves the same path")
    chosen = {path: value for path, value in ends if is_wanted(path)}
    leaves = {path: value for path, value in chosen.items() if catalog.children(value) is None}
    corrupt = _corrupt(catalog, leaves, part, how) if part.verify else []
    for path in corrupt:
        del chosen[path], leaves[path]
    wanted = bytearray(catalog.values)
    for value in chosen.values():
        wanted[value] = 1
    convert = converter(
        how.arrays,
        how.device,
        how.sharding,
        cast=how.cast,
        threads=how.threads,
        may_change=how.copy is not True and tree._file.may_change,
    )
    if target is None:
        if how.cast:
            raise ValueError("cast=True is for a target, whose dtypes are taken")
        loaded = _assembled(tree, bytes(wanted), convert, how)
        report = Report(list(leaves), [], [], [], corrupt)
    else:
        if part.rename is None:
            state = catalog.read(
                tree._value, copy=how.copy, threads=how.threads, wanted=bytes(wanted), absent=ABSENT
            )
        else:
            state = _renamed_state(tree, ends, set(chosen.values()), how)
        partial = Partial(is_wanted, part.missing == "target", part.unexpected == "error")
        if part.on_corrupt == "skip":
            partial.skipped.update(corrupt)
        loaded = restore_tree(
            target,
            state,
            _paths.ROOT,
            how.strict,
            cast=how.cast,
            convert=convert,
            in_words=False,
            partial=partial,
        )
        report = partial.report(corrupt)
    return (loaded, report) if part.return_report else loaded


def _corrupt(catalog: _core.Catalog, chosen: Mapping[str, int], part: Part, how: How) -> list[str]:
    """Returns the paths of leaves that have another checksum.

    Raises:
      CorruptionError: If there are some, and none may be left out.
    """
    if not catalog.is_summed:
        raise TreepackError(
            "there are no checksums to verify: the file is not from treepack.save, or was made by "
            "dumps"
        )
    with telling(how.progress, "verify") as tell:
        statuses = catalog.verify(threads=how.threads, progress=tell)
    found = [path for path, value in chosen.items() if statuses[catalog.leaf(value)[0]] != "ok"]
    if found and part.on_corrupt == "error":
        raise CorruptionError(f"{listed(found)} damaged: pass on_corrupt='skip' to load all else")
    return found


def listed(paths: list[str], most: int = 10) -> str:
    """Returns paths in words, and a verb for them."""
    more = "" if len(paths) <= most else f" and {len(paths) - most} more"
    verb = "is" if len(paths) == 1 else "are"
    return f"{', '.join(paths[:most])}{more} {verb}"


def _assembled(tree: Tree, wanted: bytes, convert: Any, how: How) -> Any:
    """Returns what is wanted of a tree, with its structure as far as it is whole."""
    catalog = tree._catalog()
    state = catalog.read(0, copy=how.copy, threads=how.threads, wanted=wanted, absent=ABSENT)
    if catalog.trailer is None:
        for part in tree._parts:
            state = state[part]
        found = without_absent(state)
    else:
        found = _core.assemble(
            state,
            catalog.trailer,
            convert=convert,
            unknown_as_dict=how.unknown == "dict",
            placeholders=False,
            static=how.static,
            absent=ABSENT,
            at=tree._parts,
        )
    return {} if found is ABSENT else found


def without_absent(state: Any) -> Any:
    """Returns a state without what was not loaded; what has nothing else is absent, too."""
    if type(state) is list:
        return [None if part is ABSENT else without_absent(part) for part in state]
    if type(state) is not dict or not state:
        return state
    found = {key: without_absent(value) for key, value in state.items()}
    found = {key: value for key, value in found.items() if value is not ABSENT}
    return found or ABSENT


def _renamed_state(tree: Tree, ends: list[tuple[str, int]], chosen: set[int], how: How) -> Any:
    """Returns the state of a tree in which leaves have these paths."""
    catalog = tree._catalog()
    state: Any = {}
    for path, value in ends:
        found: Any = ABSENT
        if value in chosen:
            found = catalog.read(value, copy=how.copy, threads=how.threads)
        parts = _paths.parts(path)
        if not parts:
            return found
        place = state
        for name in parts[:-1]:
            place = place.setdefault(name, {})
            if type(place) is not dict:
                raise ValueError(f"rename puts {path} below a leaf")
        if parts[-1] in place:
            raise ValueError(f"rename puts a leaf at {path}, where others are")
        place[parts[-1]] = found
    return state
