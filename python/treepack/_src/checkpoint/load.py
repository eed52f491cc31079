from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import treepack._core as core
from treepack._src import formats
from treepack._src import paths as _paths
from treepack._src.checkpoint.mapped import MappedReader
from treepack._src.checkpoint.opening import open_reader
from treepack._src.checkpoint.select import Selector, compiled, nothing_left
from treepack._src.checkpoint.whole import is_empty, noticed, restore_described, warn_of_empty
from treepack._src.interop import jax as _jax
from treepack._src.leaves.absent import ABSENT
from treepack._src.leaves.signature import signature
from treepack._src.mapping.leaves import Leaf
from treepack._src.mapping.plan import Fault
from treepack._src.options import (
    Opening,
    Reading,
    Selection,
    Sharing,
    Status,
    Unexpected,
    progress_bar,
)
from treepack._src.paths import PathBudget, Trail, listed
from treepack._src.placing.casting import cast_floats
from treepack._src.placing.placement import converter, sharing
from treepack._src.placing.replicas import Together
from treepack._src.printable import printable, warn
from treepack._src.pytree.kinds import kind_of
from treepack._src.pytree.state_dict import leaves_of
from treepack._src.readers.reader import LazyArray, Place, Reader, StayLazy, lacking
from treepack._src.registry.code import check_is_tree
from treepack._src.restore.record import assembled
from treepack._src.restore.report import Coverage
from treepack._src.restore.template import restore_part
from treepack._src.sharded.files import warn_of_part
from treepack._src.sharded.reading import unless_replaced
from treepack._src.storage.address import Address
from treepack._src.storage.content import Openable, content_of
from treepack._src.storage.fetch import fetching_arrays
from treepack._src.storage.naming import naming
from treepack.errors import (
    CorruptionError,
    DecodeError,
    NewerVersionError,
    PlaceholderError,
    TreepackError,
    UnsummedError,
)


def load_file(
    path: Openable,
    target: Any,
    selection: Selection,
    reading: Reading,
    together: Sharing,
    opening: Opening,
    compare: Callable[[Reader], None] | None = None,
) -> Any:
    warn_of_part(path)
    is_directory = False

    def attempt() -> Any:
        nonlocal is_directory
        with sharing(target, reading, together) as group:
            source = path
            is_other = is_directory or formats.of_suffix(path) is not None
            if selection.is_whole and not is_other and compare is None:
                try:
                    source = content_of(path, opening)
                except IsADirectoryError:
                    is_directory = True  # a sharded checkpoint, or no checkpoint
                else:
                    try:
                        return restore_described(source, target, reading)
                    except DecodeError:
                        if formats.of_content(source) is None:
                            raise
            is_compared = compare is not None or (selection.verifies and selection.select is None)
            if is_compared and not is_other and isinstance(path, Address):
                try:  # once, so that exactly the compared bytes are loaded
                    source = path.downloaded(opening.progress)
                except IsADirectoryError:
                    is_directory = True
            reader = open_reader(
                source,
                is_directory=is_directory,
                salvage=selection.on_corrupt == "skip",
                mmap=opening.mmap,
                max_size=opening.max_size,
                base=opening.base,
                place=path,
            )
            reader.given = path
            with contextlib.closing(reader):
                if compare is not None:
                    compare(reader)
                return load_part(Place(reader, 0, []), target, selection, reading, group)

    with naming(path):
        return unless_replaced(attempt)


def load_part(
    place: Place, target: Any, selection: Selection, reading: Reading, group: Together | None
) -> Any:
    reading.check(target)
    check_is_tree(target)
    selection.check(target)
    separator, mapping = place.reader.separator, selection.mapping
    if separator and mapping is None and _is_flat(target, separator):
        if group is None:
            with contextlib.suppress(TreepackError):  # raised again below, with the target's paths
                return _load_nested(place, target, separator, selection, reading)
        mapping = _by_name(separator)
    if mapping is not None:
        record = place.catalog.record
        if record is not None and core.has_older_types(record):
            raise TreepackError(  # upgrades may change names
                "mapping= does not support files with nodes of older versions: load the file "
                "without mapping=, and save it again"
            )
        place = Place(MappedReader(place, mapping, Leaf.by_path(target)), 0, [])
    if selection.on_corrupt == "skip":
        place = place._replace(reader=place.reader.salvaging())
    choice = _choose(place, target, selection, reading)
    if choice.corrupt and not (choice.has_leaves(place) or selection.return_report):
        stays = "the result is empty" if target is None else "the target stays as it is"
        warn(f"{place.reader.name} has no intact leaf to load, so {stays}")
    if isinstance(place.reader, MappedReader):
        choice = choice._replace(
            selector=_fitting(place.reader, target, choice.selector, selection, reading)
        )
        if target is None:
            place.reader.check_has_no_code(place.parts, choice.selector.selects)
    if target is not None:
        if selection.drops and selection.missing == "error":
            ours = {_paths.text(parts) for parts, _ in leaves_of(target, ())}
            if bad := [path for path in choice.corrupt if path in ours]:
                raise CorruptionError(
                    f'{listed(bad, len(bad))} damaged: pass missing="target" to keep the '
                    "target's leaves"
                )
        choice = _without_unfit(place, target, choice, selection)
    takes_more = {None: None, "ignore": True, "error": False}[selection.unexpected]
    if reading.strict == "exact" and selection.unexpected is None and place.reader.is_mapped:
        takes_more = False
    keeps = target is not None and "target" in (selection.missing, selection.mismatched)
    if not (keeps or selection.unexpected or selection.return_report) and is_empty(target):
        warn_of_empty(place.catalog, place.value)
    partial = Coverage(
        choice.selector.selects,
        selection.missing == "target" or choice.is_cut,
        takes_more,
        notes=selection.return_report or keeps,
    )
    if isinstance(place.reader, MappedReader):
        unused = place.reader.unexpected()
        refusal = (
            "no rule of the mapping takes these leaves of the file, and others are in their "
            f"place: {listed(unused, len(unused))} left"
        )
        partial.unused(unused, refusal if selection.unexpected == "error" else None)
        partial.lacks, partial.names = place.reader.lacks(), place.reader.plan.same
        partial.has_function = place.reader.has_function
        if selection.mismatched == "target":
            partial.skipped.update(place.reader.unfit())
    partial.skipped.update(() if selection.drops else choice.corrupt, choice.mismatched)
    convert = converter(reading, may_change=place.reader.may_change, group=group)
    if convert is not None and selection.return_report:
        convert = partial.watching(convert)
    if target is None:
        loaded = _part(place, choice.marks, convert, reading, partial.was_cast, selection)
        report = partial.report(choice.corrupt, choice.unverified)
        if selection.return_report:
            marks, leaves = choice.marks, PathBudget().all(place.catalog.leaves(place.value))
            paths = (path for path, value in leaves if marks is None or value in marks)
            report = report._replace(loaded=list(dict.fromkeys(paths)))
    else:
        loaded = _restored(place, target, choice, partial, convert, reading)
        if keeps:
            partial.check_values(choice.corrupt)
        if choice.corrupt and not selection.return_report:
            _warn_of_structs(target, choice.corrupt)
        is_noted = selection.return_report
        if keeps and not (selection.return_report or choice.corrupt):
            marks = None if selection.select is None else choice.marks
            if marks is not None and partial.wanted():
                leaves = PathBudget().all(place.catalog.leaves(place.value))
                partial.left(path for path, value in leaves if value not in marks)
            partial.check_loads(target)
            is_noted = partial.warn_of_unlike()
        if isinstance(place.reader, MappedReader) and not is_noted:
            place.reader.warn_of_typos(choice.selector.selects)
        report = partial.report(choice.corrupt, choice.unverified)
    return (loaded, report) if selection.return_report else loaded


def _warn_of_structs(target: Any, corrupt: Collection[str]) -> None:
    structs = {_paths.text(parts) for parts, leaf in leaves_of(target, ()) if _jax.is_struct(leaf)}
    if stay := [path for path in corrupt if path in structs]:
        warn(
            f"jax.ShapeDtypeStructs stay in the tree, since {listed(stay, len(stay))} damaged: "
            "pass a template with arrays to keep theirs"
        )


def _fitting(
    reader: MappedReader, target: Any, selector: Selector, selection: Selection, reading: Reading
) -> Selector:
    plan = reader.plan
    lacks = selection.missing == "error"
    unfit = reader.unfit() if selection.mismatched == "target" else ()
    faults = [
        it for it in plan.faults if selector.selects(it.path) and (lacks or not it.is_missing)
    ]
    faults = [fault for fault in faults if fault.path not in unfit]
    if not all(fault.is_missing for fault in faults):
        compares = bool(reading.strict) and selection.mismatched == "error"
        others = [it for it in reader.unlike() if (lacks if it.is_missing else compares)]
        raise Fault.error(faults + [it for it in others if selector.selects(it.path)])
    if selection.missing == "target":  # otherwise the leaves are a mismatch
        if reason := reader.unmatched():
            raise TreepackError(reason)
        _check_reached([*plan.ruled], reader.there or {})
    left = reader.left_out()
    structs = (parts for parts, leaf in leaves_of(target, ()) if left and _jax.is_struct(leaf))
    empty = [path for path in map(_paths.text, structs) if path in left and selector.selects(path)]
    if empty:
        warn(
            f"{listed(empty, len(empty))} still a jax.ShapeDtypeStruct in the tree, for lack of a "
            'rule, with rest="skip": pass a template with values there, or select= the others'
        )
    return selector.without(Selector(left.__contains__)) if left else selector


def _is_flat(target: Any, separator: str) -> bool:
    return type(target) is dict and any(separator in key for key in target if type(key) is str)


def _load_nested(
    place: Place, target: dict[str, Any], separator: str, selection: Selection, reading: Reading
) -> dict[str, Any]:
    """Loads a flat target as nested dicts of the file's keys; a TreepackError if that fails."""
    given = (selection.select, selection.exclude, reading.sharding)
    if selection.return_report or any(option is not None for option in given):
        raise TreepackError("there are paths of the target in the options or the report")
    if selection.unexpected is None:  # as for mapping=
        more: Unexpected = "error" if reading.strict == "exact" else "ignore"
        selection = dataclasses.replace(selection, unexpected=more)
    loaded = load_part(place, _nested(place, target, separator), selection, reading, None)
    return {
        name: functools.reduce(dict.__getitem__, name.split(separator), loaded) for name in target
    }


def _nested(place: Place, target: dict[str, Any], separator: str) -> dict[str, Any]:
    names = {
        separator.join(_paths.parts(path)): path for path, _ in place.catalog.leaves(place.value)
    }
    tree: dict[str, Any] = {}
    for name, leaf in target.items():
        keys = name.split(separator)
        if kind_of(leaf) is not None or names.get(name) not in (None, _paths.text(keys)):
            raise TreepackError(f"{name} is not a leaf of nested dicts")
        _paths.put(tree, keys, leaf)
    return tree


def _by_name(separator: str) -> Callable[[str], str]:
    def path_of(path: str) -> str:
        return _paths.text(separator.join(_paths.parts(path)).split(separator))

    return path_of


def _check_reached(new: Sequence[str], targets: Collection[str]) -> None:
    ordered, here = sorted(targets), sorted(new)
    is_reached = any(_paths.has(ordered, path) for path in new)
    # Below a leaf of the target, it may be a node that only Python can restore.
    if new and not is_reached and not any(_paths.has(here, target) for target in targets):
        raise TreepackError(
            f"mapping= makes no leaf of the target: {printable(new[0])} is not in it"
            f"{_paths.similar(new[0], targets)}"
        )


def _restored(
    place: Place, target: Any, choice: _Choice, partial: Coverage, convert: Any, reading: Reading
) -> Any:
    reader, marks, stays = place.reader, choice.marks, _stay_lazy(target, reading)

    def read() -> tuple[Any, Any]:
        whole = None if reader.is_mapped else place.catalog.record
        state = reader.read(place, reading, marks, stays)
        record = None if whole is None else (whole, place.positions())
        return reader.fitted(state, target), record

    return restore_part(
        target,
        (place.catalog, place.value, place.parts),
        reading,
        marks=marks,
        partial=partial,
        convert=convert,
        given=lambda: reader.lazily(place, reading, marks, stays),
        fetching=lambda: reader.fetching(place.value, marks),
        read=read,
    )


class _Choice(NamedTuple):
    """The leaves to load.

    Attributes:
      marks: The leaves and empty containers to load; `None` for all.
      unverified: Leaves of a damaged file without checksums.
      is_cut: Whether further leaves may be missing because of damage.
    """

    selector: Selector
    marks: core.Marks | None
    corrupt: list[str]
    unverified: list[str]
    is_cut: bool
    mismatched: Sequence[str] = ()

    def has_leaves(self, place: Place) -> bool:
        leaves = place.catalog.leaf_values(place.value)
        return self.marks is None or any(leaf in self.marks for leaf in leaves)


def _choose(place: Place, target: Any, selection: Selection, reading: Reading) -> _Choice:
    catalog = place.catalog
    selector = Selector(selection.select)
    marks = selector.mark(catalog, place.value)
    unmade: list[str] = []  # an error about them follows
    if isinstance(place.reader, MappedReader):
        unmade = [fault.path for fault in place.reader.plan.faults if not fault.is_missing]
    if selection.exclude is not None or (marks is not None and marks.unmatched):
        there = [*dict(PathBudget().all(catalog.ends(place.value)))]
        ours = [] if target is None else [_paths.text(leaf) for leaf, _ in leaves_of(target, ())]
        there += unmade
        if isinstance(place.reader, MappedReader) and marks is not None:
            place.reader.check_names(selector.patterns[at] for at in marks.unmatched)
        selector = compiled(selection.select, "file", there, selection.exclude, ours)
        marks = selector.mark(catalog, place.value)
    is_empty_part = marks is not None and not marks.values
    if target is None and is_empty_part and not any(map(selector.selects, unmade)):
        warn(nothing_left("file", dict(PathBudget().all(catalog.ends(place.value)))))
    if type(target) is dict and selection.missing == "error" and selection.unexpected is None:
        _check_begins(selector.patterns, target)
    corrupt: dict[int, str] = {}
    unverified: dict[int, str] = {}
    if selection.drops:
        corrupt = _damaged(place, marks)
    elif selection.verifies:
        corrupt, unverified = _corrupt(place, marks, selection, reading)
    if corrupt:
        values = range(catalog.values) if marks is None else marks.values
        marks = catalog.mark(set(values) - corrupt.keys())
    is_cut = selection.on_corrupt == "skip" and place.reader.is_cut
    bad, lost = ([*dict.fromkeys(paths.values())] for paths in (corrupt, unverified))
    return _Choice(selector, marks, bad, lost, is_cut)


def _check_begins(patterns: Sequence[str], target: dict[Any, Any]) -> None:
    """Raises if all patterns begin with keys that the target lacks: it would stay unchanged."""
    begins = ["".join(_paths.parts(pattern)[:1]) for pattern in patterns]
    keys = {str(key) for key in target}
    if begins and all(key and key not in keys and not {*key} & {*"*?"} for key in begins):
        raise TreepackError(
            f"the target has no leaf that select= selects: expected {printable(patterns[0])}, "
            f"found {printable(', '.join(keys)) or 'an empty dict'}: pass a target with the whole "
            f"path, such as {{{begins[0]!r:.100}: ...}}"
        )


def _stay_lazy(target: Any, reading: Reading) -> StayLazy:
    @functools.cache
    def outlined() -> tuple[set[tuple[str, ...]], _Outline | None]:
        abstract = {parts for parts, leaf in leaves_of(target, ()) if _jax.is_abstract(leaf)}
        return abstract, _outline(target)

    def stays(parts: Sequence[str]) -> bool:
        on_devices, node = outlined()
        if tuple(parts) in on_devices:
            return reading.arrays != "numpy"
        for part in parts:
            if node is None or part not in node:
                return node is not None
            node = node[part]
        return False

    return stays


_Outline = dict[str, "_Outline | None"]


def _outline(node: Any) -> _Outline | None:
    if not isinstance(node, Mapping) or (kind := kind_of(node)) is None or kind.final:
        return None
    return {str(name): _outline(child) for name, child in kind.children(node).items()}


def _without_unfit(place: Place, target: Any, choice: _Choice, selection: Selection) -> _Choice:
    """Leaves out leaves that do not fit the template, as the options allow.

    They are arrays of dtypes that NumPy lacks where the template has nothing, with
    `mismatched="target"` arrays of other shapes, and with `missing="target"` the `None` of
    `equinox.filter` and empty nodes of `optax.masked`.
    """
    catalog = place.catalog
    unknown = [] if selection.unexpected == "error" else lacking(catalog.dtypes)
    keeps = selection.missing == "target"
    if not (unknown or keeps or selection.mismatched == "target"):
        return choice
    leaves = dict(leaves_of(target, ()))
    marked, mismatched = set(), []
    for path, value in PathBudget().all(catalog.ends(place.value)):
        if choice.marks is not None and value not in choice.marks:
            continue
        marked.add(value)
        children = catalog.children(value)
        kind = catalog.leaf(value)[1] if children is None else ("",)
        parts = tuple(_paths.parts(path))
        if keeps and kind[0] == "none" and leaves.get(parts, ABSENT) is not None:
            marked.remove(value)
        if keeps and children is not None and signature(leaves.get(parts)) is not None:
            marked.remove(value)
        if kind[0] != "array":
            continue
        ours = signature(leaves.get(parts)) if selection.mismatched == "target" else None
        if ours is not None and ours.shape != tuple(kind[2]):
            mismatched.append(path)
            marked.remove(value)
        elif kind[1] in unknown:
            above = (parts[:count] for count in range(len(parts) + 1))
            if leaves.keys().isdisjoint(above):
                marked.remove(value)
    return choice._replace(marks=catalog.mark(marked), mismatched=mismatched)


def unsummed(remedy: str) -> UnsummedError:
    return UnsummedError(
        "there are no checksums to verify: the file is not from treepack.save, or was made by "
        f"dumps; {remedy}"
    )


def _damaged(place: Place, marks: core.Marks | None) -> dict[int, str]:
    """Returns the damaged leaves, which `File.leaves` leaves out after `open(salvage=True)`."""
    reader = place.reader
    reader.remember()  # exactly the compared bytes are loaded
    is_found_by_reading = bool(reader.inflated or reader.format)
    leaves = {
        value: (path, [*place.parts, *_paths.parts(path)])
        for path, value in PathBudget().all(reader.catalog.leaves(place.value))
        if marks is None or value in marks
    }

    def arrays() -> Iterator[LazyArray]:
        for value, (_, parts) in leaves.items():
            with contextlib.suppress(CorruptionError, DecodeError):
                kind = reader.kind(value, parts)
                if kind[0] == "array":
                    yield reader.array(value, parts, kind)

    damaged = {}
    with fetching_arrays(arrays()):
        for value, (path, parts) in leaves.items():
            try:
                reader.compare(value, parts)
                leaf = reader.leaf(value, parts)
                if is_found_by_reading and isinstance(leaf, LazyArray):
                    leaf.numpy()
            except (CorruptionError, DecodeError):
                damaged[value] = path
    return damaged


def _corrupt(
    place: Place,
    marks: core.Marks | None,
    selection: Selection,
    reading: Reading,
) -> tuple[dict[int, str], dict[int, str]]:
    """Returns the leaves to leave out, and the others without checksums, with their paths.

    Raises a CorruptionError if damaged ones may not be left out, a DecodeError if none is intact.
    """
    catalog = place.catalog
    if catalog.is_newer:
        raise NewerVersionError(str(catalog.damage))
    if place.reader.damage is not None and not len(catalog):
        raise DecodeError(place.reader.damage)
    if not place.reader.is_summed and place.reader.damage is None:
        option = "verify=" if selection.verify else "on_corrupt="
        raise unsummed(f"leave out {option}")
    place.reader.remember()  # exactly the verified bytes are loaded
    with progress_bar(reading.progress, "verify") as tell:
        statuses, damage = place.reader.verify(threads=reading.threads, progress=tell)
    if damage is not None and selection.on_corrupt == "error":
        raise CorruptionError(f"the file is damaged: {damage}")
    inside = set(catalog.leaf_values(place.value))
    by_status: dict[Status, dict[int, str]] = {"corrupt": {}, "unreadable": {}, "unchecked": {}}
    budget = PathBudget()
    for value, status in statuses.items():
        if status != "ok" and value in inside and (marks is None or value in marks):
            by_status[status][value] = budget.text(catalog.path_of(value, place.value))
    bad, unverified = by_status["corrupt"] | by_status["unreadable"], by_status["unchecked"]
    # Of files that never had checksums, only `verify=` leaves them out.
    is_lost = damage is None or place.reader.is_summed or selection.verify
    if damage is not None:
        warning = f"{place.reader.name} is damaged: {damage}; undamaged leaves are loaded"
        if unverified:
            how = "left out: open(path, salvage=True) reads them" if is_lost else "loaded"
            names = listed(unverified.values(), len(unverified))
            warning += f"; {names} not verified, for lack of checksums, and {how}"
        warn(warning)
    if not is_lost:
        return bad, unverified
    fault = "damaged" if by_status["corrupt"] else "not readable by treepack"
    if not bad:
        bad, fault = unverified, "not verified, for lack of checksums"
    if bad and selection.on_corrupt == "error":
        files = ", ".join(place.reader.damaged_files[:_MOST_FILES])
        where = f" in {files}" if files else ""
        raise CorruptionError(
            f"{listed(bad.values(), len(bad))} {fault}{where}: pass on_corrupt='skip' to "
            "treepack.load to load the other leaves"
        )
    bad = bad | unverified
    for values in place.reader.lists_of(bad):
        first = max(values.start, place.value)
        path = budget.text(catalog.path_of(first, place.value))
        bad |= dict.fromkeys(values, path)
    return bad, {}


# The maximum number of damaged files of a directory that an error names.
_MOST_FILES = 10


def _part(
    place: Place,
    marks: core.Marks | None,
    convert: Any,
    reading: Reading,
    note: Callable[[Trail], None],
    selection: Selection,
) -> Any:
    def built(reading: Reading) -> Any:
        state = place.reader.read(place, reading, marks, None)
        state = cast_floats(state, reading, note)
        record, at = place.catalog.record, place.positions()
        tree = assembled(
            state, record, reading, convert=convert, absent=ABSENT, at=at, parts=place.parts
        )
        return {} if tree is ABSENT else tree

    is_whole = selection.select is None and selection.exclude is None
    try:
        tree = built(reading)
        return noticed(tree, reading) if is_whole else tree
    except PlaceholderError:  # there are no unregistered types, which would be raised first
        if is_whole:
            raise
    return built(dataclasses.replace(reading, unknown="dict"))
