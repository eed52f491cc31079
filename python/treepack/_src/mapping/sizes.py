from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from treepack._src.mapping.axes import REST, Group, shown
from treepack._src.mapping.rules import Rule, Side

Shape = tuple[int, ...]

_CHANGE = "change the axes or the keywords"


class SizesError(ValueError):
    """The sizes of axes disagree, or are unknown."""


class UnknownSizeError(SizesError):
    def __init__(self, axis: str, keyword: str, remedy: str, where: str = ""):
        super().__init__(f"the size of {axis} {where}is unknown: pass {remedy}")
        self.keyword = keyword


class UnfitError(SizesError):
    """An array of the template has another shape, and the file alone does not tell the sizes."""


def expanded(rule: Rule, shape: Shape) -> Rule:
    groups = rule.here.groups
    count = len(shape) - len(groups) + ((REST,) in groups)
    if count < 0 or (count > 0 and (REST,) not in groups):
        raise SizesError(
            f"{shown(groups)!r} are {len(groups)} dimensions, but the array has {len(shape)}: "
            f"{[*shape]}; write one axis for each, or ... for the rest"
        )
    rest = [(f"{REST}{at}",) for at in range(count)]

    def side(each: Side) -> Side:
        new: list[Group] = []
        for group in each.groups:
            new += rest if group == (REST,) else [group]
        return each._replace(groups=tuple(new))

    return dataclasses.replace(rule, here=side(rule.here), there=side(rule.there))


# Axes of unknown sizes, their product, and for errors the group and its array.
_Equation = tuple[tuple[str, ...], int, Group, str]


def axis_of(rule: Rule, side: Side, name: str, number: int) -> str | int:
    if name in rule.pad and not side.is_file:
        return rule.pad[name]
    return part_of(name, number) if name == rule.along and len(side.patterns) > 1 else name


def part_of(axis: str, number: int) -> str:
    return f"{axis}#{number}"


class Given(NamedTuple):
    """The sizes that are known.

    Attributes:
      counts: The numbers of arrays here by their indices.
      ranges: The numbers of arrays there by indices with a range, if nothing else tells them.
    """

    here: Sequence[Shape]
    there: Sequence[Shape | None]
    counts: Mapping[str, int]
    sizes: Mapping[str, int | tuple[int, ...]]
    ranges: Mapping[str, int]


def solve(rule: Rule, given: Given) -> dict[str, int]:
    here, there, counts, sizes, ranges = given
    known = {**counts}
    wanted = {name for name in (*rule.here.axes, *rule.there.axes) if name not in rule.pad}
    for name in (*wanted, *rule.pad):
        size = sizes.get(name, ())
        if isinstance(size, int):
            known.setdefault(name, size)
    several = rule.here if len(rule.here.patterns) > 1 else rule.there
    parts: list[str] = []
    if rule.along is not None:
        count = len(several.patterns)
        parts = [part_of(rule.along, number) for number in range(count)]
        lengths = sizes.get(rule.along)
        if rule.along not in several.axes:  # one index in each
            lengths = (1,) * count
        if isinstance(lengths, tuple):
            if len(lengths) != count:
                raise SizesError(
                    f"{rule.along}={lengths} has {len(lengths)} sizes for {count} arrays: pass one "
                    "for each"
                )
            known.update(zip(parts, lengths, strict=True))
    wanted |= {*parts} | ({*rule.pad} & {*rule.here.axes})
    ours = _equations(rule, rule.here, here)
    theirs = _equations(rule, rule.there, there)
    _settle(ours, parts, rule.along, known)
    for name, size in ranges.items():
        if name not in known:
            known[name] = size
            _settle(ours, parts, rule.along, known)
    used = ours
    if not wanted <= known.keys():
        used = ours + theirs
        _settle(used, parts, rule.along, known)
    for axes, size, group, where in used:
        if {*axes} <= known.keys() and math.prod(known[axis] for axis in axes) != size:
            raise SizesError(
                f"{shown((group,))} is {size} in {where}, but "
                f"{' x '.join(str(known[axis]) for axis in axes) or 1} by the other sizes: "
                f"{_texts(axes, known)}; {_CHANGE}"
            )
    if rule.along is not None and {rule.along, *parts} <= known.keys():
        total = sum(known[part] for part in parts)
        if total != known[rule.along]:
            raise SizesError(
                f"{rule.along} is {known[rule.along]} on the side with one array, but the others "
                f"have {' + '.join(str(known[part]) for part in parts)}"
            )
    for name, size in rule.pad.items():
        if known.get(name, 0) > size:
            text = f"{name} is {known[name]} in the file, more than pad= fills: {size}"
            raise SizesError(f"{text}; pass a larger size")
    if unknown := wanted - known.keys():
        # The sizes of `along` first: with them, others may be known.
        axis, is_part, _ = min(unknown, key=lambda name: ("#" not in name, name)).partition("#")
        example_sizes = ", ".join(["32", *["8"] * (len(several.patterns) - 1)])
        example = f"{axis}=({example_sizes})" if is_part else f"{axis}=32"
        remedy = f"it as a keyword, as in treepack.Mapping(rules, {example})"
        if is_part and known.get(axis, len(parts)) == len(parts):
            remedy += f", or leave {axis} out of the side with {len(parts)} arrays, if each is one"
        if rule.here.is_file and all(shape is None for shape in there):
            remedy += ", or a template to treepack.load"
        where = f"in each of the {len(parts)} arrays " if is_part and axis in sizes else ""
        raise UnknownSizeError(axis, example, remedy, where)
    return known


def solve_for(rule: Rule, given: Given) -> dict[str, int]:
    """Solves sizes for a template; one of another shape does not count if the file suffices.

    So it is a mismatch like any other, which options of `load` may allow; else an UnfitError.
    """
    try:
        return solve(rule, given)
    except SizesError as error:
        shape = next((shape for shape in given.there if shape is not None), None)
        if shape is None:
            raise
        try:
            return solve(rule, given._replace(there=[None] * len(given.there)))
        except UnknownSizeError as alone:
            text, several = str(error).removesuffix(f"; {_CHANGE}"), rule.there.patterns
            remedy = (
                "pass the sizes of the file as keywords, as in "
                f"treepack.Mapping(rules, {alone.keyword})"
            )
            is_other = any(
                it is not None and len(it) != len(rule.there.groups) for it in given.there
            )
            if isinstance(error, UnknownSizeError) and not is_other:
                raise error from None
            if isinstance(error, UnknownSizeError):
                axes = repr(shown(rule.there.groups))
                text = f"{axes} has other dimensions than {[*shape]}"
                is_whole = len(several) > 1 and (rule.along,) in rule.there.groups
                if is_whole and len(shape) == len(rule.there.groups) - 1:
                    remedy = f"leave {rule.along} out of {axes}: each leaf is one index of it"
            raise UnfitError(f"{text}, in the template: {remedy}") from error


def _texts(axes: Sequence[str], known: Mapping[str, int]) -> str:
    return ", ".join(f"{axis} = {known[axis]}" for axis in axes) or "a unit axis"


def _equations(rule: Rule, side: Side, shapes: Sequence[Shape | None]) -> list[_Equation]:
    equations: list[_Equation] = []
    for number, shape in enumerate(shapes):
        if shape is None or len(shape) != len(side.groups):
            continue
        for group, size in zip(side.groups, shape, strict=True):
            axes = [axis_of(rule, side, name, number) for name in group]
            fixed = math.prod(axis for axis in axes if isinstance(axis, int))
            names = tuple(axis for axis in axes if isinstance(axis, str))
            where = f"the {side.name}'s {[*shape]}"
            if fixed and size % fixed == 0:
                equations.append((names, size // fixed, group, where))
            else:
                raise SizesError(
                    f"{shown((group,))} is {size} in {where}, but pad= says {fixed}: pass {size}"
                )
    return equations


def _settle(
    equations: Sequence[_Equation], parts: list[str], along: str | None, known: dict[str, int]
) -> None:
    before = -1
    while before < len(known):
        before = len(known)
        for axes, size, group, where in equations:
            unknown = [axis for axis in axes if axis not in known]
            rest = math.prod(known[axis] for axis in axes if axis in known)
            if len(unknown) != 1 or rest == 0:
                continue
            if size % rest:
                others = [axis for axis in axes if axis in known]
                raise SizesError(
                    f"{shown((group,))} is {size} in {where}, which {_texts(others, known)} does "
                    "not divide; change the axes or the keywords"
                )
            known[unknown[0]] = size // rest
        if along is None:
            continue
        unknown = [part for part in parts if part not in known]
        total = sum(known[part] for part in parts if part in known)
        if not unknown:
            known.setdefault(along, total)
        elif len(unknown) == 1 and along in known:
            known[unknown[0]] = known[along] - total
