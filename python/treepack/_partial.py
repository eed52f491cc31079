"""Loading a part of a tree, or a tree from parts: what `load` and `File.load` do with `select=`."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from treepack import _core, _paths
from treepack._described import Reading
from treepack._lazy import LazyArray
from treepack._libraries import jax as _jax
from treepack._options import telling
from treepack._patterns import renamer, selector, unmatched
from treepack._placement import leaves_of
from treepack._report import ABSENT, Partial
from treepack._restore import restore_tree
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
    found = _choose(tree, part, how)
    if found.typos and target is None:
        raise _nothing(found.typos)
    partial = Partial(found.is_wanted, part.missing == "target", part.unexpected == "error")
    partial.skipped.update(found.corrupt)
    convert = how.converter(may_change=tree._file.may_change, copy=how.copy)
    if convert is not None:
        convert = partial.watching(convert)
    if target is None:
        loaded = _assembled(tree, found.wanted, convert, how)
        report = partial.report(found.corrupt)._replace(loaded=found.paths)
    else:
        trailer = tree._catalog().trailer
        record = None if trailer is None else (trailer, tree._positions())
        if part.rename is None:
            state = _read(tree, found.wanted, how, _on_devices(target))
        else:
            _check_renamed(record)
            record = None
            state = _renamed_state(tree, found.renamed, found.wanted, how, _on_devices(target))
        loaded = restore_tree(
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
        report = partial.report(found.corrupt)
        if found.typos and not report.loaded:
            raise _nothing(found.typos)
    return (loaded, report) if part.return_report else loaded


def _check_renamed(record: tuple[bytes, Any] | None) -> None:
    """Raises if there are nodes to be upgraded, which might have other names then."""
    if record is not None and _core.has_older_types(record[0]):
        raise TreepackError(
            "rename is not for files with nodes that are to be upgraded: load them without it"
        )


class _Choice(NamedTuple):
    """What is to be loaded.

    Attributes:
      is_wanted: Tells of a path whether it is meant.
      renamed: The new paths of all leaves and empty containers.
      paths: The new paths of the leaves that are loaded.
      wanted: For each value of the catalog, whether it is loaded.
      corrupt: The new paths of leaves that are left out, because they are damaged.
      typos: Patterns that match nothing.
    """

    is_wanted: Callable[[str], bool]
    renamed: dict[str, str]
    paths: list[str]
    wanted: bytes
    corrupt: list[str]
    typos: list[str]


def _choose(tree: Tree, part: Part, how: Reading) -> _Choice:
    catalog = tree._catalog()
    new_path, is_wanted = renamer(part.rename), selector(part.select)
    # Of leaves with one path the last counts, as in a dict.
    ends = dict(catalog.ends(tree._value))
    renamed = {path: new_path(path) for path in ends}
    if len(set(renamed.values())) < len(ends):
        raise ValueError("rename gives two leaves the same path")
    leaves = {
        renamed[path]: value for path, value in ends.items() if catalog.children(value) is None
    }
    chosen = {path: value for path, value in leaves.items() if is_wanted(path)}
    typos = [] if part.missing == "target" else unmatched(part.select, renamed.values())
    corrupt = _corrupt(tree, chosen, part, how) if part.verifies else []
    for path in corrupt:
        del chosen[path]
    wanted = bytearray(catalog.values)
    for value in chosen.values():
        wanted[value] = 1
    for path, value in ends.items():
        if renamed[path] not in leaves and _is_empty_wanted(renamed[path], is_wanted, leaves):
            wanted[value] = 1
    return _Choice(is_wanted, renamed, list(chosen), bytes(wanted), corrupt, typos)


# Tells of the parts of a path whether the array there goes to devices.
OnDevices = Callable[[Sequence[str]], bool]


def _on_devices(target: Any) -> OnDevices:
    """Returns what tells of which arrays a template has arrays of jax in the place."""
    paths = {parts for parts, leaf in leaves_of(target, ()) if _jax.is_abstract(leaf)}
    return lambda parts: tuple(parts) in paths


def _below(on_devices: OnDevices, start: list[str], parts: Sequence[str]) -> bool:
    return on_devices([*start, *parts])


def _read(tree: Tree, wanted: bytes, how: Reading, on_devices: OnDevices = lambda _: True) -> Any:
    """Returns the state of a tree, with `ABSENT` for what is not wanted.

    Arrays that lie in several files and go to devices are not read yet: each device will read its
    part.
    """
    if tree._file._shards is None:
        return tree._catalog().read(
            tree._value, copy=how.copy, threads=how.threads, wanted=wanted, absent=ABSENT
        )

    def leaf(value: int, parts: list[str]) -> Any:
        found = tree._at(value, parts)
        if not isinstance(found, LazyArray):
            return found
        is_sharded = isinstance(found, ShardedArray) and not found.is_host
        waits = is_sharded and how.arrays == "saved" and on_devices(parts[len(tree._parts) :])
        return found if waits else found.__array__(copy=how.copy)

    return tree._state(leaf, wanted)


def _nothing(patterns: list[str]) -> ValueError:
    return ValueError(f"select matches nothing in the file: {', '.join(patterns)}")


def _corrupt(tree: Tree, chosen: Mapping[str, int], part: Part, how: Reading) -> list[str]:
    """Returns the paths of leaves that have another checksum.

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
    found = [path for path, value in chosen.items() if statuses[value] != "ok"]
    if damage is not None:
        told = f"{tree._file._name} is damaged: {damage}"
        if part.on_corrupt == "error":
            raise CorruptionError(told)
        warnings.warn(f"{told}; leaves that are whole are loaded", UserWarning, stacklevel=2)
    if found and part.on_corrupt == "error":
        raise CorruptionError(f"{listed(found)} damaged: pass on_corrupt='skip' to load all else")
    return found


def listed(paths: list[str], most: int = 10) -> str:
    """Returns paths in words, and a verb for them."""
    more = "" if len(paths) <= most else f" and {len(paths) - most} more"
    verb = "is" if len(paths) == 1 else "are"
    return f"{', '.join(paths[:most])}{more} {verb}"


def _assembled(tree: Tree, wanted: bytes, convert: Any, how: Reading) -> Any:
    """Returns what is wanted of a tree, with its structure as far as it is whole."""
    catalog = tree._catalog()
    if catalog.trailer is None:
        found = without_absent(_read(tree, wanted, how))
    else:
        found = _core.assemble(
            _read(tree, wanted, how),
            catalog.trailer,
            convert=convert,
            unknown_as_dict=how.unknown == "dict",
            placeholders=False,
            static=how.static,
            absent=ABSENT,
            at=tree._positions(),
        )
    return {} if found is ABSENT else found


def _is_empty_wanted(
    path: str, is_wanted: Callable[[str], bool], leaves: Mapping[str, int]
) -> bool:
    """Tells whether a container with nothing in it is wanted: it has no leaf to ask about."""
    try:
        return is_wanted(path)
    except ValueError:  # a pytree of bools has none for it
        pass
    # As what is around it: only if all of that is wanted.
    parts = _paths.parts(path)
    for count in range(len(parts) - 1, -1, -1):
        start = _paths.text([*parts[:count], ""]) if count else ""
        around = [leaf for leaf in leaves if leaf.startswith(start)]
        if around:
            return all(map(is_wanted, around))
    return True


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
    tree: Tree, renamed: Mapping[str, str], wanted: bytes, how: Reading, on_devices: OnDevices
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
        found = _read(part, wanted, how, functools.partial(_below, on_devices, parts))
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
