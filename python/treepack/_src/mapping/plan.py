"""Applies rules to the paths and shapes of one side.

rules, leaves here ──matched──▶ groups of sources ──sizes──▶ an assembly of each leaf there
"""

from __future__ import annotations

import collections
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from treepack._src import paths as _paths
from treepack._src.mapping.assembly import Assembly, Part
from treepack._src.mapping.leaves import Leaf
from treepack._src.mapping.moving import Made
from treepack._src.mapping.patterns import FAR, LeafNames, Pattern, plain
from treepack._src.mapping.rules import Rule, Side
from treepack._src.mapping.sizes import (
    Given,
    Shape,
    SizesError,
    UnfitError,
    axis_of,
    expanded,
    part_of,
    solve_for,
)
from treepack._src.printable import printable, shortened
from treepack.errors import TreepackError


class Fault(NamedTuple):
    """A leaf that a rule cannot make.

    Attributes:
      is_missing: Whether its sources are missing, as opposed to a mistake.
      is_unfit: Whether the template has an array of another shape.
    """

    path: str
    text: str
    is_missing: bool = False
    is_unfit: bool = False

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"

    @staticmethod
    def error(faults: Sequence[Fault]) -> TreepackError:
        lines = "".join(f"\n  {printable(str(fault))}" for fault in faults)
        leaves = "1 leaf" if len(faults) == 1 else f"{len(faults)} leaves"
        return TreepackError(f"the mapping does not fit {leaves}:{lines}")


class Plan(NamedTuple):
    """The leaves of the other side, and the leaves of this side that are not used.

    Attributes:
      made: The arrays that are assembled, by their paths there.
      same: The paths here of leaves that only get other names, by their paths there.
      ties: Further arrays for paths that are in `made`, which must be equal to these.
      unreached: The rules of leaves here whose paths the template lacks.
      left: The paths here that no rule takes.
      hidden: The paths of `left` in whose place there a rule puts another leaf.
      ruled: The rules by the paths there of their leaves.
    """

    made: dict[str, Made]
    same: dict[str, str]
    ties: list[tuple[str, Made | str]]
    faults: list[Fault]
    unused: list[Rule]
    unreached: list[Rule]
    left: list[str]
    hidden: list[str]
    ruled: dict[str, Rule]

    def lacks(self, here: str, paths: Iterable[str]) -> str:
        rules = (printable(rule.text) for rule in self.unused)
        near = self.unused[0].near(paths, None)
        hint = near if "is it" in near else ""
        return f"the {here} has no leaf for {shortened(rules, len(self.unused))}{hint}"

    def check_apart(self, is_leaf: Callable[[str], bool], there: str) -> None:
        if hidden := [path for path in self.hidden if is_leaf(path)]:
            raise TreepackError(
                f"two leaves would have one path in the {there}: a rule gives the path of "
                f"{shortened(map(printable, hidden), len(hidden))} to another leaf: add a rule for "
                "it, or leave out all leaves without rules with treepack.Mapping(rules, "
                "rest='skip')"
            )


class Planner:
    def __init__(
        self,
        rules: Sequence[Rule],
        sizes: Mapping[str, Any],
        here: Mapping[str, Leaf],
        there: Mapping[str, Leaf] | None,
        others: Iterable[str] = (),
    ):
        """`there` are the leaves of a template, or `None`; `sizes` are from keywords.

        `others` are paths here that rules may match, of leaves that are not to be moved.
        """
        self._rules, self._sizes, self._here, self._there = rules, sizes, here, there
        self._names, self._others = LeafNames(here), LeafNames(others)
        self._wanted = None if there is None else LeafNames(there)
        self._plan = Plan({}, {}, [], [], [], [], [], [], {})
        self._taken: set[str] = set()
        # New names by plain rules: the rule, the path there, and the path here.
        self._renames: list[tuple[Rule, str, str]] = []
        self._rule_of: dict[str, Rule] = {}
        self._counts: collections.Counter[str] | None = None
        self._rules_of: dict[str, list[Rule]] | None = None

    def plan(self, rest: str) -> Plan:
        plan = self._plan
        for rule in self._rules:
            is_used = self._renamed(rule) if rule.is_plain else self._assembled(rule)
            if not is_used and next(self._unselected(rule), None) is None:
                plan.unused.append(rule)
        self._rename()
        plan.ruled.update(self._rule_of)
        plan.left.extend(path for path in self._here if path not in self._taken)
        self._note_missing()
        self._keep(rest)
        self._drop_copies()
        return plan

    def _drop_copies(self) -> None:
        """A leaf that a leaf of the template has is not unexpected where another rule puts it."""
        there, same, made = self._there, self._plan.same, self._plan.made
        if there is None:
            return
        used = {same[new] for new in same.keys() & there.keys()}
        used.update(path for new in made.keys() & there.keys() for path in made[new].assembly.paths)
        for new in same.keys() - there.keys():
            if same[new] in used:
                del same[new]
        for new in made.keys() - there.keys():
            if used.issuperset(made[new].assembly.paths):
                del made[new]

    def _keep(self, rest: str) -> None:
        plan = self._plan
        ordered = sorted([*plan.made, *plan.same, *(fault.path for fault in plan.faults)])
        made = {*ordered}
        paths = {}
        left = {*plan.left}
        for path in plan.left:
            new = None if self._wanted is None else self._wanted.find(path)
            paths[new if new is not None and self._names.find(new) == path else path] = path
        for new in self._there or ():  # a rule may take the tensor for another leaf as well
            if (old := self._names.find(new)) is not None:
                paths.setdefault(new, old)
        for new, path in paths.items():
            is_wanted = self._there is None or new in self._there
            above = itertools.accumulate(new.split("/"), lambda one, two: f"{one}/{two}")
            is_taken = _paths.ROOT in made or any(each in made for each in above)
            if is_taken or _paths.has(ordered, new):
                if path in left and rest != "skip":
                    plan.hidden.append(path)
                continue
            if is_wanted and rest == "error":
                plan.faults.append(Fault(new, 'it has no rule, and rest="error": add one'))
            elif not (is_wanted and rest == "skip"):
                plan.same[new] = path

    def _note_missing(self) -> None:
        if self._wanted is None:
            return
        plan = self._plan
        known = {*plan.made, *plan.same, *(fault.path for fault in plan.faults)}
        # By the path: the rule of the longest path there, and the path here.
        lacking: dict[str, tuple[tuple[int, int], Rule, str]] = {}
        for rule in self._rules:
            is_reached, is_used = False, rule not in plan.unused
            for pattern in rule.there.patterns:
                for values, path, end in pattern.matches(self._wanted, above=rule.is_plain):
                    is_reached = True
                    rank = end, -len(pattern.indices)
                    if path in known or (path in lacking and rank <= lacking[path][0]):
                        continue
                    below = ""
                    if rule.is_plain and is_used:
                        translated = _translated(values, pattern, rule.here.patterns[0])
                        if translated is None:  # out of the range
                            continue
                        values, below = translated, plain(_paths.parts(path))[end:].lstrip(".")
                    lacking[path] = rank, rule, _text_here(rule, values, below)
            if not is_reached and is_used:
                plan.unreached.append(rule)
        for path, (_, rule, text) in lacking.items():
            fault = f"the {rule.here.name} has no {text}, {rule.text}"
            plan.faults.append(Fault(path, fault, True))

    def _path(self, side: Side, pattern: Pattern, values: Mapping[str, str], *rest: str) -> str:
        text = pattern.fill(values)
        parts = _paths.parts(text)
        if side.is_file and "/" not in text and text != _paths.ROOT:
            parts = [part for piece in text.split(".") for part in _paths.parts(piece)]
        path = _paths.text([*parts, *rest])
        return path if self._wanted is None else self._wanted.find(path) or path

    def _unselected(self, rule: Rule) -> Iterator[dict[str, str]]:
        for pattern in rule.here.patterns:
            for values, _, _ in pattern.matches(self._others, above=rule.is_plain):
                yield values

    def _renamed(self, rule: Rule) -> bool:
        [pattern], [other] = rule.here.patterns, rule.there.patterns
        is_used = False
        found: list[dict[str, str]] = []
        for values, path, end in pattern.matches(self._names, above=True):
            shared = _translated(values, pattern, other)
            if shared is None:
                continue
            is_used = True
            found.append(values)
            below = _below(_paths.parts(path), end)
            if self._wanted is None and below == ["value"] and self._is_alone(path):
                below = []  # a variable of nnx means its value
            new = self._path(rule.there, other, shared, *below)
            self._renames.append((rule, new, path))
        self._note_gaps(rule, found)
        return is_used

    def _rename(self) -> None:
        """The rule with the longest path in the tree counts: a leaf's precedes its container's."""
        to_file = any(rule.there.is_file for rule in self._rules)
        owners = {} if to_file else self._owners([new for _, new, _ in self._renames])
        for rule, new, old in self._renames:
            if self._is_owned(rule, old) if to_file else rule in (owners[new] or [rule]):
                self._add(rule, new, old)

    def _owners(self, paths: Sequence[str]) -> dict[str, list[Rule]]:
        names, best = LeafNames(dict.fromkeys(paths)), dict[str, tuple[int, int]]()
        owners: dict[str, list[Rule]] = {path: [] for path in paths}
        for rule in self._rules if paths else ():
            tree, file = (rule.here, rule.there) if rule.there.is_file else (rule.there, rule.here)
            for pattern in tree.patterns:
                for values, path, end in pattern.matches(names, above=rule.is_plain):
                    shared = {name: values[name] for name in tree.indices if name in file.indices}
                    spread = [name for name in tree.indices if name not in file.indices]
                    if (
                        _translated(shared, pattern, file.patterns[0]) is None
                        or _numbers(values, spread, pattern) is None
                    ):
                        continue
                    rank = end, -len(pattern.indices)
                    if rank > best.get(path, (-1, 0)):
                        best[path], owners[path] = rank, []
                    if rank == best[path]:
                        owners[path].append(rule)
        return owners

    def _is_owned(self, rule: Rule, path: str) -> bool:
        """Whether no rule of a longer path, or with fewer indices, takes a leaf of the tree."""
        if self._rules_of is None:
            self._rules_of = self._owners([*self._here])
        rules = self._rules_of[path]
        if len(rules) > 1 and rule == rules[1]:
            text = f"two rules take it: {rules[0].text}, and {rule.text}"
            self._plan.faults.append(Fault(path, text))
        return rule in rules[:1]

    def _is_alone(self, path: str) -> bool:
        if self._counts is None:
            self._counts = collections.Counter(path.rpartition("/")[0] for path in self._here)
        return self._counts[path.rpartition("/")[0]] == 1

    def _add(self, rule: Rule, new: str, made: Made | str) -> None:
        """Two rules for one leaf of the tree are a mistake, unless one has fewer indices."""
        plan = self._plan
        if isinstance(made, str):
            self._taken.add(made)
        else:
            self._taken.update(made.assembly.paths)
            self._taken.update(made.scales)
        if new in self._rule_of:
            if rule.there.is_file:
                plan.ties.append((new, made))
                return
            other = self._rule_of[new]
            if len(rule.there.indices) > len(other.there.indices):
                return
            if len(rule.there.indices) == len(other.there.indices):
                text = f"two rules make it: {other.text}, and {rule.text}"
                if other is rule and isinstance(made, str):
                    text = (
                        f"{plan.same[new]} and {made} both fit: write the whole path of one, with "
                        f"~1 for a slash in a key; {rule.text}"
                    )
                plan.faults.append(Fault(new, text))
                return
            plan.made.pop(new, None)
            plan.same.pop(new, None)
        self._rule_of[new] = rule
        if isinstance(made, str):
            plan.same[new] = made
        else:
            plan.made[new] = made

    def _assembled(self, rule: Rule) -> bool:
        here, there = rule.here, rule.there
        shared = [name for name in here.indices if name in there.indices]
        stacked = [name for name in here.indices if name not in there.indices]
        # By the shared indices, of each pattern: the paths by the others.
        groups: dict[tuple[str, ...], list[dict[tuple[int, ...], str]]] = {}
        for number, pattern in enumerate(here.patterns):
            for values, path, _ in pattern.matches(self._names):
                if there.is_file and not self._is_owned(rule, path):
                    continue
                numbers = _numbers(values, stacked, pattern)
                same = _translated(
                    {name: values[name] for name in shared}, pattern, there.patterns[0]
                )
                if numbers is None or same is None:
                    continue
                key = tuple(values[name] for name in shared)
                group = groups.setdefault(key, [{} for _ in here.patterns])
                if numbers in group[number]:
                    self._fault(
                        rule,
                        dict(zip(shared, key, strict=True)),
                        f"{group[number][numbers]} and {path} have the same number",
                    )
                group[number][numbers] = path
        self._note_gaps(rule, [dict(zip(shared, key, strict=True)) for key in groups])
        # Once for all layers of equal shapes.
        solve = functools.cache(functools.partial(_solved, rule, self._sizes))
        for key, group in groups.items():
            values = dict(zip(shared, key, strict=True))
            try:
                for new, made in self._made(rule, values, stacked, group, solve):
                    self._add(rule, new, made)
            except SizesError as error:
                self._taken.update(path for paths in group for path in paths.values())
                self._fault(rule, values, str(error), is_unfit=isinstance(error, UnfitError))
        return bool(groups)

    def _fault(
        self, rule: Rule, values: Mapping[str, str], text: str, *, is_unfit: bool = False
    ) -> None:
        if self._wanted is not None and not any(
            True for pattern in rule.there.patterns for _ in pattern.matches(self._wanted)
        ):
            return  # the template has no such leaf
        same = _translated(values, rule.here.patterns[0], rule.there.patterns[0]) or values
        texts = {name: f"{{{name}}}" for name in rule.there.indices}
        for pattern in rule.there.patterns:
            paths = [self._path(rule.there, pattern, {**texts, **same})]
            if self._wanted is not None and self._there is not None and paths[0] not in self._there:
                found = pattern.matches(self._wanted)
                paths = [path for theirs, path, _ in found if same.items() <= theirs.items()]
            for path in paths:
                fault = Fault(path, f"{text}; {rule.text}", is_unfit=is_unfit)
                self._plan.faults.append(fault)

    def _note_gaps(self, rule: Rule, found: Sequence[Mapping[str, str]]) -> None:
        """Each number of a range of both sides needs a leaf, or a template that does without."""
        [here, *_], [there, *_] = rule.here.patterns, rule.there.patterns
        shared = [name for name in here.indices if name in there.indices]
        for name in shared if found and self._wanted is None else ():
            numbers = here.ranges.get(name) or there.ranges.get(name) or range(FAR)
            every = [*found, *self._unselected(rule)] if numbers.stop < FAR else ()
            present = {int(at[name]) for at in every if _translated(at, here, there) is not None}
            if not present or len(present) == len(numbers):
                continue
            lacking = next(number for number in numbers if number not in present)
            texts = {each: f"{{{each}}}" for each in (*here.indices, *there.indices)}
            values = {**texts, name: str(lacking)}
            same = _translated({name: str(lacking)}, here, there) or values
            text = f"the {rule.here.name} has no {here.fill(values)}: correct the range of {name}"
            path = self._path(rule.there, there, {**texts, **same})
            self._plan.faults.append(Fault(path, f"{text}; {rule.text}"))

    def _made(
        self,
        rule: Rule,
        shared: Mapping[str, str],
        stacked: Sequence[str],
        group: Sequence[Mapping[tuple[int, ...], str]],
        solve: _Solve,
    ) -> Iterator[tuple[str, Made]]:
        domains = [_domain(rule, name, at, group) for at, name in enumerate(stacked)]
        combinations, paths = [], []
        for combination in itertools.product(*domains):
            combinations.append(combination)
            for pattern, members in zip(rule.here.patterns, group, strict=True):
                if combination not in members:
                    texts = {**shared, **_texts(stacked, combination)}
                    raise SizesError(f"the {rule.here.name} lacks {pattern.fill(texts)}")
                paths.append(members[combination])
        shapes, dtype = self._kind(paths, len(rule.here.patterns))
        _check_scaled(rule, dtype)
        scales = self._scales(rule, stacked, combinations, shared, shapes[0])
        spread = [name for name in rule.there.indices if name not in rule.here.indices]
        values = _translated(shared, rule.here.patterns[0], rule.there.patterns[0]) or {}
        patterns = rule.there.patterns
        wanted = tuple(self._shape(rule, pattern, values, spread) for pattern in patterns)
        counts = {name: len(domain) for name, domain in zip(stacked, domains, strict=True)}
        axes, sizes, parts, results = solve(shapes, wanted, tuple(counts.items()))
        counted = tuple((axes.index(name), count) for name, count in counts.items())
        empty = [name for name in spread if sizes[name] == 0]
        if empty and rule.there.is_file:
            raise SizesError(
                f"{paths[0]} is {[*shapes[0]]}, where {empty[0]} is 0, so no tensor of the file "
                "would tell of it: leave it out with exclude="
            )
        self._taken.update(paths)
        for pattern, result in zip(rule.there.patterns, results, strict=True):
            count = math.prod(sizes[name] for name in spread)
            if count > _MOST_EMPTY and 0 in shapes[0]:
                raise SizesError(f"{paths[0]} has no elements, and would be {count} arrays")
            ranges = [enumerate(_range_of(pattern, name, sizes[name])) for name in spread]
            for numbers in itertools.product(*ranges):
                cover = [*result.cover]
                for name, (at, _) in zip(spread, numbers, strict=True):
                    cover[axes.index(name)] = range(at, at + 1)
                own = result._replace(cover=tuple(cover))
                texts = {**values, **_texts(spread, [number for _, number in numbers])}
                made = Made(rule, Assembly(own, counted, parts, tuple(paths)), dtype, scales)
                yield self._path(rule.there, pattern, texts), made

    def _kind(self, paths: Sequence[str], count: int) -> tuple[tuple[Shape, ...], np.dtype[Any]]:
        first = self._here[paths[0]]
        for at, path in enumerate(paths):
            leaf, like = self._here[path], self._here[paths[at % count]]
            if leaf.dtype is None or first.dtype is None:
                other = path if leaf.dtype is None else paths[0]
                raise SizesError(f"{other} is not an array: leave out the axes")
            if leaf.shape != like.shape or leaf.dtype != first.dtype:
                other = paths[0] if leaf.shape == like.shape else paths[at % count]
                raise SizesError(
                    f"{path} is {leaf.dtype}{[*leaf.shape]}, unlike {other}, which is "
                    f"{self._here[other].dtype}{[*self._here[other].shape]}: stack equal ones, by "
                    "a range such as {l:0..12}"
                )
            if len(leaf.shape) != len(first.shape):
                raise SizesError(f"{path} has {len(leaf.shape)} dimensions, unlike {paths[0]}")
        assert first.dtype is not None
        return tuple(self._here[path].shape for path in paths[:count]), first.dtype

    def _scales(
        self,
        rule: Rule,
        stacked: Sequence[str],
        combinations: Sequence[tuple[int, ...]],
        shared: Mapping[str, str],
        shape: Shape,
    ) -> tuple[str, ...]:
        if rule.scales is None or rule.block is None:
            return ()
        if len(shape) < 2:
            raise SizesError(f"block={rule.block} needs two dimensions, found {[*shape]}")
        blocks = [-(-size // block) for size, block in zip(shape[-2:], rule.block, strict=True)]
        expected = [*shape[:-2], *blocks]
        paths = []
        for numbers in combinations:
            name = rule.scales.fill({**shared, **_texts(stacked, numbers)})
            path = self._names.find(name)
            if path is not None and self._here[path].dtype is None:
                raise SizesError(f"{path}, the scales, is not an array: save np.asarray of it")
            if path is None:
                raise SizesError(
                    f"the {rule.here.name} lacks {name}, the scales: change scales=, or leave it "
                    "out"
                )
            if not _is_laid(self._here[path].shape, expected):
                raise SizesError(
                    f"{path}, the scales, is {[*self._here[path].shape]}: blocks of "
                    f"{[*rule.block]} in {[*shape]} need {expected}: change block="
                )
            paths.append(path)
        return tuple(paths)

    def _shape(
        self, rule: Rule, pattern: Pattern, values: Mapping[str, str], spread: Sequence[str]
    ) -> Shape | None:
        if self._wanted is None or self._there is None:
            return None
        texts = {**values}
        for name in spread:
            texts[name] = str(pattern.ranges.get(name, range(1))[0])
        path = self._wanted.find(self._path(rule.there, pattern, texts))
        if path is None and spread:  # the template may lack the first
            found = (
                path
                for theirs, path, _ in pattern.matches(self._wanted)
                if values.items() <= theirs.items() and _numbers(theirs, spread, pattern)
            )
            path = next(found, None)
        leaf = None if path is None else self._there[path]
        return None if leaf is None or leaf.dtype is None else leaf.shape


# The axes, their sizes, and the positions of the sources and of the results.
_Solved = tuple[list[str], dict[str, int], tuple[Part, ...], tuple[Part, ...]]

_Solve = Callable[
    [tuple[Shape, ...], tuple[Shape | None, ...], tuple[tuple[str, int], ...]], _Solved
]


def _solved(
    rule: Rule,
    keywords: Mapping[str, Any],
    shapes: tuple[Shape, ...],
    wanted: tuple[Shape | None, ...],
    counts: tuple[tuple[str, int], ...],
) -> _Solved:
    whole = expanded(rule, shapes[0])
    ranges = rule.there.patterns[0].ranges
    spread = (name for name in rule.there.indices if name not in rule.here.indices)
    limits = {name: ranges[name] for name in spread if name in ranges}
    limited = {name: len(limit) for name, limit in limits.items() if limit.stop < FAR}
    sizes = solve_for(whole, Given(shapes, wanted, dict(counts), keywords, limited))
    axes = [*dict.fromkeys((*whole.here.axes, *whole.there.axes))]
    parts, results = (tuple(_parts(whole, side, axes, sizes)) for side in (whole.here, whole.there))
    return axes, sizes, parts, results


def _texts(names: Sequence[str], numbers: Sequence[int]) -> dict[str, str]:
    return {name: str(number) for name, number in zip(names, numbers, strict=True)}


def _parts(rule: Rule, side: Side, axes: Sequence[str], sizes: Mapping[str, int]) -> Iterator[Part]:
    groups = tuple(tuple(axes.index(name) for name in group) for group in side.groups)
    for number in range(len(side.patterns)):
        yield Part(groups, tuple(_cover(rule, side, name, number, sizes) for name in axes))


def _is_laid(shape: Shape, expected: Sequence[int]) -> bool:
    """Returns whether factors have the expected shape, except for unit axes, or are flat."""
    sizes = [size for size in shape if size != 1]
    return sizes in ([size for size in expected if size != 1], [math.prod(expected)])


def _check_scaled(rule: Rule, dtype: np.dtype[Any]) -> None:
    if rule.is_pointwise and (
        dtype.kind in "cbUSOmM" or "int4" in dtype.name or "int2" in dtype.name
    ):
        raise SizesError(
            f"scale=, add=, dtype= and scales= take numbers, found {dtype}: leave them out"
        )
    is_computed = any(option is not None for option in (rule.scale, rule.add, rule.scales))
    if is_computed and dtype == np.float64:
        raise SizesError(
            "scale=, add= and scales= are computed in float32, found float64: cast it before"
        )
    is_whole = dtype.kind in "iu" and rule.dtype is None and rule.scales is None
    if rule.is_pointwise and is_whole:
        raise SizesError(f"scale= and add= of {dtype} need dtype=, such as 'float32'")


def _text_here(rule: Rule, values: Mapping[str, str], below: str) -> str:
    texts = {name: f"{{{name}}}" for name in rule.here.indices}
    text = rule.here.patterns[0].fill({**texts, **values})
    if not below:
        return text
    separator = "." if "." in text and "/" not in text else "/"
    return separator.join(filter(None, [text.strip("./"), below]))


def _below(parts: Sequence[str], end: int) -> list[str]:
    """Returns the keys below a match, which may end at a dot in a key: `l.weight.absmax`."""
    length = -1 if end else 0
    for count, part in enumerate(parts):
        if length == end:
            return [*parts[count:]]
        length += 1 + len(part)
        if length > end:
            return [*part[end - length + 1 :].split("."), *parts[count + 1 :]]
    return []


def _numbers(
    values: Mapping[str, str], stacked: Sequence[str], pattern: Pattern
) -> tuple[int, ...] | None:
    numbers = []
    for name in stacked:
        text = values[name]
        if not (text.isascii() and text.isdecimal() and len(text) < _MOST_DIGITS):
            return None
        if name in pattern.ranges and int(text) not in pattern.ranges[name]:
            return None
        numbers.append(int(text))
    return tuple(numbers)


_MOST_DIGITS = 10

# The most arrays into which one without elements is split: its header may have any size.
_MOST_EMPTY = 1 << 16


def _translated(
    values: Mapping[str, str], pattern: Pattern, other: Pattern
) -> dict[str, str] | None:
    """Returns shared indices on the other side: the same, or of the same position in its range."""
    new = {}
    for name, text in values.items():
        ours, theirs = pattern.ranges.get(name), other.ranges.get(name)
        if ours is not None or theirs is not None:
            numbers = ours or theirs
            assert numbers is not None
            if not text.isdecimal() or len(text) >= _MOST_DIGITS or int(text) not in numbers:
                return None
            if ours is not None and theirs is not None:
                position = ours.index(int(text))
                if position >= len(theirs):
                    return None
                text = str(theirs[position])
        new[name] = text
    return new


def _domain(
    rule: Rule, name: str, at: int, group: Sequence[Mapping[tuple[int, ...], str]]
) -> Sequence[int]:
    most = max(numbers[at] for members in group for numbers in members)
    numbers = rule.here.patterns[0].ranges.get(name, range(FAR))
    if numbers.stop >= FAR:
        numbers = range(numbers.start, most + 1, numbers.step)
    there = sum(map(len, group))
    if len(numbers) > there:  # a gap, or a range of any length in a hostile path
        present = {each[at] for members in group for each in members}
        lacking = next(number for number in numbers if number not in present)
        first, last = min(present), max(present)
        cure = f"is the {rule.here.name} whole? Indices have no gaps"
        if len(present) == last - first + 1:
            stop = "" if numbers.stop > last and lacking < first else last + 1
            cure = f"if it has no more, pass the range {{{name}:{first}..{stop}}}"
        has = f"has no {name} = {lacking}, although it has {name} = {most}"
        raise SizesError(f"the {rule.here.name} {has}: {cure}")
    return numbers


def _range_of(pattern: Pattern, name: str, size: int) -> range:
    numbers = pattern.ranges.get(name, range(size))
    if numbers.stop >= FAR:
        numbers = range(numbers.start, numbers.start + size * numbers.step, numbers.step)
    if len(numbers) != size:
        start, stop = numbers.start, numbers.start + size * numbers.step
        step = f":{numbers.step}" * (numbers.step > 1)
        raise SizesError(
            f"the range of {name} has {len(numbers)} numbers, but {name} is {size}: write "
            f"{{{name}:{start}..{stop}{step}}}"
        )
    return numbers


def _cover(rule: Rule, side: Side, name: str, number: int, sizes: Mapping[str, int]) -> range:
    if name == rule.along and len(side.patterns) > 1:
        before = sum(sizes[part_of(name, at)] for at in range(number))
        return range(before, before + sizes[part_of(name, number)])
    axis = axis_of(rule, side, name, number)
    return range(axis if isinstance(axis, int) else sizes[axis])
