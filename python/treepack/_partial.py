"""Loading a part of a tree, or a tree from parts: what `load` and `File.load` do with `select=`."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from treepack import _core, _paths
from treepack._described import Reading
from treepack._lazy import LazyArray
from treepack._libraries import jax as _jax
from treepack._options import telling
from treepack._patterns import Renaming, Selection
from treepack._placement import leaves_of
from treepack._report import ABSENT, Partial, leaf_paths
from treepack._restore import restore_selected, restore_tree
from treepack._sharded.reading import ShardedArray
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
    def verifies(self) -> bool:
        """Whether leaves are compared with their checksums."""
        return self.verify or self.on_corrupt == "skip"

    @property
    def is_whole(self) -> bool:
        """Whether all is loaded, and nothing more is asked."""
        return self == Part()


_CHOICES: dict[str, tuple[str, ...]] = {
    "missing": ("error", "target"),
    "unexpected": ("ignore", "error"),
    "on_corrupt": ("error", "skip"),
}


def load_part(tree: Tree, target: Any, part: Part, how: Reading) -> Any:
    """Returns a part of a file, alone or in the place of leaves of a target."""
    how.check(target)
    if part.rename is not None and target is None:
        raise ValueError("rename is for a target, whose names are taken")
    found = _choose(tree, target, part, how)
    partial = Partial(
        found.selection.means,
        part.missing == "target",
        part.unexpected == "error",
        notes=part.return_report,
    )
    partial.skipped.update(found.corrupt)
    convert = how.converter(may_change=tree._file.may_change, copy=how.copy)
    if convert is not None and part.return_report:
        convert = partial.watching(convert)
    if target is None:
        loaded = _assembled(tree, found.marks, convert, how)
        report = partial.report(found.corrupt)
        if part.return_report:
            report = report._replace(loaded=_paths_of(tree, found.marks))
    else:
        loaded = _restored(tree, target, found, partial, convert, how)
        report = partial.report(found.corrupt)
    return (loaded, report) if part.return_report else loaded


def _restored(
    tree: Tree, target: Any, found: _Choice, partial: Partial, convert: Any, how: Reading
) -> Any:
    """Returns the target with what was chosen of a file in its place."""
    catalog = tree._catalog()
    trailer = catalog.trailer
    if found.renamed is not None:
        _check_renamed(trailer)
        record = None
        state = _renamed_state(tree, found.renamed, found.marks, how, _on_devices(target))
    else:
        if tree._file._shards is None:
            restored = restore_selected(
                target,
                catalog,
                tree._value,
                how.strict,
                marks=found.marks,
                selector=found.selection.selector,
                partial=partial,
                copy=how.copy,
                threads=how.threads,
                cast=how.cast,
                convert=convert,
            )
            if restored is not None:
                return restored[0]
        record = None if trailer is None else (trailer, tree._positions())
        state = _read(tree, found.marks, how, _on_devices(target))
    return restore_tree(
        target,
        state,
        _paths.ROOT,
        how.strict,
        cast=how.cast,
        convert=convert,
        in_words=False,
        partial=partial,
        record=record,
    )


def _check_renamed(trailer: bytes | None) -> None:
    """Raises if there are nodes to be upgraded, which might have other names then."""
    if trailer is not None and _core.has_older_types(trailer):
        raise TreepackError(
            "rename is not for files with nodes that are to be upgraded: load them without it"
        )


class _Choice(NamedTuple):
    """What is to be loaded.

    Attributes:
      selection: Tells of a path whether it is meant.
      marks: The leaves and empty containers that are loaded; `None` for all.
      renamed: The new paths of all leaves and empty containers, if they are renamed.
      corrupt: The new paths of leaves that are left out, because they are damaged.
    """

    selection: Selection
    marks: _core.Marks | None
    renamed: dict[str, str] | None
    corrupt: list[str]


def _choose(tree: Tree, target: Any, part: Part, how: Reading) -> _Choice:
    catalog = tree._catalog()
    selection = Selection(part.select)
    renamed: dict[str, str] | None = None
    if part.rename is None:
        marks = selection.mark(catalog, tree._value)
        unmatched = [] if marks is None else marks.unmatched
    else:
        renamed = _renamed(tree, part)
        marks = _mark_renamed(catalog, tree._value, renamed, selection)
        numbers = range(len(selection.patterns))
        unmatched = selection.unmatched(numbers, renamed.values())
    if unmatched:
        _check_patterns(selection, unmatched, target, part)
    corrupt: dict[int, str] = {}
    if part.verifies:
        corrupt = _corrupt(tree, marks, renamed, part, how)
    if corrupt:
        values = range(catalog.values) if marks is None else marks.values
        marks = catalog.mark(set(values) - corrupt.keys())
    return _Choice(selection, marks, renamed, [*corrupt.values()])


def _check_patterns(
    selection: Selection, unmatched: Iterable[int], target: Any, part: Part
) -> None:
    """Raises if one of some patterns matches nothing in the target either."""
    if target is None and part.missing == "target":
        return
    places = () if target is None else leaf_paths(target, _paths.ROOT)
    typos = [selection.patterns[number] for number in selection.unmatched(unmatched, places)]
    if typos:
        raise ValueError(f"select matches nothing in the file: {', '.join(typos)}")


def _renamed(tree: Tree, part: Part) -> dict[str, str]:
    """Returns the new paths of all leaves and empty containers."""
    renaming = Renaming(part.rename)
    renamed = {path: renaming(path) for path, _ in tree._catalog().ends(tree._value)}
    renaming.check()
    if len(set(renamed.values())) < len(renamed):
        raise ValueError("rename gives two leaves the same path")
    return renamed


def _mark_renamed(
    catalog: _core.Catalog, start: int, renamed: Mapping[str, str], selection: Selection
) -> _core.Marks:
    """Marks what is meant by its new path; see `Catalog.select` for empty containers."""
    # Of leaves with one path the last counts, as in a dict.
    ends = {renamed[path]: value for path, value in catalog.ends(start)}
    leaves = {path: value for path, value in ends.items() if catalog.children(value) is None}
    meant = {value for path, value in leaves.items() if selection.means(path)}
    # Whether all leaves in a container are meant, by its keys.
    around: dict[tuple[str, ...], bool] = {}
    for path, value in leaves.items():
        parts = tuple(_paths.parts(path))
        for count in range(len(parts)):
            around[parts[:count]] = around.get(parts[:count], True) and value in meant
    for path, value in ends.items() - leaves.items():
        try:
            is_meant = selection.means(path)
        except ValueError:  # there is no bool for it
            parts = tuple(_paths.parts(path))
            places = [parts[:count] for count in range(len(parts) - 1, -1, -1)]
            is_meant = next((around[place] for place in places if place in around), True)
        if is_meant:
            meant.add(value)
    return catalog.mark(meant)


def _paths_of(tree: Tree, marks: _core.Marks | None) -> list[str]:
    """Returns the paths of the leaves that are marked."""
    leaves = tree._catalog().leaves(tree._value)
    found = (path for path, value in leaves if marks is None or value in marks)
    return list(dict.fromkeys(found))


# Tells of the parts of a path whether the array there goes to devices.
OnDevices = Callable[[Sequence[str]], bool]


def _on_devices(target: Any) -> OnDevices:
    """Returns what tells of which arrays a template has arrays of jax in the place."""
    paths = {parts for parts, leaf in leaves_of(target, ()) if _jax.is_abstract(leaf)}
    return lambda parts: tuple(parts) in paths


def _below(on_devices: OnDevices, start: list[str], parts: Sequence[str]) -> bool:
    return on_devices([*start, *parts])


def _read(
    tree: Tree, marks: _core.Marks | None, how: Reading, on_devices: OnDevices = lambda _: True
) -> Any:
    """Returns the state of a tree, with `ABSENT` for what is not marked.

    Arrays that lie in several files and go to devices are not read yet: each device will read its
    part.
    """
    if tree._file._shards is None:
        return tree._catalog().read(
            tree._value, copy=how.copy, threads=how.threads, marks=marks, absent=ABSENT
        )

    def leaf(value: int, parts: list[str]) -> Any:
        found = tree._at(value, parts)
        if not isinstance(found, LazyArray):
            return found
        is_sharded = isinstance(found, ShardedArray) and not found.is_host
        waits = is_sharded and how.arrays == "saved" and on_devices(parts[len(tree._parts) :])
        return found if waits else found.__array__(copy=how.copy)

    return tree._state(leaf, marks)


def _corrupt(
    tree: Tree,
    marks: _core.Marks | None,
    renamed: Mapping[str, str] | None,
    part: Part,
    how: Reading,
) -> dict[int, str]:
    """Returns the leaves that have another checksum, with their new paths.

    Raises:
      CorruptionError: If there are some, and none may be left out.
    """
    if not tree._file._is_summed:
        raise TreepackError(
            "there are no checksums to verify: the file is not from treepack.save, or was made by "
            "dumps"
        )
    with telling(how.progress, "verify") as tell:
        statuses, damage = tree._file._verified(threads=how.threads, progress=tell)
    if damage is not None:
        told = f"{tree._file._name} is damaged: {damage}"
        if part.on_corrupt == "error":
            raise CorruptionError(told)
        warnings.warn(f"{told}; leaves that are whole are loaded", UserWarning, stacklevel=2)
    catalog = tree._catalog()
    inside = set(catalog.leaf_values(tree._value))
    found = {}
    for value, status in statuses.items():
        if status != "ok" and value in inside and (marks is None or value in marks):
            path = catalog.path_of(value, tree._value)
            found[value] = path if renamed is None else renamed[path]
    if found and part.on_corrupt == "error":
        raise CorruptionError(
            f"{listed([*found.values()])} damaged: pass on_corrupt='skip' to load all else"
        )
    return found


def listed(paths: list[str], most: int = 10) -> str:
    """Returns paths in words, and a verb for them."""
    more = "" if len(paths) <= most else f" and {len(paths) - most} more"
    verb = "is" if len(paths) == 1 else "are"
    return f"{', '.join(paths[:most])}{more} {verb}"


def _assembled(tree: Tree, marks: _core.Marks | None, convert: Any, how: Reading) -> Any:
    """Returns what is wanted of a tree, with its structure as far as it is whole."""
    catalog = tree._catalog()
    if catalog.trailer is None:
        found = without_absent(_read(tree, marks, how))
    else:
        found = _core.assemble(
            _read(tree, marks, how),
            catalog.trailer,
            convert=convert,
            unknown_as_dict=how.unknown == "dict",
            placeholders=False,
            static=how.static,
            absent=ABSENT,
            at=tree._positions(),
        )
    return {} if found is ABSENT else found


def without_absent(state: Any) -> Any:
    """Returns a state without what was not loaded; what has nothing else is absent, too."""
    if type(state) is not dict or not state:
        return state
    found = {}
    for key, value in state.items():
        child = without_absent(value)
        if child is not ABSENT:
            found[key] = child
    return found or ABSENT


def _renamed_state(
    tree: Tree,
    renamed: Mapping[str, str],
    marks: _core.Marks | None,
    how: Reading,
    on_devices: OnDevices,
) -> Any:
    """Returns the state of a tree in which leaves have other paths."""
    catalog = tree._catalog()
    state: Any = {}
    root: list[Any] = []
    for path, value in _units(catalog, tree._value, ()):
        text = _paths.text(path)
        new = renamed.get(text)
        if new is None:  # a list, which stays together
            new = _list_path(text, renamed)
        parts = _paths.parts(new)
        part = tree._part(value, path)
        found = _read(part, marks, how, functools.partial(_below, on_devices, parts))
        if not parts:
            root.append(found)
            continue
        _paths.put(state, parts, found)
    if not root:
        return without_absent(state) if state else {}
    if state:
        raise ValueError(f"rename puts a leaf at {_paths.ROOT}, where others are")
    return root[0]


def _list_path(path: str, renamed: Mapping[str, str]) -> str:
    """Returns the new path of a list, from that of its first leaf."""
    for old, new in renamed.items():
        if old.startswith(f"{path}/") and new.endswith(old[len(path) :]):
            return new[: len(new) - len(old) + len(path)]
    raise ValueError(f"rename takes the list at {path} apart")


def _units(
    catalog: _core.Catalog, value: int, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yields all leaves, lists and containers with nothing in them."""
    children = catalog.children(value)
    if not children or catalog.is_list(value):
        yield path, value
        return
    for name, child in children:
        yield from _units(catalog, child, (*path, name))
